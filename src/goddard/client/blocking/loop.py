"""The event loop that all blocking clients of a process share, in its own thread.

The first client that starts creates the loop and its thread; the last client that stops ends them.
Callers append jobs to a deque and wake the loop once per burst; a caller that waits is woken by a
lock. User callbacks run in a second thread, created for the first callback. They may block there
and call clients. After a fork the child has neither thread, and calls of the parent's clients raise
ForkedError.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from goddard.client.errors import ForkedError, NotRunningError
from goddard.transport.loop import new_event_loop

_logger: Final = logging.getLogger("goddard.client")

_THREAD_NAME: Final = "goddard-client"
_CALLBACK_THREAD_NAME: Final = "goddard-callbacks"
_EXIT_SECONDS: Final = 5.0
STOPPED: Final = "the client was stopped before the call ended"

T = TypeVar("T")
StopUser: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Job(Protocol):
    """Something that the loop starts."""

    def begin(self) -> None:
        """Start the job; called on the loop. Must not raise."""

    def fail(self, error: BaseException) -> None:
        """End the job with an error; called instead of ``begin`` if the loop ended first."""


class LoopThread:
    """A running event loop and the thread that runs it."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._is_woken = False
        self._callbacks: _CallbackThread | None = None
        self._guard = threading.Lock()
        self.is_forked = False
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._loop = self._runner.get_loop()
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, name=_THREAD_NAME, daemon=True)
        self._thread.start()

    def run(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Start something on the loop and wait for its result.

        An exception that interrupts the wait, such as KeyboardInterrupt, also cancels the call.
        """
        self.check_caller()
        call = _Call(begin)
        try:
            self.submit(call)
            call.wait()
        except BaseException:  # KeyboardInterrupt, or an exception of the user's signal handler
            self.call_soon(call.abandon)
            raise
        return call.result()

    def check_caller(self) -> None:
        """Raise if the caller is the loop's own thread, which would wait for itself."""
        if self.is_forked:
            raise ForkedError
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call on the client's own event loop would wait for itself; "
                "call it from another thread, or use goddard.aio"
            )

    def submit(self, job: Job) -> None:
        """Add a job; several in a row wake the loop once."""
        if self.is_forked:
            raise ForkedError
        self._jobs.append(job)
        # Read after the append, and cleared before the jobs are taken: a caller that sees it set
        # knows that the coming run of _begin_jobs takes its job.
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._begin_jobs)
            except RuntimeError:  # the loop is closed
                # Not woken, so the next caller tries again and fails too.
                self._is_woken = False
                self._fail_jobs()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop; does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def call_back(self, function: Callable[[], object]) -> None:
        """Call a user's function in the callback thread."""
        callbacks = self._callbacks
        if callbacks is None:
            with self._guard:
                callbacks = self._callbacks
                if callbacks is None:
                    callbacks = self._callbacks = _CallbackThread()
        callbacks.put(function)

    @property
    def is_calling_back(self) -> bool:
        """Whether the calling thread is the callback thread."""
        return self._callbacks is not None and self._callbacks.is_current

    def close(self, timeout_seconds: float | None = None) -> None:
        """Cancel what the loop still runs, end the loop and end both threads."""
        self.call_soon(self._end)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)
        if self._callbacks is not None:
            self._callbacks.close(timeout_seconds)

    def mark_forked(self) -> None:
        """Note that this is a forked child, where the thread does not exist."""
        self.is_forked = True

    def _main(self) -> None:
        with self._runner:
            self._runner.run(self._wait_for_end())
        self._is_woken = False
        self._fail_jobs()

    async def _wait_for_end(self) -> None:
        await self._ended

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _begin_jobs(self) -> None:
        self._is_woken = False
        jobs = self._jobs
        # Only the jobs that are there now: callers that keep adding must not starve the sockets.
        for _ in range(len(jobs)):
            jobs.popleft().begin()

    def _fail_jobs(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._jobs.popleft().fail(NotRunningError(STOPPED))


class _Call(Generic[T]):
    """A job whose result one thread waits for."""

    __slots__ = ("_begin", "_done", "_error", "_future", "_is_abandoned")

    def __init__(self, begin: Callable[[], Awaitable[T]]) -> None:
        self._begin = begin
        self._done = threading.Lock()
        self._done.acquire()
        self._future: asyncio.Future[T] | None = None
        self._error: BaseException | None = None
        self._is_abandoned = False

    def begin(self) -> None:
        if self._is_abandoned:
            return
        try:
            future = asyncio.ensure_future(self._begin())
        except BaseException as error:
            # For the caller, not for the loop: even SystemExit must not end the loop's thread.
            _logger.debug("a call failed before it began", exc_info=True)
            self.fail(error)
            return
        self._future = future
        future.add_done_callback(self._finish)

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.release()

    def wait(self) -> None:
        self._done.acquire()

    def result(self) -> T:
        if self._future is None:
            assert self._error is not None
            raise self._error
        try:
            return self._future.result()
        except asyncio.CancelledError as error:
            raise NotRunningError(STOPPED) from error

    def _finish(self, _: "asyncio.Future[T]") -> None:
        self._done.release()

    def abandon(self) -> None:
        """Cancel the call, because no thread waits for it any more. Called on the loop."""
        self._is_abandoned = True
        if self._future is not None:
            self._future.cancel()


class _CallbackThread:
    """A thread that runs users' functions, one after the other."""

    def __init__(self) -> None:
        self._functions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.put = self._functions.put
        self._thread = threading.Thread(target=self._main, name=_CALLBACK_THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def close(self, timeout_seconds: float | None) -> None:
        """Run the functions that were added, then end."""
        self._functions.put(None)
        if not self.is_current:
            self._thread.join(timeout_seconds)

    def _main(self) -> None:
        while (function := self._functions.get()) is not None:
            try:
                function()
            except Exception:
                _logger.exception("A callback raised.")


class SharedLoop:
    """The loop of this process: created for its first user, ended by its last."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: LoopThread | None = None
        self._users: dict[int, StopUser] = {}

    def check_caller(self) -> None:
        """Raise if the caller is the loop's own thread."""
        thread = self._thread
        if thread is not None:
            thread.check_caller()

    def acquire(self, user: object, stop: StopUser) -> LoopThread:
        """Use the loop. ``stop`` is called on it if the process ends before ``release``."""
        with self._guard:
            if self._thread is None:
                self._thread = LoopThread()
            self._users[id(user)] = stop
            return self._thread

    def release(self, user: object) -> None:
        with self._guard:
            self._users.pop(id(user), None)
            thread = self._thread
            if self._users or thread is None:
                return
            self._thread = None
        thread.close()

    def at_exit(self) -> None:
        """Stop the clients that are still running; waits a few seconds at most."""
        with self._guard:
            thread, self._thread = self._thread, None
            stops = list(self._users.values())
            self._users.clear()
        if thread is None:
            return

        async def stop_all() -> None:
            tasks = [asyncio.ensure_future(stop()) for stop in stops]
            await asyncio.wait(tasks, timeout=_EXIT_SECONDS)

        thread.run(stop_all)
        thread.close(_EXIT_SECONDS)

    def after_fork(self) -> None:
        """In the child: forget the loop, which belongs to the parent."""
        thread = self._thread
        self._guard = threading.Lock()  # another thread of the parent may hold the old one
        self._thread = None
        self._users = {}
        if thread is not None:
            thread.mark_forked()
            # Never closed here: the parent uses its sockets and its poll descriptor too.
            _loops_of_parents.append(thread)


_loops_of_parents: Final[list[LoopThread]] = []
shared_loop: Final = SharedLoop()

atexit.register(shared_loop.at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared_loop.after_fork)
