"""The name server: composition, lifecycle and background tasks.

``NameServer`` runs inside any asyncio program: construct, ``start``, ``stop``, or use it as an
async context manager. It belongs to the loop on which it was started, and has two threads: one
writes files, the other decodes large registrations.
"""

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Final, Self

from goddard.config import NameServerConfig
from goddard.environment import Environment
from goddard.errors import ConfigError, RemotingError
from goddard.nameserver.brokers import Brokers
from goddard.nameserver.certificates import CertificateWatch, tls_options
from goddard.nameserver.kv import KvTable
from goddard.nameserver.requests import Requests
from goddard.nameserver.route_cache import RouteResponseCache
from goddard.nameserver.routes import MinBrokerIdChange, RoutePolicy, RouteTable
from goddard.nameserver.settings import Settings
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import NotifyMinBrokerIdRequest
from goddard.transport.client import Client, ClientOptions
from goddard.transport.handlers import Handlers
from goddard.transport.rules import OpenGate
from goddard.transport.server import Server, ServerOptions
from goddard.transport.tasks import Tasks, finish

_logger = logging.getLogger(__name__)

# A stop must end within a second; requests take milliseconds.
_STOP_GRACE_SECONDS: Final = 0.3
_WATCH_SECONDS: Final = 0.5
_NOTIFY_CONNECT_SECONDS: Final = 1.0


class NameServer:
    """A name server on one port; ``port`` is known after the start."""

    def __init__(self, config: NameServerConfig, *, environment: Environment | None = None) -> None:
        environment = environment or Environment()
        self._clock = environment.clock
        self._config = config
        self._tasks = Tasks(_logger)
        self._scan_changed = asyncio.Event()
        self._executor = environment.new_executor(1, "namesrv-files")
        # A separate thread, so that writes of files do not wait for the decoding of megabytes.
        self._decoder = environment.new_executor(1, "namesrv-decode")
        self._stopping = False
        self.routes = RouteTable()
        self.kv = KvTable(
            Path(config.kv_config_path),
            self._executor,
            on_change=self.routes.forget_encoded,
            files=environment.files,
        )
        self.settings = Settings(config, self._executor, self._apply, environment.files)
        self._client = Client(
            ClientOptions(connect_seconds=_NOTIFY_CONNECT_SECONDS), clock=self._clock
        )
        self._brokers = Brokers(
            self.routes, self.kv, self.settings, self._decoder, self._clock, self._notify
        )
        self.gate = OpenGate()
        handlers = Handlers(self.gate)
        self._brokers.install(handlers)
        requests = Requests(self.routes, self.kv, self.settings, self._clock)
        requests.install(handlers)
        route_cache = RouteResponseCache(
            requests.get_route, lambda: self.routes.generation, self.gate
        )
        options = _server_options(config)
        self._server = Server(
            options,
            handlers,
            on_close=self._brokers.connection_closed,
            on_frames=route_cache.answer,
            clock=self._clock,
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
        self.settings.set_listen_port(self.port)
        # RocketMQ's name of the thread that reports opened and closed connections.
        _logger.info("NettyEventExecutor service started")
        self._tasks.periodic("FileWatchService", _WATCH_SECONDS, self._certificates.check)
        self._tasks.spawn(self._scan_forever(), "NSScanScheduledThread")

    async def stop(self) -> None:
        """Finish running requests, close all connections, and complete all writes."""
        self._stopping = True
        await finish(
            self._tasks.stop,
            self._stop_serving,
            partial(self._client.close, _STOP_GRACE_SECONDS),
            self.kv.drain,
            self.settings.drain,
            self._stop_threads,
        )

    async def _stop_serving(self) -> None:
        await self._server.stop(_STOP_GRACE_SECONDS)
        _logger.info("NettyEventExecutor service end")

    async def _stop_threads(self) -> None:
        self._executor.shutdown()
        # The senders of bodies that are still being decoded are disconnected.
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
                    # A new interval starts when it is set.
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
            # The next scan must follow, or expired brokers would stay for ever.
            _logger.exception("scanning for expired brokers failed; the next scan follows")

    def _notify(self, change: MinBrokerIdChange) -> None:
        if self._stopping:
            # The name server closes the connections itself: the brokers have not left.
            return
        _logger.info(
            "min broker id of %s changed to %d, notify %s, offline broker addr %s",
            change.broker_name,
            change.min_broker_id,
            change.notify,
            change.offline_address,
        )
        for address in change.notify:
            self._tasks.spawn(self._send_notification(address, change), f"notify {address}")

    async def _send_notification(self, address: str, change: MinBrokerIdChange) -> None:
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
            _logger.warning("%s was not notified of the new min broker id: %s", address, error)


def _server_options(config: NameServerConfig) -> ServerOptions:
    limits = {}
    if config.write_buffer_high_bytes:
        limits["write_buffer_high_bytes"] = config.write_buffer_high_bytes
    return ServerOptions(
        host=config.bind_address,
        port=config.listen_port,
        backlog=config.backlog,
        idle_seconds=config.idle_seconds,
        tls=tls_options(config.unused_properties),
        **limits,
    )
