"""Which commit-log files hold messages of a topic, by its consume queues; no file is read whole.

A queue is a row of entries of 20 bytes, physical offset, size and hash of the tags, that point into
the log in ascending order: two bisections tell whether one of them points into a file.

Queues are written after the log, so they say nothing about its end. They count only for files whose
messages are all older than the time up to which the broker's checkpoint vouches for its queues.
"""

import bisect
import itertools
import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

_ENTRY: Final = struct.Struct(">qi8x")
# Times of the last message that is safe on disk: in the log, in the queues, in the key index.
_CHECKPOINT: Final = struct.Struct(">qqq")
# Messages of one moment may be on both sides of a checkpoint; brokers recover with the same margin.
_MARGIN_MS: Final = 3_000
# An entry that stands for a message that the queue never had.
_NO_MESSAGE_BYTES: Final = 0x7FFFFFFF


def settled_until_ms(root: Path) -> int | None:
    """Up to when the queues of a store are complete; None if nothing says so."""
    try:
        with (root / "checkpoint").open("rb") as file:
            log_ms, queues_ms, _ = _CHECKPOINT.unpack(file.read(_CHECKPOINT.size))
    except (OSError, struct.error):
        return None
    until_ms = int(min(log_ms, queues_ms)) - _MARGIN_MS
    return until_ms if until_ms > 0 else None


def files_of_topics(root: Path, topics: Iterable[str], bounds: Sequence[int]) -> set[int] | None:
    """Of the files that begin at these offsets, in order, those that queues of the topics point to.

    None if a topic has no queues here: it was deleted, or the store keeps them elsewhere.
    """
    found: set[int] = set()
    for topic in topics:
        folder = root / "consumequeue" / topic
        files = [path for path in folder.glob("*/" + "[0-9]" * 20) if path.is_file()]
        if not files:
            return None
        for path in files:
            found.update(_pointed_to(path, bounds))
    return found


def _pointed_to(path: Path, bounds: Sequence[int]) -> Iterator[int]:
    with path.open("rb") as file:
        size = path.stat().st_size // _ENTRY.size
        if not size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as entries:

            def size_bytes(index: int) -> int:
                return int(_ENTRY.unpack_from(entries, index * _ENTRY.size)[1])

            def place(index: int) -> int:
                return int(_ENTRY.unpack_from(entries, index * _ENTRY.size)[0])

            every = range(size)
            # Unwritten entries, all zeros, are at the end; those of no message at the beginning.
            end = bisect.bisect_left(every, 1, key=lambda index: not size_bytes(index))
            begin = bisect.bisect_left(
                every, 1, 0, end, key=lambda index: size_bytes(index) != _NO_MESSAGE_BYTES
            )
            for first, following in itertools.pairwise([*bounds, 2**63]):
                index = bisect.bisect_left(every, first, begin, end, key=place)
                if index < end and place(index) < following:
                    yield first
