"""What readers see of the appended messages, and when: at once, or with SYNC_FLUSH once on disk.

Groups that wait for the disk are kept in the order of the log, outside queues and index; after the
sync that covers them they are dispatched, and listeners are told. By the flushing thread, or better
by the loop that appends, which else would have to compete with it.
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from goddard.store.log.block import Placed, QueueKey, end_offset, first_offset
from goddard.store.log.dispatch import ArrivalListener, Dispatcher

RunLater: TypeAlias = Callable[[Callable[[], None]], object]


class Showing:
    """Hands groups to the dispatcher and to listeners. ``lock`` is the store's.

    ``flushed_offset`` tells how far the log is on disk; ``on_shown`` is called after each dispatch,
    without the lock.
    """

    def __init__(
        self,
        lock: threading.RLock,
        dispatcher: Dispatcher,
        flushed_offset: Callable[[], int],
        on_shown: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._dispatcher = dispatcher
        self._flushed_offset = flushed_offset
        self._on_shown = on_shown
        self._run_later: RunLater | None = None
        self._thread = 0
        self._listeners: list[ArrivalListener] = []
        # Groups that wait for the disk, oldest first.
        self.waiting: deque[Placed] = deque()

    def show_with(self, run: RunLater) -> None:
        """Have ``show_flushed`` do its work in this thread, by ``run``."""
        self._run_later = run
        self._thread = threading.get_ident()

    def stop_running_later(self) -> None:
        self._run_later = None

    def add_listener(self, listener: ArrivalListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, placed: Placed) -> None:
        """After dispatch, without the lock: a group can be seen."""
        self._on_shown()
        for listener in self._listeners:
            listener(placed)

    def show_flushed(self) -> None:
        """Show what waited for the disk, as far as the log is there."""
        run = self._run_later
        if run is not None and threading.get_ident() != self._thread:
            with suppress(RuntimeError):  # the loop is closed
                run(self._show_now)
                return
        self._show_now()

    def _show_now(self) -> None:
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
        """Where in the log what cannot be seen yet begins; with the lock held."""
        return first_offset(self.waiting[0]) if self.waiting else None

    def waiting_keys(self) -> set[QueueKey]:
        """The queues of what waits; with the lock held."""
        keys: set[QueueKey] = set()
        for placed in self.waiting:
            if isinstance(placed, list):
                keys.update((entry.topic, entry.queue_id) for entry in placed)
            else:
                keys.update(placed.queue_keys)
        return keys
