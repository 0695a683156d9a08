"""Connect two asyncio protocols in memory, without sockets.

Bytes written at one end are received at the other in a later iteration of the event loop, in order,
with asyncio's rules for flow control and closing. ``chunk_bytes`` splits received data into chunks,
down to single bytes.
"""

import asyncio
from collections.abc import Iterable
from typing import TypeAlias, cast

from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame
from goddard.transport.connection import BytesHook, Connection, FrameHook
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions

_Bytes: TypeAlias = bytes | bytearray | memoryview


class MemoryTransport(asyncio.Transport):
    """One end of a pair; create both with ``join``."""

    def __init__(
        self, protocol: asyncio.Protocol, sockname: tuple[str, int], peername: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": sockname, "peername": peername})
        self._loop = asyncio.get_running_loop()
        self._protocol: asyncio.BaseProtocol = protocol
        self._stream: asyncio.Protocol = protocol
        self._peer: MemoryTransport | None = None
        self._chunk_bytes: int | None = None
        self._unsent = bytearray()
        self._high_bytes = 64 * 1024
        self._low_bytes = 16 * 1024
        self._reading = True
        self._writing_paused = False
        self._delivery_scheduled = False
        self._closing = False
        self._lost = False

    def write(self, data: _Bytes) -> None:
        if self._closing:
            return
        self._unsent += data
        if len(self._unsent) > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._stream.pause_writing()
        self.deliver_soon()

    def writelines(self, list_of_data: Iterable[_Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        self._high_bytes = high
        self._low_bytes = high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._peer is not None:
            self._peer.deliver_soon()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self.deliver_soon()

    def abort(self) -> None:
        self._closing = True
        self._unsent.clear()
        self._loop.call_soon(self.lose, None)
        if self._peer is not None:
            self._loop.call_soon(self._peer.lose, ConnectionResetError("reset by the peer"))

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise NotImplementedError("the protocol of a memory transport cannot be replaced")

    # Called by the other end.

    def attach(self, peer: "MemoryTransport", chunk_bytes: int | None) -> None:
        self._peer = peer
        self._chunk_bytes = chunk_bytes

    @property
    def takes_more(self) -> bool:
        return self._reading and not self._lost

    def receive(self, chunk: bytes) -> None:
        if not self._closing:
            self._stream.data_received(chunk)

    def receive_eof(self) -> None:
        if not self._closing and not self._stream.eof_received():
            self.close()

    def deliver_soon(self) -> None:
        if not self._delivery_scheduled and not self._lost:
            self._delivery_scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        peer = self._peer
        if self._lost or peer is None:
            return
        while self._unsent and peer.takes_more:
            size = min(self._chunk_bytes or len(self._unsent), len(self._unsent))
            chunk = bytes(self._unsent[:size])
            del self._unsent[:size]
            peer.receive(chunk)
        if self._writing_paused and len(self._unsent) <= self._low_bytes:
            self._writing_paused = False
            self._stream.resume_writing()
        if self._closing and not self._unsent:
            self.lose(None)
            peer.receive_eof()

    def lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._unsent.clear()
            self._stream.connection_lost(error)


def join(
    left: asyncio.Protocol,
    right: asyncio.Protocol,
    *,
    chunk_bytes: int | None = None,
) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols: ``left`` as the client, ``right`` as the server."""
    client_name, server_name = ("127.0.0.1", 50_001), ("127.0.0.1", 9_876)
    ends = (
        MemoryTransport(left, client_name, server_name),
        MemoryTransport(right, server_name, client_name),
    )
    ends[0].attach(ends[1], chunk_bytes)
    ends[1].attach(ends[0], chunk_bytes)
    right.connection_made(ends[1])
    left.connection_made(ends[0])
    return ends


class RawPeer(asyncio.Protocol):
    """A peer that records the commands it receives and can write arbitrary bytes."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.chunks = 0
        self.lost = asyncio.Event()
        self._transport: MemoryTransport | None = None
        self._pause_after_chunk = False
        self._decoder = FrameDecoder()

    @property
    def transport(self) -> MemoryTransport:
        if self._transport is None:
            raise RuntimeError("the peer is not connected")
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("MemoryTransport", transport)

    def data_received(self, data: bytes) -> None:
        self.chunks += 1
        if self._pause_after_chunk:
            self._pause_after_chunk = False
            self.transport.pause_reading()
        for frame in self._decoder.feed(data):
            self.received.put_nowait(decode_frame(frame))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def read_one_chunk(self) -> None:
        """Read one chunk and pause again, like a very slow peer."""
        self._pause_after_chunk = True
        self.transport.resume_reading()

    async def receive(self, count: int, timeout_seconds: float = 60.0) -> list[RemotingCommand]:
        async with asyncio.timeout(timeout_seconds):
            return [await self.received.get() for _ in range(count)]


def join_raw(
    handlers: Handlers,
    options: ConnectionOptions | None = None,
    *,
    on_frames: FrameHook | None = None,
    on_bytes: BytesHook | None = None,
    chunk_bytes: int | None = None,
) -> tuple[RawPeer, Connection]:
    """A raw peer and the server's connection to it."""
    peer = RawPeer()
    server = Connection(
        options or ConnectionOptions(), handlers, on_frames=on_frames, on_bytes=on_bytes
    )
    join(peer, server, chunk_bytes=chunk_bytes)
    return peer, server


def join_connections(
    handlers: Handlers,
    client_handlers: Handlers | None = None,
    *,
    options: ConnectionOptions | None = None,
    client_options: ConnectionOptions | None = None,
    chunk_bytes: int | None = None,
) -> tuple[Connection, Connection]:
    """A client's connection and the server's connection to it."""
    client = Connection(
        client_options or ConnectionOptions(), client_handlers or Handlers(), is_client=True
    )
    server = Connection(options or ConnectionOptions(), handlers)
    join(client, server, chunk_bytes=chunk_bytes)
    return client, server
