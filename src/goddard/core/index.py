# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The key index, compiled: hashes of keys, links of entries in their slots, and walks along them.

The functions run without the interpreter's lock, so that the store's threads do not compete with
the broker's loop. All views belong to the caller; lengths are checked before anything is read.
``goddard.store.index.keys`` and ``goddard.store.index.links`` have the same in NumPy, for
installations without a compiler, and tests compare the two.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.goddard.core.viewtypes import (
        Bytes,
        Hashes,
        Numbers,
        WritableBytes,
        WritableNumbers,
    )
    from cython.cimports.libc.string import memchr, memcmp

IS_COMPILED = cython.compiled

_TRANSACTION_MASK = cython.declare(cython.longlong, 0xC)
_ROLLBACK = cython.declare(cython.longlong, 0xC)
_SPACE = cython.declare(cython.int, 32)
_NAME_END = cython.declare(cython.int, 1)
_PAIR_END = cython.declare(cython.int, 2)


def hash_keys(
    data: Bytes,
    ends: Numbers,
    topic_hashes: Hashes,
    sys_flags: Numbers,
    is_tag_indexed: cython.bint,
    rows: WritableNumbers,
    hashes: WritableNumbers,
    is_left: WritableBytes,
) -> int:
    """Hash the keys of records as Java does; returns how many were written to ``hashes``.

    ``data`` holds the properties of all records back to back, ``ends`` where each ends, and
    ``topic_hashes`` the hash of ``topic#`` for each. ``rows`` gets the record of each hash: its
    unique key, then each of its keys, then its tag. Records with text that is not ASCII are left to
    the caller, and marked in ``is_left``.
    """
    records: cython.Py_ssize_t = ends.shape[0]
    row: cython.Py_ssize_t
    before: cython.longlong = 0
    if not records == topic_hashes.shape[0] == sys_flags.shape[0] == is_left.shape[0]:
        raise ValueError("the columns have different lengths")
    if rows.shape[0] != hashes.shape[0]:
        raise ValueError("rows and hashes have different lengths")
    for row in range(records):
        if ends[row] < before:
            raise ValueError(f"the properties of record {row} end before they begin")
        before = ends[row]
    if before > data.shape[0]:
        raise ValueError(f"the properties end at {before}, the data at {data.shape[0]}")
    count: cython.Py_ssize_t
    with cython.nogil:
        count = _hash_keys(
            data, ends, topic_hashes, sys_flags, is_tag_indexed, rows, hashes, is_left
        )
    if count < 0:
        raise ValueError(f"more than {hashes.shape[0]} keys")
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.boundscheck(False)  # hash_keys has checked every length
def _hash_keys(
    data: Bytes,
    ends: Numbers,
    topic_hashes: Hashes,
    sys_flags: Numbers,
    is_tag_indexed: cython.bint,
    rows: WritableNumbers,
    hashes: WritableNumbers,
    is_left: WritableBytes,
) -> cython.Py_ssize_t:
    room: cython.Py_ssize_t = hashes.shape[0]
    count: cython.Py_ssize_t = 0
    before: cython.Py_ssize_t
    row: cython.Py_ssize_t
    length: cython.Py_ssize_t
    start: cython.Py_ssize_t = 0
    for row in range(ends.shape[0]):
        length = ends[row] - start
        is_left[row] = 0
        before = count
        if length and (sys_flags[row] & _TRANSACTION_MASK) != _ROLLBACK:
            if _is_ascii(cython.address(data[start]), length):
                count = _hash_record(
                    cython.address(data[start]),
                    length,
                    topic_hashes[row],
                    is_tag_indexed,
                    cython.address(hashes[0]),
                    count,
                    room,
                )
                if count < 0:
                    return -1
            else:
                is_left[row] = 1
        while before < count:
            rows[before] = row
            before += 1
        start = ends[row]
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash_record(
    properties: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    topic_hash: cython.uint,
    is_tag_indexed: cython.bint,
    hashes: cython.p_longlong,
    count: cython.Py_ssize_t,
    room: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Add the hashes of one record; returns how many there are then, -1 without room for them."""
    values = cython.declare(cython.longlong[6], [0, 0, 0, 0, 0, 0])
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    _find_values(properties, length, values)
    if values[1]:
        if count == room:
            return -1
        hashes[count] = _positive(_hash_on(properties + values[0], values[1], topic_hash))
        count += 1
    at = values[2]
    while at < values[2] + values[3]:  # words with spaces between them
        end = at + _find(properties + at, values[2] + values[3] - at, _SPACE)
        if end > at:
            if count == room:
                return -1
            hashes[count] = _positive(_hash_on(properties + at, end - at, topic_hash))
            count += 1
        at = end + 1
    if values[5] and is_tag_indexed:
        if count == room:
            return -1
        topic_hash = _hash_on(b"T#", 2, topic_hash)
        hashes[count] = _positive(_hash_on(properties + values[4], values[5], topic_hash))
        count += 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_values(
    properties: cython.p_const_uchar, length: cython.Py_ssize_t, values: cython.p_longlong
) -> cython.void:
    """Write begin and length of the unique key, the keys and the tag; the length is 0 without one.

    A pair without name or value does not exist, and the last of equal names counts.
    """
    at: cython.Py_ssize_t = 0
    pair_bytes: cython.Py_ssize_t
    name_bytes: cython.Py_ssize_t
    which: cython.int
    while at < length:
        pair_bytes = _find(properties + at, length - at, _PAIR_END)
        name_bytes = _find(properties + at, pair_bytes, _NAME_END)
        if name_bytes + 1 < pair_bytes:
            which = _which(properties + at, name_bytes)
            if which >= 0:
                values[2 * which] = at + name_bytes + 1
                values[2 * which + 1] = pair_bytes - name_bytes - 1
        at += pair_bytes + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _which(name: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.int:
    if length == 8 and memcmp(name, b"UNIQ_KEY", 8) == 0:
        return 0
    if length == 4 and memcmp(name, b"KEYS", 4) == 0:
        return 1
    if length == 4 and memcmp(name, b"TAGS", 4) == 0:
        return 2
    return -1


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
def _is_ascii(text: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    at: cython.Py_ssize_t
    bits: cython.uchar = 0
    for at in range(length):
        bits |= text[at]
    return bits < 0x80


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _hash_on(
    text: cython.p_const_uchar, length: cython.Py_ssize_t, value: cython.uint
) -> cython.uint:
    """Java's ``hashCode`` of what has the hash ``value``, followed by an ASCII text."""
    at: cython.Py_ssize_t
    for at in range(length):
        value = value * 31 + text[at]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _positive(hashed: cython.uint) -> cython.uint:
    """Java's ``Math.abs`` of an int; the one number without a positive counterpart becomes 0."""
    if hashed << 1 == 0:
        return 0
    return -hashed if hashed >> 31 else hashed  # unsigned: the negation wraps


def link_entries(
    entries: WritableBytes,
    count: cython.Py_ssize_t,
    table: WritableBytes,
    slots: cython.Py_ssize_t,
    first_number: cython.longlong,
    scratch: WritableNumbers,
) -> int:
    """Set in each entry the number of the one before it in its slot; returns how many have none.

    ``entries`` are numbered from ``first_number`` on; ``table`` holds the slots of the file and is
    only read: ``fill_slots`` writes it, after the entries have been written. ``scratch`` has room
    for two numbers for each of a power of two of places, at least twice as many as entries.
    """
    places: cython.Py_ssize_t = scratch.shape[0] // 2
    _check_entries(entries, count, table, slots)
    if places < 2 * count or places & (places - 1) or scratch.shape[0] != 2 * places:
        raise ValueError(f"scratch has no room for {count} entries")
    first: cython.Py_ssize_t
    with cython.nogil:
        first = _link_entries(entries, count, table, slots, first_number, scratch)
    if first < 0:
        raise ValueError("a hash is negative")
    return first


def fill_slots(
    entries: WritableBytes,
    count: cython.Py_ssize_t,
    table: WritableBytes,
    slots: cython.Py_ssize_t,
    first_number: cython.longlong,
) -> None:
    """Have each slot hold the number of its newest entry."""
    _check_entries(entries, count, table, slots)
    at: cython.Py_ssize_t
    hashed: cython.longlong = 0
    with cython.nogil:
        for at in range(count):
            hashed = _get32(entries, 20 * at)
            if hashed < 0:
                break
            _put32(table, hashed % slots * 4, first_number + at)
    if hashed < 0:
        raise ValueError("a hash is negative")


def find_in_slot(
    data: Bytes,
    entries_at: cython.Py_ssize_t,
    number: cython.longlong,
    key_hash: cython.longlong,
    begin_time_ms: cython.longlong,
    begin_ms: cython.longlong,
    end_ms: cython.longlong,
    steps: cython.Py_ssize_t,
    found: WritableNumbers,
) -> tuple[int, int]:
    """Walk the entries of one slot from entry ``number`` to older ones, at most ``steps`` of them.

    ``data`` is an index file whose entries begin at ``entries_at``. ``found`` receives the offsets
    of records with this hash in the time window. Returns the entry to go on with, 0 at the end, and
    how many offsets were found; the walk also ends when ``found`` is full.
    """
    if entries_at < 0 or number < 0 or number > (data.shape[0] - entries_at) // 20 - 1:
        raise ValueError(f"the file has no entry {number}")
    at: cython.Py_ssize_t
    _step: cython.Py_ssize_t
    seconds: cython.longlong
    previous: cython.longlong
    time_ms: cython.longlong
    count: cython.Py_ssize_t = 0
    with cython.nogil:
        for _step in range(steps):
            if number <= 0 or count == found.shape[0]:
                break
            at = entries_at + 20 * number
            seconds = _read32(data, at + 12)
            if seconds < 0:
                number = 0
                break
            time_ms = begin_time_ms + seconds * 1000
            if _read32(data, at) == key_hash and begin_ms <= time_ms <= end_ms:
                found[count] = _read64(data, at + 4)
                count += 1
            previous = _read32(data, at + 16)
            # Links only go to older entries; anything else is damage, and could form a circle.
            number = 0 if previous >= number or time_ms < begin_ms else previous
    return max(number, 0), count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.boundscheck(False)  # find_in_slot has checked the first entry; links only go to older ones
def _read32(data: Bytes, at: cython.Py_ssize_t) -> cython.int:
    value: cython.uint = data[at]
    value = value << 8 | data[at + 1]
    value = value << 8 | data[at + 2]
    value = value << 8 | data[at + 3]
    signed: cython.int = value
    return signed


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read64(data: Bytes, at: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = _read32(data, at)
    low: cython.uint = _read32(data, at + 4)
    return high << 32 | low


@cython.cfunc
def _check_entries(
    entries: WritableBytes, count: cython.Py_ssize_t, table: WritableBytes, slots: cython.Py_ssize_t
) -> cython.void:
    if count < 0 or entries.shape[0] < 20 * count:
        raise ValueError(f"{entries.shape[0]} bytes are fewer than {count} entries have")
    if slots < 1 or table.shape[0] < 4 * slots:
        raise ValueError(f"{table.shape[0]} bytes are fewer than {slots} slots have")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
@cython.boundscheck(False)  # link_entries has checked every length
def _link_entries(
    entries: WritableBytes,
    count: cython.Py_ssize_t,
    table: WritableBytes,
    slots: cython.Py_ssize_t,
    first_number: cython.longlong,
    scratch: WritableNumbers,
) -> cython.Py_ssize_t:
    places: cython.Py_ssize_t = scratch.shape[0] // 2
    place: cython.Py_ssize_t
    at: cython.Py_ssize_t
    slot: cython.longlong
    hashed: cython.longlong
    previous: cython.longlong
    first: cython.Py_ssize_t = 0
    for place in range(places):
        scratch[place] = -1
    for at in range(count):
        hashed = _get32(entries, 20 * at)
        if hashed < 0:
            return -1
        slot = hashed % slots
        # Slots that this group has touched are found in a hash table: place -> slot, number.
        place = (slot * 40503) & (places - 1)
        while scratch[place] != -1 and scratch[place] != slot:
            place = (place + 1) & (places - 1)
        if scratch[place] == slot:
            previous = scratch[places + place]
        else:
            scratch[place] = slot
            previous = _get32(table, 4 * slot)
            if previous <= 0 or previous >= first_number:
                previous = 0  # no entry, or one that never got its header
        scratch[places + place] = first_number + at
        _put32(entries, 20 * at + 16, previous)
        if previous == 0:
            first += 1
    return first


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.boundscheck(False)
def _get32(data: WritableBytes, at: cython.Py_ssize_t) -> cython.int:
    value: cython.uint = data[at]
    value = value << 8 | data[at + 1]
    value = value << 8 | data[at + 2]
    value = value << 8 | data[at + 3]
    signed: cython.int = value
    return signed


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
@cython.boundscheck(False)
def _put32(data: WritableBytes, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    data[at] = (value >> 24) & 0xFF
    data[at + 1] = (value >> 16) & 0xFF
    data[at + 2] = (value >> 8) & 0xFF
    data[at + 3] = value & 0xFF
