"""Filter push-down: what is read, and which filters Spark still checks."""

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from goddard.client.values import MessageQueue
from goddard.spark.reading.offsets import QueueRange
from goddard.spark.reading.pushdown import push_filters

_QUEUES = [
    MessageQueue(topic, broker, queue_id)
    for topic in ("A", "B", "AB")
    for broker in ("x", "y")
    for queue_id in range(3)
]
_NOON = datetime(2026, 3, 1, 12, 0, 0, 1500, tzinfo=UTC)
_NOON_MS = 1_772_366_400_001


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        (EqualTo(("topic",), "A"), lambda queue: queue.topic == "A"),
        (EqualNullSafe(("topic",), "A"), lambda queue: queue.topic == "A"),
        (StringStartsWith(("topic",), "A"), lambda queue: queue.topic.startswith("A")),
        (In(("brokerName",), ("x", "z")), lambda queue: queue.broker_name == "x"),
        (Not(EqualTo(("topic",), "A")), lambda queue: queue.topic != "A"),
        (Not(In(("queueId",), (0, 1))), lambda queue: queue.queue_id == 2),
        (GreaterThan(("queueId",), 1), lambda queue: queue.queue_id == 2),
        (LessThanOrEqual(("queueId",), 1), lambda queue: queue.queue_id < 2),
        (IsNotNull(("topic",)), lambda _: True),
    ],
)
def test_queue_filters_are_accepted(
    condition: Filter, matches: Callable[[MessageQueue], bool]
) -> None:
    pushed, unaccepted = push_filters([condition])
    assert unaccepted == []
    assert [queue for queue in _QUEUES if pushed.matches_queue(queue)] == list(
        filter(matches, _QUEUES)
    )


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("topic",), None),
        EqualTo(("queueId",), "1"),
        In(("topic",), ("A", None)),
        IsNull(("topic",)),
        Not(IsNull(("topic",))),
        IsNotNull(("keys",)),
        EqualTo(("body",), b"x"),
        EqualTo(("properties", "topic"), "A"),
        EqualTo(("queueOffset",), None),
        Not(EqualTo(("queueOffset",), 5)),
        EqualTo(("bornTimestamp",), _NOON),
        EqualTo(("storeTimestamp",), _NOON.replace(tzinfo=None)),
        GreaterThan(("tags",), "a"),
        In(("queueOffset",), ()),
    ],
)
def test_unsupported_filters_are_not_accepted(condition: Filter) -> None:
    pushed, unaccepted = push_filters([condition])
    assert unaccepted == [condition]
    assert pushed == push_filters([])[0]


@given(
    conditions=st.lists(
        st.builds(
            lambda kind, value: kind(("queueOffset",), value),
            st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
            st.integers(-5, 45),
        )
    ),
    start=st.integers(0, 40),
    size=st.integers(0, 40),
)
def test_offset_filters_are_exact(conditions: list[Filter], start: int, size: int) -> None:
    checks: dict[type[Filter], Callable[[int, int], bool]] = {
        EqualTo: operator.eq,
        GreaterThan: operator.gt,
        GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt,
        LessThanOrEqual: operator.le,
    }
    pushed, unaccepted = push_filters(conditions)
    assert unaccepted == []
    part = pushed.narrow(QueueRange(_QUEUES[0], start, start + size))
    expected = [
        offset
        for offset in range(start, start + size)
        if all(checks[type(each)](offset, int(getattr(each, "value", 0))) for each in conditions)
    ]
    assert list(range(part.start, part.end)) == expected


def test_offset_list_only_narrows_the_range() -> None:
    several = In(("queueOffset",), (7, 3))
    pushed, unaccepted = push_filters([several])
    assert unaccepted == [several]
    assert (pushed.from_offset, pushed.until_offset) == (3, 8)


@pytest.mark.parametrize(
    ("kind", "from_ms", "until_ms"),
    [
        (EqualTo, _NOON_MS, _NOON_MS + 1),
        (GreaterThan, _NOON_MS, None),
        (GreaterThanOrEqual, _NOON_MS, None),
        (LessThan, None, _NOON_MS + 1),
        (LessThanOrEqual, None, _NOON_MS + 1),
    ],
)
def test_time_filters_only_narrow_the_range(
    kind: Callable[..., Filter], from_ms: int | None, until_ms: int | None
) -> None:
    condition = kind(("storeTimestamp",), _NOON)
    pushed, unaccepted = push_filters([condition])
    assert unaccepted == [condition]
    assert (pushed.from_ms, pushed.until_ms) == (from_ms, until_ms)


def test_narrower_time_filter_is_used() -> None:
    hour = timedelta(hours=1)
    pushed, _ = push_filters(
        [
            GreaterThan(("storeTimestamp",), _NOON - hour),
            GreaterThan(("storeTimestamp",), _NOON),
            LessThan(("storeTimestamp",), _NOON + hour),
            LessThan(("storeTimestamp",), _NOON + 2 * hour),
        ]
    )
    assert pushed.from_ms == _NOON_MS
    assert pushed.until_ms == _NOON_MS + 3_600_000 + 1


@pytest.mark.parametrize(
    ("conditions", "expression"),
    [
        ([EqualTo(("tags",), "a")], "a"),
        ([In(("tags",), ("b", "a"))], "a || b"),
        ([In(("tags",), ("b", "a")), EqualTo(("tags",), "b")], "b"),
        ([EqualTo(("tags",), "a"), EqualTo(("tags",), "b")], None),
        ([EqualTo(("tags",), "a|b")], None),
        ([EqualTo(("tags",), " a")], None),
        ([EqualTo(("tags",), "")], None),
        ([EqualTo(("tags",), "*")], None),
        ([In(("tags",), ("a", None))], None),
        ([], None),
    ],
)
def test_tag_filters_become_a_broker_expression(
    conditions: list[Filter], expression: str | None
) -> None:
    pushed, unaccepted = push_filters(conditions)
    assert unaccepted == conditions
    assert pushed.tag_expression == expression
