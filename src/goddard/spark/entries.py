"""Rows of a DataFrame to the messages of batch requests, whole columns at a time.

An entry is a row as a batch body has it (``protocol.message``). The entries of some thousand rows
are one column of binaries, whose buffer, cut anywhere between two rows, is the body of a request.
They are, byte for byte, what ``encode_batch`` makes of the messages that ``rows`` gives for the
same rows; no Python object is made for any of them.

That is for rows as they mostly are. Where one of them needs a closer look, all are looked at one by
one, at many times the cost: a row that is no message at all, and then the error says which and
why; a name of a property that is there twice, or that is one of the sink's own.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from goddard.errors import GoddardError
from goddard.protocol.message import (
    BATCH_ENTRY_BYTES,
    KEY_SEPARATOR,
    NAME_END,
    PAIR_END,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
    RESERVED_PROPERTIES,
    BatchEntry,
    encode_batch,
    encode_properties,
)
from goddard.protocol.names import topic_problem
from goddard.protocol.record import MAX_PROPERTIES_BYTES
from goddard.spark.arrays import Positions, hex_texts
from goddard.spark.rows import ROW_PROPERTY, RowError, Writing, messages

_logger: Final = logging.getLogger("goddard.spark")

_NAME_END_BYTE: Final = ord(NAME_END)
_PAIR_END_BYTE: Final = ord(PAIR_END)
_NOTHING: Final = pa.scalar(b"", pa.binary())
_PAIR_END: Final = pa.scalar(PAIR_END.encode(), pa.binary())
# Names of the user's that are no plain addition to the others.
_DELICATE: Final = pa.array(
    sorted({*RESERVED_PROPERTIES, PROPERTY_SHARDING_KEY, ROW_PROPERTY}), pa.string()
)


class _DelicateError(Exception):
    """These rows are to be looked at one by one."""


@dataclass(frozen=True, slots=True)
class Ids:
    """The unique ids of some rows: what all begin with, and the counter of the first."""

    prefix: str
    first: int

    def counters(self, count: int) -> npt.NDArray[np.uint16]:
        return (self.first + np.arange(count)).astype(np.uint16)


def encode(batch: pa.RecordBatch, rows: Positions, writing: Writing, ids: Ids) -> pa.Array:
    """An entry for each row; RowError if one is no message. ``rows`` are their numbers."""
    try:
        return _encode_columns(batch, rows, writing, ids)
    except (_DelicateError, pa.ArrowInvalid):
        # Arrow's own complaint is of text that is no UTF-8.
        _logger.debug("%d rows from %d on are looked at one by one", len(rows), rows[0])
        return _encode_each(batch, rows, writing, ids)


def _encode_each(batch: pa.RecordBatch, rows: Positions, writing: Writing, ids: Ids) -> pa.Array:
    entries: list[bytes] = []
    counters = ids.counters(len(rows)).tolist()
    for counter, each in zip(counters, messages(batch, rows, writing), strict=True):
        properties = each.properties
        properties[PROPERTY_UNIQUE_ID] = f"{ids.prefix}{counter:04X}"
        if writing.namespace:
            properties[PROPERTY_INSTANCE_ID] = writing.namespace
        try:
            entry = BatchEntry(each.body, encode_properties(properties))
        except GoddardError as error:
            raise RowError(f"row {properties[ROW_PROPERTY]} cannot be sent: {error}") from error
        entries.append(encode_batch([entry]))
    return pa.array(entries, pa.binary())


def _encode_columns(batch: pa.RecordBatch, rows: Positions, writing: Writing, ids: Ids) -> pa.Array:
    bodies = batch.column("body").cast(pa.binary())
    body_bytes = _lengths(bodies)
    if (
        bodies.null_count
        or body_bytes.min() == 0
        or body_bytes.max() > writing.max_body_bytes
        or not _are_places(batch, writing)
    ):
        raise _DelicateError
    properties = _properties(batch, rows, writing, ids)
    properties_bytes = _lengths(properties)
    if properties_bytes.max() > MAX_PROPERTIES_BYTES:
        raise _DelicateError
    heads = np.zeros((len(rows), 5), ">i4")
    heads[:, 0] = BATCH_ENTRY_BYTES + body_bytes + properties_bytes
    heads[:, 4] = body_bytes
    tails = properties_bytes.astype(">i2").reshape(len(rows), 1)
    return _joined(_fixed(heads), bodies, _fixed(tails), properties)


def _are_places(batch: pa.RecordBatch, writing: Writing) -> bool:
    """Whether every row has a topic that can be, and both or none of the parts of a queue."""
    names = batch.schema.names
    if "topic" in names:
        for topic in _text(batch, "topic").unique().to_pylist():
            target = topic or writing.topic
            if target is None or topic_problem(target) is not None:
                return False
    if "brokerName" in names:
        named, numbered = (batch.column(name).is_valid() for name in ("brokerName", "queueId"))
        return named.equals(numbered)
    return True


# Properties: the order is that in which a Message gets them.


def _properties(batch: pa.RecordBatch, rows: Positions, writing: Writing, ids: Ids) -> pa.Array:
    count = len(rows)
    names = batch.schema.names
    # Of each kind a column of pairs, or of some pairs at once, and how many pairs that is.
    parts: list[tuple[pa.Array | pa.Scalar, int]] = []
    if "keys" in names:
        parts.append(_pairs(PROPERTY_KEYS, _keys(batch)))
    parts.append((_scalar(f"{PROPERTY_WAIT}{NAME_END}true{PAIR_END}"), count))
    for name, column in ((PROPERTY_TAGS, "tags"), (PROPERTY_SHARDING_KEY, "shardingKey")):
        if column in names:
            parts.append(_pairs(name, _text(batch, column)))
    if "properties" in names:
        parts.append(_own_properties(batch))
    numbers = pa.array(rows).cast(pa.string())
    parts.append(_pairs(ROW_PROPERTY, numbers, f"{writing.identity}-"))
    # As bytes, the most significant first.
    counters = ids.counters(count).astype(">u2").view(np.uint8).reshape(count, 2)
    parts.append(_pairs(PROPERTY_UNIQUE_ID, hex_texts(counters), ids.prefix))
    if writing.namespace:
        instance = f"{PROPERTY_INSTANCE_ID}{NAME_END}{writing.namespace}{PAIR_END}"
        parts.append((_scalar(instance), count))
    joined = _joined(*(part for part, _ in parts), null_handling="replace")
    # As many ends as there are pairs, or one of them is inside of a text.
    if np.count_nonzero(_data(joined) == _PAIR_END_BYTE) != sum(pairs for _, pairs in parts):
        raise _DelicateError
    return joined


def _pairs(name: str, values: pa.Array, prefix: str = "") -> tuple[pa.Array, int]:
    """Name and value of a property for each row, null where the value is or is empty."""
    values = values.cast(pa.binary())
    lengths = pc.binary_length(values)
    if pc.equal(lengths, 0).true_count:
        values = pc.if_else(pc.greater(lengths, 0), values, pa.scalar(None, pa.binary()))
    pairs = _joined(_scalar(f"{name}{NAME_END}{prefix}"), values, _PAIR_END)
    return pairs, len(pairs) - pairs.null_count


def _keys(batch: pa.RecordBatch) -> pa.Array:
    keys = batch.column("keys")
    if isinstance(keys, pa.ListArray):
        if keys.flatten().null_count:
            raise _DelicateError
        # Of lists whose elements are never null it would not.
        keys = pc.binary_join(keys.cast(pa.list_(pa.string())), KEY_SEPARATOR)
    keys.validate(full=True)
    return pc.utf8_trim_whitespace(keys)


def _own_properties(batch: pa.RecordBatch) -> tuple[pa.Array, int]:
    """The pairs of each row's map, joined."""
    maps = batch.column("properties")
    assert isinstance(maps, pa.MapArray)
    bounds = maps.offsets.to_numpy()
    first, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    names, values = (each.slice(first, count).cast(pa.string()) for each in (maps.keys, maps.items))
    lengths = np.diff(bounds)
    if maps.null_count and lengths[maps.is_null().to_numpy(zero_copy_only=False)].any():
        raise _DelicateError
    for texts in (names, values):
        texts.validate(full=True)
        blank = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)
        if blank.true_count:
            raise _DelicateError
    if pc.is_in(names, value_set=_DELICATE).true_count:
        raise _DelicateError
    codes = names.dictionary_encode()
    kinds = len(codes.dictionary)
    if lengths.max(initial=0) > 1:
        # The same name twice in a row?
        which = np.repeat(np.arange(len(maps)), lengths) * kinds + codes.indices.to_numpy()
        if len(np.unique(which)) != count:
            raise _DelicateError
    if (_data(codes.dictionary.cast(pa.binary())) == _NAME_END_BYTE).any():
        raise _DelicateError
    pairs = _joined(
        names.cast(pa.binary()),
        _scalar(NAME_END),
        values.cast(pa.binary()),
        _PAIR_END,
    )
    missing = pairs.null_count
    if missing:
        pairs = pc.coalesce(pairs, _NOTHING)
    lists = pa.ListArray.from_arrays(pa.array(bounds - first), pairs)
    return pc.binary_join(lists, _NOTHING), count - missing


# Arrow


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    column.validate(full=True)
    return column


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.binary())


def _fixed(numbers: npt.NDArray[Any]) -> pa.Array:
    """Rows of numbers as binaries of their bytes."""
    kind = pa.binary(numbers.shape[1] * numbers.itemsize)
    fixed = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
    return fixed.cast(pa.binary())


def _joined(*parts: pa.Array | pa.Scalar, null_handling: str = "emit_null") -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING, null_handling=null_handling)


def bounds_of(values: pa.Array) -> npt.NDArray[np.int32]:
    """Where each binary of a column begins in its buffer, and where the last one ends."""
    offsets = np.frombuffer(memoryview(values.buffers()[1]), np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def _lengths(values: pa.Array) -> npt.NDArray[np.int32]:
    return np.diff(bounds_of(values))


def _data(values: pa.Array) -> npt.NDArray[np.uint8]:
    begin, end = bounds_of(values)[[0, -1]].tolist()
    if begin == end:
        # There may be no buffer at all.
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview(values.buffers()[2]), np.uint8)[begin:end]
