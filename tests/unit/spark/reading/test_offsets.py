"""Offsets of checkpoints and options, and the planning of batches."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.spark.reading import offsets
from goddard.spark.reading.offsets import OffsetsError, QueueRange


def _queue(number: int, broker: str = "b") -> MessageQueue:
    return MessageQueue("T", broker, number)


_QUEUES = st.builds(
    MessageQueue,
    st.sampled_from(["A", "B"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 12),
)
_OFFSETS = st.dictionaries(_QUEUES, st.integers(0, 2**62), max_size=8)


@given(_OFFSETS, _OFFSETS, _OFFSETS, st.none() | st.integers(0, 2**62))
def test_checkpoint_json_round_trip(
    ends: offsets.Offsets,
    first: offsets.Offsets,
    stored_ms: offsets.Offsets,
    started_ms: int | None,
) -> None:
    text = json.dumps(offsets.to_json(ends, first, stored_ms, started_ms))
    assert offsets.from_json(json.loads(text)) == (ends, first, stored_ms, started_ms)


def test_checkpoint_json_is_stable() -> None:
    text = json.dumps(offsets.to_json({_queue(10): 3, _queue(9): 5, _queue(0, "a"): 1}))
    assert text == '{"version": 1, "queues": {"T": {"a": {"0": 1}, "b": {"9": 5, "10": 3}}}}'
    text = json.dumps(offsets.to_json({_queue(1): 3}, {_queue(1): 2}))
    assert text == (
        '{"version": 1, "queues": {"T": {"b": {"1": 3}}}, "first": {"T": {"b": {"1": 2}}}}'
    )
    text = json.dumps(offsets.to_json({_queue(1): 3}, None, {_queue(1): 1_700}, 1_600))
    assert text == (
        '{"version": 1, "queues": {"T": {"b": {"1": 3}}}, '
        '"stored": {"T": {"b": {"1": 1700}}}, "started": 1600}'
    )
    # A query that started before any queue existed.
    assert json.dumps(offsets.to_json({}, {})) == '{"version": 1, "queues": {}, "first": {}}'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not offsets"),
        ({}, "not offsets"),
        ({"version": True}, "damaged"),
        ({"version": 2, "queues": {}}, "newer Goddard"),
        ({"version": 1, "queues": []}, "damaged"),
        ({"version": 1, "queues": {"T": {"b": {"x": 1}}}}, "damaged"),
        ({"version": 1, "queues": {"T": {"b": {"0": -1}}}}, "damaged"),
        ({"version": 1, "queues": {"T": {"b": {"0": "1"}}}}, "damaged"),
        ({"version": 1, "queues": {}, "started": "now"}, "damaged"),
    ],
)
def test_invalid_checkpoint_is_refused(value: Any, words: str) -> None:
    with pytest.raises(OffsetsError, match=words):
        offsets.from_json(value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"T": 1}', '{"T": {"b": {"0": -3}}}', "null"])
def test_invalid_option_error_shows_the_format(text: str) -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets is .*write it as"):
        offsets.parse_queue_numbers("startingOffsets", text, lowest=offsets.EARLIEST)


def test_timestamps_by_topic_or_by_queue() -> None:
    numbers = offsets.parse_topic_numbers("o", '{"A": 17, "B": {"b": {"0": 9}}}')
    assert numbers == {"A": 17, "B": {MessageQueue("B", "b", 0): 9}}


def test_assignment_by_broker() -> None:
    chosen = offsets.parse_assignment("assign", '{"T": {"b": [0, 2]}}')
    assert chosen == {_queue(0), _queue(2)}
    for text in ("{}", '{"T": {"b": 1}}', '{"T": {"b": [-1]}}', '{"T": {"b": [true]}}'):
        with pytest.raises(ConfigError, match="assign"):
            offsets.parse_assignment("assign", text)


def test_ranges_start_at_the_end_of_the_last_batch() -> None:
    ranges, losses = offsets.ranges_between(
        {_queue(0): 5, _queue(1): 7}, {_queue(0): 9, _queue(1): 7}
    )
    assert (ranges, losses) == ([QueueRange(_queue(0), 5, 9)], [])


def test_end_before_start_is_data_loss() -> None:
    ranges, losses = offsets.ranges_between({_queue(0): 5}, {_queue(0): 3})
    assert ranges == []
    assert "was the topic recreated?" in losses[0]


def test_queue_missing_in_end_offsets_is_not_read() -> None:
    # The start offsets are resolved again when the first batch is repeated.
    start = {_queue(0): 9, _queue(1): 4}
    assert offsets.ranges_between(start, {_queue(0): 9}) == ([], [])


_RANGES = st.lists(st.integers(0, 1000), max_size=6).map(
    lambda sizes: [
        QueueRange(_queue(number), 10, 10 + size) for number, size in enumerate(sizes) if size > 0
    ]
)


@given(
    _RANGES,
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 300),
)
def test_partitions_cover_their_ranges_in_order(
    ranges: list[QueueRange], min_partitions: int | None, most: int | None
) -> None:
    partitions = offsets.split(
        ranges, min_partitions=min_partitions, max_records_per_partition=most
    )
    for whole in ranges:
        position = whole.start
        for partition in (each for each in partitions if each.queue == whole.queue):
            assert partition.start == position
            assert partition.size > 0
            assert most is None or partition.size <= most
            position = partition.end
        assert position == whole.end
    assert len(partitions) >= len(ranges)


def test_number_of_partitions_is_limited() -> None:
    whole = [QueueRange(_queue(0), 0, 2**40)]
    expected = "gives 1,099,511,627,776 partitions, over the limit of 100,000"
    with pytest.raises(ConfigError, match=expected):
        offsets.split(whole, max_records_per_partition=1)
    most = offsets.split([QueueRange(_queue(0), 0, 100_000)], max_records_per_partition=1)
    assert len(most) == offsets.MAX_PARTITIONS


def test_large_queue_is_split_and_small_one_is_not() -> None:
    ranges = [QueueRange(_queue(0), 0, 900), QueueRange(_queue(1), 0, 10)]
    partitions = offsets.split(ranges, min_partitions=4)
    assert partitions == [
        QueueRange(_queue(0), 0, 300),
        QueueRange(_queue(0), 300, 600),
        QueueRange(_queue(0), 600, 900),
        QueueRange(_queue(1), 0, 10),
    ]


@given(st.lists(st.integers(1, 300_000), max_size=300), st.integers(1, 40))
def test_combined_tasks_cover_all_ranges_in_order(sizes: list[int], min_tasks: int) -> None:
    ranges = [QueueRange(_queue(number), 5, 5 + size) for number, size in enumerate(sizes)]
    tasks = offsets.combine(ranges, min_tasks)
    assert [each for task in tasks for each in task] == ranges
    assert len(tasks) >= min(len(ranges), min_tasks)
    assert all(
        len(task) == 1 or sum(each.size for each in task) <= offsets.MESSAGES_PER_TASK
        for task in tasks
    )


def test_many_short_ranges_are_few_tasks() -> None:
    short = [QueueRange(_queue(number), 0, 1) for number in range(10_000)]
    assert offsets.MIN_COMBINED_TASKS <= len(offsets.combine(short, 32)) <= 40
    long = [QueueRange(_queue(number), 0, 100_000) for number in range(2_000)]
    assert len(offsets.combine(long, 32)) == 2_000


@given(
    st.dictionaries(
        st.integers(0, 6).map(_queue), st.tuples(st.integers(0, 50), st.integers(0, 500))
    ),
    st.integers(1, 400),
)
def test_limited_batch_uses_the_whole_limit(
    queues: dict[MessageQueue, tuple[int, int]], most: int
) -> None:
    start = {queue: begin for queue, (begin, _) in queues.items()}
    latest = {queue: begin + lag for queue, (begin, lag) in queues.items()}
    ends = offsets.limit_batch(start, latest, most)
    assert ends.keys() == latest.keys()
    assert all(start[queue] <= ends[queue] <= latest[queue] for queue in ends)
    lag = offsets.count_available(start, latest)
    assert sum(ends[queue] - start[queue] for queue in ends) == min(lag, most)


def test_short_queue_does_not_starve() -> None:
    start = {_queue(0): 0, _queue(1): 0}
    ends = offsets.limit_batch(start, {_queue(0): 1_000_000, _queue(1): 1}, 10)
    assert ends == {_queue(0): 9, _queue(1): 1}
