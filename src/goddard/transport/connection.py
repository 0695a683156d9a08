"""One connection, either end: handles requests, and matches our own requests with responses.

The unit of work is a received chunk: every complete frame in it is handled, and the responses of
plain handlers are sent with one write at its end. A coroutine handler runs as a task of the
connection and is cancelled when the connection is lost; work that must survive the peer belongs to
its owner.

Memory is bounded in both directions. A connection is *paused* while the peer does not read what it
is sent (unsent bytes above the high mark), or while too many of its requests, by number or by size,
are being handled: received frames wait, and nothing more is read until the pause ends. The peer's
responses wait too, so only few handlers should send requests to their own peer. The owner calls
``sweep`` periodically to find lost, idle and stalled peers.
"""

import asyncio
import logging
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
from goddard.transport.handlers import Answer, Handlers, error_response
from goddard.transport.options import ConnectionOptions
from goddard.transport.pending import PendingRequest, PendingRequests, Request
from goddard.transport.sockets import set_acknowledge_timeout
from goddard.transport.timeouts import PeerState, PeerTimeouts
from goddard.transport.tls import HANDSHAKE_BYTE

_logger: Final = logging.getLogger("goddard.transport")

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
# Below this size, joining head and body is cheaper than passing two buffers to the kernel.
_JOINED_BODY_BYTES: Final = 8192
# Clients support GO_AWAY from the version after 5.3.1 (475) on.
_LAST_VERSION_WITHOUT_GO_AWAY: Final = 475
_HTTP_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN")

FrameHook: TypeAlias = Callable[["Connection", list[memoryview]], list[memoryview]]
BytesHook: TypeAlias = Callable[["Connection", bytes], int]


def address_text(name: object) -> str:
    """A socket name in RocketMQ's format, ``ip:port``; IPv6 in brackets."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return str(name or "unknown")


def _ignore(connection: "Connection") -> None:
    pass


class _FutureRequest:
    """A request whose outcome is a future's."""

    __slots__ = ("encode", "future")

    def __init__(
        self, encode: Callable[[int], bytes], future: asyncio.Future[RemotingCommand]
    ) -> None:
        self.encode = encode
        self.future = future

    def done(self, outcome: RemotingCommand | RemotingError) -> None:
        if self.future.done():
            return
        if isinstance(outcome, RemotingCommand):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)


