"""Finding the true end of a commit log when a store opens, and what to do about what lies there.

Deciding is pure: ``choose_start`` picks the segment to read from, ``judge_tail`` says whether what
follows the last good record is a torn tail (cut) or damage to data that was safe (refused).

The rules. Reading goes record by record and stops at the first bytes that are none. Zeros from
there on are the ordinary end. Otherwise, if no good record follows, the tail was torn by a crash or
spoilt beyond use, and is cut. If good records do follow, it depends on when the first of them was
stored. After an unclean stop, records younger than the checkpoint had perhaps not been synced, and
a power cut may keep a later page and lose an earlier one: such a tail is cut too, since none of it
was promised. Records the checkpoint vouches for, or any after a clean stop, were promised: opening
fails with the place of the damage, unless the operator asked to cut there. Whatever is cut goes to
a side file first, and the report says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple


class SegmentStart(NamedTuple):
    """A segment as recovery sees it; the time is None when no record begins it."""

    base_offset: int
    first_store_time_ms: int | None


class Tail(NamedTuple):
    """What follows the last good record, up to the last byte that is not zero."""

    start_offset: int
    end_offset: int
    next_record_offset: int | None
    next_record_time_ms: int | None


class Verdict(Enum):
    CLEAN_END = "nothing but zeros follows the last record"
    CUT = "a torn tail follows the last record"
    CORRUPT = "damaged bytes lie before good records"


class Finding(NamedTuple):
    """Something that was not as it should be, and where."""

    path: Path
    physical_offset: int
    text: str


@dataclass(slots=True)
class RecoveryReport:
    """How opening went. ``findings`` is empty after an ordinary stop or crash."""

    is_clean: bool
    started_at: int = 0
    end_offset: int = 0
    records: int = 0
    dispatched: int = 0
    cut_bytes: int = 0
    cut_files: list[Path] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def choose_start(
    segments: Sequence[SegmentStart],
    *,
    is_clean: bool,
    indexed_offset: int,
    safe_time_ms: int,
) -> int:
    """The number of the segment at which to start reading.

    After a clean stop: the last one that begins at or before the end of what the queues know.
    After an unclean one: the last that begins with a record of the safe time or older. Segments
    that do not begin with a record tell nothing and are passed over; failing all, the first.
    """
    for number in range(len(segments) - 1, 0, -1):
        base_offset, first_time_ms = segments[number]
        if first_time_ms is None or first_time_ms == 0:
            continue
        if base_offset <= indexed_offset if is_clean else first_time_ms <= safe_time_ms:
            return number
    return 0


def judge_tail(tail: Tail | None, *, is_clean: bool, safe_time_ms: int) -> Verdict:
    """Whether what follows the last good record may be cut."""
    if tail is None:
        return Verdict.CLEAN_END
    if tail.next_record_time_ms is None:
        return Verdict.CUT
    if is_clean or tail.next_record_time_ms <= safe_time_ms:
        return Verdict.CORRUPT
    return Verdict.CUT


def is_torn(properties: bytes) -> bool:
    """Whether the last record of a log that ended uncleanly lost its end to zeros.

    No checksum covers the properties, but their last byte is never zero: it is a separator, or the
    end of a text.
    """
    return properties.endswith(b"\0")
