"""The lazy future behaves like the future of Python."""

import threading
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    CancelledError,
    Future,
    InvalidStateError,
    as_completed,
    wait,
)

import pytest

from goddard.client.blocking.future import LazyFuture

WAIT_SECONDS = 30

Make = Callable[[], Future[int]]
make_each = pytest.mark.parametrize("make", [Future, LazyFuture])


def running(make: Make) -> Future[int]:
    future = make()
    assert future.set_running_or_notify_cancel()
    return future


@make_each
class TestLikePythonsOwn:
    def test_a_result(self, make: Make) -> None:
        future = make()
        assert not future.done()
        assert not future.running()
        assert future.set_running_or_notify_cancel()
        assert future.running()
        future.set_result(5)
        assert (future.result(), future.exception(), future.done()) == (5, None, True)
        assert not future.cancel()

    def test_an_error(self, make: Make) -> None:
        future = running(make)
        future.set_exception(ValueError("wrong"))
        assert future.done()
        assert isinstance(future.exception(), ValueError)
        with pytest.raises(ValueError, match="wrong"):
            future.result()

    def test_cancelled_before_it_runs(self, make: Make) -> None:
        future = make()
        assert future.cancel()
        assert future.cancelled()
        assert future.done()
        assert not future.set_running_or_notify_cancel()
        with pytest.raises(CancelledError):
            future.result()
        with pytest.raises(CancelledError):
            future.exception()

    def test_running_future_is_not_cancelled(self, make: Make) -> None:
        assert not running(make).cancel()

    def test_short_wait_times_out(self, make: Make) -> None:
        with pytest.raises(TimeoutError):
            running(make).result(0.01)
        with pytest.raises(TimeoutError):
            running(make).exception(0.01)

    def test_waiting_threads_are_woken(self, make: Make) -> None:
        future = running(make)
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(future.result(WAIT_SECONDS)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        future.set_result(9)
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert found == [9, 9, 9]

    def test_callbacks_before_and_after_the_end(self, make: Make) -> None:
        future = running(make)
        seen: list[Future[int]] = []
        future.add_done_callback(seen.append)
        assert seen == []
        future.set_result(1)
        assert seen == [future]
        future.add_done_callback(seen.append)
        assert seen == [future, future]

    def test_wait_and_as_completed(self, make: Make) -> None:
        early, late, failing = running(make), running(make), running(make)
        early.set_result(1)
        done, pending = wait([early, late, failing], return_when=FIRST_COMPLETED)
        assert (done, pending) == ({early}, {late, failing})

        def end() -> None:
            late.set_result(2)
            failing.set_exception(ValueError())

        thread = threading.Thread(target=end)
        thread.start()
        assert set(as_completed([early, late, failing], WAIT_SECONDS)) == {early, late, failing}
        thread.join(WAIT_SECONDS)
        assert wait([early, late, failing], 0).not_done == set()

    def test_it_ends_only_once(self, make: Make) -> None:
        future = running(make)
        with pytest.raises(RuntimeError, match="unexpected state"):
            future.set_running_or_notify_cancel()
        future.set_result(1)
        with pytest.raises(InvalidStateError):
            future.set_result(2)
        with pytest.raises(InvalidStateError):
            future.set_exception(ValueError())
        assert future.result() == 1

    def test_its_text(self, make: Make) -> None:
        future = running(make)
        assert "state=running" in repr(future)
        future.set_result(1)
        assert "state=finished returned int" in repr(future)


def test_nothing_is_created_until_someone_waits() -> None:
    future = LazyFuture[int]()
    future.set_running_or_notify_cancel()
    assert not future.done()
    empty = len(vars(Future()))
    assert len(vars(future)) < empty
    future.set_result(1)
    assert future.done()
    assert (future.result(), future.exception()) == (1, None)
    assert len(vars(future)) < empty
    future.add_done_callback(id)
    assert len(vars(future)) > empty


def test_no_wake_up_is_lost_between_threads() -> None:
    """One thread ends futures while another one starts to wait for them."""
    futures = [LazyFuture[int]() for _ in range(5_000)]
    for future in futures:
        future.set_running_or_notify_cancel()

    def end() -> None:
        for number, future in enumerate(futures):
            future.set_result(number)

    thread = threading.Thread(target=end)
    thread.start()
    assert [future.result(WAIT_SECONDS) for future in futures] == list(range(5_000))
    thread.join(WAIT_SECONDS)
