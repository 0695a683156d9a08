"""The requesting end: one shared connection per address, opened on demand and after a loss.

A request's timeout includes connecting. Concurrent callers without a connection share one attempt;
if it fails, it fails for all of them, and the next request starts a new attempt.

A server that shuts down answers GO_AWAY to new requests. Each of them is sent once more, over a new
connection and within its timeout; if the server refuses that too, the request fails with
ServerShuttingDownError. Requests that the server already handles finish on the old connection.
"""

import asyncio
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from goddard.clock import Clock, SystemClock
from goddard.errors import (
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    RemotingError,
    ServerShuttingDownError,
)
from goddard.protocol.frame import RemotingCommand
from goddard.transport.connection import BytesHook, Connection
from goddard.transport.handlers import AfterHook, BeforeHook, Handlers
from goddard.transport.options import ConnectionOptions
from goddard.transport.pending import PendingRequest
from goddard.transport.tasks import Tasks
from goddard.transport.tls import TlsOptions

_logger: Final = logging.getLogger("goddard.transport")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(ConnectionOptions):
    connect_seconds: float = 3.0
    tls: TlsOptions | None = None


def _is_failed_handshake(error: Exception) -> bool:
    """Whether a peer refused TLS. Servers without it close or reset the connection."""
    # Imported when needed: programs without TLS do not load it.
    ssl_error = importlib.import_module("ssl").SSLError
    return isinstance(error, (ConnectionResetError, ssl_error))


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``; IPv6 is in brackets or, as Java writes it, without."""
    host, separator, port_text = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not (separator and host and port_text.isascii() and port_text.isdigit()):
        raise ConfigError(f"{address!r} is not an address; write it as host:port")
    port = int(port_text[:6])
    if not 0 < port <= 65_535:
        raise ConfigError(f"{address!r} has no valid port")
    return host, port


class Client:
    """Sends requests by address; ``handlers`` handle the requests of servers to us."""

    def __init__(
        self,
        options: ClientOptions | None = None,
        handlers: Handlers | None = None,
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        on_bytes: BytesHook | None = None,
        clock: Clock | None = None,
    ) -> None:
        """``on_bytes``: see Connection."""
        self._options = options or ClientOptions()
        self._handlers = handlers or Handlers()
        self._on_open = on_open
        self._on_close = on_close
        self._on_bytes = on_bytes
        self._clock: Clock = clock or SystemClock()
        self._tls = self._options.tls.client_context() if self._options.tls is not None else None
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._sweeping = False
        self._closed = False
        self._before: list[BeforeHook] = []
        self._after: list[AfterHook] = []
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection | ConnectFailedError]] = {}
        self._unfinished: dict[Connection, None] = {}

    def add_hook(self, before: BeforeHook | None = None, after: AfterHook | None = None) -> None:
        """Call ``before(request, connection)`` and ``after(request, response, connection)``.

        Hooks run for each of our requests, in the order added; their exceptions reach the caller.
        ``after`` is not called for a request without a response.
        """
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """Send a request and wait for its response, whatever its code."""
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            loop = asyncio.get_running_loop()
            started = loop.time()
            connection = await self._connect(address, timeout_ms / 1000)
            timeout_ms = max(1, timeout_ms - int((loop.time() - started) * 1000))
        for before in self._before:
            before(command, connection)
        response = await connection.request(command, timeout_ms)
        for after in self._after:
            after(command, response, connection)
        return response

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that is not answered; OverloadedError while the peer is slow to read."""
        connection = await self.connection(address)
        for before in self._before:
            before(command, connection)
        connection.oneway(command)

    async def connection(self, address: str, timeout_ms: int | None = None) -> Connection:
        """The connection to an address; opens it if there is none."""
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            seconds = self._options.connect_seconds if timeout_ms is None else timeout_ms / 1000
            connection = await self._connect(address, seconds)
        return connection

    def open_connection(self, address: str) -> Connection | None:
        """The connection to an address, if it is open already."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    async def close(self, grace_seconds: float = 1.0) -> None:
        """Close every connection; requests in flight fail. Safe to call more than once."""
        self._closed = True
        try:
            await self._tasks.stop()
            for connection in list(self._unfinished):
                connection.close()
            await self._wait_finished(grace_seconds)
        finally:  # also when this coroutine is cancelled
            for connection in list(self._unfinished):
                connection.abort()
        await self._wait_finished(grace_seconds + 1.0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait_finished(self, timeout_seconds: float) -> None:
        waits = [connection.closed for connection in self._unfinished]
        if waits:
            await asyncio.wait(waits, timeout=timeout_seconds)

    def _on_go_away(self, address: str, connection: Connection, refused: PendingRequest) -> None:
        """A server that shuts down refused a request: send it once more over a new connection."""
        if self._connections.get(address) is connection:
            del self._connections[address]
        request = refused.request
        if not refused.may_resend:
            request.done(ServerShuttingDownError(f"{address} is shutting down", address))
            return

        def ended(resending: asyncio.Task[None]) -> None:
            if resending.cancelled():
                request.done(ConnectionLostError("the client is closed", address))

        resending = self._tasks.spawn(self._resend(address, refused), f"resend to {address}")
        resending.add_done_callback(ended)

    async def _resend(self, address: str, refused: PendingRequest) -> None:
        loop = asyncio.get_running_loop()
        request = refused.request
        try:
            left_ms = max(1, int((refused.due_seconds - loop.time()) * 1000))
            connection = await self.connection(address, left_ms)
            left_ms = max(1, int((refused.due_seconds - loop.time()) * 1000))
            connection.submit(request, refused.code, left_ms, may_resend=False)
        except Exception as error:
            _logger.debug("a request to %s cannot be sent again", address, exc_info=True)
            if isinstance(error, RemotingError):
                request.done(error)
                return
            failure = RemotingError(f"the request cannot be sent again: {error}", address)
            failure.__cause__ = error
            request.done(failure)

    async def _connect(self, address: str, timeout_seconds: float) -> Connection:
        if self._closed:
            raise ConnectionLostError("the client is closed", address)
        attempt = self._connecting.get(address)
        if attempt is None:
            host, port = split_address(address)
            attempt = self._tasks.spawn(self._open(address, host, port), f"connect {address}")
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda _: self._connecting.pop(address, None))
        # Not awaited directly: a cancelled caller must not cancel the attempt of the others.
        await asyncio.wait((attempt,), timeout=timeout_seconds)
        if not attempt.done():
            text = f"no connection to {address} within {int(timeout_seconds * 1000)} ms"
            raise ConnectFailedError(text, address)
        if attempt.cancelled():
            raise ConnectionLostError("the client is closed", address)
        opened = attempt.result()
        if isinstance(opened, ConnectFailedError):
            raise ConnectFailedError(str(opened), address) from opened.__cause__
        return opened

    async def _open(self, address: str, host: str, port: int) -> Connection | ConnectFailedError:
        """Open a connection. Returns a failure, so that every waiting caller raises it."""
        loop = asyncio.get_running_loop()
        seconds = self._options.connect_seconds
        created: list[Connection] = []

        def create() -> Connection:
            created.append(self._connection(address))
            return created[-1]

        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    create,
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=host if self._tls is not None else None,
                )
            created.clear()
        except TimeoutError:
            text = f"no connection to {address} within {int(seconds * 1000)} ms"
            return ConnectFailedError(text, address)
        except (OSError, ValueError) as error:  # includes ssl.SSLError; ValueError: invalid host
            reason = str(error) or type(error).__name__
            if self._tls is not None and _is_failed_handshake(error):
                reason = f"the TLS handshake failed ({reason}); does the server accept TLS there?"
            return ConnectFailedError(f"no connection to {address}: {reason}", address)
        finally:
            # If this task is cancelled when the connection was just created, uvloop closes the
            # transport without calling connection_lost.
            for each in created:
                each.mark_lost()
        if connection.is_closed:
            return ConnectFailedError(f"{address} closed the connection immediately", address)
        if not self._sweeping:
            self._sweeping = True
            self._tasks.periodic("ClientSweep", self._options.sweep_seconds, self._sweep)
        return connection

    def _connection(self, address: str) -> Connection:
        def opened(connection: Connection) -> None:
            self._unfinished[connection] = None
            self._connections[address] = connection
            if self._on_open is not None:
                self._on_open(connection)

        def refused(connection: Connection, request: PendingRequest) -> None:
            self._on_go_away(address, connection, request)

        def lost(connection: Connection) -> None:
            if self._connections.get(address) is connection:
                del self._connections[address]
            if self._on_close is not None:
                self._on_close(connection)

        return Connection(
            self._options,
            self._handlers,
            on_open=opened,
            on_close=lost,
            on_finished=self._finished,
            on_bytes=self._on_bytes,
            on_go_away=refused,
            is_client=True,
        )

    def _finished(self, connection: Connection) -> None:
        self._unfinished.pop(connection, None)

    def _sweep(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for connection in list(self._unfinished):
            connection.sweep(now_ms)
