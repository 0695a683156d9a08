"""The HA port of a master: RocketMQ's slaves connect to it and copy the log.

The newest bytes are sent straight from the mapped log. What a slave far behind needs may have to
come from the disk, so a thread reads it, a block at a time. No more is taken from the log than the
connection can send: writing stops while its buffer is full.

Belongs to the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple, cast

from goddard.clock import Clock, SystemClock
from goddard.replication.decisions import (
    Chunk,
    LogRange,
    SlaveLimits,
    SlaveProgress,
    SlaveRefusedError,
    Wait,
)
from goddard.replication.frames import ReportDecoder, encode_header
from goddard.replication.reasons import Reasons
from goddard.store.store import MessageStore
from goddard.transport.connection import address_text

_log = logging.getLogger(__name__)

_MAX_CONNECTIONS: Final = 64
_WRITE_BUFFER_BYTES: Final = 1 << 20
# What is sent before other connections have their turn.
_TURN_BYTES: Final = 1 << 20
# Further behind than this, bytes may have left the page cache: a thread reads them in blocks.
_COLD_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 1 << 20
_STOP_SECONDS: Final = 0.5


class SlaveStatus(NamedTuple):
    """How far a slave is."""

    address: str
    acknowledged_offset: int
    next_offset: int
    sent_in_last_second: int


class HaServer:
    """Serves the log of a store to slaves from ``start`` to ``stop``.

    ``on_report`` is called after each report of a slave.
    """

    def __init__(
        self,
        store: MessageStore,
        executor: Executor,
        *,
        limits: Callable[[], SlaveLimits] = SlaveLimits,
        clock: Clock | None = None,
        on_report: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = limits
        self.on_report = on_report
        self._source = _LogSource(store, executor)
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._connections: dict[_SlaveConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._forget_listener: Callable[[], None] | None = None
        self._is_push_due = False
        self._refusals = Reasons(self._clock)
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port)
        except OSError as error:
            text = f"cannot listen on {address_text((host, port))} for slaves: {error.strerror}"
            raise OSError(error.errno, text) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._forget_listener = self._store.add_listener(self._log_grew)
        _log.info("slaves can connect to %s", address_text((host, self.port)))

    async def stop(self) -> None:
        """Send slaves what they lack, as far as they take it at once, and disconnect them."""
        if self._server is None:
            return
        self._server.close()
        if self._forget_listener is not None:
            self._forget_listener()
        connections = list(self._connections)
        for connection in connections:
            connection.finish()
        if connections:
            _, late = await asyncio.wait(
                [connection.closed for connection in connections], timeout=_STOP_SECONDS
            )
            if late:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(late)
        await self._server.wait_closed()
        self._server = None

    @property
    def acknowledged_offsets(self) -> list[int]:
        """What each connected slave has acknowledged."""
        offsets = (connection.progress.acknowledged_offset for connection in self._connections)
        return [offset for offset in offsets if offset is not None]

    @property
    def slaves(self) -> list[SlaveStatus]:
        """The connected slaves; a connection that has reported nothing is none."""
        now_ms = self._clock.monotonic_ms()
        return [
            SlaveStatus(
                connection.remote,
                connection.progress.acknowledged_offset,
                connection.progress.next_offset,
                connection.progress.sent_in_last_second(now_ms),
            )
            for connection in self._connections
            if connection.progress.acknowledged_offset is not None
        ]

    def _accept(self) -> "_SlaveConnection":
        return _SlaveConnection(self, self._source, self._limits(), self._clock)

    def connected(self, connection: "_SlaveConnection") -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            connection.refuse(f"{_MAX_CONNECTIONS} connections are open already")
        self._connections[connection] = None

    def disconnected(self, connection: "_SlaveConnection") -> None:
        self._connections.pop(connection, None)

    def log_refusal(self, remote: str, reason: str) -> None:
        if self._refusals.is_new(remote.rpartition(":")[0], reason):
            _log.warning("disconnected %s from the HA port: %s", remote, reason)

    def _log_grew(self, _: object) -> None:
        """Send it at the end of this turn of the loop."""
        if self._connections and not self._is_push_due:
            self._is_push_due = True
            asyncio.get_running_loop().call_soon(self._push)

    def _push(self) -> None:
        self._is_push_due = False
        for connection in list(self._connections):
            connection.push()


class _LogSource:
    """The log as slaves need it."""

    def __init__(self, store: MessageStore, executor: Executor) -> None:
        self._store = store
        self._executor = executor

    @property
    def range(self) -> LogRange:
        store = self._store
        return LogRange(store.log_min_offset, store.log_max_offset, store.config.segment_bytes)

    def view(self, chunk: Chunk) -> memoryview:
        view = self._store.read_log(chunk.physical_offset, chunk.size)
        if view is None or len(view) != chunk.size:
            raise SlaveRefusedError(f"the log cannot be read at {chunk.physical_offset}")
        return view

    def read_block(self, chunk: Chunk) -> asyncio.Future[bytes]:
        """The bytes of a chunk and what follows, read by a thread; empty if they are gone."""
        size = max(chunk.size, _BLOCK_BYTES)

        def read() -> bytes:
            return bytes(self._store.read_log(chunk.physical_offset, size) or b"")

        return asyncio.get_running_loop().run_in_executor(self._executor, read)


class _SlaveConnection(asyncio.Protocol):
    """One connection to the HA port. It is a slave's after the first report."""

    def __init__(
        self, server: HaServer, source: _LogSource, limits: SlaveLimits, clock: Clock
    ) -> None:
        self._server = server
        self._source = source
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._decoder = ReportDecoder()
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = False
        self._is_dismissed = False  # refused, or the broker stops
        self._block_offset = 0
        self._block = memoryview(b"")
        self._reading: asyncio.Future[bytes] | None = None
        self.progress = SlaveProgress(limits, clock.monotonic_ms())
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.remote = ""

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.remote = address_text(transport.get_extra_info("peername")[:2])
        self._server.connected(self)
        self.push()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        reported_offset = self._decoder.feed(data)
        if reported_offset is None:
            return
        progress, log = self.progress, self._source.range
        is_first = progress.acknowledged_offset is None
        try:
            progress.report(reported_offset, log, self._clock.monotonic_ms())
        except SlaveRefusedError as error:
            self.refuse(str(error))
            return
        self._server.on_report()
        if is_first:
            _log.info(
                "slave %s reports %d and is sent the log from %d on; the log has %d to %d",
                self.remote,
                reported_offset,
                progress.next_offset,
                log.min_offset,
                log.end_offset,
            )
        self.push()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.push()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.disconnected(self)
        if self.progress.acknowledged_offset is not None:
            _log.info(
                "slave %s is disconnected%s; it has acknowledged the log up to %d",
                self.remote,
                "" if error is None else f" ({error})",
                self.progress.acknowledged_offset,
            )
        elif not self._is_dismissed:
            self._server.log_refusal(self.remote, "it left without a report: it is not a slave")
        self.closed.set_result(None)

    # What the server calls

    def push(self) -> None:
        """Send what the slave lacks, as far as the connection takes it, and when to look again."""
        if self._transport.is_closing():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            wait_ms = self._send()
        except SlaveRefusedError as error:
            self.refuse(str(error))
            return
        self._timer = self._loop.call_later(wait_ms / 1000, self.push)

    def refuse(self, reason: str) -> None:
        self._is_dismissed = True
        self._server.log_refusal(self.remote, reason)
        self.abort()

    def finish(self) -> None:
        self.push()
        self._is_dismissed = True
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # Sending

    def _send(self) -> int:
        """Returns after how many milliseconds to call this again, if nothing else does."""
        progress = self.progress
        budget = _TURN_BYTES
        while not self._is_paused and self._reading is None:
            if budget <= 0:
                return 0
            now_ms = self._clock.monotonic_ms()
            log = self._source.range
            step = progress.next_step(log, now_ms)
            if isinstance(step, Wait):
                return step.milliseconds
            data = self._bytes_of(step, log)
            if data is None:
                break
            self._transport.writelines((encode_header(step.physical_offset, step.size), data))
            progress.sent(step, now_ms)
            budget -= step.size
        return progress.silent_in_ms(self._clock.monotonic_ms())

    def _bytes_of(self, chunk: Chunk, log: LogRange) -> memoryview | None:
        """The bytes of a chunk; None when a thread has to read them first."""
        start = chunk.physical_offset - self._block_offset
        if start >= 0 and start + chunk.size <= len(self._block):
            return self._block[start : start + chunk.size]
        self._block = memoryview(b"")
        if log.end_offset - chunk.physical_offset <= _COLD_BYTES:
            return self._source.view(chunk)
        self._block_offset = chunk.physical_offset
        self._reading = self._source.read_block(chunk)
        self._reading.add_done_callback(self._block_read)
        return None

    def _block_read(self, reading: asyncio.Future[bytes]) -> None:
        self._reading = None
        if reading.cancelled() or self._transport.is_closing():
            return
        error = reading.exception()
        if error is not None or not reading.result():
            self.refuse(f"the log cannot be read at {self._block_offset}: {error or 'deleted'}")
            return
        self._block = memoryview(reading.result())
        self.push()
