"""Requests of brokers, and their removal when they leave or expire.

Owned by the loop. A small registration is decoded on the loop, a large or compressed one by an
executor thread; the registrations of one connection take effect in order. A broker is removed when
it unregisters, when its connection closes, or when it expires; all brokers that leave in the same
tick are removed in one step.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final

from goddard.clock import Clock
from goddard.nameserver.kv import ORDER_TOPIC_NAMESPACE, KvTable
from goddard.nameserver.routes import (
    BrokerAddress,
    LeavingBroker,
    MinBrokerIdChange,
    Outcome,
    RegisteringBroker,
    RouteTable,
)
from goddard.nameserver.rules import RULES
from goddard.nameserver.settings import Settings
from goddard.nameserver.views import member_group
from goddard.protocol import bodies
from goddard.protocol.bodies import DataVersion, RegisterBrokerBody, decode_body, encode_body
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import (
    BrokerHeartbeatRequest,
    GetBrokerMemberGroupRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from goddard.protocol.responses import SystemBusyError, SystemFailedError
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers

_log = logging.getLogger(__name__)

# Decoding a body of this size would block the loop: for about a millisecond if it is standard JSON,
# for tens of milliseconds in fastjson's dialect.
_LARGE_BODY_BYTES: Final = 16 * 1024
# The decoding thread allows more of the dialect: registrations of static topics use it.
_MAX_DIALECT_BYTES: Final = 1024 * 1024
# A data version is three numbers.
_MAX_VERSION_BYTES: Final = 4 * 1024
# Before this version (3.0.11) the body of a registration was the topic table alone.
_VERSION_OF_REGISTER_BODY: Final = 37
# The limit of bodies that wait for the decoding thread, for all connections together.
_MAX_WAITING_BYTES: Final = 128 * 1024 * 1024
# The attachment of a connection for the registration that the next one waits for.
_PENDING: Final = "registration"


class Brokers:
    """Handlers of broker requests over a route table; ``notify`` sends changes to brokers."""

    def __init__(
        self,
        routes: RouteTable,
        kv: KvTable,
        settings: Settings,
        executor: Executor,
        clock: Clock,
        notify: Callable[[MinBrokerIdChange], None],
    ) -> None:
        self._routes = routes
        self._kv = kv
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._notify = notify
        self._leaving: dict[LeavingBroker, asyncio.Future[None]] = {}
        self._waiting_bytes = 0

    def install(self, handlers: Handlers) -> None:
        for code, handler in (
            (RequestCode.REGISTER_BROKER, self.register_broker),
            (RequestCode.UNREGISTER_BROKER, self.unregister_broker),
            (RequestCode.BROKER_HEARTBEAT, self.broker_heartbeat),
            (RequestCode.QUERY_DATA_VERSION, self.query_data_version),
            (RequestCode.GET_BROKER_MEMBER_GROUP, self.get_broker_member_group),
        ):
            handlers.register(code, handler, RULES[code])

    # Registration

    def register_broker(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        header = RegisterBrokerRequest.decode(request.fields)
        if header.body_crc32 and zlib.crc32(request.body) & 0x7FFFFFFF != header.body_crc32:
            _log.warning(
                "receive registerBroker request,crc32 not match,from %s", connection.remote
            )
            raise SystemFailedError("crc32 not match")
        # A small zlib stream may inflate to megabytes; it is also recognised by its first byte.
        is_compressed = header.compressed or request.body[:1] == b"\x78"
        is_large = is_compressed or len(request.body) >= _LARGE_BODY_BYTES
        if is_large or _PENDING in connection.attachments:
            return self._register_in_order(header, request, connection)
        body = _decode_registration(request, header)
        return self._register(header, body, request, connection)

    async def _register_in_order(
        self, header: RegisterBrokerRequest, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        size_bytes = len(request.body)
        if self._waiting_bytes + size_bytes > _MAX_WAITING_BYTES:
            raise SystemBusyError("[OVERLOAD]too many large registrations at once, try again later")
        before: asyncio.Future[RegisterBrokerBody] | None = connection.attachments.get(_PENDING)
        self._waiting_bytes += size_bytes
        decoding = asyncio.get_running_loop().run_in_executor(
            self._executor, _decode_if_connected, request, header, connection
        )
        # Not when this coroutine ends: the executor holds the body until it has decoded it.
        decoding.add_done_callback(lambda decoded: self._decoded(decoded, size_bytes))
        turn = asyncio.ensure_future(_after(before, decoding))
        connection.attachments[_PENDING] = turn
        try:
            body = await turn
            return self._register(header, body, request, connection)
        finally:
            if connection.attachments.get(_PENDING) is turn:
                del connection.attachments[_PENDING]

    def _decoded(self, decoded: asyncio.Future[RegisterBrokerBody], size_bytes: int) -> None:
        self._waiting_bytes -= size_bytes
        if not decoded.cancelled():
            # Retrieve the exception: if the broker is gone, nothing else does, and asyncio would
            # warn.
            decoded.exception()

    def _register(
        self,
        header: RegisterBrokerRequest,
        body: RegisterBrokerBody,
        request: RemotingCommand,
        connection: Connection,
    ) -> RemotingCommand:
        result = self._routes.register(
            RegisteringBroker(
                cluster=header.cluster_name,
                name=header.broker_name,
                address=header.broker_addr,
                broker_id=header.broker_id,
                ha_address=header.ha_server_addr,
                zone=header.zone_name,
                timeout_ms=header.heartbeat_timeout_millis,
                enable_acting_master=header.enable_acting_master,
            ),
            body.topic_config_serialize_wrapper,
            body.filter_server_list,
            connection,
            self._clock.monotonic_ms(),
        )
        if result.outcome is Outcome.NOT_REGISTERED:
            _log.warning("Can't register one topic because broker %s has not registered", header)
            raise SystemFailedError("register broker failed")
        if result.outcome is Outcome.OUTDATED:
            _log.warning(
                "Registering Broker conflicts with the existed one, just ignore: %s", header
            )
        if result.is_new:
            _log.info(
                "new broker registered, %s %s %s, id %d, HAService: %s",
                header.cluster_name,
                header.broker_name,
                header.broker_addr,
                header.broker_id,
                header.ha_server_addr,
            )
        if result.changed_topics:
            _log.info("%d topics of %s registered", result.changed_topics, header.broker_name)
        settings = self._settings.current
        if result.change is not None and settings.notify_min_broker_id_changed:
            self._notify(result.change)
        answer = RegisterBrokerResponse(
            ha_server_addr=result.ha_address, master_addr=result.master_address
        )
        order_conf = None
        if settings.return_order_topic_config_to_broker:
            order_conf = self._kv.namespace(ORDER_TOPIC_NAMESPACE)
        return request.reply(
            ext_fields=answer.encode(),
            body=b"" if order_conf is None else encode_body(bodies.KvTable(dict(order_conf))),
        )

    # Heartbeats

    def broker_heartbeat(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = BrokerHeartbeatRequest.decode(request.fields)
        key = BrokerAddress(header.cluster_name, header.broker_addr)
        self._routes.touch(key, self._clock.monotonic_ms())
        return request.reply()

    def query_data_version(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = QueryDataVersionRequest.decode(request.fields)
        version = DataVersion()
        if request.body:
            version = decode_body(request.body, DataVersion, max_dialect_bytes=_MAX_VERSION_BYTES)
        key = BrokerAddress(header.cluster_name, header.broker_addr)
        is_changed = self._routes.is_changed(key, version)
        self._routes.touch(key, self._clock.monotonic_ms())
        ours = self._routes.data_version(key)
        return request.reply(
            ext_fields=QueryDataVersionResponse(changed=is_changed).encode(),
            body=b"" if ours is None else encode_body(ours),
        )

    def get_broker_member_group(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = GetBrokerMemberGroupRequest.decode(request.fields)
        group = member_group(self._routes, header.cluster_name, header.broker_name)
        body = bodies.BrokerMemberGroupAnswer(broker_member_group=group)
        return request.reply(body=encode_body(body, unquoted_int_keys=True))

    # Leaving

    async def unregister_broker(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        pending = connection.attachments.get(_PENDING)
        if pending is not None:
            await asyncio.wait((pending,))
        header = UnregisterBrokerRequest.decode(request.fields)
        leaving = LeavingBroker(
            header.cluster_name, header.broker_name, header.broker_addr, header.broker_id
        )
        if len(self._leaving) >= self._settings.current.unregister_queue_capacity:
            _log.warning("Couldn't submit the unregister broker request to handler, %s", leaving)
            raise SystemFailedError("too many brokers are unregistering at once")
        await asyncio.shield(self._submit(leaving))
        return request.reply()

    def connection_closed(self, connection: Connection) -> None:
        for key in self._routes.of_connection(connection):
            leaving = self._routes.leaving(key)
            if leaving is not None:
                _log.info("the broker's channel destroyed, unregister it at once: %s", leaving)
                self._submit(leaving)

    def scan(self) -> None:
        """Remove the expired brokers, and close their connections."""
        for key, living in self._routes.expired(self._clock.monotonic_ms()):
            _log.warning("The broker channel expired, %s %dms", key, living.timeout_ms)
            leaving = self._routes.leaving(key)
            if leaving is not None:
                self._submit(leaving)
            if isinstance(living.connection, Connection):
                living.connection.abort()

    def _submit(self, leaving: LeavingBroker) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not self._leaving:
            loop.call_soon(self._unregister_leaving)
        return self._leaving.setdefault(leaving, loop.create_future())

    def _unregister_leaving(self) -> None:
        batch, self._leaving = self._leaving, {}
        changes = self._routes.unregister(batch)
        _log.info("unregistered %s", ", ".join(f"{b.name} {b.address}" for b in batch))
        for done in batch.values():
            done.set_result(None)
        if self._settings.current.notify_min_broker_id_changed:
            for change in changes:
                self._notify(change)


def _decode_registration(
    request: RemotingCommand, header: RegisterBrokerRequest
) -> RegisterBrokerBody:
    body = request.body
    if request.version < _VERSION_OF_REGISTER_BODY and body:
        table = decode_body(body, bodies.TopicConfigTable, max_dialect_bytes=_MAX_DIALECT_BYTES)
        return RegisterBrokerBody(topic_config_serialize_wrapper=table)
    return bodies.decode_register_body(
        body, header.compressed, request.version, max_dialect_bytes=_MAX_DIALECT_BYTES
    )


def _decode_if_connected(
    request: RemotingCommand, header: RegisterBrokerRequest, connection: Connection
) -> RegisterBrokerBody:
    """Runs in the executor, possibly after the connection was closed."""
    if connection.is_closed:
        raise SystemFailedError("the broker has disconnected")
    return _decode_registration(request, header)


async def _after(
    before: asyncio.Future[RegisterBrokerBody] | None,
    decoding: asyncio.Future[RegisterBrokerBody],
) -> RegisterBrokerBody:
    """The decoded body, after the previous registration has succeeded or failed."""
    if before is not None:
        await asyncio.wait((before,))
    return await asyncio.shield(decoding)
