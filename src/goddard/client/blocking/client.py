"""The base of all blocking clients: start, stop, and the three ways to call the asyncio client.

A blocking client owns an asyncio client and runs it on the shared loop (``loop``). Its methods may
be called from any thread. ``_run`` starts a coroutine and waits for its result, ``_call`` calls a
function that does not wait, and ``_submit`` starts a call and returns a future.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from goddard.client.blocking.future import LazyFuture
from goddard.client.blocking.loop import STOPPED, LoopThread, shared_loop
from goddard.client.errors import NotRunningError
from goddard.client.values import ServiceState

_logger: Final = logging.getLogger("goddard.client")

# The most submitted calls of a client that are not done. At this number the next caller waits until
# half of them are done. More pending calls do not make sending faster, and a broker refuses sends
# while 10,000 of them wait there.
_MAX_PENDING: Final = 4_096

T = TypeVar("T")


class AsyncClient(Protocol):
    """What all asyncio clients have."""

    def start(self) -> Coroutine[Any, Any, None]: ...

    def stop(self) -> Coroutine[Any, Any, None]: ...

    @property
    def state(self) -> ServiceState: ...

    @property
    def client_id(self) -> str: ...


Core = TypeVar("Core", bound=AsyncClient)


class BlockingClient(Generic[Core]):
    """A client for threads, over an asyncio client."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._thread: LoopThread | None = None
        self._changing = threading.Lock()
        self._pending: set[_Submission[Any]] = set()
        self._is_full = False
        self._room = threading.Event()

    @property
    def state(self) -> ServiceState:
        """Where the client is in its life."""
        return self._core.state

    @property
    def client_id(self) -> str:
        """The name that brokers know this client by: ``ip@instance``."""
        return self._core.client_id

    def start(self) -> None:
        """Connect to the cluster and start working. A client starts once."""
        shared_loop.check_caller()
        with self._changing:
            user = object()
            thread = shared_loop.acquire(user, self._stop)
            try:
                thread.run(self._core.start)
            except BaseException:
                shared_loop.release(user)
                raise
            self._user = user
            self._thread = thread

    def stop(self) -> None:
        """Finish pending calls, leave the cluster and close the connections.

        Does nothing if the client is not running. If the client is just starting, for example when
        a listener calls this at its first message, it first waits for the end of the start.
        """
        thread = self._thread
        if thread is not None and thread.is_forked:
            # A forked child that leaves a with block: the client belongs to the parent.
            return
        shared_loop.check_caller()
        with self._changing:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.run(self._stop)
        finally:
            shared_loop.release(self._user)

    async def _stop(self) -> None:
        await self._core.stop()
        for submission in list(self._pending):
            submission.fail(NotRunningError(STOPPED))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Start something on the loop and wait for its result."""
        thread = self._thread
        if thread is None:
            raise self._not_running()
        return thread.run(begin)

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait: on the loop if the client runs, else at once."""
        thread = self._thread
        if thread is None:
            return function()

        async def call() -> T:
            return function()

        return thread.run(call)

    def _submit(
        self,
        begin: Callable[[], "asyncio.Future[T]"],
        callback: Callable[["Future[T]"], object] | None,
    ) -> "Future[T]":
        """Start something on the loop without waiting; waits only if too much is pending."""
        if callback is not None and not callable(callback):
            raise TypeError(f"the callback is {callback!r:.200}; it must be a function")
        thread = self._thread
        if thread is None:
            raise self._not_running()
        if len(self._pending) >= _MAX_PENDING:
            self._wait_for_room(thread)
        submission = _Submission(begin, callback, thread, self._ended)
        self._pending.add(submission)
        thread.submit(submission)
        return submission.result

    def _wait_for_room(self, thread: LoopThread) -> None:
        thread.check_caller()
        if thread.is_calling_back:
            # Room is made by callbacks that return, and this is one of them.
            return
        while True:
            self._is_full = True
            self._room.clear()
            # Read after the clear, which also removed the signals of calls that ended before it.
            if len(self._pending) <= _MAX_PENDING // 2:
                return
            self._room.wait()

    def _ended(self, submission: "_Submission[Any]") -> None:
        pending = self._pending
        pending.discard(submission)
        if self._is_full and len(pending) <= _MAX_PENDING // 2:
            self._is_full = False
            self._room.set()

    def _not_running(self) -> NotRunningError:
        is_new = self.state is ServiceState.CREATED
        return NotRunningError(
            f"The {type(self).__name__} service state not OK, {self.state.value}",
            advice="start it, or use it in a with block"
            if is_new
            else "create a new one: a client starts only once",
        )


class _Submission(Generic[T]):
    """A job whose result goes to a future that any thread may wait for."""

    __slots__ = ("_begin", "_callback", "_ended", "_thread", "result")

    def __init__(
        self,
        begin: Callable[[], "asyncio.Future[T]"],
        callback: Callable[["Future[T]"], object] | None,
        thread: LoopThread,
        ended: Callable[["_Submission[Any]"], None],
    ) -> None:
        # None once it was called, so that the message can be freed.
        self._begin: Callable[[], asyncio.Future[T]] | None = begin
        self._callback = callback
        self._thread = thread
        self._ended = ended
        self.result: Future[T] = LazyFuture()

    def begin(self) -> None:
        if self.result.done() and not self.result.cancelled():
            return  # the client was stopped before the loop came to this job
        if not self.result.set_running_or_notify_cancel():
            self._end()
            return
        begin, self._begin = self._begin, None
        assert begin is not None
        try:
            future = begin()
        except BaseException as error:
            # For the caller, not for the loop: even SystemExit must not end the loop's thread.
            _logger.debug("a call failed before it began", exc_info=True)
            self.fail(error)
            return
        future.add_done_callback(self._finish)

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self._end()

    def _finish(self, future: "asyncio.Future[T]") -> None:
        if future.cancelled():
            self.fail(NotRunningError(STOPPED))
            return
        error = future.exception()
        if error is not None:
            self.fail(error)
        elif not self.result.done():
            self.result.set_result(future.result())
            self._end()

    def _end(self) -> None:
        if self._callback is None:
            self._ended(self)
        else:
            self._thread.call_back(self._call_back)

    def _call_back(self) -> None:
        # Pending until its callback has returned, so that a slow callback limits the sender.
        assert self._callback is not None
        try:
            self._callback(self.result)
        finally:
            self._ended(self)
