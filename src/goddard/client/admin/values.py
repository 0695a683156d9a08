"""What administration answers with, where the bodies of the protocol are not made for people."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
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
    """The ends of a topic's queues. ``put_tps`` is messages a second, 0 from brokers before 5.0."""

    put_tps: float
    queues: Mapping[MessageQueue, TopicOffset]

    @property
    def message_count(self) -> int:
        """How many messages the queues hold."""
        return sum(ends.max_offset - ends.min_offset for ends in self.queues.values())


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Where a group stands. ``consume_tps`` is messages a second."""

    consume_tps: float
    queues: Mapping[MessageQueue, ConsumeOffsets]

    @property
    def lag(self) -> int:
        """How many messages the group has not consumed yet (mqadmin: Diff Total)."""
        return sum(at.broker_offset - at.consumer_offset for at in self.queues.values())

    @property
    def in_flight(self) -> int:
        """How many messages were pulled but not consumed yet (mqadmin: Diff Inflight Total)."""
        return sum(at.pull_offset - at.consumer_offset for at in self.queues.values())


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """Where the groups of one broker stand, by group and topic."""

    broker_address: str
    lag: int
    in_flight: int
    groups: Mapping[str, list[GroupProgress]]


@dataclass(frozen=True, slots=True)
class Rollback:
    """How a queue's offset of a group was set to that of a time.

    ``timestamp_offset`` is the offset of that time, ``rollback_offset`` what the group has now:
    the same, unless the reset was not forced and would have skipped messages.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    timestamp_offset: int
    rollback_offset: int


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """What a search by key found, oldest first.

    Messages stored after ``index_last_update_ms`` may be missing: the index did not have them yet.
    """

    messages: list[ReceivedMessage]
    index_last_update_ms: int


class TrackKind(Enum):
    """What became of a message in a group; the values are RocketMQ's names."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    # The group pulls by itself: only it knows.
    PULL = "PULL"
    NOT_CONSUMED_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """``problem`` says why nothing is known, if so."""

    group: str
    kind: TrackKind
    problem: str = ""
