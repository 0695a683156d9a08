"""One connection, either end: frames in, answers out, and our own requests matched by opaque.

The received chunk is the unit of work: every whole frame in it is handled, and the answers of plain
handlers leave with one write at its end. A coroutine handler runs as a task of the connection and
is cancelled when the connection is lost; work that must outlive the peer belongs to its owner.

Memory is bounded both ways. A connection is *held* while the peer does not take what it was sent
(unsent bytes over the high mark) or while too many of its requests, by number or by size, are being
handled: frames already received wait, and nothing more is read until the hold ends. Responses of
the peer wait with them, so a handler that asks its own peer should not be one of thousands. Lost,
idle and stalled peers are found by ``sweep``, called now and then by the owner.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias, cast

from goddard.errors import (
    ConnectionLostError,
    OverloadedError,
    ProtocolError,
    RemotingError,
)
from goddard.protocol.codes import CommandFlag, ResponseCode
from goddard.protocol.frame import (
    FrameDecoder,
    RemotingCommand,
    decode_frame,
    encode_frame,
    encode_head,
)
from goddard.transport.handlers import Answer, Handlers, refusal
from goddard.transport.options import ConnectionOptions
from goddard.transport.patience import Patience, Verdict
from goddard.transport.pending import Done, PendingRequests, Waiting
from goddard.transport.tls import HANDSHAKE_BYTE

_logger: Final = logging.getLogger("goddard.transport")

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
# Below this, joining head and body is cheaper than handing the kernel two pieces.
_JOINED_BODY_BYTES: Final = 8192
# The first version whose clients understand GO_AWAY is the one after 5.3.1.
_LAST_VERSION_WITHOUT_GO_AWAY: Final = 475
_HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN")

FrameHook: TypeAlias = Callable[["Connection", list[memoryview]], list[memoryview]]


def address_text(name: object) -> str:
    """A socket name as RocketMQ writes it, ``ip:port``; IPv6 in brackets."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(name or "unknown")


def _nothing(connection: "Connection") -> None:
    pass


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
        "_closing",
        "_corked",
        "_decoder",
        "_draining",
        "_flush_scheduled",
        "_handle",
        "_handled_bytes",
        "_heard",
        "_held",
        "_is_client",
        "_loop",
        "_lost",
        "_on_close",
        "_on_finished",
        "_on_frames",
        "_on_open",
        "_options",
        "_out",
        "_out_bytes",
        "_patience",
        "_pending",
        "_reading_paused",
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
        on_go_away: Callable[["Connection", Waiting], None] | None = None,
        is_client: bool = False,
        warn: Callable[..., None] = _logger.warning,
    ) -> None:
        """``on_close``: the peer is gone; ``on_finished``: and the last handler has ended.

        ``on_go_away`` takes our requests that the peer refused because it shuts down.
        """
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
        # Our own requests.
        self._pending = PendingRequests(
            self._loop,
            self._fall_silent,
            None if on_go_away is None else partial(on_go_away, self),
        )
        # What happened since the last sweep: bytes either way, a whole frame.
        self._heard = True
        self._whole = True
        self._patience = Patience(options)

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
        return len(self._pending.waiting)

    @property
    def handlers_in_flight(self) -> int:
        return len(self._tasks)

    # Our own requests

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request and wait for its response. ``command.opaque`` is set here.

        While the peer is slow to read, the request waits its turn within its own time.
        """
        future = self.request_soon(command, timeout_ms)
        opaque = command.opaque
        try:
            return await future
        finally:
            if opaque in self._pending.waiting:  # the caller gave up
                self._pending.forget(opaque)

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
        self,
        encode: Callable[[int], bytes],
        code: int,
        timeout_ms: int,
        done: Done,
        *,
        may_resend: bool = True,
    ) -> None:
        """Send the frame that ``encode`` makes for an opaque, and call ``done`` with the outcome.

        ``done`` is called once, on the loop, and must not raise; it is not called at all when this
        raises. ``encode`` may be called again, for another connection, if the peer shuts down.
        """
        if self._closing:
            raise ConnectionLostError(f"the connection to {self.remote} is closed", self.remote)
        pending = self._pending
        if len(pending.waiting) >= self._options.max_requests_in_flight:
            raise OverloadedError(
                f"{len(pending.waiting)} requests to {self.remote} wait for a response already",
                self.remote,
            )
        opaque, frame = pending.add(encode, code, timeout_ms, done, may_resend)
        if self._writing_paused:
            pending.deferred[opaque] = frame
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
        command.opaque = self._pending.next_opaque()
        command.flag = command.flag & ~_RESPONSE | _ONEWAY
        self.send_encoded(self._encode(command))

    def _encode(self, command: RemotingCommand) -> bytes:
        frame = encode_frame(command)
        if len(frame) - 4 > self._options.max_frame_bytes:
            raise ProtocolError(
                f"a frame of {len(frame) - 4} bytes is over the limit of "
                f"{self._options.max_frame_bytes}"
            )
        return frame

    def _fall_silent(self) -> None:
        """Not a word since a request: the link is broken, or the peer stands still.

        What else waits for it can be tried elsewhere, and the next request over a new connection.
        """
        if self._is_client and not self._closing:
            self._cut("it answers nothing at all")

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
        self._patience.begin_stall()
        self._update_hold()

    def resume_writing(self) -> None:
        self._writing_paused = False
        deferred = self._pending.deferred
        while deferred and not self._writing_paused:
            _, frame = deferred.popitem(last=False)
            self.send_encoded(frame)
        self._update_hold()

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream protocol is always given a two-way transport; asyncio's type is merely too wide,
        # and uvloop's transports are not of asyncio's class.
        self._transport = transport = cast("asyncio.Transport", transport)
        self.remote = address_text(transport.get_extra_info("peername"))
        self.local = address_text(transport.get_extra_info("sockname"))
        self._pending.remote = self.remote
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
            self._pending.heard_seconds = self._loop.time()
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
            if is_first and data[0] == HANDSHAKE_BYTE:
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
                self._pending.complete(command)
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
        reason = f": {error}" if error is not None else ""
        self._pending.fail(f"the connection to {self.remote} was lost{reason}")
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
        unsent = self.unsent_bytes
        verdict = self._patience.judge(
            now_ms,
            unsent_bytes=unsent,
            is_behind=self._writing_paused,
            is_inside_frame=(
                self._decoder.buffered_bytes > 0 and not self._whole and not self._held
            ),
            is_heard=self._heard,
        )
        self._heard = self._whole = False
        if verdict is Verdict.STALLED:
            self._cut(f"{unsent} bytes wait to be sent and it does not read")
        elif verdict is Verdict.UNFINISHED:
            self._cut("it began a frame and did not end it in time")
        elif verdict is Verdict.IDLE:
            _logger.info("%s is idle, closed", self.remote)
            self.abort()

    def _reject(self, error: ProtocolError) -> None:
        """The bytes are not the protocol: answer what came before them, then close."""
        self._warn("%s sent what cannot be read, closed: %s", self.remote, error)
        self.close()

    def _cut(self, reason: str) -> None:
        self._warn("%s is cut off: %s", self.remote, reason)
        self.abort()
