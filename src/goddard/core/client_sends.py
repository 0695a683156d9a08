# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""A producer's plain sends, compiled: properties, frames, batch entries, and the responses.

Plain are properties of printable ASCII without quotes and backslashes, and responses with a JSON
header whose values are such texts. Every function returns None, or stops, for what is not plain:
its callers in ``goddard.client`` handle that in Python.
"""

from __future__ import annotations

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.goddard.core.primitives import get32, put16, put32
    from cython.cimports.goddard.core.strings import (
        PyUnicode_1BYTE_DATA,
        PyUnicode_CheckExact,
        PyUnicode_GET_LENGTH,
        PyUnicode_IS_ASCII,
        PyUnicode_New,
    )
    from cython.cimports.goddard.core.texts import write_number
    from cython.cimports.libc.stdlib import free, realloc
    from cython.cimports.libc.string import memcmp, memcpy, memset, strlen

IS_COMPILED = cython.compiled

_MAX_PROPERTIES_BYTES = cython.declare(cython.Py_ssize_t, 32767)
_NAME_END = cython.declare(cython.uchar, 1)
_PAIR_END = cython.declare(cython.uchar, 2)
_BATCH_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 20)
# The digits of a number, and the bytes of one escaped separator.
_MAX_DIGITS = cython.declare(cython.Py_ssize_t, 20)
_ESCAPED_BYTES = cython.declare(cython.Py_ssize_t, 6)
_MAX_FRAME_BYTES = cython.declare(cython.Py_ssize_t, 1 << 30)


# --- Properties -----------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
def _plain_length(text: object) -> cython.Py_ssize_t:
    """The length of a text of printable ASCII without quotes and backslashes; -1 for all else."""
    at: cython.Py_ssize_t
    data: cython.p_const_uchar
    if not PyUnicode_CheckExact(text) or not PyUnicode_IS_ASCII(text):
        return -1
    data = cython.cast(cython.p_const_uchar, PyUnicode_1BYTE_DATA(text))
    for at in range(PyUnicode_GET_LENGTH(text)):
        if data[at] < 32 or data[at] == 34 or data[at] == 92:
            return -1
    return PyUnicode_GET_LENGTH(text)


@cython.cfunc
@cython.exceptval(check=False)
def _properties_length(properties: dict[Any, Any]) -> cython.Py_ssize_t:
    """The length of the encoded properties; -1 if they are not plain, or too long."""
    name_length: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    for name, value in properties.items():
        name_length = _plain_length(name)
        value_length = _plain_length(value)
        if name_length < 0 or value_length < 0:
            return -1
        if name_length and value_length:
            total += name_length + value_length + 2
            if total > _MAX_PROPERTIES_BYTES:
                return -1
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _write_properties(out: cython.p_uchar, properties: dict[Any, Any]) -> cython.p_uchar:
    """Write properties that were measured; returns where they end."""
    name_length: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    for name, value in properties.items():
        name_length = PyUnicode_GET_LENGTH(name)
        value_length = PyUnicode_GET_LENGTH(value)
        if name_length and value_length:
            memcpy(out, PyUnicode_1BYTE_DATA(name), name_length)
            out[name_length] = _NAME_END
            out += name_length + 1
            memcpy(out, PyUnicode_1BYTE_DATA(value), value_length)
            out[value_length] = _PAIR_END
            out += value_length + 1
    return out


def properties_text(properties: object) -> str | None:
    """Properties as the text of a send header; None if they are not plain."""
    length: cython.Py_ssize_t
    if type(properties) is not dict:
        return None
    length = _properties_length(properties)
    if length < 0:
        return None
    text: str = PyUnicode_New(length, 127)
    _write_properties(cython.cast(cython.p_uchar, PyUnicode_1BYTE_DATA(text)), properties)
    return text


def encode_batch_entry(body: bytes, properties: object, flag: object) -> bytes | None:
    """One message of a batch body; None if its properties are not plain or its flag is not 0."""
    body_bytes: cython.Py_ssize_t = len(body)
    length: cython.Py_ssize_t
    size: cython.Py_ssize_t
    entry: bytes
    out: cython.p_uchar
    if type(properties) is not dict or flag != 0 or body_bytes > _MAX_FRAME_BYTES:
        return None
    length = _properties_length(properties)
    if length < 0:
        return None
    size = _BATCH_HEAD_BYTES + body_bytes + 2 + length
    entry = PyBytes_FromStringAndSize(cython.NULL, size)
    out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(entry))
    put32(out, size)
    memset(out + 4, 0, 12)
    put32(out + 16, body_bytes)
    out += _BATCH_HEAD_BYTES
    memcpy(out, PyBytes_AS_STRING(body), body_bytes)
    put16(out + body_bytes, length)
    _write_properties(out + body_bytes + 2, properties)
    return entry


# --- Frames ---------------------------------------------------------------------------------------


@cython.final
@cython.cclass
class SendTemplate:
    """Frames of plain sends to one queue.

    ``parts`` are the JSON header between its variable values: the system flag, the time of birth,
    the flag, the properties and the opaque.
    """

    parts: tuple[bytes, ...]
    parts_bytes: cython.Py_ssize_t
    # Room for a header.
    room: cython.p_uchar
    capacity: cython.Py_ssize_t

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        if len(parts) != 6:
            raise ValueError("the header of a send has 6 parts")
        self.parts = parts
        self.parts_bytes = sum([len(part) for part in parts])

    def __dealloc__(self) -> None:
        free(self.room)

    def frame(
        self,
        body: bytes,
        properties: str,
        sys_flag: cython.int,
        born_timestamp_ms: cython.longlong,
        flag: cython.int,
        opaque: cython.int,
    ) -> bytes | None:
        """The whole frame; None if the properties are not plain."""
        body_bytes: cython.Py_ssize_t = len(body)
        length: cython.Py_ssize_t
        header_bytes: cython.Py_ssize_t
        out: cython.p_uchar
        frame: bytes
        if not PyUnicode_IS_ASCII(properties) or body_bytes > _MAX_FRAME_BYTES:
            return None
        length = PyUnicode_GET_LENGTH(properties)
        if length > _MAX_PROPERTIES_BYTES:
            return None
        self._make_room(self.parts_bytes + 4 * _MAX_DIGITS + _ESCAPED_BYTES * length)
        out = self._add_part(self.room, 0)
        out += write_number(out, sys_flag)
        out = self._add_part(out, 1)
        out += write_number(out, born_timestamp_ms)
        out = self._add_part(out, 2)
        out += write_number(out, flag)
        out = self._add_part(out, 3)
        out = _write_escaped(
            out, cython.cast(cython.p_const_uchar, PyUnicode_1BYTE_DATA(properties)), length
        )
        if out == cython.NULL:
            return None
        out = self._add_part(out, 4)
        out += write_number(out, opaque)
        out = self._add_part(out, 5)
        header_bytes = out - self.room
        frame = PyBytes_FromStringAndSize(cython.NULL, 8 + header_bytes + body_bytes)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frame))
        put32(out, 4 + header_bytes + body_bytes)
        put32(out + 4, header_bytes)
        memcpy(out + 8, self.room, header_bytes)
        memcpy(out + 8 + header_bytes, PyBytes_AS_STRING(body), body_bytes)
        return frame

    @cython.cfunc
    def _make_room(self, size: cython.Py_ssize_t) -> cython.int:
        if size > self.capacity:
            grown: cython.p_uchar = cython.cast(cython.p_uchar, realloc(self.room, size))
            if grown == cython.NULL:
                raise MemoryError
            self.room = grown
            self.capacity = size
        return 0

    @cython.cfunc
    def _add_part(self, out: cython.p_uchar, number: cython.Py_ssize_t) -> cython.p_uchar:
        part: bytes = self.parts[number]
        memcpy(out, PyBytes_AS_STRING(part), len(part))
        return out + len(part)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_escaped(
    out: cython.p_uchar, text: cython.p_const_uchar, length: cython.Py_ssize_t
) -> cython.p_uchar:
    """Write properties as JSON does, without the quotes; NULL if they are not plain."""
    at: cython.Py_ssize_t
    for at in range(length):
        if text[at] >= 32:
            if text[at] == 34 or text[at] == 92:
                return cython.NULL
            out[0] = text[at]
            out += 1
        elif text[at] == _NAME_END or text[at] == _PAIR_END:
            memcpy(out, b"\\u0001", _ESCAPED_BYTES)
            out[5] = 48 + text[at]
            out += _ESCAPED_BYTES
        else:
            return cython.NULL
    return out


# --- Responses ------------------------------------------------------------------------------------


@cython.cfunc
@cython.exceptval(check=False)
def _text_end(
    data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the plain text that begins after the quote at ``at`` ends: at its second quote. -1 if
    there is no plain text."""
    if at >= end or data[at] != 34:
        return -1
    at += 1
    while at < end and data[at] != 34:
        if data[at] < 32 or data[at] > 126 or data[at] == 92:
            return -1
        at += 1
    return at if at < end else -1


