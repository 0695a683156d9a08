"""The session of clients with the same client id: connections, routes, heartbeats, periodic tasks.

A session belongs to one event loop and one process. It counts its users: each client starts and
stops it once, and the last one to stop closes all tasks and sockets. Its requests are signed and
have the namespace; there is one connection for each address.

Routes are fetched when first needed and then every ``poll_name_server_interval_ms``. Concurrent
callers that need the same route share one request.
"""

import asyncio
import logging
from typing import ClassVar, Final, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

from goddard.client import broker_api
from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientError,
    NameServerError,
    NoNameServerError,
    NoRouteError,
    NotRunningError,
)
from goddard.client.identity import LoopGuard, unique_ids
from goddard.client.members import (
    ConsumerMember,
    Members,
    ProducerMember,
    ReplyListener,
)
from goddard.client.name_servers import NameServers, fetch_name_servers
from goddard.client.options import SessionOptions
from goddard.client.routes import MASTER_ID, KnownRoutes, PublishRoute, vip_address
from goddard.client.send_results import take_results
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.environment import Environment
from goddard.errors import (
    ConfigError,
    GoddardError,
    ProtocolError,
    RemotingError,
)
from goddard.protocol.acl import sign
from goddard.protocol.bodies import TopicRoute
from goddard.protocol.bodies_client import HeartbeatData
from goddard.protocol.codes import LanguageCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.names import AUTO_CREATE_TOPIC, with_namespace, without_namespace
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.tasks import Tasks, finish

__all__ = ("ConsumerMember", "ProducerMember", "Session")

_logger: Final = logging.getLogger("goddard.client")
# A missing route is a warning, as in RocketMQ's client, although it is normal before the first send
# creates a topic. With this handler, a program that does not configure logging does not print it.
_missing_routes_logger: Final = _logger.getChild("missing_routes")
_missing_routes_logger.addHandler(logging.NullHandler())

# RocketMQ's constants for the periodic tasks; the other intervals are options.
_FIRST_ROUTES_SECONDS: Final = 0.01
_FIRST_HEARTBEAT_SECONDS: Final = 1.0
_FIRST_PERSIST_SECONDS: Final = 10.0
_FETCH_NAME_SERVERS_SECONDS: Final = 120.0
_MIN_REBALANCE_MS: Final = 1_000
# Failures of a request for a route, as opposed to a route that does not exist.
_ROUTE_FAILURES: Final = (RemotingError, NameServerError, BrokerError, ProtocolError)


