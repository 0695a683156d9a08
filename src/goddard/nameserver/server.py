"""The name server: composition, lifecycle, and what runs in the background.

``NameServer`` can be run inside any asyncio program: construct, ``start``, ``stop``; or use it as
an async context manager. Everything it owns belongs to the loop it was started on, apart from two
threads: one writes files, the other decodes large registrations.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Self

from goddard.clock import Clock, SystemClock
from goddard.config import NameServerConfig
from goddard.errors import ConfigError, RemotingError
from goddard.nameserver.brokers import Brokers
from goddard.nameserver.certificates import CertificateWatch, tls_options
from goddard.nameserver.kv import KvTable
from goddard.nameserver.requests import Requests
from goddard.nameserver.routes import MinBrokerIdChange, RoutePolicy, RouteTable
from goddard.nameserver.settings import Settings
from goddard.nameserver.shortcut import RouteShortcut
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers_cluster import NotifyMinBrokerIdRequest
from goddard.transport.client import Client, ClientOptions
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from goddard.transport.tasks import Tasks, finish

_logger = logging.getLogger(__name__)

# A stop has to be over within a second; requests here take milliseconds.
_STOP_GRACE_SECONDS: Final = 0.3
_WATCH_SECONDS: Final = 0.5
_NOTIFY_CONNECT_SECONDS: Final = 1.0


class NameServer:
    """A name server on one port. ``port`` tells which, once it is started."""

    def __init__(self, config: NameServerConfig, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._config = config
        self._tasks = Tasks(_logger)
        self._scan_changed = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="namesrv-files")
        # Apart from the files: a write never waits behind megabytes to be decoded.
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="namesrv-decode")
        self._stopping = False
        self.routes = RouteTable()
        self.kv = KvTable(
            Path(config.kv_config_path), self._executor, on_change=self.routes.forget_encoded
        )
        self.settings = Settings(config, self._executor, self._apply)
        self._client = Client(ClientOptions(connect_seconds=_NOTIFY_CONNECT_SECONDS))
        self._brokers = Brokers(
            self.routes, self.kv, self.settings, self._decoder, self._clock, self._notify
        )
        handlers = Handlers()
        self._brokers.install(handlers)
        requests = Requests(self.routes, self.kv, self.settings, self._clock)
        requests.install(handlers)
        shortcut = RouteShortcut(requests.get_route, lambda: self.routes.generation)
        options = _server_options(config)
        self._server = Server(
            options,
            handlers,
            on_close=self._brokers.connection_closed,
            on_frames=shortcut.take,
        )
        self._certificates = CertificateWatch(options.tls, self._executor, self._server.reload_tls)

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self) -> None:
        self.kv.load()
        self._apply(self._config)
        try:
            await self._server.start()
        except BaseException:
            self._executor.shutdown()
            raise
        self.settings.listening_on(self.port)
        # RocketMQ's name for what tells the name server of connections that come and go.
        _logger.info("NettyEventExecutor service started")
        self._tasks.periodic("FileWatchService", _WATCH_SECONDS, self._certificates.check)
        self._tasks.spawn(self._scan_forever(), "NSScanScheduledThread")

    async def stop(self) -> None:
        """Answer what is being worked on, close every connection, and finish all writes."""
        self._stopping = True
        await finish(
            self._tasks.stop,
            self._stop_serving,
            partial(self._client.close, _STOP_GRACE_SECONDS),
            self.kv.drain,
            self.settings.drain,
            self._end_threads,
        )

    async def _stop_serving(self) -> None:
        await self._server.stop(_STOP_GRACE_SECONDS)
        _logger.info("NettyEventExecutor service end")

    async def _end_threads(self) -> None:
        self._executor.shutdown()
        # Whoever sent what is still being decoded is gone.
        self._decoder.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _apply(self, config: NameServerConfig) -> None:
        self.routes.policy = RoutePolicy(
            support_acting_master=config.support_acting_master,
            delete_unregistered_topics=config.delete_topic_with_broker_registration,
        )
        self._scan_changed.set()

    async def _scan_forever(self) -> None:
        _logger.info("NSScanScheduledThread service started")
        try:
            while True:
                self._scan_changed.clear()
                interval_ms = self.settings.current.scan_interval_ms
                try:
                    # A new interval counts from when it is set.
                    async with asyncio.timeout(interval_ms / 1000):
                        await self._scan_changed.wait()
                except TimeoutError:
                    self._scan()
        finally:
            _logger.info("NSScanScheduledThread service end")

    def _scan(self) -> None:
        try:
            self._brokers.scan()
        except Exception:
            # Without the next one, dead brokers would stay for ever.
            _logger.exception("scanning for silent brokers failed once and goes on")

    def _notify(self, change: MinBrokerIdChange) -> None:
        if self._stopping:
            # It is we who leave: the connections we close are no broker's end.
            return
        _logger.info(
            "min broker id of %s changed to %d, notify %s, offline broker addr %s",
            change.broker_name,
            change.min_broker_id,
            change.tell,
            change.offline_address,
        )
        for address in change.tell:
            self._tasks.spawn(self._tell(address, change), f"notify {address}")

    async def _tell(self, address: str, change: MinBrokerIdChange) -> None:
        header = NotifyMinBrokerIdRequest(
            min_broker_id=change.min_broker_id,
            broker_name=change.broker_name,
            min_broker_addr=change.min_broker_address,
            offline_broker_addr=change.offline_address,
            ha_broker_addr=change.ha_address,
        )
        request = RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header.encode())
        try:
            await self._client.oneway(address, request)
        except (RemotingError, ConfigError) as error:
            _logger.warning("%s was not told of the new min broker id: %s", address, error)


def _server_options(config: NameServerConfig) -> ServerOptions:
    limits = {}
    if config.write_buffer_high_bytes:
        limits["write_buffer_high_bytes"] = config.write_buffer_high_bytes
    return ServerOptions(
        host=config.bind_address,
        port=config.listen_port,
        backlog=config.backlog,
        idle_seconds=config.idle_seconds,
        tls=tls_options(config.others),
        **limits,
    )
