"""What conditions of a query say about which messages to read. Pure: no network, no session.

Spark hands a source the conditions that it could check itself, and does not check again what the
source accepts. Those on where a message is, topic, broker, queue and offset, are accepted: they are
exact. Those on times and tags only spare reading, and stay with Spark: brokers find messages by
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
from goddard.spark.offsets import QueueRange

_MAX_OFFSET: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# Columns that are the same for all messages of a queue, and the type of their values.
_OF_QUEUE: Final[dict[str, tuple[Callable[[MessageQueue], Any], type]]] = {
    "topic": (lambda queue: queue.topic, str),
    "brokerName": (lambda queue: queue.broker_name, str),
    "queueId": (lambda queue: queue.queue_id, int),
}
_NEVER_NULL: Final = frozenset({*_OF_QUEUE, "queueOffset"})

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
class Wanted:
    """Messages that fulfil the conditions are among these; ``until`` ends are not included."""

    queue_tests: tuple[Callable[[MessageQueue], bool], ...] = ()
    from_offset: int = 0
    until_offset: int = _MAX_OFFSET
    from_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = field(default=None)

    def has(self, queue: MessageQueue) -> bool:
        return all(test(queue) for test in self.queue_tests)

    def of(self, whole: QueueRange) -> QueueRange:
        """What of a range is wanted by its offsets; it may be empty."""
        start = max(whole.start, self.from_offset)
        return QueueRange(whole.queue, start, max(start, min(whole.end, self.until_offset)))

    @property
    def tag_expression(self) -> str | None:
        """The tags as brokers are asked for them; None if that is not possible."""
        tags = sorted(self.tags or ())
        if not tags or any(
            not tag or tag == "*" or "|" in tag or tag != tag.strip() for tag in tags
        ):
            return None
        return " || ".join(tags)


def push(filters: Sequence[Filter]) -> tuple[Wanted, list[Filter]]:
    """What the conditions ask for, and those of them that Spark has to check still."""
    wanted = Wanted()
    left = []
    for condition in filters:
        wanted, is_exact = _narrowed(wanted, condition)
        if not is_exact:
            left.append(condition)
    return wanted, left


def _narrowed(wanted: Wanted, condition: Filter) -> tuple[Wanted, bool]:
    attribute = condition.child if isinstance(condition, Not) else condition
    column = ".".join(getattr(attribute, "attribute", ()))
    if isinstance(condition, IsNotNull):
        return wanted, column in _NEVER_NULL
    if column in _OF_QUEUE:
        test = _queue_test(condition, column)
        if test is None:
            return wanted, False
        return replace(wanted, queue_tests=(*wanted.queue_tests, test)), True
    if column == "queueOffset":
        return _by_offset(wanted, condition)
    if column == "storeTimestamp":
        return _by_time(wanted, condition), False
    if column == "tags":
        return _by_tags(wanted, condition), False
    return wanted, False


def _queue_test(condition: Filter, column: str) -> Callable[[MessageQueue], bool] | None:
    if isinstance(condition, Not):
        test = _queue_test(condition.child, column)
        return None if test is None else lambda queue: not test(queue)
    value_of, kind = _OF_QUEUE[column]
    if isinstance(condition, In):
        values = tuple(condition.value)
        if not all(_is_a(value, kind) for value in values):
            return None
        return lambda queue: value_of(queue) in values
    compare = _COMPARISONS.get(type(condition))
    value = getattr(condition, "value", None)
    if compare is None or not _is_a(value, kind):
        return None
    return lambda queue: compare(value_of(queue), value)


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _by_offset(wanted: Wanted, condition: Filter) -> tuple[Wanted, bool]:
    value = getattr(condition, "value", None)
    if isinstance(condition, In):
        offsets = condition.value
        if not offsets or not all(_is_a(offset, int) for offset in offsets):
            return wanted, False
        return _between(wanted, min(offsets), max(offsets) + 1), False
    if not _is_a(value, int):
        return wanted, False
    assert isinstance(value, int)
    match condition:
        case EqualTo() | EqualNullSafe():
            return _between(wanted, value, value + 1), True
        case GreaterThan():
            return _between(wanted, value + 1, _MAX_OFFSET), True
        case GreaterThanOrEqual():
            return _between(wanted, value, _MAX_OFFSET), True
        case LessThan():
            return _between(wanted, 0, value), True
        case LessThanOrEqual():
            return _between(wanted, 0, value + 1), True
    return wanted, False


def _between(wanted: Wanted, start: int, end: int) -> Wanted:
    return replace(
        wanted,
        from_offset=max(wanted.from_offset, start),
        until_offset=min(wanted.until_offset, end),
    )


def _by_time(wanted: Wanted, condition: Filter) -> Wanted:
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return wanted
    # The millisecond that the time is in: rounding down never leaves out too much.
    time_ms = max(0, (value - _EPOCH) // _MILLISECOND)
    from_ms, until_ms = wanted.from_ms, wanted.until_ms
    if isinstance(condition, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
        from_ms = time_ms if from_ms is None else max(from_ms, time_ms)
    if isinstance(condition, (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual)):
        until_ms = time_ms + 1 if until_ms is None else min(until_ms, time_ms + 1)
    return replace(wanted, from_ms=from_ms, until_ms=until_ms)


def _by_tags(wanted: Wanted, condition: Filter) -> Wanted:
    match condition:
        case EqualTo(value=str(tag)) | EqualNullSafe(value=str(tag)):
            tags = frozenset({tag})
        case In(value=values) if all(isinstance(value, str) for value in values):
            tags = frozenset(values)
        case _:
            return wanted
    return replace(wanted, tags=tags if wanted.tags is None else wanted.tags & tags)
