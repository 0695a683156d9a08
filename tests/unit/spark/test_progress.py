"""Lag computed from Spark's progress reports."""

import json
from typing import Any

import pytest

from goddard.client.values import MessageQueue
from goddard.spark import Lag, lag
from goddard.spark.reading.offsets import to_json


def _progress(*sources: tuple[Any, Any]) -> dict[str, Any]:
    """The fields of a progress report that lag() reads."""
    return {"sources": [{"endOffset": end, "latestOffset": latest} for end, latest in sources]}


def _queue(number: int) -> MessageQueue:
    return MessageQueue("T", "b", number)


def _source(end: dict[int, int], latest: dict[int, int]) -> tuple[str, str]:
    return _text(end), _text(latest)


def _text(offsets: dict[int, int]) -> str:
    return json.dumps(to_json({_queue(number): offset for number, offset in offsets.items()}))


def test_lag_by_queue_and_total() -> None:
    found = lag(_progress(_source({0: 10, 1: 5}, {0: 12, 1: 15, 2: 6})))
    assert found.queues == {_queue(0): 2, _queue(1): 10, _queue(2): 6}
    assert (found.total, found.min, found.max, found.avg) == (18, 2, 10, 6.0)


def test_latest_offset_before_end_is_no_lag() -> None:
    assert lag(_progress(_source({0: 10}, {0: 8}))).queues == {_queue(0): 0}


def test_larger_lag_of_a_queue_read_twice() -> None:
    twice = _progress(_source({0: 1}, {0: 9}), _source({0: 4}, {0: 9}))
    assert lag(twice).queues == {_queue(0): 8}


@pytest.mark.parametrize(
    "source",
    [
        (None, None),
        ("17", "18"),
        ("no JSON", "{}"),
        ('{"topic": {"0": 5}}', '{"topic": {"0": 9}}'),
        (_text({0: 1}), None),
    ],
)
def test_other_sources_are_ignored(source: tuple[Any, Any]) -> None:
    found = lag(_progress(source))
    assert found == Lag({})
    assert (found.total, found.min, found.max, found.avg) == (0, 0, 0, 0.0)