@cython.cfunc
@cython.exceptval(check=False)
def _is(
    data: cython.p_const_uchar, length: cython.Py_ssize_t, text: cython.p_const_char
) -> cython.bint:
    return cython.cast(cython.ulonglong, length) == strlen(text) and not memcmp(data, text, length)


@cython.cfunc
@cython.exceptval(check=False)
def _is_number_name(name: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    return _is(name, length, b"code") or _is(name, length, b"opaque") or _is(name, length, b"flag")


@cython.cfunc
def _text(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> object:
    text: str = PyUnicode_New(length, 127)
    memcpy(PyUnicode_1BYTE_DATA(text), data, length)
    return text


@cython.cfunc
@cython.exceptval(check=False)
def _number(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.longlong:
    """A number of at most 18 digits; -1 for anything else."""
    at: cython.Py_ssize_t
    value: cython.longlong = 0
    if not 0 < length <= 18:
        return -1
    for at in range(length):
        if not 48 <= data[at] <= 57:
            return -1
        value = 10 * value + data[at] - 48
    return value


@cython.final
@cython.cclass
class _Response:
    """The header of one response; the texts are those of its fields, None if they are not there."""

    code: cython.longlong
    flag: cython.longlong
    opaque: cython.longlong
    queue_id: cython.longlong
    queue_offset: cython.longlong
    is_traced: cython.bint
    has_message_id: cython.bint
    message_id: object
    transaction_id: object
    region: object
    recall_handle: object

    @cython.cfunc
    def read(
        self, data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Read a JSON header; false if it is not a plain one of a send that succeeded."""
        self.code = self.flag = self.opaque = 0
        self.queue_id = self.queue_offset = -1
        self.is_traced = True
        self.has_message_id = False
        self.message_id = self.transaction_id = self.region = self.recall_handle = None
        if self._read_object(data, at, end, False) != end or self.code or not self.flag & 1:
            return False
        return self.queue_id >= 0 and self.queue_offset >= 0 and self.has_message_id

    @cython.cfunc
    def _read_object(
        self,
        data: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        is_inner: cython.bint,
    ) -> cython.Py_ssize_t:
        """Read the object at ``at``; returns where it ends, -1 if it is not plain. The inner object
        is that of the fields."""
        name: cython.p_const_uchar
        name_bytes: cython.Py_ssize_t
        value_end: cython.Py_ssize_t
        if at >= end or data[at] != 123:  # "{"
            return -1
        while True:
            value_end = _text_end(data, at + 1, end)
            name = data + at + 2
            name_bytes = value_end - at - 2
            at = value_end + 2
            if value_end < 0 or at >= end or data[at - 1] != 58:  # ":"
                return -1
            if is_inner:
                at = self._read_field(name, name_bytes, data, at, end)
            elif _is(name, name_bytes, b"extFields"):
                at = self._read_object(data, at, end, True)
            elif data[at] == 34 and not _is_number_name(name, name_bytes):
                at = _text_end(data, at, end) + 1
            else:
                at = self._read_number(name, name_bytes, data, at, end)
            if not 0 < at < end:
                return -1
            if data[at] == 125:  # "}"
                return at + 1
            if data[at] != 44:  # ","
                return -1

    @cython.cfunc
    def _read_number(
        self,
        name: cython.p_const_uchar,
        name_bytes: cython.Py_ssize_t,
        data: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Read a number outside of the fields; returns where it ends, -1 if it is not plain."""
        start: cython.Py_ssize_t = at
        value: cython.longlong
        while at < end and 48 <= data[at] <= 57:
            at += 1
        value = _number(data + start, at - start)
        # JSON has no leading zeros, and a number that is too long is malformed.
        if not 0 <= value <= 0x7FFFFFFF or (data[start] == 48 and at > start + 1):
            return -1
        if _is(name, name_bytes, b"code"):
            self.code = value
        elif _is(name, name_bytes, b"opaque"):
            self.opaque = value
        elif _is(name, name_bytes, b"flag"):
            self.flag = value
        return at

    @cython.cfunc
    def _read_field(
        self,
        name: cython.p_const_uchar,
        name_bytes: cython.Py_ssize_t,
        data: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Read the text of a field; returns where it ends, -1 if it is not plain."""
        value: cython.p_const_uchar = data + at + 1
        value_bytes: cython.Py_ssize_t = _text_end(data, at, end) - at - 1
        if value_bytes < 0:
            return -1
        if _is(name, name_bytes, b"msgId"):
            self.message_id = _text(value, value_bytes)
            self.has_message_id = True
        elif _is(name, name_bytes, b"queueId"):
            self.queue_id = _number(value, value_bytes)
        elif _is(name, name_bytes, b"queueOffset"):
            self.queue_offset = _number(value, value_bytes)
        elif _is(name, name_bytes, b"transactionId"):
            self.transaction_id = _text(value, value_bytes)
        elif _is(name, name_bytes, b"TRACE_ON"):
            self.is_traced = not _is(value, value_bytes, b"false")
        elif _is(name, name_bytes, b"MSG_REGION"):
            self.region = _text(value, value_bytes)
        elif _is(name, name_bytes, b"recallHandle"):
            self.recall_handle = _text(value, value_bytes)
        elif _is(name, name_bytes, b"batchUniqId"):
            return -1
        return at + value_bytes + 2


def take_results(data: bytes, waiting: dict[int, Any], kind: type[Any]) -> int:
    """Give the plain responses at the beginning of a chunk to their requests.

    ``waiting`` are the requests by opaque, each in a tuple with other things. The ``stored`` of
    those of ``kind`` is called with the broker's message id, the queue's number, the queue offset,
    the transaction id, the region, whether the message is traced, and the recall handle.

    Returns how many bytes were taken; they are whole frames.
    """
    start: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(data))
    total: cython.Py_ssize_t = len(data)
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    response: _Response = _Response()
    while total - at >= 8:
        size = get32(start + at)
        # The header is all of the frame, and its encoding is JSON (0).
        if size < 4 or size > total - at - 4 or get32(start + at + 4) != size - 4:
            break
        if not response.read(start, at + 8, at + 4 + size):
            break
        pending = waiting.get(response.opaque)
        if pending is None:
            break
        request: Any = pending[0]
        if not isinstance(request, kind):
            break
        del waiting[response.opaque]
        at += 4 + size
        request.stored(
            response.message_id,
            response.queue_id,
            response.queue_offset,
            response.transaction_id,
            response.region,
            response.is_traced,
            response.recall_handle,
        )
    return at
