"""What all clients of one client id share: connections, routes, heartbeats, the clocks of it all.

A session belongs to one event loop and one process. It is counted: each client starts and stops it
once, and the last to stop closes every task and socket. Requests that it makes are signed, carry
the namespace, and go over one connection per address.

Routes are fetched when first needed and again every ``poll_name_server_interval_ms``; callers that
need the same route share one request for it.
"""

import asyncio
import logging
from dataclasses import replace
from typing import ClassVar, Final, Self
from weakref import WeakKeyDictionary

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
from goddard.client.values import MessageQueue
from goddard.clock import Clock, SystemClock
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
# A warning, as in RocketMQ's client, for what is usual before the first send creates a topic. With
# this handler, a program that does not configure logging does not print it.
_missing_routes_logger: Final = _logger.getChild("missing_routes")
_missing_routes_logger.addHandler(logging.NullHandler())

# RocketMQ's, for what a session does by itself; those that can be set are options.
_FIRST_ROUTES_SECONDS: Final = 0.01
_FIRST_HEARTBEAT_SECONDS: Final = 1.0
_FIRST_PERSIST_SECONDS: Final = 10.0
_FETCH_NAME_SERVERS_SECONDS: Final = 120.0
_LEAST_REBALANCE_MS: Final = 1_000
# Why a route may not be had, other than that there is none.
_NO_ANSWER: Final = (RemotingError, NameServerError, BrokerError, ProtocolError)


