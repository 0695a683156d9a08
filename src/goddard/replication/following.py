"""What a slave decides about its master: whether to follow it, what to append, what to report.

The protocol has no greeting: a master sends its log from the offset of the first report on. So a
slave that has a log reports an offset before its end, compares what it gets with what it has, and
appends only what follows an equal end. Two logs that once parted never have an equal record after
that, because each record holds its place, its time and the address of its broker. Parts of records
can be equal all the same, so what is compared must hold a whole record.

All times are of one monotonic clock.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from goddard.errors import GoddardError
from goddard.replication.decisions import LogRange
from goddard.replication.frames import Frame

# How much of the end of the log is compared first; if it differs, so many times as much.
COMPARED_BYTES: Final = 64 << 10
_COMPARED_FACTOR: Final = 16


class OwnLog(Protocol):
    """The slave's log."""

    def read(self, physical_offset: int, size: int) -> bytes | memoryview:
        """Bytes of one segment."""
        ...

    def holds_record(self, start_offset: int, end_offset: int) -> bool:
        """Whether a whole record lies between these offsets."""
        ...


class MasterRefusedError(GoddardError):
    """This master cannot be followed; the text says why and what to do."""


class LogsDifferError(GoddardError):
    """The end of the slave's log is not in its master's log: up to ``common_offset`` it is."""

    def __init__(self, common_offset: int, end_offset: int) -> None:
        super().__init__(
            f"this log ends at {end_offset}, but only up to {common_offset} it is equal to the "
            "master's. Nothing was changed. If this slave has what the master lost, make it the "
            "master; else stop it and delete its store"
        )
        self.common_offset = common_offset
        self.end_offset = end_offset


class CompareMoreError(GoddardError):
    """What was compared says nothing yet: compare from an earlier offset on."""


class BrokerIdentity(NamedTuple):
    """What a master and its slaves have in common."""

    cluster_name: str
    broker_name: str
    segment_bytes: int


class FollowLimits(NamedTuple):
    """How a slave talks to its master: RocketMQ's properties of the same purpose."""

    report_ms: int = 5_000
    silence_ms: int = 20_000
    # An empty slave takes the last segment of its master instead of the whole log.
    is_last_segment_enough: bool = False


class Start(NamedTuple):
    """How to begin with a master.

    ``report`` is sent first. The first frame begins at ``first_offset`` (None: at the beginning of
    any segment). ``is_first_byte_known``: it begins one byte later than the log, whose first byte
    is zero: the highest one of the size of a record.
    """

    report: int
    first_offset: int | None
    is_first_byte_known: bool = False
    # Whether nothing before could be compared.
    is_earliest: bool = True
    # Where the log of the master ended, if that was before the end of the slave's.
    master_end_offset: int | None = None


def check_identity(own: BrokerIdentity, master: BrokerIdentity) -> None:
    """Raise MasterRefusedError if these are not brokers of one group."""
    for what, mine, its in zip(
        ("brokerClusterName", "brokerName", "mappedFileSizeCommitLog"), own, master, strict=True
    ):
        if mine != its:
            raise MasterRefusedError(
                f"its {what} is {its}, and ours {mine}: it is not the master of this slave"
            )


def plan_start(
    own: LogRange,
    master: LogRange | None,
    *,
    compared_bytes: int = COMPARED_BYTES,
    is_last_segment_enough: bool = False,
) -> Start:
    """How to begin; MasterRefusedError if the logs can have nothing in common.

    ``master`` is None if nobody knows what it has.
    """
    if own.end_offset == own.min_offset:
        return _plan_first(own, master, is_last_segment_enough=is_last_segment_enough)
    low, high = own.min_offset, own.end_offset
    if master is not None:
        if own.end_offset < master.min_offset:
            raise MasterRefusedError(
                f"it has deleted everything before {master.min_offset}, and this log ends at "
                f"{own.end_offset}: stop this slave and delete its store; it copies all then"
            )
        low, high = max(low, master.min_offset), min(high, master.end_offset)
        if high <= low and high < own.end_offset:
            raise MasterRefusedError(
                f"its log has {master.min_offset} to {master.end_offset}, and this one "
                f"{own.min_offset} to {own.end_offset}: they have nothing in common. If the master "
                "lost its store, make this slave the master; else stop this slave and delete its "
                "store"
            )
    # A report of 0 stands for an empty log.
    report = max(low, high - compared_bytes, 1)
    return Start(
        report,
        report,
        is_earliest=report <= max(low, 1),
        master_end_offset=high if high < own.end_offset else None,
    )


def _plan_first(own: LogRange, master: LogRange | None, *, is_last_segment_enough: bool) -> Start:
    """An empty slave gets the last segment for a report of 0; from another offset on, any."""
    if master is None or is_last_segment_enough:
        return Start(0, None)
    if master.end_offset <= own.segment_bytes:
        return Start(0, 0)
    if master.min_offset > 0:
        return Start(master.min_offset, master.min_offset)
    return Start(1, 1, is_first_byte_known=True)


def next_compared_bytes(compared_bytes: int) -> int:
    """How much to compare after logs differed from the first byte compared."""
    return compared_bytes * _COMPARED_FACTOR


