"""The broker: composition, lifecycle, and what runs in the background.

``Broker`` can be run inside any asyncio program: construct, ``start``, ``stop``; or use it as an
async context manager. All of its state belongs to the loop it was started on; the store has
threads of its own, and an executor takes whatever else waits on the disk.

Starting goes store, tables, handlers, listeners, name servers; stopping goes the other way, so
that clients are sent elsewhere first and every message that was answered is on the disk last.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self

from goddard.broker.admin.broker import AdminBroker
from goddard.broker.admin.clients import AdminClients
from goddard.broker.admin.groups import AdminGroups
from goddard.broker.admin.messages import Queries
from goddard.broker.admin.offsets import AdminOffsets
from goddard.broker.admin.roles import AdminRoles
from goddard.broker.admin.topics import AdminTopics
from goddard.broker.consuming.clients import SCAN_SECONDS, Clients
from goddard.broker.consuming.filters import ConsumerFilters
from goddard.broker.consuming.locks import QueueLockRequests
from goddard.broker.consuming.longpoll import ParkedPulls
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.consuming.pull import Pulls
from goddard.broker.gate import BrokerGate
from goddard.broker.lane.sends import SendLane
from goddard.broker.registration import Registration
from goddard.broker.roles.roles import Roles
from goddard.broker.roles.state_sync import SlaveState
from goddard.broker.rules import register
from goddard.broker.sending.appender import Appender
from goddard.broker.sending.delay import DelayDelivery
from goddard.broker.sending.message_rules import MessageWriter
from goddard.broker.sending.overload import Overload
from goddard.broker.sending.reply import Replies
from goddard.broker.sending.retry import SendBacks
from goddard.broker.sending.send import Sends
from goddard.broker.sending.transactions import Transactions, as_half
from goddard.broker.settings import BrokerConfig, Settings, with_port
from goddard.broker.stats import Stats
from goddard.broker.tables.saving import Table, TableSaver
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import local_time
from goddard.core import IS_COMPILED
from goddard.environment import Environment
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.replication.acknowledgements import Acknowledgements
from goddard.store.jsonfile import Origin
from goddard.store.store import MessageStore
from goddard.store.tables import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicTable,
)
from goddard.transport.connection import Connection
from goddard.transport.handlers import Answer, Handler, Handlers
from goddard.transport.server import Server, ServerOptions, resolve_host
from goddard.transport.sockets import free_port
from goddard.transport.tasks import Tasks

if IS_COMPILED:
    from goddard.broker.lane.pulls import PullLane

_log = logging.getLogger(__name__)

# A stop has to be over within two seconds; what takes longer is cut off.
_STOP_GRACE_SECONDS: Final = 0.5
_SAVE_SECONDS: Final = 10.0
_SAMPLE_SECONDS: Final = 1.0
_EXECUTOR_THREADS: Final = 4
_READER_THREADS: Final = 4
_TOPIC_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
)
_TOLD_CHANGES: Final = (*_TOPIC_CHANGES, RequestCode.UPDATE_BROKER_CONFIG)
_GROUP_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
)
# What the store reads each time it needs it; its sizes and places are those it was opened with.
_LIVE_STORE_FIELDS: Final = (
    "delete_batch_files",
    "delete_when",
    "disk_force_ratio",
    "disk_full_ratio",
    "disk_high_ratio",
    "flush_least_pages",
    "flush_thorough_ms",
    "is_forced_cleaning_enabled",
    "max_bulk_read_bytes",
    "max_get_disk_bytes",
    "max_get_disk_count",
    "max_get_memory_bytes",
    "max_get_memory_count",
    "memory_percent",
    "reserved_hours",
)


class Broker:
    """A broker on one port and the VIP port below it. ``port`` tells which, once it is started."""

    roles: Roles

    def __init__(self, config: BrokerConfig, *, environment: Environment | None = None) -> None:
        self._environment = environment or Environment()
        self._clock = self._environment.clock
        self._config = config
        self._stack = contextlib.AsyncExitStack()
        self._closers: list[Callable[[Connection], None]] = []
        self.started_ms = 0
        self.settings = Settings(config)

    @property
    def port(self) -> int:
        return self.settings.current.listen_port

    @property
    def address(self) -> str:
        """Where clients reach this broker."""
        return self.settings.current.broker_address

    async def start(self) -> None:
        """Open the store, listen, register. When it fails, everything is closed again."""
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Unregister, answer what is being worked on, flush, and close. Once is enough."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Starting

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        self.started_ms = self._clock.now_ms()
        config = self._config
        config.check_supported()
        # Records hold addresses, not names.
        config = dataclasses.replace(
            config,
            bind_address=await resolve_host(config.bind_address),
            broker_ip1=await resolve_host(config.broker_ip1),
            broker_ip2=await resolve_host(config.broker_ip2),
        )
        if config.listen_port == 0:
            config = with_port(config, free_port(config.bind_address))
        self._executor = self._environment.new_executor(_EXECUTOR_THREADS, "broker")
        stack.callback(self._executor.shutdown)
        self.settings = Settings(config, self._executor, self._environment.files)
        self.settings.add_listener(self._apply)

        self.store = MessageStore(config.store_config(), environment=self._environment)
        _log.info("messages are kept in %s", self.store.config.root.absolute())
        await loop.run_in_executor(self._executor, self.store.open)
        stack.push_async_callback(self._close_store)
        # For reads that may wait for the disk: they end before the store is closed.
        self._readers = self._environment.new_executor(_READER_THREADS, "broker-read")
        stack.callback(self._readers.shutdown, cancel_futures=True)
        await self._load_tables()
        self._saver = TableSaver(self._executor, clock=self._clock)
        stack.push_async_callback(self._save_at_stop)

        self.topics = Topics(self.topic_table, self.settings, clock=self._clock)
        changed_ms = self.topic_table.data_version.timestamp
        self.topics.add_system_topics()
        if not self.store.report.is_clean:
            self._restore_topics(changed_ms)
        self.topics.add_listener(lambda _: self._saver.save_soon(self.topic_table))
        self.groups = Groups(self.group_table, self.settings)
        self.groups.add_system_groups()
        self.groups.add_listener(lambda _: self._saver.save_soon(self.group_table))
        await self._saver.save_all(self._tables)
        self.registration = Registration(self.settings, self.topics, clock=self._clock)

        self.stats = Stats(config.cluster_name, self.topics.is_system)
        self.store.add_listener(self.stats.stored)
        self.acknowledgements = Acknowledgements(
            lambda: self.settings.current.replica_policy,
            lambda: self.roles.acknowledged_offsets,
            lambda: self.store.log_max_offset,
        )
        self.appender = Appender(
            self.store,
            loop,
            clock=self._clock,
            flush_timeout_ms=config.sync_flush_timeout_ms,
            stats=self.stats,
            replication=self.acknowledgements,
        )
        self.appender.start()
        stack.callback(self.appender.stop)
        overload = Overload(self.appender, self.settings)
        self.gate = BrokerGate(overload, self.settings)
        handlers = Handlers(self.gate)
        self._compose_sending(handlers, overload)
        self._compose_consuming(handlers)
        self._compose_flow(handlers)
        self.roles = Roles(
            store=self.store,
            settings=self.settings,
            registration=self.registration,
            gate=self.gate,
            master_services=(self.delays, self.transactions),
            slave_state=SlaveState(self.topics, self.groups, self.offsets, self.delay_table),
            acknowledgements=self.acknowledgements,
            drain=self.appender.drain,
            restore_topics=lambda: self._restore_topics(self.topic_table.data_version.timestamp),
            executor=self._executor,
            readers=self._readers,
            environment=self._environment,
        )
        self._compose_administration(handlers)
        tasks = Tasks(_log)
        stack.push_async_callback(tasks.stop)
        stack.push_async_callback(self.roles.stop)
        await self._listen(stack, handlers, config)
        self._run_housekeeping(tasks, config)
        stack.push_async_callback(self.registration.stop)
        await self.roles.start()

    def _restore_topics(self, changed_ms: int) -> None:
        """Add topics that have messages of this time or later, but are not in the table."""

        def queues() -> Iterator[tuple[str, int]]:
            for queue in self.store.queues:
                if queue.topic not in self.topics:
                    topic, queue_id, last = queue.topic, queue.queue_id, queue.max_offset - 1
                    stored_ms = self.store.message_store_time(topic, queue_id, last)
                    if stored_ms is not None and stored_ms >= changed_ms:
                        yield topic, queue_id

        self.topics.restore(queues())

    async def _load_tables(self) -> None:
        directory = self.store.config.root / "config"
        files = self._environment.files
        self.topic_table = TopicTable(directory, self._clock, files)
        self.group_table = SubscriptionGroupTable(directory, self._clock, files)
        self.offset_table = ConsumerOffsetTable(directory, self._clock, files)
        self.delay_table = DelayOffsetTable(directory, self._clock, files)
        self.filter_table = ConsumerFilterTable(directory, self._clock, files)
        tables = (
            self.topic_table,
            self.group_table,
            self.offset_table,
            self.delay_table,
            self.filter_table,
        )
        self._tables: list[Table] = list(tables)

        def load() -> None:
            for table in tables:
                if table.load() is Origin.ABSENT:
                    table.is_changed = True  # RocketMQ has every file from the first start on

        await asyncio.get_running_loop().run_in_executor(self._executor, load)

    def _compose_sending(self, handlers: Handlers, overload: Overload) -> None:
        self.writer = MessageWriter(self.appender, self.settings)
        self.locks = QueueLockRequests(
            life_ms=self.settings.current.queue_lock_ms, clock=self._clock
        )
        self.sends = Sends(
            store=self.store,
            appender=self.appender,
            writer=self.writer,
            overload=overload,
            topics=self.topics,
            groups=self.groups,
            settings=self.settings,
            environment=self._environment,
            stats=self.stats,
            as_half=as_half,
            has_live_locks=self.locks.is_any_held,
            save_topics=lambda: self._saver.save(self.topic_table),
        )
        self._send_lane: SendLane | None = None
        if IS_COMPILED:
            self._send_lane = SendLane(
                store=self.store,
                appender=self.appender,
                gate=self.gate,
                overload=overload,
                sends=self.sends,
                topics=self.topics,
                settings=self.settings,
                clock=self._clock,
                stats=self.stats,
            )
        register(handlers, self.sends.handlers(), self.locks.handlers())

    def _compose_consuming(self, handlers: Handlers) -> None:
        self.filters = ConsumerFilters(self.filter_table, self.settings, clock=self._clock)
        self.clients = Clients(
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            filters=self.filters,
            clock=self._clock,
        )
        self.locks.on_released = self.clients.notify
        self.offsets = Offsets(
            self.offset_table,
            store=self.store,
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
        )
        self.parked_pulls = ParkedPulls(
            settings=self.settings, max_offset=self.store.max_offset, clock=self._clock
        )
        self.store.add_listener(self.parked_pulls.on_arrival)
        pulls = Pulls(
            store=self.store,
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            filters=self.filters,
            offsets=self.offsets,
            parked_pulls=self.parked_pulls,
            stats=self.stats,
            executor=self._readers,
            clock=self._clock,
        )
        self._pull_lane: PullLane | None = None
        if IS_COMPILED:
            self._pull_lane = PullLane(
                pulls,
                self.gate,
                store=self.store,
                settings=self.settings,
                topics=self.topics,
                groups=self.groups,
                clients=self.clients,
                offsets=self.offsets,
                stats=self.stats,
                clock=self._clock,
            )
        self._closers += (self.clients.connection_closed, self.parked_pulls.connection_closed)
        register(handlers, self.clients.handlers(), self.offsets.handlers(), pulls.handlers())

    def _compose_flow(self, handlers: Handlers) -> None:
        """What happens to messages after they were taken."""
        self.delays = DelayDelivery(
            store=self.store,
            table=self.delay_table,
            appender=self.appender,
            clock=self._clock,
            stats=self.stats,
        )
        self.transactions = Transactions(
            store=self.store,
            appender=self.appender,
            writer=self.writer,
            topics=self.topics,
            offsets=self.offset_table,
            settings=self.settings,
            find_producer=self.clients.producer_connection,
            save_offsets=lambda: self._saver.save(self.offset_table),
            clock=self._clock,
            stats=self.stats,
        )
        send_backs = SendBacks(
            store=self.store,
            writer=self.writer,
            topics=self.topics,
            groups=self.groups,
            settings=self.settings,
            environment=self._environment,
            stats=self.stats,
        )
        replies = Replies(
            sends=self.sends,
            writer=self.writer,
            settings=self.settings,
            find_client=self.clients.find_client,
            environment=self._environment,
            stats=self.stats,
        )
        register(handlers, self.transactions.handlers(), send_backs.handlers(), replies.handlers())

    def _compose_administration(self, handlers: Handlers) -> None:
        topics = AdminTopics(
            settings=self.settings,
            topics=self.topics,
            offsets=self.offsets,
            store=self.store,
            stats=self.stats,
            executor=self._executor,
        )
        groups = AdminGroups(
            settings=self.settings,
            groups=self.groups,
            clients=self.clients,
            offsets=self.offsets,
            stats=self.stats,
        )
        offsets = AdminOffsets(
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            offsets=self.offsets,
            delays=self.delay_table,
            store=self.store,
            stats=self.stats,
            executor=self._executor,
            clock=self._clock,
        )
        clients = AdminClients(
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            store=self.store,
            clock=self._clock,
        )
        broker = AdminBroker(
            settings=self.settings,
            topics=self.topics,
            delays=self.delay_table,
            store=self.store,
            stats=self.stats,
            queued_sends=lambda: self.appender.queued_requests,
            connected_slaves=lambda: len(self.roles.acknowledged_offsets),
            is_active=lambda: self.roles.is_active,
            executor=self._executor,
            environment=self._environment,
        )
        roles = AdminRoles(settings=self.settings, store=self.store, roles=self.roles)
        queries = Queries(
            settings=self.settings,
            store=self.store,
            clients=self.clients,
            filters=self.filters,
            executor=self._readers,
        )
        for part in (topics, groups, offsets, clients, broker, roles, queries):
            register(handlers, self._saved(part.handlers()))

    def _saved(self, answered: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers, made to answer a change only when its table is on the disk, and the name
        servers know of it: the client that creates a topic asks for its route next."""
        tables: dict[int, Table] = {
            **dict.fromkeys(_TOPIC_CHANGES, self.topic_table),
            **dict.fromkeys(_GROUP_CHANGES, self.group_table),
        }

        def saving(handler: Handler, code: int) -> Handler:
            async def handle(request: RemotingCommand, connection: Connection) -> Answer:
                answer = handler(request, connection)
                if answer is not None and not isinstance(answer, RemotingCommand):
                    answer = await answer
                if code in tables:
                    await self._saver.save(tables[code])
                if code in _TOLD_CHANGES:
                    await self.registration.settled()
                return answer

            return handle

        return {
            code: saving(handler, code) if code in tables or code in _TOLD_CHANGES else handler
            for code, handler in answered.items()
        }

    async def _listen(
        self, stack: contextlib.AsyncExitStack, handlers: Handlers, config: BrokerConfig
    ) -> None:
        servers: list[Server] = []
        stack.push_async_callback(_stop_together, servers)
        for port in (config.listen_port, config.vip_port):
            if port is None:
                continue
            server = Server(
                _server_options(config, port),
                handlers,
                on_close=self._connection_closed,
                on_frames=self._on_frames,
                on_bytes=self._send_lane.on_bytes if self._send_lane is not None else None,
                finish_requests=self._finish_requests,
                clock=self._clock,
            )
            await server.start()
            servers.append(server)

    def _run_housekeeping(self, tasks: Tasks, config: BrokerConfig) -> None:
        tasks.periodic(
            "ConsumerOffsetSave",
            config.flush_offsets_ms / 1000,
            lambda: self._saver.save_all([self.offset_table]),
        )
        tasks.periodic(
            "DelayOffsetSave",
            config.flush_delay_offsets_ms / 1000,
            lambda: self._saver.save_all([self.delay_table]),
        )
        tasks.periodic("ClientHousekeepingService", SCAN_SECONDS, self._scan)
        tasks.periodic("StatsSample", _SAMPLE_SECONDS, self._sample)
        tasks.periodic("TableSave", _SAVE_SECONDS, lambda: self._saver.save_all(self._tables))

    # Running

    def _scan(self) -> None:
        self.clients.scan()
        self.locks.scan()

    def _sample(self) -> None:
        today = local_time(self._clock.now_ms())
        self.stats.sample(self._clock.monotonic_ms(), today.tm_year * 1000 + today.tm_yday)

    def _on_frames(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        if self._pull_lane is None:
            return frames
        return frames[self._pull_lane.take(connection, frames, 0) :]

    def _connection_closed(self, connection: Connection) -> None:
        for closer in self._closers:
            closer(connection)

    def _apply(self, config: BrokerConfig) -> None:
        """Let a changed configuration take effect beyond those who read it each time."""
        wanted = config.store_config()
        live = {name: getattr(wanted, name) for name in _LIVE_STORE_FIELDS}
        self.store.config = dataclasses.replace(self.store.config, **live)
        self.registration.register_all()

    # Stopping

    async def _finish_requests(self) -> None:
        """Answer parked pulls, and the sends that the store is still writing."""
        self.clients.stop()
        self.parked_pulls.stop()
        await self.appender.drain()

    async def _save_at_stop(self) -> None:
        await self.settings.drain()
        await self._saver.close(self._tables)

    async def _close_store(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self.store.close)


async def _stop_together(servers: list[Server]) -> None:
    await asyncio.gather(*(server.stop(_STOP_GRACE_SECONDS) for server in servers))


def _server_options(config: BrokerConfig, port: int) -> ServerOptions:
    options = ServerOptions(
        host=config.bind_address,
        port=port,
        backlog=config.backlog,
        idle_seconds=config.idle_seconds,
    )
    if not config.write_buffer_high_bytes:
        return options
    return dataclasses.replace(options, write_buffer_high_bytes=config.write_buffer_high_bytes)
