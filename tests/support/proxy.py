"""A TCP proxy with injected faults, for any connection on loopback.

    async with FaultProxy("127.0.0.1:9876") as proxy:
        ...                       # connect to proxy.address
        proxy.half_open()         # both ends receive neither data nor an error
        proxy.heal()
        await proxy.reset()       # both ends see "connection reset"

It belongs to the loop on which it was started. Leaving the block ends all tasks and sockets.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from goddard.transport.client import split_address
from goddard.transport.tasks import Tasks

_CHUNK_BYTES: Final = 64 * 1024
_ZERO_LINGER: Final = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Link:
    """One proxied connection."""

    sockets: list[socket.socket]
    task: asyncio.Task[None] | None = field(default=None)

    def close(self, *, reset: bool) -> None:
        for sock in self.sockets:
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ZERO_LINGER)
            sock.close()


class FaultProxy:
    """Forwards what connects to ``listen``, by default any port of 127.0.0.1, to ``target``."""

    def __init__(self, target: str, *, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target = split_address(target)
        self._tasks = Tasks()
        self._links: set[_Link] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay_seconds = 0.0
        self._bytes_per_second: int | None = None
        self._resetting = False
        self.host, self.port = listen
        self.connections_made = 0
        self.bytes_to_target = 0
        self.bytes_from_target = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        return len(self._links)

    async def start(self) -> None:
        self.accept()

    async def stop(self) -> None:
        await self._tasks.stop()
        self._close_listener()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def cut(self) -> None:
        """Close every connection in an orderly way."""
        await self._end_links()

    async def reset(self) -> None:
        """Close every connection with RST."""
        self._resetting = True
        try:
            await self._end_links()
        finally:
            self._resetting = False

    async def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones continue."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
            self._accepting = None
        self._close_listener()

    def accept(self) -> None:
        """Listen again on the same port."""
        if self._accepting is not None:
            return
        listener = socket.create_server((self.host, self.port), backlog=128)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._accepting = self._tasks.spawn(self._accept(listener), "proxy accept")

    def delay(self, milliseconds: int) -> None:
        """Delay each chunk, in both directions."""
        self._delay_seconds = milliseconds / 1000

    def throttle(self, bytes_per_second: int) -> None:
        """Forward no faster than this, per connection and direction."""
        self._bytes_per_second = bytes_per_second

    def half_open(self) -> None:
        """Forward nothing and close nothing; TCP still acknowledges received data."""
        self._flowing.clear()

    def heal(self) -> None:
        """Undo delay, throttle and half_open."""
        self._delay_seconds = 0.0
        self._bytes_per_second = None
        self._flowing.set()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _end_links(self) -> None:
        tasks = [link.task for link in self._links if link.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            self.connections_made += 1
            link = _Link([sock])
            self._links.add(link)
            link.task = self._tasks.spawn(self._forward(link), "proxy link")
            link.task.add_done_callback(partial(self._end, link))

    def _end(self, link: _Link, _: asyncio.Task[None]) -> None:
        # Not in the task itself: a task that is cancelled before its first step runs no code.
        self._links.discard(link)
        link.close(reset=self._resetting)

    async def _forward(self, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        target = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        target.setblocking(False)
        link.sockets.append(target)
        near = link.sockets[0]
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await loop.sock_connect(target, self._target)
        except OSError:
            return
        directions = [
            asyncio.ensure_future(self._pump(near, target, to_target=True)),
            asyncio.ensure_future(self._pump(target, near, to_target=False)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.wait(directions)

    async def _pump(self, source: socket.socket, sink: socket.socket, *, to_target: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._flowing.wait()
            rate = self._bytes_per_second
            limit = _CHUNK_BYTES if rate is None else max(1, min(_CHUNK_BYTES, rate // 20))
            try:
                chunk = await loop.sock_recv(source, limit)
                if not chunk:
                    return
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                await self._flowing.wait()
                await loop.sock_sendall(sink, chunk)
            except OSError:
                return
            if to_target:
                self.bytes_to_target += len(chunk)
            else:
                self.bytes_from_target += len(chunk)
            if rate is not None:
                await asyncio.sleep(len(chunk) / rate)
