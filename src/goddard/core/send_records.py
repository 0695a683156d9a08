# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Records of the log for plain sends, compiled; and how many messages a batch has.

The layout of a record is in ``goddard.protocol.record``.
"""

from __future__ import annotations

import cython

from goddard.protocol.hashing import crc32

if cython.compiled:
    from cython.cimports.goddard.core.primitives import get16, get32, put16, put32, put64, to_bytes
    from cython.cimports.goddard.core.sendtypes import (
        BATCH_HEAD_BYTES,
        HOST_BYTES,
        MAX_INT32,
        MAX_PROPERTIES_BYTES,
        PHYSICAL_OFFSET_AT,
        QUEUE_OFFSET_AT,
        RECORD_HEAD_BYTES,
        STORE_TIME_AT,
        SYS_FLAG_AT,
        CrcTables,
        CrcTablesPointer,
    )
    from cython.cimports.goddard.core.staged_sends import OpenTopic, Peer
    from cython.cimports.goddard.core.texts import is_text
    from cython.cimports.libc.string import memcpy

IS_COMPILED = cython.compiled

_MAGIC = cython.declare(cython.uint, 0xDAA320A7)
_MAX_BATCH_MESSAGES = cython.declare(cython.Py_ssize_t, 8192)
# Longer bodies are worth the call of the library's CRC.
_MAX_OWN_CRC_BYTES = cython.declare(cython.Py_ssize_t, 384)


@cython.cfunc
@cython.exceptval(check=False)
def _fill_crc_tables(tables: CrcTablesPointer) -> cython.void:
    byte: cython.int
    table: cython.int
    value: cython.uint
    polynomial: cython.uint = 0xEDB88320
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        tables.at[byte] = value
    for byte in range(256):
        value = tables.at[byte]
        for table in range(1, 8):
            value = (value >> 8) ^ tables.at[value & 0xFF]
            tables.at[256 * table + byte] = value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _crc_short(
    tables: CrcTablesPointer, data: cython.p_const_uchar, length: cython.Py_ssize_t
) -> cython.uint:
    value: cython.uint = 0xFFFFFFFF
    at: cython.Py_ssize_t = 0
    while at + 8 <= length:
        value ^= (
            data[at]
            | cython.cast(cython.uint, data[at + 1]) << 8
            | cython.cast(cython.uint, data[at + 2]) << 16
            | cython.cast(cython.uint, data[at + 3]) << 24
        )
        value = (
            tables.at[1792 + (value & 0xFF)]
            ^ tables.at[1536 + ((value >> 8) & 0xFF)]
            ^ tables.at[1280 + ((value >> 16) & 0xFF)]
            ^ tables.at[1024 + (value >> 24)]
            ^ tables.at[768 + data[at + 4]]
            ^ tables.at[512 + data[at + 5]]
            ^ tables.at[256 + data[at + 6]]
            ^ tables.at[data[at + 7]]
        )
        at += 8
    while at < length:
        value = (value >> 8) ^ tables.at[(value ^ data[at]) & 0xFF]
        at += 1
    return ~value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def count_batch(
    body: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    fixed: cython.Py_ssize_t,
    max_record_bytes: cython.Py_ssize_t,
    max_batch_bytes: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """How many messages a batch has; 0 if anything about them is wrong or not plain.

    ``fixed`` is what a record has besides body and properties.
    """
    count: cython.Py_ssize_t = 0
    total: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    properties_bytes: cython.Py_ssize_t
    end: cython.Py_ssize_t
    while at < size:
        if size - at < BATCH_HEAD_BYTES + 2 or count == _MAX_BATCH_MESSAGES:
            return 0
        length = get32(body + at)
        if not BATCH_HEAD_BYTES + 2 <= length <= size - at:
            return 0
        end = at + length
        length = get32(body + at + 16)
        if not 0 <= length <= end - at - BATCH_HEAD_BYTES - 2:
            return 0
        at += BATCH_HEAD_BYTES + length
        properties_bytes = get16(body + at)
        at += 2
        if properties_bytes != end - at or properties_bytes > MAX_PROPERTIES_BYTES:
            return 0
        if not is_text(body + at, properties_bytes, True):
            return 0
        if fixed + length + properties_bytes > max_record_bytes:
            return 0
        total += fixed + length + properties_bytes
        at = end
        count += 1
    return count if total <= max_batch_bytes else 0


@cython.cclass
class RecordWriter:
    """Writes records of one store."""

    store_host: bytes
    crc_tables: CrcTables

    def __init__(self, store_host: bytes) -> None:
        if len(store_host) != HOST_BYTES:
            raise ValueError("a host of 8 bytes is needed")
        self.store_host = store_host
        _fill_crc_tables(cython.address(self.crc_tables))

    @cython.cfunc
    def _body_crc(self, data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.longlong:
        """The CRC-32 of a body as a record has it, without the sign bit."""
        value: cython.longlong
        if length <= _MAX_OWN_CRC_BYTES:
            value = _crc_short(cython.address(self.crc_tables), data, length)
        else:
            value = crc32(to_bytes(data, length))
        return value & MAX_INT32

    @cython.cfunc
    def write_head(
        self,
        out: cython.p_uchar,
        size: cython.Py_ssize_t,
        queue_id: cython.int,
        sys_flag: cython.int,
        born_ms: cython.longlong,
        flag: cython.int,
        peer: Peer,
        body: cython.p_const_uchar,
        body_bytes: cython.Py_ssize_t,
    ) -> cython.int:
        """Write what a record has up to its body, and the body; the places stay zero."""
        put32(out, size)
        put32(out + 4, _MAGIC)
        put32(out + 8, self._body_crc(body, body_bytes))
        put32(out + 12, queue_id)
        put32(out + 16, flag)
        put64(out + QUEUE_OFFSET_AT, 0)
        put64(out + PHYSICAL_OFFSET_AT, 0)
        put32(out + SYS_FLAG_AT, sys_flag)
        put64(out + 40, born_ms)
        memcpy(out + 48, cython.cast(cython.p_const_char, peer.born_host), HOST_BYTES)
        put64(out + STORE_TIME_AT, 0)
        memcpy(out + 64, cython.cast(cython.p_const_char, self.store_host), HOST_BYTES)
        put32(out + 72, 0)  # never retried
        put64(out + 76, 0)  # in no transaction
        put32(out + 84, body_bytes)
        memcpy(out + RECORD_HEAD_BYTES, body, body_bytes)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def write_tail(
        self, out: cython.p_uchar, topic: OpenTopic, properties_bytes: cython.Py_ssize_t
    ) -> cython.void:
        """Write what is between the body and the properties."""
        length: cython.Py_ssize_t = len(topic.encoded)
        out[0] = length & 0xFF
        memcpy(out + 1, cython.cast(cython.p_const_char, topic.encoded), length)
        put16(out + 1 + length, properties_bytes)
