"""Which commit-log segments to delete, decided without touching them.

Files older than the reserved time are deleted at the hours of ``deleteWhen``, as soon as the disk
is fuller than the high mark, or by hand. Above the second mark, files of any age are deleted; above
the third, the store accepts no messages until the disk is below it again. The last segment is never
deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class SegmentAge(NamedTuple):
    base_offset: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class RetentionRules:
    reserved_ms: int
    delete_hours: frozenset[int]
    high_ratio: float
    force_ratio: float
    full_ratio: float
    is_forced_enabled: bool
    batch_files: int


class RetentionPlan(NamedTuple):
    """How many of the oldest segments to delete now, and whether the disk counts as full."""

    delete_count: int
    is_disk_full: bool


def plan_retention(
    rules: RetentionRules,
    segments: Sequence[SegmentAge],
    *,
    now_ms: int,
    local_hour: int,
    disk_ratio: float,
    is_manual: bool = False,
) -> RetentionPlan:
    """``segments`` are the ones that may go, oldest first: all but the last."""
    is_disk_full = disk_ratio > rules.full_ratio
    is_forced = rules.is_forced_enabled and disk_ratio > rules.force_ratio
    is_due = is_manual or local_hour in rules.delete_hours or disk_ratio > rules.high_ratio
    count = 0
    if is_due or is_forced:
        for segment in segments[: rules.batch_files]:
            if not is_forced and segment.modified_ms + rules.reserved_ms > now_ms:
                break
            count += 1
    return RetentionPlan(count, is_disk_full)
