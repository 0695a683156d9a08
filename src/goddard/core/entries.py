# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The entries of batch requests, compiled: rows of Arrow buffers become the bodies of requests.

``goddard.spark.writing.encode`` describes the entries, ``content_hash`` the hashes in their keys.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.goddard.core.viewtypes import Bytes, Numbers, Offsets
    from cython.cimports.libc.string import memcpy, memmove, memset

IS_COMPILED = cython.compiled

# Size, magic, checksum, flag and body length; the length of the properties follows the body.
_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 20)
_MAX_PROPERTIES_BYTES = cython.declare(cython.Py_ssize_t, 32_767)
# A signed number of 64 bits, a hyphen, a hash, and the end of the pair.
_ROW_BYTES = cython.declare(cython.Py_ssize_t, 20 + 1 + 16 + 1)
_MAX_COLUMN_BYTES = cython.declare(cython.Py_ssize_t, 2**31 - 1)
_PAIR_END = cython.declare(cython.uchar, 2)


def encode_entries(
    body_offsets: Offsets,
    bodies: Bytes,
    property_offsets: Offsets,
    properties: Bytes,
    rows: Numbers,
    row_prefix: bytes,
    id_prefix: bytes,
    first_id: cython.int,
    tail: bytes,
) -> tuple[bytes, bytes, int] | None:
    """One entry for each row of ``bodies``: the offsets, the bytes and the length of a column.

    The properties of an entry are those of its row (``properties``), its key and its id, and
    ``tail``. The key is ``row_prefix``, the number in ``rows``, and the hash of body and
    properties; with an empty ``row_prefix`` there is no key. The id is ``id_prefix`` and a counter.
    With a single element in ``property_offsets``, all rows have the whole of ``properties``.

    None if an entry has more properties than a message may have. ValueError for invalid offsets.
    """
    count: cython.Py_ssize_t = body_offsets.shape[0] - 1
    row: cython.Py_ssize_t
    has_shared: cython.bint = property_offsets.shape[0] == 1
    has_keys: cython.bint = len(row_prefix) > 0
    is_valid: cython.bint = count >= 0 and rows.shape[0] == count
    is_valid &= has_shared or property_offsets.shape[0] == count + 1
    is_valid = is_valid and _are_valid(body_offsets, bodies.shape[0])
    is_valid = is_valid and (has_shared or _are_valid(property_offsets, properties.shape[0]))
    if not is_valid:
        raise ValueError("the offsets do not fit to the values")
    extra: cython.Py_ssize_t = _HEAD_BYTES + 2 + len(id_prefix) + 5 + len(tail)
    extra += len(row_prefix) + _ROW_BYTES
    room: cython.longlong = body_offsets[count] - body_offsets[0] + count * extra
    if has_shared:
        room += count * properties.shape[0]
    else:
        room += property_offsets[count] - property_offsets[0]
    if room > _MAX_COLUMN_BYTES:
        raise ValueError(f"{count} entries need {room} bytes")
    offsets: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * (count + 1))
    ends: cython.p_int = cython.cast(cython.p_int, PyBytes_AS_STRING(offsets))
    values: bytes = PyBytes_FromStringAndSize(cython.NULL, room)
    start: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(values))
    out: cython.p_uchar = start
    at: cython.p_uchar
    own: cython.p_uchar
    body_bytes: cython.Py_ssize_t
    own_bytes: cython.Py_ssize_t
    own_at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    content_hash: cython.ulonglong = 0
    row_text: cython.p_const_uchar = row_prefix
    row_text_bytes: cython.Py_ssize_t = len(row_prefix)
    id_text: cython.p_const_uchar = id_prefix
    id_text_bytes: cython.Py_ssize_t = len(id_prefix)
    tail_text: cython.p_const_uchar = tail
    tail_bytes: cython.Py_ssize_t = len(tail)
    ends[0] = 0
    for row in range(count):
        body_bytes = body_offsets[row + 1] - body_offsets[row]
        if has_shared:
            own_bytes = properties.shape[0]
        else:
            own_at = property_offsets[row]
            own_bytes = property_offsets[row + 1] - own_at
        memset(out, 0, 16)
        _put32(out + 16, body_bytes)
        at = out + _HEAD_BYTES
        if body_bytes:
            memcpy(at, cython.address(bodies[body_offsets[row]]), body_bytes)
        at += body_bytes
        # The hash covers the length of the body, the body and the properties, without a gap.
        own = at
        if own_bytes:
            memcpy(own, cython.address(properties[own_at]), own_bytes)
        if has_keys:
            content_hash = _hash(out + 16, 4 + body_bytes + own_bytes)
        memmove(at + 2, own, own_bytes)
        at += 2 + own_bytes
        if has_keys:
            memcpy(at, row_text, row_text_bytes)
            at += row_text_bytes
            at += _write_number(at, rows[row])
            at[0] = 45  # a hyphen
            _write_hex(at + 1, content_hash, 16)
            at[17] = _PAIR_END
            at += 18
        memcpy(at, id_text, id_text_bytes)
        at += id_text_bytes
        _write_hex(at, (first_id + row) & 0xFFFF, 4)
        at[4] = _PAIR_END
        at += 5
        memcpy(at, tail_text, tail_bytes)
        at += tail_bytes
        size = at - own - 2
        if size > _MAX_PROPERTIES_BYTES:
            return None
        own[0] = size >> 8
        own[1] = size & 255
        _put32(out, at - out)
        out = at
        ends[row + 1] = out - start
    return offsets, values, out - start


