"""Results of administration that differ from the bodies of the protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerMemberGroup
from goddard.protocol.bodies_admin import ConsumeOffsets, TopicOffset
from goddard.protocol.codes import MASTER_ID


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """One broker process that is registered with the name server."""

    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The first and last offsets of a topic's queues.

    ``put_tps`` is in messages per second; 0 from brokers before 5.0.
    """

    put_tps: float
    queues: Mapping[MessageQueue, TopicOffset]

    @property
    def message_count(self) -> int:
        """The number of messages in the queues."""
        return sum(ends.max_offset - ends.min_offset for ends in self.queues.values())


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group has consumed. ``consume_tps`` is in messages per second."""

    consume_tps: float
    queues: Mapping[MessageQueue, ConsumeOffsets]

    @property
    def lag(self) -> int:
        """The number of messages that the group has not consumed yet (mqadmin: Diff Total)."""
        return sum(at.broker_offset - at.consumer_offset for at in self.queues.values())

    @property
    def in_flight(self) -> int:
        """The number of messages pulled but not consumed yet (mqadmin: Diff Inflight Total)."""
        return sum(at.pull_offset - at.consumer_offset for at in self.queues.values())


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """How far the groups of one broker have consumed, by group; one item per topic."""

    broker_address: str
    lag: int
    in_flight: int
    groups: Mapping[str, list[GroupProgress]]


@dataclass(frozen=True, slots=True)
class ElectedMaster:
    """The new master of a broker, and all replicas."""

    master_address: str | None
    master_epoch: int | None
    sync_state_set_epoch: int | None
    members: BrokerMemberGroup


@dataclass(frozen=True, slots=True)
class Rollback:
    """The reset of a group's offset of one queue to a time.

    ``timestamp_offset`` is the offset of that time. ``rollback_offset`` is the new offset of the
    group: the same, unless the reset was not forced and would have skipped messages.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    timestamp_offset: int
    rollback_offset: int


class TrackKind(Enum):
    """The consumption status of a message in a group; the values are RocketMQ's names."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    # The consumers of the group pull, so that only they know.
    PULL = "PULL"
    NOT_CONSUMED_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The status of a message in one group. ``problem`` says why the status is unknown."""

    group: str
    kind: TrackKind
    problem: str = ""
