"""The server end: accepts connections up to a limit, sweeps them, and drains them on stop.

Without TLS the event loop accepts connections. With TLS our own accept loop peeks at the first byte
of each connection, then passes it to the event loop as plain or TLS.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import ssl
from asyncio.trsock import TransportSocket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self

from goddard.clock import Clock, SystemClock
from goddard.errors import ConfigError
from goddard.transport.connection import BytesHook, Connection, FrameHook, address_text
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions
from goddard.transport.sockets import Socket, listen, peek_byte, resolve
from goddard.transport.tasks import Tasks
from goddard.transport.tls import HANDSHAKE_BYTE, TlsMode, TlsOptions

_logger: Final = logging.getLogger("goddard.transport")

_REFUSED_LOG_INTERVAL_MS: Final = 10_000
_WARNINGS_PER_SECOND: Final = 10
_SECOND_MS: Final = 1000
# Without free file descriptors, accepting again immediately would be a busy loop.
_ACCEPT_RETRY_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(ConnectionOptions):
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    backlog: int = 1024
    max_connections: int = 16_384
    tls: TlsOptions | None = None
    # From the first byte to the end of the TLS handshake.
    handshake_seconds: float = 10.0


async def resolve_host(host: str) -> str:
    """Resolve a host name, IPv4 before IPv6; an IP address is returned unchanged."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return host
    try:
        return await resolve(host)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the host name {host[:80]!r} cannot be resolved; give an IP address or a name that "
            "this machine can look up"
        ) from error


