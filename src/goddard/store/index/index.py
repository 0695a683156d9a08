"""The key index: from ``topic#key`` to the records that carry the key, newest first.

A file is a 40-byte header (i64 begin time, end time, begin offset, end offset; i32 used slots, i32
entry count, which starts at 1), then i32 slots, then 20-byte entries: i32 hash of the key, i64
physical offset, i32 seconds since the begin time, i32 number of the entry before it in its slot.
A slot holds the number of its newest entry; entry 0 is never used.

Records gather in memory (``add``, cheap, from the appending thread) and are entered in bulk by
the caller of ``write_pending``, a worker of the store as a rule: the hashing, the touched pages and
the making of new files cost the appender nothing. The slots (random access) are written through a
mapping of blocks reserved beforehand, the entries by ``pwrite``, so that a full disk is an error
and not a signal. Written in the order entries, slots, header; after a crash ``repair`` links the
entries again. The index has a lock of its own, the last to be taken; queries do not hold it while
they read entries.
"""

import mmap
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goddard.clock import Clock, format_local_time
from goddard.environment.files import Files, make_durable_directories
from goddard.protocol.hashing import index_hash
from goddard.store.errors import QueryCancelledError, StoreLayoutError, disk_errors
from goddard.store.index.keys import hash_columns, hash_keys
from goddard.store.index.links import (
    ENTRY,
    ENTRY_DTYPE,
    fill_slots,
    find_in_slot,
    link_entries,
)
from goddard.store.log.block import RecordBlock
from goddard.store.log.records import LogEntry

HEADER: Final = Struct(">4q2i")
SLOT_BYTES: Final = 4
_COUNT: Final = Struct(">i")
_COUNT_AT: Final = HEADER.size - _COUNT.size
MAX_RESULTS: Final = 64
_MAX_PENDING_RECORDS: Final = 16_384
_CHUNK_ENTRIES: Final = 65_536
_MAX_INT32: Final = 0x7FFFFFFF

Ints = npt.NDArray[np.int64]


class KeyMatch(NamedTuple):
    """What an index query found, oldest first, and how far the index reaches."""

    physical_offsets: list[int]
    last_time_ms: int
    last_physical_offset: int


class IndexDamage(NamedTuple):
    """A file that cannot be used, and from which offset on records must be entered again."""

    path: Path
    physical_offset: int
    text: str


class Slot(NamedTuple):
    """The entries of one slot of a file, which can be read while others are added."""

    path: Path
    file_bytes: int
    entries_at: int
    newest: int
    begin_time_ms: int

    def find(
        self,
        files: Files,
        key_hash: int,
        limit: int,
        begin_ms: int,
        end_ms: int,
        is_cancelled: Callable[[], bool],
    ) -> list[int]:
        """Offsets of records with this hash in a time window, newest first, at most ``limit``."""
        found: list[int] = []
        number = self.newest
        # A descriptor of its own: retention may delete the file meanwhile.
        with disk_errors("read", self.path):
            try:
                fd = files.open(self.path, writable=False)
            except FileNotFoundError:
                return []  # its records have left the log
            try:
                data = files.map(fd, self.file_bytes)
            finally:
                files.close(fd)
        while number > 0 and len(found) < limit:
            if is_cancelled():
                raise QueryCancelledError(f"the query of {self.path} was cancelled")
            number, offsets = find_in_slot(
                data,
                self.entries_at,
                number,
                key_hash,
                self.begin_time_ms,
                begin_ms,
                end_ms,
                limit - len(found),
            )
            found += offsets
        return found


