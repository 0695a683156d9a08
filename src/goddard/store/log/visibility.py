"""When readers see appended messages: at once, or with SYNC_FLUSH after the sync.

Groups that wait for the disk are kept in the order of the log, and are not yet in queues and index.
After the sync that covers them, they are dispatched and listeners are called. The flush thread does
this, or the event loop that appends (``publish_on``), so that the two do not compete for the
interpreter's lock.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from goddard.store.log.block import Placed, QueueKey, end_offset, first_offset
from goddard.store.log.dispatch import ArrivalListener, Dispatcher

RunLater: TypeAlias = Callable[[Callable[[], None]], object]


class Visibility:
    """Passes groups to the dispatcher and to listeners. ``lock`` is the store's.

    ``flushed_offset`` returns the end of what is on disk. ``on_published`` is called after each
    dispatch, without the lock.
    """

    def __init__(
        self,
        lock: threading.RLock,
        dispatcher: Dispatcher,
        flushed_offset: Callable[[], int],
        on_published: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._dispatcher = dispatcher
        self._flushed_offset = flushed_offset
        self._on_published = on_published
        self._run_later: RunLater | None = None
        self._thread = 0
        self._listeners: list[ArrivalListener] = []
        # Groups that wait for the disk, oldest first.
        self.waiting: deque[Placed] = deque()

    def publish_on(self, run: RunLater) -> None:
        """Make ``publish_flushed`` do its work in the calling thread, by ``run``."""
        self._run_later = run
        self._thread = threading.get_ident()

    def stop_running_later(self) -> None:
        self._run_later = None

    def add_listener(self, listener: ArrivalListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, placed: Placed) -> None:
        """Tell listeners of a dispatched group; without the lock."""
        self._on_published()
        for listener in self._listeners:
            listener(placed)

    def publish_flushed(self) -> None:
        """Publish the waiting groups that are on disk."""
        run = self._run_later
        if run is not None and threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # the loop is closed
                run(self._publish_now)
                return
        self._publish_now()

    def _publish_now(self) -> None:
        ready: list[Placed] = []
        with self._lock:
            flushed_offset = self._flushed_offset()
            while self.waiting and end_offset(self.waiting[0]) <= flushed_offset:
                placed = self.waiting.popleft()
                self._dispatcher.apply(placed)
                ready.append(placed)
        for placed in ready:
            self.tell(placed)

    @property
    def first_waiting_offset(self) -> int | None:
        """The offset of the first group that readers cannot see yet; with the lock held."""
        return first_offset(self.waiting[0]) if self.waiting else None

    def waiting_keys(self) -> set[QueueKey]:
        """The queues of the waiting groups; with the lock held."""
        keys: set[QueueKey] = set()
        for placed in self.waiting:
            if isinstance(placed, list):
                keys.update((entry.topic, entry.queue_id) for entry in placed)
            else:
                keys.update(placed.queue_keys)
        return keys