class Connection(asyncio.Protocol):
    """One end of a connection.

    ``on_frames`` receives the complete frames of a chunk (without their length words) before they
    are decoded. It handles some of them, responding with ``send_encoded``, and returns the others
    in order. When ``is_paused`` becomes true it should stop and return the rest, which it receives
    again when the pause ends. A view keeps its whole chunk in memory: copy the parts to keep. If
    the hook raises, the error is logged and the connection is aborted.

    ``on_bytes`` receives the bytes of a chunk, from the beginning of a frame on, before they are
    split. It returns how many it has handled, which are whole frames; the others go on from there.
    It is not called while the connection is paused or draining.

    The end that opened the connection (``is_client``) continues to read while its own bytes are
    unsent. Only the other end stops reading: if both did, they could wait for each other for ever.
    """

    __slots__ = (
        "_backlog",
        "_closing",
        "_corked",
        "_decoder",
        "_drained",
        "_flush_scheduled",
        "_handle",
        "_handled_bytes",
        "_is_client",
        "_loop",
        "_lost",
        "_on_bytes",
        "_on_close",
        "_on_finished",
        "_on_frames",
        "_on_open",
        "_options",
        "_out",
        "_out_bytes",
        "_paused",
        "_pending",
        "_reading_paused",
        "_saw_bytes",
        "_saw_frame",
        "_stopped",
        "_tasks",
        "_timeouts",
        "_transport",
        "_warn",
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
        on_open: Callable[["Connection"], None] = _ignore,
        on_close: Callable[["Connection"], None] = _ignore,
        on_finished: Callable[["Connection"], None] = _ignore,
        on_frames: FrameHook | None = None,
        on_bytes: BytesHook | None = None,
        on_go_away: Callable[["Connection", PendingRequest], None] | None = None,
        is_client: bool = False,
        warn: Callable[..., None] = _logger.warning,
    ) -> None:
        """``on_close``: the connection is lost; ``on_finished``: its last handler has ended, too.

        ``on_go_away`` receives our requests that the peer refused because it shuts down.
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
        self._on_bytes = on_bytes
        self._is_client = is_client
        self._warn = warn
        self._loop = asyncio.get_running_loop()
        # Done when the connection is lost and its last handler has ended.
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(options.max_frame_bytes)
        self._lost = False
        self._closing = False
        self._stopped = False
        # While this end shuts down; done when no handler runs.
        self._drained: asyncio.Future[None] | None = None
        # Receiving.
        self._paused = False
        self._reading_paused = False
        self._backlog: list[memoryview] = []
        # The running coroutine handlers, and the size of each one's request.
        self._tasks: dict[asyncio.Task[Answer], int] = {}
        self._handled_bytes = 0
        # Sending. Corked: data_received flushes at its end.
        self._corked = False
        self._flush_scheduled = False
        self._writing_paused = False
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        # Our own requests.
        self._pending = PendingRequests(
            self._loop,
            self._close_silent_peer,
            None if on_go_away is None else partial(on_go_away, self),
        )
        # Since the last sweep: were bytes sent or received, was a frame completed?
        self._saw_bytes = True
        self._saw_frame = True
        self._timeouts = PeerTimeouts(options)

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost or closing."""
        return self._closing

    @property
    def is_paused(self) -> bool:
        """Whether handling is paused; see the module's docstring."""
        return self._paused

    @property
    def unsent_bytes(self) -> int:
        """Bytes to send that the kernel has not accepted yet."""
        queued = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + queued

    @property
    def pending(self) -> PendingRequests:
        """Our requests without a response, for ``on_bytes``."""
        return self._pending

    @property
    def requests_in_flight(self) -> int:
        return len(self._pending.waiting)

    # Our own requests

    async def request(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Send a request and wait for its response. ``command.opaque`` is set here.

        While the peer is slow to read, the request is queued; its timeout includes that time.
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
        """As ``request``, but returns a future; raises if the request cannot be sent at all."""

        def encode(opaque: int) -> bytes:
            command.opaque = opaque
            command.flag &= ~(_RESPONSE | _ONEWAY)
            return self._encode(command)

        return self.request_encoded(encode, command.code, timeout_ms)

    def request_encoded(
        self, encode: Callable[[int], bytes], code: int, timeout_ms: int
    ) -> asyncio.Future[RemotingCommand]:
        """As ``request_soon``, with a frame that the caller encodes; see ``submit``."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self.submit(_FutureRequest(encode, future), code, timeout_ms)
        return future

    def submit(
        self, request: Request, code: int, timeout_ms: int, *, may_resend: bool = True
    ) -> None:
        """Send a request that encodes itself; its ``done`` is not called if this method raises."""
        if self._closing:
            raise ConnectionLostError(f"the connection to {self.remote} is closed", self.remote)
        pending = self._pending
        if len(pending.waiting) >= self._options.max_requests_in_flight:
            raise OverloadedError(
                f"{len(pending.waiting)} requests to {self.remote} already wait for a response",
                self.remote,
            )
        opaque, frame = pending.add(request, code, timeout_ms, may_resend)
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
                f"{self.unsent_bytes} bytes to {self.remote} are already unsent", self.remote
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

    def _close_silent_peer(self) -> None:
        """The link is broken or the peer is stuck: close, so that all requests fail now.

        They can be retried at other peers, and the next request opens a new connection.
        """
        if self._is_client and not self._closing:
            self._disconnect("nothing received for a whole request timeout")

    # Sending

    def respond(self, response: RemotingCommand) -> None:
        """Send the response of a handler that returned None; dropped if the connection is lost."""
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
                raise ProtocolError(f"a response of {len(head) + size} bytes is over the limit")
        except Exception as error:
            _logger.exception("the response with code %d cannot be encoded", response.code)
            self.send_encoded(encode_frame(error_response(response, error)))
            return
        self._out.append(head)
        self._out_bytes += len(head)
        self.send_encoded(body)

    def send_encoded(self, data: bytes | memoryview) -> None:
        """Queue encoded frames; they are sent at the end of this tick of the loop.

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
        """As ``send_encoded``, for a caller that runs at the end of a tick: sends at once."""
        transport = self._transport
        if self._out or self._corked or self._writing_paused or transport is None or self._lost:
            self._out.append(data)
            self._out_bytes += len(data)
            if not self._corked:
                self._flush()
        else:  # nothing is queued, and writing is allowed
            self._saw_bytes = True
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
        self._saw_bytes = True
        if len(out) == 1:
            transport.write(out[0])
        else:
            transport.writelines(out)
        if self._writing_paused and (
            (unsent := transport.get_write_buffer_size()) > self._options.write_buffer_max_bytes
        ):
            self._disconnect(f"the peer does not read, {unsent} bytes are unsent")

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._timeouts.begin_stall()
        self._update_pause()

    def resume_writing(self) -> None:
        self._writing_paused = False
        deferred = self._pending.deferred
        while deferred and not self._writing_paused:
            _, frame = deferred.popitem(last=False)
            self.send_encoded(frame)
        self._update_pause()

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream protocol always receives a two-way transport. asyncio declares a wider type, and
        # uvloop's transports are not instances of asyncio.Transport.
        self._transport = transport = cast("asyncio.Transport", transport)
        self.remote = address_text(transport.get_extra_info("peername"))
        self.local = address_text(transport.get_extra_info("sockname"))
        self._pending.remote = self.remote
        transport.set_write_buffer_limits(high=self._options.write_buffer_high_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # Without this, a broken link is noticed only after 15 minutes of retransmission.
            set_acknowledge_timeout(sock, int(self._options.acknowledge_seconds * 1000))
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self._saw_bytes = True
        if self._is_client:
            self._pending.received_seconds = self._loop.time()
        decoder = self._decoder
        if self._on_bytes is not None and not self._paused and not self._backlog:
            data = self._take_bytes(self._on_bytes, data)
            if not data:
                return
        frames = decoder.feed(data)
        if frames:
            self._saw_frame = True
            if self._paused:
                # A paused transport may still deliver bytes that it has read already.
                self._backlog += frames
            else:
                self._process(frames)
        if decoder.failure is not None and not self._closing:
            is_first = decoder.buffered_bytes == 0 and not frames
            if is_first and data[0] == HANDSHAKE_BYTE:
                self._disconnect("it started a TLS handshake, but TLS is disabled on this port")
            elif is_first and data.startswith(_HTTP_METHODS):
                self._reject(ProtocolError("HTTP request, but this port does not support HTTP"))
            else:
                self._reject(decoder.failure)

    def _take_bytes(self, on_bytes: BytesHook, data: bytes) -> bytes:
        """Offer the chunk to the hook; returns the bytes that it has not handled."""
        data = self._decoder.join(data)
        try:
            taken = on_bytes(self, data) if data else 0
        except Exception:
            _logger.exception("handling bytes from %s failed", self.remote)
            self.abort()
            return b""
        if not taken:
            return data
        self._saw_frame = True
        return data[taken:]

    def _process(self, frames: list[memoryview]) -> None:
        self._corked = True
        try:
            if self._on_frames is not None and self._drained is None:
                frames = self._on_frames(self, frames)
            if frames:
                self._handle_frames(frames)
        except ProtocolError as error:
            self._reject(error)
        except Exception:
            _logger.exception("handling frames from %s failed", self.remote)
            self.abort()
        finally:
            self._corked = False
        if self._out:
            self._flush()

    def _handle_frames(self, frames: list[memoryview]) -> None:
        handle = self._handle
        for position, frame in enumerate(frames):
            if self._paused:
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
        task.add_done_callback(self._handler_done)
        if self._is_at_handler_limit():
            self._update_pause()

    def _is_at_handler_limit(self) -> bool:
        return (
            len(self._tasks) >= self._options.max_handlers_in_flight
            or self._handled_bytes >= self._options.max_handled_bytes
        )

    def _handler_done(self, task: asyncio.Task[Answer]) -> None:
        self._handled_bytes -= self._tasks.pop(task)
        if not task.cancelled() and (answer := task.result()) is not None:
            self.respond(answer)
        if self._drained is not None and not self._tasks and not self._drained.done():
            self._drained.set_result(None)
        if self._lost:
            if not self._tasks:
                self._finish()
        elif self._paused:
            self._update_pause()

    def _update_pause(self) -> None:
        self._paused = (
            self._closing
            or (self._writing_paused and not self._is_client)
            or self._is_at_handler_limit()
        )
        transport = self._transport
        if transport is None or self._lost or self._closing:
            return
        if not self._paused and self._backlog and not self._corked:
            frames, self._backlog = self._backlog, []
            self._process(frames)
        if self._paused is not self._reading_paused and not self._closing:
            self._reading_paused = self._paused
            if self._paused:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def eof_received(self) -> bool | None:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = self._paused = True
        self._out.clear()
        self._backlog.clear()
        reason = f": {error}" if error is not None else ""
        self._pending.fail(f"the connection to {self.remote} was lost{reason}")
        for task in self._tasks:
            task.cancel()
        self._on_close(self)
        if not self._tasks:
            self._finish()

    def mark_lost(self) -> None:
        """Handle the loss of a transport that does not call ``connection_lost``."""
        if self._transport is not None:
            self.connection_lost(None)

    def _finish(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
            self._on_finished(self)

    # Ending

    def close(self) -> None:
        """Send the queued bytes, then close."""
        if self._closing:
            return
        if self._out:
            self._flush()
        self._closing = self._paused = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now; drop the queued bytes."""
        self._closing = self._paused = True
        self._out.clear()
        if self._transport is not None and not self._lost:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is lost and its last handler has ended."""
        await asyncio.shield(self.closed)

    def drain(self) -> asyncio.Future[None]:
        """Answer new requests with GO_AWAY. The future is done when no handler runs."""
        if self._drained is not None:
            return self._drained
        self._on_bytes = None
        self._drained = self._loop.create_future()
        if not self._tasks:
            self._drained.set_result(None)
        handle = self._handle

        def reply_go_away(
            request: RemotingCommand, connection: "Connection"
        ) -> Answer | Coroutine[Any, Any, Answer]:
            if request.version <= _LAST_VERSION_WITHOUT_GO_AWAY or request.flag & _ONEWAY:
                return None if self._stopped else handle(request, connection)
            return request.reply(ResponseCode.GO_AWAY, "please go away")

        self._handle = reply_go_away
        return self._drained

    def stop_handling(self) -> None:
        """After ``drain``: also drop the requests of clients that do not support GO_AWAY.

        They are still received: with unread bytes, closing would reset the connection, and the
        peer could lose its last responses.
        """
        self._stopped = True

    def sweep(self, now_ms: int) -> None:
        """Close this connection if it is idle, stalled, or stuck inside a frame."""
        if self._lost:
            return
        unsent = self.unsent_bytes
        state = self._timeouts.check(
            now_ms,
            unsent_bytes=unsent,
            is_over_high_mark=self._writing_paused,
            is_inside_frame=(
                self._decoder.buffered_bytes > 0 and not self._saw_frame and not self._paused
            ),
            had_traffic=self._saw_bytes,
        )
        self._saw_bytes = self._saw_frame = False
        if state is PeerState.STALLED:
            self._disconnect(f"the peer does not read, {unsent} bytes are unsent")
        elif state is PeerState.PARTIAL_FRAME:
            self._disconnect("it did not complete a frame in time")
        elif state is PeerState.IDLE:
            _logger.info("%s is idle: connection closed", self.remote)
            self.abort()

    def _reject(self, error: ProtocolError) -> None:
        """Close after malformed bytes; the responses to earlier requests are still sent."""
        self._warn("%s sent malformed data, closing the connection: %s", self.remote, error)
        self.close()

    def _disconnect(self, reason: str) -> None:
        self._warn("%s disconnected: %s", self.remote, reason)
        self.abort()
