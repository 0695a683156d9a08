"""Where listeners run: as many at a time as help, and results in bulk."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from operator import length_hint

import pytest

from goddard.client.listeners.workers import Coroutines, Threads, Worker
from goddard.environment import Environment
from tests.support.polling import until

TIMEOUT_SECONDS = 30


def threads(
    run: Callable[[int], None], done: Callable[[list[int]], None], most: int = 8
) -> Threads[int]:
    def run_it(job: int, worker: Worker[int]) -> None:
        assert worker.job == job
        run(job)

    return Threads("work", run_it, done, max_threads=most, environment=Environment())


class Load:
    """A job of many calls, which workers share."""

    def __init__(self, calls: Iterable[int]) -> None:
        self.rest = iter(list(calls))
        self.made: list[int] = []

    def __length_hint__(self) -> int:
        return length_hint(self.rest)


async def test_threads_run_every_job_once_and_report_in_bulk() -> None:
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


async def test_closing_abandons_calls_that_hang(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_coroutines_run_concurrently_within_the_limit() -> None:
    done: list[int] = []
    running = most = 0

    async def run(job: int, worker: Worker[int]) -> None:
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

    async def run(job: int, worker: Worker[int]) -> None:
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

    async def run(job: int, worker: Worker[int]) -> None:
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


# --- Jobs of many calls ---------------------------------------------------------------------------


async def test_threads_share_a_job_whose_calls_take_long() -> None:
    load = Load(range(6))
    gate = threading.Event()
    seen: list[Load] = []

    def run(job: Load, worker: Worker[Load]) -> None:
        for call in job.rest:
            gate.wait(TIMEOUT_SECONDS)
            job.made.append(call)
            worker.calls += 1

    workers = Threads(
        "work", run, seen.extend, max_threads=4, environment=Environment(), shares=True
    )
    workers.submit([load])
    await until(lambda: len(workers.busy()) == 4)
    assert workers.running() == [load] * 4
    assert length_hint(load) == 2
    gate.set()
    await until(lambda: len(load.made) == 6 and not workers.busy())
    assert sorted(load.made) == list(range(6))
    await until(lambda: load in seen)
    await workers.close(1_000)


async def test_ended_calls_are_reported_while_another_of_their_job_hangs() -> None:
    first, second = Load(range(10)), Load([100])
    gate = threading.Event()
    told: set[int] = set()

    def run(job: Load, worker: Worker[Load]) -> None:
        for call in job.rest:
            if call == 9:
                gate.wait(TIMEOUT_SECONDS)
            job.made.append(call)
            worker.calls += 1

    def done(jobs: list[Load]) -> None:
        for job in jobs:
            told.update(job.made)

    workers = Threads("work", run, done, max_threads=1, environment=Environment(), shares=True)
    workers.submit([first, second])
    await until(lambda: told == set(range(9)))
    gate.set()
    await until(lambda: told == {*range(10), 100})
    await workers.close(1_000)


async def test_closing_begins_no_further_call_of_a_job() -> None:
    load = Load(range(100))
    gate = threading.Event()
    told: list[Load] = []

    def run(job: Load, worker: Worker[Load]) -> None:
        for call in job.rest:
            if worker.is_closed:
                return
            gate.wait(TIMEOUT_SECONDS)
            job.made.append(call)

    workers = Threads(
        "work", run, told.extend, max_threads=1, environment=Environment(), shares=True
    )
    workers.submit([load])
    await until(lambda: bool(workers.busy()))
    closing = asyncio.create_task(workers.close(TIMEOUT_SECONDS * 1000))
    await until(lambda: all(worker.is_closed for worker in workers.busy()))
    gate.set()
    await closing
    assert load.made == [0]
    assert load in told


async def test_coroutines_share_a_job() -> None:
    load = Load(range(12))
    running = most = 0

    async def run(job: Load, worker: Worker[Load]) -> None:
        nonlocal running, most
        for call in job.rest:
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            job.made.append(call)

    told: list[Load] = []
    workers = Coroutines("work", run, told.extend, max_tasks=4, shares=True)
    workers.submit([load])
    await until(lambda: len(load.made) == 12)
    assert most == 4
    assert sorted(load.made) == list(range(12))
    await until(lambda: load in told)
    await workers.close(1_000)
