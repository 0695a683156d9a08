"""What every blocking client does around its asyncio client: start, stop, wait, hand over.

A blocking client has the methods of the asyncio one under the same names; ``tools/blocking.py``
writes them (``blocking_*.py``) from the asyncio classes. They may be called from any thread. Each
call is one job for the shared loop (``blocking_loop``) and one wait for its end.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from goddard.client.blocking_future import LazyFuture
from goddard.client.blocking_loop import STOPPED, LoopThread, shared_loop
from goddard.client.errors import NotRunningError
from goddard.client.values import ServiceState

if TYPE_CHECKING:
    from goddard.client.consume.poll_buffer import Portion
    from goddard.client.message import ReceivedMessage

# So many may be handed over and not be done; the next one waits until half of them are. More does
# not make it faster, and a broker refuses sends while 10,000 of them wait there.
_MAX_UNDER_WAY: Final = 4_096

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
    """A client for threads, over one for asyncio."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._thread: LoopThread | None = None
        self._changing = threading.Lock()
        self._under_way: set[_Handover[Any]] = set()
        self._is_crowded = False
        self._room = threading.Event()
        self._portion: Portion | None = None

    @property
    def state(self) -> ServiceState:
        """Where the client is in its life."""
        return self._core.state

    @property
    def client_id(self) -> str:
        """What brokers know this client by: ``ip@instance``."""
        return self._core.client_id

    def start(self) -> None:
        """Connect and begin to work. A client starts once."""
        shared_loop.check_caller()
        with self._changing:
            user = object()
            thread = shared_loop.borrow(user, self._stop)
            try:
                thread.run(self._core.start)
            except BaseException:
                shared_loop.give_back(user)
                raise
            self._user = user
            self._thread = thread

    def stop(self) -> None:
        """Finish what is under way, leave the cluster and close the connections.

        Does nothing if the client is not running. Called while it starts, as by a listener that
        got its first message already, it waits for that.
        """
        thread = self._thread
        if thread is not None and thread.is_forked:
            # It is the parent's, who goes on: a child that leaves a with block has nothing to stop.
            return
        shared_loop.check_caller()
        with self._changing:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.run(self._stop)
        finally:
            shared_loop.give_back(self._user)

    async def _stop(self) -> None:
        await self._core.stop()
        for job in list(self._under_way):
            job.fail(NotRunningError(STOPPED))

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
        """Begin something on the loop and wait for its end."""
        thread = self._thread
        if thread is None:
            raise self._not_running()
        return thread.run(begin)

    def _do(self, function: Callable[[], T]) -> T:
        """Call something that does not wait: on the loop, once there is one."""
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
        """Begin something on the loop and go on; waits only if too much is under way."""
        _check_callback(callback)
        thread = self._thread
        if thread is None:
            raise self._not_running()
        if len(self._under_way) >= _MAX_UNDER_WAY:
            self._wait_for_room(thread)
        job = _Handover(begin, callback, thread, self._ended)
        self._under_way.add(job)
        thread.submit(job)
        return job.result

    def _wait_for_room(self, thread: LoopThread) -> None:
        thread.check_caller()
        if thread.is_calling_back:
            # Room is made by callbacks that end, this one first.
            return
        while True:
            self._is_crowded = True
            self._room.clear()
            # Looked at after the clearing: what ended before it has set the event in vain.
            if len(self._under_way) <= _MAX_UNDER_WAY // 2:
                return
            self._room.wait()

    def _ended(self, job: "_Handover[Any]") -> None:
        under_way = self._under_way
        under_way.discard(job)
        if self._is_crowded and len(under_way) <= _MAX_UNDER_WAY // 2:
            self._is_crowded = False
            self._room.set()

    def _next(self, more: Callable[[], "Awaitable[Portion | None]"]) -> "ReceivedMessage":
        """The next message of what the loop handed over; it is asked when that is used up."""
        while self.state is not ServiceState.STOPPED:
            portion = self._portion
            if portion is not None and (message := portion.next()) is not None:
                return message
            self._portion = portion = self._run(more)
            if portion is None:
                break
        raise StopIteration

    def _not_running(self) -> NotRunningError:
        is_new = self.state is ServiceState.CREATED
        return NotRunningError(
            f"The {type(self).__name__} service state not OK, {self.state.value}",
            advice="start it, or use it in a with block"
            if is_new
            else "make a new one: none starts twice",
        )


def _check_callback(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise TypeError(f"the callback is {callback!r:.200}; a function is wanted")


class _Handover(Generic[T]):
    """A job whose result goes to a future that any thread may wait for."""

    __slots__ = ("_begin", "_callback", "_ended", "_thread", "result")

    def __init__(
        self,
        begin: Callable[[], "asyncio.Future[T]"],
        callback: Callable[["Future[T]"], object] | None,
        thread: LoopThread,
        ended: Callable[["_Handover[Any]"], None],
    ) -> None:
        # Let go of when it has begun.
        self._begin: Callable[[], asyncio.Future[T]] | None = begin
        self._callback = callback
        self._thread = thread
        self._ended = ended
        self.result: Future[T] = LazyFuture()

    def begin(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            self._end()
            return
        begin, self._begin = self._begin, None
        assert begin is not None
        with self:
            begin().add_done_callback(self._finish)

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)
            self._end()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        """What could not even begin is the result, and no trouble of the loop's."""
        if error is not None:
            self.fail(error)
        return True

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
        # Under way until its callback has run: what a slow one has not seen yet must not pile up.
        assert self._callback is not None
        try:
            self._callback(self.result)
        finally:
            self._ended(self)
