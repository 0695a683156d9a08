"""Threads: workers of a store, and threads that clients start for listeners.

A worker runs short jobs in order and others at intervals. A store owns its workers and stops them
when it closes; tests give it a worker that runs jobs in the calling thread
(``tests.support.store.InlineWorker``).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol, TypeAlias

Job: TypeAlias = Callable[[], None]
# Makes an executor of at most so many threads; gives them a name.
NewExecutor: TypeAlias = Callable[[int, str], Executor]
# Starts a daemon thread that calls a function; gives it a name.
StartThread: TypeAlias = Callable[[Job, str], threading.Thread]

logger = logging.getLogger(__name__)


def new_thread_pool(threads: int, name: str) -> Executor:
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


def start_thread(target: Job, name: str) -> threading.Thread:
    """A daemon thread: a listener that hangs must not keep the process from ending."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def pause(seconds: float) -> None:
    """Block this thread."""
    time.sleep(seconds)


class Worker(Protocol):
    def submit(self, job: Job) -> None:
        """Run a job soon, after those submitted before it."""

    def every(self, interval_ms: int, job: Job) -> None:
        """Run a job at intervals until the worker stops."""

    def pause(self, seconds: float) -> None:
        """Block; for jobs, which call it between parts of their work."""

    def stop(self) -> None:
        """Finish what was submitted, then end. Jobs submitted later run in the caller."""


class ThreadWorker:
    """A worker with a thread of its own, started by the first job."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Job] = deque()
        self._periodic: list[tuple[float, float, Job]] = []
        self._wakeup = threading.Condition()
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        with self._wakeup:
            if not self._is_stopping:
                self._jobs.append(job)
                self._start()
                self._wakeup.notify()
                return
        job()

    def every(self, interval_ms: int, job: Job) -> None:
        interval = interval_ms / 1000
        with self._wakeup:
            self._periodic.append((time.monotonic() + interval, interval, job))
            self._start()
            self._wakeup.notify()

    def pause(self, seconds: float) -> None:
        pause(seconds)

    def stop(self) -> None:
        with self._wakeup:
            self._is_stopping = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._is_stopping:
            self._thread = start_thread(self._run, self._name)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:  # a job reports its own trouble; this is a defect, and must be seen
                logger.exception("%s: job failed", self._name)

    def _next(self) -> Job | None:
        with self._wakeup:
            while True:
                now = time.monotonic()
                # Those first: under load a job is always waiting, and they come seldom.
                for place, (due, interval, job) in enumerate(self._periodic):
                    if due <= now and not self._is_stopping:
                        self._periodic[place] = (now + interval, interval, job)
                        return job
                if self._jobs:
                    return self._jobs.popleft()
                if self._is_stopping:
                    return None
                dues = [due for due, _, _ in self._periodic]
                self._wakeup.wait(min(dues) - now if dues else None)
