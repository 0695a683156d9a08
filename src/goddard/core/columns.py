# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Stored records, compiled: their bytes become the buffers of Arrow columns.

``Rows`` collects records, and checks the layout of each before it is added. ``Rows.decode`` fills
the buffers, without an object per row. Some rare records are left to ``goddard.spark.columns``,
which decodes all of them and rejects malformed ones: ``Rows`` does not add records of another
layout and batches that are stored as one record; ``decode`` returns None for timestamps outside of
the years 1 to 9999, and for records with more properties than ``Pairs`` holds.

Bodies are decoded as they are stored; ``Rows.flags`` shows whether any is compressed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.goddard.core.columntypes import (
        Pairs,
        PairsPointer,
        RowLayout,
        RowLayouts,
    )
    from cython.cimports.goddard.core.viewtypes import Numbers
    from cython.cimports.libc.stdlib import free, realloc
    from cython.cimports.libc.string import memchr, memcmp, memcpy

IS_COMPILED = cython.compiled

# The smallest record: the fixed part of V1 with IPv4 hosts.
_MIN_BYTES = cython.declare(cython.Py_ssize_t, 91)
_MAGIC_V1 = cython.declare(cython.uint, 0xDAA320A7)
_MAGIC_V2 = cython.declare(cython.uint, 0xDAA320AB)
_BORN_HOST_V6 = cython.declare(cython.uint, 0x10)
_STORE_HOST_V6 = cython.declare(cython.uint, 0x20)
# The two flags of a batch that is stored as one record.
_INNER_BATCH = cython.declare(cython.uint, 0x80 | 0x40)
_NAME_END = cython.declare(cython.int, 1)
_PAIR_END = cython.declare(cython.int, 2)
_MAX_PAIRS = cython.declare(cython.int, 64)
# The years 1 to 9999, the range of Spark's timestamps.
_FIRST_MS = cython.declare(cython.longlong, -62_135_596_800_000)
_LAST_MS = cython.declare(cython.longlong, 253_402_300_799_999)
_MAX_COLUMN_BYTES = cython.declare(cython.Py_ssize_t, 2**31 - 1)
_FIRST_CAPACITY = cython.declare(cython.Py_ssize_t, 1024)
# An IPv6 address in brackets, a colon, and a signed 32-bit port.
_MAX_HOST_TEXT = cython.declare(cython.Py_ssize_t, 39 + 2 + 1 + 11)
# Two digits for each byte of a host and of an offset.
_MAX_ID_BYTES = cython.declare(cython.Py_ssize_t, 2 * (20 + 8))


