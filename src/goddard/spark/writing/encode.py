"""Encode rows of a DataFrame as entries of batch requests, whole columns at a time.

An entry is one message in the body of a batch request (``protocol.message``). The entries of some
thousand rows are one column of binaries; any range of rows of its buffer is the body of a request.
The entries equal, byte for byte, what ``encode_batch`` makes of the messages that ``rows`` builds
from the same rows, but no Python object is created per row.

Column encoding does not support every row. If one row of a batch needs it, all rows of the batch
are encoded one by one, at many times the cost: when a row is not a valid message (then the error
says which row and why), when a map names a property twice, or when it uses a name that the sink
sets itself.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from goddard.core import IS_COMPILED
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
from goddard.spark.arrays import Positions, hex_strings
from goddard.spark.rows import ROW_PROPERTY, RowError, WriteContext, messages
from goddard.spark.writing.content_hash import content_hashes

if IS_COMPILED or TYPE_CHECKING:
    from goddard.core import entries as core_entries

_logger: Final = logging.getLogger("goddard.spark")

_NAME_END_BYTE: Final = ord(NAME_END)
_PAIR_END_BYTE: Final = ord(PAIR_END)
_EMPTY: Final = pa.scalar(b"", pa.binary())
_PAIR_END: Final = pa.scalar(PAIR_END.encode(), pa.binary())
# Names in the user's properties that column encoding does not support.
_SPECIAL_NAMES: Final = pa.array(
    sorted({*RESERVED_PROPERTIES, PROPERTY_SHARDING_KEY, ROW_PROPERTY}), pa.string()
)


class _UnsupportedByColumnsError(Exception):
    """These rows must be encoded one by one."""


@dataclass(frozen=True, slots=True)
class MessageIds:
    """Unique ids of consecutive rows: their common prefix, and the counter of the first."""

    prefix: str
    first: int

    def counters(self, count: int) -> npt.NDArray[np.uint16]:
        return (self.first + np.arange(count)).astype(np.uint16)


def encode(
    batch: pa.RecordBatch, rows: Positions, context: WriteContext, ids: MessageIds
) -> pa.Array:
    """One entry per row; RowError if a row is not a valid message. ``rows`` are the row numbers."""
    try:
        return _encode_columns(batch, rows, context, ids)
    except (_UnsupportedByColumnsError, pa.ArrowInvalid):
        # ArrowInvalid: a string is not valid UTF-8.
        _logger.debug("encoding %d rows one by one, from row %d", len(rows), rows[0])
        return _encode_rows(batch, rows, context, ids)


def _encode_rows(
    batch: pa.RecordBatch, rows: Positions, context: WriteContext, ids: MessageIds
) -> pa.Array:
    entries: list[bytes] = []
    counters = ids.counters(len(rows)).tolist()
    row_messages = messages(batch, rows, context)
    for row, counter, message in zip(rows.tolist(), counters, row_messages, strict=True):
        properties = message.properties
        properties[PROPERTY_UNIQUE_ID] = f"{ids.prefix}{counter:04X}"
        if context.namespace:
            properties[PROPERTY_INSTANCE_ID] = context.namespace
        try:
            entry = BatchEntry(message.body, encode_properties(properties))
        except GoddardError as error:
            name = f"row {context.key_prefix}-{row}"
            raise RowError(f"{name} cannot be sent: {error}") from error
        entries.append(encode_batch([entry]))
    return pa.array(entries, pa.binary())


def _encode_columns(
    batch: pa.RecordBatch, rows: Positions, context: WriteContext, ids: MessageIds
) -> pa.Array:
    bodies = batch.column("body").cast(pa.binary())
    body_bytes = _lengths(bodies)
    if (
        bodies.null_count
        or body_bytes.min() == 0
        or body_bytes.max() > context.max_body_bytes
        or not _are_destinations_valid(batch, context)
    ):
        raise _UnsupportedByColumnsError
    if IS_COMPILED:
        return _encode_compiled(batch, bodies, rows, context, ids)
    properties = _properties(batch, bodies, rows, context, ids)
    properties_bytes = _lengths(properties)
    if properties_bytes.max() > MAX_PROPERTIES_BYTES:
        raise _UnsupportedByColumnsError
    heads = np.zeros((len(rows), 5), ">i4")
    heads[:, 0] = BATCH_ENTRY_BYTES + body_bytes + properties_bytes
    heads[:, 4] = body_bytes
    tails = properties_bytes.astype(">i2").reshape(len(rows), 1)
    return _joined(_fixed(heads), bodies, _fixed(tails), properties)


def _encode_compiled(
    batch: pa.RecordBatch,
    bodies: pa.Array,
    rows: Positions,
    context: WriteContext,
    ids: MessageIds,
) -> pa.Array:
    parts = _row_properties(batch, len(rows))
    row_prefix = f"{ROW_PROPERTY}{NAME_END}{context.key_prefix}-"
    if "rowKey" in batch.schema.names:
        parts.append(_own_row_keys(batch))
        row_prefix = ""
    shared = [part.as_py() for part, _ in parts if isinstance(part, pa.Scalar)]
    if len(shared) == len(parts):
        bounds, data = np.zeros(1, np.int32), np.frombuffer(b"".join(shared), np.uint8)
    else:
        joined = _joined(*(part for part, _ in parts), null_handling="replace")
        _check_separators(joined, parts)
        bounds, data = bounds_of(joined), _whole_data(joined)
    encoded = core_entries.encode_entries(
        bounds_of(bodies),
        _whole_data(bodies),
        bounds,
        data,
        rows,
        row_prefix.encode(),
        f"{PROPERTY_UNIQUE_ID}{NAME_END}{ids.prefix}".encode(),
        ids.first,
        _instance(context),
    )
    if encoded is None:
        raise _UnsupportedByColumnsError
    offsets, values, size = encoded
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values).slice(0, size)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def _are_destinations_valid(batch: pa.RecordBatch, context: WriteContext) -> bool:
    """Whether every row has a valid topic, and both or none of brokerName and queueId."""
    names = batch.schema.names
    if "topic" in names:
        for topic in _text(batch, "topic").unique().to_pylist():
            target = topic or context.topic
            if target is None or topic_problem(target) is not None:
                return False
    if "brokerName" in names:
        has_broker, has_id = (batch.column(name).is_valid() for name in ("brokerName", "queueId"))
        return has_broker.equals(has_id)
    return True


# Properties, in the order in which Message sets them.


def _properties(
    batch: pa.RecordBatch,
    bodies: pa.Array,
    rows: Positions,
    context: WriteContext,
    ids: MessageIds,
) -> pa.Array:
    count = len(rows)
    parts = _row_properties(batch, count)
    if "rowKey" in batch.schema.names:
        parts.append(_own_row_keys(batch))
    else:
        row_keys = _row_keys(bodies, [part for part, _ in parts], rows)
        parts.append(_pairs(ROW_PROPERTY, row_keys, f"{context.key_prefix}-"))
    counters = _big_endian(ids.counters(count))
    parts.append(_pairs(PROPERTY_UNIQUE_ID, hex_strings(counters), ids.prefix))
    if context.namespace:
        parts.append((pa.scalar(_instance(context), pa.binary()), count))
    joined = _joined(*(part for part, _ in parts), null_handling="replace")
    _check_separators(joined, parts)
    return joined


def _row_properties(batch: pa.RecordBatch, count: int) -> list[tuple[pa.Array | pa.Scalar, int]]:
    """The properties before the idempotence key.

    Columns of encoded pairs (or a scalar that all rows share), each with its number of pairs.
    """
    names = batch.schema.names
    parts: list[tuple[pa.Array | pa.Scalar, int]] = []
    if "keys" in names:
        parts.append(_pairs(PROPERTY_KEYS, _keys(batch)))
    parts.append((_scalar(f"{PROPERTY_WAIT}{NAME_END}true{PAIR_END}"), count))
    for name, column in ((PROPERTY_TAGS, "tags"), (PROPERTY_SHARDING_KEY, "shardingKey")):
        if column in names:
            parts.append(_pairs(name, _text(batch, column)))
    if "properties" in names:
        parts.append(_user_properties(batch))
    return parts


def _own_row_keys(batch: pa.RecordBatch) -> tuple[pa.Array, int]:
    row_keys = _text(batch, "rowKey")
    if row_keys.null_count or pc.equal(pc.binary_length(row_keys), 0).true_count:
        raise _UnsupportedByColumnsError
    return _pairs(ROW_PROPERTY, row_keys)


def _instance(context: WriteContext) -> bytes:
    """The encoded pair of the namespace; empty without one."""
    if not context.namespace:
        return b""
    return f"{PROPERTY_INSTANCE_ID}{NAME_END}{context.namespace}{PAIR_END}".encode()


def _check_separators(joined: pa.Array, parts: Sequence[tuple[pa.Array | pa.Scalar, int]]) -> None:
    # More separators than pairs: a name or a value contains one.
    if np.count_nonzero(_data(joined) == _PAIR_END_BYTE) != sum(pairs for _, pairs in parts):
        raise _UnsupportedByColumnsError


def _pairs(name: str, values: pa.Array, prefix: str = "") -> tuple[pa.Array, int]:
    """The encoded name and value of a property for each row; null if the value is null or empty."""
    values = values.cast(pa.binary())
    lengths = pc.binary_length(values)
    if pc.equal(lengths, 0).true_count:
        values = pc.if_else(pc.greater(lengths, 0), values, pa.scalar(None, pa.binary()))
    pairs = _joined(_scalar(f"{name}{NAME_END}{prefix}"), values, _PAIR_END)
    return pairs, len(pairs) - pairs.null_count


def _row_keys(
    bodies: pa.Array, properties: Sequence[pa.Array | pa.Scalar], rows: Positions
) -> pa.Array:
    """Row number and hash of the content (see ``rows``) of each row."""
    body_lengths = _fixed(_lengths(bodies).astype(">i4").reshape(len(rows), 1))
    content = _joined(body_lengths, bodies, *properties, null_handling="replace")
    bounds = bounds_of(content).astype(np.int64)
    hashes = content_hashes(_data(content), bounds - bounds[0])
    numbers = pa.array(rows).cast(pa.string())
    return pc.binary_join_element_wise(numbers, hex_strings(_big_endian(hashes)), pa.scalar("-"))


def _big_endian(numbers: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.uint8]:
    """The bytes of numbers, one row for each number."""
    width = numbers.itemsize
    return numbers.astype(f">u{width}").view(np.uint8).reshape(len(numbers), width)


def _keys(batch: pa.RecordBatch) -> pa.Array:
    keys = batch.column("keys")
    if isinstance(keys, pa.ListArray):
        if keys.flatten().null_count:
            raise _UnsupportedByColumnsError
        # binary_join accepts no list type whose elements are declared non-null.
        keys = pc.binary_join(keys.cast(pa.list_(pa.string())), KEY_SEPARATOR)
    keys.validate(full=True)
    return pc.utf8_trim_whitespace(keys)


def _user_properties(batch: pa.RecordBatch) -> tuple[pa.Array, int]:
    """The encoded pairs of each row's map, joined."""
    maps = batch.column("properties")
    assert isinstance(maps, pa.MapArray)
    bounds = maps.offsets.to_numpy()
    first, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    names, values = (each.slice(first, count).cast(pa.string()) for each in (maps.keys, maps.items))
    lengths = np.diff(bounds)
    if maps.null_count and lengths[maps.is_null().to_numpy(zero_copy_only=False)].any():
        raise _UnsupportedByColumnsError
    for texts in (names, values):
        texts.validate(full=True)
        blank = pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)
        if blank.true_count:
            raise _UnsupportedByColumnsError
    if pc.is_in(names, value_set=_SPECIAL_NAMES).true_count:
        raise _UnsupportedByColumnsError
    codes = names.dictionary_encode()
    name_count = len(codes.dictionary)
    if lengths.max(initial=0) > 1:
        rows_of_pairs = np.repeat(np.arange(len(maps)), lengths)
        row_and_name = rows_of_pairs * name_count + codes.indices.to_numpy()
        if len(np.unique(row_and_name)) != count:
            # A row has the same name twice.
            raise _UnsupportedByColumnsError
    if (_data(codes.dictionary.cast(pa.binary())) == _NAME_END_BYTE).any():
        raise _UnsupportedByColumnsError
    pairs = _joined(
        names.cast(pa.binary()),
        _scalar(NAME_END),
        values.cast(pa.binary()),
        _PAIR_END,
    )
    missing = pairs.null_count
    if missing:
        pairs = pc.coalesce(pairs, _EMPTY)
    lists = pa.ListArray.from_arrays(pa.array(bounds - first), pairs)
    return pc.binary_join(lists, _EMPTY), count - missing