class Session:
    """What clients share; get one from ``Session.shared``. See the module's documentation."""

    # Weak in both directions, because a session has its loop: clients that were never stopped are
    # freed with a loop that is closed.
    _by_loop: ClassVar[
        WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, "Session"]]
    ] = WeakKeyDictionary()

    def __init__(self, options: SessionOptions, *, environment: Environment | None = None) -> None:
        environment = environment or Environment()
        self.options = options
        self.environment = environment
        self.clock = environment.clock
        self.random = environment.random
        self.client_id = options.client_id
        self.members = Members(self.client_id, self.wake_rebalance)
        self._guard = LoopGuard()
        # NotRunningError unless called on the session's loop; ForkedError in another process.
        self.check_loop: Final = self._guard.check_loop
        self._ids = unique_ids(options.client_ip, environment)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._users = 0
        self._is_closed = False
        self._state_lock = asyncio.Lock()
        self._names = NameServers(options.name_servers, environment.random.randrange)
        handlers = Handlers()
        self.members.register(handlers)
        self._client = Client(
            ClientOptions(connect_seconds=options.connect_timeout_ms / 1000, tls=options.tls),
            handlers,
            on_open=self._connected,
            on_bytes=take_results if IS_COMPILED else None,
            clock=environment.clock,
        )
        self._known = KnownRoutes()
        # The queues to write to, or None. The bound method itself, because it is called for every
        # message.
        self.known_publish_route = self._known.publish_route
        self._fetching: dict[str, asyncio.Task[TopicRoute | GoddardError | None]] = {}
        self._heartbeat_lock = asyncio.Lock()
        self._heartbeats_pending: set[str] = set()
        self._rebalance_wanted = asyncio.Event()

    @staticmethod
    def shared(options: SessionOptions, *, environment: Environment | None = None) -> "Session":
        """The session of this client id on the running loop; a new one if there is none.

        A new session is shared once ``start`` is called. There must be no await between the two
        calls.
        """
        sessions = Session._by_loop.get(asyncio.get_running_loop())
        session = None if sessions is None else sessions.get(options.client_id)
        if session is None:
            return Session(options, environment=environment)
        if session.options != options:
            raise ConfigError(
                f"the client id {options.client_id} is in use with other options; give another "
                "instance_name"
            )
        return session

    # Start and stop

    @property
    def is_running(self) -> bool:
        return self._users > 0

    async def start(self) -> None:
        """Use the session; the first user starts it. Each client calls this and ``stop`` once."""
        self._guard.check()
        if not self._is_closed:
            sessions = Session._by_loop.setdefault(self._loop, WeakValueDictionary())
            sessions.setdefault(self.client_id, self)
        async with self._state_lock:
            if self._is_closed:
                # It was closed while this call waited: another start failed or was cancelled.
                raise NotRunningError(
                    f"the session of {self.client_id} is closed", advice="start the client again"
                )
            if self._users == 0:
                try:
                    await self._open()
                except BaseException:
                    await self._close()
                    raise
            self._users += 1

    async def stop(self) -> None:
        """Release the session; the last user closes it."""
        async with self._state_lock:
            if self._users == 0:
                return
            self._users -= 1
            if self._users == 0:
                await self._close()

    async def _open(self) -> None:
        options = self.options
        endpoint = options.name_server_endpoint
        if endpoint is not None and not options.name_servers:
            await self._fetch_name_servers()
            self._tasks.periodic(
                "FetchNameServers",
                _FETCH_NAME_SERVERS_SECONDS,
                self._fetch_name_servers,
                first_seconds=10.0,
            )
        poll_seconds = options.poll_name_server_interval_ms / 1000
        self._tasks.periodic(
            "RefreshRoutes", poll_seconds, self._refresh_all, first_seconds=_FIRST_ROUTES_SECONDS
        )
        heartbeat_seconds = options.heartbeat_interval_ms / 1000
        self._tasks.periodic(
            "Heartbeat",
            heartbeat_seconds,
            self._remove_offline_and_heartbeat,
            first_seconds=min(_FIRST_HEARTBEAT_SECONDS, heartbeat_seconds),
        )
        persist_seconds = options.persist_offsets_interval_ms / 1000
        self._tasks.periodic(
            "PersistOffsets",
            persist_seconds,
            self._persist_offsets,
            first_seconds=min(_FIRST_PERSIST_SECONDS, persist_seconds),
        )
        self._tasks.spawn(self._rebalance_periodically(), "Rebalance")
        _logger.info("the client factory [%s] start OK", self.client_id)

    async def _close(self) -> None:
        sessions = Session._by_loop.get(self._loop)
        if sessions is not None and sessions.get(self.client_id) is self:
            del sessions[self.client_id]
        self._is_closed = True
        await finish(self._tasks.stop, self._client.close)
        _logger.info("the client factory [%s] shutdown OK", self.client_id)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Members

    def add_producer(self, group: str, producer: ProducerMember) -> None:
        self.members.add_producer(group, producer)

    async def remove_producer(self, group: str) -> None:
        """Remove a producer, and unregister it at the brokers."""
        if self.members.producers.pop(group, None) is not None:
            await self._unregister(producer_group=group)

    def add_consumer(self, group: str, consumer: ConsumerMember) -> None:
        self.members.add_consumer(group, consumer)

    def has_consumer(self, group: str) -> bool:
        return group in self.members.consumers

    async def remove_consumer(self, group: str) -> None:
        """Remove a consumer, and unregister it at the brokers."""
        if self.members.consumers.pop(group, None) is not None:
            await self._unregister(consumer_group=group)

    def add_reply_listener(self, listener: ReplyListener) -> None:
        """Pass the replies that brokers push (request-reply) to ``listener``."""
        self.members.reply_listeners.append(listener)

    def remove_reply_listener(self, listener: ReplyListener) -> None:
        self.members.reply_listeners.remove(listener)

    def unique_id(self) -> str:
        """A new message id."""
        return self._ids.next(self.clock.now_ms())

    def reserve_ids(self, count: int) -> tuple[str, int]:
        """Reserve new message ids; see ``UniqueIds.reserve``."""
        return self._ids.reserve(self.clock.now_ms(), count)

    def with_namespace(self, name: str) -> str:
        """The name of a topic or group at the brokers."""
        return with_namespace(name, self.options.namespace)

    def without_namespace(self, name: str) -> str:
        """The name of a topic or group without the namespace."""
        return without_namespace(name, self.options.namespace)

    # Routes

    async def publish_route(
        self, topic: str, *, default_topic: str = AUTO_CREATE_TOPIC, default_queues: int = 4
    ) -> PublishRoute:
        """The queues of a topic to write to; NoRouteError if there are none.

        If no name server knows the topic, the queues that brokers would create it with.
        """
        route = self.known_publish_route(topic)
        if route is not None:
            return route
        try:
            found = await self._fetch(topic)
            if found is None:
                # Unknown topic: use the route that brokers will create it with.
                template = await self._fetch(default_topic)
                if template is not None:
                    self._known.expect_creation(topic, template, default_queues)
        except _ROUTE_FAILURES as error:
            # Its text says all that a user needs; the frames of the session would hide their own.
            raise NoRouteError(topic, error) from error.with_traceback(None)
        route = self.known_publish_route(topic)
        if route is None:
            raise NoRouteError(topic)
        return route

    async def subscribe_queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The queues of a topic to read from; NoRouteError if there are none."""
        if refresh or self._known.get(topic) is None:
            try:
                await self._fetch(topic)
            except _ROUTE_FAILURES as error:
                if self._known.get(topic) is None:
                    raise NoRouteError(topic, error) from error.with_traceback(None)
                _logger.warning("route of %s not refreshed: %s", topic, error)
        queues = self._known.subscribe_queues(topic)
        if not queues:
            raise NoRouteError(topic)
        return queues

    async def refresh_route(self, topic: str) -> bool:
        """Fetch the route of a topic from a name server; True if it changed.

        False if the name server does not know the topic. NameServerError if none answers.
        """
        before = self._known.get(topic)
        await self._fetch(topic)
        return self._known.get(topic) is not before

    def route(self, topic: str) -> TopicRoute | None:
        """The last known route of a topic."""
        return self._known.get(topic)

    async def _fetch(self, topic: str) -> TopicRoute | None:
        """Fetch a route and apply it; concurrent calls for a topic share one request."""
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._tasks.spawn(self._fetch_route(topic), f"route of {topic}")
            self._fetching[topic] = fetching
            fetching.add_done_callback(lambda _: self._fetching.pop(topic, None))
        # Not awaited directly, because cancelling one caller must not cancel the shared request.
        await asyncio.wait((fetching,))
        if fetching.cancelled():
            raise ClientError("the session is closed")
        outcome = fetching.result()
        if isinstance(outcome, GoddardError):
            raise outcome
        return outcome

    async def _fetch_route(self, topic: str) -> TopicRoute | GoddardError | None:
        """Return a failure instead of raising it, so that each waiting caller raises it."""
        try:
            route = await broker_api.topic_route(
                self, topic, timeout_ms=self.options.api_timeout_ms
            )
        except GoddardError as error:
            return error
        if route is None:
            if topic != AUTO_CREATE_TOPIC:
                text = "get Topic [%s] RouteInfoFromNameServer is not exist value"
                _missing_routes_logger.warning(text, topic)
            return None
        self._apply(topic, route)
        return route

    def _apply(self, topic: str, route: TopicRoute) -> None:
        if not self._known.set(topic, route):
            return
        _logger.info("the route of %s changed", topic)
        for consumer in list(self.members.consumers.values()):
            if topic in consumer.subscribed_topics():
                consumer.route_changed()

    async def _refresh_all(self) -> None:
        for topic in sorted(self.members.topics()):
            try:
                await self._fetch(topic)
            except (NameServerError, NoNameServerError) as error:
                # Requests for the other routes would fail too.
                _logger.warning("routes not refreshed: %s", error)
                return
            except GoddardError as error:
                if not self.is_running:
                    return
                _logger.warning("route of %s not refreshed: %s", topic, error)

    # Brokers

    def broker_address(self, broker_name: str) -> str | None:
        """The master's address to send to, with the VIP port if ``vip_channel`` is set."""
        address = self._known.brokers.get(broker_name, {}).get(MASTER_ID)
        return None if address is None else self.vip(address)

    def master_connection(self, broker_name: str) -> Connection | None:
        """The connection to ``broker_address``, if it is open."""
        addresses = self._known.brokers.get(broker_name)
        address = None if addresses is None else addresses.get(MASTER_ID)
        if address is None:
            return None
        if self.options.vip_channel:
            address = vip_address(address)
        return self._client.open_connection(address)

    def find_broker(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        """An address of a broker to read from, and whether it is a slave's.

        See ``KnownRoutes.find_broker``.
        """
        return self._known.find_broker(broker_name, broker_id, only_this=only_this)

    async def locate(
        self, queue: MessageQueue, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> tuple[str, bool]:
        """As ``find_broker``, for the broker of a queue.

        If it is not known, fetches the topic's route again; then BrokerNotFoundError.
        """
        found = self.find_broker(queue.broker_name, broker_id, only_this=only_this)
        if found is None:
            await self.refresh_route(queue.topic)
            found = self.find_broker(queue.broker_name, broker_id, only_this=only_this)
        if found is None:
            raise BrokerNotFoundError(queue.broker_name)
        return found

    def broker_addresses(self) -> dict[str, dict[int, str]]:
        """Broker name -> broker id -> address, of all brokers in any route."""
        return {name: dict(addresses) for name, addresses in self._known.brokers.items()}

    def vip(self, address: str) -> str:
        """The address of a broker's second port, if ``vip_channel`` is set."""
        return vip_address(address) if self.options.vip_channel else address

    # Heartbeats

    async def heartbeat(self) -> None:
        """Send a heartbeat to all brokers. A failure is logged; the next heartbeat is the retry."""
        addresses = self._heartbeat_targets()
        if not addresses:
            return
        async with self._heartbeat_lock:
            await asyncio.gather(*(self._heartbeat_to(address) for address in addresses))

    def _heartbeat_targets(self) -> list[str]:
        """Addresses for heartbeats: all brokers if there are consumers, otherwise the masters."""
        if not self.members:
            return []
        only_masters = not self.members.consumers
        return [
            address
            for addresses in self._known.brokers.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or not only_masters
        ]

    async def _heartbeat_to(self, address: str) -> None:
        members = self.members
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=members.producer_data(),
            consumer_data_set=members.consumer_data(),
        )
        self._heartbeats_pending.add(address)
        try:
            await broker_api.heartbeat(self, address, data, timeout_ms=self.options.api_timeout_ms)
        except GoddardError as error:
            _logger.warning("send heart beat to broker[%s] failed: %s", address, error)
        finally:
            self._heartbeats_pending.discard(address)

    async def _remove_offline_and_heartbeat(self) -> None:
        for name in self._known.remove_offline_brokers():
            _logger.info("the broker[%s] is offline, remove it", name)
        await self.heartbeat()

    def _connected(self, connection: Connection) -> None:
        """Send a heartbeat at once: brokers unregister a client when its connection closes."""
        if not self.is_running:
            return
        for address in self._heartbeat_targets():
            # Compares connections, because a route may have a host name instead of an IP address.
            if self.connection(address) is connection and address not in self._heartbeats_pending:
                self._tasks.spawn(self._heartbeat_again(address), f"heartbeat to {address}")

    async def _heartbeat_again(self, address: str) -> None:
        await self._heartbeat_to(address)
        self.wake_rebalance()

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        async def leave(address: str) -> None:
            try:
                await broker_api.unregister_client(
                    self,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout_ms=self.options.api_timeout_ms,
                )
            except GoddardError as error:
                _logger.warning("unregister client at broker[%s] failed: %s", address, error)

        # Only open connections: a broker has unregistered the clients of closed ones already.
        addresses = {each for known in self._known.brokers.values() for each in known.values()}
        known = [
            address for address in addresses if self._client.open_connection(address) is not None
        ]
        await asyncio.gather(*(leave(address) for address in known))

    # Rebalancing and offsets

    def wake_rebalance(self) -> None:
        """Rebalance the consumers soon, but at most once a second."""
        self._rebalance_wanted.set()

    async def _rebalance_periodically(self) -> None:
        interval_ms = self.options.rebalance_interval_ms
        min_ms = min(_MIN_REBALANCE_MS, interval_ms)
        wait_ms = interval_ms
        last_ms = self.clock.monotonic_ms() - min_ms
        while True:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass
            early_ms = last_ms + min_ms - self.clock.monotonic_ms()
            if early_ms > 0:
                await asyncio.sleep(early_ms / 1000)
            self._rebalance_wanted.clear()
            is_balanced = True
            for consumer in list(self.members.consumers.values()):
                try:
                    is_balanced &= await consumer.rebalance()
                except Exception:
                    _logger.exception("rebalance of group %s failed", consumer.group)
                    is_balanced = False
            last_ms = self.clock.monotonic_ms()
            wait_ms = interval_ms if is_balanced else min_ms

    async def _persist_offsets(self) -> None:
        for consumer in list(self.members.consumers.values()):
            try:
                await consumer.persist_offsets()
            except Exception:
                _logger.exception("persisting offsets of group %s failed", consumer.group)

    # Requests

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, whatever its code."""
        self.check_loop()
        self.prepare(command)
        return await self._client.request(address, command, timeout_ms)

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, if its code is SUCCESS; otherwise BrokerError."""
        response = await self.request(address, command, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, address)
        return response

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request without a response."""
        self.prepare(command)
        await self._client.oneway(address, command)

    def connection(self, address: str) -> Connection | None:
        """The open connection to an address, for callers that encode frames themselves."""
        return self._client.open_connection(address)

    async def connect(self, address: str, timeout_ms: int) -> Connection:
        """The connection to an address; opens one if there is none."""
        self.check_loop()
        return await self._client.connection(address, timeout_ms)

    @property
    def signs(self) -> bool:
        """Whether ``prepare`` adds something to every request."""
        return self.options.credentials is not None or bool(self.options.namespace_v2)

    def prepare(self, command: RemotingCommand) -> None:
        """Add language, namespace and signature; the command must not change after that.

        ForkedError in a forked process, because its parent writes to the same sockets.
        """
        self._guard.check()
        command.language = LanguageCode.PYTHON
        options = self.options
        if options.namespace_v2:
            fields = command.ext_fields
            if fields is None:
                fields = command.ext_fields = {}
            fields["nsd"] = "true"
            fields["ns"] = options.namespace_v2
        if options.credentials is not None:
            keys = options.credentials
            sign(command, keys.access_key, keys.secret_key, keys.security_token)

    # Name servers

    @property
    def name_servers(self) -> tuple[str, ...]:
        return self._names.addresses

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """Send a request to a name server, and to the next ones if it fails.

        The timeout is divided among the servers.
        """
        return await self._names.request(command, timeout_ms, self.request, self.clock)

    async def _fetch_name_servers(self) -> None:
        endpoint = self.options.name_server_endpoint
        if endpoint is None:
            return
        if self.options.unit_name:
            endpoint = f"{endpoint}-{self.options.unit_name}?nofix=1"
        try:
            addresses = await asyncio.to_thread(
                fetch_name_servers, endpoint, self.options.api_timeout_ms
            )
        except ClientError as error:
            _logger.warning("%s", error)
            return
        if addresses and self._names.replace(addresses):
            _logger.info("the name servers are now %s", ";".join(addresses))
