"""The loop thread of the blocking clients: start and end, wake-ups, interrupts, forks, exits."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from goddard.client.blocking.loop import LoopThread, SharedLoop
from goddard.client.errors import NotRunningError

WAIT_SECONDS = 30


def threads_of_ours() -> set[str]:
    return {item.name for item in threading.enumerate() if item.name.startswith("goddard-")}


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()
    assert threads_of_ours() == set()


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def nothing() -> None:
    pass


class Noted:
    """A job that records its end."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.thread = ""

    def begin(self) -> None:
        self.thread = threading.current_thread().name
        self.done.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done.set()


class TestRun:
    def test_the_result_of_a_coroutine(self, thread: LoopThread) -> None:
        async def name() -> str:
            await asyncio.sleep(0)
            return threading.current_thread().name

        assert thread.run(name) == "goddard-client"

    def test_the_result_of_a_future(self, thread: LoopThread) -> None:
        def begin() -> asyncio.Future[int]:
            future = asyncio.get_running_loop().create_future()
            future.set_result(7)
            return future

        assert thread.run(begin) == 7

    def test_errors_before_and_after_the_begin_go_to_the_caller(self, thread: LoopThread) -> None:
        async def later() -> None:
            raise ValueError("later")

        def at_once() -> asyncio.Future[None]:
            raise TypeError("at once")

        with pytest.raises(ValueError, match="later"):
            thread.run(later)
        with pytest.raises(TypeError, match="at once"):
            thread.run(at_once)

    def test_system_exit_goes_to_the_caller_and_the_loop_continues(
        self, thread: LoopThread
    ) -> None:
        def leave() -> asyncio.Future[None]:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            thread.run(leave)
        thread.run(nothing)

    def test_many_threads_at_once(self, thread: LoopThread) -> None:
        found: list[int] = []

        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * number

        def work(first: int) -> None:
            found.extend(
                thread.run(partial(double, number)) for number in range(first, first + 200)
            )

        workers = [threading.Thread(target=work, args=(200 * index,)) for index in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(WAIT_SECONDS)
        assert sorted(found) == list(range(0, 2_000, 2))

    def test_a_wait_on_the_loop_itself_is_refused(self, thread: LoopThread) -> None:
        async def wait_for_itself() -> None:
            thread.run(nothing)

        with pytest.raises(RuntimeError, match="would wait for itself"):
            thread.run(wait_for_itself)

    def test_interrupt_cancels_the_call(self, thread: LoopThread) -> None:
        ended = threading.Event()
        interrupts = []

        def interrupt(*_: object) -> None:
            interrupts.append(True)
            if len(interrupts) == 1:
                raise KeyboardInterrupt

        async def interrupted() -> None:
            try:
                # Repeated until seen: an interrupt just before the wait does not end the wait.
                while not interrupts:
                    os.kill(os.getpid(), signal.SIGINT)
                    await asyncio.sleep(0.02)
                await forever()
            finally:
                ended.set()

        usual = signal.signal(signal.SIGINT, interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                thread.run(interrupted)
            assert ended.wait(WAIT_SECONDS)
        finally:
            signal.signal(signal.SIGINT, usual)

    def test_the_end_of_the_loop_ends_the_wait(self) -> None:
        thread = LoopThread()
        begun = threading.Event()

        async def hang() -> None:
            begun.set()
            await forever()

        def close() -> None:
            begun.wait(WAIT_SECONDS)
            thread.close()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(NotRunningError, match="stopped before the call ended"):
            thread.run(hang)
        closer.join(WAIT_SECONDS)
        with pytest.raises(NotRunningError, match="stopped before the call ended"):
            thread.run(nothing)


class TestJobs:
    def test_a_burst_wakes_the_loop_once(self, thread: LoopThread) -> None:
        """The loop is busy until the last job is added, so that it takes none of them before."""
        go = threading.Event()
        wakes = 0

        class Counting:
            def begin(self) -> None:
                nonlocal wakes
                wakes += 1

            def fail(self, error: BaseException) -> None:
                raise AssertionError(error)

        busy = threading.Event()

        def block() -> None:
            busy.set()
            go.wait(WAIT_SECONDS)

        thread.call_soon(block)
        assert busy.wait(WAIT_SECONDS)
        for _ in range(100):
            thread.submit(Counting())
        last = Noted()
        thread.submit(last)
        turns: list[int] = []
        thread.call_soon(lambda: turns.append(wakes))
        go.set()
        assert last.done.wait(WAIT_SECONDS)
        thread.run(nothing)
        assert turns == [100]

    def test_jobs_for_a_loop_that_ended_fail(self) -> None:
        thread = LoopThread()
        thread.close()
        job = Noted()
        thread.submit(job)
        assert isinstance(job.error, NotRunningError)
        assert job.thread == ""


class TestCallbacks:
    def test_callbacks_run_in_a_thread_where_they_may_wait(self, thread: LoopThread) -> None:
        assert threads_of_ours() == {"goddard-client"}
        seen: list[str] = []
        done = threading.Event()

        def callback() -> None:
            thread.run(nothing)
            seen.append(threading.current_thread().name)
            done.set()

        thread.call_back(callback)
        assert done.wait(WAIT_SECONDS)
        assert seen == ["goddard-callbacks"]

    def test_callback_error_is_logged_and_the_next_runs(
        self, thread: LoopThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        done = threading.Event()

        def raising() -> None:
            raise ValueError("mine")

        thread.call_back(raising)
        thread.call_back(done.set)
        assert done.wait(WAIT_SECONDS)
        assert "A callback raised." in caplog.text
        assert "ValueError: mine" in caplog.text

    def test_waiting_callbacks_run_before_the_end(self) -> None:
        thread = LoopThread()
        seen: list[int] = []
        for number in range(100):
            thread.call_back(partial(seen.append, number))
        thread.close()
        assert seen == list(range(100))


class TestSharing:
    def test_first_user_starts_the_loop_and_last_ends_it(self) -> None:
        shared = SharedLoop()
        first, second = object(), object()
        thread = shared.acquire(first, nothing)
        assert shared.acquire(second, nothing) is thread
        shared.release(first)
        thread.run(nothing)
        shared.release(second)
        assert threads_of_ours() == set()
        shared.release(second)

    def test_the_next_user_gets_a_new_loop(self) -> None:
        shared = SharedLoop()
        user = object()
        old = shared.acquire(user, nothing)
        shared.release(user)
        new = shared.acquire(user, nothing)
        try:
            assert new is not old
            new.run(nothing)
        finally:
            shared.release(user)

    def test_the_last_user_may_leave_in_a_callback(self) -> None:
        shared = SharedLoop()
        user = object()
        left = threading.Event()

        def leave() -> None:
            shared.release(user)
            left.set()

        shared.acquire(user, nothing).call_back(leave)
        assert left.wait(WAIT_SECONDS)
        deadline = time.monotonic() + WAIT_SECONDS
        while threads_of_ours() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads_of_ours() == set()


def test_ended_loop_refuses_all_callers() -> None:
    thread = LoopThread()
    thread.close()
    refused = []

    def call() -> None:
        with pytest.raises(NotRunningError):
            thread.run(nothing)
        refused.append(True)

    for _ in range(3):
        # A new thread each time: one of them may get the id that the loop's thread had.
        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        caller.join(WAIT_SECONDS)
    assert len(refused) == 3


def run_program(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_fork_is_refused_the_parents_loop_and_gets_its_own() -> None:
    program = """
import os
from goddard.client.blocking.loop import shared_loop
from goddard.client.errors import ForkedError

async def answer():
    return 42

async def stop():
    pass

thread = shared_loop.acquire("parent", stop)
assert thread.run(answer) == 42
child = os.fork()
if child == 0:
    try:
        thread.run(answer)
    except ForkedError as error:
        print(error, flush=True)
    print(shared_loop.acquire("child", stop).run(answer), flush=True)
    shared_loop.release("child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(thread.run(answer))
shared_loop.release("parent")
"""
    refusal, own, parents = run_program(program).splitlines()
    assert "create clients after the fork" in refusal
    assert (own, parents) == ("42", "42")


def test_running_clients_are_stopped_at_exit() -> None:
    program = """
from goddard.client.blocking.loop import shared_loop

async def stop():
    print("stopped", flush=True)

shared_loop.acquire("client", stop)
print("end of program", flush=True)
"""
    assert run_program(program).splitlines() == ["end of program", "stopped"]
