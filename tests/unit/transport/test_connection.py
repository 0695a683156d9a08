"""Requests and responses over an in-memory transport."""

import asyncio
import logging
import struct

import pytest

from goddard.errors import (
    ConnectionLostError,
    OverloadedError,
    ProtocolError,
    RequestTimeoutError,
)
from goddard.protocol.codes import CommandFlag, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, decode_frame, encode_frame
from goddard.transport.connection import Connection
from goddard.transport.handlers import Answer, Handlers
from goddard.transport.options import ConnectionOptions
from tests.support.memory import join_connections, join_raw
from tests.support.rules import ANY_RULE

ECHO = 1
HELD = 2
SILENT = 3


class Held:
    """A coroutine handler whose requests stay open until the test releases them."""

    def __init__(self) -> None:
        self.gates: dict[bytes, asyncio.Event] = {}
        self.cancelled: list[bytes] = []

    async def __call__(self, request: RemotingCommand, connection: Connection) -> Answer:
        body = bytes(request.body)
        gate = self.gates.setdefault(body, asyncio.Event())
        try:
            await gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(body)
            raise
        return request.reply(body=body)

    def release(self, body: bytes) -> None:
        self.gates[body].set()

    async def reached(self, count: int) -> None:
        for _ in range(1000):
            if len(self.gates) >= count:
                return
            await asyncio.sleep(0)
        pytest.fail(f"only {len(self.gates)} of {count} requests arrived")


def _echo(request: RemotingCommand, connection: Connection) -> Answer:
    return request.reply(body=request.body, ext_fields=request.ext_fields)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def handlers(held: Held) -> Handlers:
    created = Handlers()
    created.register(ECHO, _echo, ANY_RULE)
    created.register(HELD, held, ANY_RULE)
    created.register(SILENT, lambda request, _: None, ANY_RULE)
    return created


async def _ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize("kind", SerializeType)
async def test_a_request_is_answered_in_its_own_encoding(
    handlers: Handlers, chunk_bytes: int | None, kind: SerializeType
) -> None:
    client, server = join_connections(handlers, chunk_bytes=chunk_bytes)
    command = RemotingCommand(ECHO, {"topic": "T"}, b"hello", serialize_type=kind)
    response = await client.request(command, 1000)
    assert response.code == ResponseCode.SUCCESS
    assert (response.body, response.fields, response.serialize_type) == (
        b"hello",
        {"topic": "T"},
        kind,
    )
    assert (client.remote, server.remote) == ("127.0.0.1:9876", "127.0.0.1:50001")
    assert (client.local, server.local) == (server.remote, client.remote)


async def test_responses_may_arrive_in_any_order(handlers: Handlers, held: Held) -> None:
    client, _ = join_connections(handlers)
    bodies = [b"a", b"b", b"c"]
    requests = [
        asyncio.ensure_future(client.request(RemotingCommand(HELD, body=body), 5000))
        for body in bodies
    ]
    await held.reached(3)
    # A quick request overtakes those being handled.
    assert (await client.request(RemotingCommand(ECHO, body=b"quick"), 1000)).body == b"quick"
    for body in reversed(bodies):
        held.release(body)
    assert [response.body for response in await asyncio.gather(*requests)] == bodies
    assert client.requests_in_flight == 0


async def test_both_ends_may_send_requests(handlers: Handlers) -> None:
    client, server = join_connections(handlers, handlers)
    # Both ends number from one: the response flag distinguishes requests and responses.
    answers = await asyncio.gather(
        client.request(RemotingCommand(ECHO, body=b"up"), 1000),
        server.request(RemotingCommand(ECHO, body=b"down"), 1000),
    )
    assert [answer.body for answer in answers] == [b"up", b"down"]


