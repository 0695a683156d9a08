"""Server and client over loopback sockets."""

import asyncio
import gc
import logging
import os
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from goddard.errors import ConnectFailedError, ConnectionLostError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Answer, Handlers
from goddard.transport.loop import run
from goddard.transport.options import ConnectionOptions
from goddard.transport.server import Server, ServerOptions
from tests.support.clock import ManualClock
from tests.support.memory import MemoryTransport
from tests.support.polling import until
from tests.support.rules import ANY_RULE

ECHO = 1
GATED = 2


class Gate:
    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, request: RemotingCommand, connection: Connection) -> Answer:
        self.entered.set()
        await self.open.wait()
        return request.reply(body=request.body)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def handlers(gate: Gate) -> Handlers:
    created = Handlers()
    created.register(ECHO, lambda request, _: request.reply(body=request.body), ANY_RULE)
    created.register(GATED, gate, ANY_RULE)
    return created


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client() as created:
        yield created


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def _address(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


async def _open_raw(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def _accepts(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    except ConnectionError:
        return False
    writer.transport.abort()
    return True


async def test_a_connection_that_opens_too_late_is_closed(handlers: Handlers) -> None:
    """The caller has given up by then; the next request gets a working connection."""
    waits = iter([0.5])

    def delay(connection: Connection) -> None:
        time.sleep(next(waits, 0))

    options = ClientOptions(connect_seconds=0.25)
    async with (
        Server(ServerOptions(), handlers) as server,
        Client(options, on_open=delay) as client,
    ):
        # asyncio's own loop has the connection nevertheless.
        with suppress(ConnectFailedError):
            await client.request(_address(server), RemotingCommand(ECHO), 30_000)
        answer = await client.request(_address(server), RemotingCommand(ECHO, body=b"x"), 30_000)
        assert answer.body == b"x"
        await until(lambda: len(list(server.connections)) == 1)


async def test_responses_that_arrived_while_the_loop_was_blocked(
    handlers: Handlers, client: Client
) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()

    def stand_still() -> None:
        ours.recv(1)
        time.sleep(1.5)

    with in_a_thread(handlers) as address, ours, theirs:
        await client.request(address, RemotingCommand(ECHO), 30_000)
        loop.add_reader(ours, stand_still)
        theirs.send(b"x")
        # Sent immediately, and answered after the loop has read its sockets.
        answer = await client.request(address, RemotingCommand(ECHO), 1_000)
        loop.remove_reader(ours)
        assert answer.code == ResponseCode.SUCCESS
        assert client.open_connection(address) is not None


@contextmanager
def in_a_thread(handlers: Handlers) -> Iterator[str]:
    """A server that continues while this thread is blocked."""
    ready: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with Server(ServerOptions(), handlers) as server:
            ready.set_result((_address(server), asyncio.get_running_loop(), stop))
            await stop.wait()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run, serve())
        address, loop, stop = ready.result(60)
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(stop.set)
            ended.result(60)


async def test_requests_over_one_shared_connection(handlers: Handlers, client: Client) -> None:
    async with Server(ServerOptions(), handlers) as server:
        # None finds a connection, and all share one attempt.
        answers = await asyncio.gather(
            *(
                client.request(_address(server), RemotingCommand(ECHO, body=b"%d" % n), 5000)
                for n in range(500)
            )
        )
        assert [int(bytes(answer.body)) for answer in answers] == list(range(500))
        assert len(list(server.connections)) == 1
        unknown = await client.request(_address(server), RemotingCommand(4711), 30_000)
        assert unknown.remark == " request type 4711 not supported"


async def test_many_connections_at_once(handlers: Handlers) -> None:
    async with Server(ServerOptions(), handlers) as server:

        async def talk(number: int) -> None:
            async with Client() as own:
                for turn in range(10):
                    body = b"%d/%d" % (number, turn)
                    command = RemotingCommand(ECHO, body=body)
                    answer = await own.request(_address(server), command, 5000)
                    assert answer.body == body

        await asyncio.gather(*(talk(number) for number in range(64)))
        await until(lambda: not list(server.connections))


async def test_the_server_sends_a_request_to_the_client(handlers: Handlers, client: Client) -> None:
    mine = Handlers()
    mine.register(307, lambda request, _: request.reply(body=b"running info"), ANY_RULE)
    async with Server(ServerOptions(), handlers) as server, Client(handlers=mine) as own:
        await own.request(_address(server), RemotingCommand(ECHO), 30_000)
        (connection,) = server.connections
        assert (await connection.request(RemotingCommand(307), 30_000)).body == b"running info"


async def test_oneway_and_hooks(client: Client) -> None:
    calls: list[str] = []
    arrived = asyncio.Event()
    handlers = Handlers()
    handlers.register(9, lambda request, _: arrived.set(), ANY_RULE)
    handlers.register(ECHO, lambda request, _: request.reply(remark="echo"), ANY_RULE)

    def before(request: RemotingCommand, connection: Connection) -> None:
        calls.append(f"before {request.code}")
        request.ext_fields = {"AccessKey": "k"}

    def after(request: RemotingCommand, answer: Answer, connection: Connection) -> None:
        calls.append(f"after {request.code} {answer and answer.remark}")

    client.add_hook(before, after)
    handlers.add_hook(before=lambda request, _: calls.append(f"server {request.fields}"))
    async with Server(ServerOptions(), handlers) as server:
        await client.request(_address(server), RemotingCommand(ECHO), 30_000)
        await client.oneway(_address(server), RemotingCommand(9))
        async with asyncio.timeout(60):
            await arrived.wait()
    signed = "server {'AccessKey': 'k'}"
    assert calls == ["before 1", signed, "after 1 echo", "before 9", signed]


async def test_connection_refused(client: Client) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ConnectFailedError, match=address) as caught:
            await client.request(address, RemotingCommand(ECHO), 30_000)
    assert caught.value.address == address


async def test_the_client_connects_again_after_a_restart(
    handlers: Handlers, client: Client, gate: Gate
) -> None:
    async with Server(ServerOptions(), handlers) as server:
        address = _address(server)
        port = server.port
        await client.request(address, RemotingCommand(ECHO), 30_000)
        lost = asyncio.ensure_future(client.request(address, RemotingCommand(GATED), 60_000))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await server.stop(grace_seconds=0)
    with pytest.raises(ConnectionLostError):
        await lost
    with pytest.raises(ConnectFailedError):
        await client.request(address, RemotingCommand(ECHO), 30_000)
    async with Server(ServerOptions(port=port), handlers):
        answer = await client.request(address, RemotingCommand(ECHO, body=b"again"), 30_000)
        assert answer.body == b"again"


async def test_callbacks_for_opened_and_closed_connections(handlers: Handlers) -> None:
    events: list[str] = []
    closed = asyncio.Event()

    def lost(connection: Connection) -> None:
        events.append(f"close {connection.remote}")
        closed.set()

    server = Server(
        ServerOptions(),
        handlers,
        on_open=lambda connection: events.append(f"open {connection.remote}"),
        on_close=lost,
    )
    async with server:
        _, writer = await _open_raw(server)
        remote = "{}:{}".format(*writer.get_extra_info("sockname"))
        await until(lambda: bool(events))
        writer.transport.abort()
        async with asyncio.timeout(60):
            await closed.wait()
        assert events == [f"open {remote}", f"close {remote}"]


async def test_connections_over_the_limit_are_closed_at_once(
    handlers: Handlers, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(ServerOptions(max_connections=2), handlers) as server:
        await client.request(_address(server), RemotingCommand(ECHO), 30_000)
        _, second = await _open_raw(server)
        await until(lambda: len(list(server.connections)) == 2)
        for _ in range(5):
            reader, writer = await _open_raw(server)
            async with asyncio.timeout(60):
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            writer.transport.abort()
        # The others are still served, and the log is not flooded.
        assert (await client.request(_address(server), RemotingCommand(ECHO), 30_000)).code == 0
        assert [r.levelno for r in caplog.records if "is refused" in r.getMessage()] == [
            logging.WARNING
        ]
        # A connection that closes makes room for another.
        second.transport.abort()
        await until(lambda: len(list(server.connections)) == 1)
        async with Client() as other:
            assert (await other.request(_address(server), RemotingCommand(ECHO), 30_000)).code == 0


async def test_idle_connections_are_closed_by_either_end(handlers: Handlers) -> None:
    clock = ManualClock()
    async with (
        Server(ServerOptions(), handlers) as patient,
        Client(ClientOptions(idle_seconds=120, write_stall_seconds=0.2), clock=clock) as own,
    ):
        await own.request(_address(patient), RemotingCommand(ECHO), 30_000)
        connection = await own.connection(_address(patient))
        clock.advance(60_000)
        await asyncio.sleep(0.1)
        assert not connection.is_closed
        clock.advance(120_000)
        await until(lambda: not list(patient.connections))
        # The next request makes a new one.
        assert (await own.request(_address(patient), RemotingCommand(ECHO), 30_000)).code == 0

    async with Server(ServerOptions(idle_seconds=0.2), handlers) as server:
        reader, writer = await _open_raw(server)
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.transport.abort()


async def test_stop_waits_for_requests_within_the_grace_time(
    handlers: Handlers, gate: Gate, client: Client
) -> None:
    server = Server(ServerOptions(), handlers)
    await server.start()
    address = _address(server)
    request = asyncio.ensure_future(
        client.request(address, RemotingCommand(GATED, body=b"x"), 10_000)
    )
    await asyncio.wait_for(gate.entered.wait(), 60)
    stop = asyncio.ensure_future(server.stop(grace_seconds=10))
    # No longer accepting, still working.
    async with asyncio.timeout(60):
        while await _accepts(address):
            continue
    assert not stop.done()
    gate.open.set()
    assert (await request).body == b"x"
    await asyncio.wait_for(stop, 60)


async def test_stop_waits_no_longer_than_the_grace_time(
    handlers: Handlers, gate: Gate, client: Client
) -> None:
    server = Server(ServerOptions(), handlers)
    await server.start()
    request = asyncio.ensure_future(
        client.request(_address(server), RemotingCommand(GATED), 60_000)
    )
    await asyncio.wait_for(gate.entered.wait(), 60)
    async with asyncio.timeout(60):
        await server.stop(grace_seconds=0.1)
        with pytest.raises(ConnectionLostError):
            await request


async def test_no_files_or_tasks_are_leaked(handlers: Handlers, gate: Gate) -> None:
    async def use() -> None:
        async with Server(ServerOptions(), handlers) as server, Client() as own:
            for code in (ECHO, 4711):
                await own.request(_address(server), RemotingCommand(code), 30_000)
            hanging = asyncio.ensure_future(
                own.request(_address(server), RemotingCommand(GATED), 60_000)
            )
            await asyncio.wait_for(gate.entered.wait(), 60)
            _, writer = await _open_raw(server)
            writer.transport.abort()
            await own.close()
            with pytest.raises(ConnectionLostError):
                await hanging
            with pytest.raises(ConnectionLostError):
                await own.request(_address(server), RemotingCommand(ECHO), 30_000)

    await use()  # now everything that the loop opens lazily exists, such as a resolver thread
    gc.collect()
    tasks, fds = asyncio.all_tasks(), _open_files()
    await use()
    gc.collect()
    await until(lambda: _open_files() <= fds)
    assert asyncio.all_tasks() == tasks


async def test_the_kernel_has_a_timeout_for_acknowledgements(handlers: Handlers) -> None:
    """For a peer behind a broken link, which acknowledges nothing."""

    class Wired(MemoryTransport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return sock if name == "socket" else super().get_extra_info(name, default)

    with socket.socket() as sock:
        created = Connection(ConnectionOptions(acknowledge_seconds=1.5), handlers)
        created.connection_made(Wired(created, ("127.0.0.1", 1), ("127.0.0.1", 2)))
        if sys.platform == "linux":  # other systems do not have this option
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500
        created.abort()
        await created.wait_closed()


async def test_a_port_in_use_is_reported(handlers: Handlers) -> None:
    async with Server(ServerOptions(), handlers) as server:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await Server(ServerOptions(port=server.port), handlers).start()


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example", "nul\0.example", "ho st"])
async def test_an_invalid_host_name_is_a_failed_connection(
    client: Client, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectFailedError):
        await client.request(f"{host}:9876", RemotingCommand(ECHO), 60_000)
    assert not caplog.records


async def test_a_stop_that_is_cancelled_closes_everything_at_once(
    handlers: Handlers, gate: Gate, client: Client
) -> None:
    server = Server(ServerOptions(), handlers)
    await server.start()
    request = asyncio.ensure_future(
        client.request(_address(server), RemotingCommand(GATED), 60_000)
    )
    async with asyncio.timeout(60):
        await gate.entered.wait()
        stop = asyncio.ensure_future(server.stop(grace_seconds=600))
        await asyncio.sleep(0)
        stop.cancel()
        await asyncio.wait((stop,))
        with pytest.raises(ConnectionLostError):
            await request
        await until(lambda: not list(server.connections))
        assert not await _accepts(_address(server))


async def test_a_close_that_is_cancelled_closes_everything_at_once(handlers: Handlers) -> None:
    async with Server(ServerOptions(), handlers) as server, asyncio.timeout(60):
        client = Client()
        connection = await client.connection(_address(server))
        closing = asyncio.ensure_future(client.close(grace_seconds=600))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))
        await connection.wait_closed()


async def test_ipv6(handlers: Handlers, client: Client) -> None:
    async with Server(ServerOptions(host="::1"), handlers) as server:
        address = f"[::1]:{server.port}"
        assert (await client.request(address, RemotingCommand(ECHO), 30_000)).code == 0
        (connection,) = server.connections
        assert connection.remote.startswith("[::1]:")


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", 16 * 1024 * 1024 + 1) + bytes(1000),
        struct.pack(">iI", 12, 8) + b"not json",
        os.urandom(4096)[1:].rjust(4096, b"\xff"),
    ],
    ids=["http", "oversize", "bad header", "noise"],
)
async def test_bad_frames_close_one_connection_only(
    handlers: Handlers, client: Client, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(ServerOptions(), handlers) as server:
        await client.request(_address(server), RemotingCommand(ECHO), 30_000)
        reader, writer = await _open_raw(server)
        writer.write(bad)
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.transport.abort()
        assert (await client.request(_address(server), RemotingCommand(ECHO), 30_000)).code == 0
        # The peer may reset the connection afterwards; there is one warning nevertheless.
        assert len([r for r in caplog.records if "sent malformed data" in r.msg]) == 1


async def test_a_truncated_frame_and_a_closed_socket(handlers: Handlers, client: Client) -> None:
    async with Server(ServerOptions(), handlers) as server:
        _, writer = await _open_raw(server)
        writer.write(encode_frame(RemotingCommand(ECHO, body=bytes(100)))[:50])
        await until(lambda: len(list(server.connections)) == 1)
        writer.close()
        await until(lambda: not list(server.connections))
        answer = await client.request(_address(server), RemotingCommand(ECHO), 30_000)
        assert answer.code == ResponseCode.SUCCESS


async def test_a_sender_of_single_bytes_is_served(handlers: Handlers) -> None:
    async with Server(ServerOptions(), handlers) as server:
        reader, writer = await _open_raw(server)
        frame = encode_frame(RemotingCommand(ECHO, body=b"slowly"))
        for position in range(len(frame)):
            writer.write(frame[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            assert (await reader.readexactly(length)).endswith(b"slowly")
        writer.transport.abort()


async def test_a_stopping_server_sends_responses_that_handlers_left_for_later() -> None:
    """As the broker's: the handler submits, and the response follows when the message is stored."""
    submitted: list[tuple[RemotingCommand, Connection]] = []

    def submit(request: RemotingCommand, connection: Connection) -> None:
        submitted.append((request, connection))

    async def submit_soon(request: RemotingCommand, connection: Connection) -> None:
        await asyncio.sleep(0.02)
        submit(request, connection)

    async def finish() -> None:
        await asyncio.sleep(0.01)  # a sync of the disk
        while submitted:
            request, connection = submitted.pop()
            connection.respond(request.reply(body=b"stored"))

    handlers = Handlers()
    handlers.register(1, submit, ANY_RULE)
    handlers.register(2, submit_soon, ANY_RULE)
    server = Server(ServerOptions(), handlers, finish_requests=finish)
    await server.start()
    async with Client() as client:
        connection = await client.connection(f"127.0.0.1:{server.port}")
        waiting = [connection.request_soon(RemotingCommand(code), 30_000) for code in (1, 2)]
        await until(lambda: bool(submitted))
        await server.stop()
        assert [bytes((await response).body) for response in waiting] == [b"stored"] * 2
