# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The headers of send requests, compiled: from the bytes of a frame to the places of its fields.

Whatever is unusual is not plain, and left to the general route: spaces or escapes in JSON, fields
that are unknown or come twice, text that is not ASCII.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.goddard.core.primitives import find, get16, get32
    from cython.cimports.goddard.core.sendtypes import (
        BINARY_HEAD_BYTES,
        BINARY_HEADER,
        FIELD_BROKER_NAME,
        FIELD_DEFAULT_TOPIC,
        FIELD_PROPERTIES,
        JSON_HEADER,
        MAX_INT32,
        RequestHeaderPointer,
    )
    from cython.cimports.goddard.core.texts import is_text, read_number
    from cython.cimports.libc.string import memcmp

IS_COMPILED = cython.compiled

# The names of the fields for code 10, each after its length.
_LONG_NAMES = cython.declare(
    cython.p_const_char,
    b"\x0dproducerGroup\x05topic\x0cdefaultTopic\x15defaultTopicQueueNums\x07queueId\x07sysFlag"
    b"\x0dbornTimestamp\x04flag\x0aproperties\x0ereconsumeTimes\x08unitMode\x11maxReconsumeTimes"
    b"\x05batch\x05bname",
)
_FIELD_COUNT = cython.declare(cython.int, 14)
_REQUIRED = cython.declare(cython.int, 0xFF)  # the fields a to h
_LONG_NAMES_CODE = cython.declare(cython.int, 10)
_RESPONSE = cython.declare(cython.int, 1)
_MAX_HEADER_BYTES = cython.declare(cython.Py_ssize_t, 65536)


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
    at: cython.Py_ssize_t = BINARY_HEAD_BYTES
    name: cython.p_const_uchar
    name_length: cython.Py_ssize_t
    length: cython.Py_ssize_t
    if size < at or get32(text + 13) != 0 or get32(text + 17) != size - at:
        return False
    header.code = get16(text)
    if not _is_send(header.code):
        return False
    header.opaque = get32(text + 5)
    header.flag = get32(text + 9)
    while at < size:
        if size - at < 6:
            return False
        name_length = get16(text + at)
        at += 2
        if name_length > size - at - 4:
            return False
        name = text + at
        at += name_length
        length = get32(text + at)
        at += 4
        if length < 0 or length > size - at or not is_text(text + at, length, True):
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
    at += 1 + find(text + at + 1, size - at - 1, 34)
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
            if find(text + value_at, end - value_at, 92) != end - value_at:  # a backslash
                if number != FIELD_PROPERTIES:
                    return -1
                header.has_escapes = True
            end += 1
        elif number <= FIELD_DEFAULT_TOPIC or number in (FIELD_PROPERTIES, FIELD_BROKER_NAME):
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
    if not read_number(header.number, MAX_INT32, cython.address(value)):
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
    if size < 2 or text[0] != 123 or not is_text(text, size, False):
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
            if end < 0 or find(text + at, end - at, 92) != end - at:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_header(
    frame: cython.p_const_uchar, size: cython.Py_ssize_t, header: RequestHeaderPointer
) -> cython.bint:
    """Read the header of a frame, at least 4 bytes without its length; False if not plain."""
    kind: cython.int = frame[0]
    length: cython.Py_ssize_t = get32(frame) & 0xFFFFFF
    if length > size - 4 or length > _MAX_HEADER_BYTES:
        return False
    header.seen = 0
    header.flag = 0
    header.opaque = 0
    header.has_escapes = False
    if kind == JSON_HEADER:
        if not _read_json(frame + 4, length, header):
            return False
    elif kind != BINARY_HEADER or not _read_binary(frame + 4, length, header):
        return False
    return header.seen & _REQUIRED == _REQUIRED and not header.flag & _RESPONSE
