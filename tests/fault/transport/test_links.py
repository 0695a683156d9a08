"""Link faults between client and server, injected by the fault proxy."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from goddard.errors import (
    ConnectFailedError,
    ConnectionLostError,
    RemotingError,
    RequestTimeoutError,
)
from goddard.protocol.frame import RemotingCommand
from goddard.transport.client import Client, ClientOptions
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.polling import until
from tests.support.proxy import FaultProxy
from tests.support.rules import ANY_RULE

ECHO = 1
SILENT = 2


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    handlers = Handlers()
    handlers.register(ECHO, lambda request, _: request.reply(body=request.body), ANY_RULE)
    handlers.register(SILENT, lambda request, _: None, ANY_RULE)
    async with Server(ServerOptions(), handlers) as made:
        yield made


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(f"127.0.0.1:{server.port}") as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(ClientOptions(connect_seconds=1)) as made:
        yield made


async def _echo(client: Client, proxy: FaultProxy, size: int = 10, timeout_ms: int = 5000) -> None:
    command = RemotingCommand(ECHO, body=bytes(size))
    answer = await client.request(proxy.address, command, timeout_ms)
    assert len(answer.body) == size


def _elapsed(since: float) -> float:
    return asyncio.get_running_loop().time() - since


async def test_a_healthy_proxy_is_transparent_and_counts(client: Client, proxy: FaultProxy) -> None:
    await asyncio.gather(*(_echo(client, proxy, 100_000) for _ in range(10)))
    assert proxy.connections_made == 1
    assert proxy.open_connections == 1
    assert proxy.bytes_to_target > 1_000_000
    assert proxy.bytes_from_target > 1_000_000


@pytest.mark.parametrize("fault", ["cut", "reset"])
async def test_a_broken_link_fails_requests_and_the_client_reconnects(
    client: Client, proxy: FaultProxy, server: Server, fault: str
) -> None:
    waiting = [
        asyncio.ensure_future(client.request(proxy.address, RemotingCommand(SILENT), 60_000))
        for _ in range(20)
    ]
    await until(lambda: proxy.bytes_to_target > 0)
    await (proxy.cut() if fault == "cut" else proxy.reset())
    async with asyncio.timeout(60):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, ConnectionLostError) for result in results)
    await until(lambda: not list(server.connections))
    await _echo(client, proxy)
    assert proxy.connections_made == 2


async def test_an_address_that_refuses_connections(client: Client, proxy: FaultProxy) -> None:
    await _echo(client, proxy)
    await proxy.refuse()
    await _echo(client, proxy)  # the open connection still works
    await proxy.cut()
    with pytest.raises(RemotingError):
        await _echo(client, proxy)
    with pytest.raises(ConnectFailedError):
        await _echo(client, proxy)
    proxy.accept()
    await _echo(client, proxy)


async def test_a_delayed_link(client: Client, proxy: FaultProxy) -> None:
    await _echo(client, proxy)
    proxy.delay(200)
    started = asyncio.get_running_loop().time()
    with pytest.raises(RequestTimeoutError):
        await _echo(client, proxy, timeout_ms=100)
    await _echo(client, proxy)
    assert _elapsed(started) >= 0.4
    proxy.heal()
    # The late response has no effect.
    await _echo(client, proxy)
    assert proxy.connections_made == 1


async def test_a_throttled_link(client: Client, proxy: FaultProxy) -> None:
    proxy.throttle(200_000)
    started = asyncio.get_running_loop().time()
    await _echo(client, proxy, 50_000)
    assert _elapsed(started) > 0.2
    proxy.heal()
    await _echo(client, proxy, 50_000)


async def test_a_half_open_link(client: Client, proxy: FaultProxy) -> None:
    await _echo(client, proxy)
    proxy.half_open()
    with pytest.raises(RequestTimeoutError):
        await _echo(client, proxy, timeout_ms=100)
    # The kernel accepts a new connection, which does not work either.
    async with Client() as other:
        with pytest.raises(RequestTimeoutError):
            await _echo(other, proxy, timeout_ms=100)
    proxy.heal()
    await _echo(client, proxy)


async def test_a_server_notices_a_half_open_link_by_idleness() -> None:
    handlers = Handlers()
    async with (
        Server(ServerOptions(idle_seconds=0.2), handlers) as server,
        FaultProxy(f"127.0.0.1:{server.port}") as own,
        Client() as client,
    ):
        await client.request(own.address, RemotingCommand(ECHO), 1000)
        own.half_open()
        await until(lambda: not list(server.connections))


async def test_a_proxy_whose_target_is_down(client: Client) -> None:
    async with FaultProxy("127.0.0.1:1") as proxy:
        with pytest.raises(RemotingError):
            await _echo(client, proxy, timeout_ms=1000)
        await until(lambda: proxy.open_connections == 0)


async def test_the_proxy_closes_its_connections(server: Server) -> None:
    before = asyncio.all_tasks()
    async with FaultProxy(f"127.0.0.1:{server.port}") as proxy, Client() as client:
        await _echo(client, proxy)
        proxy.half_open()
    assert asyncio.all_tasks() == before
    assert proxy.open_connections == 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
