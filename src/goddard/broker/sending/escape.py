"""Messages of an acting master go to another broker name, because a slave's log is its master's.

Delayed messages that are due become plain ones; half messages become halves of the other broker,
which asks their producers. A message has escaped when another master acknowledged it as the
original was; otherwise it is tried again. So none is lost, and one may be delivered twice.

Belongs to the loop.
"""

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from goddard.broker.sending.message_rules import NewMessage
from goddard.broker.sending.stored import real_place
from goddard.broker.settings import Settings
from goddard.clock import Clock
from goddard.errors import GoddardError, StoreError
from goddard.protocol.bodies import TopicRoute, decode_body
from goddard.protocol.codes import Permission, RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import GetRouteRequest
from goddard.protocol.headers.message import SendRequest, SendRequestV2
from goddard.protocol.message import (
    PROPERTY_DELAY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    SysFlag,
    TransactionType,
    format_properties,
    with_transaction_type,
)
from goddard.protocol.names import AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from goddard.protocol.responses import check
from goddard.replication.acting import MASTER_ID
from goddard.replication.reasons import Reasons
from goddard.transport.client import Client

_log: Final = logging.getLogger(__name__)

_GROUP: Final = "CLIENT_INNER_PRODUCER"
_TIMEOUT_MS: Final = 3_000
_ROUTE_MS: Final = 5_000
_CLOSE_SECONDS: Final = 0.5
_DEFAULT_QUEUES: Final = 4
_HOSTS_V6: Final = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


class EscapeError(StoreError):
    """No other broker took the message."""


class _Target(NamedTuple):
    """A queue of another broker name."""

    address: str
    queue_id: int


class _Route:
    """Where a topic can be sent to, in turn."""

    __slots__ = ("_next", "_targets", "until_ms")

    def __init__(self, targets: list[_Target], until_ms: int) -> None:
        self._targets = targets
        self._next = 0
        self.until_ms = until_ms

    def take(self) -> _Target | None:
        if not self._targets:
            return None
        self._next += 1
        return self._targets[self._next % len(self._targets)]

    def drop(self, address: str) -> None:
        self._targets = [target for target in self._targets if target.address != address]


def as_due(message: NewMessage) -> NewMessage | None:
    """A delayed message that is due, as a producer would send it now; None if it has no topic."""
    place = real_place(message.properties)
    if place is None or place[0] in (TRANS_HALF_TOPIC, SCHEDULE_TOPIC):
        return None
    # Another broker would delay it once more, or take it for a half.
    dropped = (PROPERTY_DELAY, PROPERTY_TRANSACTION_PREPARED)
    return _at(message, place, dropped, message.sys_flag)


def as_new_half(half: NewMessage) -> NewMessage | None:
    """A half message, as its producer sent it; None if it has no topic."""
    place = real_place(half.properties)
    if place is None:
        return None
    sys_flag = with_transaction_type(half.sys_flag, TransactionType.PREPARED)
    # That offset is of the half queue here.
    message = _at(half, place, (PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,), sys_flag)
    message.properties[PROPERTY_TRANSACTION_PREPARED] = "true"
    return message


def _at(
    message: NewMessage, place: tuple[str, int], dropped: tuple[str, ...], sys_flag: int
) -> NewMessage:
    removed = (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID, *dropped)
    properties = {name: value for name, value in message.properties.items() if name not in removed}
    return replace(
        message,
        topic=place[0],
        queue_id=place[1],
        properties=properties,
        sys_flag=sys_flag & ~_HOSTS_V6,
    )


class Escape:
    """Sends to other brokers until ``close``."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._reasons = Reasons(clock)
        self._routes: dict[str, _Route] = {}
        self._client: Client | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        self._routes.clear()
        if client is not None:
            await client.close(_CLOSE_SECONDS)

    async def send(self, message: NewMessage) -> None:
        """Have another master store a message; EscapeError if none does."""
        reason = "no other broker has this topic"
        route = await self._route(message.topic)
        while (target := route.take()) is not None:
            try:
                await self._request(target.address, _encode(message, target.queue_id))
            except GoddardError as error:
                reason = f"{target.address}: {error}"
                route.drop(target.address)
            else:
                return
        self._routes.pop(message.topic, None)
        if self._reasons.is_new(message.topic, reason):
            _log.warning(
                "a message of %s waits until another broker takes it: %s", message.topic, reason
            )
        raise EscapeError(f"no other broker took a message of {message.topic}: {reason}")

    async def _route(self, topic: str) -> _Route:
        route = self._routes.get(topic)
        if route is None or self._clock.monotonic_ms() >= route.until_ms:
            targets = await self._find_targets(topic)
            route = _Route(targets, self._clock.monotonic_ms() + _ROUTE_MS)
            self._routes[topic] = route
        return route

    async def _find_targets(self, topic: str) -> list[_Target]:
        request = RemotingCommand(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            GetRouteRequest(topic=topic, accept_standard_json_only=True).encode(),
        )
        for name_server in self._settings.current.name_servers:
            try:
                answer = await self._request(name_server, request)
                route = decode_body(answer.body, TopicRoute)
            except GoddardError:
                continue
            return _targets(route, self._settings.current.broker_name)
        return []

    async def _request(self, address: str, request: RemotingCommand) -> RemotingCommand:
        if self._client is None:
            self._client = Client(clock=self._clock)
        return check(await self._client.request(address, request, _TIMEOUT_MS), address)


def _targets(route: TopicRoute, own_name: str) -> list[_Target]:
    """The writable queues of other broker names that have a master, each name in turn."""
    masters: Mapping[str, str] = {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in route.broker_datas
        if data.broker_name != own_name and MASTER_ID in data.broker_addrs
    }
    numbered = [
        (queue_id, _Target(masters[data.broker_name], queue_id))
        for data in route.queue_datas
        if data.broker_name in masters and data.perm & Permission.WRITE
        for queue_id in range(data.write_queue_nums)
    ]
    return [target for _, target in sorted(numbered, key=lambda pair: pair[0])]


def _encode(message: NewMessage, queue_id: int) -> RemotingCommand:
    header = SendRequest(
        producer_group=message.properties.get(PROPERTY_PRODUCER_GROUP) or _GROUP,
        topic=message.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=_DEFAULT_QUEUES,
        queue_id=queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp_ms,
        flag=message.flag,
        properties=format_properties(message.properties),
        reconsume_times=message.reconsume_times,
    )
    fields = SendRequestV2.from_v1(header).encode()
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bytes(message.body))
