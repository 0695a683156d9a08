"""The base of blocking clients, around a small asyncio client."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from goddard.client.blocking import client as client_module
from goddard.client.blocking.client import BlockingClient
from goddard.client.errors import NotRunningError
from goddard.client.values import ServiceState

WAIT_SECONDS = 30


class Echo:
    """An asyncio client that returns its arguments when ``release`` is called."""

    client_id = "127.0.0.1@echo"

    def __init__(self) -> None:
        self.state = ServiceState.CREATED
        self.go = asyncio.Event()
        self.before_start: Callable[[], object] = int
        self.before_stop: Callable[[], object] = int
        self.waiting: list[asyncio.Future[int]] = []

    async def start(self) -> None:
        if self.state is not ServiceState.CREATED:
            raise NotRunningError(f"started once, {self.state.value}")
        self.before_start()
        await asyncio.sleep(0)
        self.state = ServiceState.RUNNING

    async def stop(self) -> None:
        self.before_stop()
        await asyncio.sleep(0)
        self.state = ServiceState.STOPPED

    async def echo(self, number: int) -> int:
        await asyncio.sleep(0)
        return number

    def echo_soon(self, number: int) -> "asyncio.Future[int]":
        if number < 0:
            raise ValueError("no echo of negative numbers")
        future = asyncio.get_running_loop().create_future()
        if self.go.is_set():
            future.set_result(number)
        else:
            self.waiting.append(future)
        return future

    def thread_name(self, before: Callable[[], object] = int) -> str:
        before()
        return threading.current_thread().name

    def release(self) -> None:
        self.go.set()
        for number, future in enumerate(self.waiting):
            future.set_result(number)


class BlockingEcho(BlockingClient[Echo]):
    def __init__(self) -> None:
        super().__init__(Echo())
        self.core = self._core

    def echo(self, number: int) -> int:
        return self._run(lambda: self._core.echo(number))

    def echo_async(
        self, number: int, *, callback: Callable[[Future[int]], object] | None = None
    ) -> Future[int]:
        return self._submit(lambda: self._core.echo_soon(number), callback)

    def thread_name(self, before: Callable[[], object] = int) -> str:
        return self._call(lambda: self._core.thread_name(before))

    def release(self) -> None:
        self._call(self._core.release)

    def fail_pending(self) -> None:
        for submission in list(self._pending):
            submission.fail(NotRunningError("stopped"))


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    left = [item.name for item in threading.enumerate() if item.name.startswith("goddard-")]
    assert left == []


@pytest.fixture
def client() -> Iterator[BlockingEcho]:
    with BlockingEcho() as client:
        yield client


class TestLife:
    def test_it_runs_inside_a_with_block(self) -> None:
        client = BlockingEcho()
        states = [client.state]
        with client as entered:
            assert entered is client
            states.append(client.state)
            assert client.client_id == "127.0.0.1@echo"
            assert client.echo(5) == 5
        states.append(client.state)
        assert states == [ServiceState.CREATED, ServiceState.RUNNING, ServiceState.STOPPED]

    def test_clients_share_a_thread_that_ends_with_the_last(self) -> None:
        with BlockingEcho() as first:
            with BlockingEcho() as second:
                assert first.thread_name() == second.thread_name() == "goddard-client"
                names = [item.name for item in threading.enumerate()]
                assert names.count("goddard-client") == 1
            assert first.echo(1) == 1

    def test_use_before_start_and_after_stop_is_refused(self) -> None:
        client = BlockingEcho()
        with pytest.raises(NotRunningError, match="BlockingEcho service state not OK, CREATE_JUST"):
            client.echo(1)
        with client:
            pass
        with pytest.raises(NotRunningError, match="SHUTDOWN_ALREADY; create a new one"):
            client.echo(1)
        with pytest.raises(NotRunningError, match="SHUTDOWN_ALREADY"):
            client.echo_async(1)

    def test_a_callback_can_be_called(self, client: BlockingEcho) -> None:
        wrong: Any = 5
        with pytest.raises(TypeError, match="the callback is 5; it must be a function"):
            client.echo_async(1, callback=wrong)

    def test_a_second_start_is_refused_and_the_first_goes_on(self, client: BlockingEcho) -> None:
        with pytest.raises(NotRunningError, match="started once, RUNNING"):
            client.start()
        assert client.echo(2) == 2

    def test_stop_twice_or_unstarted_does_nothing(self) -> None:
        client = BlockingEcho()
        stops: list[ServiceState] = []
        client.core.before_stop = lambda: stops.append(client.state)
        client.stop()
        states = [client.state]
        client.start()
        client.stop()
        client.stop()
        assert [*states, client.state] == [ServiceState.CREATED, ServiceState.STOPPED]
        assert stops == [ServiceState.RUNNING]

    def test_a_stop_during_the_start_waits_for_it(self) -> None:
        client = BlockingEcho()
        starting, go = threading.Event(), threading.Event()

        def block() -> None:
            starting.set()
            go.wait(WAIT_SECONDS)

        client.core.before_start = block
        starter = threading.Thread(target=client.start)
        starter.start()
        assert starting.wait(WAIT_SECONDS)
        stopper = threading.Thread(target=client.stop)
        stopper.start()
        go.set()
        starter.join(WAIT_SECONDS)
        stopper.join(WAIT_SECONDS)
        assert client.state is ServiceState.STOPPED

    def test_stop_on_the_loop_is_refused_during_the_start(self) -> None:
        client = BlockingEcho()
        client.core.before_start = client.stop
        with pytest.raises(RuntimeError, match="would wait for itself"):
            client.start()

    def test_a_start_that_fails_leaves_no_thread(self) -> None:
        client = BlockingEcho()

        def refuse() -> None:
            raise ConnectionError("nobody there")

        client.core.before_start = refuse
        with pytest.raises(ConnectionError, match="nobody there"):
            client.start()

    @pytest.mark.parametrize("when", ["start", "stop"])
    def test_an_interrupt_while_starting_or_stopping_leaves_no_thread(self, when: str) -> None:
        client = BlockingEcho()

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGINT)

        def work() -> None:
            client.start()
            client.stop()

        setattr(client.core, f"before_{when}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            work()

    def test_plain_methods_run_in_the_caller_before_the_start(self) -> None:
        assert BlockingEcho().thread_name() == threading.current_thread().name


class TestHandingOver:
    def test_futures_get_the_results(self, client: BlockingEcho) -> None:
        client.release()
        futures = [client.echo_async(number) for number in range(1_000)]
        assert [future.result(WAIT_SECONDS) for future in futures] == list(range(1_000))

    def test_failure_to_begin_goes_to_the_future(self, client: BlockingEcho) -> None:
        future = client.echo_async(-1)
        with pytest.raises(ValueError, match="negative"):
            future.result(WAIT_SECONDS)

    def test_a_callback_may_use_the_client(self, client: BlockingEcho) -> None:
        client.release()
        seen: list[tuple[int, int, str]] = []
        done = threading.Event()

        def callback(future: Future[int]) -> None:
            name = threading.current_thread().name
            seen.append((future.result(), client.echo(8), name))
            done.set()

        client.echo_async(7, callback=callback)
        assert done.wait(WAIT_SECONDS)
        assert seen == [(7, 8, "goddard-callbacks")]

    def test_call_cancelled_before_it_begins_never_begins(self, client: BlockingEcho) -> None:
        blocked, go = threading.Event(), threading.Event()

        def block() -> None:
            blocked.set()
            go.wait(WAIT_SECONDS)

        called: list[bool] = []
        done = threading.Event()

        def callback(future: Future[int]) -> None:
            called.append(future.cancelled())
            done.set()

        blocker = threading.Thread(target=client.thread_name, args=(block,))
        blocker.start()
        assert blocked.wait(WAIT_SECONDS)
        future = client.echo_async(1, callback=callback)
        assert future.cancel()
        go.set()
        blocker.join(WAIT_SECONDS)
        assert done.wait(WAIT_SECONDS)
        assert called == [True]
        assert client.core.waiting == []

    def test_callers_wait_while_too_many_calls_are_pending(
        self, client: BlockingEcho, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "_MAX_PENDING", 10)
        futures = [client.echo_async(number) for number in range(10)]
        more: list[Future[int]] = []
        eleventh = threading.Thread(target=lambda: more.append(client.echo_async(10)))
        eleventh.start()
        # It waits, because no call is done before the release.
        assert client.echo(1) == 1
        assert more == []
        client.release()
        eleventh.join(WAIT_SECONDS)
        assert [future.result(WAIT_SECONDS) for future in [*futures, *more]] == list(range(11))

    def test_calls_with_waiting_callbacks_count_as_pending(
        self, client: BlockingEcho, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "_MAX_PENDING", 10)
        client.release()
        begun, go = threading.Event(), threading.Event()
        called: list[int] = []

        def callback(future: Future[int]) -> None:
            begun.set()
            go.wait(WAIT_SECONDS)
            if len(called) < 20:
                # A callback does not wait for room, because only callbacks make room.
                client.echo_async(100)
            called.append(future.result())

        futures = [client.echo_async(number, callback=callback) for number in range(10)]
        assert begun.wait(WAIT_SECONDS)
        assert [future.result(WAIT_SECONDS) for future in futures] == list(range(10))
        more: list[Future[int]] = []
        eleventh = threading.Thread(target=lambda: more.append(client.echo_async(10)))
        eleventh.start()
        assert client.echo(1) == 1
        assert more == []
        go.set()
        eleventh.join(WAIT_SECONDS)
        assert more[0].result(WAIT_SECONDS) == 10
        client.stop()
        assert called == list(range(10))

    def test_a_job_of_a_stopped_client_leaves_those_behind_it_alone(self) -> None:
        with BlockingEcho() as client, BlockingEcho() as other:
            other.release()
            behind: list[Future[int]] = []

            def stop_before_it_begins() -> None:
                # The loop runs this, so neither call has begun.
                client.echo_async(1)
                behind.append(other.echo_async(2))
                client.fail_pending()

            client.thread_name(stop_before_it_begins)
            assert behind[0].result(WAIT_SECONDS) == 2

    def test_stop_ends_pending_calls(self) -> None:
        called = threading.Event()
        with BlockingEcho() as client:
            future = client.echo_async(1, callback=lambda _: called.set())
            assert client.echo(1) == 1
            assert len(client.core.waiting) == 1
        assert called.is_set()
        with pytest.raises(NotRunningError, match="stopped before the call ended"):
            future.result(WAIT_SECONDS)
