"""Limits of a connection: back-pressure, sweeps and draining, over an in-memory transport."""

import asyncio
import gc
from types import NoneType

import pytest

from goddard.errors import ConnectionLostError, OverloadedError, RequestTimeoutError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.transport.connection import Connection
from goddard.transport.handlers import Answer, Handlers
from goddard.transport.options import ConnectionOptions
from tests.support.memory import RawPeer, join, join_connections, join_raw
from tests.support.rules import ANY_RULE

BIG = 1
GATED = 2
KIB = 1024


class Gate(asyncio.Event):
    """A handler that waits for the event, and counts the requests that it got."""

    requests = 0

    async def __call__(self, request: RemotingCommand, connection: Connection) -> Answer:
        self.requests += 1
        await self.wait()
        return request.reply()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def handlers(gate: Gate) -> Handlers:
    created = Handlers()
    created.register(BIG, lambda request, _: request.reply(body=bytes(10 * KIB)), ANY_RULE)
    created.register(GATED, gate, ANY_RULE)
    return created


async def _ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _is_paused(connection: Connection) -> bool:
    return connection.is_paused


def _requests(code: int, count: int, version: int = 401) -> bytes:
    return b"".join(
        encode_frame(RemotingCommand(code, opaque=n, version=version)) for n in range(count)
    )


async def test_handling_pauses_while_the_peer_does_not_read(handlers: Handlers) -> None:
    options = ConnectionOptions(write_buffer_high_bytes=64 * KIB)
    peer, server = join_raw(handlers, options)
    peer.transport.pause_reading()
    for _ in range(5):
        peer.transport.write(_requests(BIG, 100))
        await _ticks()
    assert _is_paused(server)
    # 500 responses would be 5 MB: at most the high mark and one response are unsent.
    assert server.unsent_bytes < 64 * KIB + 2 * 11 * KIB
    # Nothing more is read; the rest waits at the peer's end.
    assert peer.transport.get_write_buffer_size() > 0
    # When the peer reads again, everything is answered, in order.
    peer.transport.resume_reading()
    answers = await peer.receive(500)
    assert [answer.opaque for answer in answers] == list(range(100)) * 5
    await _ticks()
    assert not _is_paused(server)
    assert server.unsent_bytes == 0


