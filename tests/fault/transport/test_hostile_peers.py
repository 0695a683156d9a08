"""Hostile or broken peers: they are disconnected, and other peers are not affected."""

import asyncio
import resource
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.transport.client import Client
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.polling import until
from tests.support.rules import ANY_RULE

ECHO = 1
BIG = 2
MIB = 1024 * 1024


@pytest.fixture
def handlers() -> Handlers:
    made = Handlers()
    made.register(ECHO, lambda request, _: request.reply(body=request.body), ANY_RULE)
    made.register(BIG, lambda request, _: request.reply(body=bytes(100_000)), ANY_RULE)
    return made


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client() as made:
        yield made


async def _echo(client: Client, server: Server) -> None:
    """Check that another client is still served."""
    command = RemotingCommand(ECHO, body=b"x")
    answer = await client.request(f"127.0.0.1:{server.port}", command, 30_000)
    assert answer.body == b"x"


async def _raw(server: Server) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    return sock


def _send_all_possible(sock: socket.socket, data: bytes) -> int:
    """Write until the kernel accepts no more; returns the number of bytes."""
    sent = 0
    while True:
        try:
            sent += sock.send(data)
        except BlockingIOError:
            return sent


async def test_a_peer_that_never_reads(
    handlers: Handlers, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    options = ServerOptions(write_buffer_high_bytes=MIB, write_stall_seconds=0.8)
    async with Server(options, handlers) as server:
        greedy = await _raw(server)
        await until(lambda: len(list(server.connections)) == 1)
        (connection,) = server.connections
        requests = b"".join(encode_frame(RemotingCommand(BIG, opaque=n)) for n in range(500))
        worst = 0
        while not connection.is_closed:
            try:
                _send_all_possible(greedy, requests)
            except OSError:  # disconnected
                break
            await asyncio.sleep(0.01)
            worst = max(worst, connection.unsent_bytes)
            await _echo(client, server)
        # It requested gigabytes; at most the high mark and one response were unsent.
        assert MIB < worst < 2 * MIB
        assert "does not read" in caplog.text
        await until(lambda: len(list(server.connections)) == 1)
        greedy.close()


async def test_slow_senders_are_disconnected(
    handlers: Handlers, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    options = ServerOptions(partial_frame_seconds=0.4)
    async with Server(options, handlers) as server:
        senders = [await _raw(server) for _ in range(20)]
        for sender in senders:
            # It announces a frame of 16 MiB and sends single bytes slowly.
            sender.send(struct.pack(">i", 16 * MIB))
        await until(lambda: len(list(server.connections)) == 20)

        async def dribble() -> None:
            while list(server.connections):
                for sender in senders:
                    try:
                        sender.send(b"\0")
                    except OSError:
                        continue
                await asyncio.sleep(0.02)

        async with asyncio.timeout(60):
            await dribble()
        # All are disconnected; the log has at most ten lines per second.
        assert 10 <= caplog.text.count("did not complete a frame in time") <= 20
        await _echo(client, server)
        for sender in senders:
            sender.close()


async def test_announcing_a_large_frame_allocates_no_memory(
    handlers: Handlers, client: Client
) -> None:
    async with Server(ServerOptions(), handlers) as server:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        senders = [await _raw(server) for _ in range(100)]
        for sender in senders:
            sender.send(struct.pack(">iI", 16 * MIB, 1000))
        await until(lambda: len(list(server.connections)) == 100)
        await _echo(client, server)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert grown_kib < 50 * 1024
        for sender in senders:
            sender.close()


async def test_repeated_connects_and_disconnects(handlers: Handlers, client: Client) -> None:
    async with Server(ServerOptions(), handlers) as server:
        for turn in range(300):
            sock = await _raw(server)
            if turn % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if turn % 2 == 0:
                sock.send(encode_frame(RemotingCommand(BIG))[: turn % 100])
            sock.close()
        await _echo(client, server)
        await until(lambda: len(list(server.connections)) == 1)


async def test_thousands_of_idle_connections(handlers: Handlers, client: Client) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(5000, (soft - 500) // 2)
    async with Server(ServerOptions(), handlers) as server:
        idle: list[socket.socket] = []
        try:
            for _ in range(count // 100):
                idle += await asyncio.gather(*(_raw(server) for _ in range(100)))
            await until(lambda: len(list(server.connections)) == len(idle))
            for _ in range(100):
                await _echo(client, server)
        finally:
            for sock in idle:
                sock.close()
        await until(lambda: len(list(server.connections)) == 1)
        await _echo(client, server)
