"""Where listeners run: as many at a time as help, and results in bulk."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from goddard.client.workers import Coroutines, Threads
from goddard.clock import SystemClock

TIMEOUT_SECONDS = 30


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def threads(
    run: Callable[[int], None], done: Callable[[list[int]], None], most: int = 8
) -> Threads[int]:
    return Threads("work", run, done, max_threads=most, clock=SystemClock())


async def test_threads_do_every_job_once_and_tell_in_bulk() -> None:
    done: list[int] = []
    bursts: list[int] = []
    loop_thread = threading.get_ident()

    def collect(jobs: list[int]) -> None:
        assert threading.get_ident() == loop_thread
        bursts.append(len(jobs))
        done.extend(jobs)

    workers = threads(lambda job: None, collect)
    for start in range(0, 20_000, 100):
        workers.submit(range(start, start + 100))
        if start % 1_000 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(done) == 20_000)
    await workers.close(1_000)
    assert sorted(done) == list(range(20_000))
    assert len(bursts) < 20_000


async def test_threads_grow_while_calls_wait_and_not_beyond_the_limit() -> None:
    done: list[int] = []
    gate = threading.Event()

    def run(job: int) -> None:
        gate.wait(TIMEOUT_SECONDS)

    workers = threads(run, done.extend, most=5)
    workers.submit(range(50))
    await until(lambda: workers.size == 5)
    await until(lambda: len(workers.running()) == 5)
    gate.set()
    await until(lambda: len(done) == 50)
    assert workers.size == 5
    await workers.close(1_000)
    assert not [each for each in threading.enumerate() if each.name.startswith("work-")]


async def test_a_call_that_hangs_does_not_stop_the_others() -> None:
    done: list[int] = []
    gate = threading.Event()

    def run(job: int) -> None:
        if job == 0:
            gate.wait(TIMEOUT_SECONDS)

    workers = threads(run, done.extend)
    workers.submit(range(100))
    await until(lambda: len(done) == 99)
    for job in range(100, 110):
        workers.submit([job])
        await asyncio.sleep(0)
    await until(lambda: len(done) == 109)
    assert workers.running() == [0]
    gate.set()
    await until(lambda: 0 in done)
    await workers.close(1_000)


async def test_closing_starts_nothing_more_and_waits_for_what_runs() -> None:
    done: list[int] = []
    begun = threading.Event()

    def run(job: int) -> None:
        begun.set()
        time.sleep(0.2)

    workers = threads(run, done.extend, most=1)
    workers.submit(range(5))
    await until(begun.is_set)
    await workers.close(5_000)
    workers.submit([9])
    assert done == [0]


async def test_closing_leaves_behind_what_hangs(caplog: pytest.LogCaptureFixture) -> None:
    gate, begun = threading.Event(), threading.Event()

    def run(job: int) -> None:
        begun.set()
        gate.wait(TIMEOUT_SECONDS)

    workers = threads(run, lambda jobs: None)
    workers.submit([1])
    await until(begun.is_set)
    await workers.close(10)
    assert "1 listener calls of work did not end within 10 ms" in caplog.text
    gate.set()
    await until(lambda: not any(each.name == "work-1" for each in threading.enumerate()))


async def test_coroutines_run_beside_each_other_within_the_limit() -> None:
    done: list[int] = []
    running = most = 0

    async def run(job: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    workers = Coroutines("work", run, done.extend, max_tasks=4)
    workers.submit(range(40))
    await until(lambda: len(done) == 40)
    assert most == 4
    assert sorted(done) == list(range(40))
    await workers.close(1_000)


async def test_coroutines_that_never_wait_let_the_loop_go_on() -> None:
    done: list[int] = []
    turns = 0

    async def run(job: int) -> None:
        pass

    workers = Coroutines("work", run, done.extend, max_tasks=4)
    workers.submit(range(10_000))
    while len(done) < 10_000:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    await workers.close(1_000)


async def test_coroutines_that_hang_are_cancelled_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[int] = []
    cancelled: list[int] = []

    async def run(job: int) -> None:
        try:
            await asyncio.sleep(0.05 if job == 1 else TIMEOUT_SECONDS)
        except asyncio.CancelledError:
            cancelled.append(job)
            raise

    workers = Coroutines("work", run, done.extend, max_tasks=2)
    workers.submit([1, 2, 3])
    await until(lambda: len(workers.running()) == 2)
    await workers.close(150)
    assert (done, cancelled) == ([1], [2])
    assert "1 listener calls of work did not end within 150 ms" in caplog.text