class Session:
    """The shared part of clients. Get one by ``Session.shared``; see the module's text."""

    _by_loop: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, "Session"]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, options: SessionOptions, *, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.client_id = options.client_id
        self.members = Members(self.client_id, self.wake_rebalance)
        self._guard = LoopGuard()
        self._ids = unique_ids(options.client_ip)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._users = 0
        self._is_over = False
        self._changing = asyncio.Lock()
        self._names = NameServers(options.name_servers)
        handlers = Handlers()
        self.members.register(handlers)
        self._client = Client(
            ClientOptions(connect_seconds=options.connect_timeout_ms / 1000, tls=options.tls),
            handlers,
            on_open=self._connected,
            clock=clock,
        )
        self._known = KnownRoutes()
        # Without a detour, as every message asks: the queues of a topic to write to, if it is known
        # and has any.
        self.known_publish_route = self._known.publish_route
        self._fetching: dict[str, asyncio.Task[TopicRoute | GoddardError | None]] = {}
        self._heartbeat_lock = asyncio.Lock()
        self._greeting: set[str] = set()
        self._rebalance_wanted = asyncio.Event()

    @staticmethod
    def shared(options: SessionOptions, *, clock: Clock | None = None) -> "Session":
        """The session of this client id on the running loop; a new one if there is none.

        Others share a new one from its ``start`` on, which must be called without an await between:
        a session that is never started is not kept.
        """
        sessions = Session._by_loop.get(asyncio.get_running_loop(), {})
        session = sessions.get(options.client_id)
        if session is None:
            return Session(options, clock=clock or SystemClock())
        if session.options != options:
            raise ConfigError(
                f"the client id {options.client_id} is in use with other options; give another "
                "instance_name"
            )
        return session

    # Life

    @property
    def is_running(self) -> bool:
        return self._users > 0

    async def start(self) -> None:
        """Begin to use the session. Each client calls this once, and ``stop`` once."""
        self._guard.check()
        if not self._is_over:
            Session._by_loop.setdefault(self._loop, {}).setdefault(self.client_id, self)
        async with self._changing:
            if self._is_over:
                # Whoever began to start it gave up while we waited.
                raise NotRunningError(
                    f"the session of {self.client_id} is closed", advice="start the client anew"
                )
            if self._users == 0:
                try:
                    await self._begin()
                except BaseException:
                    await self._end()
                    raise
            self._users += 1

    async def stop(self) -> None:
        """End to use the session; the last one closes it."""
        async with self._changing:
            if self._users == 0:
                return
            self._users -= 1
            if self._users == 0:
                await self._end()

    async def _begin(self) -> None:
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
            self._clean_and_greet,
            first_seconds=min(_FIRST_HEARTBEAT_SECONDS, heartbeat_seconds),
        )
        persist_seconds = options.persist_offsets_interval_ms / 1000
        self._tasks.periodic(
            "PersistOffsets",
            persist_seconds,
            self._persist_offsets,
            first_seconds=min(_FIRST_PERSIST_SECONDS, persist_seconds),
        )
        self._tasks.spawn(self._keep_balanced(), "Rebalance")
        _logger.info("the client factory [%s] start OK", self.client_id)

    async def _end(self) -> None:
        sessions = Session._by_loop.get(self._loop, {})
        if sessions.get(self.client_id) is self:
            del sessions[self.client_id]
        self._is_over = True
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
        """Take a producer out, and tell the brokers."""
        if self.members.producers.pop(group, None) is not None:
            await self._unregister(producer_group=group)

    def add_consumer(self, group: str, consumer: ConsumerMember) -> None:
        self.members.add_consumer(group, consumer)

    async def remove_consumer(self, group: str) -> None:
        """Take a consumer out, and tell the brokers."""
        if self.members.consumers.pop(group, None) is not None:
            await self._unregister(consumer_group=group)

    def add_reply_listener(self, listener: ReplyListener) -> None:
        """Offer replies that brokers push (request-reply) to ``listener``."""
        self.members.reply_listeners.append(listener)

    def remove_reply_listener(self, listener: ReplyListener) -> None:
        self.members.reply_listeners.remove(listener)

    def unique_id(self) -> str:
        """A new message id."""
        return self._ids.next(self.clock.now_ms())

    def reserve_ids(self, count: int) -> tuple[str, int]:
        """Many new message ids: see ``UniqueIds.reserve``."""
        return self._ids.reserve(self.clock.now_ms(), count)

    def with_namespace(self, name: str) -> str:
        """A topic or group as brokers know it."""
        return with_namespace(name, self.options.namespace)

    def without_namespace(self, name: str) -> str:
        """A topic or group as its user knows it."""
        return without_namespace(name, self.options.namespace)

    # Routes

    async def publish_route(
        self, topic: str, *, default_topic: str = AUTO_CREATE_TOPIC, default_queues: int = 4
    ) -> PublishRoute:
        """The queues of a topic to write to; NoRouteError if there are none.

        For a topic that no name server knows, those that a broker would create it with.
        """
        route = self.known_publish_route(topic)
        if route is not None:
            return route
        try:
            found = await self._fetch(topic)
            if found is None:
                # Not only is the topic unknown: nothing of the kind can be made, or soon will be.
                pattern = await self._fetch(default_topic)
                if pattern is not None:
                    self._known.expect_creation(topic, pattern, default_queues)
        except _NO_ANSWER as error:
            raise NoRouteError(topic, error) from error
        route = self.known_publish_route(topic)
        if route is None:
            raise NoRouteError(topic)
        return route

    async def subscribe_queues(self, topic: str, *, refresh: bool = False) -> list[MessageQueue]:
        """The queues of a topic to read from; NoRouteError if there are none."""
        if refresh or self._known.get(topic) is None:
            try:
                await self._fetch(topic)
            except _NO_ANSWER as error:
                if self._known.get(topic) is None:
                    raise NoRouteError(topic, error) from error
                _logger.warning("the route of %s is not refreshed: %s", topic, error)
        queues = self._known.subscribe_queues(topic)
        if not queues:
            raise NoRouteError(topic)
        return queues

    async def refresh_route(self, topic: str) -> bool:
        """Ask the name server about a topic; True if something changed.

        False also for a topic that it does not know. NameServerError if none answers.
        """
        before = self._known.get(topic)
        await self._fetch(topic)
        return self._known.get(topic) is not before

    def route(self, topic: str) -> TopicRoute | None:
        """What the name server said last about a topic."""
        return self._known.get(topic)

    async def _fetch(self, topic: str) -> TopicRoute | None:
        """Ask for a route and apply it; those who ask at the same time share the answer."""
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._tasks.spawn(self._fetch_route(topic), f"route of {topic}")
            self._fetching[topic] = fetching
            fetching.add_done_callback(lambda _: self._fetching.pop(topic, None))
        # Not awaited directly: who gives up must not take the others' request with it.
        await asyncio.wait((fetching,))
        if fetching.cancelled():
            raise ClientError("the session is closed")
        outcome = fetching.result()
        if isinstance(outcome, GoddardError):
            raise outcome
        return outcome

    async def _fetch_route(self, topic: str) -> TopicRoute | GoddardError | None:
        """A failure is returned, for each of those who wait to raise."""
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
                consumer.route_changed(topic, self._known.subscribe_queues(topic))

    async def _refresh_all(self) -> None:
        for topic in sorted(self.members.topics()):
            try:
                await self._fetch(topic)
            except (NameServerError, NoNameServerError) as error:
                # The others would not be answered either.
                _logger.warning("routes are not refreshed: %s", error)
                return
            except GoddardError as error:
                if not self.is_running:
                    return
                _logger.warning("the route of %s is not refreshed: %s", topic, error)

    # Brokers

    def broker_address(self, broker_name: str) -> str | None:
        """The master's address to send to, on the VIP port if that is wanted."""
        address = self._known.brokers.get(broker_name, {}).get(MASTER_ID)
        return None if address is None else self.vip(address)

    def find_broker(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        """An address to read from, and whether it is a slave's: that of the id wanted, for a slave
        the next one, else any (unless ``only_this``)."""
        return self._known.find_broker(broker_name, broker_id, only_this=only_this)

    async def locate(
        self, queue: MessageQueue, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> tuple[str, bool]:
        """As ``find_broker``, for the broker of a queue. If it is not known, the topic's route is
        fetched once more; then BrokerNotFoundError."""
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
        """Tell every broker who is here; what fails is logged and tried again at the next turn."""
        addresses = self._greeted()
        if not addresses:
            return
        async with self._heartbeat_lock:
            await asyncio.gather(*(self._greet(address) for address in addresses))

    def _greeted(self) -> list[str]:
        """Who gets heartbeats: all brokers if there are consumers, else the masters."""
        if not self.members:
            return []
        only_masters = not self.members.consumers
        return [
            address
            for addresses in self._known.brokers.values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or not only_masters
        ]

    async def _greet(self, address: str) -> None:
        members = self.members
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=members.producer_data(),
            consumer_data_set=members.consumer_data(),
        )
        self._greeting.add(address)
        try:
            await broker_api.heartbeat(self, address, data, timeout_ms=self.options.api_timeout_ms)
        except GoddardError as error:
            _logger.warning("send heart beat to broker[%s] failed: %s", address, error)
        finally:
            self._greeting.discard(address)

    async def _clean_and_greet(self) -> None:
        for name in self._known.remove_offline_brokers():
            _logger.info("the broker[%s] is offline, remove it", name)
        await self.heartbeat()

    def _connected(self, connection: Connection) -> None:
        """A broker that lost us must know us again before it answers consumers."""
        if not self.is_running:
            return
        for address in self._greeted():
            # By the connection, as a route may name a broker's host where its peer is an address.
            if self.connection(address) is connection and address not in self._greeting:
                self._tasks.spawn(self._greet_anew(address), f"heartbeat to {address}")

    async def _greet_anew(self, address: str) -> None:
        await self._greet(address)
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

        # Only those that know us: a broker without a connection of ours has forgotten us already.
        addresses = {each for known in self._known.brokers.values() for each in known.values()}
        known = [
            address for address in addresses if self._client.open_connection(address) is not None
        ]
        await asyncio.gather(*(leave(address) for address in known))

    # Balance and offsets

    def wake_rebalance(self) -> None:
        """Rebalance the consumers soon; not more than once a second."""
        self._rebalance_wanted.set()

    async def _keep_balanced(self) -> None:
        regular_ms = self.options.rebalance_interval_ms
        least_ms = min(_LEAST_REBALANCE_MS, regular_ms)
        wait_ms = regular_ms
        last_ms = self.clock.monotonic_ms() - least_ms
        while True:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass
            early_ms = last_ms + least_ms - self.clock.monotonic_ms()
            if early_ms > 0:
                await asyncio.sleep(early_ms / 1000)
            self._rebalance_wanted.clear()
            is_balanced = True
            for consumer in list(self.members.consumers.values()):
                try:
                    is_balanced &= await consumer.rebalance()
                except Exception:
                    _logger.exception("rebalancing the group %s failed", consumer.group)
                    is_balanced = False
            last_ms = self.clock.monotonic_ms()
            wait_ms = regular_ms if is_balanced else least_ms

    async def _persist_offsets(self) -> None:
        for consumer in list(self.members.consumers.values()):
            try:
                await consumer.persist_offsets()
            except Exception:
                _logger.exception("persisting the offsets of %s failed", consumer.group)

    # Requests

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response, whatever its code."""
        self._guard.check_loop()
        self.prepare(command)
        return await self._client.request(address, command, timeout_ms)

    async def call(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The response that says success; BrokerError for any other."""
        response = await self.request(address, command, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, address)
        return response

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that is not answered."""
        self.prepare(command)
        await self._client.oneway(address, command)

    def connection(self, address: str) -> Connection | None:
        """The open connection to an address, for those who encode their own frames."""
        return self._client.open_connection(address)

    async def connect(self, address: str, timeout_ms: int) -> Connection:
        """The same, made if there is none."""
        self._guard.check_loop()
        return await self._client.connection(address, timeout_ms)

    @property
    def signs(self) -> bool:
        """Whether ``prepare`` adds something to every request."""
        return self.options.credentials is not None or bool(self.options.namespace_v2)

    def prepare(self, command: RemotingCommand) -> None:
        """Add language, namespace and signature; nothing else of it may change after that.

        In a forked process this is refused: its parent writes to the same sockets.
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
            who = options.credentials
            sign(command, who.access_key, who.secret_key, who.security_token)

    # Name servers

    @property
    def name_servers(self) -> tuple[str, ...]:
        return self._names.addresses

    async def request_name_server(
        self, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """Ask a name server, and the next ones if it fails; the time is shared among them."""
        names = self._names
        started_ms = self.clock.monotonic_ms()
        failure: RemotingError | None = None
        for tried in range(max(1, len(names.addresses))):
            address = names.chosen()
            left_ms = timeout_ms - (self.clock.monotonic_ms() - started_ms)
            share_ms = left_ms // max(1, len(names.addresses) - tried)
            try:
                # A copy: what is added in preparing a request is added once.
                answer = await self.request(address, replace(command), max(1, share_ms))
            except RemotingError as error:
                # Once, not with every request for as long as it is away.
                level = logging.WARNING if names.failed(address) else logging.DEBUG
                _logger.log(level, "the name server %s does not answer: %s", address, error)
                failure = error
            else:
                names.answered(address)
                return answer
        raise NameServerError(names.addresses, failure) from failure

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
