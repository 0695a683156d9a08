"""A machine: its address, clock and disk, and the process that runs on it."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from random import Random
from typing import Final, TypeVar

from goddard.environment import Environment
from goddard.environment.threads import Job
from tests.support.simulation.disk import Disk, DiskFiles
from tests.support.simulation.loop import Life, SimulatedExecutor, SimulatedLoop, start_in
from tests.support.simulation.network import Network
from tests.support.simulation.trace import Trace

T = TypeVar("T")

START_MS: Final = 1_700_000_000_000


class NodeClock:
    """Wall time is off by ``skew_ms``; monotonic time begins with the machine."""

    def __init__(self, loop: SimulatedLoop, skew_ms: int) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return START_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)


class LoopWorker:
    """A worker of a store, whose jobs the loop runs after a while, in order.

    Jobs that prepare files run at once: an append waits for them as for another thread.
    """

    def __init__(self, loop: SimulatedLoop, random: Random, name: str) -> None:
        self._loop = loop
        self._random = random
        self._is_direct = name == "store-files"
        self._jobs: deque[Job] = deque()
        self._periodic: list[asyncio.TimerHandle] = []
        self._is_stopped = False

    def submit(self, job: Job) -> None:
        if self._is_stopped or self._is_direct:
            job()
            return
        self._jobs.append(job)
        self._loop.call_later(self._random.random() * 0.005, self._run_one)

    def _run_one(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def every(self, interval_ms: int, job: Job) -> None:
        def run() -> None:
            if not self._is_stopped:
                job()
                self._loop.call_later(interval_ms / 1000, run)

        self._loop.call_later(interval_ms / 1000, run)

    def pause(self, seconds: float) -> None:
        """No time passes within a job."""

    def stop(self) -> None:
        self._is_stopped = True
        while self._jobs:
            self._jobs.popleft()()


class Node:
    """One machine. ``start`` a process, ``kill`` it, or cut the power."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        trace: Trace,
        name: str,
        address: str,
        seed: str,
    ) -> None:
        self.loop = loop
        self.network = network
        self.trace = trace
        self.name = name
        self.address = address
        self._seed = seed
        random = Random(f"{seed} {name}")
        self.clock = NodeClock(loop, random.randrange(-2_000, 2_000))
        self.disk = Disk(random, trace, loop, name)
        self.life = Life(name)
        self.life.is_over = True
        self._starts = 0
        self.is_lost = False  # for good, with its disk

    @property
    def is_running(self) -> bool:
        return not self.life.is_over

    def new_life(self) -> Environment:
        """A new process, and what it gets of the machine."""
        self._starts += 1
        life = self.life = Life(self.name)
        self.network.addresses[life] = self.address
        self.network.set_up(self.address, is_up=True)
        random = Random(f"{self._seed} {self.name} {self._starts}")
        process_id = 1000 + self._starts

        def new_worker(name: str) -> LoopWorker:
            return LoopWorker(self.loop, random, name)

        def new_executor(threads: int, name: str) -> Executor:
            return SimulatedExecutor()

        return Environment(
            clock=self.clock,
            random=random,
            files=DiskFiles(self.disk, life, self.clock.now_ms),
            new_worker=new_worker,
            new_executor=new_executor,
            start_thread=_no_thread,
            process_id=lambda: process_id,
        )

    def run(self, function: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
        """Run a coroutine function in this process."""
        return start_in(self.life, function, self.loop)

    def kill(self) -> None:
        """As kill -9: what was written is kept."""
        self._end("is killed", is_machine_down=False)

    def lose_power(self) -> None:
        """What was not synced is lost, and peers are told nothing."""
        self._end("loses its power", is_machine_down=True)
        self.disk.lose_power()

    def _end(self, what: str, *, is_machine_down: bool) -> None:
        self.trace.note(f"{self.name} {what}")
        self.life.end()
        self.network.set_up(self.address, is_up=not is_machine_down)
        self.network.process_ended(self.life, is_machine_down=is_machine_down)

    def stopped(self) -> None:
        """The process has ended by itself."""
        self.life.end()
        self.network.process_ended(self.life, is_machine_down=False)


def _no_thread(target: Job, name: str) -> threading.Thread:
    raise RuntimeError(f"a simulated node starts no threads: {name}")
