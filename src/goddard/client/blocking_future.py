"""A future for threads that is cheap while nobody waits for it.

Python's own has a condition and two lists from the beginning, ten objects in all. Of thousands of
sends under way hardly one is waited for at any moment, and what those objects cost is less their
making than the garbage collector, which looks at them again and again. Here they are made for the
first who waits, adds a callback or cancels; a future that ends before has none.

It is a ``concurrent.futures.Future`` in every respect, ``wait`` and ``as_completed`` included.
"""

import threading
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

# The states of concurrent.futures, which it has no public names for.
_PENDING: Final = "PENDING"
_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"

# Held for the few instructions in which a future changes its state or gets its condition, so that
# one comes first: who ends it sees the condition, or who wants to wait sees the end.
_guard: Final = threading.Lock()


class LazyFuture(Future[T]):
    """What the class above keeps in each object is made when it is needed."""

    _state = _PENDING
    _result: T | None = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None

    def __init__(self) -> None:
        """Nothing yet: all that others may wait for is below."""

    @property
    def _condition(self) -> threading.Condition:
        made = self._made
        if made is None:
            with _guard:
                made = self._made
                if made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    made = self._made = threading.Condition()
        return made

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._made = condition

    def done(self) -> bool:
        return self._state == _FINISHED or super().done()

    def result(self, timeout: float | None = None) -> T:
        if self._state == _FINISHED and self._exception is None:
            result: Any = self._result
            found: T = result
            return found
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._exception if self._state == _FINISHED else super().exception(timeout)

    def set_running_or_notify_cancel(self) -> bool:
        with _guard:
            if self._made is None:
                self._state = _RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: T) -> None:
        with _guard:
            if self._made is None:
                self._result = result
                self._state = _FINISHED
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with _guard:
            if self._made is None:
                self._exception = exception
                self._state = _FINISHED
                return
        super().set_exception(exception)