async def test_a_handler_may_send_a_request_to_its_peer(handlers: Handlers) -> None:
    async def ask_back(request: RemotingCommand, connection: Connection) -> Answer:
        asked = await connection.request(RemotingCommand(ECHO, body=b"back"), 1000)
        return request.reply(body=asked.body)

    handlers.register(9, ask_back, ANY_RULE)
    client, _ = join_connections(handlers, handlers)
    assert (await client.request(RemotingCommand(9), 1000)).body == b"back"


async def test_oneway_requests_are_handled_but_not_answered(handlers: Handlers, held: Held) -> None:
    got: list[RemotingCommand] = []
    handlers.register(9, lambda request, _: got.append(request), ANY_RULE)
    peer, _ = join_raw(handlers)
    for code in (9, ECHO, HELD, 4711):
        command = RemotingCommand(code, opaque=code, flag=int(CommandFlag.ONEWAY))
        peer.transport.write(encode_frame(command))
    peer.transport.write(encode_frame(RemotingCommand(ECHO, opaque=99)))
    (answer,) = await peer.receive(1)
    assert answer.opaque == 99
    assert [command.opaque for command in got] == [9]
    held.release(b"")
    await _ticks()
    assert peer.received.empty()


async def test_oneway_sets_the_flag(handlers: Handlers) -> None:
    peer, server = join_raw(handlers)
    server.oneway(RemotingCommand(40, body=b"x"))
    (command,) = await peer.receive(1)
    assert command.is_oneway
    assert not command.is_response


async def test_a_handler_may_answer_later(handlers: Handlers) -> None:
    waiting: list[RemotingCommand] = []

    def park(request: RemotingCommand, connection: Connection) -> None:
        waiting.append(request)

    handlers.register(9, park, ANY_RULE)
    client, server = join_connections(handlers)
    request = asyncio.ensure_future(client.request(RemotingCommand(9), 1000))
    await _ticks()
    server.respond(waiting[0].reply(body=b"at last"))
    assert (await request).body == b"at last"


async def test_request_timeout(handlers: Handlers, caplog: pytest.LogCaptureFixture) -> None:
    peer, server = join_raw(handlers)
    with pytest.raises(RequestTimeoutError, match=r"request code 39 within 10 ms") as caught:
        await server.request(RemotingCommand(39), 10)
    assert caught.value.address == server.remote
    assert server.requests_in_flight == 0
    # A late response, and one to an unknown request, are dropped; the connection stays open.
    (request,) = await peer.receive(1)
    with caplog.at_level(logging.DEBUG, "goddard.transport"):
        peer.transport.write(encode_frame(request.reply()))
        peer.transport.write(encode_frame(RemotingCommand(0, opaque=12345, flag=1)))
        peer.transport.write(encode_frame(RemotingCommand(ECHO, opaque=7)))
        (answer,) = await peer.receive(1)
    assert answer.opaque == 7
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 2


async def test_a_cancelled_request_is_forgotten(handlers: Handlers) -> None:
    client, _ = join_connections(handlers)
    request = asyncio.ensure_future(client.request(RemotingCommand(SILENT), 5000))
    await _ticks()
    assert client.requests_in_flight == 1
    request.cancel()
    await asyncio.wait((request,))
    assert client.requests_in_flight == 0


async def test_losing_the_connection_fails_every_request_at_once(
    handlers: Handlers, held: Held
) -> None:
    client, server = join_connections(handlers)
    requests = [
        asyncio.ensure_future(client.request(RemotingCommand(HELD, body=bytes([n])), 60_000))
        for n in range(10)
    ]
    await held.reached(10)
    server.abort()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*requests, return_exceptions=True)
        await server.wait_closed()
        await client.wait_closed()
    assert all(isinstance(result, ConnectionLostError) for result in results)
    # The handlers of the lost connection were cancelled.
    assert len(held.cancelled) == 10
    with pytest.raises(ConnectionLostError):
        await client.request(RemotingCommand(ECHO), 1000)
    with pytest.raises(ConnectionLostError):
        client.oneway(RemotingCommand(ECHO))
    server.respond(RemotingCommand(0))  # to a lost peer: dropped


