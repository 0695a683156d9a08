"""A ``concurrent.futures.Future`` that is cheap while no thread waits for it.

Python's own future makes a condition, two lists and six more objects when it is created. With
thousands of pending sends, the garbage collector visits all of them again and again, although
hardly any thread waits for one. ``LazyFuture`` makes them when they are first needed: to wait,
to add a callback, to cancel, or by ``concurrent.futures.wait`` and ``as_completed``.
"""

import threading
from concurrent.futures import Future
from enum import Enum
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Held for a few instructions: a future ends, or it becomes a complete one, but not both at once.
_guard: Final = threading.Lock()


class _Stage(Enum):
    """How far a future got while it was not complete."""

    PENDING = 1
    RUNNING = 2
    FINISHED = 3


class LazyFuture(Future[T]):
    """A future whose attributes are those of a real one from their first use on.

    ``Future.__init__`` is not called at first. The attributes that it sets are therefore missing,
    and Python calls ``__getattr__`` for whichever of them is used first.
    """

    _stage = _Stage.PENDING
    _is_complete = False
    _early_result: T | None = None
    _early_error: BaseException | None = None

    def __init__(self) -> None:
        """Create nothing; see the class."""

    def __getattr__(self, name: str) -> Any:
        with _guard:
            if not self._is_complete:
                # All at once: no other thread sees half of the attributes.
                vars(self).update({**vars(self._real()), "_is_complete": True})
        return object.__getattribute__(self, name)

    def _real(self) -> Future[Any]:
        real: Future[Any] = Future()
        if self._stage is not _Stage.PENDING:
            real.set_running_or_notify_cancel()
        if self._stage is _Stage.FINISHED:
            if self._early_error is not None:
                real.set_exception(self._early_error)
            else:
                real.set_result(self._early_result)
        return real

    def done(self) -> bool:
        return super().done() if self._is_complete else self._stage is _Stage.FINISHED

    def result(self, timeout: float | None = None) -> T:
        if self._stage is _Stage.FINISHED and self._early_error is None:
            result: Any = self._early_result
            found: T = result
            return found
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._stage is _Stage.FINISHED:
            return self._early_error
        return super().exception(timeout)

    def set_running_or_notify_cancel(self) -> bool:
        with _guard:
            if not self._is_complete and self._stage is _Stage.PENDING:
                self._stage = _Stage.RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: T) -> None:
        with _guard:
            if not self._is_complete and self._stage is not _Stage.FINISHED:
                self._early_result = result
                self._stage = _Stage.FINISHED
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        with _guard:
            if not self._is_complete and self._stage is not _Stage.FINISHED:
                self._early_error = exception
                self._stage = _Stage.FINISHED
                return
        super().set_exception(exception)
