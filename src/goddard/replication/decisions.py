"""What a master decides about its slaves: what to send next, who is in sync, when to disconnect.

A connection becomes a slave with its first report. What it acknowledges counts only up to what
this connection started from and was sent, so bytes that are not reports never acknowledge a
message. A slave that cannot follow is refused with the reason; it is never sent bytes that do not
continue its log.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from goddard.errors import GoddardError

_SECOND_MS: Final = 1_000


class LogRange(NamedTuple):
    """Which bytes the master's log has."""

    min_offset: int
    end_offset: int
    segment_bytes: int


class SlaveRefusedError(GoddardError):
    """This slave cannot follow this master; the text says why and what to do."""


class Chunk(NamedTuple):
    """The bytes of the log to send next; of size 0, a heartbeat."""

    physical_offset: int
    size: int


class Wait(NamedTuple):
    """Nothing to send until the log grows, the slave reports, or this time has passed."""

    milliseconds: int


Step: TypeAlias = Chunk | Wait


class SlaveLimits(NamedTuple):
    """What one slave gets: RocketMQ's properties of the same purpose, in bytes and milliseconds."""

    batch_bytes: int = 32 << 10
    heartbeat_ms: int = 5_000
    silence_ms: int = 20_000
    # None: no limit.
    bytes_per_second: int | None = None


def start_offset(reported_offset: int, log: LogRange) -> int:
    """Where to begin for a slave whose first report this is; SlaveRefusedError if nowhere.

    A slave with an empty log begins with the last segment, as in RocketMQ.
    """
    if reported_offset < 0:
        raise SlaveRefusedError(f"the report {reported_offset} is not an offset")
    if reported_offset == 0:
        last_segment = log.end_offset - log.end_offset % log.segment_bytes
        return max(log.min_offset, last_segment)
    if reported_offset > log.end_offset:
        raise SlaveRefusedError(
            f"its log ends at {reported_offset}, after the end of this master's log at "
            f"{log.end_offset}: it is not a slave of this master, or it has messages that this "
            "one lost"
        )
    if reported_offset < log.min_offset:
        raise SlaveRefusedError(
            f"its log ends at {reported_offset}, but this master has deleted everything before "
            f"{log.min_offset}: delete the store of the slave; it copies all then"
        )
    return reported_offset


def is_in_sync(acknowledged_offset: int, end_offset: int, max_gap_bytes: int) -> bool:
    """Whether a slave that acknowledged this much is close enough to the end of the log."""
    return end_offset - acknowledged_offset < max_gap_bytes


def acknowledged_offset(in_sync_replicas: int, reports: Iterable[int], end_offset: int) -> int:
    """Up to which offset ``in_sync_replicas`` brokers, the master included, have the log.

    ``reports`` has one offset for each connected slave; with too few of them the result is 0.
    """
    needed = in_sync_replicas - 1
    if needed <= 0:
        return end_offset
    highest = sorted(reports, reverse=True)[:needed]
    return min(highest[-1], end_offset) if len(highest) == needed else 0


class ByteRate:
    """How many bytes there were in this second and in the last one."""

    __slots__ = ("_before", "_now", "_second")

    def __init__(self, now_ms: int) -> None:
        self._second = now_ms // _SECOND_MS
        self._now = self._before = 0

    def add(self, count: int, now_ms: int) -> None:
        self._turn_to(now_ms)
        self._now += count

    def in_this_second(self, now_ms: int) -> int:
        self._turn_to(now_ms)
        return self._now

    def in_last_second(self, now_ms: int) -> int:
        """In the last whole second."""
        self._turn_to(now_ms)
        return self._before

    def _turn_to(self, now_ms: int) -> None:
        second = now_ms // _SECOND_MS
        if second != self._second:
            self._before = self._now if second == self._second + 1 else 0
            self._now = 0
            self._second = second


class SlaveProgress:
    """One connection to the HA port: what the slave has, and what to send it next.

    All times are of one monotonic clock.
    """

    __slots__ = (
        "_last_report_ms",
        "_last_sent_ms",
        "_limits",
        "_rate",
        "acknowledged_offset",
        "next_offset",
    )

    def __init__(self, limits: SlaveLimits, now_ms: int) -> None:
        self._limits = limits
        self._last_report_ms = self._last_sent_ms = now_ms
        self._rate = ByteRate(now_ms)
        # None before the first report: not a slave yet.
        self.acknowledged_offset: int | None = None
        self.next_offset = 0

    def report(self, reported_offset: int, log: LogRange, now_ms: int) -> None:
        """Take a report; SlaveRefusedError if a slave that follows this master cannot send it."""
        before = self.acknowledged_offset
        if before is None:
            self.next_offset = start_offset(reported_offset, log)
        elif not before <= reported_offset <= self.next_offset:
            raise SlaveRefusedError(
                f"it reports {reported_offset} after {before}, although it was sent the log up to "
                f"{self.next_offset}"
            )
        self.acknowledged_offset = reported_offset
        self._last_report_ms = now_ms

    def silent_in_ms(self, now_ms: int) -> int:
        """After how long without a report to disconnect; SlaveRefusedError if that is over.

        A slave reports at least every five seconds.
        """
        left_ms = self._last_report_ms + self._limits.silence_ms - now_ms
        if left_ms > 0:
            return left_ms
        raise SlaveRefusedError(
            f"it has reported nothing for {self._limits.silence_ms} ms"
            + ("" if self.acknowledged_offset is not None else ": it is not a slave")
        )

    def next_step(self, log: LogRange, now_ms: int) -> Step:
        """What to do now. SlaveRefusedError after silence, or if the bytes to send are deleted."""
        silent_in_ms = self.silent_in_ms(now_ms)
        if self.acknowledged_offset is None:
            return Wait(silent_in_ms)
        offset = self.next_offset
        if offset < log.min_offset:
            raise SlaveRefusedError(
                f"it needs the log from {offset}, but this master has deleted everything before "
                f"{log.min_offset} meanwhile"
            )
        available = log.end_offset - offset
        if available > 0:
            to_segment_end = log.segment_bytes - offset % log.segment_bytes
            size = min(available, to_segment_end, self._limits.batch_bytes, self._allowance(now_ms))
            return Chunk(offset, size) if size > 0 else Wait(_SECOND_MS - now_ms % _SECOND_MS)
        heartbeat_in_ms = self._last_sent_ms + self._limits.heartbeat_ms - now_ms
        if heartbeat_in_ms <= 0:
            return Chunk(offset, 0)
        return Wait(min(heartbeat_in_ms, silent_in_ms))

    def sent(self, chunk: Chunk, now_ms: int) -> None:
        """Call this for each chunk that is on its way."""
        self.next_offset = chunk.physical_offset + chunk.size
        self._last_sent_ms = now_ms
        self._rate.add(chunk.size, now_ms)

    def sent_in_last_second(self, now_ms: int) -> int:
        """How many bytes were sent in the last whole second."""
        return self._rate.in_last_second(now_ms)

    def _allowance(self, now_ms: int) -> int:
        """How many bytes may still be sent in this second."""
        if self._limits.bytes_per_second is None:
            return self._limits.batch_bytes
        return self._limits.bytes_per_second - self._rate.in_this_second(now_ms)
