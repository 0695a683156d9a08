"""The entries of consume queues: what their bytes mean, and which of them can be believed. Pure.

An entry is 20 bytes, i64 physical offset, i32 size, i64 tags code (of a delayed message: when it is
due). A blank one (0, 0x7FFFFFFF, 0) stands for no message.
"""

from struct import Struct
from typing import Final, NamedTuple

import numpy as np

ENTRY: Final = Struct(">qiq")
ENTRY_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK: Final = ENTRY.pack(0, BLANK_SIZE, 0)
MAX_OFFSET: Final = 1 << 62  # leaves room to add a size


class QueueEntry(NamedTuple):
    physical_offset: int
    size: int
    tags_code: int


def count_valid(data: bytes, last_end: int) -> tuple[int, int]:
    """How many entries are whole and in the order of the log, and where the last record ends.

    ``last_end`` is where the record before them ends. Blanks are in order anywhere.
    """
    count = 0
    for offset, size, _ in ENTRY.iter_unpack(data):
        if size <= 0 or not 0 <= offset <= MAX_OFFSET:
            break
        if size != BLANK_SIZE:
            if offset < last_end:
                break
            last_end = offset + size
        count += 1
    return count, last_end


def count_valid_bulk(data: bytes, last_end: int) -> tuple[int, int]:
    """Like ``count_valid``; ten times faster for thousands of entries, slower for one."""
    entries = np.frombuffer(data, dtype=ENTRY_DTYPE)
    offsets = entries["offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    is_blank = sizes == BLANK_SIZE
    is_whole = (offsets >= 0) & (offsets <= MAX_OFFSET) & (sizes > 0)
    ends = np.where(is_whole & ~is_blank, offsets + sizes, 0)
    before = np.maximum.accumulate(np.concatenate(([last_end], ends)))
    valid = is_whole & (is_blank | (offsets >= before[:-1]))
    count = len(entries) if valid.all() else int(valid.argmin())
    return count, int(before[count])
