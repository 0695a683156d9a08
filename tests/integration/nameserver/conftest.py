"""A name server inside the test, and peers that connect to it over loopback."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from goddard.config import NameServerConfig
from goddard.environment import Environment
from goddard.nameserver.server import NameServer
from tests.support.clock import ManualClock
from tests.support.name_server_client import NameServerClient


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def start(
    tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Callable[..., Awaitable[NameServer]]]:
    """Start a name server with these settings; all are stopped after the test."""
    running: list[NameServer] = []

    async def begin(**changes: Any) -> NameServer:
        home = tmp_path / "home"
        settings = {
            "rocketmq_home": str(home),
            "kv_config_path": str(home / "namesrv" / "kvConfig.json"),
            "config_store_path": str(home / "namesrv" / "namesrv.properties"),
            "bind_address": "127.0.0.1",
            "listen_port": 0,
        }
        server = NameServer(
            NameServerConfig(**{**settings, **changes}), environment=Environment(clock=clock)
        )
        await server.start()
        running.append(server)
        return server

    yield begin
    for server in running:
        await server.stop()


@pytest.fixture
async def server(start: Callable[..., Awaitable[NameServer]]) -> NameServer:
    return await start()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[NameServer], NameServerClient]]:
    """Connect peers to a name server; each has its own connection."""
    created: list[NameServerClient] = []

    def make(server: NameServer) -> NameServerClient:
        created.append(NameServerClient(server.port))
        return created[-1]

    yield make
    for peer in created:
        await peer.close()


@pytest.fixture
async def peer(
    server: NameServer, connect: Callable[[NameServer], NameServerClient]
) -> NameServerClient:
    return connect(server)
