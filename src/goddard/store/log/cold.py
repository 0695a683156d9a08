"""Reads that would wait for the disk are done in a thread first, so that a loop never waits.

A read is cold when neither rule holds. First, without a look at the files: the messages were
appended since the store was opened, and less than half of accessMessageInMemoryMaxRatio of the
memory was appended since. Second: the first and last queue entry, and the first and last record,
are in the page cache. ``warm`` reads all of them, and has the log that follows read ahead.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from goddard.environment.files import Files
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.segment import segment_name
from goddard.store.queues.entry import ENTRY
from goddard.store.queues.queue import ConsumeQueue

_READ_AHEAD_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 64 << 10
_MAX_WARM_BYTES: Final = 1 << 20


class ColdRead(NamedTuple):
    """What to read into the page cache: entries of a queue, and their records."""

    files: Files
    queue_path: Path
    queue_position: int
    queue_bytes: int
    log_directory: Path
    segment_bytes: int

    def warm(self) -> None:
        """Read it; takes long, and needs no lock. What has been deleted meanwhile is left out."""
        with suppress(OSError):  # who reads it next reports the error
            data = self._read(self.queue_path, self.queue_position, self.queue_bytes)
            self._read_records(data)

    def _read_records(self, data: bytes) -> None:
        start = end = -1
        total = 0
        for physical_offset, size, _ in ENTRY.iter_unpack(
            data[: len(data) // ENTRY.size * ENTRY.size]
        ):
            if size <= 0 or total > _MAX_WARM_BYTES:
                break
            is_near = 0 <= start <= physical_offset <= end + _PIECE_BYTES
            if not is_near or end - start > _PIECE_BYTES:
                total += self._read_log(start, end)
                start = physical_offset
            end = physical_offset + size
        self._read_log(start, end)
        self._read_ahead(end)

    def _read_log(self, start: int, end: int) -> int:
        base = start // self.segment_bytes * self.segment_bytes
        end = min(end, base + self.segment_bytes)
        if end <= start:
            return 0
        return len(self._read(self.log_directory / segment_name(base), start - base, end - start))

    def _read(self, path: Path, position: int, size: int) -> bytes:
        fd = self.files.open(path, writable=False)
        try:
            return self.files.pread(fd, size, position)
        finally:
            self.files.close(fd)

    def _read_ahead(self, physical_offset: int) -> None:
        base = physical_offset // self.segment_bytes * self.segment_bytes
        fd = self.files.open(self.log_directory / segment_name(base), writable=False)
        try:
            self.files.will_need(fd, physical_offset - base, _READ_AHEAD_BYTES)
        finally:
            self.files.close(fd)


def find_cold_read(
    files: Files, log: CommitLog, queue: ConsumeQueue, queue_offset: int, max_count: int
) -> ColdRead | None:
    """What reading messages of a queue would have to read from the disk; None if nothing."""
    count = min(max_count, queue.max_offset - queue_offset)
    if count <= 0 or queue_offset < queue.min_offset:
        return None
    last_offset = queue_offset + count - 1
    if queue.is_cached(queue_offset) and queue.is_cached(last_offset):
        first, last = queue.entry(queue_offset), queue.entry(last_offset)
        if (
            first is None
            or last is None
            or (
                log.is_cached(first.physical_offset)
                and log.is_cached(last.physical_offset + max(last.size, 1) - 1)
            )
        ):
            return None
    path, position = queue.path_at(queue_offset)
    size = count * ENTRY.size
    return ColdRead(files, path, position, size, log.directory, log.segment_bytes)
