# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Texts and numbers in requests and responses, compiled; all texts are ASCII.

Callers have checked the lengths.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.goddard.core.sendtypes import Text
    from cython.cimports.libc.string import memcpy

IS_COMPILED = cython.compiled

_HIGH_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
_SPACES = cython.declare(cython.ulonglong, 0x2020202020202020)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_text(
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
def read_number(text: Text, most: cython.longlong, value: cython.p_longlong) -> cython.bint:
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
def write_number(out: cython.p_uchar, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a number as text, at most 20 bytes; returns how many."""
    length: cython.Py_ssize_t = 1
    at: cython.Py_ssize_t
    rest: cython.longlong
    if value < 0:
        out[0] = 45
        return 1 + write_number(out + 1, -value)
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
def write_hex(out: cython.p_uchar, value: cython.longlong) -> cython.void:
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
def hash_text(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.int:
    """Java's ``hashCode`` of an ASCII text."""
    value: cython.uint = 0
    at: cython.Py_ssize_t
    for at in range(length):
        value = value * 31 + text[at]
    signed: cython.int = cython.cast(cython.int, value)
    return signed
