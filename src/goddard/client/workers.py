"""Where listeners run: threads for plain functions, a few tasks of the loop for coroutines.

Jobs are handed over in bulk and come back in bulk. A thread takes its next job from one queue
without a word to the loop; finished jobs gather, and the loop is woken once for all that gathered
meanwhile. That, and no task or future per message, is what makes consuming fast.

Both kinds start small and grow only while all of them are busy and jobs wait. A job may be many
calls of the listener; with ``shares`` several workers run it at once, each making the next call
that nobody makes yet, so that handing over many calls together takes nothing from their being made
beside each other. How many calls a job has left is its ``__length_hint__``, one if it has none.

``submit``, ``running`` and ``close`` belong to the loop; ``run`` is called in the worker and must
not raise.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from operator import length_hint
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from goddard.clock import Clock
from goddard.transport.tasks import Tasks

_J = TypeVar("_J")

# While jobs wait, the threads are looked at this often.
_TICK_SECONDS: Final = 0.005
# More threads help when calls take long (they wait for something), and harm when calls are short
# (they fight for the interpreter). The line is half a millisecond: ten calls in a tick.
_CALLS_PER_TICK: Final = 10
_TICKS_IN_A_ROW: Final = 3
# A coroutine that never waits gives the loop a turn after so many jobs.
_JOBS_PER_TURN: Final = 32
# Calls that are about to end are waited for, however short the time given.
_LEAST_WAIT_MS: Final = 100
_POLL_SECONDS: Final = 0.005

_logger: Final = logging.getLogger("goddard.client")


class Worker(Generic[_J]):
    """A thread or a task. ``run`` is given it, to note in it how the calls get on.

    ``call`` is what the listener is called with just now, since ``start_ms``; it is set after that.
    """

    __slots__ = ("call", "calls", "is_closed", "job", "start_ms")

    def __init__(self) -> None:
        self.job: _J | None = None
        self.call: object = None
        self.start_ms = 0
        # Those that ended.
        self.calls = 0
        # No call is to be begun any more.
        self.is_closed = False


class Workers(Protocol[_J]):
    """Run jobs, so many at a time."""

    @property
    def size(self) -> int: ...

    def submit(self, jobs: Iterable[_J]) -> None:
        """Have jobs run; none is once they are closed."""

    def busy(self) -> list[Worker[_J]]:
        """The workers that run a job just now."""

    def running(self) -> list[_J]:
        """The jobs that workers are busy with just now."""

    async def close(self, wait_ms: int) -> None:
        """Start no more jobs, and give those that run so long to end."""


def _calls_in(jobs: deque[_J], enough: int = 1) -> int:
    """How many calls wait, or ``enough`` if there are more."""
    count = 0
    # Of a copy, which is made at once: threads take jobs meanwhile.
    for job in list(jobs):
        count += length_hint(job, 1)
        if count >= enough:
            return enough
    return count


class _Thread(Worker[_J]):
    """A thread, asleep until it is woken through ``wake``."""

    __slots__ = ("calls_seen", "is_asleep", "is_stuck", "thread", "wake")

    def __init__(self) -> None:
        super().__init__()
        self.thread: threading.Thread | None = None
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.is_asleep = False
        # Made by the last look at it; a call that has lasted since then has it stuck.
        self.calls_seen = 0
        self.is_stuck = False

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class Threads(Generic[_J]):
    """Threads that take jobs from one queue. ``done`` gets finished ones, on the loop.

    With ``shares`` it also gets jobs that are being run, every few milliseconds and whenever one of
    the threads has made the last of their calls, to see to those that have ended.

    As many are awake as the listener makes use of: one, if its calls are short; more, if they take
    their time; and besides one for each that is stuck in a call.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[_J, Worker[_J]], None],
        done: Callable[[list[_J]], None],
        *,
        max_threads: int,
        clock: Clock,
        shares: bool = False,
    ) -> None:
        self._name = name
        self._run = run
        self._done = done
        self._max_threads = max_threads
        self._clock = clock
        self._shares = shares
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[_J] = deque()
        self._finished: deque[_J] = deque()
        self._is_woken = False
        self._is_closed = False
        self._threads: list[_Thread[_J]] = []
        self._level = 1
        self._slow_ticks = 0
        self._fast_ticks = 0
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        return len(self._threads)

    def submit(self, jobs: Iterable[_J]) -> None:
        if self._is_closed:
            return
        self._jobs.extend(jobs)
        self._rouse()
        if self._ticker is None:
            self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    def busy(self) -> list[Worker[_J]]:
        return [thread for thread in self._threads if thread.job is not None]

    def running(self) -> list[_J]:
        return [job for thread in self._threads if (job := thread.job) is not None]

    async def close(self, wait_ms: int) -> None:
        self._is_closed = True
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        self._jobs.clear()
        for thread in self._threads:
            thread.is_closed = True
            thread.wake.put(None)
        deadline_ms = self._clock.monotonic_ms() + max(wait_ms, _LEAST_WAIT_MS)
        while any(thread.is_alive for thread in self._threads):
            await asyncio.sleep(_POLL_SECONDS)
            if self._clock.monotonic_ms() > deadline_ms:
                break
        self._collect()
        if busy := self.running():
            if self._shares:
                self._done(busy)
            _logger.warning(
                "%d listener calls of %s did not end within %d ms; they are left to themselves and "
                "their messages are delivered again",
                len(busy),
                self._name,
                wait_ms,
            )

    def _rouse(self) -> None:
        """Have enough threads awake for the jobs that wait."""
        wanted = _calls_in(self._jobs, self._level)
        for thread in self._threads:
            if wanted <= 0:
                return
            if thread.is_asleep:
                # Here too, so that it is woken once.
                thread.is_asleep = False
                thread.wake.put(None)
                wanted -= 1
            elif not thread.is_stuck:
                wanted -= 1
        for _ in range(min(wanted, self._max_threads - len(self._threads))):
            self._start_thread()

    def _tick(self) -> None:
        """See how the threads get on, while jobs wait."""
        self._ticker = None
        active = made = 0
        for thread in self._threads:
            calls = thread.calls
            thread.is_stuck = not thread.is_asleep and calls == thread.calls_seen
            if not thread.is_asleep:
                active += 1
                made += calls - thread.calls_seen
            thread.calls_seen = calls
        if self._shares and (running := self.running()):
            self._done(running)
        if not _calls_in(self._jobs):
            self._slow_ticks = self._fast_ticks = 0
            return
        if made < active * _CALLS_PER_TICK:
            self._fast_ticks = 0
            self._slow_ticks += 1
            if self._slow_ticks >= _TICKS_IN_A_ROW:
                self._level = min(self._level * 2, self._max_threads)
        else:
            self._slow_ticks = 0
            self._fast_ticks += 1
            if self._fast_ticks >= _TICKS_IN_A_ROW:
                self._level = max(1, self._level // 2)
        self._rouse()
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _start_thread(self) -> None:
        thread: _Thread[_J] = _Thread()
        # A listener that hangs must not keep the process from ending.
        thread.thread = threading.Thread(
            target=self._work,
            args=(thread,),
            name=f"{self._name}-{len(self._threads) + 1}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.thread.start()

    def _work(self, thread: _Thread[_J]) -> None:
        jobs, run, finished = self._jobs, self._run, self._finished
        while not self._is_closed:
            try:
                # One that is shared stays there, for others to help with, as long as it has calls.
                job = jobs[0] if self._shares else jobs.popleft()
            except IndexError:
                thread.is_asleep = True
                # A job that came before that was seen is taken at once; one that comes after wakes.
                if not jobs:
                    thread.wake.get()
                thread.is_asleep = False
                continue
            thread.job = job
            run(job, thread)
            thread.calls += 1
            if self._shares:
                # Unless another has done it.
                with suppress(ValueError):
                    jobs.remove(job)
            finished.append(job)
            # Looked at after the append, and cleared before the jobs are taken: none stays behind.
            if not self._is_woken:
                self._is_woken = True
                # The loop is closed when a listener outlives its consumer.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._collect)
            thread.job = thread.call = None

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
        run: Callable[[_J, Worker[_J]], Awaitable[None]],
        done: Callable[[list[_J]], None],
        *,
        max_tasks: int,
        shares: bool = False,
    ) -> None:
        self._name = name
        self._run = run
        self._done = done
        self._max_tasks = max_tasks
        self._shares = shares
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._jobs: deque[_J] = deque()
        self._finished: list[_J] = []
        self._busy: set[Worker[_J]] = set()
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

    def busy(self) -> list[Worker[_J]]:
        return list(self._busy)

    def running(self) -> list[_J]:
        return [worker.job for worker in self._busy if worker.job is not None]

    async def close(self, wait_ms: int) -> None:
        self._max_tasks = 0
        self._jobs.clear()
        for worker in self._busy:
            worker.is_closed = True
        try:
            if self._busy:
                self._quiet = asyncio.Event()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(wait_ms, _LEAST_WAIT_MS) / 1000):
                        await self._quiet.wait()
            self._collect()
            if self._busy:
                if self._shares:
                    self._done(self.running())
                _logger.warning(
                    "%d listener calls of %s did not end within %d ms; they are cancelled and "
                    "their messages are delivered again",
                    len(self._busy),
                    self._name,
                    wait_ms,
                )
        finally:
            await self._tasks.stop()

    def _grow(self) -> None:
        """Have one more task at work as long as jobs wait: the last took none, or has to wait."""
        self._is_growing = False
        if not _calls_in(self._jobs):
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
            self._tasks.spawn(self._work(), f"{self._name}-{number}")
        self._is_growing = True
        self._loop.call_soon(self._grow)

    async def _work(self) -> None:
        jobs, busy, run = self._jobs, self._busy, self._run
        worker: Worker[_J] = Worker()
        in_a_row = 0
        while True:
            while jobs:
                worker.job = job = jobs[0] if self._shares else jobs.popleft()
                busy.add(worker)
                try:
                    await run(job, worker)
                finally:
                    busy.discard(worker)
                    worker.job = worker.call = None
                    if self._quiet is not None and not busy:
                        self._quiet.set()
                if self._shares:
                    # Unless another has done it.
                    with suppress(ValueError):
                        jobs.remove(job)
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