async def test_a_frame_hook_receives_paused_frames_again(handlers: Handlers) -> None:
    given: list[int] = []

    def until_held(connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        given.append(len(frames))
        while frames and not connection.is_paused:
            connection.send_encoded(encode_frame(RemotingCommand(0, flag=1, body=bytes(40 * KIB))))
            frames = frames[1:]
        return frames

    options = ConnectionOptions(write_buffer_high_bytes=64 * KIB)
    peer, _ = join_raw(handlers, options, on_frames=until_held)
    peer.transport.pause_reading()
    peer.transport.write(_requests(BIG, 5))
    await _ticks()
    assert given == [5]
    peer.transport.resume_reading()
    await peer.receive(5)
    assert given == [5, 3, 1]


async def test_a_peer_with_too_many_unsent_bytes_is_disconnected(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    options = ConnectionOptions(write_buffer_high_bytes=16 * KIB, write_buffer_max_bytes=100 * KIB)
    peer, server = join_raw(handlers, options)
    peer.transport.pause_reading()
    sent = 0
    while not server.is_closed and sent < 1000:
        server.respond(RemotingCommand(0, flag=1, body=bytes(10 * KIB)))
        sent += 1
        await _ticks(1)
    assert sent < 15
    async with asyncio.timeout(60):
        await server.wait_closed()
    assert f"{server.remote} disconnected" in caplog.text
    assert "does not read" in caplog.text


async def test_handlers_in_flight_are_bounded(handlers: Handlers, gate: Gate) -> None:
    options = ConnectionOptions(max_handlers_in_flight=3)
    peer, server = join_raw(handlers, options)
    peer.transport.write(_requests(GATED, 10))
    await _ticks()
    assert _is_paused(server)
    assert gate.requests == 3
    gate.set()
    answers = await peer.receive(10)
    assert sorted(answer.opaque for answer in answers) == list(range(10))
    await _ticks()
    assert not _is_paused(server)


async def test_the_size_of_requests_in_flight_is_bounded(handlers: Handlers, gate: Gate) -> None:
    peer, server = join_raw(handlers, ConnectionOptions(max_handled_bytes=100 * KIB))
    frame = encode_frame(RemotingCommand(GATED, body=bytes(30 * KIB)))
    peer.transport.write(frame * 10)
    await _ticks()
    assert _is_paused(server)
    assert gate.requests == 4
    gate.set()
    assert len(await peer.receive(10)) == 10
    await _ticks()
    assert not _is_paused(server)


async def test_requests_to_a_slow_peer_wait_within_their_timeout(handlers: Handlers) -> None:
    options = ConnectionOptions(write_buffer_high_bytes=16 * KIB)
    client, server = Connection(options, Handlers(), is_client=True), RawPeer()
    near, far = join(client, server)
    far.pause_reading()
    first = asyncio.ensure_future(client.request(RemotingCommand(9, body=bytes(20 * KIB)), 5000))
    await _ticks()
    waiting = asyncio.ensure_future(client.request(RemotingCommand(10), 5000))
    with pytest.raises(RequestTimeoutError):
        await client.request(RemotingCommand(11), 1)
    with pytest.raises(OverloadedError):
        client.oneway(RemotingCommand(12))
    unsent = near.get_write_buffer_size()
    assert 20 * KIB < unsent < 21 * KIB
    far.resume_reading()
    received = await server.receive(2)
    # The request that timed out was never sent.
    assert [request.code for request in received] == [9, 10]
    for request in received:
        far.write(encode_frame(request.reply()))
    await asyncio.gather(first, waiting)


@pytest.mark.parametrize("outcome", ["timed out", "guessed response"])
async def test_a_request_that_ended_before_it_was_sent_is_freed(
    handlers: Handlers, outcome: str
) -> None:
    dropped: list[bytes] = []

    class Frame(bytes):
        def __del__(self) -> None:
            dropped.append(bytes(self))

    def encode(opaque: int) -> bytes:
        return Frame(encode_frame(RemotingCommand(10, opaque=opaque)))

    options = ConnectionOptions(write_buffer_high_bytes=16 * KIB)
    client, server = Connection(options, Handlers(), is_client=True), RawPeer()
    _, far = join(client, server)
    far.pause_reading()
    client.oneway(RemotingCommand(9, body=bytes(20 * KIB)))
    await _ticks()
    asked = client.request_encoded(encode, 10, 1 if outcome == "timed out" else 60_000)
    assert not dropped
    if outcome == "guessed response":
        # The peer guesses the opaque; the first one was that of the one-outcome request.
        far.write(encode_frame(RemotingCommand(0, opaque=2, flag=1)))
    await asyncio.wait((asked,), timeout=60)
    assert isinstance(
        asked.exception(), RequestTimeoutError if outcome == "timed out" else NoneType
    )
    gc.collect()
    assert len(dropped) == 1
    # The other requests are sent later.
    last = client.request_encoded(encode, 10, 60_000)
    far.resume_reading()
    assert [command.code for command in await server.receive(2)] == [9, 10]
    client.abort()
    await asyncio.wait((last,), timeout=60)
    assert isinstance(last.exception(), ConnectionLostError)


async def test_the_client_end_reads_while_its_requests_wait(handlers: Handlers) -> None:
    # Both ends are over the high mark: the server stops reading, so the client must not.
    small = ConnectionOptions(write_buffer_high_bytes=16 * KIB)
    handlers.register(9, lambda request, _: request.reply(body=request.body), ANY_RULE)
    client, _ = join_connections(handlers, options=small, client_options=small)
    body = bytes(15 * KIB)
    async with asyncio.timeout(60):
        answers = await asyncio.gather(
            *(client.request(RemotingCommand(9, body=body), 5000) for _ in range(50))
        )
    assert len(answers) == 50


def _sweep(connection: Connection, start_ms: int, end_ms: int, step_ms: int = 1000) -> int:
    """Sweep until the connection is closed; returns that time, or the end."""
    for now_ms in range(start_ms, end_ms, step_ms):
        connection.sweep(now_ms)
        if connection.is_closed:
            return now_ms
    return end_ms


async def test_idle_connections_are_closed(handlers: Handlers) -> None:
    peer, server = join_raw(handlers, ConnectionOptions(idle_seconds=120))
    assert _sweep(server, 1000, 100_000) == 100_000
    # Reads and writes both keep it alive.
    peer.transport.write(_requests(BIG, 1))
    await _ticks()
    assert _sweep(server, 100_000, 219_000) == 219_000
    server.oneway(RemotingCommand(40))
    await _ticks()
    assert _sweep(server, 219_000, 400_000) == 219_000 + 120_000
    async with asyncio.timeout(60):
        await peer.lost.wait()


async def test_a_peer_that_never_completes_a_frame_is_disconnected(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    peer, server = join_raw(handlers, ConnectionOptions(partial_frame_seconds=60))
    frame = encode_frame(RemotingCommand(BIG, body=bytes(1000)))
    peer.transport.write(frame)
    closed_ms = 0
    for now_ms in range(1000, 300_000, 1000):
        # A byte from time to time: the connection is not idle.
        peer.transport.write(frame[now_ms // 1000 : now_ms // 1000 + 1])
        await _ticks(2)
        server.sweep(now_ms)
        if server.is_closed:
            closed_ms = now_ms
            break
    assert 60_000 <= closed_ms <= 63_000
    assert "did not complete a frame in time" in caplog.text


def _stalled(handlers: Handlers) -> tuple[RawPeer, Connection]:
    options = ConnectionOptions(write_buffer_high_bytes=16 * KIB, write_stall_seconds=30)
    peer, server = join_raw(handlers, options, chunk_bytes=10 * KIB)
    peer.transport.pause_reading()
    for _ in range(10):
        server.respond(RemotingCommand(0, flag=1, body=bytes(10 * KIB)))
    return peer, server


async def test_a_stalled_reader_is_disconnected(handlers: Handlers) -> None:
    _, server = _stalled(handlers)
    await _ticks()
    assert _sweep(server, 1000, 200_000) == 31_000


async def test_a_slow_reader_is_not_disconnected(handlers: Handlers) -> None:
    peer, server = _stalled(handlers)
    await _ticks()
    for take in range(5):
        start_ms = 1000 + take * 25_000
        assert _sweep(server, start_ms, start_ms + 25_000) == start_ms + 25_000
        before = server.unsent_bytes
        peer.read_one_chunk()
        await _ticks()
        assert 0 < server.unsent_bytes < before


async def test_drain_finishes_running_handlers(handlers: Handlers, gate: Gate) -> None:
    peer, server = join_raw(handlers)
    peer.transport.write(_requests(GATED, 3))
    await _ticks()
    drained = server.drain()
    # New requests: clients that support GO_AWAY get it, older ones are still served.
    peer.transport.write(_requests(BIG, 1, version=479) + _requests(BIG, 1, version=475))
    away, served = await peer.receive(2)
    assert (away.code, away.remark) == (ResponseCode.GO_AWAY, "please go away")
    assert served.code == ResponseCode.SUCCESS
    assert not drained.done()
    gate.set()
    assert [answer.code for answer in await peer.receive(3)] == [0, 0, 0]
    assert drained.done()
    server.stop_handling()
    peer.transport.write(_requests(BIG, 1, version=475))
    await _ticks()
    assert peer.received.empty()
    server.close()
    async with asyncio.timeout(60):
        await server.wait_closed()
        await peer.lost.wait()


async def test_a_connection_is_drained_when_it_is_lost(handlers: Handlers, gate: Gate) -> None:
    peer, server = join_raw(handlers)
    peer.transport.write(_requests(GATED, 1))
    await _ticks()
    drained = server.drain()
    peer.transport.abort()
    async with asyncio.timeout(60):
        await drained


async def test_drain_without_handlers_is_done_at_once(handlers: Handlers) -> None:
    peer, server = join_raw(handlers)
    server.respond(RemotingCommand(0, flag=1))
    assert server.drain().done()
    server.close()
    # Queued bytes are still sent.
    assert len(await peer.receive(1)) == 1


async def test_frame_hooks_take_nothing_while_draining(handlers: Handlers) -> None:
    taken: list[memoryview] = []

    def take(connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        taken.extend(frames)
        return []

    peer, server = join_raw(handlers, on_frames=take)
    peer.transport.write(_requests(BIG, 1))
    await _ticks()
    assert len(taken) == 1
    server.drain()
    peer.transport.write(_requests(BIG, 1, version=479))
    (away,) = await peer.receive(1)
    assert away.code == ResponseCode.GO_AWAY
    assert len(taken) == 1


def test_sweeps_are_frequent_enough_for_the_shortest_limit() -> None:
    assert ConnectionOptions().sweep_seconds == 30 / 8
    assert ConnectionOptions(idle_seconds=0.4).sweep_seconds == pytest.approx(0.05)
