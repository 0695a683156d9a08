# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Pulls, compiled: the request from its frame, the records for it, the frame of its answer.

``read_pull`` reads a plain pull only: PULL_MESSAGE or LITE_PULL_MESSAGE with the fields of
``_field_of``, ASCII text without escapes, decimal numbers, no field twice, and in JSON no spaces.
Its ``terms`` are equal for all pulls that a consumer makes of a queue: what they ask for is decided
once (``goddard.broker.lane.pulls``).
``gather`` finds the records of queue entries, and ``Gathered.answer`` copies them from the mapped
log into the answer. Everything else is left to ``goddard.broker.consuming.pull`` and
``goddard.store.log.reading``, which do the same in Python for every request; tests compare the two.

Every length is checked before it is used. Used by one thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import cython

from goddard.protocol.codes import CURRENT_VERSION

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.goddard.core.viewtypes import Bytes, Hashes
    from cython.cimports.libc.stdlib import free, malloc
    from cython.cimports.libc.string import memcmp, memcpy

IS_COMPILED = cython.compiled

_PULL = cython.declare(cython.int, 11)
_LITE_PULL = cython.declare(cython.int, 361)
_MAX_HEADER_BYTES = cython.declare(cython.Py_ssize_t, 1 << 20)
# code, language, version, opaque, flag, length of the remark, length of the fields
_BINARY_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 21)
# Eighteen digits fit 64 bits whatever they are.
_MAX_DIGITS = cython.declare(cython.Py_ssize_t, 18)

_QUOTE = cython.declare(cython.uchar, 34)
_BACKSLASH = cython.declare(cython.uchar, 92)
_COMMA = cython.declare(cython.uchar, 44)
_COLON = cython.declare(cython.uchar, 58)
_MINUS = cython.declare(cython.uchar, 45)
_ZERO = cython.declare(cython.uchar, 48)
_OPEN = cython.declare(cython.uchar, 123)
_CLOSE = cython.declare(cython.uchar, 125)

_HALF_INTS = cython.declare(cython.ulonglong, 1 << 31)

# Numbers of the fields. A bit of a seen mask is 1 << number.
_CONSUMER_GROUP = cython.declare(cython.int, 0)
_TOPIC = cython.declare(cython.int, 1)
_QUEUE_ID = cython.declare(cython.int, 2)
_QUEUE_OFFSET = cython.declare(cython.int, 3)
_MAX_MSG_NUMS = cython.declare(cython.int, 4)
_SYS_FLAG = cython.declare(cython.int, 5)
_COMMIT_OFFSET = cython.declare(cython.int, 6)
_SUSPEND_TIMEOUT = cython.declare(cython.int, 7)
_SUB_VERSION = cython.declare(cython.int, 8)
_SUBSCRIPTION = cython.declare(cython.int, 9)
_EXPRESSION_TYPE = cython.declare(cython.int, 10)
_MAX_MSG_BYTES = cython.declare(cython.int, 11)
_BROKER_NAME = cython.declare(cython.int, 12)
_REQUEST_TYPE = cython.declare(cython.int, 13)
_FIELD_COUNT = cython.declare(cython.int, 14)
_REQUIRED = cython.declare(cython.int, (1 << 9) - 1)
# Those that differ from pull to pull, or mean nothing here: offsets, time, names for proxies.
_NO_TERMS = cython.declare(cython.int, 1 << 3 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13)
# Of a JSON header.
_CODE = cython.declare(cython.int, 0)
_OPAQUE = cython.declare(cython.int, 1)
_FLAG = cython.declare(cython.int, 2)
_VERSION = cython.declare(cython.int, 3)
_LANGUAGE = cython.declare(cython.int, 4)
_REMARK = cython.declare(cython.int, 5)
_ENCODING = cython.declare(cython.int, 6)
_EXT_FIELDS = cython.declare(cython.int, 7)
_REQUIRED_IN_JSON = cython.declare(cython.int, 1 << 0 | 1 << 1 | 1 << 7)