class IndexFile:
    """One file of the index, open for reading and adding."""

    def __init__(self, files: Files, path: Path, slots: int, entries: int) -> None:
        self._files = files
        self._slots = slots
        self._capacity = entries
        self._entries_at = HEADER.size + slots * SLOT_BYTES
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._table: npt.NDArray[np.int32] | None = None
        self.path = path
        self.begin_time_ms = 0
        self.end_time_ms = 0
        self.begin_offset = 0
        self.end_offset = 0
        self.used_slots = 0
        self.count = 1

    @property
    def size(self) -> int:
        return self._entries_at + self._capacity * ENTRY.size

    @property
    def is_full(self) -> bool:
        return self.count >= self._capacity

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    def create(self, before: "IndexFile | None") -> None:
        """Make the file; it begins where ``before`` ended. On an error nothing is left."""
        with disk_errors("create", self.path):
            self._fd = self._files.create(self.path, self.size)
            try:
                self._map_slots(writable=True)
            except OSError:
                self.close()
                self._files.unlink(self.path)
                raise
        if before is not None:
            self.begin_time_ms = self.end_time_ms = before.end_time_ms
            self.begin_offset = self.end_offset = before.end_offset
        self.write_header()

    def load(self, *, writable: bool) -> None:
        with disk_errors("open", self.path):
            facts = self._files.facts(self.path)
            if facts is None or facts.size != self.size:
                raise StoreLayoutError(
                    f"{self.path} has {facts.size if facts else 0} bytes, the configuration says"
                    f" {self.size}",
                    self.path,
                )
            self._fd = self._files.open(self.path)
            self._map_slots(writable=writable)
            values = HEADER.unpack(self._files.pread(self._fd, HEADER.size, 0))
        self.begin_time_ms, self.end_time_ms, self.begin_offset, self.end_offset = values[:4]
        self.used_slots = values[4]
        self.count = min(max(values[5], 1), self._capacity)

    def header_problem(self, log_end: int, *, is_settled: bool) -> str | None:
        """What contradicts the header, None if nothing does.

        ``is_settled``: header and entries were written together, which a crash may prevent.
        """
        (count,) = _COUNT.unpack(self._files.pread(self._fd, _COUNT.size, _COUNT_AT))
        if not 0 <= count <= self._capacity or self.used_slots < 0:
            return f"its header says {count} entries, {self._capacity} is the most"
        if not 0 <= self.begin_offset <= self.end_offset < max(log_end, 1):
            return f"its header says offsets {self.begin_offset} to {self.end_offset}"
        if self.begin_time_ms < 0 or self.end_time_ms < 0:
            return f"its header says times {self.begin_time_ms} to {self.end_time_ms}"
        if not is_settled:
            return None
        first = self._entry_bytes(1)
        if self.is_empty:
            return "its header says that it is empty, and it is not" if any(first) else None
        ends = ENTRY.unpack(first)[1], ENTRY.unpack(self._entry_bytes(self.count - 1))[1]
        if ends != (self.begin_offset, self.end_offset):
            return "its header does not agree with its first and last entry"
        return None

    def _entry_bytes(self, number: int) -> bytes:
        return self._files.pread(self._fd, ENTRY.size, self._entries_at + number * ENTRY.size)

    def _map_slots(self, *, writable: bool) -> npt.NDArray[np.int32]:
        if writable:  # blocks first: writing a mapped hole on a full disk would end the process
            self._files.allocate(self._fd, 0, self._entries_at)
        self._map = self._files.map(self._fd, self._entries_at, writable=writable)
        self._table = np.frombuffer(self._map, ">i4", self._slots, HEADER.size)
        return self._table

    def add(self, hashes: Ints, offsets: Ints, times_ms: Ints) -> int:
        """Add what fits of the given entries; returns how many did."""
        number = min(len(hashes), self._capacity - self.count)
        if number <= 0:
            return 0
        hashes, offsets, times_ms = hashes[:number], offsets[:number], times_ms[:number]
        # A file's first entry counts from what the header said before it.
        begins = np.full(number, self.begin_time_ms, dtype=np.int64)
        begin_time_ms, begin_offset = self.begin_time_ms, self.begin_offset
        if self.is_empty:
            begin_time_ms, begin_offset = int(times_ms[0]), int(offsets[0])
            begins[1:] = begin_time_ms
        seconds = np.clip((times_ms - begins) // 1000, 0, _MAX_INT32)
        seconds[begins <= 0] = 0
        entries = np.empty(number, dtype=ENTRY_DTYPE)
        entries["hash"] = hashes
        entries["offset"] = offsets
        entries["seconds"] = seconds
        self._append(entries)
        self.begin_time_ms, self.begin_offset = begin_time_ms, begin_offset
        self.end_time_ms, self.end_offset = int(times_ms[-1]), int(offsets[-1])
        self.write_header()
        return number

    def _append(self, entries: npt.NDArray[Any]) -> None:
        """Link entries into their slots and write them; the header is the caller's."""
        assert self._table is not None
        new_slots = link_entries(entries, self._table, self.count)
        position = self._entries_at + self.count * ENTRY.size
        with disk_errors("write", self.path):
            self._files.pwrite(self._fd, entries.tobytes(), position)
        fill_slots(entries, self._table, self.count)
        self.used_slots += new_slots
        self.count += len(entries)

    def slot(self, key_hash: int) -> "Slot":
        """The entries that have the hash's slot now; those that follow are not part of it."""
        assert self._table is not None
        number = int(self._table[key_hash % self._slots])
        return Slot(
            self.path,
            self.size,
            self._entries_at,
            number if number < self.count else 0,
            self.begin_time_ms,
        )

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_time_ms and end_ms >= self.begin_time_ms

    def repair(self, keep_below: int) -> bool:
        """Link again the entries of records before an offset of the log and drop the others.

        True when entries that should be there turned out to be damaged. The header is the caller's
        to write: until it is, they will be seen to be damaged again.
        """
        with disk_errors("map", self.path):
            table = self._map_slots(writable=True)
        old_count = self.count
        table[:] = 0
        self.count = 1
        self.used_slots = 0
        last_offset = -1
        last_seconds = 0
        is_damaged = False
        while self.count < old_count and not is_damaged:
            size = min(_CHUNK_ENTRIES, old_count - self.count) * ENTRY.size
            with disk_errors("read", self.path):
                data = self._files.pread(self._fd, size, self._entries_at + self.count * ENTRY.size)
            entries = np.frombuffer(data, dtype=ENTRY_DTYPE).copy()
            offsets = entries["offset"].astype(np.int64)
            before = np.concatenate(([last_offset], np.maximum.accumulate(offsets)[:-1]))
            is_good = (offsets >= before) & (entries["hash"] >= 0) & (entries["seconds"] >= 0)
            is_kept = is_good & (offsets < keep_below)
            kept = len(entries) if is_kept.all() else int(is_kept.argmin())
            if kept:
                self._append(entries[:kept])
                last_offset = int(offsets[kept - 1])
                last_seconds = int(entries["seconds"][kept - 1])
            if kept < len(entries):
                is_damaged = not bool(is_good[kept])
                break
        if self.is_empty:
            self.end_time_ms, self.end_offset = self.begin_time_ms, self.begin_offset
        elif last_offset != self.end_offset:
            self.end_offset = last_offset
            self.end_time_ms = self.begin_time_ms + last_seconds * 1000
        return is_damaged

    def write_header(self) -> None:
        assert self._map is not None
        self._map[: HEADER.size] = HEADER.pack(
            self.begin_time_ms,
            self.end_time_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    def close(self) -> None:
        self._table = None
        if self._map is not None:
            with suppress(BufferError):  # an error on its way up has a view; the map goes with it
                self._map.close()
            self._map = None
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def delete(self) -> None:
        self.close()
        with disk_errors("delete", self.path):
            self._files.unlink(self.path)


class _Keys(NamedTuple):
    """The keys of records: for each its hash, and the offset and store time of its record."""

    hashes: Ints
    offsets: Ints
    times_ms: Ints


class _KeyColumns(NamedTuple):
    """What the index needs of a block of records; see ``RecordBlock.key_columns``."""

    properties: bytes
    ends: bytes
    topic_hashes: bytes
    sys_flags: bytes
    physical_offsets: bytes
    time_ms: int

    @property
    def records(self) -> int:
        return len(self.topic_hashes) // 4


def _keys_of_entries(entries: Sequence[LogEntry], *, is_tag_indexed: bool) -> _Keys:
    rows, hashes = hash_keys(
        [entry.topic for entry in entries],
        [entry.properties for entry in entries],
        [entry.sys_flag for entry in entries],
        is_tag_indexed=is_tag_indexed,
    )
    offsets = np.array([entry.physical_offset for entry in entries], dtype=np.int64)
    times_ms = np.array([entry.store_timestamp_ms for entry in entries], dtype=np.int64)
    return _Keys(hashes, offsets[rows], times_ms[rows])


def _keys_of_columns(blocks: Sequence[_KeyColumns], *, is_tag_indexed: bool) -> _Keys:
    counts = np.array([block.records for block in blocks], dtype=np.int64)
    # Where the properties of each block begin in those of all.
    starts = np.cumsum([0] + [len(block.properties) for block in blocks[:-1]])
    ends = np.frombuffer(b"".join(block.ends for block in blocks), np.int64)
    rows, hashes = hash_columns(
        b"".join(block.properties for block in blocks),
        ends + np.repeat(starts, counts),
        np.frombuffer(b"".join(block.topic_hashes for block in blocks), np.uint32),
        np.frombuffer(b"".join(block.sys_flags for block in blocks), np.int64),
        is_tag_indexed=is_tag_indexed,
    )
    offsets = np.frombuffer(b"".join(block.physical_offsets for block in blocks), np.int64)
    times_ms = np.repeat(np.array([block.time_ms for block in blocks], dtype=np.int64), counts)
    return _Keys(hashes, offsets[rows], times_ms[rows])


class KeyIndex:
    """The index files, oldest first, and the records that have yet to enter them."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        clock: Clock,
        *,
        slots: int,
        entries: int,
        is_tag_indexed: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self._clock = clock
        self._slots = slots
        self._entries = entries
        self._is_tag_indexed = is_tag_indexed
        self._index_files: list[IndexFile] = []
        self._lock = threading.Lock()
        # Filled at one end by the appender, emptied at the other under the lock.
        self._gathered: deque[list[LogEntry] | _KeyColumns] = deque()
        self._gathered_count = 0
        self._taken_count = 0
        # Hashes, offsets and times of what was taken from there and could not be entered.
        self._not_written: tuple[Ints, Ints, Ints] | None = None
        self._unsynced: dict[Path, None] = {}
        self._discarded: list[IndexFile] = []

    @property
    def files(self) -> Sequence[IndexFile]:
        return self._index_files

    def load(self) -> None:
        with disk_errors("list", self._directory):
            make_durable_directories(self._files, self._directory)
            names = self._files.names(self._directory)
        for name in names:
            path = self._directory / name
            if not (name.isascii() and name.isdigit()):
                raise StoreLayoutError(f"{path} does not belong into an index directory", path)
            with disk_errors("open", path):
                facts = self._files.facts(path)
                if facts is not None and facts.size == 0 and name == names[-1]:
                    self._files.unlink(path)  # a crash between creation and sizing
                    continue
            index_file = self._new_file(path)
            index_file.load(writable=name == names[-1])
            self._index_files.append(index_file)

    def discard_damaged(self, log_end: int, *, is_clean: bool) -> "IndexDamage | None":
        """Take out the first file whose header is damaged, and those after it, as order demands.

        The files go with ``delete_discarded``, once it is certain that the store opens.
        """
        for place, index_file in enumerate(self._index_files):
            is_last = place == len(self._index_files) - 1
            with disk_errors("read", index_file.path):
                problem = index_file.header_problem(log_end, is_settled=is_clean or not is_last)
            if problem is not None:
                break
        else:
            return None
        self._discarded = self._index_files[place:]
        del self._index_files[place:]
        if not self._index_files:
            return IndexDamage(index_file.path, 0, problem)
        last = self._index_files[-1]
        last.close()
        last.load(writable=True)
        return IndexDamage(index_file.path, last.end_offset, problem)

    def delete_discarded(self) -> None:
        while self._discarded:
            index_file = self._discarded.pop()
            self._unsynced[self._directory] = None
            index_file.delete()

    def repair(
        self, keep_below: int, trusted_time_ms: int, before_loss: Callable[[int], None]
    ) -> int | None:
        """Bring the files in line with a log that will be dispatched again from ``keep_below``.

        Files that ended by ``trusted_time_ms`` are complete. Returns None, or the offset from which
        records must be added again because entries are missing; ``before_loss`` is told it while
        the damage can still be seen.
        """
        missing_from: int | None = None
        while self._index_files:
            last = self._index_files[-1]
            if last.is_empty or last.begin_offset >= keep_below:
                self._index_files.pop().delete()
                continue
            break
        for place, index_file in enumerate(self._index_files):
            is_last = place == len(self._index_files) - 1
            if index_file.end_time_ms <= trusted_time_ms and not is_last:
                continue
            self._unsynced[index_file.path] = None
            is_damaged = index_file.repair(keep_below)
            if is_damaged:
                missing_from = index_file.end_offset
                before_loss(missing_from)
            index_file.write_header()
            if is_damaged:
                for following in self._index_files[place + 1 :]:
                    following.delete()
                del self._index_files[place + 1 :]
                break
        return 0 if not self._index_files else missing_from

    @property
    def waiting_count(self) -> int:
        """How many records have been gathered and not entered, nor been tried to."""
        return self._gathered_count - self._taken_count

    @property
    def is_behind(self) -> bool:
        """Whether so many records wait that no more should be appended."""
        return self.waiting_count >= _MAX_PENDING_RECORDS

    def add(self, entries: Sequence[LogEntry]) -> None:
        """Gather records for ``write_pending``."""
        self._gather(list(entries), len(entries))

    def add_block(self, block: RecordBlock) -> None:
        """As ``add``, for the records of a block."""
        columns = _KeyColumns(*block.key_columns(), block.store_timestamp_ms)
        self._gather(columns, columns.records)

    def _gather(self, records: list[LogEntry] | _KeyColumns, count: int) -> None:
        self._gathered.append(records)
        self._gathered_count += count

    def write_pending(self) -> None:
        """Enter the gathered records; on an error those not entered stay gathered."""
        with self._lock:
            self._enter_gathered()

    def _enter_gathered(self) -> None:
        if self._not_written is not None:
            self._enter(*self._not_written)
        parts = self._take_gathered()
        if not parts:
            return
        keys = parts[0]
        if len(parts) > 1:
            keys = _Keys(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        last = self._index_files[-1] if self._index_files else None
        if last is not None and not last.is_empty and (keys.offsets <= last.end_offset).any():
            is_new = keys.offsets > last.end_offset
            keys = _Keys(*(column[is_new] for column in keys))
        self._enter(*keys)

    def _take_gathered(self) -> list[_Keys]:
        """The keys of what was gathered, in its order."""
        parts: list[_Keys] = []
        while self._gathered:
            entries: list[LogEntry] = []
            blocks: list[_KeyColumns] = []
            while self._gathered:  # as many of one kind as come in a row
                records = self._gathered[0]
                if isinstance(records, list):
                    if blocks:
                        break
                    entries += records
                    self._taken_count += len(records)
                else:
                    if entries:
                        break
                    blocks.append(records)
                    self._taken_count += records.records
                self._gathered.popleft()
            if entries:
                parts.append(_keys_of_entries(entries, is_tag_indexed=self._is_tag_indexed))
            if blocks:
                parts.append(_keys_of_columns(blocks, is_tag_indexed=self._is_tag_indexed))
        return parts

    def _enter(self, hashes: Ints, offsets: Ints, times_ms: Ints) -> None:
        """The keys of one record may be in two files, so what is left is known key by key."""
        while len(hashes):
            self._not_written = hashes, offsets, times_ms
            last = self._index_files[-1] if self._index_files else None
            if last is None or last.is_full:
                last = self._roll(last)
            count = last.add(hashes, offsets, times_ms)
            self._unsynced[last.path] = None
            hashes, offsets, times_ms = hashes[count:], offsets[count:], times_ms[count:]
        self._not_written = None

    def _roll(self, before: IndexFile | None) -> IndexFile:
        now_ms = self._clock.now_ms()
        name = int(format_local_time("%Y%m%d%H%M%S", now_ms) + f"{now_ms % 1000:03d}")
        for other in (before, *self._discarded):
            if other is not None:
                name = max(name, int(other.path.name) + 1)
        index_file = self._new_file(self._directory / f"{name:017d}")
        index_file.create(before)
        self._index_files.append(index_file)
        self._unsynced[self._directory] = None
        return index_file

    def _new_file(self, path: Path) -> IndexFile:
        return IndexFile(self._files, path, self._slots, self._entries)

    def find(
        self,
        topic: str,
        key: str,
        limit: int,
        begin_ms: int,
        end_ms: int,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> KeyMatch:
        """Records that carry a key; different keys may share a hash, so the reader compares.

        It may read millions of entries, so it is nothing for a loop; the lock is not held while it
        does. Once ``is_cancelled`` returns True it ends with a QueryCancelledError.
        """
        limit = min(limit, MAX_RESULTS)
        key_hash = index_hash(f"{topic}#{key}")
        slots: list[Slot] = []
        with self._lock:
            self._enter_gathered()
            last = self._index_files[-1] if self._index_files else None
            last_time_ms = last.end_time_ms if last else 0
            last_offset = last.end_offset if last else 0
            for index_file in reversed(self._index_files):
                if index_file.overlaps(begin_ms, end_ms):
                    slots.append(index_file.slot(key_hash))
                if index_file.begin_time_ms < begin_ms:
                    break
        offsets: list[int] = []
        for slot in slots:
            if slot.newest and len(offsets) < limit:
                wanted = limit - len(offsets)
                offsets += slot.find(self._files, key_hash, wanted, begin_ms, end_ms, is_cancelled)
        return KeyMatch(sorted(offsets), last_time_ms, last_offset)

    def take_unsynced(self) -> dict[Path, None]:
        """What was changed or made since the last call; the caller syncs it."""
        with self._lock:
            paths, self._unsynced = self._unsynced, {}
        return paths

    def delete_before(self, log_min_offset: int) -> int:
        """Delete leading files (never the last) whose every record is gone."""
        gone: list[IndexFile] = []
        with self._lock:
            while len(self._index_files) > 1 and self._index_files[0].end_offset < log_min_offset:
                index_file = self._index_files.pop(0)
                self._unsynced.pop(index_file.path, None)
                gone.append(index_file)
        for index_file in gone:
            index_file.delete()
        return len(gone)

    def destroy(self) -> None:
        with self._lock:
            self._gathered.clear()
            self._gathered_count = self._taken_count = 0
            self._not_written = None
            self._unsynced.clear()
            while self._index_files:
                self._index_files.pop().delete()

    def close(self) -> None:
        for index_file in (*self._index_files, *self._discarded):
            index_file.close()
