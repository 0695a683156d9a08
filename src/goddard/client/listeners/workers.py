"""Workers that call listeners: threads for plain functions, tasks of the loop for coroutines.

Jobs are submitted in bulk, and finished jobs are collected in bulk. Threads take jobs from one
queue without the loop; finished jobs collect, and the loop is woken once for all of them. There is
no task and no future per message, which makes consuming fast.

Both kinds start with one worker and add others only while all are busy and jobs wait. A job may be
many calls of the listener. With ``shares`` several workers run a job at once, each taking the next
call, so bulk submission stays parallel. A job's ``__length_hint__`` is the number of calls that it
has left; a job without it is one call.

``submit``, ``running`` and ``close`` belong to the loop; ``run`` is called in the worker and must
not raise.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from operator import length_hint
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from goddard.environment import Environment
from goddard.transport.tasks import Tasks

_J = TypeVar("_J")

# While jobs wait, the number of threads is adjusted this often.
_TICK_SECONDS: Final = 0.005
# More threads help when calls take long, because they wait for something, and harm when calls are
# short, because they compete for the interpreter. The limit is half a millisecond per call.
_CALLS_PER_TICK: Final = 10
_TICKS_IN_A_ROW: Final = 3
# A task whose coroutines never wait gives the loop a turn after so many jobs.
_JOBS_PER_TURN: Final = 32
# Closing waits at least this long, for calls that are about to end.
_LEAST_WAIT_MS: Final = 100
_POLL_SECONDS: Final = 0.005

_logger: Final = logging.getLogger("goddard.client")


class Worker(Generic[_J]):
    """A thread or a task; ``run`` gets it and keeps its fields up to date.

    ``call`` is what the listener is called with now, since ``start_ms``, which is set first.
    """

    __slots__ = ("call", "calls", "is_closed", "job", "start_ms")

    def __init__(self) -> None:
        self.job: _J | None = None
        self.call: object = None
        self.start_ms = 0
        # The number of calls that have ended.
        self.calls = 0
        # No more calls may start.
        self.is_closed = False


class Workers(Protocol[_J]):
    """Runs jobs, several at a time."""

    @property
    def size(self) -> int: ...

    def submit(self, jobs: Iterable[_J]) -> None:
        """Run jobs; ignored after ``close``."""

    def busy(self) -> list[Worker[_J]]:
        """The workers that run a job now."""

    def running(self) -> list[_J]:
        """The jobs that workers run now."""

    async def close(self, wait_ms: int) -> None:
        """Start no more jobs; wait up to ``wait_ms`` for those that run."""


def _calls_in(jobs: deque[_J], enough: int = 1) -> int:
    """The number of waiting calls, but at most ``enough``."""
    count = 0
    # Over a copy, made in one step: threads take jobs meanwhile.
    for job in list(jobs):
        count += length_hint(job, 1)
        if count >= enough:
            return enough
    return count


class _Thread(Worker[_J]):
    """A thread that sleeps until it is woken through ``wake``."""

    __slots__ = ("calls_seen", "is_asleep", "is_stuck", "thread", "wake")

    def __init__(self) -> None:
        super().__init__()
        self.thread: threading.Thread | None = None
        self.wake: SimpleQueue[None] = SimpleQueue()
        self.is_asleep = False
        # ``calls`` at the last tick. A thread is stuck if one call has lasted since then.
        self.calls_seen = 0
        self.is_stuck = False

    @property
    def is_alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class Threads(Generic[_J]):
    """Threads that take jobs from one queue. ``done`` gets finished jobs, on the loop.

    With ``shares`` it also gets running jobs, every few milliseconds and when a thread has made the
    last of their calls, to handle the calls that have ended.

    The number of threads that are awake follows the listener: one if its calls are short, more if
    they are slow, and one more for each thread that is stuck in a call.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[_J, Worker[_J]], None],
        done: Callable[[list[_J]], None],
        *,
        max_threads: int,
        environment: Environment,
        shares: bool = False,
    ) -> None:
        self._name = name
        self._run = run
        self._done = done
        self._max_threads = max_threads
        self._clock = environment.clock
        self._start = environment.start_thread
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
        self._wake_enough()
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
                "%d listener calls of %s did not end within %d ms; they are abandoned, and their "
                "messages are delivered again",
                len(busy),
                self._name,
                wait_ms,
            )

    def _wake_enough(self) -> None:
        """Wake or start enough threads for the waiting jobs."""
        wanted = _calls_in(self._jobs, self._level)
        for thread in self._threads:
            if wanted <= 0:
                return
            if thread.is_asleep:
                # Set here too, so that it is woken only once.
                thread.is_asleep = False
                thread.wake.put(None)
                wanted -= 1
            elif not thread.is_stuck:
                wanted -= 1
        for _ in range(min(wanted, self._max_threads - len(self._threads))):
            self._start_thread()

    def _tick(self) -> None:
        """Adjust the number of threads while jobs wait."""
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
        self._wake_enough()
        self._ticker = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _start_thread(self) -> None:
        thread: _Thread[_J] = _Thread()
        name = f"{self._name}-{len(self._threads) + 1}"
        self._threads.append(thread)
        thread.thread = self._start(partial(self._work, thread), name)

    def _work(self, thread: _Thread[_J]) -> None:
        jobs, run, finished = self._jobs, self._run, self._finished
        while not self._is_closed:
            try:
                # A shared job stays in the queue for other threads while it has calls.
                job = jobs[0] if self._shares else jobs.popleft()
            except IndexError:
                thread.is_asleep = True
                # A job submitted before this is taken at once; a later one wakes the thread.
                if not jobs:
                    thread.wake.get()
                thread.is_asleep = False
                continue
            thread.job = job
            run(job, thread)
            thread.calls += 1
            if self._shares:
                # Unless another thread has removed it.
                with suppress(ValueError):
                    jobs.remove(job)
            finished.append(job)
            # Read after the append, and cleared before jobs are taken: no job is missed.
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
    """Tasks of the loop that await one job after the other. ``done`` gets finished jobs.

    Jobs whose coroutines never wait are run by one task, one after the other.
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
        self._busy: dict[Worker[_J], None] = {}
        self._idle: list[asyncio.Future[None]] = []
        # During ``close``: set when no job runs any more.
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
        """Wake or start one more task while jobs wait."""
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
                busy[worker] = None
                try:
                    await run(job, worker)
                finally:
                    busy.pop(worker, None)
                    worker.job = worker.call = None
                    if self._quiet is not None and not busy:
                        self._quiet.set()
                if self._shares:
                    # Unless another task has removed it.
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
