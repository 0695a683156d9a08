# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The properties of plain sends, compiled: which there are, and what the broker needs of them.

Properties with a meaning that plain sends do not have are in a table of the caller's.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.goddard.core.primitives import find
    from cython.cimports.goddard.core.sendtypes import (
        FIELD_PROPERTIES,
        PairNames,
        RequestHeaderPointer,
        SendPropertiesPointer,
        Text,
        TextPointer,
    )
    from cython.cimports.goddard.core.texts import hash_text
    from cython.cimports.libc.string import memcmp, memcpy

IS_COMPILED = cython.compiled

_MAX_PAIRS = cython.declare(cython.int, 32)


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
        count = find(text + at, length - at, 92)
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
def tags_of(properties: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.longlong:
    """The hash of the last tags of any properties; 0 without."""
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    code: cython.longlong = 0
    while at < length:
        count = find(properties + at, length - at, 2)
        if count > 5 and memcmp(properties + at, b"TAGS\x01", 5) == 0:
            code = hash_text(properties + at + 5, count - 5)
        at += count + 1
    return code


@cython.cclass
class PropertyReader:
    """Reads the properties of requests. Messages with a property of ``special_names``, or one that
    begins with ``special_prefix``, are not plain; with ``waits_durable`` neither are those whose
    sender does not want to wait for the disk."""

    waits_durable: cython.bint
    special_names: bytes
    special_lengths: cython.ulonglong
    special_prefix: bytes
    names: PairNames

    def __init__(
        self, special_names: frozenset[bytes], special_prefix: bytes, waits_durable: bool
    ) -> None:
        if any(not 0 < len(name) < 64 for name in special_names) or not special_prefix:
            raise ValueError("names of properties have 1 to 63 bytes here")
        self.waits_durable = waits_durable
        self.special_names = b"".join(bytes((len(name),)) + name for name in special_names)
        self.special_lengths = 0
        for name in special_names:
            self.special_lengths |= cython.cast(cython.ulonglong, 1) << len(name)
        self.special_prefix = special_prefix

    @cython.cfunc
    @cython.exceptval(check=False)
    def read(
        self, header: RequestHeaderPointer, out: cython.p_uchar, found: SendPropertiesPointer
    ) -> cython.Py_ssize_t:
        """Copy the properties of the request to ``out``, which has room for them and a byte more.

        Returns their length, -1 if they are not plain. What is ``found`` points into ``out``.
        """
        text: Text = header.fields[FIELD_PROPERTIES]
        length: cython.Py_ssize_t = text.length
        found.unique_id.length = -1
        found.tags.length = -1
        if not header.seen >> FIELD_PROPERTIES & 1 or length == 0:
            return 0
        if header.has_escapes:
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
        if found.unique_id.length >= 0 and not _is_id(
            found.unique_id.start, found.unique_id.length
        ):
            return -1
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
            size = find(pair, length - at, 2)
            name_length = find(pair, size, 1)
            value = pair + name_length + 1
            value_length = size - name_length - 1
            if (
                count == _MAX_PAIRS
                or name_length == 0
                or value_length <= 0
                or find(value, value_length, 1) != value_length
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
