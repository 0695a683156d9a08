"""The network of a run where namespaces are not allowed: loopback addresses, with fault proxies.

Each node listens on an address of its own, and others reach it by a second one, where a proxy
forwards to the first. A cut isolates the receiver from everyone: a proxy does not know who
connects. What nodes send to the clients cannot be cut, and disks are directories.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, Self

from goddard.testing.ports import lease_port, release_port
from tests.support.proxy import FaultProxy

_WAIT_SECONDS: Final = 20
_SLOW_BYTES_PER_SECOND: Final = 50_000
_NODE_ADDRESSES: Final = 32


class LoopbackNetwork:
    """Enter it on the loop on which the proxies run; its other methods work in any thread."""

    has_disks = False

    def __init__(self) -> None:
        # A leased port makes the addresses those of this run alone.
        self._lease = lease_port()
        self._names: list[str] = []
        self._proxies: dict[str, list[FaultProxy]] = {}
        self._cuts: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                await proxy.stop()
        release_port(self._lease)

    def _address(self, number: int) -> str:
        value = (self._lease - 15_000) * _NODE_ADDRESSES + number
        return f"127.{128 + (value >> 16)}.{value >> 8 & 255}.{value & 255}"

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_SECONDS)

    def add(self, name: str, ports: tuple[int, ...]) -> str:
        self._names.append(name)
        address, target = self._address(2 * len(self._names)), self.bind_address(name)
        proxies = [FaultProxy(f"{target}:{port}", listen=(address, port)) for port in ports]
        self._proxies[name] = proxies

        async def start() -> None:
            for proxy in proxies:
                await proxy.start()

        self._on_loop(start())
        return address

    def bind_address(self, name: str) -> str:
        return self._address(2 * self._names.index(name) + 3)

    def prefix(self, name: str) -> list[str]:
        return []

    def mount_disk(self, path: Path, size_bytes: int) -> None:
        path.mkdir(parents=True)

    def unmount_disk(self, path: Path) -> None:
        pass

    def cut(self, source: str, target: str) -> None:
        self._cuts.add((source, target))
        for proxy in self._proxies.get(target, ()):
            proxy.half_open()

    def join(self, source: str, target: str) -> None:
        self._cuts.discard((source, target))
        if not any(receiver == target for _, receiver in self._cuts):
            for proxy in self._proxies.get(target, ()):
                proxy.heal()

    def slow(self, name: str) -> None:
        for proxy in self._proxies[name]:
            proxy.throttle(_SLOW_BYTES_PER_SECOND)

    def hurry(self, name: str) -> None:
        for proxy in self._proxies[name]:
            proxy.heal()

    def heal(self) -> None:
        self._cuts.clear()
        for name in self._proxies:
            self.hurry(name)
