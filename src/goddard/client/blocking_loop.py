"""The event loop that the blocking clients of a process share, in a thread of its own.

The first client that starts makes it, the last that stops ends it, so a process that uses no client
has no thread of ours. Callers hand over jobs through a deque and wake the loop once per burst; a
caller that waits is woken by one lock. User callbacks run in one more thread, made when the first
is needed, where they may block and call clients themselves. After a fork the child has neither
thread: whatever it tries with the parent's clients is refused.
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
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from goddard.client.errors import ForkedError, NotRunningError
from goddard.transport.loop import new_event_loop

_logger: Final = logging.getLogger("goddard.client")

_THREAD_NAME: Final = "goddard-client"
_CALLBACK_THREAD_NAME: Final = "goddard-callbacks"
_EXIT_SECONDS: Final = 5.0
STOPPED: Final = "The client was stopped meanwhile."

T = TypeVar("T")
StopUser: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Job(Protocol):
    """Something for the loop to do."""

    def begin(self) -> None:
        """Called on the loop. Raises nothing."""

    def fail(self, error: BaseException) -> None:
        """Called instead of `begin` if the loop ended first."""


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
        """Have the loop begin something, and wait for its end.

        What interrupts the wait (Ctrl-C) also cancels what was begun.
        """
        self.check_caller()
        call = _Call(begin)
        try:
            self.submit(call)
            call.wait()
        except BaseException:  # a signal's: KeyboardInterrupt, or what the user's handler raises
            self.call_soon(call.abandon)
            raise
        return call.result()

    def check_caller(self) -> None:
        """Refuse to wait on the thread that would have to do what is waited for."""
        if self.is_forked:
            raise ForkedError
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call on the client's own event loop would wait for itself; "
                "call it from another thread, or use goddard.aio"
            )

    def submit(self, job: Job) -> None:
        """Hand a job to the loop; many in a row wake it once."""
        if self.is_forked:
            raise ForkedError
        self._jobs.append(job)
        # Looked at after the append, cleared before the jobs are taken: whoever sees it set has its
        # job taken by the turn that clears it.
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._begin_jobs)
            except RuntimeError:  # the loop is closed
                # Not woken: whoever comes next has to find that out, too.
                self._is_woken = False
                self._fail_jobs()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def call_back(self, function: Callable[[], object]) -> None:
        """Call a user's function in the thread for that."""
        callbacks = self._callbacks
        if callbacks is None:
            with self._guard:
                callbacks = self._callbacks
                if callbacks is None:
                    callbacks = self._callbacks = _CallbackThread()
        callbacks.put(function)

    @property
    def is_calling_back(self) -> bool:
        """Whether the caller is a callback."""
        return self._callbacks is not None and self._callbacks.is_current

    def close(self, timeout_seconds: float | None = None) -> None:
        """End the loop, cancelling what it still does, and both threads."""
        self.call_soon(self._end)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)
        if self._callbacks is not None:
            self._callbacks.close(timeout_seconds)

    def mark_forked(self) -> None:
        """Said in a fork, where the thread of this object does not exist."""
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
        # No more than are there now: those who keep adding must not keep the loop from its sockets.
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
        with self:
            self._future = asyncio.ensure_future(self._begin())
            self._future.add_done_callback(self._finish)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """What could not even begin is raised to the caller, not to the loop."""
        if error is not None:
            self.fail(error)
        return True

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
        """Nobody waits any more. Called on the loop."""
        self._is_abandoned = True
        if self._future is not None:
            self._future.cancel()


class _CallbackThread:
    """Runs users' functions, one after the other."""

    def __init__(self) -> None:
        self._functions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.put = self._functions.put
        self._thread = threading.Thread(target=self._main, name=_CALLBACK_THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def close(self, timeout_seconds: float | None) -> None:
        """Run what is there, then end."""
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
    """The loop of this process and its users: started for the first, ended by the last."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: LoopThread | None = None
        self._users: dict[int, StopUser] = {}

    def check_caller(self) -> None:
        """Refuse to wait on the loop's own thread, if there is one."""
        thread = self._thread
        if thread is not None:
            thread.check_caller()

    def borrow(self, user: object, stop: StopUser) -> LoopThread:
        """``stop`` is called on the loop if the process ends before the user returns it."""
        with self._guard:
            if self._thread is None:
                self._thread = LoopThread()
            self._users[id(user)] = stop
            return self._thread

    def give_back(self, user: object) -> None:
        with self._guard:
            self._users.pop(id(user), None)
            thread = self._thread
            if self._users or thread is None:
                return
            self._thread = None
        thread.close()

    def at_exit(self) -> None:
        """Stop clients that nobody stopped, as far as that is quick."""
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
        """In the child: forget the loop, which is the parent's."""
        thread = self._thread
        self._guard = threading.Lock()  # another thread of the parent may have held it
        self._thread = None
        self._users = {}
        if thread is not None:
            thread.mark_forked()
            # Never closed here: its sockets and its poll descriptor are the parent's as well.
            _of_parents.append(thread)


_of_parents: Final[list[LoopThread]] = []
shared_loop: Final = SharedLoop()

atexit.register(shared_loop.at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared_loop.after_fork)
