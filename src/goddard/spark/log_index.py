"""Find the commit-log files that hold messages of a topic, by its consume queues.

A consume queue is a list of 20-byte entries: physical offset, size, hash of the tags. Physical
offsets are ascending, so a binary search tells whether an entry points into a file. No file is read
completely.

Brokers write consume queues after the log, so the queues may lack the end of the log. They are used
only for files whose messages are all older than the time in the broker's checkpoint up to which
its queues are complete.
"""

import bisect
import itertools
import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

_ENTRY: Final = struct.Struct(">qi8x")
# Store time of the last message flushed to the log, to the queues, to the key index.
_CHECKPOINT: Final = struct.Struct(">qqq")
# Messages of the same millisecond may lie on both sides of the checkpoint. Brokers subtract the
# same margin when they recover.
_MARGIN_MS: Final = 3_000
# The size in an entry that stands for no message.
_NO_MESSAGE_BYTES: Final = 0x7FFFFFFF


def complete_until_ms(root: Path) -> int | None:
    """The time up to which the queues of a store are complete; None if unknown."""
    try:
        with (root / "checkpoint").open("rb") as file:
            log_ms, queues_ms, _ = _CHECKPOINT.unpack(file.read(_CHECKPOINT.size))
    except (OSError, struct.error):
        return None
    until_ms = int(min(log_ms, queues_ms)) - _MARGIN_MS
    return until_ms if until_ms > 0 else None


def files_of_topics(root: Path, topics: Iterable[str], bounds: Sequence[int]) -> set[int] | None:
    """Those of ``bounds`` (start offsets of files, ascending) whose files have messages of topics.

    None if a topic has no consume queue: it was deleted, or the store keeps its queues elsewhere.
    """
    found: set[int] = set()
    for topic in topics:
        folder = root / "consumequeue" / topic
        files = [path for path in folder.glob("*/" + "[0-9]" * 20) if path.is_file()]
        if not files:
            return None
        for path in files:
            found.update(_files_of_queue(path, bounds))
    return found


def _files_of_queue(path: Path, bounds: Sequence[int]) -> Iterator[int]:
    """The start offsets of the commit-log files that the entries of a queue's file point to."""
    with path.open("rb") as file:
        size = path.stat().st_size // _ENTRY.size
        if not size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as entries:

            def size_bytes(index: int) -> int:
                return int(_ENTRY.unpack_from(entries, index * _ENTRY.size)[1])

            def physical_offset(index: int) -> int:
                return int(_ENTRY.unpack_from(entries, index * _ENTRY.size)[0])

            indices = range(size)
            # Entries without a message come first; unwritten entries, all zeros, come last.
            end = bisect.bisect_left(indices, 1, key=lambda index: not size_bytes(index))
            begin = bisect.bisect_left(
                indices, 1, 0, end, key=lambda index: size_bytes(index) != _NO_MESSAGE_BYTES
            )
            for file_offset, next_offset in itertools.pairwise([*bounds, 2**63]):
                index = bisect.bisect_left(indices, file_offset, begin, end, key=physical_offset)
                if index < end and physical_offset(index) < next_offset:
                    yield file_offset
