"""Grouping of rows into requests."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.spark.writing import batching
from goddard.spark.writing.batching import (
    Destination,
    RequestRows,
    destinations,
    requests,
    slices,
    split_ranges,
)


@given(
    st.lists(st.integers(0, 50), max_size=40),
    st.integers(1, 120),
    st.integers(1, 10),
    st.integers(0, 9),
)
def test_ranges_are_as_long_as_the_limits_allow(
    lengths: list[int], max_bytes: int, max_count: int, first: int
) -> None:
    bounds = np.cumsum([first, *lengths]).astype(np.int32)
    found = list(split_ranges(bounds, max_bytes, max_count))
    assert [each for begin, end in found for each in range(begin, end)] == list(range(len(lengths)))
    for begin, end in found:
        size = sum(lengths[begin:end])
        assert end - begin <= max_count
        assert size <= max_bytes or end - begin == 1
        if end < len(lengths):
            # The next element would exceed a limit.
            assert end - begin == max_count or size + lengths[end] > max_bytes


def test_ranges_near_the_32_bit_limit() -> None:
    bounds = np.array([2**31 - 30, 2**31 - 20, 2**31 - 10], np.int32)
    assert list(split_ranges(bounds, 4 * 1024 * 1024, 100)) == [(0, 2)]


_ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([None, "", "T", "U"]),
        "queue": st.none() | st.tuples(st.sampled_from("ab"), st.integers(0, 2)),
        "shardingKey": st.none() | st.sampled_from(["", "x", "y"]),
    }
)


@given(st.lists(_ROW, min_size=1, max_size=30), st.sets(st.sampled_from(["topic", "queue", "key"])))
def test_destination_of_every_row(rows: list[dict[str, Any]], named: set[str]) -> None:
    columns: dict[str, pa.Array] = {"body": pa.array([b"x"] * len(rows))}
    if "topic" in named:
        columns["topic"] = pa.array([row["topic"] for row in rows], pa.string())
    if "queue" in named:
        queues = [row["queue"] or (None, None) for row in rows]
        columns["brokerName"] = pa.array([broker for broker, _ in queues], pa.string())
        columns["queueId"] = pa.array([number for _, number in queues], pa.int32())
    if "key" in named:
        columns["shardingKey"] = pa.array([row["shardingKey"] for row in rows], pa.string())
    found, targets = destinations(pa.RecordBatch.from_pydict(columns), "D")
    for row, number in zip(rows, targets.tolist(), strict=True):
        broker, queue_id = (row["queue"] or (None, None)) if "queue" in named else (None, None)
        assert found[number] == Destination(
            (row["topic"] or "D") if "topic" in named else "D",
            broker,
            queue_id,
            row["shardingKey"] if "key" in named else None,
        )


def test_requests_alternate_between_targets() -> None:
    bounds = np.arange(0, 90, 10)
    targets = np.array([0, 0, 0, 0, 0, 2, 2, 2])
    assert list(requests(bounds, targets, 20, 100)) == [
        RequestRows(0, 0, 2),
        RequestRows(2, 5, 7),
        RequestRows(0, 2, 4),
        RequestRows(2, 7, 8),
        RequestRows(0, 4, 5),
    ]


def test_large_batches_are_encoded_in_slices() -> None:
    long = b"x" * 12 * 1024 * 1024
    bodies = pa.array([long, None, long, long, *[b"y"] * 40_000])
    found = list(slices(pa.RecordBatch.from_pydict({"body": bodies}), 100))
    counts = [part.num_rows for part, _ in found]
    assert counts == [3, 16_384, 16_384, 40_001 - 2 * 16_384]
    assert np.concatenate([rows for _, rows in found]).tolist() == list(range(100, 40_104))


_LONG = "v" * 30_000


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("properties", [("p", _LONG)], pa.map_(pa.string(), pa.string())),
        ("properties", [(_LONG, None)], pa.map_(pa.large_string(), pa.large_string())),
        ("keys", [_LONG[:15_000]] * 2, pa.list_(pa.string())),
        ("keys", _LONG, pa.large_string()),
        ("tags", _LONG, pa.string()),
    ],
)
def test_all_columns_count_towards_the_slice_size(name: str, value: Any, kind: pa.DataType) -> None:
    count = 2_500
    column = pa.array([value, *[None] * count, *[value] * count], kind)
    bodies = pa.array([b"x"] * len(column))
    columns = {"body": bodies, name: column, "queueId": pa.array([0] * len(column))}
    batch = pa.RecordBatch.from_pydict(columns).slice(1)
    found = [part.num_rows for part, _ in slices(batch, 0)]
    # Rows with a null value are small; about 1,100 of the others are 32 MiB.
    assert count + 1_000 < found[0] < count + 1_120
    assert 1_000 < found[1] < 1_120
    assert sum(found) == 2 * count


def test_empty_batch_has_no_slices() -> None:
    columns = {"body": pa.array([], pa.binary()), "keys": pa.array([], pa.list_(pa.string()))}
    columns["properties"] = pa.array([], pa.map_(pa.string(), pa.string()))
    assert list(slices(pa.RecordBatch.from_pydict(columns), 0)) == []


def test_slices_are_smaller_than_the_range_of_ids() -> None:
    # Several slices within a millisecond must not use an id twice.
    assert batching.MAX_SLICE_ROWS * 4 <= 1 << 16
