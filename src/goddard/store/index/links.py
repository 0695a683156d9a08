"""How entries of an index file are linked, each to the one before it in its slot, and walked.

``link_entries`` only reads the slots and ``fill_slots`` only writes them, because the entries have
to be in the file before a slot names them. Each function exists twice, compiled and in Python.
"""

import mmap
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from goddard.core import IS_COMPILED

if IS_COMPILED:
    from goddard.core import index as core_index

ENTRY_DTYPE: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)

ENTRY: Final = Struct(">iqii")
# So many entries take some milliseconds: compiled without the interpreter's lock, else with it.
_STEPS: Final = 100_000 if IS_COMPILED else 1_000

# Entries have ENTRY_DTYPE; a table is an array of big-endian 4-byte numbers.
Entries: TypeAlias = npt.NDArray[Any]
Table: TypeAlias = npt.NDArray[np.int32]


def link_entries(entries: Entries, table: Table, first_number: int) -> int:
    """Set ``previous`` in each entry; returns for how many the slot was empty.

    The entries are numbered from ``first_number`` on. A slot with that number or a larger one
    counts as empty: a crash left it behind.
    """
    if not IS_COMPILED:
        return link_with_numpy(entries, table, first_number)
    places = 1 << (2 * len(entries)).bit_length()
    return core_index.link_entries(
        entries.view(np.uint8),
        len(entries),
        table.view(np.uint8),
        len(table),
        first_number,
        np.empty(2 * places, dtype=np.int64),
    )


def fill_slots(entries: Entries, table: Table, first_number: int) -> None:
    """Have each slot name its newest entry."""
    if not IS_COMPILED:
        fill_with_numpy(entries, table, first_number)
        return
    core_index.fill_slots(
        entries.view(np.uint8), len(entries), table.view(np.uint8), len(table), first_number
    )


def find_in_slot(
    data: mmap.mmap,
    entries_at: int,
    number: int,
    key_hash: int,
    begin_time_ms: int,
    begin_ms: int,
    end_ms: int,
    limit: int,
) -> tuple[int, list[int]]:
    """Walk some entries of one slot of an index file, from entry ``number`` to older ones.

    Returns the entry to go on with, 0 at the end, and at most ``limit`` offsets of records with
    this hash in the time window. A slot can have millions of entries, so a call takes only some
    milliseconds.
    """
    if not IS_COMPILED:
        return find_in_python(
            data, entries_at, number, key_hash, begin_time_ms, begin_ms, end_ms, limit
        )
    found = np.empty(limit, dtype=np.int64)
    number, count = core_index.find_in_slot(
        data, entries_at, number, key_hash, begin_time_ms, begin_ms, end_ms, _STEPS, found
    )
    return number, found[:count].tolist()


def find_in_python(
    data: mmap.mmap,
    entries_at: int,
    number: int,
    key_hash: int,
    begin_time_ms: int,
    begin_ms: int,
    end_ms: int,
    limit: int,
) -> tuple[int, list[int]]:
    """As ``find_in_slot``."""
    found: list[int] = []
    for _ in range(_STEPS):
        if number <= 0 or len(found) == limit:
            break
        entry = ENTRY.unpack_from(data, entries_at + number * ENTRY.size)
        entry_hash, physical_offset, seconds, previous = entry
        if seconds < 0:
            return 0, found
        time_ms = begin_time_ms + seconds * 1000
        if entry_hash == key_hash and begin_ms <= time_ms <= end_ms:
            found.append(physical_offset)
        # Links only go to older entries; anything else is damage, and could form a circle.
        number = 0 if previous >= number or time_ms < begin_ms else previous
    return max(number, 0), found


def link_with_numpy(entries: Entries, table: Table, first_number: int) -> int:
    """As ``link_entries``."""
    number = len(entries)
    slots = entries["hash"].astype(np.int64) % len(table)
    # By slot, and in each slot in order: sorting pairs takes half the time of a stable sort of
    # places.
    bits = number.bit_length()
    pairs = slots << bits | np.arange(number)
    pairs.sort()
    order = pairs & ((1 << bits) - 1)
    ranked = pairs >> bits
    is_repeated = np.zeros(number, dtype=bool)
    is_repeated[1:] = ranked[1:] == ranked[:-1]
    heads = table[ranked].astype(np.int64)
    heads[(heads <= 0) | (heads >= first_number)] = 0
    previous = np.where(is_repeated, np.roll(order, 1) + first_number, heads)
    entries["previous"][order] = previous
    return int(np.count_nonzero(previous == 0))


def fill_with_numpy(entries: Entries, table: Table, first_number: int) -> None:
    """As ``fill_slots``."""
    # Of several values for one slot, NumPy keeps the last.
    numbers = np.arange(first_number, first_number + len(entries))
    table[entries["hash"].astype(np.int64) % len(table)] = numbers
