"""The lane of plain pulls: from the bytes of a frame to the response, by compiled code.

What the pulls of a consumer for one queue have in common, their terms, is decided once, by
``goddard.broker.consuming.pull``, and kept as a ``Grant`` until a topic, a group or a setting
changes. A pull with a grant for which there are messages in memory is answered here; any other is
served like one without the lane.

Only where ``goddard.core`` is compiled. Belongs to the loop.
"""

from dataclasses import dataclass
from typing import Final

from goddard.broker.consuming.clients import Clients
from goddard.broker.consuming.filters import TagCodes
from goddard.broker.consuming.members import ConsumerGroup
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.consuming.pull import (
    HAS_SUBSCRIPTION,
    PULL,
    GetStats,
    Pulls,
    RefusedError,
)
from goddard.broker.consuming.pull_call import PullCall
from goddard.broker.rules import RULES
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock
from goddard.core.pulls import Pull, read_pull
from goddard.errors import GoddardError
from goddard.protocol.bodies import MessageModel
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import ResponseCode, SerializeType
from goddard.store.log.reading import GetStatus, ReadLimits, read_limits
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.rules import Gate

_RULE: Final = RULES[PULL]  # LITE_PULL has the same
_FOUND: Final = int(ResponseCode.SUCCESS)
_REMARK: Final = GetStatus.FOUND.value.encode()

# When there are more, all are decided again. One takes about a kilobyte.
_MAX_GRANTS: Final = 16_384
_MAX_TERMS_BYTES: Final = 1024


@dataclass(slots=True, frozen=True, eq=False)
class Grant:
    """What pulls with the same terms get."""

    group: str
    topic: str
    queue_id: int
    queue_key: tuple[str, int]
    limits: ReadLimits
    filter: TagCodes | None
    may_commit: bool
    broker_id: int
    broker_id_if_slow: int
    topic_flag: int
    group_flag: int
    # Where the filter comes from; None if the pulls bring their subscription along.
    members: ConsumerGroup | None
    model: MessageModel | None
    subscription: SubscriptionData | None


class PullLane:
    """Serves the plain pulls of a chunk of frames; never one behind a frame that it leaves."""

    __slots__ = (
        "_clients",
        "_clock",
        "_gate",
        "_grants",
        "_offsets",
        "_pulls",
        "_settings",
        "_stats",
        "_store",
    )

    def __init__(
        self,
        pulls: Pulls,
        gate: Gate,
        *,
        store: MessageStore,
        settings: Settings,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        stats: GetStats,
        clock: Clock,
    ) -> None:
        self._pulls = pulls
        self._gate = gate
        self._store = store
        self._settings = settings
        self._clients = clients
        self._offsets = offsets
        self._stats = stats
        self._clock = clock
        self._grants: dict[bytes, Grant] = {}
        settings.add_listener(lambda _: self._grants.clear())
        topics.add_listener(lambda _: self._grants.clear())
        groups.add_listener(lambda _: self._grants.clear())

    def take(self, connection: Connection, frames: list[memoryview], start: int) -> int:
        """Serve plain pulls from ``frames[start]`` on; returns the index of the first other."""
        if self._gate.room(_RULE) < len(frames) - start:
            return start
        for number in range(start, len(frames)):
            pull = None if connection.is_paused else read_pull(frames[number])
            if pull is None:
                return number
            if not self._answer(pull, connection):
                self._pulls.serve(_call(pull, connection), can_suspend=True)
        return len(frames)

    def _answer(self, pull: Pull, connection: Connection) -> bool:
        """Answer a pull that is granted, if there are messages in memory; else do nothing."""
        try:
            grant = self._grants.get(pull.terms) or self._decide(pull, connection)
            if grant is None or not self._is_valid(grant):
                return False
            began_ms = self._clock.monotonic_ms()
            found = self._store.gather_cached(
                grant.queue_key, pull.queue_offset, grant.limits, grant.filter
            )
        except (GoddardError, RefusedError):
            return False  # the same happens again where it is answered
        if found is None:
            return False
        group, topic, queue_id = grant.group, grant.topic, grant.queue_id
        self._offsets.note_pulled(group, topic, queue_id, found.next_offset)
        if grant.may_commit and pull.commit_offset >= 0:
            self._offsets.commit(group, topic, queue_id, pull.commit_offset, connection.remote)
        self._stats.get(topic, group, found.count, found.total_bytes)
        took_ms = self._clock.monotonic_ms() - began_ms
        self._stats.get_took(queue_id, topic, group, took_ms)
        connection.send_encoded(
            found.answer(
                pull.is_json,
                pull.opaque,
                _FOUND,
                _REMARK,
                grant.broker_id_if_slow if found.is_slave_suggested else grant.broker_id,
                grant.topic_flag,
                grant.group_flag,
            )
        )
        return True

    def _is_valid(self, grant: Grant) -> bool:
        """Whether nothing has changed of which this lane is not told, and no reset is to be told
        to the group."""
        members = grant.members
        if members is not None and not (
            self._clients.consumer_group(grant.group) is members
            and members.message_model is grant.model
            and members.subscriptions.get(grant.topic) is grant.subscription
        ):
            self._grants.clear()
            return False
        return not self._offsets.is_reset(grant.group, grant.topic, grant.queue_id)

    def _decide(self, pull: Pull, connection: Connection) -> Grant | None:
        """The grant for the terms of a pull; None if each pull has to be looked at."""
        config = self._settings.current
        if (
            len(pull.terms) > _MAX_TERMS_BYTES
            or config.reject_pull_consumer  # depends on the connection
            or config.disable_slow_consumers  # depends on the messages
        ):
            return None
        call = _call(pull, connection)
        group, topic = self._pulls.admit(call)
        filter_ = self._pulls.filter_of(call, group)
        if filter_ is not None and not isinstance(filter_, TagCodes):
            return None
        name = pull.consumer_group
        if (group.group_name, topic.topic_name) != (name, pull.topic):
            return None
        members = None if pull.sys_flag & HAS_SUBSCRIPTION else self._clients.consumer_group(name)
        grant = Grant(
            group=name,
            topic=topic.topic_name,
            queue_id=pull.queue_id,
            queue_key=(topic.topic_name, pull.queue_id),
            limits=read_limits(self._store.config, self._pulls.max_count(pull), pull.max_msg_bytes),
            filter=filter_,
            may_commit=self._pulls.may_commit(pull),
            broker_id=self._pulls.next_broker_id(group, is_slave_suggested=False),
            broker_id_if_slow=self._pulls.next_broker_id(group, is_slave_suggested=True),
            topic_flag=topic.topic_sys_flag,
            group_flag=group.group_sys_flag,
            members=members,
            model=None if members is None else members.message_model,
            subscription=None if members is None else members.subscriptions.get(topic.topic_name),
        )
        if len(self._grants) >= _MAX_GRANTS:
            self._grants.clear()
        self._grants[pull.terms] = grant
        return grant


def _call(pull: Pull, connection: Connection) -> PullCall:
    kind = SerializeType.JSON if pull.is_json else SerializeType.ROCKETMQ
    return PullCall(pull.code, pull.opaque, kind, pull, connection, is_plain=True)
