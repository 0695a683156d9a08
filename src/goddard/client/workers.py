"""Where listeners run: threads for plain functions, a few tasks of the loop for coroutines.

Jobs are handed over in bulk and come back in bulk. A thread takes its next job from one queue
without a word to the loop; finished jobs gather, and the loop is woken once for all that gathered
meanwhile. That, and no task or future per message, is what makes consuming fast.

Both kinds start small and grow only while all of them are busy and jobs wait. ``submit``,
``running`` and ``close`` belong to the loop; ``run`` is called in the worker and must not raise.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from goddard.clock import Clock
from goddard.transport.tasks import Tasks

_J = TypeVar("_J")

# While jobs wait, the pace of the threads is looked at this often.
_TICK_SECONDS: Final = 0.005
# Jobs that would take longer than this to be taken at the present pace ask for one more thread.
_PATIENCE_TICKS: Final = 4
# A coroutine that never waits gives the loop a turn after so many jobs.
_JOBS_PER_TURN: Final = 32
# Calls that are about to end are waited for, however short the time given.
_LEAST_WAIT_MS: Final = 100
_POLL_SECONDS: Final = 0.005

_logger: Final = logging.getLogger("goddard.client")


class Workers(Protocol[_J]):
    """Run jobs, so many at a time."""

    @property
    def size(self) -> int: ...

    def submit(self, jobs: Iterable[_J]) -> None:
        """Have jobs run; none is once they are closed."""

    def running(self) -> list[_J]:
        """The jobs that workers are busy with just now."""

    async def close(self, wait_ms: int) -> None:
        """Start no more jobs, and give those that run so long to end."""


class _Thread(Generic[_J]):
    __slots__ = ("calls", "current", "thread")

    def __init__(self) -> None:
        self.calls = 0
        self.current: _J | None = None
        self.thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class Threads(Generic[_J]):
    """Threads that take jobs from one queue. ``done`` gets finished ones, on the loop."""

    def __init__(
        self,
        name: str,
        run: Callable[[_J], None],
        done: Callable[[list[_J]], None],
        *,
        max_threads: int,
        clock: Clock,
    ) -> None:
        self._name = name
        self._run = run
        self._done = done
        self._max_threads = max_threads
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_J | None] = SimpleQueue()
        self._finished: deque[_J] = deque()
        self._is_woken = False
        self._threads: list[_Thread[_J]] = []
        self._calls_seen = 0
        self._slow_ticks = 0
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        return len(self._threads)

    def submit(self, jobs: Iterable[_J]) -> None:
        if not self._max_threads:
            return
        put = self._jobs.put
        for job in jobs:
            put(job)
        if not self._threads:
            self._grow(1)
        if self._ticker is None and len(self._threads) < self._max_threads:
            self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    def running(self) -> list[_J]:
        return [job for thread in self._threads if (job := thread.current) is not None]

    async def close(self, wait_ms: int) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        self._max_threads = 0
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        deadline_ms = self._clock.monotonic_ms() + max(wait_ms, _LEAST_WAIT_MS)
        while any(worker.is_alive for worker in self._threads):
            await asyncio.sleep(_POLL_SECONDS)
            if self._clock.monotonic_ms() > deadline_ms:
                break
        self._collect()
        if busy := self.running():
            _logger.warning(
                "%d listener calls of %s did not end within %d ms; they are left to themselves and "
                "their messages are delivered again",
                len(busy),
                self._name,
                wait_ms,
            )

    def _tick(self) -> None:
        """Start threads if those there are cannot keep up."""
        self._ticker = None
        waiting = self._jobs.qsize()
        calls = sum(thread.calls for thread in self._threads)
        taken, self._calls_seen = calls - self._calls_seen, calls
        if waiting <= taken * _PATIENCE_TICKS:
            self._slow_ticks = 0
            if not waiting:
                return
        else:
            self._slow_ticks += 1
            # Once may be because the loop, not a listener, kept them from running.
            if self._slow_ticks > 1:
                self._grow(min(waiting, len(self._threads)))
        if len(self._threads) < self._max_threads:
            self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _grow(self, count: int) -> None:
        for _ in range(min(count, self._max_threads - len(self._threads))):
            worker: _Thread[_J] = _Thread()
            # A listener that hangs must not keep the process from ending.
            worker.thread = threading.Thread(
                target=self._work,
                args=(worker,),
                name=f"{self._name}-{len(self._threads) + 1}",
                daemon=True,
            )
            self._threads.append(worker)
            worker.thread.start()

    def _work(self, worker: _Thread[_J]) -> None:
        get, run, finished = self._jobs.get, self._run, self._finished
        while (job := get()) is not None:
            worker.current = job
            run(job)
            worker.calls += 1
            finished.append(job)
            # Looked at after the append, and cleared before the jobs are taken: none stays behind.
            if not self._is_woken:
                self._is_woken = True
                # The loop is closed when a listener outlives its consumer.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._collect)
            worker.current = None

    def _collect(self) -> None:
        self._is_woken = False
        finished = self._finished
        # More may be appended meanwhile.
        jobs = [finished.popleft() for _ in range(len(finished))]
        if jobs:
            self._done(jobs)


class Coroutines(Generic[_J]):
    """Tasks of the loop that await one job after the other. ``done`` gets finished ones.

    Jobs whose coroutine never waits are run by one task in a row.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[_J], Awaitable[None]],
        done: Callable[[list[_J]], None],
        *,
        max_tasks: int,
    ) -> None:
        self._name = name
        self._run = run
        self._done = done
        self._max_tasks = max_tasks
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._jobs: deque[_J] = deque()
        self._finished: list[_J] = []
        self._current: dict[int, _J] = {}
        self._idle: list[asyncio.Future[None]] = []
        # While it is closed: no job is running any more.
        self._quiet: asyncio.Event | None = None
        self._is_growing = False

    @property
    def size(self) -> int:
        return len(self._tasks)

    def submit(self, jobs: Iterable[_J]) -> None:
        if not self._max_tasks:
            return
        self._jobs.extend(jobs)
        if not self._is_growing:
            self._is_growing = True
            self._loop.call_soon(self._grow)

    def running(self) -> list[_J]:
        return list(self._current.values())

    async def close(self, wait_ms: int) -> None:
        self._max_tasks = 0
        self._jobs.clear()
        if self._current:
            self._quiet = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait_ms, _LEAST_WAIT_MS) / 1000):
                    await self._quiet.wait()
        self._collect()
        if self._current:
            _logger.warning(
                "%d listener calls of %s did not end within %d ms; they are cancelled and their "
                "messages are delivered again",
                len(self._current),
                self._name,
                wait_ms,
            )
        await self._tasks.stop()

    def _grow(self) -> None:
        """Have one more task at work as long as jobs wait: the last took none, or has to wait."""
        self._is_growing = False
        if not self._jobs:
            return
        while self._idle:
            future = self._idle.pop()
            if not future.done():
                future.set_result(None)
                break
        else:
            if len(self._tasks) >= self._max_tasks:
                return
            number = len(self._tasks) + 1
            self._tasks.spawn(self._work(number), f"{self._name}-{number}")
        self._is_growing = True
        self._loop.call_soon(self._grow)

    async def _work(self, number: int) -> None:
        jobs, current, run = self._jobs, self._current, self._run
        in_a_row = 0
        while True:
            while jobs:
                current[number] = job = jobs.popleft()
                try:
                    await run(job)
                finally:
                    del current[number]
                    if self._quiet is not None and not current:
                        self._quiet.set()
                if not self._finished:
                    self._loop.call_soon(self._collect)
                self._finished.append(job)
                in_a_row += 1
                if in_a_row >= _JOBS_PER_TURN:
                    in_a_row = 0
                    await asyncio.sleep(0)
            in_a_row = 0
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle

    def _collect(self) -> None:
        jobs, self._finished = self._finished, []
        if jobs:
            self._done(jobs)
