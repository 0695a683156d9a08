"""Long polling: a pull that finds nothing waits for its queue's next message or for its timeout.

Such a pull is parked. It is woken by a message that its filter wants, by its timeout, or by the
periodic check of every queue; then it runs again and is answered whatever it finds. Three indexes
hold each parked pull, so that waking, timeouts and the end of a connection need no search: by
queue, by tick of the timer, by connection. If very many are woken together, they run in several
turns of the loop.

Belongs to the loop. Only ``on_arrival`` may be called in another thread (the store's flushing
thread, under SYNC_FLUSH): one call into the loop then wakes the pulls for a group of messages.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from goddard.broker.consuming.filters import PullFilter
from goddard.broker.settings import Settings
from goddard.clock import Clock, SystemClock
from goddard.store.log.block import Placed, each_entry
from goddard.store.log.records import LogEntry
from goddard.transport.connection import Connection

_logger: Final = logging.getLogger(__name__)

# Clients wait 30 s for the answer to a pull; old Go clients send nanoseconds.
MAX_PARKED_MS: Final = 30_000
# With more parked pulls than this on one connection, a client is told that the broker is busy.
MAX_PARKED_PER_CONNECTION: Final = 20_000
_TICK_MS: Final = 50
# A pull takes about 30 us, so this many block the loop for a few milliseconds.
_RUNS_PER_TURN: Final = 128
# How often every queue is checked, as in Java, in case an arrival was missed.
_CHECK_MS: Final = 5_000

QueueKey = tuple[str, int]
_K = TypeVar("_K")


class ParkedPull:
    """``run`` answers the pull; ``queue_offset`` is the offset at which it wants to begin."""

    __slots__ = ("connection", "filter", "key", "queue_offset", "run", "tick")

    def __init__(
        self,
        key: QueueKey,
        queue_offset: int,
        connection: Connection,
        filter_: PullFilter | None,
        run: Callable[[], None],
    ) -> None:
        self.key = key
        self.queue_offset = queue_offset
        self.connection = connection
        self.filter = filter_
        self.run = run
        self.tick = 0


class ParkedPulls:
    """The parked pulls of a broker. ``start`` and ``stop`` on the loop."""

    def __init__(
        self,
        *,
        settings: Settings,
        max_offset: Callable[[str, int], int],
        clock: Clock | None = None,
    ) -> None:
        """``max_offset`` returns the end of a queue."""
        self._settings = settings
        self._max_offset = max_offset
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._count = 0
        # Dicts used as sets, because they keep the order of arrival.
        self._by_queue: dict[QueueKey, dict[ParkedPull, None]] = {}
        self._by_connection: dict[Connection, dict[ParkedPull, None]] = {}
        self._by_tick: dict[int, dict[ParkedPull, None]] = {}
        # Woken pulls that run in a later turn of the loop.
        self._woken: deque[ParkedPull] = deque()
        self._tick = self._now_tick()
        self._next_check_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    @property
    def is_idle(self) -> bool:
        """Whether no pull is parked or woken and every index is empty."""
        indexes = (self._by_queue, self._by_tick, self._by_connection)
        return not self._count and not self._woken and not any(indexes)

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def park(self, parked: ParkedPull, timeout_ms: int) -> bool:
        """Park a pull until it is woken or its timeout ends.

        Returns False if too many are parked, or after ``stop``: the caller must answer it.
        """
        of_connection = self._by_connection.get(parked.connection)
        if (
            self._stopped
            or self._count >= self._settings.current.pull_queue_capacity
            or (of_connection is not None and len(of_connection) >= MAX_PARKED_PER_CONNECTION)
        ):
            return False
        timeout_ms = max(0, min(timeout_ms, MAX_PARKED_MS))
        now_ms = self._clock.monotonic_ms()
        parked.tick = -(-(now_ms + timeout_ms) // _TICK_MS)
        self._by_queue.setdefault(parked.key, {})[parked] = None
        self._by_tick.setdefault(parked.tick, {})[parked] = None
        if of_connection is None:
            self._by_connection[parked.connection] = {parked: None}
        else:
            of_connection[parked] = None
        self._count += 1
        if self._timer is None:
            self._tick = now_ms // _TICK_MS
            self._next_check_ms = now_ms + self._check_ms()
            self._set_timer()
        return True

    # Waking

    def on_arrival(self, placed: Placed) -> None:
        """Messages have become visible; the store calls this with each group of them."""
        if threading.get_ident() == self._thread:
            self._wake(placed)
        elif not self._stopped:
            # Also when none is parked: a pull that found nothing a moment ago may be parked next.
            self._loop.call_soon_threadsafe(self._wake, placed)

    def _wake(self, placed: Placed) -> None:
        by_queue = self._by_queue
        if not by_queue or (
            not isinstance(placed, list) and by_queue.keys().isdisjoint(placed.queue_keys)
        ):
            return
        for entry in each_entry(placed):
            if (entry.topic, entry.queue_id) in by_queue and entry.has_queue_entry:
                self._wake_for(entry)

    def _wake_for(self, entry: LogEntry) -> None:
        self._run(
            parked
            for parked in list(self._by_queue.get((entry.topic, entry.queue_id), ()))
            if entry.queue_offset >= parked.queue_offset
            and (parked.filter is None or parked.filter.matches_arrival(entry))
        )

    def _run(self, pulls: Iterable[ParkedPull]) -> None:
        """Unpark pulls and run them: the first ones now, the rest in later turns of the loop."""
        woken = self._woken
        is_scheduled = bool(woken)
        for parked in pulls:
            self._remove(parked)
            woken.append(parked)
        if woken and not is_scheduled:
            self._run_woken()

    def _run_woken(self, most: int = _RUNS_PER_TURN) -> None:
        woken = self._woken
        for _ in range(min(most, len(woken))):
            parked = woken.popleft()
            if parked.connection.is_closed:
                continue
            try:
                parked.run()
            except Exception:
                _logger.exception("answering a parked pull of %s failed", parked.connection.remote)
        if woken:
            self._loop.call_soon(self._run_woken)

    def _remove(self, parked: ParkedPull) -> None:
        _discard(self._by_queue, parked.key, parked)
        _discard(self._by_tick, parked.tick, parked)
        _discard(self._by_connection, parked.connection, parked)
        self._count -= 1

    # Time

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(_TICK_MS / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.expire()
        # No timer runs while no pull is parked.
        if self._count and not self._stopped:
            self._set_timer()

    def expire(self) -> None:
        """Answer the pulls whose timeout has ended; check every queue when that is due."""
        now_ms = self._clock.monotonic_ms()
        last = now_ms // _TICK_MS
        # Walk the ticks that passed or the ticks that have pulls, whichever are fewer.
        if last - self._tick > len(self._by_tick):
            due = sorted(tick for tick in self._by_tick if tick <= last)
        else:
            due = [tick for tick in range(self._tick + 1, last + 1) if tick in self._by_tick]
        self._tick = last
        for tick in due:
            self._run(list(self._by_tick.get(tick, ())))
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._check_ms()
            self._check()

    def _check(self) -> None:
        """Run every pull whose queue ends after its offset, even if its filter matched nothing.

        Such a pull is answered "nothing matched", which moves its client past those messages.
        """
        for key, pulls in list(self._by_queue.items()):
            end = self._max_offset(*key)
            self._run([parked for parked in pulls if parked.queue_offset < end])

    def _check_ms(self) -> int:
        config = self._settings.current
        return _CHECK_MS if config.long_polling else config.short_polling_ms

    def _now_tick(self) -> int:
        return self._clock.monotonic_ms() // _TICK_MS

    # Ending

    def connection_closed(self, connection: Connection) -> None:
        """Drop the parked pulls of a closed connection."""
        for parked in list(self._by_connection.get(connection, ())):
            self._remove(parked)

    def stop(self) -> None:
        """Answer every parked pull, and park no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pulls in list(self._by_queue.values()):
            self._run(list(pulls))
        self._run_woken(len(self._woken))


def _discard(index: dict[_K, dict[ParkedPull, None]], key: _K, parked: ParkedPull) -> None:
    pulls = index[key]
    del pulls[parked]
    if not pulls:
        del index[key]
