"""The commit log: every record of every topic, in the order of arrival.

Appending is the store's hot path: one call takes a prepared group of records, one ``pwrite`` per
segment puts it on its way, and the group is visible as a whole or not at all. Records never cross
a segment: one that does not fit with 8 bytes to spare is preceded by a filler (i32 space left,
i32 0xCBD43194) and starts the next segment.

One thread appends at a time. Others may read below ``end_offset`` and flush.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from goddard.environment.files import Files, make_durable_directories
from goddard.environment.threads import Worker
from goddard.errors import ProtocolError
from goddard.protocol.record import BLANK_BYTES, encode_blank
from goddard.store.errors import MessageIllegalError, StoreDiskError, StoreLayoutError, disk_errors
from goddard.store.log.block import QueueKey, RecordBlock
from goddard.store.log.records import (
    Chunk,
    LogEntry,
    PreparedRecord,
    Scan,
    ScanStop,
    deliver_time_ms,
    is_head,
    read_entry,
    store_time_of,
)
from goddard.store.log.segment import Segment, SegmentAllocator, load_offsets, segment_name
from goddard.store.log.zeroing import ZeroAhead

_CUT_COPY_BYTES: Final = 1 << 20
_MAX_SPARE_BYTES: Final = 64 << 20


class CommitLog:
    """Segments of one size, contiguous from ``min_offset``; bytes exist up to ``end_offset``."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        segment_bytes: int,
        max_record_bytes: int,
        delay_times_ms: tuple[int, ...],
        prezero: bool,
        worker: Worker,
    ) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._max_record_bytes = max_record_bytes
        self._spare_bytes = min(segment_bytes // 2, _MAX_SPARE_BYTES)
        self.delay_times_ms = delay_times_ms
        self._segments: list[Segment] = []
        self._allocator = SegmentAllocator(
            files, directory, segment_bytes, prezero=prezero, worker=worker
        )
        self._zeros = ZeroAhead(files, worker) if prezero else None
        # What a failed append may have left behind, past the end of the log.
        self._failed_writes: list[tuple[Segment, int, int]] = []
        self.directory = directory
        self.end_offset = 0
        self.last_store_timestamp_ms = 0

    # Opening and closing

    def load(self) -> None:
        """Take every file of the directory as full; recovery then finds the real end."""
        with disk_errors("create", self.directory):
            make_durable_directories(self._files, self.directory)
            self._files.sync_directory(self.directory.parent)
        size = self._segment_bytes
        remedy = (
            f". If that is not the size that the store was made with (mappedFileSizeCommitLog), the"
            f" file was cut short: `goddard store repair {self.directory.parent} --segment-bytes"
            f" {size} --copy-to COPY --yes` makes the store whole again as far as its records go"
        )
        offsets = load_offsets(self._files, self.directory, size, remedy)
        for before, after in pairwise(offsets):
            if after != before + self._segment_bytes:
                path = self.directory / segment_name(before + self._segment_bytes)
                raise StoreLayoutError(f"{path} is missing between its neighbours", path)
        self._segments = [
            Segment(self._files, self.directory / segment_name(offset), offset, self._segment_bytes)
            for offset in offsets
        ]
        self.end_offset = offsets[-1] + self._segment_bytes if offsets else 0

    def start_at(self, offset: int) -> None:
        """Begin an empty log at a segment boundary other than 0, as a new replica does."""
        if self._segments or offset % self._segment_bytes:
            raise ValueError(f"a log cannot begin at {offset} here")
        self._allocator.discard()  # made for another place
        self.end_offset = offset

    def close(self, *, clean: bool = True) -> None:
        self._allocator.discard(delete=clean)
        for segment in self._segments:
            segment.close()

    # Facts

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def min_offset(self) -> int:
        segments = self._segments
        return segments[0].base_offset if segments else self.end_offset

    def segment_at(self, offset: int) -> Segment | None:
        segments = self._segments
        if not segments:
            return None
        number = (offset - segments[0].base_offset) // self._segment_bytes
        return segments[number] if 0 <= number < len(segments) else None

    def has_record(self, offset: int, size: int) -> bool:
        """Whether a record of this size lies there, by its head; True for what has expired."""
        if offset < self.min_offset:
            return True
        segment = self.segment_at(offset)
        if segment is None or offset + size > segment.end_offset:
            return False
        return is_head(segment.view, offset - segment.base_offset, offset, size)

    # Appending

    def append(
        self,
        records: Sequence[PreparedRecord],
        next_offsets: dict[QueueKey, int],
        now_ms: int,
        *,
        whole: bool = False,
    ) -> list[LogEntry]:
        """Write a group; either every record of it is in the log afterwards, or none.

        ``next_offsets`` gives each queue's next offset and moves on with success. ``whole`` keeps
        the group in one segment, as the messages of one batch must be.
        """
        if self._failed_writes:
            self.clear_debris()
        placed: list[LogEntry] = []
        rolled: list[Segment] = []
        needed = self._bytes_of(records) if whole else 0
        try:
            end_offset = self._write(records, needed, next_offsets, now_ms, placed, rolled)
        except BaseException:  # whatever it is, no offset may be given twice or left out
            for entry in placed:
                if entry.has_queue_entry:
                    next_offsets[entry.topic, entry.queue_id] -= 1
            self._give_back(rolled)
            raise
        self._finish_append(end_offset, now_ms, rolled)
        return placed

    def append_block(
        self, block: RecordBlock, next_offsets: dict[QueueKey, int], now_ms: int
    ) -> None:
        """As ``append``, for records that were encoded elsewhere."""
        if self._failed_writes:
            self.clear_debris()
        keys = block.queue_keys
        queue_offsets = [next_offsets.get(key, 0) for key in keys]
        block.set_queue_offsets(queue_offsets)
        rolled: list[Segment] = []
        try:
            end_offset = self._write_block(block, now_ms, rolled)
        except BaseException:
            self._give_back(rolled)
            raise
        for key, queue_offset, count in zip(keys, queue_offsets, block.queue_messages, strict=True):
            next_offsets[key] = queue_offset + count
        self._finish_append(end_offset, now_ms, rolled)

    def _finish_append(self, end_offset: int, now_ms: int, rolled: list[Segment]) -> None:
        self._failed_writes.clear()
        self.end_offset = end_offset
        self.last_store_timestamp_ms = now_ms
        if rolled:
            self._segments.extend(rolled)
            self._allocator.prepare(rolled[-1].end_offset)

    def _give_back(self, rolled: list[Segment]) -> None:
        """Undo rolls. At most one file is kept: the next append will want it first."""
        for segment in rolled[1:]:
            segment.delete()
        if rolled:
            self._allocator.give_back(rolled[0])

    def _bytes_of(self, records: Sequence[PreparedRecord]) -> int:
        """The size of records that are to lie in one segment."""
        total = sum(record.size for record in records)
        if total + BLANK_BYTES > self._segment_bytes:
            raise MessageIllegalError("a batch is longer than a segment of the commit log")
        return total

    def _write(
        self,
        records: Iterable[PreparedRecord],
        needed: int,
        next_offsets: dict[QueueKey, int],
        now_ms: int,
        placed: list[LogEntry],
        rolled: list[Segment],
    ) -> int:
        """Encode and write; returns the new end. Fills ``placed`` and ``rolled`` as it goes.

        The first record must have room for all that is ``needed``.
        """
        segment = self.segment_at(self.end_offset) or self._roll(self.end_offset, rolled)
        start = offset = self.end_offset
        # The last offset at which something other than a filler may end.
        limit = segment.end_offset - BLANK_BYTES
        max_size = self._max_record_bytes
        chunk: Chunk = []
        new_entry = tuple.__new__  # half the time of a call of the class
        for record in records:
            size = record.size
            if size > max_size:
                raise MessageIllegalError(f"a record of {size} bytes is longer than {max_size}")
            if offset + (needed or size) > limit:
                segment = self._fill(segment, start, offset, chunk, rolled)
                start = offset = segment.base_offset
                limit = segment.end_offset - BLANK_BYTES
            request = record.request
            key = request.queue_key
            has_queue_entry = request.has_queue_entry
            queue_offset = next_offsets.get(key, 0) if has_queue_entry else 0
            tags_code = record.tags_code
            if record.delay_level:
                tags_code = deliver_time_ms(record.delay_level, now_ms, self.delay_times_ms)
            record.place(chunk, queue_offset, offset, now_ms)
            # From here to the end of the pass nothing can fail: offset and entry belong together.
            if has_queue_entry:
                next_offsets[key] = queue_offset + 1
            placed.append(
                new_entry(
                    LogEntry,
                    (
                        key[0],
                        key[1],
                        queue_offset,
                        offset,
                        size,
                        tags_code,
                        now_ms,
                        request.sys_flag,
                        record.properties,
                    ),
                )
            )
            needed = 0
            offset += size
        self._put(segment, start, offset, chunk)
        return offset

    def _write_block(self, block: RecordBlock, now_ms: int, rolled: list[Segment]) -> int:
        """Place and write all records of a block; returns the new end. Fills ``rolled``."""
        segment = self.segment_at(self.end_offset) or self._roll(self.end_offset, rolled)
        offset = self.end_offset
        while True:
            data = block.place(offset, segment.end_offset - BLANK_BYTES - offset, now_ms)
            if block.is_placed:
                self._write_at(segment, offset - segment.base_offset, data)
                return offset + len(data)
            if not data and offset == segment.base_offset:
                raise MessageIllegalError("a batch is longer than a segment of the commit log")
            end = offset + len(data)
            following = self._roll(segment.end_offset, rolled)
            data += encode_blank(segment.end_offset - end)
            self._write_at(segment, offset - segment.base_offset, data)
            segment, offset = following, following.base_offset

    def _fill(
        self, segment: Segment, start: int, end: int, chunk: Chunk, rolled: list[Segment]
    ) -> Segment:
        """Write the chunk and the filler that ends a segment; returns the one that follows."""
        chunk.append(encode_blank(segment.end_offset - end))
        following = self._roll(segment.end_offset, rolled)
        self._put(segment, start, end + BLANK_BYTES, chunk)
        chunk.clear()
        return following

    def _put(self, segment: Segment, start: int, end: int, chunk: Chunk) -> None:
        data = b"".join(chunk)
        if len(data) != end - start:  # would make every later record unreadable
            raise ValueError(f"records of {len(data)} bytes say that they have {end - start}")
        position = start - segment.base_offset
        self._write_at(segment, position, data)

    def _write_at(self, segment: Segment, position: int, data: bytes | memoryview) -> None:
        end = position + len(data)
        self._failed_writes.append((segment, position, end))
        if self._zeros is not None:
            self._zeros.reserve(segment, end)
        segment.write(position, data)

    def _roll(self, offset: int, rolled: list[Segment]) -> Segment:
        segment = self._allocator.take(offset)
        rolled.append(segment)
        return segment

    def clear_debris(self) -> None:
        """Zero what a failed append left; until that succeeds nothing new is written over it.

        Whole records could lie there, and would come back to life behind a shorter append.
        """
        while self._failed_writes:
            segment, start, end = self._failed_writes[-1]
            if self.segment_at(segment.base_offset) is segment:
                segment.zero(start, end)
            else:  # a segment given back to the allocator: use a fresh one instead
                self._allocator.discard()
            self._failed_writes.pop()

    def append_raw(self, data: bytes | memoryview) -> None:
        """Add bytes of another log as they are (replication); they must not cross a segment."""
        self.clear_debris()
        rolled: list[Segment] = []
        segment = self.segment_at(self.end_offset) or self._roll(self.end_offset, rolled)
        position = self.end_offset - segment.base_offset
        if position + len(data) > segment.size:
            raise ValueError("raw bytes cross the end of a segment")
        try:
            self._write_at(segment, position, data)
        except StoreDiskError:
            if rolled:
                self._allocator.give_back(segment)
            raise
        self._failed_writes.clear()
        self._segments.extend(rolled)
        self.end_offset += len(data)

    # Reading

    def read(self, physical_offset: int, size: int) -> memoryview | None:
        """Bytes of the log, uncopied; None when they are not (or no longer) there.

        A range over several segments comes as a copy.
        """
        if physical_offset < 0 or size < 0 or physical_offset + size > self.end_offset:
            return None
        segment = self.segment_at(physical_offset)
        if segment is None:
            return None
        position = physical_offset - segment.base_offset
        if position + size <= segment.size:
            return segment.view[position : position + size]
        pieces = bytearray(segment.view[position:])
        while len(pieces) < size:
            segment = self.segment_at(physical_offset + len(pieces))
            if segment is None:
                return None
            pieces += segment.view[: size - len(pieces)]
        return memoryview(pieces).toreadonly()

    def is_cached(self, physical_offset: int) -> bool:
        """Whether reading a byte will not wait for the disk."""
        segment = self.segment_at(physical_offset)
        return segment is None or segment.is_cached(physical_offset - segment.base_offset)

    def tail(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """What follows an offset within its segment, at most ``max_bytes`` (replication)."""
        segment = self.segment_at(physical_offset)
        if segment is None or physical_offset > self.end_offset:
            return None
        size = min(max_bytes, segment.end_offset - physical_offset)
        return self.read(physical_offset, min(size, self.end_offset - physical_offset))

    def entry_at(self, physical_offset: int) -> LogEntry | None:
        """What dispatch knows of the record at an offset; None when no record starts there."""
        segment = self.segment_at(physical_offset)
        if segment is None or not 0 <= physical_offset < self.end_offset:
            return None
        position = physical_offset - segment.base_offset
        limit = min(self.end_offset - segment.base_offset, segment.size)
        try:
            return read_entry(
                segment.view[:limit],
                position,
                physical_offset,
                check_crc=False,
                delay_times_ms=self.delay_times_ms,
            )
        except ProtocolError:
            return None

    def store_time_ms(self, physical_offset: int, size: int) -> int | None:
        view = self.read(physical_offset, size)
        return None if view is None or size < 64 + BLANK_BYTES else store_time_of(view)

    def scan(self, physical_offset: int, *, check_crc: bool = True) -> Iterator[LogEntry]:
        """The records from an offset to the end of the log, across fillers."""
        while (
            physical_offset < self.end_offset
            and (segment := self.segment_at(physical_offset)) is not None
        ):
            limit = min(segment.size, self.end_offset - segment.base_offset)
            scan = self.scan_segment(
                segment,
                physical_offset - segment.base_offset,
                check_crc=check_crc,
                limit=limit,
            )
            yield from scan
            if scan.stop is ScanStop.INVALID:
                return  # the end of a record that is not all there yet, or damage
            physical_offset = segment.end_offset

    def scan_segment(
        self,
        segment: Segment,
        position: int = 0,
        *,
        check_crc: bool = True,
        limit: int | None = None,
    ) -> Scan:
        return Scan(
            segment.view if limit is None else segment.view[:limit],
            segment.base_offset,
            position=position,
            check_crc=check_crc,
            delay_times_ms=self.delay_times_ms,
        )

    # Shortening

    def truncate(self, offset: int) -> None:
        """Make ``offset`` the end: later segments go, the rest of its own reads as zeros.

        Java leaves the old bytes; behind a new record of the same size they would read as records.
        """
        while self._segments and self._segments[-1].base_offset >= max(offset, 1):
            self._segments.pop().delete()
        segment = self.segment_at(offset)
        if segment is not None:
            segment.zero(offset - segment.base_offset, segment.size)
            segment.sync()
        self._allocator.discard()
        self.end_offset = offset

    def forget_first(self, count: int) -> list[Segment]:
        """Take the oldest segments out of the log; the caller deletes their files."""
        gone, self._segments = self._segments[:count], self._segments[count:]
        return gone

    @property
    def is_room_prepared(self) -> bool:
        """Whether an append will not wait for the creation of a segment.

        True while half a segment, or 64 MiB, is left. The next segment is created when the previous
        one is taken, so only a slow disk or a log of small segments can make this False.
        """
        end = self._segments[-1].end_offset if self._segments else self.end_offset
        return end - self.end_offset >= self._spare_bytes or self._allocator.is_prepared(end)

    def set_on_prepared(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, in a worker, when ``is_room_prepared`` may have changed."""
        self._allocator.on_prepared = callback

    def prepare_next(self) -> None:
        """Have the segment made that an append will want next."""
        segment = self.segment_at(self.end_offset)
        self._allocator.prepare(self.end_offset if segment is None else segment.end_offset)

    def stop_preparing(self) -> None:
        """Shorten what the worker may be doing, before it is stopped."""
        self._allocator.stop_prezeroing()
        if self._zeros is not None:
            self._zeros.stop()

    def first_store_time_ms(self, segment: Segment) -> int | None:
        """The store time of a segment's first record; None when it does not begin with one."""
        try:
            entry = read_entry(segment.view, 0, segment.base_offset, check_crc=False)
        except ProtocolError:
            return None
        return entry.store_timestamp_ms
