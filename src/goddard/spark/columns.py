"""Convert batches of stored records to Arrow columns, only the columns that are requested.

The bytes come from pull responses and commit-log files (see ``goddard.protocol.record``). Every
length is checked against its record before anything is extracted; malformed bytes raise
ProtocolError. Compressed bodies are decompressed, the only step that creates Python objects per
row.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from goddard.errors import ProtocolError
from goddard.protocol import compression
from goddard.protocol.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_ID, SysFlag
from goddard.protocol.record import BORN_HOST_V6, MAGIC_V1, MAGIC_V2, STORE_HOST_V6, Host
from goddard.spark import arrays
from goddard.spark.arrays import Positions

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

# Name and type of every column, in the order of the sources' schema.
COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    "queueOffset": pa.int64(),
    "commitLogOffset": pa.int64(),
    "msgId": pa.string(),
    "offsetMsgId": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "properties": PROPERTIES,
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "transaction": pa.string(),
}

# The two transaction bits of the system flag.
_TRANSACTION_SHIFT: Final = 2
TRANSACTIONS: Final = ("none", "prepared", "commit", "rollback")
_TRANSACTIONS: Final = pa.array(TRANSACTIONS)

# Limit for decompressed bodies, against decompression bombs.
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
# Bytes of bodies in one Arrow batch; larger bodies make batches of fewer rows.
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024

_SIZE: Final = struct.Struct(">i")
_MIN_RECORD_BYTES: Final = 91
_NAME_END: Final = 1
_PAIR_END: Final = 2


def record_starts(data: bytes | memoryview) -> list[int]:
    """The position of each record; the records must fill the bytes exactly."""
    starts = []
    position, end = 0, len(data)
    size_at = _SIZE.unpack_from
    while position < end:
        if end - position < _MIN_RECORD_BYTES:
            raise ProtocolError(f"{end - position} bytes at {position} are not a complete record")
        (size,) = size_at(data, position)
        if size < _MIN_RECORD_BYTES or size > end - position:
            raise ProtocolError(f"the record at {position} has an invalid size of {size} bytes")
        starts.append(position)
        position += size
    return starts


def tag_mask(tags: pa.Array, wanted: Sequence[str]) -> pa.Array:
    """Which rows have one of the wanted tags."""
    return pc.is_in(tags, value_set=pa.array(wanted, pa.string()))


class RecordColumns:
    """A batch of records; each column is built on request."""

    def __init__(
        self,
        data: bytes,
        starts: Sequence[int] | Positions,
        *,
        broker_name: str | None = None,
        topic: str | None = None,
        plain_bodies: dict[int, bytes] | None = None,
    ) -> None:
        """``topic``, if given, replaces the topic of every record (a name without namespace).

        ``plain_bodies``: bodies that are already decompressed, by row.
        """
        # One extra byte, so that the properties of the last record are followed by a byte too.
        self._buffer = pa.py_buffer(data + b"\x00")
        self._raw = np.frombuffer(memoryview(self._buffer), dtype=np.uint8)
        self._broker_name = broker_name
        self._topic_name = topic
        self._starts = np.asarray(starts, dtype=np.int64)
        self._plain = plain_bodies or {}
        self._parse_layout()

    def __len__(self) -> int:
        return len(self._starts)

    def _parse_layout(self) -> None:
        """Compute the positions of each record's fields and check that they fill the record."""
        raw, starts = self._raw, self._starts
        limit = len(raw) - 1
        if len(starts) and (starts.min() < 0 or starts.max() + _MIN_RECORD_BYTES > limit):
            raise ProtocolError("a record starts too close to the end of the data")
        sizes = arrays.int32_at(raw, starts)
        magic = arrays.int32_at(raw, starts + 4) & 0xFFFFFFFF
        self._sys_flags = arrays.int32_at(raw, starts + 36)
        is_v2 = magic == MAGIC_V2
        self._check(is_v2 | (magic == MAGIC_V1), "has an unknown magic")
        self._check((sizes >= _MIN_RECORD_BYTES) & (starts + sizes <= limit), "has an invalid size")
        born_bytes = np.where(self._sys_flags & BORN_HOST_V6, 20, 8)
        store_bytes = np.where(self._sys_flags & STORE_HOST_V6, 20, 8)
        self._store_times_at = starts + 48 + born_bytes
        self._store_hosts_at = self._store_times_at + 8
        self._reconsume_at = self._store_hosts_at + store_bytes
        ends = starts + sizes
        self._check(np.append(starts[1:], limit) >= ends, "overlaps the next record")
        self._check(self._reconsume_at + 16 <= ends, "is too short for its hosts")
        self._bodies_at = self._reconsume_at + 16
        body_lengths = arrays.int32_at(raw, self._bodies_at - 4)
        self._body_ends = self._bodies_at + body_lengths
        length_bytes = np.where(is_v2, 2, 1)
        self._check(
            (body_lengths >= 0) & (self._body_ends + length_bytes + 2 <= ends),
            "has an invalid body length",
        )
        topic_lengths = np.where(
            is_v2, arrays.int16_at(raw, self._body_ends), raw[self._body_ends].view(np.int8)
        )
        self._topics_at = self._body_ends + length_bytes
        self._topic_ends = self._topics_at + topic_lengths
        self._check(
            (topic_lengths >= 0) & (self._topic_ends + 2 <= ends), "has an invalid topic length"
        )
        self._properties_at = self._topic_ends + 2
        self._properties_ends = self._properties_at + arrays.int16_at(raw, self._topic_ends)
        self._check(
            (self._properties_ends >= self._properties_at) & (self._properties_ends == ends),
            "has an invalid properties length",
        )

    def _check(self, is_valid: npt.NDArray[np.bool_], problem: str) -> None:
        if not is_valid.all():
            row = int(np.argmin(is_valid))
            raise ProtocolError(f"the record at {int(self._starts[row])} {problem}")

    def batches(
        self, names: Sequence[str], *, max_body_bytes: int = MAX_BATCH_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """The named columns; split into several batches to limit the decompressed bodies."""
        compressed = np.flatnonzero(self._sys_flags & int(SysFlag.COMPRESSED)).tolist()
        if "body" not in names or not compressed:
            yield self.batch(names)
            return
        begin = size_bytes = 0
        for row in compressed:
            body = self._decompressed(row)
            if size_bytes and size_bytes + len(body) > max_body_bytes:
                yield self._slice(begin, row).batch(names)
                begin, size_bytes = row, 0
            self._plain[row] = body
            size_bytes += len(body)
        yield self._slice(begin, len(self)).batch(names)

    def _slice(self, begin: int, end: int) -> "RecordColumns":
        """The rows from ``begin`` to ``end``; takes over the bodies decompressed so far."""
        plain, self._plain = self._plain, {}
        return RecordColumns(
            self._data(),
            self._starts[begin:end],
            broker_name=self._broker_name,
            topic=self._topic_name,
            plain_bodies={row - begin: body for row, body in plain.items()},
        )

    def _data(self) -> bytes:
        return self._buffer.slice(0, self._buffer.size - 1).to_pybytes()

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """The named columns as one batch."""
        columns = [_COLUMN_OF[name](self).cast(COLUMNS[name]) for name in names]
        fields = [pa.field(name, COLUMNS[name]) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    @property
    def queue_offsets(self) -> Positions:
        return arrays.int64_at(self._raw, self._starts + 20)

    @property
    def store_times_ms(self) -> Positions:
        return arrays.int64_at(self._raw, self._store_times_at)

    def topic_mask(self, is_selected: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which rows belong to a selected topic; the predicate is called once per topic."""
        encoded = self._topic().dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        is_topic_selected = np.array([is_selected(topic) for topic in topics], np.bool_)
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        mask: npt.NDArray[np.bool_] = is_topic_selected[codes]
        return mask

    def tag_mask(self, tags: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of the tags."""
        found = tag_mask(self._tags(), tags)
        mask: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return mask

    def filter(self, mask: npt.NDArray[np.bool_]) -> "RecordColumns":
        """The rows for which the mask is true."""
        return RecordColumns(
            self._data(),
            self._starts[mask],
            broker_name=self._broker_name,
            topic=self._topic_name,
        )

    # Columns

    def _topic(self) -> pa.Array:
        if self._topic_name is not None:
            return arrays.repeat_string(self._topic_name, len(self))
        return arrays.strings(arrays.slices_of(self._buffer, self._topics_at, self._topic_ends))

    def _queue_id(self) -> pa.Array:
        return pa.array(arrays.int32_at(self._raw, self._starts + 12))

    def _broker(self) -> pa.Array:
        if self._broker_name is None:
            return pa.nulls(len(self), pa.string())
        return arrays.repeat_string(self._broker_name, len(self))

    def _queue_offset(self) -> pa.Array:
        return pa.array(self.queue_offsets)

    def _commit_log_offset(self) -> pa.Array:
        return pa.array(arrays.int64_at(self._raw, self._starts + 28))

    def _message_id(self) -> pa.Array:
        unique = self._property(PROPERTY_UNIQUE_ID)
        if unique.null_count == 0:
            return unique
        return pc.coalesce(unique, self._offset_message_id())

    def _offset_message_id(self) -> pa.Array:
        raw, offsets = self._raw, arrays.bytes_at(self._raw, self._starts + 28, 8)
        is_v6 = (self._sys_flags & STORE_HOST_V6) != 0
        if not is_v6.any():
            hosts = arrays.bytes_at(raw, self._store_hosts_at, 8)
            return arrays.hex_strings(np.concatenate([hosts, offsets], axis=1))
        # Both widths are read for every row, the wide one at 0 for IPv4 rows to stay in bounds.
        wide = arrays.bytes_at(raw, np.where(is_v6, self._store_hosts_at, 0), 20)
        narrow = arrays.bytes_at(raw, self._store_hosts_at, 8)
        return arrays.choose(
            is_v6,
            arrays.hex_strings(np.concatenate([wide, offsets], axis=1)),
            arrays.hex_strings(np.concatenate([narrow, offsets], axis=1)),
        )

    def _keys(self) -> pa.Array:
        return self._property(PROPERTY_KEYS)

    def _tags(self) -> pa.Array:
        return self._property(PROPERTY_TAGS)

    def _body(self) -> pa.Array:
        bodies = arrays.slices_of(self._buffer, self._bodies_at, self._body_ends)
        compressed = np.flatnonzero(self._sys_flags & int(SysFlag.COMPRESSED))
        if not len(compressed):
            return bodies
        plain = [self._plain.get(row) or self._decompressed(row) for row in compressed.tolist()]
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[compressed] = True
        return pc.replace_with_mask(bodies, pa.array(mask), pa.array(plain, pa.binary()))

    def _decompressed(self, row: int) -> bytes:
        body = self._raw[self._bodies_at[row] : self._body_ends[row]].tobytes()
        try:
            return compression.decompress(body, int(self._sys_flags[row]), MAX_BODY_BYTES)
        except ProtocolError as error:
            offset = int(self.queue_offsets[row])
            raise ProtocolError(f"the message with the queue offset {offset}: {error}") from error

    def _flag(self) -> pa.Array:
        return pa.array(arrays.int32_at(self._raw, self._starts + 16))

    def _sys_flag(self) -> pa.Array:
        return pa.array(self._sys_flags)

    def _born_timestamp(self) -> pa.Array:
        return arrays.timestamps(arrays.int64_at(self._raw, self._starts + 40))

    def _store_timestamp(self) -> pa.Array:
        return arrays.timestamps(self.store_times_ms)

    def _born_host(self) -> pa.Array:
        return self._hosts(self._starts + 48, BORN_HOST_V6)

    def _store_host(self) -> pa.Array:
        return self._hosts(self._store_hosts_at, STORE_HOST_V6)

    def _hosts(self, at: Positions, v6_flag: int) -> pa.Array:
        """Hosts as text. A batch has few distinct hosts: each is formatted once, then repeated."""
        is_v6 = (self._sys_flags & v6_flag) != 0
        hosts = np.zeros((len(self), 21), dtype=np.uint8)
        hosts[:, 0] = is_v6
        hosts[:, 1:9] = arrays.bytes_at(self._raw, at, 8)
        if is_v6.any():
            hosts[is_v6, 1:] = arrays.bytes_at(self._raw, at[is_v6], 20)
        distinct, codes = np.unique(hosts.view("V21").ravel(), return_inverse=True)
        names = []
        for value in distinct.tolist():
            ip_bytes = 16 if value[0] else 4
            port = int.from_bytes(value[1 + ip_bytes : 5 + ip_bytes], "big", signed=True)
            names.append(str(Host(value[1 : 1 + ip_bytes], port)))
        return pa.array(names, pa.string()).take(pa.array(codes))

    def _reconsume_times(self) -> pa.Array:
        return pa.array(arrays.int32_at(self._raw, self._reconsume_at))

    def _prepared_transaction_offset(self) -> pa.Array:
        return pa.array(arrays.int64_at(self._raw, self._reconsume_at + 4))

    def _transaction(self) -> pa.Array:
        return _TRANSACTIONS.take(pa.array((self._sys_flags >> _TRANSACTION_SHIFT) & 3))

    # Properties

    @cached_property
    def _pairs(self) -> "_PropertyPairs":
        return _PropertyPairs(self._buffer, self._properties_at, self._properties_ends)

    def _property(self, name: str) -> pa.Array:
        return self._pairs.values(name)

    def _properties(self) -> pa.Array:
        return self._pairs.maps()


class _PropertyPairs:
    """The parsed properties of a batch: ``name 0x01 value 0x02 ...`` in each row.

    As in RocketMQ, a pair without a name or a value is ignored, and the last of equal names is
    used.
    """

    def __init__(self, buffer: pa.Buffer, starts: Positions, ends: Positions) -> None:
        self._count = len(starts)
        # The byte after each row's properties is overwritten with the end of a pair.
        joined = arrays.slices_of(buffer, starts, ends + 1)
        bounds = np.frombuffer(memoryview(joined.buffers()[1]), dtype=np.int32)[: self._count + 1]
        raw = np.frombuffer(memoryview(joined.buffers()[2]), dtype=np.uint8)[: bounds[-1]].copy()
        raw[bounds[1:] - 1] = _PAIR_END
        self._raw = raw
        pair_ends = np.flatnonzero(raw == _PAIR_END)
        pair_starts = np.empty_like(pair_ends)
        pair_starts[:1] = 0
        pair_starts[1:] = pair_ends[:-1] + 1
        marks = np.append(np.flatnonzero(raw == _NAME_END), len(raw))
        first_marks = marks[np.searchsorted(marks, pair_starts)]
        is_pair = (first_marks > pair_starts) & (first_marks + 1 < pair_ends)
        self._starts = pair_starts[is_pair]
        self._marks = first_marks[is_pair]
        self._ends = pair_ends[is_pair]
        self._rows = np.searchsorted(bounds, self._starts, side="right") - 1

    def values(self, name: str) -> pa.Array:
        """One property as a column; null in rows without it."""
        wanted = name.encode("ascii")
        found = np.flatnonzero(self._marks - self._starts == len(wanted))
        names = arrays.bytes_at(self._raw, self._starts[found], len(wanted))
        found = found[(names == np.frombuffer(wanted, dtype=np.uint8)).all(axis=1)]
        rows = self._rows[found]
        is_last = np.ones(len(rows), dtype=np.bool_)
        is_last[:-1] = rows[1:] != rows[:-1]
        found = found[is_last]
        values = arrays.slices_of(
            pa.py_buffer(self._raw), self._marks[found] + 1, self._ends[found]
        )
        return arrays.scatter(arrays.strings(values), rows[is_last], self._count)

    def maps(self) -> pa.Array:
        buffer = pa.py_buffer(self._raw)
        names = arrays.strings(arrays.slices_of(buffer, self._starts, self._marks))
        values = arrays.strings(arrays.slices_of(buffer, self._marks + 1, self._ends))
        rows = self._rows
        kept = self._last_of_equal(names)
        if len(kept) < len(rows):
            rows = rows[kept]
            names, values = names.take(pa.array(kept)), values.take(pa.array(kept))
        bounds = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(bounds), names, values)

    def _last_of_equal(self, names: pa.Array) -> Positions:
        """Indices of the pairs to use, ascending: Spark rejects maps with equal names."""
        encoded = names.dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        identities = self._rows * (len(encoded.dictionary) + 1) + codes
        # np.unique returns the first of equals, which is the last of the reversed array.
        _, firsts = np.unique(identities[::-1], return_index=True)
        kept: Positions = np.sort(len(identities) - 1 - firsts)
        return kept


_COLUMN_OF: Final[dict[str, Callable[[RecordColumns], pa.Array]]] = {
    name: getattr(RecordColumns, method)
    for name, method in {
        "topic": "_topic",
        "queueId": "_queue_id",
        "brokerName": "_broker",
        "queueOffset": "_queue_offset",
        "commitLogOffset": "_commit_log_offset",
        "msgId": "_message_id",
        "offsetMsgId": "_offset_message_id",
        "keys": "_keys",
        "tags": "_tags",
        "body": "_body",
        "properties": "_properties",
        "flag": "_flag",
        "sysFlag": "_sys_flag",
        "bornTimestamp": "_born_timestamp",
        "storeTimestamp": "_store_timestamp",
        "bornHost": "_born_host",
        "storeHost": "_store_host",
        "reconsumeTimes": "_reconsume_times",
        "preparedTransactionOffset": "_prepared_transaction_offset",
        "transaction": "_transaction",
    }.items()
}
