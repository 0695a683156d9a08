"""Filter push-down: narrow what is read by the conditions of a query. Pure.

Spark offers the filters of a query to the source and does not check again those that the source
accepts. Filters on topic, broker, queue and queue offset are exact and are accepted. Filters on
store time and tags only reduce what is read, and Spark checks them again: brokers find messages by
time to the millisecond, and by the hash of their tag.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from goddard.client.values import MessageQueue
from goddard.spark.reading.offsets import QueueRange

_MAX_OFFSET: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# Columns that have one value per queue: how to get it, and its type.
_QUEUE_COLUMNS: Final[dict[str, tuple[Callable[[MessageQueue], Any], type]]] = {
    "topic": (lambda queue: queue.topic, str),
    "brokerName": (lambda queue: queue.broker_name, str),
    "queueId": (lambda queue: queue.queue_id, int),
}
_NEVER_NULL: Final = frozenset({*_QUEUE_COLUMNS, "queueOffset"})

_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringContains: operator.contains,
    StringEndsWith: str.endswith,
    StringStartsWith: str.startswith,
}


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Bounds for the messages that can match the filters; ``until_...`` bounds are exclusive."""

    queue_tests: tuple[Callable[[MessageQueue], bool], ...] = ()
    from_offset: int = 0
    until_offset: int = _MAX_OFFSET
    from_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = field(default=None)

    def matches_queue(self, queue: MessageQueue) -> bool:
        return all(test(queue) for test in self.queue_tests)

    def narrow(self, whole: QueueRange) -> QueueRange:
        """The part of a range within the offset bounds; it may be empty."""
        start = max(whole.start, self.from_offset)
        return QueueRange(whole.queue, start, max(start, min(whole.end, self.until_offset)))

    @property
    def tag_expression(self) -> str | None:
        """The tags as a filter expression for brokers; None if they cannot be expressed so."""
        tags = sorted(self.tags or ())
        if not tags or any(
            not tag or tag == "*" or "|" in tag or tag != tag.strip() for tag in tags
        ):
            return None
        return " || ".join(tags)


def push_filters(filters: Sequence[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """The pushed filters, and the filters that Spark still has to check."""
    pushed = PushedFilters()
    unaccepted = []
    for condition in filters:
        pushed, is_exact = _apply(pushed, condition)
        if not is_exact:
            unaccepted.append(condition)
    return pushed, unaccepted


def _apply(pushed: PushedFilters, condition: Filter) -> tuple[PushedFilters, bool]:
    attribute = condition.child if isinstance(condition, Not) else condition
    column = ".".join(getattr(attribute, "attribute", ()))
    if isinstance(condition, IsNotNull):
        return pushed, column in _NEVER_NULL
    if column in _QUEUE_COLUMNS:
        test = _queue_test(condition, column)
        if test is None:
            return pushed, False
        return replace(pushed, queue_tests=(*pushed.queue_tests, test)), True
    if column == "queueOffset":
        return _apply_offset_filter(pushed, condition)
    if column == "storeTimestamp":
        return _apply_time_filter(pushed, condition), False
    if column == "tags":
        return _apply_tag_filter(pushed, condition), False
    return pushed, False


def _queue_test(condition: Filter, column: str) -> Callable[[MessageQueue], bool] | None:
    if isinstance(condition, Not):
        test = _queue_test(condition.child, column)
        return None if test is None else lambda queue: not test(queue)
    value_of, kind = _QUEUE_COLUMNS[column]
    if isinstance(condition, In):
        values = tuple(condition.value)
        if not all(_has_type(value, kind) for value in values):
            return None
        return lambda queue: value_of(queue) in values
    compare = _COMPARISONS.get(type(condition))
    value = getattr(condition, "value", None)
    if compare is None or not _has_type(value, kind):
        return None
    return lambda queue: compare(value_of(queue), value)


def _has_type(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _apply_offset_filter(pushed: PushedFilters, condition: Filter) -> tuple[PushedFilters, bool]:
    value = getattr(condition, "value", None)
    if isinstance(condition, In):
        offsets = condition.value
        if not offsets or not all(_has_type(offset, int) for offset in offsets):
            return pushed, False
        return _limit_offsets(pushed, min(offsets), max(offsets) + 1), False
    if not _has_type(value, int):
        return pushed, False
    assert isinstance(value, int)
    match condition:
        case EqualTo() | EqualNullSafe():
            return _limit_offsets(pushed, value, value + 1), True
        case GreaterThan():
            return _limit_offsets(pushed, value + 1, _MAX_OFFSET), True
        case GreaterThanOrEqual():
            return _limit_offsets(pushed, value, _MAX_OFFSET), True
        case LessThan():
            return _limit_offsets(pushed, 0, value), True
        case LessThanOrEqual():
            return _limit_offsets(pushed, 0, value + 1), True
    return pushed, False


def _limit_offsets(pushed: PushedFilters, start: int, end: int) -> PushedFilters:
    return replace(
        pushed,
        from_offset=max(pushed.from_offset, start),
        until_offset=min(pushed.until_offset, end),
    )


def _apply_time_filter(pushed: PushedFilters, condition: Filter) -> PushedFilters:
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return pushed
    # Rounded down to the millisecond of the store time, so that no matching message is left out.
    time_ms = max(0, (value - _EPOCH) // _MILLISECOND)
    from_ms, until_ms = pushed.from_ms, pushed.until_ms
    if isinstance(condition, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
        from_ms = time_ms if from_ms is None else max(from_ms, time_ms)
    if isinstance(condition, (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual)):
        until_ms = time_ms + 1 if until_ms is None else min(until_ms, time_ms + 1)
    return replace(pushed, from_ms=from_ms, until_ms=until_ms)


def _apply_tag_filter(pushed: PushedFilters, condition: Filter) -> PushedFilters:
    match condition:
        case EqualTo(value=str(tag)) | EqualNullSafe(value=str(tag)):
            tags = frozenset({tag})
        case In(value=values) if all(isinstance(value, str) for value in values):
            tags = frozenset(values)
        case _:
            return pushed
    return replace(pushed, tags=tags if pushed.tags is None else pushed.tags & tags)
