"""Consume queues: for each topic and queue id, where its messages lie in the commit log.

Entry ``n`` of a queue, 20 bytes (``entry``), sits at byte ``n * 20`` of a row of fixed-size
files that are named by the byte offset of their beginning. A queue that starts in mid-file has
blank entries before its first.

New entries gather in memory and go to the file some hundred at a time; reads see both. What a crash
loses of them, recovery reads from the commit log again. The store's lock guards every call, except
those that create or delete files.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from itertools import starmap
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from goddard.environment.files import Files
from goddard.store.config import QUEUE_ENTRY_BYTES
from goddard.store.errors import disk_error, disk_errors
from goddard.store.log.records import LogEntry
from goddard.store.log.segment import load_offsets, segment_name
from goddard.store.queues.entry import (
    BLANK,
    BLANK_SIZE,
    ENTRY,
    MAX_OFFSET,
    QueueEntry,
    count_valid,
    count_valid_bulk,
)

_PENDING_BYTES: Final = 4096 // QUEUE_ENTRY_BYTES * QUEUE_ENTRY_BYTES
# Most queues are short, so reading begins small and grows: bytes of a hole cost memory, too.
_PAGE_BYTES: Final = 4096
_FIRST_SCAN_BYTES: Final = -(-_PAGE_BYTES // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES
_SCAN_BYTES: Final = 64 * _FIRST_SCAN_BYTES
_REST_BYTES: Final = 1 << 20
_QUEUE_OFFSET: Final = itemgetter(2)  # of a LogEntry
_PLACE: Final = itemgetter(3, 4, 5)  # of a LogEntry: physical offset, size, tags code
_RECOVERED_FILES: Final = 3  # Java trusts all but the last three files of a queue

NAMES: Final = -1  # stands for a queue's directories where else the base of a file is said

# Tells whether the log has a record at an offset, of a size.
HasRecord: TypeAlias = Callable[[int, int], bool]


class Boundary(Enum):
    """Which message a time search wants when several, or none, have exactly that time."""

    LOWER = "lower"
    UPPER = "upper"


class _QueueScan(NamedTuple):
    """What a walk over the last files of a queue found."""

    first_physical_offset: int | None  # of the first entry, unless it is blank
    last: tuple[int, int] | None  # physical offset and size of the last entry
    follower: int | None  # the physical offset of a whole entry after it that is out of order
    zeros_to: int  # where in the queue what is known to be nothing but zeros after it ends


class QueueFiles:
    """What all queues share: a bounded number of open descriptors, and who has work left to do.

    The descriptor that was not used for longest is closed first.
    """

    def __init__(self, files: Files, capacity: int) -> None:
        self._files = files
        self._capacity = capacity
        # By the text of the path: a Path takes ten times as long to look up.
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        # Queues with entries in memory.
        self.waiting: dict[ConsumeQueue, None] = {}
        # What was written since the last sync: each file as its queue and base, which are quicker
        # to remember than paths, and by NAMES the directories in which a queue is found.
        self.unsynced: dict[tuple[ConsumeQueue, int], None] = {}

    def get(self, path: Path) -> int:
        name = str(path)
        fd = self._descriptors.get(name)
        if fd is None:
            fd = self._files.open(path)
            self.keep(path, fd)
        else:
            self._descriptors.move_to_end(name)
        return fd

    def keep(self, path: Path, fd: int) -> None:
        """Take over a descriptor."""
        self.forget(path)
        self._descriptors[str(path)] = fd
        if len(self._descriptors) > self._capacity:
            self._files.close(self._descriptors.popitem(last=False)[1])

    def forget(self, path: Path) -> None:
        fd = self._descriptors.pop(str(path), None)
        if fd is not None:
            self._files.close(fd)

    def close(self) -> None:
        while self._descriptors:
            self._files.close(self._descriptors.popitem()[1])


class ConsumeQueue:
    """One queue. Its entries are ``min_offset`` up to, not including, ``max_offset``."""

    __slots__ = (
        "_bases",
        "_directory",
        "_file_bytes",
        "_files",
        "_lost_bases",
        "_min_physical_offset",
        "_pending",
        "_read_base",
        "_read_path",
        "_shared",
        "_stale_to",
        "_written",
        "loaded_offset",
        "max_physical_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        files: Files,
        shared: QueueFiles,
        directory: Path,
        topic: str,
        queue_id: int,
        file_bytes: int,
    ) -> None:
        self._files = files
        self._shared = shared
        self._directory = directory
        self._file_bytes = file_bytes
        self._bases: list[int] = []
        self._lost_bases: Sequence[int] = ()  # of files behind a hole, until ``clear_rest``
        self._pending = bytearray()
        self._written = 0  # bytes in files; the pending ones follow
        # Up to here files may hold entries that were cut, until others or zeros are over them.
        self._stale_to = 0
        # The file last read, for readers mostly go on where they were: making a path takes time.
        self._read_base = -1
        self._read_path = directory
        # Of the entry at min_offset, when it is known: then nothing need be read to keep it there.
        self._min_physical_offset = -1
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        # Where the queue ended when the store was opened: what follows was appended since.
        self.loaded_offset = 0
        # The end of the last record that has an entry: older ones are duplicates.
        self.max_physical_offset = 0

    @property
    def max_offset(self) -> int:
        return (self._written + len(self._pending)) // QUEUE_ENTRY_BYTES

    @property
    def directory(self) -> Path:
        return self._directory

    def is_cached(self, queue_offset: int) -> bool:
        """Whether reading an entry will not wait for the disk."""
        position = queue_offset * QUEUE_ENTRY_BYTES
        if position >= self._written:
            return True
        base = position // self._file_bytes * self._file_bytes
        path = self._path_of(base)
        try:
            return self._files.is_cached(self._shared.get(path), position - base)
        except OSError as error:
            raise disk_error("read", path, error) from error

    def path_at(self, queue_offset: int) -> tuple[Path, int]:
        """The file of an entry, and the position in it."""
        position = queue_offset * QUEUE_ENTRY_BYTES
        base = position // self._file_bytes * self._file_bytes
        return self._directory / segment_name(base), position - base

    def unsynced_paths(self, base: int) -> Iterator[Path]:
        """What a note of ``QueueFiles.unsynced`` stands for."""
        if base == NAMES:
            yield from (self._directory, *self._directory.parents[:2])
        else:
            yield self._directory / segment_name(base)

    @property
    def file_count(self) -> int:
        return len(self._bases)

    # Opening

    def load(self, has_record: HasRecord, log_min_offset: int = 0) -> int | None:
        """Find the end, and the first entry whose record still exists, among the files there are.

        Returns None, or the physical offset from which entries must be made again because the
        ones there are damaged, or point where there is no record. Those no longer count, but stay
        in the files until ``clear_rest``: if the store cannot be opened after all, the next opening
        must see them again.
        """
        refill_from = self._find_files()
        if not self._bases:
            return refill_from
        place = max(0, len(self._bases) - _RECOVERED_FILES)
        self._written = self._bases[place]
        if place:
            self._restore_last(self.entry(self._written // QUEUE_ENTRY_BYTES - 1))
        scan = self._scan_end()
        last = scan.last
        if not self._has_rest(scan.zeros_to):
            self._delete_files_past_end()
        else:
            last = None
            if scan.follower is not None:
                # Of two entries out of order either may be the wrong one: both are made again.
                self._forget_from(self._find_end(scan.follower))
                if self.max_physical_offset > scan.follower:
                    self._forget_from(self.max_offset - 1)
            if refill_from is None:
                refill_from = self.max_physical_offset
        if (last is None or not has_record(*last)) and self._cut_unfounded(has_record):
            known = self.max_physical_offset
            refill_from = known if refill_from is None else min(known, refill_from)
        if not place and scan.first_physical_offset is not None and self.max_offset:
            self._min_physical_offset = scan.first_physical_offset
            self.min_offset = self._first_offset()
        self.correct_min(log_min_offset)
        return refill_from

    def _find_files(self) -> int | None:
        """List the files; those behind a hole do not count, and 0 says that they are wanted."""
        bases = load_offsets(self._files, self._directory, self._file_bytes)
        for place in range(1, len(bases)):
            if bases[place] - bases[place - 1] != self._file_bytes:
                # What follows is found again in the commit log.
                self._bases, self._lost_bases = bases[:place], bases[place:]
                return 0
        self._bases = bases
        return None

    def _cut_unfounded(self, has_record: HasRecord) -> bool:
        """Drop the last entries as far as there is no record where they point; True if any were."""
        end = self.max_offset
        first = self._first_offset()
        while end > first:
            entry = self.entry(end - 1)
            if entry is None or entry.size == BLANK_SIZE:
                break
            if has_record(entry.physical_offset, entry.size):
                break
            end -= 1
        if end == self.max_offset:
            return False
        self._forget_from(end)
        return True

    def _scan_end(self) -> _QueueScan:
        """Walk whole entries in the order of the log to the first that is none."""
        last_end = self.max_physical_offset
        first: int | None = None
        last: tuple[int, int] | None = None
        end = self._bases[-1] + self._file_bytes
        size = _FIRST_SCAN_BYTES
        while self._written < end:
            start = self._written
            data = self._read_file(start, size)
            count_good = count_valid if size == _FIRST_SCAN_BYTES else count_valid_bulk
            count, last_end = count_good(data, last_end)
            if count:
                if last is None:
                    offset, length, _ = ENTRY.unpack_from(data)
                    first = None if length == BLANK_SIZE else offset
                offset, length, _ = ENTRY.unpack_from(data, (count - 1) * QUEUE_ENTRY_BYTES)
                last = offset, length
                self._written += count * QUEUE_ENTRY_BYTES
                self._restore_last(QueueEntry(offset, length, 0))
            if count * QUEUE_ENTRY_BYTES < len(data):
                offset, length, _ = ENTRY.unpack_from(data, count * QUEUE_ENTRY_BYTES)
                is_whole = 0 <= offset <= MAX_OFFSET and length > 0
                rest = data[count * QUEUE_ENTRY_BYTES :]
                zeros_to = start + len(data) if rest.count(0) == len(rest) else self._written
                return _QueueScan(first, last, offset if is_whole else None, zeros_to)
            size = min(size * 4, _SCAN_BYTES)
        return _QueueScan(first, last, None, self._written)

    def _restore_last(self, entry: QueueEntry | None) -> None:
        if entry is not None and entry.size != BLANK_SIZE:
            self.max_physical_offset = entry.physical_offset + entry.size

    # Adding

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Add an entry unless it is there already; False when the queue has a hole before it.

        Holes up to the size of a file are filled with blanks, so that offsets stay those of their
        messages. A wider gap means a damaged record; its entry is appended, as in Java.
        """
        pending = self._pending
        end = self._written + len(pending)
        position = queue_offset * QUEUE_ENTRY_BYTES
        if position == end:
            if not pending:
                self._shared.waiting[self] = None
            pending += ENTRY.pack(physical_offset, size, tags_code)
            self.max_physical_offset = physical_offset + size
            if len(pending) >= _PENDING_BYTES:
                self.write_to_files()
            return True
        if position < end:
            known = self.entry(queue_offset)
            return known is None or known.physical_offset in (physical_offset, 0)
        if physical_offset < self.max_physical_offset:
            return False  # an entry of such a record, when the log is dispatched again
        self._shared.waiting[self] = None
        is_beginning = end == 0 and position <= MAX_OFFSET
        if is_beginning:
            self._begin_at(position)
        elif position - end <= self._file_bytes:
            self._pending += BLANK * ((position - end) // QUEUE_ENTRY_BYTES)
        self._pending += ENTRY.pack(physical_offset, size, tags_code)
        self.max_physical_offset = physical_offset + size
        return is_beginning

    def put_following(self, entries: Sequence[LogEntry]) -> bool:
        """Add the entries of records at once, if they follow the end one by one, as new ones do.

        Else nothing is done, and False.
        """
        pending = self._pending
        first = entries[0].queue_offset
        if first * QUEUE_ENTRY_BYTES != self._written + len(pending) or list(
            map(_QUEUE_OFFSET, entries)
        ) != list(range(first, first + len(entries))):
            return False
        if not pending:
            self._shared.waiting[self] = None
        pending += b"".join(starmap(ENTRY.pack, map(_PLACE, entries)))
        self.max_physical_offset = entries[-1].end_offset
        if len(pending) >= _PENDING_BYTES:
            self.write_to_files()
        return True

    def put_block(self, queue_offset: int, data: bytes, end_offset: int) -> bool:
        """As ``put_following``, for entries as bytes. The last record ends at ``end_offset``."""
        pending = self._pending
        if queue_offset * QUEUE_ENTRY_BYTES != self._written + len(pending):
            return False
        if not pending:
            self._shared.waiting[self] = None
        pending += data
        self.max_physical_offset = end_offset
        if len(pending) >= _PENDING_BYTES:
            self.write_to_files()
        return True

    def _begin_at(self, position: int) -> None:
        base = position // self._file_bytes * self._file_bytes
        self._written = base
        self._pending += BLANK * ((position - base) // QUEUE_ENTRY_BYTES)
        self.min_offset = position // QUEUE_ENTRY_BYTES

    def write_pending(self) -> None:
        """Put the gathered entries into files, and create those that do not exist yet.

        On an error they stay gathered. Creating a file takes long: with several threads,
        ``missing_bases``, ``create_file`` and ``add_file`` do it without the store's lock.
        """
        for base in self.missing_bases():
            self.add_file(base, self.create_file(base))
        self.write_to_files()

    def write_to_files(self) -> None:
        """Put the gathered entries into files as far as these exist; the others stay gathered."""
        while self._pending and self._has_file(self._written):
            base = self._written // self._file_bytes * self._file_bytes
            path = self._path_of(base)
            position = self._written - base
            chunk = self._pending[: self._file_bytes - position]
            with disk_errors("write", path):
                self._files.pwrite(self._shared.get(path), chunk, position)
            self._shared.unsynced[(self, base)] = None
            self._written += len(chunk)
            del self._pending[: len(chunk)]
        if not self._pending:
            self._shared.waiting.pop(self, None)

    def _has_file(self, position: int) -> bool:
        return bool(self._bases) and position < self._bases[-1] + self._file_bytes

    def missing_bases(self) -> list[int]:
        """The bases of the files that the gathered entries need and that do not exist."""
        end = self._written + len(self._pending)
        if end == self._written or self._has_file(end - 1):
            return []
        start = self._written // self._file_bytes * self._file_bytes
        if self._bases:
            start = max(start, self._bases[-1] + self._file_bytes)
        return list(range(start, end, self._file_bytes))

    def create_file(self, base: int) -> int:
        """Create a file; returns its descriptor for ``add_file``. Needs no lock."""
        path = self._directory / segment_name(base)
        with disk_errors("write", path):
            self._files.make_directories(self._directory)
            return self._files.create(path, self._file_bytes)

    def add_file(self, base: int, fd: int) -> None:
        """Take over a file that was created."""
        self._shared.keep(self._directory / segment_name(base), fd)
        self._bases.append(base)
        self._mark_directories()

    def _mark_directories(self) -> None:
        """Have the names made durable by which the files are found again."""
        self._shared.unsynced[(self, NAMES)] = None

    # Reading

    def read(self, queue_offset: int, count: int) -> bytes:
        """The bytes of up to ``count`` entries; fewer at the end of a file or of the queue."""
        position = queue_offset * QUEUE_ENTRY_BYTES
        size = count * QUEUE_ENTRY_BYTES
        if position >= self._written:
            start = position - self._written
            return bytes(self._pending[start : start + size])
        data = self._read_file(position, min(size, self._written - position))
        if len(data) < size and position + len(data) == self._written:
            # The queue goes on in memory: a reader must not notice where the file ends.
            data += self._pending[: size - len(data)]
        return data

    def entries(self, queue_offset: int, count: int) -> Iterator[QueueEntry]:
        return map(QueueEntry._make, ENTRY.iter_unpack(self.read(queue_offset, count)))

    def entry(self, queue_offset: int) -> QueueEntry | None:
        if not 0 <= queue_offset < self.max_offset:
            return None
        data = self.read(queue_offset, 1)
        return QueueEntry._make(ENTRY.unpack(data)) if data else None

    def next_file_offset(self, queue_offset: int) -> int:
        """The first queue offset of the file after the one that an offset falls into."""
        per_file = self._file_bytes // QUEUE_ENTRY_BYTES
        return (queue_offset // per_file + 1) * per_file

    def _read_file(self, position: int, size: int) -> bytes:
        base = position // self._file_bytes * self._file_bytes
        if not self._bases or not self._bases[0] <= base <= self._bases[-1]:
            return b""
        start = position - base
        path = self._path_of(base)
        try:
            fd = self._shared.get(path)
            return self._files.pread(fd, min(size, self._file_bytes - start), start)
        except OSError as error:
            raise disk_error("read", path, error) from error

    def _path_of(self, base: int) -> Path:
        if base != self._read_base:
            self._read_path = self._directory / segment_name(base)
            self._read_base = base
        return self._read_path

    def find_time(
        self,
        timestamp_ms: int,
        boundary: Boundary,
        log_min_offset: int,
        store_time_ms: Callable[[int, int], int | None],
    ) -> int:
        """The offset for a store time.

        LOWER: the first message at or after it, or the maximum when all are older. UPPER: the last
        message at or before it; when all are younger 0, as Java answers.
        """

        def is_before(queue_offset: int) -> bool:
            entry = self.entry(queue_offset)
            if entry is None or entry.physical_offset < log_min_offset or entry.size == BLANK_SIZE:
                return True
            time_ms = store_time_ms(entry.physical_offset, entry.size)
            if time_ms is None:
                return True
            return time_ms < timestamp_ms if boundary is Boundary.LOWER else time_ms <= timestamp_ms

        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if is_before(middle):
                low = middle + 1
            else:
                high = middle
        if boundary is Boundary.LOWER:
            return low
        return low - 1 if low > self.min_offset else 0

    # Shortening

    def correct_min(self, log_min_offset: int) -> None:
        """Move ``min_offset`` to the first entry whose record still exists."""
        if self._min_physical_offset >= log_min_offset:
            return
        self._min_physical_offset = -1
        low, high = max(self._first_offset(), self.min_offset), self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry.size == BLANK_SIZE or entry.physical_offset < log_min_offset:
                low = middle + 1
            else:
                high = middle
                self._min_physical_offset = entry.physical_offset
        self.min_offset = low

    def truncate(self, physical_end: int) -> None:
        """Drop entries of records at or after an offset of the log.

        They stay in the files until ``clear_stale``: most of them are made again, the same.
        """
        if self.max_physical_offset <= physical_end and self.max_physical_offset:
            return
        end = self._find_end(physical_end)
        if end < self.max_offset:
            self._mark_directories()  # the process that made it may have died before
            if end * QUEUE_ENTRY_BYTES < self._written:
                self._stale_to = max(self._stale_to, self._written)
            self._forget_from(end)

    def clear_stale(self) -> None:
        """Take what was cut, and not written over since, out of the files."""
        if self._stale_to > self._written:
            self.clear_rest()
        self._stale_to = 0

    def _find_end(self, physical_end: int) -> int:
        """The first queue offset whose record is at or after an offset of the log."""
        low, high = self._first_offset(), self.max_offset
        if self._min_physical_offset >= physical_end and self.min_offset == low:
            return low
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is not None and (
                entry.size == BLANK_SIZE or entry.physical_offset < physical_end
            ):
                low = middle + 1
            else:
                high = middle
        return low

    def _forget_from(self, queue_offset: int) -> None:
        """Take the queue to end before an entry, whatever the files hold from there on."""
        end = queue_offset * QUEUE_ENTRY_BYTES
        last = self.entry(queue_offset - 1) if queue_offset > self._first_offset() else None
        if end >= self._written:
            del self._pending[end - self._written :]
        else:
            self._pending.clear()
            self._shared.waiting.pop(self, None)
            self._written = end
        self.max_physical_offset = 0
        self._restore_last(last)
        if queue_offset <= self.min_offset:
            self.min_offset = queue_offset
            self._min_physical_offset = -1

    def _first_offset(self) -> int:
        return (self._bases[0] if self._bases else self._written) // QUEUE_ENTRY_BYTES

    def _has_rest(self, start: int) -> bool:
        """Whether the files hold anything but zeros from a byte of the queue on."""
        for base in self._bases:
            if base + self._file_bytes > start and any(self._rest_of(base, start)):
                return True
        return False

    def clear_rest(self) -> None:
        """Delete files past the end of the queue and zero the rest of the last one."""
        self._delete_files_past_end()
        for base in self._lost_bases:
            if base not in self._bases:
                self._delete_file(base)
        self._lost_bases = ()
        if not self._bases:
            return
        path = self._directory / segment_name(self._bases[-1])
        for start, size in self._rest_of(self._bases[-1], self._written):
            with disk_errors("write", path):
                self._files.pwrite(self._shared.get(path), bytes(size), start)
            self._shared.unsynced[(self, self._bases[-1])] = None

    def _delete_files_past_end(self) -> None:
        while len(self._bases) > 1 and self._bases[-1] >= self._written:
            self._delete_file(self._bases.pop())

    def _rest_of(self, base: int, start: int) -> Iterator[tuple[int, int]]:
        """The parts of a file that are not all zeros, from a byte of the queue on."""
        path = self._path_of(base)
        start = max(start - base, 0)
        end = self._file_bytes
        size = _PAGE_BYTES - start % _PAGE_BYTES
        while start < end:
            try:
                fd = self._shared.get(path)
                start = self._files.data_start(fd, start, end)
                data = self._files.pread(fd, min(size, end - start), start) if start < end else b""
            except OSError as error:
                raise disk_error("read", path, error) from error
            if data.count(0) != len(data):
                yield start, len(data)
            start += max(len(data), 1)
            size = min(size * 2, _REST_BYTES)

    def forget_before(self, log_min_offset: int) -> list[Path]:
        """Forget leading files (never the last) whose every record is gone.

        Returns their paths: the caller deletes them, without the store's lock.
        """
        forgotten: list[Path] = []
        while len(self._bases) > 1:
            last = self.entry((self._bases[0] + self._file_bytes) // QUEUE_ENTRY_BYTES - 1)
            if last is None or last.physical_offset >= log_min_offset:
                break
            forgotten.append(self._forget_file(self._bases.pop(0)))
        self.correct_min(log_min_offset)
        return forgotten

    def forget_all(self) -> None:
        """Forget every entry and file; the object must not be used again."""
        for base in self._bases:
            self._forget_file(base)
        self._bases = []
        self._pending.clear()
        self._shared.waiting.pop(self, None)
        self._shared.unsynced.pop((self, NAMES), None)

    def _forget_file(self, base: int) -> Path:
        path = self._directory / segment_name(base)
        self._shared.forget(path)
        self._shared.unsynced.pop((self, base), None)
        return path

    def _delete_file(self, base: int) -> None:
        path = self._forget_file(base)
        with disk_errors("delete", path):
            self._files.unlink(path)
