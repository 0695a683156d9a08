# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends, compiled: from the bytes of requests to records of the log, and to their answers.

A plain send (codes 10, 310, 320) is a request whose outcome depends on nothing but a known topic, a
queue in range and limits. ``PlainSends.take`` reads whole frames in order and stops at the first
one that is not plain: from there on the general route (``goddard.broker.sending.send``) decides,
so nothing is overtaken. Whatever is unusual is not plain: spaces or escapes in JSON, fields that
are unknown or come twice, numbers that are not written the shortest way, text that is not ASCII,
properties with a meaning.

The records of many requests gather in a ``StagedSends``, complete but for their places. ``place``
fills the places in and gives the bytes to write; after that the block gives queue entries, columns
for the key index, and answers. Everything belongs to the thread that appends.

Memory: frames are read through pointers, and every length is compared with what is left before it
is used. A block owns its buffers; no pointer into a frame outlives ``take``.
"""

from __future__ import annotations

from typing import Any

import cython

from goddard.protocol.hashing import crc32, java_hash

if cython.compiled:
    from cython.cimports.goddard.core.sendtypes import (
        CrcTables,
        CrcTablesPointer,
        PairNames,
        RequestHeader,
        RequestHeaderPointer,
        SendProperties,
        SendPropertiesPointer,
        StagedQueue,
        StagedQueues,
        StagedRecord,
        StagedRecords,
        StagedRequest,
        StagedRequests,
        Text,
        TextPointer,
    )
    from cython.cimports.libc.stdlib import free, malloc, realloc
    from cython.cimports.libc.string import memchr, memcmp, memcpy

IS_COMPILED = cython.compiled

# The fields of a send request, by their short names.
_GROUP = cython.declare(cython.int, 0)
_TOPIC = cython.declare(cython.int, 1)
_DEFAULT_QUEUES = cython.declare(cython.int, 3)
_QUEUE_ID = cython.declare(cython.int, 4)
_SYS_FLAG = cython.declare(cython.int, 5)
_BORN_TIME = cython.declare(cython.int, 6)
_FLAG = cython.declare(cython.int, 7)
_PROPERTIES = cython.declare(cython.int, 8)
_RECONSUME_TIMES = cython.declare(cython.int, 9)
_UNIT_MODE = cython.declare(cython.int, 10)
_MAX_RECONSUME_TIMES = cython.declare(cython.int, 11)
_BATCH = cython.declare(cython.int, 12)
# The same for code 10, each after its length.
_LONG_NAMES = cython.declare(
    cython.p_const_char,
    b"\x0dproducerGroup\x05topic\x0cdefaultTopic\x15defaultTopicQueueNums\x07queueId\x07sysFlag"
    b"\x0dbornTimestamp\x04flag\x0aproperties\x0ereconsumeTimes\x08unitMode\x11maxReconsumeTimes"
    b"\x05batch\x05bname",
)
_FIELD_COUNT = cython.declare(cython.int, 14)
_REQUIRED = cython.declare(cython.int, 0xFF)  # the fields a to h

_LONG_NAMES_CODE = cython.declare(cython.int, 10)
_JSON = cython.declare(cython.int, 0)
_BINARY = cython.declare(cython.int, 1)
_BINARY_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 21)
_RESPONSE = cython.declare(cython.int, 1)
_ONEWAY = cython.declare(cython.int, 2)
# Compression and many tags; transactions, inner batches and IPv6 hosts are not plain.
_PLAIN_SYS_FLAGS = cython.declare(cython.longlong, 0x703)
_MAX_BORN_TIME = cython.declare(cython.longlong, 999_999_999_999_999_999)
_MAX_PAIRS = cython.declare(cython.int, 32)
_MAX_PROPERTIES_BYTES = cython.declare(cython.Py_ssize_t, 32767)
_MAX_HEADER_BYTES = cython.declare(cython.Py_ssize_t, 65536)
_MAX_BATCH_MESSAGES = cython.declare(cython.Py_ssize_t, 8192)
_BATCH_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 20)

# A record of the log: see goddard.protocol.record.
_MAGIC = cython.declare(cython.uint, 0xDAA320A7)
_QUEUE_OFFSET_AT = cython.declare(cython.Py_ssize_t, 20)
_PHYSICAL_OFFSET_AT = cython.declare(cython.Py_ssize_t, 28)
_SYS_FLAG_AT = cython.declare(cython.Py_ssize_t, 36)
_STORE_TIME_AT = cython.declare(cython.Py_ssize_t, 56)
_RECORD_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 88)
_HOST_BYTES = cython.declare(cython.Py_ssize_t, 8)
_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, 20)

_HIGH_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
_SPACES = cython.declare(cython.ulonglong, 0x2020202020202020)
_MAX_INT32 = cython.declare(cython.longlong, 0x7FFFFFFF)
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


# Primitives. Callers have checked the lengths.


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get16(data: cython.p_const_uchar) -> cython.int:
    high: cython.int = data[0]
    low: cython.int = data[1]
    return high << 8 | low


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get32(data: cython.p_const_uchar) -> cython.int:
    value: cython.uint = data[0]
    value = value << 8 | data[1]
    value = value << 8 | data[2]
    value = value << 8 | data[3]
    signed: cython.int = cython.cast(cython.int, value)
    return signed


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get64(data: cython.p_const_uchar) -> cython.longlong:
    high: cython.longlong = _get32(data)
    low: cython.uint = cython.cast(cython.uint, _get32(data + 4))
    return high << 32 | low


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put16(data: cython.p_uchar, value: cython.Py_ssize_t) -> cython.void:
    data[0] = (value >> 8) & 0xFF
    data[1] = value & 0xFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put32(data: cython.p_uchar, value: cython.longlong) -> cython.void:
    data[0] = (value >> 24) & 0xFF
    data[1] = (value >> 16) & 0xFF
    data[2] = (value >> 8) & 0xFF
    data[3] = value & 0xFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put64(data: cython.p_uchar, value: cython.longlong) -> cython.void:
    _put32(data, value >> 32)
    _put32(data + 4, value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find(
    text: cython.p_const_uchar, length: cython.Py_ssize_t, byte: cython.int
) -> cython.Py_ssize_t:
    """Where a byte is; ``length`` if it is not there."""
    if length <= 0:
        return length
    found: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(text, byte, length))
    return length if found == cython.NULL else found - text


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_text(
    text: cython.p_const_uchar, length: cython.Py_ssize_t, has_controls: cython.bint
) -> cython.bint:
    """Whether all of it is ASCII, and, unless it ``has_controls``, without control characters."""
    at: cython.Py_ssize_t = 0
    word: cython.ulonglong = 0
    bad: cython.ulonglong = 0
    while at + 8 <= length:
        memcpy(cython.address(word), text + at, 8)
        bad |= word
        if not has_controls:
            bad |= (word - _SPACES) & ~word
        at += 8
    if bad & _HIGH_BITS:
        return False
    while at < length:
        if text[at] >= 0x80 or (text[at] < 0x20 and not has_controls):
            return False
        at += 1
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_number(text: Text, most: cython.longlong, value: cython.p_longlong) -> cython.bint:
    """Read a number that is written the shortest way and not above ``most`` (without its sign)."""
    at: cython.Py_ssize_t = 0
    total: cython.longlong = 0
    if text.length > 0 and text.start[0] == 45:  # "-"
        at = 1
    if text.length == at or text.length - at > 18:
        return False
    if text.start[at] == 48 and text.length > 1:  # "0"
        return False
    while at < text.length:
        if not 48 <= text.start[at] <= 57:
            return False
        total = 10 * total + (text.start[at] - 48)
        at += 1
    if total > most:
        return False
    value[0] = -total if text.start[0] == 45 else total
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_number(out: cython.p_uchar, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number as text, at most 20 bytes; returns how many."""
    length: cython.Py_ssize_t = 1
    at: cython.Py_ssize_t
    rest: cython.longlong
    if value < 0:
        out[0] = 45
        return 1 + _write_number(out + 1, -value)
    rest = value // 10
    while rest:
        length += 1
        rest //= 10
    at = length
    while at > 0:
        at -= 1
        out[at] = 48 + value % 10
        value //= 10
    return length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_hex(out: cython.p_uchar, value: cython.longlong) -> cython.void:
    """Write a number as 16 hexadecimal digits."""
    at: cython.Py_ssize_t = 16
    digit: cython.int
    while at > 0:
        at -= 1
        digit = value & 0xF
        out[at] = digit + (48 if digit < 10 else 55)
        value >>= 4


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash_text(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.int:
    """Java's ``hashCode`` of an ASCII text."""
    value: cython.uint = 0
    at: cython.Py_ssize_t
    for at in range(length):
        value = value * 31 + text[at]
    signed: cython.int = cython.cast(cython.int, value)
    return signed


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
@cython.inline
def _bytes(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> bytes:
    copy: bytes = cython.cast(cython.p_const_char, data)[:length]
    return copy


# Reading headers


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is(
    text: cython.p_const_uchar, length: cython.Py_ssize_t, name: cython.p_const_char
) -> cython.bint:
    """Whether a text begins with a name of its length."""
    return memcmp(text, name, length) == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_field(name: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.int:
    """The number of a field of code 10; -1 for a name that is not known."""
    number: cython.int
    known: cython.p_const_uchar = cython.cast(cython.p_const_uchar, _LONG_NAMES)
    for number in range(_FIELD_COUNT):
        if known[0] == length and memcmp(known + 1, name, length) == 0:
            return number
        known += 1 + known[0]
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_field(
    header: RequestHeaderPointer,
    name: cython.p_const_uchar,
    name_length: cython.Py_ssize_t,
    value: cython.p_const_uchar,
    length: cython.Py_ssize_t,
) -> cython.int:
    """Note the value of a field; returns its number, -1 if it is unknown or comes again."""
    number: cython.int
    if header.code == _LONG_NAMES_CODE:
        number = _long_field(name, name_length)
    elif name_length == 1 and 97 <= name[0] < 97 + _FIELD_COUNT:
        number = name[0] - 97
    else:
        return -1
    if number < 0 or header.seen >> number & 1:
        return -1
    header.seen |= 1 << number
    header.fields[number].start = value
    header.fields[number].length = length
    return number


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_send(code: cython.longlong) -> cython.bint:
    is_send: cython.bint = code in (10, 310, 320)
    return is_send


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_binary(
    text: cython.p_const_uchar, size: cython.Py_ssize_t, header: RequestHeaderPointer
) -> cython.bint:
    at: cython.Py_ssize_t = _BINARY_HEAD_BYTES
    name: cython.p_const_uchar
    name_length: cython.Py_ssize_t
    length: cython.Py_ssize_t
    if size < at or _get32(text + 13) != 0 or _get32(text + 17) != size - at:
        return False
    header.code = _get16(text)
    if not _is_send(header.code):
        return False
    header.opaque = _get32(text + 5)
    header.flag = _get32(text + 9)
    while at < size:
        if size - at < 6:
            return False
        name_length = _get16(text + at)
        at += 2
        if name_length > size - at - 4:
            return False
        name = text + at
        at += name_length
        length = _get32(text + at)
        at += 4
        if length < 0 or length > size - at or not _is_text(text + at, length, True):
            return False
        if _add_field(header, name, name_length, text + at, length) < 0:
            return False
        at += length
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _string_end(
    text: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where a JSON string ends whose quote is at ``at``; -1 if there is none."""
    if at >= size or text[at] != 34:
        return -1
    at += 1 + _find(text + at + 1, size - at - 1, 34)
    return at if at < size else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _literal_end(
    text: cython.p_const_uchar, size: cython.Py_ssize_t, at: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where a number, true or false ends."""
    while at < size and (text[at] == 45 or 48 <= text[at] <= 57 or 97 <= text[at] <= 122):
        at += 1
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_json_fields(
    text: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    header: RequestHeaderPointer,
) -> cython.Py_ssize_t:
    """Read ``extFields`` from its brace on; returns where it ends, -1 if it is not plain."""
    name_at: cython.Py_ssize_t
    name_end: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    number: cython.int
    is_string: cython.bint
    if at >= size or text[at] != 123:  # "{"
        return -1
    while True:
        name_at = at + 1
        name_end = _string_end(text, size, name_at)
        if name_end < 0 or name_end + 2 >= size or text[name_end + 1] != 58:  # ":"
            return -1
        name_at += 1
        value_at = name_end + 2
        is_string = text[value_at] == 34
        if is_string:
            end = _string_end(text, size, value_at)
            if end < 0:
                return -1
            value_at += 1
        else:
            end = _literal_end(text, size, value_at)
        number = _add_field(
            header, text + name_at, name_end - name_at, text + value_at, end - value_at
        )
        if number < 0:
            return -1
        if is_string:
            if _find(text + value_at, end - value_at, 92) != end - value_at:  # a backslash
                if number != _PROPERTIES:
                    return -1
                header.has_escapes = True
            end += 1
        elif number <= 2 or number == _PROPERTIES or number == 13:
            return -1  # these are text
        if end >= size:
            return -1
        if text[end] == 125:  # "}"
            return end + 1
        if text[end] != 44:  # ","
            return -1
        at = end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_top_number(
    name: cython.p_const_uchar, length: cython.Py_ssize_t, header: RequestHeaderPointer
) -> cython.int:
    """Note ``number`` of the header under its name; returns the bit of it, 0 if it is not plain."""
    value: cython.longlong = 0
    if not _read_number(header.number, _MAX_INT32, cython.address(value)):
        return 0
    if length == 4 and _is(name, 4, b"code") and _is_send(value):
        header.code = value
        return 2
    if length == 4 and _is(name, 4, b"flag"):
        header.flag = value
        return 4
    if length == 6 and _is(name, 6, b"opaque"):
        header.opaque = value
        return 8
    return 16 if length == 7 and _is(name, 7, b"version") else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _read_json(
    text: cython.p_const_uchar, size: cython.Py_ssize_t, header: RequestHeaderPointer
) -> cython.bint:
    at: cython.Py_ssize_t = 0
    name_at: cython.Py_ssize_t
    length: cython.Py_ssize_t
    end: cython.Py_ssize_t
    seen: cython.int = 0
    bit: cython.int
    if size < 2 or text[0] != 123 or not _is_text(text, size, False):
        return False
    while True:
        name_at = at + 2
        end = _string_end(text, size, at + 1)
        if end < 0 or end + 2 >= size or text[end + 1] != 58:
            return False
        length = end - name_at
        at = end + 2
        if length == 9 and _is(text + name_at, 9, b"extFields"):
            bit = 1
            if not seen & 2:  # the code says which names there are
                return False
            at = _read_json_fields(text, size, at, header)
            if at < 0:
                return False
        elif (length == 8 and _is(text + name_at, 8, b"language")) or (
            length == 23 and _is(text + name_at, 23, b"serializeTypeCurrentRPC")
        ):
            bit = 32 if length == 8 else 64
            end = _string_end(text, size, at)
            if end < 0 or _find(text + at, end - at, 92) != end - at:
                return False
            at = end + 1
        else:
            header.number.start = text + at
            end = _literal_end(text, size, at)
            header.number.length = end - at
            at = end
            bit = _read_top_number(text + name_at, length, header)
        if bit == 0 or seen & bit or at >= size:
            return False
        seen |= bit
        if text[at] == 125:
            return at + 1 == size and seen & 3 == 3
        if text[at] != 44:
            return False


# Properties


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_unescaped(
    out: cython.p_uchar, text: cython.p_const_uchar, length: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Copy properties out of a JSON string; returns how many bytes, -1 for other escapes."""
    at: cython.Py_ssize_t = 0
    written: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    while at < length:
        count = _find(text + at, length - at, 92)
        memcpy(out + written, text + at, count)
        written += count
        at += count
        if at < length:
            if length - at < 6 or memcmp(text + at, b"\\u000", 5) != 0:
                return -1
            if text[at + 5] != 49 and text[at + 5] != 50:  # the two separators
                return -1
            out[written] = text[at + 5] - 48
            written += 1
            at += 6
    return written


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_id(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    """Whether all characters are letters or digits, which JSON writes as they are."""
    at: cython.Py_ssize_t
    for at in range(length):
        if not (48 <= text[at] <= 57 or 65 <= text[at] <= 90 or 97 <= text[at] <= 122):
            return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _tags_of(properties: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.longlong:
    """The hash of the last tags of any properties; 0 without."""
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    code: cython.longlong = 0
    while at < length:
        count = _find(properties + at, length - at, 2)
        if count > 5 and memcmp(properties + at, b"TAGS\x01", 5) == 0:
            code = _hash_text(properties + at + 5, count - 5)
        at += count + 1
    return code


@cython.cclass
class OpenTopic:
    """A topic that plain sends may go to; a new one is made when its queues change."""

    name: str
    encoded: bytes
    queue_count: cython.int
    topic_hash: cython.uint
    block: cython.longlong
    places: cython.p_int

    def __init__(self, name: str, queue_count: int) -> None:
        if not 0 < queue_count <= 65536 or self.places != cython.NULL:
            raise ValueError(f"{queue_count} queues")
        self.places = cython.cast(cython.p_int, malloc(queue_count * cython.sizeof(cython.int)))
        if self.places == cython.NULL:
            raise MemoryError
        self.name = name
        self.encoded = name.encode("ascii")
        if not 0 < len(self.encoded) <= 127:
            raise ValueError(f"a topic of {len(self.encoded)} bytes")
        self.queue_count = queue_count
        self.topic_hash = java_hash(f"{name}#") & 0xFFFFFFFF
        self.block = 0

    def __dealloc__(self) -> None:
        free(self.places)


@cython.cclass
class Peer:
    """Who sends. ``born_host`` is packed as records have it; ``connection`` is the caller's."""

    born_host: bytes
    connection: object

    def __init__(self, born_host: bytes, connection: object) -> None:
        if len(born_host) != _HOST_BYTES:
            raise ValueError("a host of 8 bytes is needed")
        self.born_host = born_host
        self.connection = connection


@cython.cclass
class StagedSends:
    """The records of plain sends that are to be appended together, and who waits for them."""

    number: cython.longlong
    records: cython.p_uchar
    size_: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    ids: cython.p_uchar
    ids_size: cython.Py_ssize_t
    ids_capacity: cython.Py_ssize_t
    record: StagedRecords
    record_count: cython.Py_ssize_t
    record_capacity: cython.Py_ssize_t
    request: StagedRequests
    request_count_: cython.Py_ssize_t
    request_capacity: cython.Py_ssize_t
    queue: StagedQueues
    queue_count: cython.Py_ssize_t
    queue_capacity: cython.Py_ssize_t
    topics: list[OpenTopic]
    peers: list[Peer]
    placed_requests: cython.Py_ssize_t
    first_offset: cython.longlong
    last_offset: cython.longlong
    time_ms: cython.longlong

    def __cinit__(self) -> None:
        self.number = 0
        self.records = self.ids = cython.NULL
        self.record = cython.NULL
        self.request = cython.NULL
        self.queue = cython.NULL
        self.topics = []  # of each queue
        self.peers = []
        self.placed_requests = 0
        self.first_offset = self.last_offset = -1
        self.time_ms = 0

    def __dealloc__(self) -> None:
        free(self.records)
        free(self.ids)
        free(self.record)
        free(self.request)
        free(self.queue)

    # Making room; a failure leaves everything as it was.

    @cython.cfunc
    def reserve_bytes(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.size_ + count
        if wanted > self.capacity:
            wanted = max(2 * self.capacity, wanted, 4096)
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.records, wanted))
            if grown == cython.NULL:
                raise MemoryError
            self.records = grown
            self.capacity = wanted
        return 0

    @cython.cfunc
    def reserve_id(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.ids_size + count
        if wanted > self.ids_capacity:
            wanted = max(2 * self.ids_capacity, wanted, 512)
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.ids, wanted))
            if grown == cython.NULL:
                raise MemoryError
            self.ids = grown
            self.ids_capacity = wanted
        return 0

    @cython.cfunc
    def reserve_records(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.record_count + count
        if wanted > self.record_capacity:
            wanted = max(2 * self.record_capacity, wanted, 16)
            grown: StagedRecords = cython.cast(
                StagedRecords, realloc(self.record, wanted * cython.sizeof(StagedRecord))
            )
            if grown == cython.NULL:
                raise MemoryError
            self.record = grown
            self.record_capacity = wanted
        return 0

    @cython.cfunc
    def reserve_request(self) -> cython.int:
        if self.request_count_ == self.request_capacity:
            wanted: cython.Py_ssize_t = max(2 * self.request_capacity, 16)
            grown: StagedRequests = cython.cast(
                StagedRequests, realloc(self.request, wanted * cython.sizeof(StagedRequest))
            )
            if grown == cython.NULL:
                raise MemoryError
            self.request = grown
            self.request_capacity = wanted
        return 0

    @cython.cfunc
    def queue_of(self, topic: OpenTopic, queue_id: cython.int) -> cython.int:
        """The number of a queue in this block."""
        place: cython.int
        if topic.block != self.number:
            for place in range(topic.queue_count):
                topic.places[place] = -1
            topic.block = self.number
        place = topic.places[queue_id]
        if place >= 0:
            return place
        if self.queue_count == self.queue_capacity:
            wanted: cython.Py_ssize_t = max(2 * self.queue_capacity, 8)
            grown: StagedQueues = cython.cast(
                StagedQueues, realloc(self.queue, wanted * cython.sizeof(StagedQueue))
            )
            if grown == cython.NULL:
                raise MemoryError
            self.queue = grown
            self.queue_capacity = wanted
        self.topics.append(topic)
        place = cython.cast(cython.int, self.queue_count)
        self.queue_count += 1
        self.queue[place].messages = 0
        self.queue[place].requests = 0
        self.queue[place].size = 0
        self.queue[place].queue_offset = -1
        self.queue[place].end_offset = -1
        self.queue[place].queue_id = queue_id
        topic.places[queue_id] = place
        return place

    # What the appender and the commit log use

    @property
    def request_count(self) -> int:
        value: cython.Py_ssize_t = self.request_count_
        return value

    @property
    def message_count(self) -> int:
        value: cython.Py_ssize_t = self.record_count
        return value

    @property
    def size(self) -> int:
        value: cython.Py_ssize_t = self.size_
        return value

    @property
    def physical_offset(self) -> int:
        """Where the first record is."""
        return int(self.first_offset)

    @property
    def end_offset(self) -> int:
        """Where the last record ends."""
        return int(self.last_offset)

    @property
    def store_timestamp_ms(self) -> int:
        return int(self.time_ms)

    @property
    def is_placed(self) -> bool:
        return self.placed_requests == self.request_count_

    @property
    def queue_keys(self) -> list[tuple[str, int]]:
        """The queues of the records, each once."""
        keys = []
        number: cython.Py_ssize_t
        topic: OpenTopic
        for number in range(self.queue_count):
            topic = self.topics[number]
            keys.append((topic.name, self.queue[number].queue_id))
        return keys

    @property
    def queue_messages(self) -> list[int]:
        """How many records go to each of ``queue_keys``."""
        return [self.queue[number].messages for number in range(self.queue_count)]

    def set_queue_offsets(self, queue_offsets: list[int]) -> None:
        """Say at which queue offset the records of each of ``queue_keys`` begin."""
        number: cython.Py_ssize_t
        if len(queue_offsets) != self.queue_count:
            raise ValueError(f"{len(queue_offsets)} offsets for {self.queue_count} queues")
        for number in range(self.queue_count):
            self.queue[number].queue_offset = queue_offsets[number]

    def place(
        self, physical_offset: cython.longlong, room: cython.longlong, now_ms: cython.longlong
    ) -> bytes:
        """The next records, as many as fit into ``room`` bytes, with their places filled in.

        The messages of one batch come together.
        """
        request: cython.Py_ssize_t = self.placed_requests
        first: cython.Py_ssize_t
        number: cython.Py_ssize_t
        each: cython.Py_ssize_t
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        data: cython.p_uchar
        if request == self.request_count_:
            return b""
        first = number = self.request[request].first
        begin = end = self.record[first].at
        while request < self.request_count_ and self.request[request].end - begin <= room:
            end = self.request[request].end
            number = self.request[request].first + self.request[request].count
            request += 1
        if end == begin:
            return b""
        if self.placed_requests == 0:
            self.first_offset = physical_offset
        self.placed_requests = request
        self.last_offset = physical_offset + end - begin
        self.time_ms = now_ms
        for each in range(first, number):
            data = self.records + self.record[each].at
            _put64(
                data + _QUEUE_OFFSET_AT,
                self.queue[self.record[each].queue].queue_offset + self.record[each].number,
            )
            _put64(data + _PHYSICAL_OFFSET_AT, physical_offset + self.record[each].at - begin)
            _put64(data + _STORE_TIME_AT, now_ms)
        return _bytes(self.records + begin, end - begin)

    # What dispatch uses, once everything is placed

    def queue_entries(self) -> list[tuple[tuple[str, int], int, bytes, int]]:
        """For each queue its key, first queue offset, entries, and where its last record ends."""
        if self.record_count == 0 or not self.is_placed:
            return []
        size: cython.Py_ssize_t = _ENTRY_BYTES * self.record_count
        entries: cython.p_uchar = cython.cast(cython.p_uchar, malloc(size))
        starts: cython.p_longlong = cython.cast(
            cython.p_longlong, malloc((self.queue_count + 1) * cython.sizeof(cython.longlong))
        )
        number: cython.Py_ssize_t
        total: cython.longlong = 0
        physical_offset: cython.longlong
        out: cython.p_uchar
        queue: StagedQueues
        topic: OpenTopic
        try:
            if entries == cython.NULL or starts == cython.NULL:
                raise MemoryError
            for number in range(self.queue_count):
                starts[number] = total
                total += _ENTRY_BYTES * self.queue[number].messages
            for number in range(self.record_count):
                queue = cython.address(self.queue[self.record[number].queue])
                out = (
                    entries
                    + starts[self.record[number].queue]
                    + _ENTRY_BYTES * self.record[number].number
                )
                physical_offset = _get64(
                    self.records + self.record[number].at + _PHYSICAL_OFFSET_AT
                )
                queue.end_offset = physical_offset + self.record[number].size
                _put64(out, physical_offset)
                _put32(out + 8, self.record[number].size)
                _put64(out + 12, self.record[number].tags_code)
            found = []
            for number in range(self.queue_count):
                topic = self.topics[number]
                queue = cython.address(self.queue[number])
                found.append(
                    (
                        (topic.name, queue.queue_id),
                        queue.queue_offset,
                        _bytes(entries + starts[number], _ENTRY_BYTES * queue.messages),
                        queue.end_offset,
                    )
                )
            return found
        finally:
            free(entries)
            free(starts)

    def key_columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """What the key index needs, a column each: properties back to back, where each ends (i64),
        the hash of ``topic#`` (u32), system flags (i64) and physical offsets (i64), in the
        machine's byte order."""
        count: cython.Py_ssize_t = self.record_count
        number: cython.Py_ssize_t
        length: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        data: cython.p_uchar
        for number in range(count):
            total += self.record[number].properties_length
        properties: cython.p_uchar = cython.cast(cython.p_uchar, malloc(total + 1))
        columns: cython.p_longlong = cython.cast(
            cython.p_longlong, malloc((4 * count + 1) * cython.sizeof(cython.longlong))
        )
        hashes: cython.p_uint = cython.cast(cython.p_uint, columns + 3 * count)
        try:
            if properties == cython.NULL or columns == cython.NULL:
                raise MemoryError
            total = 0
            for number in range(count):
                data = self.records + self.record[number].at
                length = self.record[number].properties_length
                memcpy(properties + total, data + self.record[number].size - length, length)
                total += length
                columns[number] = total
                columns[count + number] = _get32(data + _SYS_FLAG_AT)
                columns[2 * count + number] = _get64(data + _PHYSICAL_OFFSET_AT)
                hashes[number] = self.record[number].topic_hash
            data = cython.cast(cython.p_uchar, columns)
            return (
                _bytes(properties, total),
                _bytes(data, 8 * count),
                _bytes(cython.cast(cython.p_uchar, hashes), 4 * count),
                _bytes(data + 8 * count, 8 * count),
                _bytes(data + 16 * count, 8 * count),
            )
        finally:
            free(properties)
            free(columns)

    def topic_totals(self) -> dict[str, tuple[int, int, int]]:
        """Messages, bytes and requests by topic."""
        totals: dict[str, tuple[int, int, int]] = {}
        number: cython.Py_ssize_t
        topic: OpenTopic
        for number in range(self.queue_count):
            topic = self.topics[number]
            messages, size, requests = totals.get(topic.name, (0, 0, 0))
            totals[topic.name] = (
                messages + self.queue[number].messages,
                size + self.queue[number].size,
                requests + self.queue[number].requests,
            )
        return totals

    # One by one, for those who need it so

    def entries(self) -> list[tuple[str, int, int, int, int, int, int, int, bytes]]:
        """The records with the values of a LogEntry."""
        found = []
        number: cython.Py_ssize_t
        size: cython.int
        length: cython.int
        data: cython.p_uchar
        topic: OpenTopic
        for number in range(self.record_count):
            data = self.records + self.record[number].at
            size = self.record[number].size
            length = self.record[number].properties_length
            topic = self.topics[self.record[number].queue]
            found.append(
                (
                    topic.name,
                    self.queue[self.record[number].queue].queue_id,
                    _get64(data + _QUEUE_OFFSET_AT),
                    _get64(data + _PHYSICAL_OFFSET_AT),
                    size,
                    self.record[number].tags_code,
                    _get64(data + _STORE_TIME_AT),
                    _get32(data + _SYS_FLAG_AT),
                    _bytes(data + size - length, length),
                )
            )
        return found

    def requests(self) -> list[tuple[Any, int, bool, bool, int, str | None, int, int]]:
        """For each request its connection, opaque, whether its header is binary and it is one-way,
        queue id, unique id, first record and number of records."""
        found = []
        number: cython.Py_ssize_t
        request: StagedRequests
        peer: Peer
        for number in range(self.request_count_):
            request = cython.address(self.request[number])
            unique_id = None
            if request.unique_id_length >= 0:
                unique_id = _bytes(
                    self.ids + request.unique_id_at, request.unique_id_length
                ).decode()
            peer = self.peers[request.peer]
            found.append(
                (
                    peer.connection,
                    request.opaque,
                    bool(request.is_binary),
                    bool(request.is_oneway),
                    self.queue[self.record[request.first].queue].queue_id,
                    unique_id,
                    request.first,
                    request.count,
                )
            )
        return found


@cython.cclass
class PlainSends:
    """Takes plain sends. ``configure`` it, and keep ``topics`` up to date."""

    topics: dict[bytes, OpenTopic]
    last_topic: OpenTopic | None
    blocks: cython.longlong
    header: RequestHeader
    names: PairNames
    properties: SendProperties
    crc_tables: CrcTables
    store_host: bytes
    added_properties: bytes
    max_body_bytes: cython.Py_ssize_t
    max_record_bytes: cython.Py_ssize_t
    max_batch_bytes: cython.Py_ssize_t
    waits_durable: cython.bint
    special_names: bytes
    special_lengths: cython.ulonglong
    special_prefix: bytes
    json_parts: tuple[bytes, ...]
    binary_parts: tuple[bytes, ...]
    out: cython.p_uchar
    out_size: cython.Py_ssize_t
    out_capacity: cython.Py_ssize_t

    def __cinit__(self) -> None:
        self.topics = {}
        self.last_topic = None
        self.blocks = 0
        _fill_crc_tables(cython.address(self.crc_tables))
        self.out = cython.NULL
        self.store_host = self.added_properties = self.special_names = self.special_prefix = b""
        self.json_parts = self.binary_parts = ()

    def __dealloc__(self) -> None:
        free(self.out)

    def configure(
        self,
        *,
        store_host: bytes,
        added_properties: bytes,
        max_body_bytes: int,
        max_record_bytes: int,
        max_batch_bytes: int,
        waits_durable: bool,
        special_names: frozenset[bytes],
        special_prefix: bytes,
        json_parts: tuple[bytes, ...],
        binary_parts: tuple[bytes, ...],
    ) -> None:
        """``added_properties`` end every message that is no batch. Messages with a property of
        ``special_names``, or one that begins with ``special_prefix``, are not plain; with
        ``waits_durable`` neither are those whose sender does not want to wait for the disk.

        ``json_parts`` (6) and ``binary_parts`` (5) are what answers have between their values.
        """
        if len(store_host) != _HOST_BYTES:
            raise ValueError("a host of 8 bytes is needed")
        if len(json_parts) != 6 or len(binary_parts) != 5:
            raise ValueError("answers have 6 parts in JSON and 5 in binary")
        if any(not 0 < len(name) < 64 for name in special_names) or not special_prefix:
            raise ValueError("names of properties have 1 to 63 bytes here")
        self.store_host = store_host
        self.added_properties = added_properties
        self.max_body_bytes = max_body_bytes
        self.max_record_bytes = min(max_record_bytes, 0x7FFFFFFF)
        self.max_batch_bytes = min(max_batch_bytes, 0x7FFFFFFF)
        self.waits_durable = waits_durable
        self.special_names = b"".join(bytes((len(name),)) + name for name in special_names)
        self.special_lengths = 0
        for name in special_names:
            self.special_lengths |= cython.cast(cython.ulonglong, 1) << len(name)
        self.special_prefix = special_prefix
        self.json_parts = json_parts
        self.binary_parts = binary_parts

    def add_topic(self, topic: OpenTopic) -> None:
        self.topics[topic.encoded] = topic

    def forget_topics(self) -> None:
        self.topics.clear()
        self.last_topic = None

    def take(
        self, staged: StagedSends, data: bytes, peer: Peer, most: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Stage the sends of the frames at the beginning of ``data``, at most so many.

        Returns where the first frame begins that is not plain, not whole, or for a topic that is
        not among the open ones.
        """
        text: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, data)
        )
        size: cython.Py_ssize_t = len(data)
        at: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        peer_number: cython.int = cython.cast(cython.int, len(staged.peers))
        if staged.placed_requests:
            raise ValueError("the block has been placed")
        if staged.number == 0:
            self.blocks += 1
            staged.number = self.blocks
        if staged.peers and staged.peers[peer_number - 1] is peer:
            peer_number -= 1
        else:
            staged.peers.append(peer)
        while size - at >= 8 and most > 0:
            length = _get32(text + at)
            if not 4 <= length <= size - at - 4:
                break
            if not self._take_frame(staged, text + at + 4, length, peer, peer_number):
                break
            at += 4 + length
            most -= 1
        return at

    def missing_topic(self, data: bytes, at: cython.Py_ssize_t) -> str | None:
        """The topic of a send at ``at`` in ``data`` if it is not among the open ones."""
        size: cython.Py_ssize_t = len(data)
        if not 0 <= at <= size - 8:
            return None
        text: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, data)
        )
        length: cython.Py_ssize_t = _get32(text + at)
        if not 4 <= length <= size - at - 4:
            return None
        if not self._read_header(text + at + 4, length):
            return None
        name: bytes = _bytes(self.header.fields[_TOPIC].start, self.header.fields[_TOPIC].length)
        return None if name in self.topics else name.decode("ascii")

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read_header(self, frame: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.bint:
        """Read the header of a frame, at least 4 bytes, into ``header``; False if not plain."""
        kind: cython.int = frame[0]
        length: cython.Py_ssize_t = _get32(frame) & 0xFFFFFF
        if length > size - 4 or length > _MAX_HEADER_BYTES:
            return False
        self.header.seen = 0
        self.header.flag = 0
        self.header.opaque = 0
        self.header.has_escapes = False
        if kind == _JSON:
            if not _read_json(frame + 4, length, cython.address(self.header)):
                return False
        elif kind != _BINARY or not _read_binary(frame + 4, length, cython.address(self.header)):
            return False
        return self.header.seen & _REQUIRED == _REQUIRED and not self.header.flag & _RESPONSE

    @cython.cfunc
    def _find_topic(self) -> OpenTopic | None:
        text: Text = self.header.fields[_TOPIC]
        topic: OpenTopic | None = self.last_topic
        if (
            topic is not None
            and len(topic.encoded) == text.length
            and memcmp(cython.cast(cython.p_const_char, topic.encoded), text.start, text.length)
            == 0
        ):
            return topic
        topic = self.topics.get(_bytes(text.start, text.length))
        if topic is not None:
            self.last_topic = topic
        return topic

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_bool(self, number: cython.int, is_true: cython.p_int) -> cython.bint:
        text: Text = self.header.fields[number]
        is_true[0] = 0
        if not self.header.seen >> number & 1:
            return True
        if text.length == 4 and memcmp(text.start, b"true", 4) == 0:
            is_true[0] = 1
            return True
        return text.length == 5 and memcmp(text.start, b"false", 5) == 0

    @cython.cfunc
    def _take_frame(
        self,
        staged: StagedSends,
        frame: cython.p_const_uchar,
        size: cython.Py_ssize_t,
        peer: Peer,
        peer_number: cython.int,
    ) -> cython.bint:
        body: cython.p_const_uchar
        body_bytes: cython.Py_ssize_t
        queue_id: cython.longlong = 0
        sys_flag: cython.longlong = 0
        born_ms: cython.longlong = 0
        flag: cython.longlong = 0
        other: cython.longlong = 0
        is_batch: cython.int = 0
        is_unit: cython.int = 0
        if not self._read_header(frame, size):
            return False
        topic: OpenTopic | None = self._find_topic()
        if topic is None:
            return False
        body_bytes = size - 4 - (_get32(frame) & 0xFFFFFF)
        body = frame + size - body_bytes
        if not 0 < body_bytes <= self.max_body_bytes:
            return False
        fields = cython.address(self.header.fields[0])
        if (
            not _read_number(fields[_QUEUE_ID], _MAX_INT32, cython.address(queue_id))
            or not 0 <= queue_id < topic.queue_count
            or not _read_number(fields[_SYS_FLAG], _MAX_INT32, cython.address(sys_flag))
            or sys_flag & ~_PLAIN_SYS_FLAGS
            or not _read_number(fields[_BORN_TIME], _MAX_BORN_TIME, cython.address(born_ms))
            or not _read_number(fields[_FLAG], _MAX_INT32, cython.address(flag))
            or not _read_number(fields[_DEFAULT_QUEUES], _MAX_INT32, cython.address(other))
            or not self._is_bool(_BATCH, cython.address(is_batch))
            or not self._is_bool(_UNIT_MODE, cython.address(is_unit))
        ):
            return False
        if self.header.seen >> _RECONSUME_TIMES & 1 and (
            not _read_number(fields[_RECONSUME_TIMES], 0, cython.address(other)) or other
        ):
            return False
        if self.header.seen >> _MAX_RECONSUME_TIMES & 1 and not _read_number(
            fields[_MAX_RECONSUME_TIMES], _MAX_INT32, cython.address(other)
        ):
            return False
        staged.reserve_request()
        staged.reserve_records(1)
        if is_batch:
            count = self._stage_batch(
                staged,
                topic,
                cython.cast(cython.int, queue_id),
                cython.cast(cython.int, sys_flag),
                born_ms,
                peer,
                body,
                body_bytes,
            )
        else:
            count = self._stage_one(
                staged,
                topic,
                cython.cast(cython.int, queue_id),
                cython.cast(cython.int, sys_flag),
                born_ms,
                cython.cast(cython.int, flag),
                peer,
                body,
                body_bytes,
            )
        if count == 0:
            return False
        self._add_request(staged, count, frame[0] == _BINARY, peer_number)
        return True

    # Staging. What fails leaves the block as it was.

    @cython.cfunc
    def _read_properties(
        self, staged: StagedSends, out: cython.p_uchar, found: SendPropertiesPointer
    ) -> cython.Py_ssize_t:
        """Copy the properties of the request to ``out``, which has room for them and a byte more,
        and its unique id to the ids of the block; returns their length, -1 if they are not plain.
        """
        text: Text = self.header.fields[_PROPERTIES]
        length: cython.Py_ssize_t = text.length
        found.unique_id.length = -1
        found.tags.length = -1
        if not self.header.seen >> _PROPERTIES & 1 or length == 0:
            return 0
        if self.header.has_escapes:
            length = _copy_unescaped(out, text.start, length)
            if length < 0:
                return -1
        else:
            memcpy(out, text.start, length)
        if out[length - 1] != 2:  # clients 4.9.1 to 5.1.4 leave the last separator out
            out[length] = 2
            length += 1
        if not self._read_pairs(out, length, found):
            return -1
        if found.unique_id.length >= 0:
            if not _is_id(found.unique_id.start, found.unique_id.length):
                return -1
            staged.reserve_id(found.unique_id.length)
            memcpy(staged.ids + staged.ids_size, found.unique_id.start, found.unique_id.length)
        return length

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read_pairs(
        self, text: cython.p_const_uchar, length: cython.Py_ssize_t, found: SendPropertiesPointer
    ) -> cython.bint:
        names: TextPointer = cython.address(self.names.at[0])
        count: cython.int = 0
        other: cython.int
        at: cython.Py_ssize_t = 0
        pair: cython.p_const_uchar
        size: cython.Py_ssize_t
        name_length: cython.Py_ssize_t
        value_length: cython.Py_ssize_t
        value: cython.p_const_uchar
        while at < length:
            pair = text + at
            size = _find(pair, length - at, 2)
            name_length = _find(pair, size, 1)
            value = pair + name_length + 1
            value_length = size - name_length - 1
            if (
                count == _MAX_PAIRS
                or name_length == 0
                or value_length <= 0
                or _find(value, value_length, 1) != value_length
                or self._is_special(pair, name_length)
            ):
                return False
            for other in range(count):
                if names[other].length == name_length and (
                    memcmp(names[other].start, pair, name_length) == 0
                ):
                    return False
            names[count].start = pair
            names[count].length = name_length
            count += 1
            if name_length == 8 and memcmp(pair, b"UNIQ_KEY", 8) == 0:
                found.unique_id.start = value
                found.unique_id.length = value_length
            elif name_length == 4 and memcmp(pair, b"TAGS", 4) == 0:
                found.tags.start = value
                found.tags.length = value_length
            elif (
                self.waits_durable
                and name_length == 4
                and memcmp(pair, b"WAIT", 4) == 0
                and (value_length != 4 or memcmp(value, b"true", 4) != 0)
            ):
                return False
            at += size + 1
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_special(self, name: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t = 0
        prefix_length: cython.Py_ssize_t = len(self.special_prefix)
        table: cython.p_const_uchar
        if length >= prefix_length and (
            memcmp(cython.cast(cython.p_const_char, self.special_prefix), name, prefix_length) == 0
        ):
            return True
        if length > 63 or not self.special_lengths >> length & 1:
            return False
        table = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, self.special_names)
        )
        while at < len(self.special_names):
            if table[at] == length and memcmp(table + at + 1, name, length) == 0:
                return True
            at += 1 + table[at]
        return False

    @cython.cfunc
    def _stage_one(
        self,
        staged: StagedSends,
        topic: OpenTopic,
        queue_id: cython.int,
        sys_flag: cython.int,
        born_ms: cython.longlong,
        flag: cython.int,
        peer: Peer,
        body: cython.p_const_uchar,
        body_bytes: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Stage the record of one message; returns 1, or 0 if it is not plain."""
        added: cython.Py_ssize_t = len(self.added_properties)
        topic_bytes: cython.Py_ssize_t = len(topic.encoded)
        properties_at: cython.Py_ssize_t = _RECORD_HEAD_BYTES + body_bytes + 1 + topic_bytes + 2
        staged.reserve_bytes(
            properties_at + self.header.fields[_PROPERTIES].length + 1 + added
            if self.header.seen >> _PROPERTIES & 1
            else properties_at + 1 + added
        )
        out: cython.p_uchar = staged.records + staged.size_
        length: cython.Py_ssize_t = self._read_properties(
            staged, out + properties_at, cython.address(self.properties)
        )
        if length < 0 or self.properties.unique_id.length < 0:
            return 0
        memcpy(
            out + properties_at + length,
            cython.cast(cython.p_const_char, self.added_properties),
            added,
        )
        length += added
        if length > _MAX_PROPERTIES_BYTES or properties_at + length > self.max_record_bytes:
            return 0
        queue: cython.int = staged.queue_of(topic, queue_id)
        self._write_head(
            out, properties_at + length, queue_id, sys_flag, born_ms, flag, peer, body, body_bytes
        )
        self._write_tail(out + _RECORD_HEAD_BYTES + body_bytes, topic, length)
        record: StagedRecords = cython.address(staged.record[staged.record_count])
        record.at = staged.size_
        record.size = cython.cast(cython.int, properties_at + length)
        record.queue = queue
        record.number = staged.queue[queue].messages
        record.properties_length = cython.cast(cython.int, length)
        record.topic_hash = topic.topic_hash
        record.tags_code = 0
        if self.properties.tags.length >= 0:
            record.tags_code = _hash_text(self.properties.tags.start, self.properties.tags.length)
        staged.size_ += record.size
        staged.record_count += 1
        staged.queue[queue].messages += 1
        staged.queue[queue].size += record.size
        staged.queue[queue].requests += 1
        return 1

    @cython.cfunc
    def _body_crc(self, data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.longlong:
        """The CRC-32 of a body as a record has it, without the sign bit."""
        value: cython.longlong
        if length <= _MAX_OWN_CRC_BYTES:
            value = _crc_short(cython.address(self.crc_tables), data, length)
        else:
            value = crc32(_bytes(data, length))
        return value & _MAX_INT32

    @cython.cfunc
    def _write_head(
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
        _put32(out, size)
        _put32(out + 4, _MAGIC)
        _put32(out + 8, self._body_crc(body, body_bytes))
        _put32(out + 12, queue_id)
        _put32(out + 16, flag)
        _put64(out + _QUEUE_OFFSET_AT, 0)
        _put64(out + _PHYSICAL_OFFSET_AT, 0)
        _put32(out + _SYS_FLAG_AT, sys_flag)
        _put64(out + 40, born_ms)
        memcpy(out + 48, cython.cast(cython.p_const_char, peer.born_host), _HOST_BYTES)
        _put64(out + _STORE_TIME_AT, 0)
        memcpy(out + 64, cython.cast(cython.p_const_char, self.store_host), _HOST_BYTES)
        _put32(out + 72, 0)  # never retried
        _put64(out + 76, 0)  # in no transaction
        _put32(out + 84, body_bytes)
        memcpy(out + _RECORD_HEAD_BYTES, body, body_bytes)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _write_tail(
        self, out: cython.p_uchar, topic: OpenTopic, properties_bytes: cython.Py_ssize_t
    ) -> cython.void:
        """Write what is between the body and the properties."""
        length: cython.Py_ssize_t = len(topic.encoded)
        out[0] = length & 0xFF
        memcpy(out + 1, cython.cast(cython.p_const_char, topic.encoded), length)
        _put16(out + 1 + length, properties_bytes)

    @cython.cfunc
    def _stage_batch(
        self,
        staged: StagedSends,
        topic: OpenTopic,
        queue_id: cython.int,
        sys_flag: cython.int,
        born_ms: cython.longlong,
        peer: Peer,
        body: cython.p_const_uchar,
        body_bytes: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Stage the records of a batch; returns how many, or 0 if it is not plain."""
        fixed: cython.Py_ssize_t = _RECORD_HEAD_BYTES + 1 + len(topic.encoded) + 2
        at: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        properties_bytes: cython.Py_ssize_t
        start: cython.Py_ssize_t
        number: cython.Py_ssize_t
        out: cython.p_uchar
        record: StagedRecords
        count: cython.Py_ssize_t = self._count_batch(body, body_bytes, fixed)
        if count == 0:
            return 0
        staged.reserve_records(count)
        # The parts of the messages are parts of the body, without 22 bytes of each.
        staged.reserve_bytes(body_bytes + count * fixed)
        if self.header.seen >> _PROPERTIES & 1:  # they are not stored
            staged.reserve_bytes(self.header.fields[_PROPERTIES].length + 1)
        if (
            self._read_properties(
                staged, staged.records + staged.size_, cython.address(self.properties)
            )
            < 0
        ):
            return 0
        queue: cython.int = staged.queue_of(topic, queue_id)
        start = staged.size_
        for number in range(count):
            length = _get32(body + at + 16)
            properties_bytes = _get16(body + at + _BATCH_HEAD_BYTES + length)
            out = staged.records + start
            self._write_head(
                out,
                fixed + length + properties_bytes,
                queue_id,
                sys_flag,
                born_ms,
                _get32(body + at + 12),
                peer,
                body + at + _BATCH_HEAD_BYTES,
                length,
            )
            self._write_tail(out + _RECORD_HEAD_BYTES + length, topic, properties_bytes)
            at += _BATCH_HEAD_BYTES + length + 2
            memcpy(out + fixed + length, body + at, properties_bytes)
            record = cython.address(staged.record[staged.record_count + number])
            record.at = start
            record.size = cython.cast(cython.int, fixed + length + properties_bytes)
            record.queue = queue
            record.number = staged.queue[queue].messages + number
            record.properties_length = cython.cast(cython.int, properties_bytes)
            record.topic_hash = topic.topic_hash
            record.tags_code = _tags_of(body + at, properties_bytes)
            start += record.size
            at += properties_bytes
        staged.queue[queue].size += start - staged.size_
        staged.size_ = start
        staged.record_count += count
        staged.queue[queue].messages += count
        staged.queue[queue].requests += 1
        return count

    @cython.cfunc
    @cython.exceptval(check=False)
    def _count_batch(
        self, body: cython.p_const_uchar, size: cython.Py_ssize_t, fixed: cython.Py_ssize_t
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
            if size - at < _BATCH_HEAD_BYTES + 2 or count == _MAX_BATCH_MESSAGES:
                return 0
            length = _get32(body + at)
            if not _BATCH_HEAD_BYTES + 2 <= length <= size - at:
                return 0
            end = at + length
            length = _get32(body + at + 16)
            if not 0 <= length <= end - at - _BATCH_HEAD_BYTES - 2:
                return 0
            at += _BATCH_HEAD_BYTES + length
            properties_bytes = _get16(body + at)
            at += 2
            if properties_bytes != end - at or properties_bytes > _MAX_PROPERTIES_BYTES:
                return 0
            if not _is_text(body + at, properties_bytes, True):
                return 0
            if fixed + length + properties_bytes > self.max_record_bytes:
                return 0
            total += fixed + length + properties_bytes
            at = end
            count += 1
        return count if total <= self.max_batch_bytes else 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _add_request(
        self,
        staged: StagedSends,
        count: cython.Py_ssize_t,
        is_binary: cython.bint,
        peer_number: cython.int,
    ) -> cython.void:
        """Note who waits for the last ``count`` records. There is room for it."""
        request: StagedRequests = cython.address(staged.request[staged.request_count_])
        request.first = staged.record_count - count
        request.count = count
        request.end = staged.size_
        request.unique_id_at = staged.ids_size
        request.unique_id_length = cython.cast(cython.int, self.properties.unique_id.length)
        request.opaque = self.header.opaque
        request.peer = peer_number
        request.is_binary = is_binary
        request.is_oneway = self.header.flag & _ONEWAY != 0
        if self.properties.unique_id.length > 0:
            staged.ids_size += self.properties.unique_id.length
        staged.request_count_ += 1

    # Answers

    def answers(self, staged: StagedSends) -> list[tuple[Any, bytes]]:
        """The answers to requests that went well: for each connection in turn, whole frames."""
        found = []
        number: cython.Py_ssize_t
        peer_number: cython.int = -1
        peer: Peer
        if not staged.is_placed:
            raise ValueError("the block has not been placed")
        self.out_size = 0
        for number in range(staged.request_count_):
            if staged.request[number].is_oneway:
                continue
            if staged.request[number].peer != peer_number:
                if self.out_size:
                    peer = staged.peers[peer_number]
                    found.append((peer.connection, _bytes(self.out, self.out_size)))
                peer_number = staged.request[number].peer
                self.out_size = 0
            if staged.request[number].is_binary:
                self._answer_binary(staged, number)
            else:
                self._answer_json(staged, number)
        if self.out_size:
            peer = staged.peers[peer_number]
            found.append((peer.connection, _bytes(self.out, self.out_size)))
        return found

    @cython.cfunc
    def _reserve_out(self, count: cython.Py_ssize_t) -> cython.int:
        wanted: cython.Py_ssize_t = self.out_size + count
        if wanted > self.out_capacity:
            wanted = max(2 * self.out_capacity, wanted, 4096)
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.out, wanted))
            if grown == cython.NULL:
                raise MemoryError
            self.out = grown
            self.out_capacity = wanted
        return 0

    @cython.cfunc
    def _add_part(self, part: bytes) -> cython.int:
        size: cython.Py_ssize_t = len(part)
        self._reserve_out(size)
        memcpy(self.out + self.out_size, cython.cast(cython.p_const_char, part), size)
        self.out_size += size
        return 0

    @cython.cfunc
    def _add_number(self, value: cython.longlong) -> cython.int:
        self._reserve_out(20)
        self.out_size += _write_number(self.out + self.out_size, value)
        return 0

    @cython.cfunc
    def _add_ids(self, staged: StagedSends, request: StagedRequests) -> cython.int:
        """Add the message ids of a request: store host and physical offset of each record."""
        number: cython.Py_ssize_t
        data: cython.p_const_uchar
        host: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, cython.cast(cython.p_const_char, self.store_host)
        )
        self._reserve_out(33 * request.count)
        for number in range(request.count):
            if number:
                self.out[self.out_size] = 44  # ","
                self.out_size += 1
            data = staged.records + staged.record[request.first + number].at
            _write_hex(self.out + self.out_size, _get64(host))
            _write_hex(self.out + self.out_size + 16, _get64(data + _PHYSICAL_OFFSET_AT))
            self.out_size += 32
        return 0

    @cython.cfunc
    def _add_unique_id(self, staged: StagedSends, request: StagedRequests) -> cython.int:
        self._reserve_out(request.unique_id_length)
        memcpy(
            self.out + self.out_size,
            staged.ids + request.unique_id_at,
            request.unique_id_length,
        )
        self.out_size += request.unique_id_length
        return 0

    @cython.cfunc
    def _answer_json(self, staged: StagedSends, number: cython.Py_ssize_t) -> cython.int:
        request: StagedRequests = cython.address(staged.request[number])
        record: StagedRecords = cython.address(staged.record[request.first])
        start: cython.Py_ssize_t = self.out_size
        self._reserve_out(8)
        self.out_size += 8
        self._add_part(self.json_parts[0])
        self._add_number(staged.queue[record.queue].queue_id)
        if request.unique_id_length >= 0:
            self._add_part(self.json_parts[1])
            self._add_unique_id(staged, request)
        self._add_part(self.json_parts[2])
        self._add_ids(staged, request)
        self._add_part(self.json_parts[3])
        self._add_number(_get64(staged.records + record.at + _QUEUE_OFFSET_AT))
        self._add_part(self.json_parts[4])
        self._add_number(request.opaque)
        self._add_part(self.json_parts[5])
        _put32(self.out + start, self.out_size - start - 4)
        _put32(self.out + start + 4, self.out_size - start - 8)
        return 0

    @cython.cfunc
    def _answer_binary(self, staged: StagedSends, number: cython.Py_ssize_t) -> cython.int:
        request: StagedRequests = cython.address(staged.request[number])
        record: StagedRecords = cython.address(staged.record[request.first])
        start: cython.Py_ssize_t = self.out_size
        at: cython.Py_ssize_t
        self._reserve_out(8)
        self.out_size += 8
        self._add_part(self.binary_parts[0])
        at = self._begin_value(1)
        self._add_number(staged.queue[record.queue].queue_id)
        self._end_value(at)
        if request.unique_id_length >= 0:
            at = self._begin_value(2)
            self._add_unique_id(staged, request)
            self._end_value(at)
        at = self._begin_value(3)
        self._add_ids(staged, request)
        self._end_value(at)
        at = self._begin_value(4)
        self._add_number(_get64(staged.records + record.at + _QUEUE_OFFSET_AT))
        self._end_value(at)
        _put32(self.out + start, self.out_size - start - 4)
        _put32(self.out + start + 4, self.out_size - start - 8)
        self.out[start + 4] = 1
        _put32(self.out + start + 8 + 5, request.opaque)
        _put32(self.out + start + 8 + 17, self.out_size - start - 8 - _BINARY_HEAD_BYTES)
        return 0

    @cython.cfunc
    def _begin_value(self, part: cython.int) -> cython.Py_ssize_t:
        """Add the name of a field and room for the length of its value; returns where it ends."""
        self._add_part(self.binary_parts[part])
        self._reserve_out(4)
        self.out_size += 4
        return self.out_size

    @cython.cfunc
    @cython.exceptval(check=False)
    def _end_value(self, at: cython.Py_ssize_t) -> cython.void:
        _put32(self.out + at - 4, self.out_size - at)
