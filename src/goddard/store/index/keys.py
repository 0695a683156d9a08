"""The hashes by which records are found in the key index, for many records at once.

A record has a unique key, keys and a tag; each is hashed together with its topic, as Java does.
Records of one producer mostly have their keys in the same places of properties of the same length,
and are hashed as one matrix; the others are taken apart pair by pair (``columns``).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from goddard.core import IS_COMPILED
from goddard.protocol.hashing import java_hash
from goddard.store.index.bulk_hashing import java_hashes
from goddard.store.index.columns import (
    Hashes,
    PropertyColumns,
    Spans,
    prefixed_hashes,
    same_layout_spans,
    span_hashes,
)
from goddard.store.log.records import ROLLBACK, TRANSACTION_MASK

if IS_COMPILED:
    from goddard.core import index as core_index

_MAX_INT32: Final = 0x7FFFFFFF
_KEY_SEPARATOR: Final = ord(" ")
_MIN_ALIKE: Final = 32  # records; for fewer the bulk code is slower

Ints = npt.NDArray[np.int64]


def hash_keys(
    topics: Sequence[str],
    properties: Sequence[bytes],
    sys_flags: Sequence[int],
    *,
    is_tag_indexed: bool,
) -> tuple[Ints, Ints]:
    """The hashes of all keys of records, and for each the number of its record.

    Each record's come in Java's order: its unique key, each of its keys, its tag.
    """
    hash_of = {topic: _prefix_hash(f"{topic}#") for topic in set(topics)}
    if len(hash_of) == 1:
        starts = np.full(len(topics), hash_of[topics[0]], dtype=np.uint32)
    else:
        starts = np.array([hash_of[topic] for topic in topics], dtype=np.uint32)
    if IS_COMPILED:
        part, rest = _hash_compiled(starts, properties, sys_flags, is_tag_indexed)
        parts = [part]
    else:
        parts, rest = _hash_by_length(starts, properties, is_tag_indexed)
    if len(rest):
        left = rest.tolist()
        numbers, hashes = _hash_mixed(
            [topics[row] for row in left],
            starts[rest],
            [properties[row] for row in left],
            is_tag_indexed=is_tag_indexed,
        )
        parts.append((rest[numbers], hashes))
    all_rows = np.concatenate([rows for rows, _ in parts])
    all_hashes = np.concatenate([hashes for _, hashes in parts])
    if len(parts) > 1:
        order = np.argsort(all_rows, kind="stable")
        all_rows, all_hashes = all_rows[order], all_hashes[order]
    if any(flag & TRANSACTION_MASK == ROLLBACK for flag in set(sys_flags)):
        is_indexed = np.array(sys_flags, dtype=np.int64) & TRANSACTION_MASK != ROLLBACK
        kept = is_indexed[all_rows]
        all_rows, all_hashes = all_rows[kept], all_hashes[kept]
    return all_rows, all_hashes


def _hash_compiled(
    starts: Hashes, properties: Sequence[bytes], sys_flags: Sequence[int], is_tag_indexed: bool
) -> tuple[tuple[Ints, Ints], Ints]:
    """The same by the compiled core, and which records are left over: those that are not ASCII."""
    ends = np.cumsum(np.fromiter(map(len, properties), np.int64, len(properties)))
    flags = np.array(sys_flags, dtype=np.int64)
    rows, hashes, left = _call_core(b"".join(properties), ends, starts, flags, is_tag_indexed)
    return (rows, hashes), left


def hash_columns(
    data: bytes, ends: Ints, starts: Hashes, sys_flags: Ints, *, is_tag_indexed: bool
) -> tuple[Ints, Ints]:
    """As ``hash_keys``, for properties back to back, all of them ASCII; needs the compiled core.

    ``ends`` says where each record's properties end, ``starts`` has the hashes of ``topic#``.
    """
    rows, hashes, left = _call_core(data, ends, starts, sys_flags, is_tag_indexed)
    if len(left):
        raise ValueError(f"the properties of {len(left)} records are not ASCII")
    return rows, hashes


def _call_core(
    data: bytes, ends: Ints, starts: Hashes, sys_flags: Ints, is_tag_indexed: bool
) -> tuple[Ints, Ints, Ints]:
    count = len(ends)
    # A unique key and a tag each, and the words of their keys.
    room = 3 * count + data.count(b" ")
    rows, hashes = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    is_left = np.empty(count, dtype=np.uint8)
    found = core_index.hash_keys(
        data, ends, starts, sys_flags, is_tag_indexed, rows, hashes, is_left
    )
    return rows[:found], hashes[:found], np.flatnonzero(is_left)


def _hash_by_length(
    starts: Hashes, properties: Sequence[bytes], is_tag_indexed: bool
) -> tuple[list[tuple[Ints, Ints]], Ints]:
    """The same with NumPy, for records that have their keys in the same places as others."""
    lengths = np.fromiter(map(len, properties), np.int64, len(properties))
    parts: list[tuple[Ints, Ints]] = []
    others: list[Ints] = []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        if len(rows) >= _MIN_ALIKE and length:
            chosen = properties
            if len(rows) != len(properties):
                chosen = [properties[row] for row in rows.tolist()]
            hashed, rows = _hash_alike(rows, starts, chosen, is_tag_indexed)
            parts.append(hashed)
        others.append(rows)
    return parts, np.sort(np.concatenate(others))


def _hash_alike(
    rows: Ints, starts: Hashes, properties: Sequence[bytes], is_tag_indexed: bool
) -> tuple[tuple[Ints, Ints], Ints]:
    """The same for records whose properties have one length, and which of them are left over.

    ``starts`` are the hashes of all topics.
    """
    matrix = np.frombuffer(b"".join(properties), np.uint8).reshape(len(rows), -1)
    spans, is_alike = same_layout_spans(matrix, b"KEYS")
    left_over = rows[~is_alike]
    if len(left_over):
        rows, matrix = rows[is_alike], matrix[is_alike]
    prefixes = starts[rows]
    columns: list[Ints] = []
    for name, is_tag in ((b"UNIQ_KEY", False), (b"KEYS", False), (b"TAGS", True)):
        if is_tag and not is_tag_indexed:
            continue
        for start, end in spans.get(name, ()):
            before = (
                prefixes * np.uint32(31**2) + np.uint32(_prefix_hash("T#")) if is_tag else prefixes
            )
            lengths = np.full(len(rows), end - start, dtype=np.int64)
            columns.append(prefixed_hashes(before, span_hashes(matrix, start, end), lengths))
    if not columns:
        return (rows[:0], np.zeros(0, np.int64)), left_over
    return (np.repeat(rows, len(columns)), np.stack(columns, axis=1).ravel()), left_over


def _hash_mixed(
    topics: Sequence[str],
    starts: Hashes,
    properties: Sequence[bytes],
    *,
    is_tag_indexed: bool,
) -> tuple[Ints, Ints]:
    """The same for any records. ``starts`` are the hashes of the topics."""
    columns = PropertyColumns(properties)
    unique = columns.find(b"UNIQ_KEY")
    rows = [unique.rows]
    hashes = [
        prefixed_hashes(starts[unique.rows], columns.hashes(unique), columns.utf16_lengths(unique))
    ]
    keys = columns.find(b"KEYS")
    is_single = columns.lack(keys, _KEY_SEPARATOR)
    single = Spans(*(column[is_single] for column in keys))
    rows.append(single.rows)
    hashes.append(
        prefixed_hashes(starts[single.rows], columns.hashes(single), columns.utf16_lengths(single))
    )
    split_rows: list[int] = []
    split_keys: list[str] = []
    several = (column[~is_single].tolist() for column in keys)
    for row, start, end in zip(*several, strict=True):
        for key in columns.text(start, end).split(" "):
            if key:
                split_rows.append(row)
                split_keys.append(f"{topics[row]}#{key}")
    rows.append(np.array(split_rows, dtype=np.int64))
    hashes.append(_positive(java_hashes(split_keys)))
    if is_tag_indexed:
        tags = columns.find(b"TAGS")
        rows.append(tags.rows)
        prefixes = starts[tags.rows] * np.uint32(31**2) + np.uint32(_prefix_hash("T#"))
        hashes.append(prefixed_hashes(prefixes, columns.hashes(tags), columns.utf16_lengths(tags)))
    all_rows = np.concatenate(rows)
    order = np.argsort(all_rows, kind="stable")
    return all_rows[order], np.concatenate(hashes)[order]


def _positive(hashes: npt.NDArray[np.int32]) -> Ints:
    """Without sign as in Java, where the one hash that has no positive counterpart becomes 0."""
    values = np.abs(hashes.astype(np.int64))
    values[values > _MAX_INT32] = 0
    return values


@lru_cache(maxsize=4096)
def _prefix_hash(text: str) -> int:
    """The hash of a text that comes often (a topic, a tag), as an unsigned number."""
    return java_hash(text) & 0xFFFFFFFF
