"""Byte streams between nodes: delays, chunks, slow and cut links, resets, half-open connections.

Each direction of a link can be cut alone. What is sent over a cut link waits, as with TCP, until
the link is whole again or the sender gives up after ``GIVE_UP_SECONDS``. A process that is killed
resets its connections; a machine that loses its power does not, so its peers notice nothing until
they send something after its return, or their own timeout is over.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final

from tests.support.simulation.loop import Life, SimulatedLoop, current_life
from tests.support.simulation.trace import Trace

GIVE_UP_SECONDS: Final = 30.0
_CHUNK_BYTES: Final = 1400


class Link:
    """One direction between two addresses."""

    __slots__ = ("cut", "delay_seconds")

    def __init__(self) -> None:
        self.cut = False
        self.delay_seconds = 0.0005


class SimulatedSocket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def fileno(self) -> int:
        return -1


class SimulatedServer:
    """As asyncio.Server, as far as it is used."""

    def __init__(self, network: "Network", address: tuple[str, int]) -> None:
        self._network = network
        self._address = address

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        return (SimulatedSocket(self._address),)

    def close(self) -> None:
        self._network.listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        return


class Listener:
    def __init__(
        self, factory: Callable[[], Any], life: Life, context: contextvars.Context
    ) -> None:
        self.factory = factory
        self.life = life
        self.context = context


class Endpoint(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: "Network", life: Life, local: tuple[str, int], remote: tuple[str, int]
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self._network = network
        self._loop = network.loop
        self.life = life
        self.local = local
        self.remote = remote
        self.peer: Endpoint | None = None
        self.protocol: Any = None
        self.context: contextvars.Context = contextvars.copy_context()
        self._is_closing = False
        self.is_lost = False
        self._is_reading = True
        self._received: list[bytes | None] = []
        self._high_bytes = 64 << 10
        self._unsent_bytes = 0
        self._is_paused = False
        self._due = 0.0  # when the last chunk arrives
        self._stalled: list[bytes | None] = []

    # asyncio.Transport

    def write(self, data: Any) -> None:
        if self._is_closing or self.is_lost or self.life.is_over or not data:
            return
        data = bytes(data)
        random = self._network.random
        place = 0
        while place < len(data):
            size = random.choice((len(data), _CHUNK_BYTES, random.randrange(1, 200)))
            self._send(data[place : place + size])
            place += size
        if self._unsent_bytes > self._high_bytes and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high_bytes = high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.call(self._deliver_received)

    def is_reading(self) -> bool:
        return self._is_reading

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def close(self) -> None:
        if self._is_closing or self.life.is_over:
            return
        self._is_closing = True
        self._send(None)
        self.call(self._lose, None)

    def abort(self) -> None:
        if self.is_lost or self.life.is_over:
            return
        self._is_closing = True
        self._network.reset_peer(self)
        self.call(self._lose, None)

    # The network

    def call(self, function: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(function, *args, context=self.context)

    def _send(self, data: bytes | None) -> None:
        self._unsent_bytes += len(data) if data else 0
        link = self._network.link(self.local[0], self.remote[0])
        if link.cut:
            self._stall(data)
            return
        random = self._network.random
        delay = link.delay_seconds * (0.5 + random.random())
        if random.random() < 0.01:
            delay *= 20
        self._due = max(self._due, self._loop.time() + delay)
        self._network.later(self._due, self._arrive, data)

    def _stall(self, data: bytes | None) -> None:
        self._stalled.append(data)
        if len(self._stalled) == 1:
            self._network.stalled[self] = None
            self._network.later(self._loop.time() + GIVE_UP_SECONDS, self._give_up, self._stalled)

    def _give_up(self, stalled: list[bytes | None]) -> None:
        if self._stalled is stalled and stalled:
            self.reset()

    def go_on(self) -> None:
        """The link is whole again."""
        stalled, self._stalled = self._stalled, []
        for data in stalled:
            self._unsent_bytes -= len(data) if data else 0
            self._send(data)

    def _arrive(self, data: bytes | None) -> None:
        """Bytes, or the end (None), reach the other end."""
        peer = self.peer
        link = self._network.link(self.local[0], self.remote[0])
        if link.cut or self._stalled:
            self._stall(data)
            return
        if data:
            self._unsent_bytes -= len(data)
            if self._is_paused and self._unsent_bytes <= self._high_bytes // 4:
                self._is_paused = False
                if not self.is_lost:
                    self.call(self._resume_writing)
        if peer is None:
            return
        if peer.is_lost and not peer.life.is_over:
            if data is not None:
                self._network.later(self._loop.time() + link.delay_seconds, self.reset)
            return
        if peer.life.is_over:
            # The machine without this process answers with a reset; one that is down, not at all.
            if self._network.is_up(self.remote[0]):
                self._network.later(self._loop.time() + link.delay_seconds, self.reset)
            return
        self._network.trace.add(
            f"{self.local[0]}>{self.remote[0]} {-1 if data is None else len(data)}"
        )
        peer.receive(data)

    def receive(self, data: bytes | None) -> None:
        """Bytes, or the end (None), are there for the protocol."""
        self._received.append(data)
        self.call(self._deliver_received)

    def _resume_writing(self) -> None:
        if not self.is_lost:
            self.protocol.resume_writing()

    def _deliver_received(self) -> None:
        while self._received and self._is_reading and not self.is_lost:
            data = self._received.pop(0)
            if data is None:
                self._is_closing = True
                self._lose(None)
            else:
                self.protocol.data_received(data)

    def reset(self) -> None:
        """The connection breaks here with an error."""
        if not self.is_lost and not self.life.is_over:
            self._is_closing = True
            self.call(self._lose, ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._network.endpoints.pop(self, None)
            self.protocol.connection_lost(error)


class Network:
    """All links, listeners and connections."""

    def __init__(self, loop: SimulatedLoop, random: Random, trace: Trace) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.endpoints: dict[Endpoint, None] = {}
        self.stalled: dict[Endpoint, None] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._down: set[str] = set()
        self._next_port = 30_000
        self._context = contextvars.Context()
        self.addresses: dict[Life, str] = {}
        loop.network = self

    def later(self, when: float, function: Callable[..., object], *args: Any) -> None:
        self.loop.call_at(when, function, *args, context=self._context.copy())

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link()
        return found

    def is_up(self, address: str) -> bool:
        return address not in self._down

    def set_up(self, address: str, *, is_up: bool) -> None:
        """Whether the machine has power."""
        (self._down.discard if is_up else self._down.add)(address)

    # Faults

    def cut(self, source: str, target: str) -> None:
        self.link(source, target).cut = True

    def slow(self, source: str, target: str, delay_seconds: float) -> None:
        self.link(source, target).delay_seconds = delay_seconds

    def heal(self) -> None:
        for link in self._links.values():
            link.cut = False
            link.delay_seconds = 0.0005
        stalled, self.stalled = list(self.stalled), {}
        for endpoint in stalled:
            endpoint.go_on()

    def reset_some(self) -> None:
        """Break one connection at both ends."""
        if self.endpoints:
            endpoint = self.random.choice(list(self.endpoints))
            self.reset_peer(endpoint)
            endpoint.reset()

    def reset_peer(self, endpoint: Endpoint) -> None:
        peer = endpoint.peer
        if peer is not None:
            delay = self.link(endpoint.local[0], endpoint.remote[0]).delay_seconds
            self.later(self.loop.time() + delay, peer.reset)

    def process_ended(self, life: Life, *, is_machine_down: bool) -> None:
        """Its listeners are gone; its peers get a reset, unless the machine has no power."""
        for address in [at for at, listener in self.listeners.items() if listener.life is life]:
            del self.listeners[address]
        for endpoint in [each for each in self.endpoints if each.life is life]:
            del self.endpoints[endpoint]
            self.stalled.pop(endpoint, None)
            if not is_machine_down:
                self.reset_peer(endpoint)

    # What the loop offers

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> SimulatedServer:
        life = current_life.get()
        if port == 0:
            self._next_port += 1
            port = self._next_port
        address = (self.addresses[life], port)
        if address in self.listeners:
            raise OSError(98, f"Address already in use: {address}")
        self.listeners[address] = Listener(factory, life, contextvars.copy_context())
        return SimulatedServer(self, address)

    async def connect(
        self, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Endpoint, Any]:
        life = current_life.get()
        source, target = self.addresses[life], (host, port)
        there, back = self.link(source, host), self.link(host, source)
        began = self.loop.time()
        while there.cut or back.cut or not self.is_up(host):
            if self.loop.time() - began > GIVE_UP_SECONDS:
                raise TimeoutError(110, "Connection timed out")
            await asyncio.sleep(1.0)
        await asyncio.sleep(
            (there.delay_seconds + back.delay_seconds) * (0.5 + self.random.random())
        )
        listener = self.listeners.get(target)
        if listener is None:
            raise ConnectionRefusedError(111, f"Connect call failed {target}")
        self._next_port += 1
        near = Endpoint(self, life, (source, self._next_port), target)
        far = Endpoint(self, listener.life, target, near.local)
        near.peer, far.peer = far, near
        far.context = listener.context.copy()
        self.endpoints[near] = self.endpoints[far] = None
        self.trace.add(f"connect {source}>{host}:{port}")
        far.call(self._accept, far, listener)
        near.protocol = factory()
        near.protocol.connection_made(near)
        return near, near.protocol

    @staticmethod
    def _accept(endpoint: Endpoint, listener: Listener) -> None:
        endpoint.protocol = listener.factory()
        endpoint.protocol.connection_made(endpoint)
