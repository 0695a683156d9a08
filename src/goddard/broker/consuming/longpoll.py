"""Long polling: pulls that found nothing wait for the queue's next message, or for their time.

A pull is parked under its queue. It is woken by a message that its filter wants, by the end of its
time, or by the periodic look at every queue; woken, it is run again and answered whatever it
finds. Three indexes hold each parked pull, so that waking, timing out and the end of a connection
cost no search: by queue, by tick of the timer, by connection. When very many wake together, the
loop gets its turn in between.

Belongs to the loop. ``on_arrival`` alone may be called in another thread (the store's flushing
thread, under SYNC_FLUSH): then one call into the loop wakes a whole group of messages.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from goddard.broker.consuming.filters import PullFilter
from goddard.broker.settings import Settings
from goddard.clock import Clock, SystemClock
from goddard.store.log.records import LogEntry
from goddard.store.runs import LogRun, Placed
from goddard.transport.connection import Connection

_logger: Final = logging.getLogger(__name__)

# Clients wait 30 s for the answer to a pull; old Go clients send nanoseconds.
MAX_HOLD_MS: Final = 30_000
# A client with more queues than this on one connection is told that the broker is busy.
MAX_HOLDS_PER_CONNECTION: Final = 20_000
_TICK_MS: Final = 50
# A pull takes some 30 us: so many at a time hold the loop up for a few milliseconds.
_RUNS_PER_TURN: Final = 128
# How often every queue is looked at, as Java does, whatever was or was not told of arrivals.
_CHECK_MS: Final = 5_000

QueueKey = tuple[str, int]
_K = TypeVar("_K")


class Hold:
    """A parked pull. ``run`` answers it; ``queue_offset`` is where it wants to begin."""

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


class Holds:
    """The parked pulls of a broker. ``start`` and ``stop`` on the loop."""

    def __init__(
        self,
        *,
        settings: Settings,
        max_offset: Callable[[str, int], int],
        clock: Clock | None = None,
    ) -> None:
        """``max_offset`` tells the end of a queue."""
        self._settings = settings
        self._max_offset = max_offset
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._count = 0
        # Dicts stand for sets that keep the order of arrival.
        self._by_queue: dict[QueueKey, dict[Hold, None]] = {}
        self._by_connection: dict[Connection, dict[Hold, None]] = {}
        self._by_tick: dict[int, dict[Hold, None]] = {}
        # Woken, and not run yet; a later turn of the loop will.
        self._woken: deque[Hold] = deque()
        self._tick = self._now_tick()
        self._next_check_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    @property
    def is_idle(self) -> bool:
        """Nothing is held, and nothing is remembered of what was."""
        indexes = (self._by_queue, self._by_tick, self._by_connection)
        return not self._count and not self._woken and not any(indexes)

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def park(self, hold: Hold, timeout_ms: int) -> bool:
        """Hold a pull for so long at most. False when too many are held, or after ``stop``: it must
        be answered."""
        of_connection = self._by_connection.get(hold.connection)
        if (
            self._stopped
            or self._count >= self._settings.current.pull_queue_capacity
            or (of_connection is not None and len(of_connection) >= MAX_HOLDS_PER_CONNECTION)
        ):
            return False
        timeout_ms = max(0, min(timeout_ms, MAX_HOLD_MS))
        now_ms = self._clock.monotonic_ms()
        hold.tick = -(-(now_ms + timeout_ms) // _TICK_MS)
        self._by_queue.setdefault(hold.key, {})[hold] = None
        self._by_tick.setdefault(hold.tick, {})[hold] = None
        if of_connection is None:
            self._by_connection[hold.connection] = {hold: None}
        else:
            of_connection[hold] = None
        self._count += 1
        if self._timer is None:
            self._tick = now_ms // _TICK_MS
            self._next_check_ms = now_ms + self._check_ms()
            self._set_timer()
        return True

    # Waking

    def on_arrival(self, entries: Sequence[Placed]) -> None:
        """Messages have become visible; the store calls this with each group of them."""
        if threading.get_ident() == self._thread:
            self._wake(entries)
        elif not self._stopped:
            # Also when nothing is held: a pull that found nothing a moment ago may be about to be.
            self._loop.call_soon_threadsafe(self._wake, entries)

    def _wake(self, entries: Sequence[Placed]) -> None:
        by_queue = self._by_queue
        if not by_queue:
            return
        for placed in entries:
            if (placed.topic, placed.queue_id) not in by_queue:
                continue
            if isinstance(placed, LogRun):
                for entry in placed.entries:
                    self._wake_for(entry)
            elif placed.has_queue_entry:
                self._wake_for(placed)

    def _wake_for(self, entry: LogEntry) -> None:
        self._run(
            hold
            for hold in list(self._by_queue.get((entry.topic, entry.queue_id), ()))
            if entry.queue_offset >= hold.queue_offset
            and (hold.filter is None or hold.filter.matches_arrival(entry))
        )

    def _run(self, holds: Iterable[Hold]) -> None:
        """Take pulls out and run them: now, or if they are many, the rest of them soon."""
        woken = self._woken
        is_scheduled = bool(woken)
        for hold in holds:
            self._remove(hold)
            woken.append(hold)
        if woken and not is_scheduled:
            self._run_woken()

    def _run_woken(self, most: int = _RUNS_PER_TURN) -> None:
        woken = self._woken
        for _ in range(min(most, len(woken))):
            hold = woken.popleft()
            if hold.connection.is_closed:
                continue
            try:
                hold.run()
            except Exception:
                _logger.exception("a pull of %s that was held failed", hold.connection.remote)
        if woken:
            self._loop.call_soon(self._run_woken)

    def _remove(self, hold: Hold) -> None:
        _discard(self._by_queue, hold.key, hold)
        _discard(self._by_tick, hold.tick, hold)
        _discard(self._by_connection, hold.connection, hold)
        self._count -= 1

    # Time

    def _set_timer(self) -> None:
        self._timer = self._loop.call_later(_TICK_MS / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.expire()
        # While nothing is held, nothing runs.
        if self._count and not self._stopped:
            self._set_timer()

    def expire(self) -> None:
        """Answer the pulls whose time is over, and now and then look at every queue."""
        now_ms = self._clock.monotonic_ms()
        last = now_ms // _TICK_MS
        # Whichever is less work: to walk the ticks that have passed, or those that have holds.
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
        """Run every pull whose queue goes beyond its offset, even if its filter wanted nothing.

        Such a pull is answered "nothing matched", which moves its client past those messages.
        """
        for key, holds in list(self._by_queue.items()):
            end = self._max_offset(*key)
            self._run([hold for hold in holds if hold.queue_offset < end])

    def _check_ms(self) -> int:
        config = self._settings.current
        return _CHECK_MS if config.long_polling else config.short_polling_ms

    def _now_tick(self) -> int:
        return self._clock.monotonic_ms() // _TICK_MS

    # Ending

    def connection_closed(self, connection: Connection) -> None:
        """Drop what a connection that is gone had parked."""
        for hold in list(self._by_connection.get(connection, ())):
            self._remove(hold)

    def stop(self) -> None:
        """Answer everything that is held, and hold nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for holds in list(self._by_queue.values()):
            self._run(list(holds))
        self._run_woken(len(self._woken))


def _discard(index: dict[_K, dict[Hold, None]], key: _K, hold: Hold) -> None:
    holds = index[key]
    del holds[hold]
    if not holds:
        del index[key]
