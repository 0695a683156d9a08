"""One connection, either end: frames in, answers out, and our own requests matched by opaque.

The received chunk is the unit of work: every whole frame in it is handled, and the answers of plain
handlers leave with one write at its end. A coroutine handler runs as a task of the connection and
is cancelled when the connection is lost; work that must outlive the peer belongs to its owner.

Memory is bounded both ways. A connection is *held* while the peer does not take what it was sent
(unsent bytes over the high mark) or while too many of its requests, by number or by size, are being
handled: frames already received wait, and nothing more is read until the hold ends. Responses of
the peer wait with them, so a handler that asks its own peer should not be one of thousands. Lost,
idle and stalled peers are found by ``sweep``, called now and then by the owner. Our own requests
share one timer, set for whichever is due first.
"""

import asyncio
import logging
import math
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

from goddard.errors import (
    ConnectionLostError,
    OverloadedError,
    ProtocolError,
    RemotingError,
    RequestTimeoutError,
)
from goddard.protocol.codes import CommandFlag, ResponseCode
from goddard.protocol.frame import (
    MAX_FRAME_BYTES,
    FrameDecoder,
    RemotingCommand,
    decode_frame,
    encode_frame,
    encode_head,
)
from goddard.transport.handlers import Answer, Handlers, refusal

_logger: Final = logging.getLogger("goddard.transport")

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_MAX_OPAQUE: Final = 2**31 - 1
# Below this, joining head and body is cheaper than handing the kernel two pieces.
_JOINED_BODY_BYTES: Final = 8192
_TIMER_SLACK_SECONDS: Final = 0.001
# A timer that rings this much too late, and how long what has come meanwhile may take.
_LATE_SECONDS: Final = 0.1
_CATCH_UP_SECONDS: Final = 0.02
# A peer that says nothing for the whole time of a request at least this patient is given up.
_SILENCE_MS: Final = 1_000
# The first version whose clients understand GO_AWAY is the one after 5.3.1.
_LAST_VERSION_WITHOUT_GO_AWAY: Final = 475
_TLS_HANDSHAKE: Final = 0x16
_HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN")

FrameHook: TypeAlias = Callable[["Connection", list[memoryview]], list[memoryview]]
Done: TypeAlias = Callable[[RemotingCommand | RemotingError], None]
"""Takes the outcome of a request: its response, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Limits of each connection, whichever end it is."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    # Our own requests that wait for a response; RocketMQ's clientAsyncSemaphoreValue.
    max_requests_in_flight: int = 65_535
    # The peer's requests that coroutine handlers are working on.
    max_handlers_in_flight: int = 4_096
    # The size of these requests together; one alone may be larger.
    max_handled_bytes: int = 32 * 1024 * 1024
    # Unsent bytes at which nothing more is read from the peer, and at which it is cut off.
    write_buffer_high_bytes: int = 1024 * 1024
    write_buffer_max_bytes: int = 64 * 1024 * 1024
    # A peer over the high mark that takes nothing for this long is cut off.
    write_stall_seconds: float = 30.0
    # A peer whose kernel acknowledges nothing for this long is gone (TCP_USER_TIMEOUT).
    acknowledge_seconds: float = 60.0
    # A peer that begins a frame and has not ended any for this long is cut off.
    partial_frame_seconds: float = 120.0
    # Neither read nor written for this long: closed, as RocketMQ's IdleStateHandler does.
    idle_seconds: float = 120.0

    @property
    def sweep_seconds(self) -> float:
        """How often the owner is to call ``sweep``: often enough to be one eighth late at most."""
        shortest = min(self.write_stall_seconds, self.partial_frame_seconds, self.idle_seconds)
        return min(max(shortest / 8, 0.02), 10.0)


def address_text(name: object) -> str:
    """A socket name as RocketMQ writes it, ``ip:port``; IPv6 in brackets."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(name or "unknown")


def next_opaque(opaque: int) -> int:
    """The number of the next request; after the greatest of 31 bits comes 0."""
    return opaque + 1 if opaque < _MAX_OPAQUE else 0


def _nothing(connection: "Connection") -> None:
    pass


class _Waiting(NamedTuple):
    """A request of ours without a response yet."""

    done: Done
    due_seconds: float
    code: int
    timeout_ms: int


def _settle(
    future: asyncio.Future[RemotingCommand], outcome: RemotingCommand | RemotingError
) -> None:
    if future.done():
        return
    if isinstance(outcome, RemotingCommand):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