class LimitedWarnings:
    """Warnings that peers cause: up to ten per second are logged, the others are counted.

    A scanner or a broken client can open connections very fast; its warnings must neither fill the
    disk nor hide other lines. Belongs to the loop of its server.
    """

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._second_start_ms = clock.monotonic_ms()
        self._logged = 0
        self._suppressed = 0

    def warn(self, text: str, *arguments: object) -> None:
        self.report_suppressed()
        if self._logged < _WARNINGS_PER_SECOND:
            self._logged += 1
            self._logger.warning(text, *arguments)
        else:
            self._suppressed += 1

    def report_suppressed(self) -> None:
        """If a second has passed, log how many warnings it suppressed, and start the next one."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._second_start_ms < _SECOND_MS:
            return
        suppressed, self._suppressed = self._suppressed, 0
        self._second_start_ms, self._logged = now_ms, 0
        if suppressed:
            self._logger.warning("%d more warnings about connections were suppressed", suppressed)


class Server:
    """Serves ``handlers`` on one port.

    ``on_open`` and ``on_close`` are called for each connection; ``on_frames`` may handle frames
    before they are decoded, ``on_bytes`` before they are split (see Connection).
    ``finish_requests`` completes the requests that handlers answer later; it is awaited while the
    server stops, before connections are closed.
    """

    def __init__(
        self,
        options: ServerOptions,
        handlers: Handlers,
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        on_frames: FrameHook | None = None,
        on_bytes: BytesHook | None = None,
        finish_requests: Callable[[], Awaitable[None]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._handlers = handlers
        self._on_open = on_open
        self._on_close = on_close
        self._on_frames = on_frames
        self._on_bytes = on_bytes
        self._finish_requests = finish_requests
        self._clock: Clock = clock or SystemClock()
        self._warnings = LimitedWarnings(_logger, self._clock)
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._listener: Socket | None = None
        self._port: int | None = None
        self._descriptor = -1
        self._stopping = False
        self._connections: dict[Connection, None] = {}
        # The above, and lost connections whose handlers have not ended yet.
        self._unfinished: dict[Connection, None] = {}
        self._handshakes = 0
        self._refused = 0
        self._refused_logged_ms: int | None = None
        self._descriptors_logged_ms: int | None = None

    @property
    def port(self) -> int:
        """The listening port; known after ``start``, also after ``stop``."""
        if self._port is None:
            raise RuntimeError("the server is not started")
        return self._port

    @property
    def connections(self) -> Iterable[Connection]:
        return self._connections

    async def start(self) -> None:
        options = self._options
        if options.tls is not None:
            self._tls = options.tls.server_context()
        listening = await self._listen()
        self._port = listening.getsockname()[1]
        self._descriptor = listening.fileno()
        self._tasks.periodic("ConnectionSweep", options.sweep_seconds, self._sweep)

    async def stop(self, grace_seconds: float = 3.0) -> None:
        """Stop accepting, let running handlers end within the grace time, then close."""
        self._stopping = True
        self._descriptor = -1
        if self._server is not None:
            self._server.close()
        try:
            await self._tasks.stop()
            if self._listener is not None:
                self._listener.close()
            await self._drain(grace_seconds)
            await self._wait_finished(grace_seconds)
        finally:  # also when this coroutine is cancelled
            for connection in list(self._connections):
                connection.abort()
        # Handlers are cancelled now. The wait for one that does not end is limited.
        if not await self._wait_finished(grace_seconds + 1.0):
            _logger.error(
                "%d connections still have handlers after the grace time", len(self._unfinished)
            )
        if self._server is not None:
            await self._server.wait_closed()

    def reload_tls(self) -> None:
        """Load the certificate files again; after a ConfigError the old ones stay in use.

        Reads files; may be called in any thread.
        """
        if self._tls is not None and self._options.tls is not None:
            self._tls = self._options.tls.server_context()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _drain(self, grace_seconds: float) -> None:
        """Answer the requests that were received, and new ones with GO_AWAY; then close."""
        drained = {connection: connection.drain() for connection in self._connections}
        if self._finish_requests is not None:
            await self._finish_requests()
        if drained:
            await asyncio.wait(drained.values(), timeout=grace_seconds)
        for connection in drained:
            connection.stop_handling()
        if self._finish_requests is not None:  # what those handlers started
            await self._finish_requests()
        for connection, is_drained in drained.items():
            if is_drained.done():
                connection.close()
            else:
                connection.abort()

    async def _wait_finished(self, timeout_seconds: float) -> bool:
        waits = [connection.closed for connection in self._unfinished]
        if waits:
            await asyncio.wait(waits, timeout=timeout_seconds)
        return not self._unfinished

    async def _listen(self) -> TransportSocket | Socket:
        """Returns a listening socket, from which an event loop or ``_accept`` gets connections."""
        options = self._options
        host = await resolve_host(options.host)
        try:
            if self._tls is not None:
                self._listener = await listen(host, options.port, options.backlog)
                self._tasks.spawn(self._accept(self._listener), "accept")
                return self._listener
            self._server = await asyncio.get_running_loop().create_server(
                self._connection, host, options.port, backlog=options.backlog
            )
            return self._server.sockets[0]
        except OSError as error:
            where = address_text((options.host, options.port))
            text = f"cannot listen on {where}: {os.strerror(error.errno or 0)}"
            raise OSError(error.errno, text) from error

    def _connection(self) -> Connection:
        return Connection(
            self._options,
            self._handlers,
            on_open=self._opened,
            on_close=self._lost,
            on_finished=self._finished,
            on_frames=self._on_frames,
            on_bytes=self._on_bytes,
            warn=self._warnings.warn,
        )

    def _finished(self, connection: Connection) -> None:
        self._unfinished.pop(connection, None)

    def _opened(self, connection: Connection) -> None:
        self._unfinished[connection] = None
        if self._stopping:
            connection.abort()
            return
        if len(self._connections) >= self._options.max_connections:
            self._warn_refused(connection.remote)
            connection.abort()
            return
        self._connections[connection] = None
        if self._on_open is not None:
            self._on_open(connection)

    def _lost(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            if self._on_close is not None:
                self._on_close(connection)

    def _warn_refused(self, remote: str) -> None:
        self._refused += 1
        now_ms = self._clock.monotonic_ms()
        last_ms = self._refused_logged_ms
        if last_ms is None or now_ms - last_ms >= _REFUSED_LOG_INTERVAL_MS:
            self._refused_logged_ms = now_ms
            _logger.warning(
                "%s is refused: %d connections are open, the limit (%d refused so far)",
                remote,
                len(self._connections),
                self._refused,
            )

    def _warn_if_out_of_descriptors(self, now_ms: int) -> None:
        """The event loop drops connections silently if it has no descriptors: test for that."""
        if self._descriptor < 0:
            return
        try:
            os.close(os.dup(self._descriptor))
        except OSError as error:
            last_ms = self._descriptors_logged_ms
            if last_ms is None or now_ms - last_ms >= _REFUSED_LOG_INTERVAL_MS:
                self._descriptors_logged_ms = now_ms
                _logger.warning(
                    "new connections are dropped, %d are open: %s; raise the limit of open files "
                    "(ulimit -n)",
                    len(self._connections),
                    error.strerror,
                )

    def _sweep(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._warn_if_out_of_descriptors(now_ms)
        self._warnings.report_suppressed()
        for connection in list(self._unfinished):
            connection.sweep(now_ms)

    async def _accept(self, listener: Socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    sock, address = await loop.sock_accept(listener)
                except OSError as error:
                    # Missing descriptors are reported by the sweep, at a limited rate.
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        _logger.warning("accepting a connection failed: %s", error)
                    await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                    continue
                if len(self._connections) + self._handshakes >= self._options.max_connections:
                    self._warn_refused(address_text(address))
                    sock.close()
                    continue
                self._handshakes += 1
                self._tasks.spawn(self._hand_over(sock, address_text(address)), "hand over")

    async def _hand_over(self, sock: Socket, remote: str) -> None:
        """Pass an accepted socket to the event loop, as TLS or plain by its first byte."""
        options = self._options
        handed_over = False
        created: list[Connection] = []

        def create() -> Connection:
            created.append(self._connection())
            return created[-1]

        try:
            async with asyncio.timeout(options.idle_seconds):
                first = await peek_byte(sock)
            if first is None:
                return
            if first != HANDSHAKE_BYTE and options.tls and options.tls.mode is TlsMode.ENFORCING:
                self._warnings.warn("%s is refused: no TLS handshake, but TLS is enforced", remote)
                return
            handed_over = True
            await asyncio.get_running_loop().connect_accepted_socket(
                create,
                sock,
                ssl=self._tls if first == HANDSHAKE_BYTE else None,
                ssl_handshake_timeout=(
                    options.handshake_seconds if first == HANDSHAKE_BYTE else None
                ),
            )
            created.clear()
        except TimeoutError:
            _logger.info("%s is idle: connection closed", remote)
        except OSError as error:  # includes ssl.SSLError
            self._warnings.warn("%s is refused: %s", remote, error)
        finally:
            self._handshakes -= 1
            if not handed_over:
                sock.close()
            # If this task is cancelled when the connection was just created, uvloop closes the
            # transport without calling connection_lost.
            for connection in created:
                connection.mark_lost()