_ENTRY_BYTES = cython.declare(cython.Py_ssize_t, 20)
_BLANK_SIZE = cython.declare(cython.longlong, 0x7FFFFFFF)
_NO_CODES = array("I")
_SPAN_BYTES = cython.declare(cython.Py_ssize_t, 24)

_ANSWER_VERSION = cython.declare(cython.longlong, CURRENT_VERSION)
_MAX_REMARK_BYTES = cython.declare(cython.Py_ssize_t, 64)
_MAX_BODY_BYTES = cython.declare(cython.longlong, 2**31 - 1 - 1024)


@cython.final
@cython.cclass
class Pull:
    """A plain pull. The attributes are the fields of ``PullRequest``.

    ``terms``: the code and all fields but offsets and times, as bytes.
    """

    terms = cython.declare(bytes, visibility="readonly")
    code = cython.declare(cython.int, visibility="readonly")
    opaque = cython.declare(cython.int, visibility="readonly")
    is_json = cython.declare(cython.bint, visibility="readonly")
    queue_id = cython.declare(cython.int, visibility="readonly")
    queue_offset = cython.declare(cython.longlong, visibility="readonly")
    max_msg_nums = cython.declare(cython.int, visibility="readonly")
    sys_flag = cython.declare(cython.int, visibility="readonly")
    commit_offset = cython.declare(cython.longlong, visibility="readonly")
    suspend_timeout_millis = cython.declare(cython.longlong, visibility="readonly")
    sub_version = cython.declare(cython.longlong, visibility="readonly")
    max_msg_bytes = cython.declare("object", visibility="readonly")
    # Where the value of each field begins in the frame, and its length; then in the terms.
    _starts = cython.declare(cython.longlong[14])
    _lengths = cython.declare(cython.longlong[14])
    _seen = cython.declare(cython.int)

    @cython.cfunc
    @cython.exceptval(check=False)
    def read_header(self, data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.bint:
        """Find code, opaque and fields in a frame without its length word."""
        length: cython.Py_ssize_t
        if size < 4:
            return False
        length = _get32(data) & 0xFFFFFF
        if length != size - 4 or length > _MAX_HEADER_BYTES:
            return False
        self._seen = 0
        if data[0] == 0:
            self.is_json = True
            return self._read_json(data, size)
        if data[0] == 1:
            self.is_json = False
            return self._read_binary(data, size)
        return False

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read_binary(self, data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t = 4 + _BINARY_HEAD_BYTES
        length: cython.Py_ssize_t
        field: cython.int
        if size < at:
            return False
        self.code = data[4] << 8 | data[5]
        self.opaque = _get32(data + 9)
        if not _is_pull_code(self.code):
            return False
        # The flag, the length of the remark, the length of the fields.
        if _get32(data + 13) != 0 or _get32(data + 17) != 0 or _get32(data + 21) != size - at:
            return False
        while at < size:
            if size - at < 6:
                return False
            length = data[at] << 8 | data[at + 1]
            if length > size - at - 6:
                return False
            field = _field_of(data + at + 2, length)
            at += 2 + length
            length = _get32(data + at)
            at += 4
            if length < 0 or length > size - at or not _is_ascii(data + at, length):
                return False
            if not self._keep(field, at, length):
                return False
            at += length
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read_json(self, data: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t = 5
        end: cython.Py_ssize_t
        name: cython.int
        seen: cython.int = 0
        if size < 6 or data[4] != _OPEN:
            return False
        while True:
            end = _text_end(data, at, size)
            if end < 0:
                return False
            name = _top_name(data + at + 1, end - at - 2)
            if name < 0 or seen & (1 << name) or end >= size or data[end] != _COLON:
                return False
            seen |= 1 << name
            if name == _EXT_FIELDS:
                at = self._read_fields(data, end + 1, size)
            elif name >= _LANGUAGE:
                at = _text_end(data, end + 1, size)
            else:
                at = self._read_number(name, data, end + 1, size)
            if at < 0 or at >= size:
                return False
            if data[at] == _CLOSE:
                return at + 1 == size and seen & _REQUIRED_IN_JSON == _REQUIRED_IN_JSON
            if data[at] != _COMMA:
                return False
            at += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read_number(
        self,
        name: cython.int,
        data: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Read a number of the header's top; returns its end, -1 if the pull is not plain."""
        end: cython.Py_ssize_t = at
        value: cython.longlong
        while end < size and (data[end] == _MINUS or _is_digit(data[end])):
            end += 1
        if not _is_number(data + at, end - at):
            return -1
        value = _number(data + at, end - at)
        if not _is_int(value):
            return -1
        if name == _CODE:
            if not _is_pull_code(value):
                return -1
            self.code = value
        elif name == _OPAQUE:
            self.opaque = value
        elif name == _FLAG and value != 0:
            return -1
        return end

    @cython.cfunc
    @cython.exceptval(check=False)
    def _read_fields(
        self, data: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read the object of a JSON header's fields; returns its end, -1 if it is not plain."""
        end: cython.Py_ssize_t
        field: cython.int
        if at >= size or data[at] != _OPEN:
            return -1
        at += 1
        while True:
            end = _text_end(data, at, size)
            if end < 0 or end >= size or data[end] != _COLON:
                return -1
            field = _field_of(data + at + 1, end - at - 2)
            at = end + 1
            end = _text_end(data, at, size)
            if end < 0 or end >= size or not self._keep(field, at + 1, end - at - 2):
                return -1
            if data[end] == _CLOSE:
                return end + 1
            if data[end] != _COMMA:
                return -1
            at = end + 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _keep(
        self, field: cython.int, start: cython.Py_ssize_t, length: cython.Py_ssize_t
    ) -> cython.bint:
        """Note where a field's value is; False for one that is unknown or there already."""
        if field < 0 or self._seen & (1 << field):
            return False
        self._seen |= 1 << field
        self._starts[field] = start
        self._lengths[field] = length
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def read_numbers(self, data: cython.p_const_uchar) -> cython.bint:
        field: cython.int
        if self._seen & _REQUIRED != _REQUIRED:
            return False
        for field in range(_QUEUE_ID, _SUB_VERSION + 1):
            if not self._is_plain_number(data, field):
                return False
        queue_id: cython.longlong = self._value(data, _QUEUE_ID)
        max_msg_nums: cython.longlong = self._value(data, _MAX_MSG_NUMS)
        sys_flag: cython.longlong = self._value(data, _SYS_FLAG)
        if not (_is_int(queue_id) and _is_int(max_msg_nums) and _is_int(sys_flag)):
            return False
        self.queue_id = queue_id
        self.max_msg_nums = max_msg_nums
        self.sys_flag = sys_flag
        self.queue_offset = self._value(data, _QUEUE_OFFSET)
        self.commit_offset = self._value(data, _COMMIT_OFFSET)
        self.suspend_timeout_millis = self._value(data, _SUSPEND_TIMEOUT)
        self.sub_version = self._value(data, _SUB_VERSION)
        return True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _is_plain_number(self, data: cython.p_const_uchar, field: cython.int) -> cython.bint:
        return _is_number(data + self._starts[field], self._lengths[field])

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _value(self, data: cython.p_const_uchar, field: cython.int) -> cython.longlong:
        return _number(data + self._starts[field], self._lengths[field])

    @cython.cfunc
    def keep_terms(self, data: cython.p_const_uchar) -> cython.bint:
        """Copy the terms. Behind the code and which fields there are, each has its length first."""
        field: cython.int
        value: cython.longlong
        size: cython.Py_ssize_t = 8
        at: cython.Py_ssize_t = 8
        self.max_msg_bytes = None
        if self._seen & (1 << _MAX_MSG_BYTES):
            if not self._is_plain_number(data, _MAX_MSG_BYTES):
                return False
            value = self._value(data, _MAX_MSG_BYTES)
            if not _is_int(value):
                return False
            self.max_msg_bytes = value
        kept: cython.int = self._seen & ~_NO_TERMS
        for field in range(_FIELD_COUNT):
            if kept & (1 << field):
                size += 4 + self._lengths[field]
        terms: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        target: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(terms))
        _put32(target, 0, self.code)
        _put32(target, 4, kept)
        for field in range(_FIELD_COUNT):
            if kept & (1 << field):
                _put32(target, at, self._lengths[field])
                at = _put(target, at + 4, data + self._starts[field], self._lengths[field])
                self._starts[field] = at - self._lengths[field]
        self.terms = terms
        return True

    @cython.cfunc
    def _text(self, field: cython.int) -> Any:
        """The text of a field that belongs to the terms; None if it is not there."""
        if not self._seen & (1 << field):
            return None
        start: cython.p_const_char = (
            cython.cast(cython.p_const_char, self.terms) + self._starts[field]
        )
        text: str = start[: self._lengths[field]].decode("ascii")
        return text

    @property
    def consumer_group(self) -> str:
        text: str = self._text(_CONSUMER_GROUP)
        return text

    @property
    def topic(self) -> str:
        text: str = self._text(_TOPIC)
        return text

    @property
    def subscription(self) -> str | None:
        text: str | None = self._text(_SUBSCRIPTION)
        return text

    @property
    def expression_type(self) -> str | None:
        text: str | None = self._text(_EXPRESSION_TYPE)
        return text


def read_pull(frame: Bytes) -> Pull | None:
    """The plain pull in a frame, given without its length word; None for any other frame."""
    size: cython.Py_ssize_t = frame.shape[0]
    if size < 4:
        return None
    data: cython.p_const_uchar = cython.address(frame[0])
    # Most frames that are no pulls end here.
    if data[0] == 1 and (size < 6 or not _is_pull_code(data[4] << 8 | data[5])):
        return None
    pull: Pull = Pull.__new__(Pull)
    if pull.read_header(data, size) and pull.read_numbers(data) and pull.keep_terms(data):
        return pull
    return None


@cython.final
@cython.cclass
class Gathered:
    """The records that a pull gets, still in the log.

    ``status``, ``min_offset`` and ``max_offset`` are the caller's; ``count`` is the number of
    records, ``next_offset`` the queue offset behind the last entry that was looked at,
    ``last_physical_offset`` that of the last byte of the last record.
    """

    status = cython.declare("object", visibility="public")
    min_offset = cython.declare(cython.longlong, visibility="public")
    max_offset = cython.declare(cython.longlong, visibility="public")
    next_offset = cython.declare(cython.longlong, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    total_bytes = cython.declare(cython.longlong, visibility="readonly")
    first_physical_offset = cython.declare(cython.longlong, visibility="readonly")
    last_physical_offset = cython.declare(cython.longlong, visibility="readonly")
    is_slave_suggested = cython.declare(cython.bint, visibility="readonly")
    # Segments as memoryviews, and for each run of neighbours: which one, start and length in it.
    views = cython.declare(list)
    spans = cython.declare(cython.p_longlong)
    span_count = cython.declare(cython.Py_ssize_t)
    # The part of the log that the last view shows.
    base = cython.declare(cython.longlong)
    limit = cython.declare(cython.longlong)

    def __dealloc__(self) -> None:
        free(self.spans)

    @cython.cfunc
    def reserve(self, count: cython.Py_ssize_t) -> cython.bint:
        """Make room for the spans of ``count`` records, one at least."""
        self.views = []
        self.spans = cython.cast(cython.p_longlong, malloc(count * _SPAN_BYTES))
        if self.spans == cython.NULL:
            raise MemoryError
        return True

    @cython.cfunc
    def add(
        self,
        offset: cython.longlong,
        size: cython.longlong,
        end_offset: cython.longlong,
        find_segment: Callable[[int], Any],
    ) -> cython.bint:
        """Add the record at an offset of the log; False if it is not within one segment."""
        view: Bytes
        last: cython.Py_ssize_t = 3 * (self.span_count - 1)
        start: cython.longlong
        if offset < self.base or offset + size > self.limit:
            segment = find_segment(offset)
            if segment is None:
                return False
            view = segment.view
            self.base = segment.base_offset
            self.limit = min(self.base + view.shape[0], end_offset)
            if offset < self.base or offset + size > self.limit:
                return False
            self.views.append(segment.view)
        start = offset - self.base
        if self.count == 0:
            self.first_physical_offset = offset
        self.last_physical_offset = offset + size - 1
        self.count += 1
        self.total_bytes += size
        if (
            last >= 0
            and self.spans[last] == len(self.views) - 1
            and self.spans[last + 1] + self.spans[last + 2] == start
        ):
            self.spans[last + 2] += size
        else:
            self.spans[last + 3] = len(self.views) - 1
            self.spans[last + 4] = start
            self.spans[last + 5] = size
            self.span_count += 1
        return True

    def answer(
        self,
        is_json: cython.bint,
        opaque: cython.int,
        code: cython.int,
        remark: bytes,
        broker_id: cython.longlong,
        topic_sys_flag: cython.longlong,
        group_sys_flag: cython.longlong,
    ) -> bytes:
        """The frame of the answer; ``remark`` is plain ASCII."""
        # Its names have less than 250 bytes, its nine numbers 20 at most, and the remark 64.
        room = cython.declare(cython.longlong[80])
        header: cython.p_uchar = cython.cast(cython.p_uchar, room)
        numbers = cython.declare(cython.longlong[6])
        size: cython.Py_ssize_t
        if len(remark) > _MAX_REMARK_BYTES or self.total_bytes > _MAX_BODY_BYTES:
            raise ValueError(f"no answer has {self.total_bytes} bytes and the remark {remark!r}")
        numbers[0] = broker_id
        numbers[1] = self.next_offset
        numbers[2] = self.min_offset
        numbers[3] = self.max_offset
        numbers[4] = topic_sys_flag
        numbers[5] = group_sys_flag
        if is_json:
            size = _write_json(header, code, opaque, remark, len(remark), numbers)
        else:
            size = _write_binary(header, code, opaque, remark, len(remark), numbers)
        _put32(header, 0, size - 4 + self.total_bytes)
        frame: bytes = PyBytes_FromStringAndSize(cython.NULL, size + self.total_bytes)
        target: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(frame))
        memcpy(target, header, size)
        self._copy(target + size)
        return frame

    @cython.cfunc
    def _copy(self, target: cython.p_uchar) -> cython.int:
        """Copy the records; ``target`` has room for ``total_bytes``."""
        number: cython.Py_ssize_t
        start: cython.longlong
        size: cython.longlong
        current: cython.longlong = -1
        room: cython.longlong = self.total_bytes
        view: Bytes
        for number in range(self.span_count):
            start = self.spans[3 * number + 1]
            size = self.spans[3 * number + 2]
            if self.spans[3 * number] != current:
                current = self.spans[3 * number]
                view = self.views[current]
            if start < 0 or size <= 0 or size > room or start + size > view.shape[0]:
                raise ValueError(f"{size} bytes at {start} are outside of the segment")
            memcpy(target, cython.address(view[start]), size)
            target += size
            room -= size
        return 0


def gather(
    entries: Bytes,
    queue_offset: cython.longlong,
    end_offset: cython.longlong,
    max_count: cython.longlong,
    max_bytes: cython.longlong,
    limits: tuple[int, int, int, int, int],
    codes: Any,
    find_segment: Callable[[int], Any],
) -> Gathered | None:
    """Find the records of queue entries until a limit of Java's store is reached.

    ``entries`` begin at ``queue_offset``; the log ends at ``end_offset``. ``limits`` are how far
    behind the end the memory reaches, then bytes and messages for a pull from memory, and for one
    from disk. ``codes`` are the sorted hashes of the wanted tags, None for all messages.
    ``find_segment`` returns the segment at an offset of the log. None when an entry is found that
    is not of a whole record within one segment.
    """
    memory_bytes: cython.longlong = limits[0]
    bytes_in_memory: cython.longlong = min(max_bytes, cython.cast(cython.longlong, limits[1]))
    count_in_memory: cython.longlong = min(max_count, cython.cast(cython.longlong, limits[2]))
    bytes_on_disk: cython.longlong = min(max_bytes, cython.cast(cython.longlong, limits[3]))
    count_on_disk: cython.longlong = min(max_count, cython.cast(cython.longlong, limits[4]))
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t = entries.shape[0] // _ENTRY_BYTES
    entry: cython.p_const_uchar
    offset: cython.longlong
    size: cython.longlong
    last_offset: cython.longlong = end_offset
    is_filtered: cython.bint = codes is not None
    wanted: Hashes = codes if is_filtered else _NO_CODES
    is_on_disk: cython.bint
    found: Gathered = Gathered.__new__(Gathered)
    found.next_offset = queue_offset
    found.reserve(count + 1)
    for number in range(count):
        entry = cython.address(entries[number * _ENTRY_BYTES])
        offset = _get64(entry)
        size = _get32(entry + 8)
        if size != _BLANK_SIZE:
            if offset < 0:
                return None
            if found.count:
                is_on_disk = end_offset - offset > memory_bytes
                if found.count >= (count_on_disk if is_on_disk else count_in_memory):
                    break
                if found.total_bytes + size > (bytes_on_disk if is_on_disk else bytes_in_memory):
                    break
            if size <= 0 or offset > end_offset - size:
                return None
            last_offset = offset
            if (not is_filtered or _has_code(wanted, _get32(entry + 16))) and not found.add(
                offset, size, end_offset, find_segment
            ):
                return None
        found.next_offset += 1
    found.is_slave_suggested = end_offset - last_offset > memory_bytes
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.boundscheck(False)  # low and high stay within the codes
def _has_code(codes: Hashes, code: cython.uint) -> cython.bint:
    low: cython.Py_ssize_t = 0
    high: cython.Py_ssize_t = codes.shape[0]
    middle: cython.Py_ssize_t
    while low < high:
        middle = (low + high) // 2
        if codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    if low == codes.shape[0]:
        return False
    found: cython.uint = codes[low]
    return found == code


# --- The header of an answer ----------------------------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_json(
    header: cython.p_uchar,
    code: cython.int,
    opaque: cython.int,
    remark: cython.p_const_uchar,
    remark_bytes: cython.Py_ssize_t,
    numbers: cython.p_longlong,
) -> cython.Py_ssize_t:
    """Write a header with the keys in Java's order; returns its end, 8 bytes before it included."""
    at: cython.Py_ssize_t = 8
    at = _put(header, at, b'{"code":', 8)
    at = _put_number(header, at, code)
    at = _put(header, at, b',"extFields":{"suggestWhichBrokerId":"', 38)
    at = _put_number(header, at, numbers[0])
    at = _put(header, at, b'","nextBeginOffset":"', 21)
    at = _put_number(header, at, numbers[1])
    at = _put(header, at, b'","minOffset":"', 15)
    at = _put_number(header, at, numbers[2])
    at = _put(header, at, b'","maxOffset":"', 15)
    at = _put_number(header, at, numbers[3])
    at = _put(header, at, b'","topicSysFlag":"', 18)
    at = _put_number(header, at, numbers[4])
    at = _put(header, at, b'","groupSysFlag":"', 18)
    at = _put_number(header, at, numbers[5])
    at = _put(header, at, b'"},"flag":1,"language":"JAVA","opaque":', 39)
    at = _put_number(header, at, opaque)
    at = _put(header, at, b',"remark":"', 11)
    at = _put(header, at, remark, remark_bytes)
    at = _put(header, at, b'","serializeTypeCurrentRPC":"JSON","version":', 45)
    at = _put_number(header, at, _ANSWER_VERSION)
    at = _put(header, at, b"}", 1)
    _put32(header, 4, at - 8)
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_binary(
    header: cython.p_uchar,
    code: cython.int,
    opaque: cython.int,
    remark: cython.p_const_uchar,
    remark_bytes: cython.Py_ssize_t,
    numbers: cython.p_longlong,
) -> cython.Py_ssize_t:
    """As ``_write_json``, in the binary encoding."""
    at: cython.Py_ssize_t
    fields_at: cython.Py_ssize_t
    _put16(header, 8, code)
    header[10] = 0  # the language, Java
    _put16(header, 11, _ANSWER_VERSION)
    _put32(header, 13, opaque)
    _put32(header, 17, 1)  # the flag of a response
    _put32(header, 21, remark_bytes)
    fields_at = _put(header, 25, remark, remark_bytes) + 4
    at = _put_field(header, fields_at, b"suggestWhichBrokerId", 20, numbers[0])
    at = _put_field(header, at, b"nextBeginOffset", 15, numbers[1])
    at = _put_field(header, at, b"minOffset", 9, numbers[2])
    at = _put_field(header, at, b"maxOffset", 9, numbers[3])
    at = _put_field(header, at, b"topicSysFlag", 12, numbers[4])
    at = _put_field(header, at, b"groupSysFlag", 12, numbers[5])
    _put32(header, fields_at - 4, at - fields_at)
    _put32(header, 4, 1 << 24 | (at - 8))
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_field(
    target: cython.p_uchar,
    at: cython.Py_ssize_t,
    name: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    number: cython.longlong,
) -> cython.Py_ssize_t:
    end: cython.Py_ssize_t
    _put16(target, at, length)
    at = _put(target, at + 2, name, length)
    end = _put_number(target, at + 4, number)
    _put32(target, at, end - at - 4)
    return end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    target: cython.p_uchar,
    at: cython.Py_ssize_t,
    text: cython.p_const_uchar,
    length: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    memcpy(target + at, text, length)
    return at + length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_number(
    target: cython.p_uchar, at: cython.Py_ssize_t, number: cython.longlong
) -> cython.Py_ssize_t:
    """Write a number in decimal, 20 bytes at most."""
    room = cython.declare(cython.longlong[3])  # for 20 digits
    digits: cython.p_uchar = cython.cast(cython.p_uchar, room)
    left: cython.ulonglong = number
    count: cython.Py_ssize_t = 0
    if number < 0:
        target[at] = _MINUS
        at += 1
        left = 0 - left
    while True:
        digits[count] = _ZERO + left % 10
        left //= 10
        count += 1
        if left == 0:
            break
    while count:
        count -= 1
        target[at] = digits[count]
        at += 1
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put16(target: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    target[at] = (value >> 8) & 0xFF
    target[at + 1] = value & 0xFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put32(target: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    target[at] = (value >> 24) & 0xFF
    target[at + 1] = (value >> 16) & 0xFF
    target[at + 2] = (value >> 8) & 0xFF
    target[at + 3] = value & 0xFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_pull_code(code: cython.int) -> cython.bint:
    return code in (_PULL, _LITE_PULL)


# --- Texts and numbers ----------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_digit(byte: cython.uchar) -> cython.bint:
    return 48 <= byte <= 57


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_int(value: cython.ulonglong) -> cython.bint:
    """Whether a number fits 32 bits; it is taken as unsigned, so that the sum wraps."""
    return (value + _HALF_INTS) >> 32 == 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_number(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    """Whether a text is a decimal number without leading zeros, of 18 digits at most."""
    at: cython.Py_ssize_t = 0
    if length > 0 and text[0] == _MINUS:
        at = 1
    if at == length or length - at > _MAX_DIGITS or (text[at] == _ZERO and length > 1):
        return False
    while at < length and _is_digit(text[at]):
        at += 1
    return at == length


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _number(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.longlong:
    """The value of a text for which ``_is_number`` is true."""
    at: cython.Py_ssize_t
    first: cython.Py_ssize_t = 1 if text[0] == _MINUS else 0
    value: cython.longlong = 0
    for at in range(first, length):
        value = value * 10 + (text[at] - _ZERO)
    return -value if first else value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_ascii(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    at: cython.Py_ssize_t
    bits: cython.uchar = 0
    for at in range(length):
        bits |= text[at]
    return bits < 0x80


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _text_end(
    data: cython.p_const_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Behind the closing quote of the JSON string at ``at``; -1 if it is not plain."""
    byte: cython.uchar
    if at >= size or data[at] != _QUOTE:
        return -1
    at += 1
    while at < size:
        byte = data[at]
        at += 1
        if byte == _QUOTE:
            return at
        if byte < 32 or byte > 126 or byte == _BACKSLASH:
            return -1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get32(data: cython.p_const_uchar) -> cython.int:
    value: cython.uint = data[0]
    value = value << 8 | data[1]
    value = value << 8 | data[2]
    value = value << 8 | data[3]
    signed: cython.int = value
    return signed


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _get64(data: cython.p_const_uchar) -> cython.longlong:
    value: cython.ulonglong = 0
    at: cython.Py_ssize_t
    for at in range(8):
        value = value << 8 | data[at]
    signed: cython.longlong = value
    return signed


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _field_of(name: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.int:
    """The number of a field that a plain pull may have; -1 for any other."""
    if length == 5:
        if memcmp(name, b"topic", 5) == 0:
            return _TOPIC
        return _BROKER_NAME if memcmp(name, b"bname", 5) == 0 else -1
    if length == 7:
        if memcmp(name, b"queueId", 7) == 0:
            return _QUEUE_ID
        return _SYS_FLAG if memcmp(name, b"sysFlag", 7) == 0 else -1
    if length == 10:
        if memcmp(name, b"maxMsgNums", 10) == 0:
            return _MAX_MSG_NUMS
        return _SUB_VERSION if memcmp(name, b"subVersion", 10) == 0 else -1
    if length == 11:
        if memcmp(name, b"queueOffset", 11) == 0:
            return _QUEUE_OFFSET
        return _MAX_MSG_BYTES if memcmp(name, b"maxMsgBytes", 11) == 0 else -1
    if length == 12:
        if memcmp(name, b"commitOffset", 12) == 0:
            return _COMMIT_OFFSET
        return _SUBSCRIPTION if memcmp(name, b"subscription", 12) == 0 else -1
    if length == 13:
        return _CONSUMER_GROUP if memcmp(name, b"consumerGroup", 13) == 0 else -1
    if length == 14:
        return _EXPRESSION_TYPE if memcmp(name, b"expressionType", 14) == 0 else -1
    if length == 20:
        return _SUSPEND_TIMEOUT if memcmp(name, b"suspendTimeoutMillis", 20) == 0 else -1
    # Of lite consumers in Java.
    return _REQUEST_TYPE if length == 4 and memcmp(name, b"ReqT", 4) == 0 else -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _top_name(name: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.int:
    if length == 4:
        if memcmp(name, b"code", 4) == 0:
            return _CODE
        return _FLAG if memcmp(name, b"flag", 4) == 0 else -1
    if length == 6:
        if memcmp(name, b"opaque", 6) == 0:
            return _OPAQUE
        return _REMARK if memcmp(name, b"remark", 6) == 0 else -1
    if length == 7:
        return _VERSION if memcmp(name, b"version", 7) == 0 else -1
    if length == 8:
        return _LANGUAGE if memcmp(name, b"language", 8) == 0 else -1
    if length == 9:
        return _EXT_FIELDS if memcmp(name, b"extFields", 9) == 0 else -1
    if length == 23:
        return _ENCODING if memcmp(name, b"serializeTypeCurrentRPC", 23) == 0 else -1
    return -1