class Following:
    """One connection to a master."""

    __slots__ = (
        "_end_offset",
        "_heartbeats",
        "_last_received_ms",
        "_last_report_ms",
        "_limits",
        "_log",
        "_next_offset",
        "_reported",
        "_segment_bytes",
        "_start",
    )

    def __init__(
        self, start: Start, own: LogRange, log: OwnLog, limits: FollowLimits, now_ms: int
    ) -> None:
        self._start = start
        self._log = log
        self._limits = limits
        self._segment_bytes = own.segment_bytes
        # What is below it is compared, what follows is appended.
        self._end_offset = 0 if own.min_offset == own.end_offset else own.end_offset
        self._next_offset = start.first_offset
        self._heartbeats = 0
        self._reported = start.report
        self._last_report_ms = self._last_received_ms = now_ms

    @property
    def is_level(self) -> bool:
        """Whether all that was there before is known to be in the master's log."""
        return self._next_offset is not None and self._next_offset >= self._end_offset

    @property
    def next_offset(self) -> int:
        """Where the next bytes of the master belong."""
        return self._start.report if self._next_offset is None else self._next_offset

    def take(self, frame: Frame, now_ms: int) -> tuple[int, memoryview] | None:
        """Where to append which bytes of a frame, if any.

        Raises MasterRefusedError for a frame that does not continue what came before,
        LogsDifferError and CompareMoreError.
        """
        self._last_received_ms = now_ms
        offset, data = frame.physical_offset, memoryview(frame.data)
        if self._next_offset is None:
            if offset % self._segment_bytes:
                raise MasterRefusedError(
                    f"it begins at {offset}, where no segment of {self._segment_bytes} bytes begins"
                )
            self._next_offset = self._end_offset = offset
        if offset != self._next_offset:
            raise MasterRefusedError(f"it sent the log from {offset}, not from {self._next_offset}")
        if not data:
            self._note_heartbeat(offset)
            return None
        self._heartbeats = 0
        if offset % self._segment_bytes + len(data) > self._segment_bytes:
            raise MasterRefusedError(
                f"{len(data)} bytes at {offset} cross the end of a segment of "
                f"{self._segment_bytes} bytes: mappedFileSizeCommitLog differs"
            )
        self._next_offset += len(data)
        compared = min(len(data), self._end_offset - offset)
        if compared > 0:
            self._compare(offset, data[:compared])
            offset, data = offset + compared, data[compared:]
        if not data:
            return None
        if self._start.is_first_byte_known and offset == 1:
            return 0, memoryview(b"\0" + data)
        return offset, data

    def report(self, stored_offset: int, now_ms: int) -> int | None:
        """What to report now that the slave has so much of the log; None for nothing.

        Bytes that are yet to be compared do not count.
        """
        offset = max(self._reported, min(stored_offset, self.next_offset))
        is_due = now_ms - self._last_report_ms >= self._limits.report_ms
        if offset == self._reported and not is_due:
            return None
        self._reported, self._last_report_ms = offset, now_ms
        return offset

    def wait_ms(self, now_ms: int) -> int:
        """After how long to report again; MasterRefusedError after silence of the master."""
        silent_in_ms = self._last_received_ms + self._limits.silence_ms - now_ms
        if silent_in_ms <= 0:
            raise MasterRefusedError(f"it has sent nothing for {self._limits.silence_ms} ms")
        report_in_ms = self._last_report_ms + self._limits.report_ms - now_ms
        return max(1, min(silent_in_ms, report_in_ms))

    def _compare(self, offset: int, data: memoryview) -> None:
        own = self._log.read(offset, len(data))
        if own != data:
            self._refuse(offset + _common_length(memoryview(own), data))
        offset += len(data)
        if offset == self._end_offset:
            self._check_compared(offset)
        master_end_offset = self._start.master_end_offset
        if master_end_offset is not None and master_end_offset <= offset < self._end_offset:
            self._refuse(offset)

    def _note_heartbeat(self, offset: int) -> None:
        """A master without anything to send has no more than this; one may come too early."""
        self._heartbeats += 1
        if offset < self._end_offset and self._heartbeats > 1:
            self._refuse(offset)

    def _refuse(self, common_offset: int) -> None:
        self._check_compared(common_offset)
        raise LogsDifferError(common_offset, self._end_offset)

    def _check_compared(self, common_offset: int) -> None:
        start = self._start
        if not (start.is_earliest or self._log.holds_record(start.report, common_offset)):
            raise CompareMoreError(f"the logs must be compared from before {start.report}")


class Backoff:
    """How long to wait before the next attempt to follow; ``random`` returns 0 to 1."""

    __slots__ = ("_first_ms", "_most_ms", "_next_ms", "_random")

    def __init__(
        self, random: Callable[[], float], *, first_ms: int = 500, most_ms: int = 10_000
    ) -> None:
        self._random = random
        self._first_ms = self._next_ms = first_ms
        self._most_ms = most_ms

    def reset(self) -> None:
        self._next_ms = self._first_ms

    def wait_ms(self) -> int:
        """Half of it is random, so that slaves do not all come at once."""
        limit_ms = self._next_ms
        self._next_ms = min(limit_ms * 2, self._most_ms)
        return int(limit_ms * (1 + self._random()) / 2)


def _common_length(first: memoryview, second: memoryview) -> int:
    """How many bytes are equal at the beginning of both."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