@cython.final
@cython.cclass
class Texts:
    """The Arrow buffers of a column of texts: 32-bit offsets, values, and a bitmap of valid rows.

    ``values`` is longer than the values, which are ``size`` bytes. ``valid`` is None for columns
    without nulls.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    null_count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    offsets = cython.declare(bytes, visibility="readonly")
    values = cython.declare(bytes, visibility="readonly")
    valid = cython.declare("object", visibility="readonly")
    _offsets = cython.declare(cython.p_int)
    _values = cython.declare(cython.p_uchar)
    _valid = cython.declare(cython.p_uchar)
    _rows = cython.declare(cython.Py_ssize_t)
    _room = cython.declare(cython.Py_ssize_t)

    @cython.cfunc
    def reserve(
        self, rows: cython.Py_ssize_t, room: cython.Py_ssize_t, is_nullable: cython.bint
    ) -> cython.bint:
        """Make room for ``rows`` values of ``room`` bytes together; False if that is too much."""
        if rows > _MAX_COLUMN_BYTES // 4 - 1 or room > _MAX_COLUMN_BYTES:
            return False
        self._rows = rows
        self._room = room
        self.offsets = PyBytes_FromStringAndSize(cython.NULL, 4 * (rows + 1))
        self._offsets = cython.cast(cython.p_int, PyBytes_AS_STRING(self.offsets))
        self._offsets[0] = 0
        self.values = PyBytes_FromStringAndSize(cython.NULL, room)
        self._values = cython.cast(cython.p_uchar, PyBytes_AS_STRING(self.values))
        if is_nullable:
            valid: bytes = bytes(rows // 8 + 1)
            self.valid = valid
            self._valid = cython.cast(cython.p_uchar, PyBytes_AS_STRING(valid))
        return True

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def put(self, start: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.void:
        """Add a row with a value; ``length`` is from 0 on. Values without room are left out."""
        if self.count >= self._rows or length > self._room - self.size:
            return
        memcpy(self._values + self.size, start, length)
        self.size += length
        if self._valid != cython.NULL:
            self._valid[self.count >> 3] |= 1 << (self.count & 7)
        self.count += 1
        self._offsets[self.count] = self.size

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def put_null(self) -> cython.void:
        if self.count >= self._rows:
            return
        self.count += 1
        self.null_count += 1
        self._offsets[self.count] = self.size


@cython.final
@cython.cclass
class Maps:
    """The Arrow buffers of a column of maps; ``offsets`` are the positions of each row's pairs."""

    offsets = cython.declare(bytes, visibility="readonly")
    names = cython.declare(Texts, visibility="readonly")
    values = cython.declare(Texts, visibility="readonly")
    _offsets = cython.declare(cython.p_int)

    @cython.cfunc
    def reserve(self, rows: cython.Py_ssize_t, room: cython.Py_ssize_t) -> cython.bint:
        """Make room for ``rows`` records with properties of ``room`` bytes together."""
        # A pair has three bytes or more, and another one between it and the next.
        pairs: cython.Py_ssize_t = (room + rows) // 4 + 1
        self.names = Texts()
        self.values = Texts()
        self.offsets = PyBytes_FromStringAndSize(cython.NULL, 4 * (rows + 1))
        self._offsets = cython.cast(cython.p_int, PyBytes_AS_STRING(self.offsets))
        self._offsets[0] = 0
        return self.names.reserve(pairs, room, False) and self.values.reserve(pairs, room, False)

    @cython.cfunc
    @cython.exceptval(check=False)
    def put(self, pairs: PairsPointer, row: cython.Py_ssize_t) -> cython.void:
        """Add the pairs of a row, of equal names only the last."""
        number: cython.int
        for number in range(pairs.count):
            if _last_of(pairs, number + 1, pairs.at[number].name, pairs.at[number].name_bytes) < 0:
                self.names.put(pairs.at[number].name, pairs.at[number].name_bytes)
                self.values.put(pairs.at[number].value, pairs.at[number].value_bytes)
        self._offsets[row + 1] = self.names.count