@cython.cfunc
def _are_valid(offsets: Offsets, size: cython.Py_ssize_t) -> cython.bint:
    """Whether offsets are in order, and within a buffer of ``size`` bytes."""
    number: cython.Py_ssize_t
    last: cython.Py_ssize_t = 0
    for number in range(offsets.shape[0]):
        if offsets[number] < last:
            return False
        last = offsets[number]
    return last <= size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(content: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.ulonglong:
    """``content_hash.content_hashes`` of one row, of at least eight bytes."""
    total: cython.ulonglong = 0
    place: cython.ulonglong = 0
    step: cython.ulonglong = 0x9E3779B97F4A7C15
    at: cython.Py_ssize_t = 0
    while at < length:
        place += step
        # The last word ends with the row, so it may overlap the word before it.
        total += _mix(_get64_little(content + min(at, length - 8)) + _mix(place))
        at += 8
    return _mix(total + length)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _mix(value: cython.ulonglong) -> cython.ulonglong:
    """The finalizer of splitmix64."""
    first: cython.ulonglong = 0xBF58476D1CE4E5B9
    second: cython.ulonglong = 0x94D049BB133111EB
    value = (value ^ (value >> 30)) * first
    value = (value ^ (value >> 27)) * second
    return value ^ (value >> 31)


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _get64_little(data: cython.p_const_uchar) -> cython.ulonglong:
    value: cython.ulonglong = 0
    number: cython.int
    for number in range(8):
        value |= cython.cast(cython.ulonglong, data[number]) << (8 * number)
    return value


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _put32(target: cython.p_uchar, value: cython.Py_ssize_t) -> cython.void:
    target[0] = value >> 24 & 255
    target[1] = value >> 16 & 255
    target[2] = value >> 8 & 255
    target[3] = value & 255


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _write_hex(target: cython.p_uchar, value: cython.ulonglong, digits: cython.int) -> cython.void:
    """Write a number with upper-case hexadecimal digits: 0 to 9 follow 48, A to F follow 65."""
    digit: cython.int
    number: cython.int = digits - 1
    while number >= 0:
        digit = value & 15
        target[number] = digit + 48 if digit < 10 else digit + 55
        value >>= 4
        number -= 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_number(target: cython.p_uchar, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number from 0 on in decimal; the number of digits."""
    digits: cython.Py_ssize_t = 1
    rest: cython.longlong = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    number: cython.Py_ssize_t = digits - 1
    while number >= 0:
        target[number] = 48 + value % 10
        value //= 10
        number -= 1
    return digits