# Arrow


def _text(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    column.validate(full=True)
    return column


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.binary())


def _fixed(numbers: npt.NDArray[Any]) -> pa.Array:
    """Rows of numbers as a column of their bytes."""
    kind = pa.binary(numbers.shape[1] * numbers.itemsize)
    fixed = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
    return fixed.cast(pa.binary())


def _joined(*parts: pa.Array | pa.Scalar, null_handling: str = "emit_null") -> pa.Array:
    return pc.binary_join_element_wise(*parts, _EMPTY, null_handling=null_handling)


def bounds_of(values: pa.Array) -> npt.NDArray[np.int32]:
    """The start of each binary in the column's buffer, and the end of the last one."""
    offsets = np.frombuffer(memoryview(values.buffers()[1]), np.int32)
    return offsets[values.offset : values.offset + len(values) + 1]


def _lengths(values: pa.Array) -> npt.NDArray[np.int32]:
    return np.diff(bounds_of(values))


def _whole_data(values: pa.Array) -> npt.NDArray[np.uint8]:
    """The buffer that the offsets of ``bounds_of`` refer to; the column is not empty."""
    return np.frombuffer(memoryview(values.buffers()[2]), np.uint8)


def _data(values: pa.Array) -> npt.NDArray[np.uint8]:
    begin, end = bounds_of(values)[[0, -1]].tolist()
    if begin == end:
        # An empty column may have no buffer.
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview(values.buffers()[2]), np.uint8)[begin:end]
