"""What becomes of half messages: which are decided, and what to do with those that are not. Pure.

A half message waits in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC until its producer commits it or rolls
it back. Either is noted in RMQ_SYS_TRANS_OP_HALF_TOPIC by a message with the tag ``d`` whose body
lists the queue offsets of halves that are decided. Both queues are read by the group
CID_RMQ_SYS_TRANS, whose offsets say how far everything is settled.

Body of an op: decimal numbers with commas between them. RocketMQ 4.9 writes and reads one plain
number; 5.x writes lists, with a comma at the end too, and reads every form.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

REMOVE_TAG: Final = "d"
_SEPARATOR: Final = b","
_MAX_DIGITS: Final = 19


def encode_op(half_offsets: Iterable[int]) -> bytes:
    """The body of an op. A single offset stays a plain number, which 4.9 can read as well."""
    return ",".join(map(str, half_offsets)).encode()


def decode_op(body: bytes) -> list[int]:
    """The half offsets in the body of an op; what is no offset is left out."""
    return [
        int(part) for part in body.split(_SEPARATOR) if part.isdigit() and len(part) <= _MAX_DIGITS
    ]


class OpBatch:
    """Offsets of decided halves that are not in the op queue yet."""

    def __init__(self) -> None:
        # A dict keeps the order, and a half that is decided twice is noted once.
        self._half_offsets: dict[int, None] = {}

    def __contains__(self, half_offset: int) -> bool:
        return half_offset in self._half_offsets

    def __len__(self) -> int:
        return len(self._half_offsets)

    def add(self, half_offset: int) -> None:
        self._half_offsets[half_offset] = None

    def bodies(self, max_bytes: int) -> list[tuple[list[int], bytes]]:
        """Everything, as ops of about ``max_bytes`` each: the offsets, and the body."""
        ops: list[tuple[list[int], bytes]] = []
        chosen: list[int] = []
        size = 0
        for half_offset in self._half_offsets:
            chosen.append(half_offset)
            size += len(str(half_offset)) + 1
            if size >= max_bytes:
                ops.append((chosen, encode_op(chosen)))
                chosen, size = [], 0
        if chosen:
            ops.append((chosen, encode_op(chosen)))
        return ops

    def discard(self, half_offsets: Iterable[int]) -> None:
        for half_offset in half_offsets:
            self._half_offsets.pop(half_offset, None)


@dataclass(slots=True)
class _Op:
    queue_offset: int
    store_timestamp_ms: int
    open_halves: int  # decided here, and not passed yet by the check
    has_earlier: bool  # decides halves that the check had passed before


class DecidedHalves:
    """The halves that are known to be decided, as a check reads ops and passes halves.

    A half that must not be checked yet is written again with the offset it had first, and its
    producer decides it by that first offset, which the check has already passed. So a decision
    about an earlier offset is kept, and its op counts as done only when the check has passed every
    half that was written before the op.
    """

    def __init__(self, first_half_offset: int, first_op_offset: int) -> None:
        self._first_half_offset = first_half_offset
        self._op_of: dict[int, _Op] = {}
        self._earlier: set[int] = set()
        self._ops: list[_Op] = []
        self.next_op_offset = first_op_offset

    def __len__(self) -> int:
        return len(self._op_of) + len(self._earlier)

    def add_op(
        self, queue_offset: int, store_timestamp_ms: int, half_offsets: Sequence[int]
    ) -> None:
        """Take an op that was read; ops come in order."""
        op = _Op(queue_offset, store_timestamp_ms, 0, has_earlier=False)
        for half_offset in half_offsets:
            if half_offset < self._first_half_offset:
                self._earlier.add(half_offset)
                op.has_earlier = True
            elif half_offset not in self._op_of:
                self._op_of[half_offset] = op
                op.open_halves += 1
        self._ops.append(op)
        self.next_op_offset = queue_offset + 1

    def take(self, half_offset: int) -> bool:
        """Whether a half is decided; it is passed by that."""
        op = self._op_of.pop(half_offset, None)
        if op is None:
            return False
        op.open_halves -= 1
        # Written again under another offset, it may come again.
        self._earlier.add(half_offset)
        return True

    def has(self, first_offset: int) -> bool:
        """Whether a half that was written again is decided, by the offset it had first."""
        return first_offset in self._op_of or first_offset in self._earlier

    def settled_op_offset(self, stop_timestamp_ms: int | None) -> int:
        """The first op that is still needed, when the check stopped at a half of this store time.

        None: it came to the end of the queue.
        """
        for op in self._ops:
            is_awaited = (
                op.has_earlier
                and stop_timestamp_ms is not None
                and op.store_timestamp_ms >= stop_timestamp_ms
            )
            if op.open_halves or is_awaited:
                return op.queue_offset
        return self.next_op_offset


class Verdict(Enum):
    """What to do with a half message that nobody has decided."""

    LATER = "it is too young: stop here"
    KEEP = "its producer wants more time: write it again, unless its first offset is decided"
    CHECK = "write it again and ask a producer of its group"
    DISCARD = "asked too often, or too old: put it aside"


@dataclass(frozen=True, slots=True)
class Half:
    """What counts of an undecided half message."""

    born_timestamp_ms: int
    store_timestamp_ms: int
    # None before the first check.
    check_times: int | None = None
    # CHECK_IMMUNITY_TIME_IN_SECONDS; None when absent.
    immunity_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class CheckRules:
    timeout_ms: int
    check_max: int
    reserved_ms: int


def immunity_ms(immunity_seconds: int, timeout_ms: int) -> int:
    """How long a half that asks for it is not checked; never shorter than any other."""
    return max(immunity_seconds * 1000, timeout_ms)


def judge(half: Half, rules: CheckRules, *, now_ms: int, round_start_ms: int) -> Verdict:
    """All ops have been read, and none decides this half."""
    age_ms = now_ms - half.born_timestamp_ms
    if age_ms > rules.reserved_ms:
        return Verdict.DISCARD
    if half.check_times is not None and half.check_times >= rules.check_max:
        return Verdict.DISCARD
    if half.store_timestamp_ms >= round_start_ms:
        return Verdict.LATER
    if age_ms < 0:  # the producer's clock, or ours, is wrong: ask rather than wait for years
        return Verdict.CHECK
    if half.immunity_seconds is not None:
        waits_ms = immunity_ms(half.immunity_seconds, rules.timeout_ms)
        return Verdict.KEEP if age_ms <= waits_ms else Verdict.CHECK
    return Verdict.LATER if age_ms <= rules.timeout_ms else Verdict.CHECK
