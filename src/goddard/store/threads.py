"""The store's own threads: one worker runs short jobs in order and others at intervals.

The store owns its workers and stops them when it closes; tests give it a worker that runs jobs in
the calling thread (``tests.support.store.InlineWorker``).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

Job: TypeAlias = Callable[[], None]

logger = logging.getLogger(__name__)


class Worker(Protocol):
    def submit(self, job: Job) -> None:
        """Run a job soon, after those submitted before it."""

    def every(self, interval_ms: int, job: Job) -> None:
        """Run a job at intervals until the worker stops."""

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

    def stop(self) -> None:
        with self._wakeup:
            self._is_stopping = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._is_stopping:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

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