@cython.final
@cython.cclass
class Rows:
    """Records of one layout; see the module's docstring."""

    # The system flags of all records, ORed.
    flags = cython.declare(cython.uint, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    _rows = cython.declare("RowLayouts")
    _capacity = cython.declare(cython.Py_ssize_t)
    # Keeps the bytes of the rows.
    _parts = cython.declare(list)
    _body_bytes = cython.declare(cython.Py_ssize_t)
    _topic_bytes = cython.declare(cython.Py_ssize_t)
    _properties_bytes = cython.declare(cython.Py_ssize_t)

    def __init__(self) -> None:
        self._parts = []

    def __dealloc__(self) -> None:
        free(self._rows)

    def add(self, data: bytes) -> bool:
        """Add the records that fill ``data``. False, and nothing is added, for other bytes."""
        start: cython.p_const_uchar = data
        at: cython.Py_ssize_t = 0
        total: cython.Py_ssize_t = len(data)
        size: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.count
        self._parts.append(data)
        while at < total:
            size = self._add(start + at, total - at)
            if size == 0:
                self.count = count
                return False
            at += size
        return True

    def add_at(self, data: bytes, starts: Numbers) -> bool:
        """Add the records at ``starts``, in order. False if one is of another layout."""
        start: cython.p_const_uchar = data
        total: cython.Py_ssize_t = len(data)
        end: cython.longlong = 0
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.count
        self._parts.append(data)
        for row in range(starts.shape[0]):
            size = 0
            if end <= starts[row] < total:
                size = self._add(start + starts[row], total - starts[row])
            if size == 0:
                self.count = count
                return False
            end = starts[row] + size
        return True

    def keep(
        self,
        is_selected: Callable[[bytes], bool],
        start_ms: cython.longlong,
        last_ms: cython.longlong,
    ) -> None:
        """Keep the rows that were stored from one time to another, both included, and whose topic
        is selected; ``is_selected`` is called once for each topic.
        """
        row: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.count
        layout: RowLayouts
        time_ms: cython.longlong
        last: cython.p_const_uchar = cython.NULL
        last_bytes: cython.int = -1
        is_wanted: cython.bint = False
        selected: dict[bytes, bool] = {}
        topic: bytes
        self.count = self.flags = 0
        self._body_bytes = self._topic_bytes = self._properties_bytes = 0
        for row in range(count):
            layout = self._rows + row
            time_ms = _get64(layout.start + layout.store_time_at)
            if not start_ms <= time_ms <= last_ms:
                continue
            if (
                layout.topic_bytes != last_bytes
                or memcmp(layout.start + layout.topic_at, last, last_bytes) != 0
            ):
                last, last_bytes = layout.start + layout.topic_at, layout.topic_bytes
                topic = last[:last_bytes]
                if topic not in selected:
                    selected[topic] = is_selected(topic)
                is_wanted = selected[topic]
            if is_wanted:
                self._append(layout)

    @cython.cfunc
    def _add(self, record: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Add the record at the start of ``length`` bytes; its size, or 0 if it is not added."""
        row = cython.declare(RowLayout)
        if self.count == self._capacity:
            self._grow()
        if not _read_record(record, length, cython.address(row)):
            return 0
        self._append(cython.address(row))
        return _get32(record)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _append(self, row: RowLayouts) -> cython.void:
        """Add a row; there is room for it."""
        self._rows[self.count] = row[0]
        self.count += 1
        self.flags |= _get32u(row.start + 36)
        self._body_bytes += row.body_bytes
        self._topic_bytes += row.topic_bytes
        self._properties_bytes += row.properties_bytes

    @cython.cfunc
    def _grow(self) -> cython.bint:
        capacity: cython.Py_ssize_t = max(_FIRST_CAPACITY, 2 * self._capacity)
        grown = realloc(self._rows, capacity * cython.sizeof(RowLayout))
        if grown == cython.NULL:
            raise MemoryError
        self._rows = cython.cast(RowLayouts, grown)
        self._capacity = capacity
        return True

    def int32_at(self, at: cython.int) -> bytes:
        """The column of 32-bit numbers at a position before the hosts; ValueError elsewhere."""
        row: cython.Py_ssize_t
        if at < 0 or at > 44:
            raise ValueError(f"no number is at {at}")
        buffer: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * self.count)
        numbers: cython.p_int = cython.cast(cython.p_int, PyBytes_AS_STRING(buffer))
        for row in range(self.count):
            numbers[row] = _get32(self._rows[row].start + at)
        return buffer

    def int64_at(self, at: cython.int) -> bytes:
        """The column of 64-bit numbers at a position before the hosts; ValueError elsewhere."""
        row: cython.Py_ssize_t
        if at < 0 or at > 40:
            raise ValueError(f"no number is at {at}")
        buffer: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * self.count)
        numbers: cython.p_longlong = cython.cast(cython.p_longlong, PyBytes_AS_STRING(buffer))
        for row in range(self.count):
            numbers[row] = _get64(self._rows[row].start + at)
        return buffer

    def reconsume_times(self) -> bytes:
        row: cython.Py_ssize_t
        buffer: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * self.count)
        numbers: cython.p_int = cython.cast(cython.p_int, PyBytes_AS_STRING(buffer))
        for row in range(self.count):
            numbers[row] = _get32(self._rows[row].start + self._rows[row].reconsume_at)
        return buffer

    def prepared_offsets(self) -> bytes:
        """The offsets of prepared transactions."""
        row: cython.Py_ssize_t
        buffer: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * self.count)
        numbers: cython.p_longlong = cython.cast(cython.p_longlong, PyBytes_AS_STRING(buffer))
        for row in range(self.count):
            numbers[row] = _get64(self._rows[row].start + self._rows[row].reconsume_at + 4)
        return buffer

    def times(self, is_store: cython.bint) -> bytes | None:
        """The times of birth or of storage in microseconds; None if a time is out of range."""
        row: cython.Py_ssize_t
        time_ms: cython.longlong
        buffer: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * self.count)
        times: cython.p_longlong = cython.cast(cython.p_longlong, PyBytes_AS_STRING(buffer))
        for row in range(self.count):
            time_ms = _get64(
                self._rows[row].start + (self._rows[row].store_time_at if is_store else 40)
            )
            if time_ms < _FIRST_MS or time_ms > _LAST_MS:
                return None
            times[row] = time_ms * 1000
        return buffer

    def transactions(self, texts: tuple[bytes, ...]) -> Texts | None:
        """One of four texts, each of at most 16 bytes, by the two bits of the system flag."""
        row: cython.Py_ssize_t
        text: bytes
        column: Texts = Texts()
        if not column.reserve(self.count, 16 * self.count, False):
            return None
        for row in range(self.count):
            text = texts[(_get32u(self._rows[row].start + 36) >> 2) & 3]
            column.put(text, len(text))
        return column

    def bodies(self) -> Texts | None:
        row: cython.Py_ssize_t
        layout: RowLayouts
        column: Texts = Texts()
        if not column.reserve(self.count, self._body_bytes, False):
            return None
        for row in range(self.count):
            layout = self._rows + row
            column.put(layout.start + layout.body_at, layout.body_bytes)
        return column

    def topics(self) -> Texts | None:
        row: cython.Py_ssize_t
        layout: RowLayouts
        column: Texts = Texts()
        if not column.reserve(self.count, self._topic_bytes, False):
            return None
        for row in range(self.count):
            layout = self._rows + row
            column.put(layout.start + layout.topic_at, layout.topic_bytes)
        return column

    def offset_ids(self) -> Texts | None:
        """The ids that consist of the store host and the log offset."""
        row: cython.Py_ssize_t
        size: cython.Py_ssize_t
        numbers = cython.declare(cython.longlong[7])  # room for _MAX_ID_BYTES
        room: cython.p_uchar = cython.cast(cython.p_uchar, numbers)
        column: Texts = Texts()
        if not column.reserve(self.count, self.count * _MAX_ID_BYTES, False):
            return None
        for row in range(self.count):
            size = _write_id(self._rows + row, room)
            column.put(room, size)
        return column

    def hosts(self, is_store: cython.bint, make_text: Callable[[bytes], bytes]) -> Texts | None:
        """The hosts as text. ``make_text`` receives the address, 4 or 16 bytes, and the port."""
        row: cython.Py_ssize_t
        layout: RowLayouts
        host: cython.p_const_uchar
        last: cython.p_const_uchar = cython.NULL
        length: cython.Py_ssize_t
        last_length: cython.Py_ssize_t = 0
        key: bytes
        text: bytes = b""
        texts: dict[bytes, bytes] = {}
        column: Texts = Texts()
        if not column.reserve(self.count, self.count * _MAX_HOST_TEXT, False):
            return None
        for row in range(self.count):
            layout = self._rows + row
            if is_store:
                host = layout.start + layout.store_host_at
                length = layout.reconsume_at - layout.store_host_at
            else:
                host = layout.start + 48
                length = layout.store_time_at - 48
            if length != last_length or memcmp(host, last, length) != 0:
                key = host[:length]
                if key not in texts:
                    texts[key] = make_text(key)
                text = texts[key]
                if len(text) > _MAX_HOST_TEXT:
                    raise ValueError(f"{text!r} is not the text of a host")
                last, last_length = host, length
            column.put(text, len(text))
        return column

    def properties(self, names: frozenset[str]) -> dict[str, Any] | None:
        """Those of the columns ``properties``, ``keys``, ``tags`` and ``msgId`` that are named.

        None if a record has too many properties.
        """
        row: cython.Py_ssize_t
        layout: RowLayouts
        pairs = cython.declare(Pairs)
        columns: _PropertyColumns = _PropertyColumns()
        if not columns.reserve(names, self.count, self._properties_bytes):
            return None
        for row in range(self.count):
            layout = self._rows + row
            if not _split(
                layout.start + layout.properties_at,
                layout.properties_bytes,
                cython.address(pairs),
            ):
                return None
            columns.put(cython.address(pairs), layout, row)
        return columns.named


@cython.final
@cython.cclass
class _PropertyColumns:
    named = cython.declare(dict)
    _has_keys = cython.declare(cython.bint)
    _has_tags = cython.declare(cython.bint)
    _has_ids = cython.declare(cython.bint)
    _has_maps = cython.declare(cython.bint)
    _keys = cython.declare(Texts)
    _tags = cython.declare(Texts)
    _ids = cython.declare(Texts)
    _maps = cython.declare(Maps)
    _map_offsets = cython.declare(cython.p_int)

    @cython.cfunc
    def reserve(
        self, names: frozenset[str], count: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.bint:
        self.named = {}
        is_reserved: cython.bint = True
        self._has_keys = "keys" in names
        if self._has_keys:
            self.named["keys"] = self._keys = Texts()
            is_reserved &= self._keys.reserve(count, size, True)
        self._has_tags = "tags" in names
        if self._has_tags:
            self.named["tags"] = self._tags = Texts()
            is_reserved &= self._tags.reserve(count, size, True)
        self._has_ids = "msgId" in names
        if self._has_ids:
            self.named["msgId"] = self._ids = Texts()
            is_reserved &= self._ids.reserve(count, size + count * _MAX_ID_BYTES, False)
        self._has_maps = "properties" in names
        if self._has_maps:
            self.named["properties"] = self._maps = Maps()
            is_reserved &= self._maps.reserve(count, size)
        return is_reserved

    @cython.cfunc
    def put(self, pairs: PairsPointer, layout: RowLayouts, row: cython.Py_ssize_t) -> cython.void:
        numbers = cython.declare(cython.longlong[7])  # room for _MAX_ID_BYTES
        room: cython.p_uchar = cython.cast(cython.p_uchar, numbers)
        size: cython.Py_ssize_t
        if self._has_keys and not _put_property(self._keys, pairs, b"KEYS", 4):
            self._keys.put_null()
        if self._has_tags and not _put_property(self._tags, pairs, b"TAGS", 4):
            self._tags.put_null()
        if self._has_ids and not _put_property(self._ids, pairs, b"UNIQ_KEY", 8):
            size = _write_id(layout, room)
            self._ids.put(room, size)
        if self._has_maps:
            self._maps.put(pairs, row)


def count_records(
    data: bytes, begin: cython.longlong, end: cython.longlong, is_filtered: cython.bint
) -> int:
    """The number of records that fill ``data``, with the queue offsets from ``begin`` to ``end``.

    -1 for other bytes, and if there is not one record for each offset; ``is_filtered`` allows for
    missing offsets.
    """
    start: cython.p_const_uchar = data
    at: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t = len(data)
    count: cython.Py_ssize_t = 0
    offset: cython.longlong
    row = cython.declare(RowLayout)
    while at < total:
        if not _read_record(start + at, total - at, cython.address(row)):
            return -1
        offset = _get64(start + at + 20)
        if offset >= end or offset < begin or (offset > begin and not is_filtered):
            return -1
        begin = offset + 1
        count += 1
        at += _get32(start + at)
    return count if is_filtered or begin == end else -1


def scan_records(
    data: bytes,
    first_offset: cython.longlong,
    limit: cython.Py_ssize_t,
    max_bytes: cython.Py_ssize_t,
) -> tuple[bytes, int]:
    """The positions of the records at the start of a part of a log, as 64-bit numbers, and the
    position after them.

    ``first_offset`` is the offset of the part in the log. A record begins before ``limit``, has at
    most ``max_bytes``, and says its own offset. The first bytes that are not such a record end the
    scan.
    """
    start: cython.p_const_uchar = data
    total: cython.Py_ssize_t = len(data)
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    magic: cython.uint
    starts: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * (total // _MIN_BYTES + 1))
    found: cython.p_longlong = cython.cast(cython.p_longlong, PyBytes_AS_STRING(starts))
    while at < limit and total - at >= _MIN_BYTES:
        size = _get32(start + at)
        magic = _get32u(start + at + 4)
        if size < _MIN_BYTES or size > max_bytes or size > total - at:
            break
        if magic != _MAGIC_V1 and magic != _MAGIC_V2:
            break
        if _get64(start + at + 28) != first_offset + at:
            break
        found[count] = at
        count += 1
        at += size
    return starts[: 8 * count], at


# --- The layout of a record -----------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_record(
    record: cython.p_const_uchar, length: cython.Py_ssize_t, row: RowLayouts
) -> cython.bint:
    """Find the fields of a record; False unless they fill it. ``length`` bytes may be read.

    Each check makes sure that the next field is read within the record.
    """
    size: cython.Py_ssize_t
    magic: cython.uint
    flags: cython.uint
    length_bytes: cython.int
    end: cython.longlong
    if length < _MIN_BYTES:
        return False
    size = _get32(record)
    magic = _get32u(record + 4)
    flags = _get32u(record + 36)
    length_bytes = 2 if magic == _MAGIC_V2 else 1
    if size < _MIN_BYTES or size > length or flags & _INNER_BATCH == _INNER_BATCH:
        return False
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return False
    row.start = record
    row.store_time_at = 68 if flags & _BORN_HOST_V6 else 56
    row.store_host_at = row.store_time_at + 8
    row.reconsume_at = row.store_host_at + (20 if flags & _STORE_HOST_V6 else 8)
    row.body_at = row.reconsume_at + 16
    if row.body_at > size:
        return False
    row.body_bytes = _get32(record + row.body_at - 4)
    end = cython.cast(cython.longlong, row.body_at) + row.body_bytes
    if row.body_bytes < 0 or end + length_bytes + 2 > size:
        return False
    row.topic_at = end + length_bytes
    row.topic_bytes = record[end]
    if length_bytes == 2:
        row.topic_bytes = row.topic_bytes << 8 | record[end + 1]
    # Both lengths are signed.
    if row.topic_bytes > (32767 if length_bytes == 2 else 127):
        return False
    row.properties_at = row.topic_at + row.topic_bytes + 2
    if row.properties_at > size:
        return False
    row.properties_bytes = record[row.properties_at - 2] << 8 | record[row.properties_at - 1]
    is_whole: cython.bint = row.properties_at + row.properties_bytes == size
    return is_whole and row.properties_bytes <= 32767


# --- Columns --------------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_id(row: RowLayouts, target: cython.p_uchar) -> cython.Py_ssize_t:
    """Write the id that consists of store host and log offset; ``target`` has room for 56 bytes."""
    host_bytes: cython.int = row.reconsume_at - row.store_host_at
    _write_hex(row.start + row.store_host_at, host_bytes, target)
    _write_hex(row.start + 28, 8, target + 2 * host_bytes)
    return 2 * (host_bytes + 8)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _write_hex(
    source: cython.p_const_uchar, length: cython.int, target: cython.p_uchar
) -> cython.void:
    number: cython.int
    for number in range(length):
        target[2 * number] = _digit(source[number] >> 4)
        target[2 * number + 1] = _digit(source[number] & 15)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _digit(value: cython.int) -> cython.uchar:
    """The upper-case hexadecimal digit of a value: 0 to 9 follow 48, A to F follow 65."""
    return value + 48 if value < 10 else value + 55


# --- Properties -----------------------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _split(
    text: cython.p_const_uchar, length: cython.Py_ssize_t, pairs: PairsPointer
) -> cython.bint:
    """Split properties into pairs. False if there are too many.

    As in RocketMQ, a pair without a name or a value is ignored.
    """
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    mark: cython.Py_ssize_t
    pairs.count = 0
    while at < length:
        end = at + _find(text + at, length - at, _PAIR_END)
        mark = at + _find(text + at, end - at, _NAME_END)
        if mark > at and mark + 1 < end:
            if pairs.count == _MAX_PAIRS:
                return False
            pairs.at[pairs.count].name = text + at
            pairs.at[pairs.count].name_bytes = mark - at
            pairs.at[pairs.count].value = text + mark + 1
            pairs.at[pairs.count].value_bytes = end - mark - 1
            pairs.count += 1
        at = end + 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _last_of(
    pairs: PairsPointer,
    first: cython.int,
    name: cython.p_const_uchar,
    length: cython.int,
) -> cython.int:
    """The last pair with a name, from ``first`` on; -1 if there is none. The last one counts."""
    number: cython.int = pairs.count - 1
    while number >= first:
        if (
            pairs.at[number].name_bytes == length
            and memcmp(pairs.at[number].name, name, length) == 0
        ):
            return number
        number -= 1
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_property(
    column: Texts, pairs: PairsPointer, name: cython.p_const_uchar, length: cython.int
) -> cython.bint:
    """Add the value of a property to a column; False if the record does not have it."""
    number: cython.int = _last_of(pairs, 0, name, length)
    if number < 0:
        return False
    column.put(pairs.at[number].value, pairs.at[number].value_bytes)
    return True


# --- Bytes ----------------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find(
    text: cython.p_const_uchar, length: cython.Py_ssize_t, byte: cython.int
) -> cython.Py_ssize_t:
    """Where a byte is; ``length`` if it is not there."""
    found: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(text, byte, length))
    return length if found == cython.NULL else found - text


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get32u(data: cython.p_const_uchar) -> cython.uint:
    value: cython.uint = data[0]
    value = value << 8 | data[1]
    value = value << 8 | data[2]
    value <<= 8
    value |= data[3]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get32(data: cython.p_const_uchar) -> cython.int:
    signed: cython.int = _get32u(data)
    return signed


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get64(data: cython.p_const_uchar) -> cython.longlong:
    value: cython.ulonglong = _get32u(data)
    value = value << 32 | _get32u(data + 4)
    signed: cython.longlong = value
    return signed
