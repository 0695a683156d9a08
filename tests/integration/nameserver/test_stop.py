"""Stopping a name server that runs inside another program."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from goddard.nameserver.server import NameServer
from tests.support.polling import until


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("namesrv-")]


async def test_a_cancelled_stop_leaves_nothing_open(
    start: Callable[..., Awaitable[NameServer]],
) -> None:
    server = await start()
    await server.kv.put("n", "k", "v")
    assert _threads()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        stop = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        stop.cancel()
        await asyncio.wait((stop,))
        assert stop.cancelled()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: not _threads())
