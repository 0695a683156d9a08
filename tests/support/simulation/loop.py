"""An event loop with virtual time, which runs the callbacks of many nodes in a seeded order.

Callbacks belong to the node in whose context they were scheduled. Those of one node run in the
order in which they became ready, as asyncio promises; which node is next is a matter of the seed.
When no callback is ready, time jumps to the next timer. Connections are made by the network; jobs
of executors run in the loop, after a seeded delay.
"""

import asyncio
import contextvars
import heapq
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack

from tests.support.simulation.trace import Trace

if TYPE_CHECKING:
    from tests.support.simulation.network import Network

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The node whose code runs; empty outside every node.
current_life: "ContextVar[Life]" = ContextVar("life")
_MAX_EVENTS_AT_A_TIME: Final = 200_000


class Life:
    """One process of a node, from its start to its stop or crash."""

    __slots__ = ("handles", "is_over", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        self.handles: deque[_Handle | _Timer] = deque()

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.is_over = True
        self.handles.clear()


class _Handle(asyncio.Handle):
    """A callback, and the life that it belongs to."""

    __slots__ = ("life",)

    def __init__(self, life: Life, callback: Any, args: Any, loop: Any, context: Any) -> None:
        super().__init__(callback, args, loop, context)
        self.life = life

    def run(self) -> None:
        self._run()


class _Timer(asyncio.TimerHandle):
    """As ``_Handle``, with a time."""

    __slots__ = ("life",)

    def __init__(
        self, life: Life, when: float, callback: Any, args: Any, loop: Any, context: Any
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.life = life

    def run(self) -> None:
        self._run()


class SimulatedExecutor(Executor):
    """What a node gets for a thread pool: the loop runs its jobs, one pool's in order."""

    def __init__(self) -> None:
        self.busy_until = 0.0

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Jobs that were submitted still run."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. ``run`` is the only way in."""

    network: "Network"

    def __init__(self, random: Random, trace: Trace) -> None:
        self._is_closed = False
        self._is_running = False
        super().__init__()
        self._random = random
        self._trace = trace
        self._now = 1.0
        self._events_now = 0
        self._last_fd = 1_000_000
        self._due: list[tuple[float, int, _Timer]] = []
        self._sequence = 0
        self._lives: list[Life] = []  # the lives with handles, in no order
        self._outside = Life("outside")
        self._readers: dict[int, _Handle] = {}
        # Kept to the end: collected earlier, suspended coroutines would run their ``finally``.
        self._tasks: list[asyncio.Task[Any]] = []
        self.executor_seconds = 0.002
        self.errors: list[dict[str, Any]] = []

    # Running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        _set_running_loop(self)
        self._is_running = True
        try:
            task = self.create_task(main)
            while not task.done():
                self._step()
            return task.result()
        finally:
            self._is_running = False
            _set_running_loop(None)

    def _step(self) -> None:
        if not self._lives:
            self._advance()
        life = self._lives[self._random.randrange(len(self._lives))] if self._lives else None
        if life is None:
            return
        if not life.handles:
            self._lives.remove(life)
            return
        handle = life.handles.popleft()
        if not life.handles:
            self._lives.remove(life)
        if not handle.cancelled():
            self._events_now += 1
            if self._events_now > _MAX_EVENTS_AT_A_TIME:
                raise RuntimeError(f"{life.name}: time does not go on: {handle!r}")
            handle.run()

    def _advance(self) -> None:
        while self._due:
            due, _, handle = self._due[0]
            if self._lives and due > self._now:
                return
            heapq.heappop(self._due)
            if handle.cancelled():
                continue
            if due > self._now:
                self._now = due
                self._events_now = 0
            self._enqueue(handle)
        if not self._lives:
            raise RuntimeError("nothing is left to happen: every task waits for ever")

    def _life_of(self, context: contextvars.Context | None) -> Life:
        if context is None:
            return current_life.get(self._outside)
        return context.get(current_life, self._outside)

    def _enqueue(self, handle: _Handle | _Timer) -> None:
        life = handle.life
        if life.is_over or self._is_closed:
            return
        if not life.handles:
            self._lives.append(life)
        life.handles.append(handle)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(self._life_of(context), callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Timer(self._life_of(context), when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._due, (max(when, self._now), self._sequence, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are left out when they are due."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # the context is asyncio's
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[T]":
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )
        self._tasks.append(task)
        return task

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Forget everything; what is suspended never goes on."""
        self._is_closed = True
        self._due.clear()
        self._lives.clear()
        self._tasks.clear()

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_closed:
            self.errors.append(context)

    # Threads, files and the network

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        due = self._now + self._random.random() * self.executor_seconds
        if isinstance(executor, SimulatedExecutor):
            due = executor.busy_until = max(due, executor.busy_until)

        async def run() -> T:
            await asyncio.sleep(due - self._now)
            return func(*args)

        return self.create_task(run())

    def next_fd(self) -> int:
        """A descriptor that no other node has."""
        self._last_fd += 1
        return self._last_fd

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        self._readers[fd] = _Handle(self._life_of(None), callback, args, self, None)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def make_readable(self, fd: int) -> None:
        """A descriptor can be read now."""
        if fd in self._readers:
            self._enqueue(self._readers[fd])

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (str(host), port))]

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, str(host), int(port))

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return self.network.listen(protocol_factory, str(host), int(port))


def life_name() -> str:
    life = current_life.get(None)
    return "-" if life is None else life.name


def start_in(
    life: Life, function: Callable[[], Awaitable[T]], loop: SimulatedLoop
) -> "asyncio.Task[T]":
    """Run a coroutine function as a task of a life."""
    context = contextvars.copy_context()
    context.run(current_life.set, life)

    async def run() -> T:
        return await function()

    return loop.create_task(run(), context=context)