class Connection(asyncio.Protocol):
    """One end of a connection.

    ``on_frames`` takes the whole frames of a chunk (without their length words) before they are
    decoded. It handles what it can, answering with ``send_encoded``, and returns the others in
    order; when ``is_held`` becomes true it should stop and return the rest, which it gets again
    when the hold ends. A view keeps the whole chunk in memory: copy what is to be kept. What it
    raises is a fault of ours: it is logged and the connection is cut.

    The end that made the connection (``is_client``) goes on reading while its own bytes wait to be
    sent. Only the other end stops; if both did, each could wait for the other for ever.
    """

    __slots__ = (
        "_backlog",
        "_catching_up",
        "_closing",
        "_corked",
        "_decoder",
        "_deferred",
        "_draining",
        "_due_seconds",
        "_due_timer",
        "_flush_scheduled",
        "_handle",
        "_handled_bytes",
        "_heard",
        "_heard_seconds",
        "_held",
        "_idle_since_ms",
        "_is_client",
        "_least_unsent_bytes",
        "_loop",
        "_lost",
        "_on_close",
        "_on_finished",
        "_on_frames",
        "_on_open",
        "_opaque",
        "_options",
        "_out",
        "_out_bytes",
        "_partial_since_ms",
        "_pending",
        "_reading_paused",
        "_stalled_since_ms",
        "_tasks",
        "_transport",
        "_warn",
        "_whole",
        "_writing_paused",
        "attachments",
        "closed",
        "local",
        "remote",
    )

    def __init__(
        self,
        options: ConnectionOptions,
        handlers: Handlers,
        *,
        on_open: Callable[["Connection"], None] = _nothing,
        on_close: Callable[["Connection"], None] = _nothing,
        on_finished: Callable[["Connection"], None] = _nothing,
        on_frames: FrameHook | None = None,
        is_client: bool = False,
        warn: Callable[..., None] = _logger.warning,
    ) -> None:
        """``on_close``: the peer is gone; ``on_finished``: and the last handler has ended."""
        self.remote = "unknown"
        self.local = "unknown"
        self.attachments: dict[str, Any] = {}
        self._options = options
        self._handle: Callable[
            [RemotingCommand, Connection], Answer | Coroutine[Any, Any, Answer]
        ] = handlers.handle
        self._on_open = on_open
        self._on_close = on_close
        self._on_finished = on_finished
        self._on_frames = on_frames
        self._is_client = is_client
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        # Done when the connection is gone and its last handler has ended.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(options.max_frame_bytes)
        self._lost = False
        self._closing = False
        self._draining = False
        # Receiving.
        self._held = False
        self._reading_paused = False
        self._backlog: list[memoryview] = []
        # Coroutine handlers, and the bytes of the request that each works on.
        self._tasks: dict[asyncio.Task[Answer], int] = {}
        self._handled_bytes = 0
        # Sending. Corked: the end of data_received will flush.
        self._corked = False
        self._flush_scheduled = False
        self._writing_paused = False
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        # Our own requests by opaque, the timer for the first that is due, and the frames that wait
        # until writing goes on.
        self._opaque = 0
        self._pending: dict[int, _Waiting] = {}
        self._due_seconds = math.inf
        self._due_timer: asyncio.TimerHandle | None = None
        self._catching_up = False
        self._deferred: deque[tuple[int, bytes]] = deque()
        # What happened since the last sweep, and since when it has not.
        self._heard = True
        self._heard_seconds = -math.inf
        self._whole = True
        self._idle_since_ms = 0
        self._partial_since_ms = 0
        self._stalled_since_ms = 0
        self._least_unsent_bytes = 0

    @property
    def is_closed(self) -> bool:
        """No longer of use: lost, or closing."""
        return self._closing

    @property
    def is_held(self) -> bool:
        """Nothing more is handled for now; see the module's text."""
        return self._held

    @property
    def unsent_bytes(self) -> int:
        """Bytes given to this connection that the kernel has not taken yet."""
        queued = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + queued

    @property
    def requests_in_flight(self) -> int:
        return len(self._pending)

    @property
    def handlers_in_flight(self) -> int:
        return len(self._tasks)

    # Our own requests

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request and wait for its response. ``command.opaque`` is set here.

        While the peer is slow to read, the request waits its turn within its own time.
        """
        future = self.request_soon(command, timeout_ms)
        try:
            return await future
        finally:
            # A caller that gave up: what still comes is not waited for.
            self._pending.pop(command.opaque, None)

    def request_soon(
        self, command: RemotingCommand, timeout_ms: int
    ) -> asyncio.Future[RemotingCommand]:
        """The same without waiting. What hinders it from being sent at all is raised here."""

        def encode(opaque: int) -> bytes:
            command.opaque = opaque
            command.flag &= ~(_RESPONSE | _ONEWAY)
            return self._encode(command)

        return self.request_encoded(encode, command.code, timeout_ms)

    def request_encoded(
        self, encode: Callable[[int], bytes], code: int, timeout_ms: int
    ) -> asyncio.Future[RemotingCommand]:
        """The same with a frame of the caller's own making; see ``submit``."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self.submit(encode, code, timeout_ms, partial(_settle, future))
        return future

    def submit(
        self, encode: Callable[[int], bytes], code: int, timeout_ms: int, done: Done
    ) -> None:
        """Send the frame that ``encode`` makes for an opaque, and call ``done`` with the outcome.

        ``done`` is called once, on the loop, and must not raise; it is not called at all when this
        raises.
        """
        if self._closing:
            raise ConnectionLostError(f"the connection to {self.remote} is closed", self.remote)
        pending = self._pending
        if len(pending) >= self._options.max_requests_in_flight:
            raise OverloadedError(
                f"{len(pending)} requests to {self.remote} wait for a response already",
                self.remote,
            )
        opaque = self._next_opaque()
        frame = encode(opaque)
        due_seconds = self._loop.time() + timeout_ms / 1000
        pending[opaque] = _Waiting(done, due_seconds, code, timeout_ms)
        if due_seconds < self._due_seconds:
            self._set_due_timer(due_seconds)
        if self._writing_paused:
            self._deferred.append((opaque, frame))
        else:
            self.send_encoded(frame)

    def oneway(self, command: RemotingCommand) -> None:
        """Send a request that is not answered; OverloadedError while the peer is slow to read."""
        if self._closing:
            raise ConnectionLostError(f"the connection to {self.remote} is closed", self.remote)
        if self._writing_paused:
            raise OverloadedError(
                f"{self.unsent_bytes} bytes wait to be sent to {self.remote} already", self.remote
            )
        command.opaque = self._next_opaque()
        command.flag = command.flag & ~_RESPONSE | _ONEWAY
        self.send_encoded(self._encode(command))

    def _next_opaque(self) -> int:
        opaque = next_opaque(self._opaque)
        while opaque in self._pending:
            opaque = next_opaque(opaque)
        self._opaque = opaque
        return opaque

    def _encode(self, command: RemotingCommand) -> bytes:
        frame = encode_frame(command)
        if len(frame) - 4 > self._options.max_frame_bytes:
            raise ProtocolError(
                f"a frame of {len(frame) - 4} bytes is over the limit of "
                f"{self._options.max_frame_bytes}"
            )
        return frame

    def _set_due_timer(self, due_seconds: float) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
        self._due_seconds = due_seconds
        self._due_timer = self._loop.call_at(due_seconds, self._expire)

    def _expire(self) -> None:
        """Give up what is due, and come back for the next."""
        # The timer may ring a little early; what is due within that time is due.
        now = self._loop.time() + _TIMER_SLACK_SECONDS
        if now - self._due_seconds > _LATE_SECONDS and not self._catching_up:
            # This process stood still. What the peer has answered meanwhile is read first: loops
            # see to their timers before their sockets.
            self._catching_up = True
            self._set_due_timer(now + _CATCH_UP_SECONDS)
            return
        self._catching_up = False
        due = [(opaque, each) for opaque, each in self._pending.items() if each.due_seconds <= now]
        for opaque, _ in due:
            del self._pending[opaque]
        self._due_timer = None
        self._due_seconds = math.inf
        if self._pending:
            self._set_due_timer(min(each.due_seconds for each in self._pending.values()))
        is_silent = False
        for _, waiting in due:
            asked_seconds = waiting.due_seconds - waiting.timeout_ms / 1000
            is_silent = is_silent or (
                waiting.timeout_ms >= _SILENCE_MS
                # The loop's time may stand still for a millisecond: what was heard just before the
                # request has the same time as it.
                and self._heard_seconds < asked_seconds + _TIMER_SLACK_SECONDS
            )
            text = (
                f"no response from {self.remote} to request code {waiting.code} within "
                f"{waiting.timeout_ms} ms"
            )
            waiting.done(RequestTimeoutError(text, self.remote))
        if is_silent and self._is_client and not self._closing:
            # Not a word since the request: the link is broken, or the peer stands still. What else
            # waits for it can be tried elsewhere, and the next request over a new connection.
            self._cut("it answers nothing at all")

    def _complete(self, response: RemotingCommand) -> None:
        waiting = self._pending.pop(response.opaque, None)
        if waiting is None:
            _logger.debug("a response from %s that nobody waits for, dropped", self.remote)
        else:
            waiting.done(response)

    # Sending

    def respond(self, response: RemotingCommand) -> None:
        """Send the answer of a handler that returned None to answer later. Lost peers: dropped."""
        if self._closing:
            return
        try:
            body = response.body
            size = len(body)
            if size <= _JOINED_BODY_BYTES:
                self.send_encoded(self._encode(response))
                return
            head = encode_head(response, size)
            if len(head) + size - 4 > self._options.max_frame_bytes:
                raise ProtocolError(f"an answer of {len(head) + size} bytes is over the limit")
        except Exception as error:
            _logger.exception("the answer with code %d cannot be encoded", response.code)
            self.send_encoded(encode_frame(refusal(response, error)))
            return
        self._out.append(head)
        self._out_bytes += len(head)
        self.send_encoded(body)

    def send_encoded(self, data: bytes | memoryview) -> None:
        """Queue bytes that are frames already; they leave at the end of this tick.

        A memoryview must not change until the connection has sent it.
        """
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > self._options.write_buffer_high_bytes:
            self._flush()
        elif not self._corked and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_tick)

    def send_now(self, data: bytes | memoryview) -> None:
        """As ``send_encoded``, but without waiting for the end of the tick: this is it."""
        transport = self._transport
        if self._out or self._corked or self._writing_paused or transport is None or self._lost:
            self._out.append(data)
            self._out_bytes += len(data)
            if not self._corked:
                self._flush()
        else:  # nothing to join it with, nothing in its way
            self._heard = True
            transport.write(data)

    def _flush_tick(self) -> None:
        self._flush_scheduled = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        self._out = []
        self._out_bytes = 0
        transport = self._transport
        if transport is None or self._lost:
            return
        self._heard = True
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self._writing_paused and (
            (unsent := transport.get_write_buffer_size()) > self._options.write_buffer_max_bytes
        ):
            self._cut(f"{unsent} bytes wait to be sent and it does not read")

    def pause_writing(self) -> None:
        self._writing_paused = True
        # The next sweep finds less than this, and counts from then.
        self._least_unsent_bytes = sys.maxsize
        self._update_hold()

    def resume_writing(self) -> None:
        self._writing_paused = False
        while self._deferred and not self._writing_paused:
            opaque, frame = self._deferred.popleft()
            if opaque in self._pending:
                self.send_encoded(frame)
        self._update_hold()

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream protocol is always given a two-way transport; asyncio's type is merely too wide,
        # and uvloop's transports are not of asyncio's class.
        self._transport = transport = cast("asyncio.Transport", transport)
        self.remote = address_text(transport.get_extra_info("peername"))
        self.local = address_text(transport.get_extra_info("sockname"))
        transport.set_write_buffer_limits(high=self._options.write_buffer_high_bytes)
        self._limit_unacknowledged(transport.get_extra_info("socket"))
        self._on_open(self)

    def _limit_unacknowledged(self, sock: socket.socket | None) -> None:
        # Without this a peer behind a broken link is noticed after 15 minutes of retransmission.
        if sys.platform == "linux" and sock is not None and sock.family != socket.AF_UNIX:
            milliseconds = int(self._options.acknowledge_seconds * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._is_client:
            self._heard_seconds = self._loop.time()
        decoder = self._decoder
        frames = decoder.feed(data)
        if frames:
            self._whole = True
            if self._held:
                # Transports may hand over what they had read already when told to pause.
                self._backlog += frames
            else:
                self._take(frames)
        if decoder.failure is not None and not self._closing:
            is_first = decoder.buffered_bytes == 0 and not frames
            if is_first and data[0] == _TLS_HANDSHAKE:
                self._cut("it wants TLS, which is disabled on this port")
            elif is_first and data.startswith(_HTTP_METHODS):
                self._reject(ProtocolError("it is HTTP, which this port does not speak"))
            else:
                self._reject(decoder.failure)

    def _take(self, frames: list[memoryview]) -> None:
        self._corked = True
        try:
            if self._on_frames is not None:
                frames = self._on_frames(self, frames)
            if frames:
                self._handle_frames(frames)
        except ProtocolError as error:
            self._reject(error)
        except Exception:
            _logger.exception("receiving from %s failed", self.remote)
            self.abort()
        finally:
            self._corked = False
        if self._out:
            self._flush()

    def _handle_frames(self, frames: list[memoryview]) -> None:
        handle = self._handle
        for position, frame in enumerate(frames):
            if self._held:
                self._backlog = frames[position:]
                return
            command = decode_frame(frame)
            if command.flag & _RESPONSE:
                self._complete(command)
                continue
            answer = handle(command, self)
            if answer is None:
                continue
            if isinstance(answer, RemotingCommand):
                self.respond(answer)
            else:
                self._spawn(answer, len(frame))

    def _spawn(self, handling: Coroutine[Any, Any, Answer], size_bytes: int) -> None:
        task = self._loop.create_task(handling)
        self._tasks[task] = size_bytes
        self._handled_bytes += size_bytes
        task.add_done_callback(self._handled)
        if self._has_enough_to_do():
            self._update_hold()

    def _has_enough_to_do(self) -> bool:
        return (
            len(self._tasks) >= self._options.max_handlers_in_flight
            or self._handled_bytes >= self._options.max_handled_bytes
        )

    def _handled(self, task: asyncio.Task[Answer]) -> None:
        self._handled_bytes -= self._tasks.pop(task)
        if not task.cancelled() and (answer := task.result()) is not None:
            self.respond(answer)
        if self._lost:
            if not self._tasks:
                self._finish()
        elif self._draining and not self._tasks:
            self.close()
        elif self._held:
            self._update_hold()

    def _update_hold(self) -> None:
        self._held = (
            self._closing
            or (self._writing_paused and not self._is_client)
            or self._has_enough_to_do()
        )
        transport = self._transport
        if transport is None or self._lost or self._closing:
            return
        if not self._held and self._backlog and not self._corked:
            frames, self._backlog = self._backlog, []
            self._take(frames)
        if self._held is not self._reading_paused and not self._closing:
            self._reading_paused = self._held
            if self._held:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = self._held = True
        self._out.clear()
        self._backlog.clear()
        self._deferred.clear()
        pending, self._pending = self._pending, {}
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        reason = f": {error}" if error is not None else ""
        for waiting in pending.values():
            text = f"the connection to {self.remote} was lost{reason}"
            waiting.done(ConnectionLostError(text, self.remote))
        for task in self._tasks:
            task.cancel()
        self._on_close(self)
        if not self._tasks:
            self._finish()

    def forsake(self) -> None:
        """The transport is gone and will not say so."""
        if self._transport is not None:
            self.connection_lost(None)

    def _finish(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
            self._on_finished(self)

    # Ending

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._closing:
            return
        if self._out:
            self._flush()
        self._closing = self._held = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now, dropping what is queued."""
        self._closing = self._held = True
        self._out.clear()
        if self._transport is not None and not self._lost:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Until the connection is gone and its last handler has ended."""
        await asyncio.shield(self.closed)

    def drain(self) -> None:
        """Finish the requests being handled, then close; new ones are told to go elsewhere."""
        self._draining = True
        serve = self._handle

        def turn_away(
            request: RemotingCommand, connection: "Connection"
        ) -> Answer | Coroutine[Any, Any, Answer]:
            if request.version <= _LAST_VERSION_WITHOUT_GO_AWAY or request.flag & _ONEWAY:
                return serve(request, connection)
            return request.reply(ResponseCode.GO_AWAY, "please go away")

        self._handle = turn_away
        if not self._tasks:
            self.close()

    def sweep(self, now_ms: int) -> None:
        """Close this connection if it is idle, stalled, or stuck inside a frame."""
        if self._lost:
            return
        options = self._options
        unsent = self.unsent_bytes
        if not self._writing_paused or unsent < self._least_unsent_bytes:
            # A peer that takes some of what waits for it is alive, however slow.
            self._heard = self._heard or unsent < self._least_unsent_bytes
            self._least_unsent_bytes = unsent
            self._stalled_since_ms = now_ms
        elif now_ms - self._stalled_since_ms >= options.write_stall_seconds * 1000:
            self._cut(f"{unsent} bytes wait to be sent and it does not read")
            return
        if self._whole or not self._decoder.buffered_bytes or self._held:
            self._whole = False
            self._partial_since_ms = now_ms
        elif now_ms - self._partial_since_ms >= options.partial_frame_seconds * 1000:
            self._cut("it began a frame and did not end it in time")
            return
        if self._heard:
            self._heard = False
            self._idle_since_ms = now_ms
        elif now_ms - self._idle_since_ms >= options.idle_seconds * 1000:
            _logger.info("%s is idle, closed", self.remote)
            self.abort()

    def _reject(self, error: ProtocolError) -> None:
        """The bytes are not the protocol: answer what came before them, then close."""
        self._warn("%s sent what cannot be read, closed: %s", self.remote, error)
        self.close()

    def _cut(self, reason: str) -> None:
        self._warn("%s is cut off: %s", self.remote, reason)
        self.abort()
