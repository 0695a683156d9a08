"""Group rows into batch requests: rows of one target, in order, up to a maximum size. Pure."""

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from goddard.spark.arrays import Positions

# Limits for the rows that are encoded at once: fewer rows than unique ids per millisecond, and
# bounded memory. Spark's own batches have 10,000 rows.
MAX_SLICE_ROWS: Final = 16_384
_MAX_SLICE_BYTES: Final = 32 * 1024 * 1024
# Their size is negligible.
_NUMERIC_COLUMNS: Final = frozenset({"delayLevel", "queueId"})
# Bytes of the separators for each element of a list or a map.
_SEPARATORS_BYTES: Final = 2
_DESTINATION_COLUMNS: Final = ("topic", "brokerName", "queueId", "shardingKey")


class Destination(NamedTuple):
    """The columns of a row that determine its topic and queue."""

    topic: str
    broker_name: str | None = None
    queue_id: int | None = None
    sharding_key: str | None = None


class RequestRows(NamedTuple):
    """Rows from ``start`` to before ``stop`` form one request to a target (a number)."""

    target: int
    start: int
    stop: int


def slices(batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[pa.RecordBatch, Positions]]:
    """The slices of a batch that are encoded at once, with their row numbers."""
    lengths = np.zeros(batch.num_rows, np.int64)
    for name in batch.schema.names:
        if name not in _NUMERIC_COLUMNS:
            lengths += _lengths(batch.column(name))
    for start, stop in split_ranges(_bounds(lengths), _MAX_SLICE_BYTES, MAX_SLICE_ROWS):
        yield batch.slice(start, stop - start), np.arange(first_row + start, first_row + stop)


def _lengths(texts: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of each row of a column of strings, binaries, or lists or maps of strings."""
    if isinstance(texts, pa.MapArray):
        return _sums_of(texts.offsets, _lengths(texts.keys) + _lengths(texts.items))
    if isinstance(texts, pa.ListArray):
        return _sums_of(texts.offsets, _lengths(texts.values))
    lengths: npt.NDArray[np.integer] = pc.coalesce(pc.binary_length(texts), pa.scalar(0)).to_numpy()
    return lengths.astype(np.int64)


def _sums_of(offsets: pa.Array, elements: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The total length of the elements of each list, with their separators."""
    bounds: npt.NDArray[np.int32] = offsets.to_numpy()
    return np.diff(_bounds(elements + _SEPARATORS_BYTES)[bounds])


def _bounds(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.append(np.int64(0), np.cumsum(lengths))


def split_ranges(
    bounds: npt.NDArray[np.integer], max_bytes: int, max_count: int
) -> Iterator[tuple[int, int]]:
    """Split elements into ranges as long as the limits allow.

    ``bounds`` are the byte positions between the elements. A single element may exceed
    ``max_bytes``.
    """
    count = len(bounds) - 1
    start = 0
    while start < count:
        fitting = int(np.searchsorted(bounds, int(bounds[start]) + max_bytes, side="right")) - 1
        stop = min(max(fitting, start + 1), start + max_count, count)
        yield start, stop
        start = stop


def destinations(batch: pa.RecordBatch, topic: str) -> tuple[list[Destination], Positions]:
    """The distinct destinations, and for each row the index of its destination.

    ``topic`` is the default for rows without one.
    """
    names = [name for name in _DESTINATION_COLUMNS if name in batch.schema.names]
    if not names:
        return [Destination(topic)], np.zeros(batch.num_rows, np.int64)
    # Rows with equal values in all columns get equal codes. With four columns and at most
    # MAX_SLICE_ROWS rows the code does not overflow.
    codes = np.zeros(batch.num_rows, np.int64)
    for name in names:
        encoded = batch.column(name).dictionary_encode()
        indices = pc.coalesce(encoded.indices, pa.scalar(-1, pa.int32())).to_numpy()
        codes = codes * (len(encoded.dictionary) + 1) + indices + 1
    _, first_rows, indices = np.unique(codes, return_index=True, return_inverse=True)
    values = {name: batch.column(name).take(pa.array(first_rows)).to_pylist() for name in names}
    nulls = [None] * len(first_rows)
    rows = zip(
        (each or topic for each in values.get("topic", nulls)),
        values.get("brokerName", nulls),
        values.get("queueId", nulls),
        values.get("shardingKey", nulls),
        strict=True,
    )
    return [Destination(*row) for row in rows], indices


def requests(
    bounds: npt.NDArray[np.integer], targets: Positions, max_bytes: int, max_count: int
) -> Iterator[RequestRows]:
    """Split rows into requests.

    Rows are sorted by target number (``targets``); ``bounds`` are the byte positions between rows.
    Requests alternate between targets, so that different targets are sent to concurrently; the
    requests of one target are in order.
    """
    edges = np.flatnonzero(np.diff(targets)) + 1
    by_target: list[Sequence[RequestRows]] = []
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(targets)], strict=True):
        target = int(targets[begin])
        by_target.append(
            [
                RequestRows(target, begin + start, begin + stop)
                for start, stop in split_ranges(bounds[begin : end + 1], max_bytes, max_count)
            ]
        )
    for request in chain.from_iterable(zip_longest(*by_target)):
        if request is not None:
            yield request
