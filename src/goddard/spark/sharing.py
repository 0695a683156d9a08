"""Which rows share a request: rows of one destination, as many as fit, in their order. Pure."""

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from goddard.spark.arrays import Positions

# Rows that are encoded at once: no more than there are ids for a millisecond, and no more memory
# than a task has without asking, whichever column it is for. Spark's own batches have 10,000 rows.
MAX_PIECE_ROWS: Final = 16_384
_MAX_PIECE_BYTES: Final = 32 * 1024 * 1024
# They are small, and do not count.
_NUMBERS: Final = frozenset({"delayLevel", "queueId"})
# What separates an element of a list or a map from its neighbours.
_SEPARATORS_BYTES: Final = 2


class Destination(NamedTuple):
    """What a row says about where it is to go."""

    topic: str
    broker_name: str | None = None
    queue_id: int | None = None
    sharding_key: str | None = None


class Share(NamedTuple):
    """Rows from ``start`` to before ``stop`` go to the target of that number."""

    target: int
    start: int
    stop: int


def pieces(batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[pa.RecordBatch, Positions]]:
    """The parts of a batch that are encoded at once, with the numbers of their rows."""
    lengths = np.zeros(batch.num_rows, np.int64)
    for name in batch.schema.names:
        if name not in _NUMBERS:
            lengths += _lengths(batch.column(name))
    for start, stop in cuts(_bounds(lengths), _MAX_PIECE_BYTES, MAX_PIECE_ROWS):
        yield batch.slice(start, stop - start), np.arange(first_row + start, first_row + stop)


def _lengths(texts: pa.Array) -> npt.NDArray[np.int64]:
    """How many bytes each row of a column has, be it of texts, of lists or of maps of them."""
    if isinstance(texts, pa.MapArray):
        return _sums_of(texts.offsets, _lengths(texts.keys) + _lengths(texts.items))
    if isinstance(texts, pa.ListArray):
        return _sums_of(texts.offsets, _lengths(texts.values))
    lengths: npt.NDArray[np.integer] = pc.coalesce(pc.binary_length(texts), pa.scalar(0)).to_numpy()
    return lengths.astype(np.int64)


def _sums_of(offsets: pa.Array, elements: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What the elements of each list have together, and what separates them."""
    places: npt.NDArray[np.int32] = offsets.to_numpy()
    return np.diff(_bounds(elements + _SEPARATORS_BYTES)[places])


def _bounds(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.append(np.int64(0), np.cumsum(lengths))


def cuts(
    bounds: npt.NDArray[np.integer], max_bytes: int, max_count: int
) -> Iterator[tuple[int, int]]:
    """Ranges of what lies between the bounds, each as long as allowed; one alone may be longer."""
    count = len(bounds) - 1
    start = 0
    while start < count:
        fitting = int(np.searchsorted(bounds, int(bounds[start]) + max_bytes, side="right")) - 1
        stop = min(max(fitting, start + 1), start + max_count, count)
        yield start, stop
        start = stop


def destinations(batch: pa.RecordBatch, topic: str) -> tuple[list[Destination], Positions]:
    """Where the rows go, and for each row the number of its destination.

    ``topic`` is that of rows that name none.
    """
    names = [name for name in _DECIDING if name in batch.schema.names]
    if not names:
        return [Destination(topic)], np.zeros(batch.num_rows, np.int64)
    # Rows with the same values in all of these have the same code. No piece has so many rows that
    # four columns overflow it.
    codes = np.zeros(batch.num_rows, np.int64)
    for name in names:
        encoded = batch.column(name).dictionary_encode()
        indices = pc.coalesce(encoded.indices, pa.scalar(-1, pa.int32())).to_numpy()
        codes = codes * (len(encoded.dictionary) + 1) + indices + 1
    _, examples, which = np.unique(codes, return_index=True, return_inverse=True)
    values = {name: batch.column(name).take(pa.array(examples)).to_pylist() for name in names}
    nothing = [None] * len(examples)
    found = zip(
        (each or topic for each in values.get("topic", nothing)),
        values.get("brokerName", nothing),
        values.get("queueId", nothing),
        values.get("shardingKey", nothing),
        strict=True,
    )
    return [Destination(*each) for each in found], which


_DECIDING: Final = ("topic", "brokerName", "queueId", "shardingKey")


def shares(
    bounds: npt.NDArray[np.integer], which: Positions, max_bytes: int, max_count: int
) -> Iterator[Share]:
    """What goes into a request each.

    Rows are sorted by target (``which``), and lie between the ``bounds``. Targets take turns, so
    that requests of different ones are under way together; those of one are in order.
    """
    edges = np.flatnonzero(np.diff(which)) + 1
    of_targets: list[Sequence[Share]] = []
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(which)], strict=True):
        target = int(which[begin])
        of_targets.append(
            [
                Share(target, begin + start, begin + stop)
                for start, stop in cuts(bounds[begin : end + 1], max_bytes, max_count)
            ]
        )
    for share in chain.from_iterable(zip_longest(*of_targets)):
        if share is not None:
            yield share