async def test_opaques_of_pending_requests_are_not_reused(
    handlers: Handlers, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opaques wrap, and the next one may still belong to a pending request."""
    client, _ = join_connections(handlers)
    waiting = asyncio.ensure_future(client.request(RemotingCommand(HELD, body=b"old"), 5000))
    await held.reached(1)
    monkeypatch.setattr("goddard.transport.pending._MAX_OPAQUE", 3)
    for _ in range(10):
        assert (await client.request(RemotingCommand(ECHO, body=b"new"), 5000)).body == b"new"
    held.release(b"old")
    assert (await waiting).body == b"old"


async def test_one_command_may_be_sent_to_many_peers_at_once(
    handlers: Handlers, held: Held
) -> None:
    """Each connection assigns its own opaque; the end of one request does not end another."""
    first, _ = join_connections(handlers)
    second, _ = join_connections(handlers)
    waiting = asyncio.ensure_future(first.request(RemotingCommand(HELD, body=b"old"), 60_000))
    await held.reached(1)
    command = RemotingCommand(ECHO, body=b"both")
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(each.request(command, 60_000) for each in (first, second)))
        assert [answer.body for answer in answers] == [b"both", b"both"]
        held.release(b"old")
        assert (await waiting).body == b"old"


async def test_too_many_requests_in_flight(handlers: Handlers) -> None:
    options = ConnectionOptions(max_requests_in_flight=2)
    client, _ = join_connections(handlers, client_options=options)
    requests = [
        asyncio.ensure_future(client.request(RemotingCommand(SILENT), 5000)) for _ in range(2)
    ]
    await _ticks()
    with pytest.raises(OverloadedError, match="2 requests"):
        await client.request(RemotingCommand(ECHO), 1000)
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    assert (await client.request(RemotingCommand(ECHO), 1000)).code == 0


async def test_duplicate_opaques_are_answered_independently(handlers: Handlers) -> None:
    peer, _ = join_raw(handlers)
    for body in (b"one", b"two", b"three"):
        peer.transport.write(encode_frame(RemotingCommand(ECHO, body=body, opaque=-5)))
    answers = await peer.receive(3)
    assert [(answer.opaque, answer.body) for answer in answers] == [
        (-5, b"one"),
        (-5, b"two"),
        (-5, b"three"),
    ]


async def test_the_responses_to_a_chunk_are_sent_with_one_write(handlers: Handlers) -> None:
    class Wire(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.writes: list[bytes] = []

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.writes.append(bytes(data))

    wire = Wire()
    server = Connection(ConnectionOptions(), handlers)
    server.connection_made(wire)
    chunk = b"".join(encode_frame(RemotingCommand(ECHO, opaque=n)) for n in range(5))
    server.data_received(chunk)
    # asyncio.Transport.writelines joins its pieces into one write.
    assert len(wire.writes) == 1
    # Responses outside of data_received are sent together at the end of the tick.
    server.respond(RemotingCommand(0, flag=1))
    server.respond(RemotingCommand(0, flag=1))
    assert len(wire.writes) == 1
    await _ticks(2)
    assert len(wire.writes) == 2


async def test_a_frame_hook_sees_frames_first_and_returns_the_rest(handlers: Handlers) -> None:
    seen: list[int] = []

    def take_even(connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        rest = []
        for frame in frames:
            request = decode_frame(frame)
            seen.append(request.opaque)
            if request.opaque % 2:
                rest.append(frame)
            else:
                connection.send_encoded(encode_frame(request.reply(body=b"hook")))
        return rest

    peer, _ = join_raw(handlers, on_frames=take_even)
    frames = [encode_frame(RemotingCommand(ECHO, opaque=n, body=b"echo")) for n in range(4)]
    peer.transport.write(b"".join(frames))
    answers = await peer.receive(4)
    assert seen == [0, 1, 2, 3]
    assert {(answer.opaque, bytes(answer.body)) for answer in answers} == {
        (0, b"hook"),
        (1, b"echo"),
        (2, b"hook"),
        (3, b"echo"),
    }
    assert peer.chunks == 1


async def test_a_failing_frame_hook_closes_its_connection_only(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        raise RuntimeError("a bug")

    peer, server = join_raw(handlers, on_frames=fail)
    peer.transport.write(encode_frame(RemotingCommand(ECHO)))
    async with asyncio.timeout(60):
        await peer.lost.wait()
    assert server.is_closed
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 3),
        struct.pack(">i", 16 * 1024 * 1024 + 1),
        struct.pack(">iI", 12, 100) + b"12345678",  # header longer than its frame
        struct.pack(">iI", 12, 8) + b"not json",
        struct.pack(">iI", 12, 7 << 24 | 8) + b"12345678",  # unknown encoding
    ],
)
async def test_earlier_requests_are_answered_before_malformed_data_closes_the_connection(
    handlers: Handlers, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    peer, server = join_raw(handlers)
    good = encode_frame(RemotingCommand(ECHO, opaque=1, body=b"good"))
    peer.transport.write(good + garbage + good)
    async with asyncio.timeout(60):
        await peer.lost.wait()
        await server.wait_closed()
    assert [answer.body for answer in await peer.receive(1)] == [b"good"]
    assert peer.received.empty()
    (record,) = [record for record in caplog.records if record.name == "goddard.transport"]
    assert server.remote in record.getMessage()


async def test_a_tls_client_on_a_plain_port_is_logged(
    handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    peer, _ = join_raw(handlers)
    peer.transport.write(bytes.fromhex("16030102000100"))
    async with asyncio.timeout(60):
        await peer.lost.wait()
    assert "TLS is disabled on this port" in caplog.text


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"HEAD "])
async def test_an_http_client_is_logged(
    handlers: Handlers, caplog: pytest.LogCaptureFixture, start: bytes
) -> None:
    peer, _ = join_raw(handlers)
    peer.transport.write(start)
    async with asyncio.timeout(60):
        await peer.lost.wait()
    assert "does not support HTTP" in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        RemotingCommand(0, {"k" * 40_000: "v"}, serialize_type=SerializeType.ROCKETMQ),
        RemotingCommand(0, remark="\ud800"),
        RemotingCommand(0, body=bytes(2000)),
        RemotingCommand(0, body=bytes(20_000)),
    ],
    ids=["long key", "lone surrogate", "small over limit", "big over limit"],
)
async def test_a_response_that_cannot_be_encoded_becomes_an_error(answer: RemotingCommand) -> None:
    handlers = Handlers()
    handlers.register(9, lambda request, _: answer, ANY_RULE)
    client, _ = join_connections(handlers, options=ConnectionOptions(max_frame_bytes=1500))
    command = RemotingCommand(9, serialize_type=answer.serialize_type)
    assert (await client.request(command, 1000)).code == ResponseCode.SYSTEM_ERROR


async def test_a_request_over_the_frame_limit_is_not_sent(handlers: Handlers) -> None:
    client, _ = join_connections(handlers, client_options=ConnectionOptions(max_frame_bytes=1000))
    with pytest.raises(ProtocolError, match="over the limit"):
        await client.request(RemotingCommand(ECHO, body=bytes(1000)), 1000)
    assert client.requests_in_flight == 0
    assert (await client.request(RemotingCommand(ECHO), 1000)).code == 0


async def test_large_bodies_arrive_unchanged(handlers: Handlers) -> None:
    client, _ = join_connections(handlers)
    body = bytes(range(256)) * 4096
    assert (await client.request(RemotingCommand(ECHO, body=body), 5000)).body == body


async def test_attachments_belong_to_the_connection(handlers: Handlers) -> None:
    client, server = join_connections(handlers)
    server.attachments["group"] = "g"
    assert client.attachments == {}
