# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Pulled records, compiled: the plain records of a response become messages.

A plain record has the V1 magic, IPv4 hosts, and the queue and topic that the caller names. The
caller, ``goddard.client.consume.pull``, decodes all others, and rejects malformed ones. Where there
is no compiler it decodes plain records, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcmp

IS_COMPILED = cython.compiled

_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 88)
_MAGIC_V1 = cython.declare(cython.uint, 0xDAA320A7)
# Hosts with IPv6 addresses, and batches that are stored as one record.
_UNUSUAL = cython.declare(cython.uint, 0x10 | 0x20 | 0x80)
_PAIR_END = cython.declare(cython.int, 2)
_TAG_NAME_BYTES = cython.declare(cython.Py_ssize_t, 5)  # with the byte after it
_MAX_PROPERTIES_BYTES = cython.declare(cython.Py_ssize_t, 32767)


def add_messages(
    messages: list[Any],
    records: bytes,
    start: cython.Py_ssize_t,
    make: Callable[..., object],
    queue: object,
    queue_id: cython.longlong,
    topic: object,
    topic_bytes: bytes,
    more_properties: object,
    tags: frozenset[str],
) -> int:
    """Add a message for each plain record from ``start`` on; returns where the first other begins.

    ``topic_bytes`` is the topic as records have it, its length first. ``make`` is called with the
    queue offset, ``topic``, ``queue``, the length of the body, the bytes of the record and
    ``more_properties``. If there are ``tags``, records with other tags or none are left out.
    """
    data: cython.p_const_uchar = records
    total: cython.Py_ssize_t = len(records)
    wanted: cython.p_const_uchar = topic_bytes
    wanted_bytes: cython.Py_ssize_t = len(topic_bytes)
    size: cython.Py_ssize_t
    body_bytes: cython.Py_ssize_t
    queue_offset: cython.longlong
    record: bytes
    properties_at: cython.Py_ssize_t
    is_filtered: cython.bint = len(tags) > 0
    if start < 0:
        raise ValueError(f"records cannot start at {start}")
    while start < total:
        size = _plain_size(data + start, total - start, queue_id, wanted, wanted_bytes)
        if size == 0:
            break
        queue_offset = _get64(data + start + 20)
        body_bytes = _get32(data + start + 84)
        properties_at = _HEAD_BYTES + body_bytes + wanted_bytes + 2
        if is_filtered and not _has_tag(data + start + properties_at, size - properties_at, tags):
            start += size
            continue
        record = data[start : start + size]
        messages.append(make(queue_offset, topic, queue, body_bytes, record, more_properties))
        start += size
    return start


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _plain_size(
    record: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    queue_id: cython.longlong,
    topic: cython.p_const_uchar,
    topic_bytes: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """The size of a plain record; 0 for any other. ``length`` bytes may be read.

    Each check makes sure that the next one reads within the record.
    """
    size: cython.Py_ssize_t
    body_bytes: cython.Py_ssize_t
    topic_at: cython.Py_ssize_t
    properties_at: cython.Py_ssize_t
    properties_bytes: cython.Py_ssize_t
    if length < _HEAD_BYTES + 3:
        return 0
    size = _get32(record)
    body_bytes = _get32(record + 84)
    topic_at = _HEAD_BYTES + body_bytes
    properties_at = topic_at + topic_bytes + 2
    if body_bytes < 0 or size > length or properties_at > size:
        return 0
    if _get32u(record + 4) != _MAGIC_V1 or _get32u(record + 36) & _UNUSUAL:
        return 0
    if _get32(record + 12) != queue_id:
        return 0
    # The upper halves of the two ports.
    if record[52] | record[53] | record[68] | record[69]:
        return 0
    if memcmp(record + topic_at, topic, topic_bytes) != 0:
        return 0
    properties_bytes = record[properties_at - 2] << 8 | record[properties_at - 1]
    if properties_bytes > _MAX_PROPERTIES_BYTES or properties_at + properties_bytes != size:
        return 0
    return size


@cython.cfunc
def _has_tag(
    properties: cython.p_const_uchar, length: cython.Py_ssize_t, tags: frozenset[str]
) -> cython.bint:
    """Whether the tag of a record is one of ``tags``; the last of several tags counts."""
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    tag: cython.p_const_char = cython.NULL
    tag_bytes: cython.Py_ssize_t = 0
    while at < length:
        end = at + _find(properties + at, length - at, _PAIR_END)
        if end - at > _TAG_NAME_BYTES and memcmp(properties + at, b"TAGS\x01", 5) == 0:
            tag = cython.cast(cython.p_const_char, properties + at + _TAG_NAME_BYTES)
            tag_bytes = end - at - _TAG_NAME_BYTES
        at = end + 1
    return tag != cython.NULL and tag[:tag_bytes].decode("utf-8", "replace") in tags


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
