"""A read-only view of a store directory, ours or Java's, stopped or running.

Nothing here writes, creates or locks anything: files are opened for reading and mapped, sizes come
from the files themselves (a directory does not say how it was configured), and the state of the
lock is asked for, not taken. On a running broker the bounds move while they are looked at; for a
later answer, ask again.

Layout: ``commitlog/<20 digits>``, ``consumequeue/<topic>/<queue>/<20 digits>``, ``index/<17
digits>``, ``checkpoint`` (five i64), ``abort``, ``lock``, ``config/*.json``.
"""

import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from goddard.environment.files import lock_holder
from goddard.errors import StoreError

ENTRY_BYTES: Final = 20
ENTRY_TYPE: Final = np.dtype(
    [("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")], align=False
)
# What fills the start of a queue whose first entry is not entry 0.
FILLER_SIZE: Final = 0x7FFFFFFF

INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_ENTRY_BYTES: Final = 20
INDEX_ENTRY_TYPE: Final = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")],
    align=False,
)

# Enough to tell one number of slots from another.
_ENTRIES_TRIED: Final = 10_000
# Nobody configures segments that are no multiple of this.
_SEGMENT_UNIT_BYTES: Final = 1024
_MAX_NAME_DIGITS: Final = 20
_MAX_QUEUE_ID_DIGITS: Final = 10

_CHECKPOINT: Final = struct.Struct(">qqqqq")

Bytes = npt.NDArray[np.uint8]
Entries = npt.NDArray[np.void]


class NotAStoreError(StoreError):
    """The directory holds no message store, or one of a type that is not supported."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file whose name is the offset of its first byte (an index file: the time it was made)."""

    path: Path
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes

    def map(self) -> mmap.mmap:
        """The file's bytes; the map lives as long as something refers to it."""
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)

    def data_end(self) -> int:
        """Where the hole at the end of the file begins; nothing was ever written after it."""
        end = 0
        with self.path.open("rb") as file:
            while end < self.size_bytes:
                try:
                    start = os.lseek(file.fileno(), end, os.SEEK_DATA)
                except OSError:
                    break  # nothing but a hole
                end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
        return end

    def bytes(self) -> Bytes:
        return np.frombuffer(self.map(), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far the files were flushed, as store timestamps in milliseconds."""

    physical_ms: int
    logical_ms: int
    index_ms: int
    master_flushed_offset: int
    confirm_offset: int


@dataclass(frozen=True, slots=True)
class IndexHeader:
    begin_ms: int
    end_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    used_slots: int
    # One more than the number of entries: numbers start at 1.
    next_number: int


def numbered_files(directory: Path) -> tuple[list[StoreFile], list[Path]]:
    """The files of a directory in the order of their offsets, and the files that do not belong."""
    files: list[StoreFile] = []
    foreign: list[Path] = []
    try:
        names = list(directory.iterdir())
    except FileNotFoundError:
        return [], []
    for path in names:
        if _is_number(path.name, _MAX_NAME_DIGITS):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # expired since the directory was listed
            files.append(StoreFile(path, int(path.name), status.st_size))
        elif not path.is_dir():
            foreign.append(path)
    files.sort(key=lambda file: file.start)
    return files, sorted(foreign)


def _is_number(name: str, max_digits: int) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= max_digits


class QueueView:
    """One consume queue: fixed entries, found by their number."""

    def __init__(self, topic: str, queue_id: int, directory: Path) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = directory
        self.files, self.foreign = numbered_files(directory)

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"

    @property
    def first_number(self) -> int:
        return self.files[0].start // ENTRY_BYTES if self.files else 0

    @property
    def end_number(self) -> int:
        """After the last entry for which there is a file."""
        return self.files[-1].end // ENTRY_BYTES if self.files else 0

    def chunks(self, first: int | None = None) -> Iterator[tuple[int, Entries]]:
        """The entries from ``first`` on, file by file, each with the number it starts at."""
        for file in self.files:
            number = file.start // ENTRY_BYTES
            count = file.size_bytes // ENTRY_BYTES
            if not count or (first is not None and number + count <= first):
                continue
            try:
                entries = np.frombuffer(file.map(), dtype=ENTRY_TYPE, count=count)
            except FileNotFoundError:
                continue  # expired since it was listed
            skip = 0 if first is None else max(first - number, 0)
            yield number + skip, entries[skip:]

    def read(self, first: int, end: int) -> Entries:
        """The entries [first, end), fewer where there are no files; zero bytes are no entries."""
        parts = []
        expected = first
        for number, entries in self.chunks(first):
            if number != expected or number >= end:
                break
            parts.append(entries[: end - number])
            expected = number + len(entries)
        return np.concatenate(parts) if parts else np.empty(0, ENTRY_TYPE)

    def locate(self, number: int) -> tuple[Path, int]:
        """The file that holds an entry, and the byte it starts at there."""
        position = number * ENTRY_BYTES
        for file in self.files:
            if file.start <= position < file.end:
                return file.path, position - file.start
        return self.directory, position

    def bounds(self, log_min_offset: int = 0) -> tuple[int, int]:
        """The first readable number and the one after the last, as a broker would answer."""
        end = self.first_number
        low: int | None = None
        for number, entries in self.chunks():
            used = is_entry(entries)
            empty = np.flatnonzero(entries["size"] == 0)
            stop = int(empty[0]) if empty.size else len(entries)
            readable = np.flatnonzero(
                used[:stop] & (entries["physical_offset"][:stop] >= log_min_offset)
            )
            if low is None and readable.size:
                low = number + int(readable[0])
            end = number + stop
            if stop < len(entries):
                break
        return (end if low is None else low), end


def is_entry(entries: Entries) -> npt.NDArray[np.bool_]:
    """Which entries refer to a record: not empty, not filler."""
    sizes = entries["size"]
    used = (sizes > 0) & (sizes != FILLER_SIZE) & (entries["physical_offset"] >= 0)
    return np.asarray(used, dtype=np.bool_)


class IndexView:
    """One file of the key index: header, hash slots, entries in chains from newest to oldest."""

    def __init__(self, file: StoreFile) -> None:
        self.file = file
        # A crash between making and sizing leaves no header; it counts as one of zeros.
        is_headed = file.size_bytes >= INDEX_HEADER.size
        self._map = file.map() if is_headed else mmap.mmap(-1, INDEX_HEADER.size)
        self.header = IndexHeader(*INDEX_HEADER.unpack_from(self._map, 0))

    @property
    def entry_count(self) -> int:
        return max(self.header.next_number - 1, 0)

    @cached_property
    def slot_count(self) -> int | None:
        """How many slots the file has, which it does not say itself; None when nothing fits.

        The right number puts the first entry at the header's first offset, unlinked, the last
        one at its last offset, and makes the slot of the last entry point at it.
        """
        words = (self.file.size_bytes - INDEX_HEADER.size) // 4
        if not 2 <= self.header.next_number <= words // 5 + 1:
            return None
        # RocketMQ's defaults have 4 entries a slot; looking there first spares a long search.
        usual = [words // (1 + 5 * ratio) for ratio in (4, 2, 1) if words % (1 + 5 * ratio) == 0]
        found = self._fitting(np.array(usual, dtype=np.int64))
        if not found:
            # 4 * slots + 20 * capacity = the bytes after the header.
            most = words - 5 * self.header.next_number
            found = self._fitting(np.arange(words % 5 or 5, most + 1, 5))
        return max(found, key=self._plausibility, default=None)

    def _fitting(self, candidates: npt.NDArray[np.int64]) -> list[int]:
        """Those numbers of slots with which the first and the last entry are in their places."""
        header = self.header
        raw = np.frombuffer(self._map, dtype=np.uint8)
        first = INDEX_HEADER.size + 4 * candidates + INDEX_ENTRY_BYTES
        last = first + INDEX_ENTRY_BYTES * (header.next_number - 2)
        fits = last + INDEX_ENTRY_BYTES <= self.file.size_bytes
        candidates, first, last = candidates[fits], first[fits], last[fits]
        fits = _words(raw, first + 4, ">i8") == header.begin_physical_offset
        candidates, first, last = candidates[fits], first[fits], last[fits]
        fits = (_words(raw, last + 4, ">i8") == header.end_physical_offset) & (
            _words(raw, first + 16, ">i4") == 0
        )
        candidates, last = candidates[fits], last[fits]
        hashes = _words(raw, last, ">i4")
        slots = INDEX_HEADER.size + 4 * (np.abs(hashes) % candidates)
        newest = _words(raw, slots, ">i4") == header.next_number - 1
        return [int(candidate) for candidate in candidates[newest]]

    def _plausibility(self, slot_count: int) -> int:
        """How many slots and entries look right if there are so many slots."""
        slots, entries = self.slots(slot_count), self.entries(slot_count)[1:]
        entries = entries[:_ENTRIES_TRIED]
        heads = slots[np.abs(entries["key_hash"].astype(np.int64)) % slot_count]
        numbers = np.arange(1, len(entries) + 1)
        good = (heads >= numbers) & (entries["previous"] < numbers) & (entries["previous"] >= 0)
        is_counted = int(np.count_nonzero(slots)) == self.header.used_slots
        return int(np.count_nonzero(good)) + len(entries) * is_counted

    def capacity(self, slot_count: int) -> int:
        return (self.file.size_bytes - INDEX_HEADER.size - 4 * slot_count) // INDEX_ENTRY_BYTES

    def slots(self, slot_count: int) -> npt.NDArray[np.int32]:
        return np.frombuffer(self._map, dtype=">i4", count=slot_count, offset=INDEX_HEADER.size)

    def entries(self, slot_count: int) -> Entries:
        """The entries by their numbers; number 0 is never used."""
        count = min(self.header.next_number, self.capacity(slot_count))
        return np.frombuffer(
            self._map,
            dtype=INDEX_ENTRY_TYPE,
            count=max(count, 0),
            offset=INDEX_HEADER.size + 4 * slot_count,
        )

    def entry_position(self, slot_count: int, number: int) -> int:
        return INDEX_HEADER.size + 4 * slot_count + INDEX_ENTRY_BYTES * number


def _words(raw: Bytes, positions: npt.NDArray[np.int64], form: str) -> npt.NDArray[np.int64]:
    """Big-endian numbers at arbitrary positions."""
    width = int(form[-1])
    rows = np.lib.stride_tricks.sliding_window_view(raw, width)[positions]
    return np.ascontiguousarray(rows).view(form)[:, 0].astype(np.int64)


class StoreView:
    """A store directory. Raises NotAStoreError when it is none, or of a type not supported."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_directory = directory / "commitlog"
        self.queue_directory = directory / "consumequeue"
        self.index_directory = directory / "index"
        if not directory.is_dir():
            raise NotAStoreError(f"{directory} is not a directory")
        if (self.queue_directory / "CURRENT").is_file():
            raise NotAStoreError(
                f"{directory} is a RocksDB store (storeType=defaultRocksDB): its consume queues "
                "are a RocksDB database, which Goddard does not read. Start its broker with "
                "storeType=default on a copy without consumequeue/ to have them rebuilt as files."
            )
        if not self.log_directory.is_dir():
            raise NotAStoreError(f"{directory} is not a message store: it has no commitlog/")

    def log_files(self) -> list[StoreFile]:
        return numbered_files(self.log_directory)[0]

    def segment_bytes(self) -> int | None:
        """The size of the log's files, None when they do not tell.

        The usual one of several; a lone file's own, unless no broker would make one of that size.
        """
        sizes = [file.size_bytes for file in self.log_files() if file.size_bytes]
        if len(sizes) > 1:
            return Counter(sizes).most_common(1)[0][0]
        return sizes[0] if sizes and sizes[0] % _SEGMENT_UNIT_BYTES == 0 else None

    def foreign_files(self) -> list[Path]:
        """Files in the log, queue and index directories that a broker would not have made."""
        foreign = numbered_files(self.log_directory)[1] + numbered_files(self.index_directory)[1]
        for queue in self.queues():
            foreign += queue.foreign
        return foreign

    def queues(self) -> list[QueueView]:
        """Every consume queue, by topic and queue id."""
        queues = [
            QueueView(directory.parent.name, int(directory.name), directory)
            for directory in self.queue_directory.glob("*/*")
            if _is_number(directory.name, _MAX_QUEUE_ID_DIGITS) and directory.is_dir()
        ]
        return sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))

    def batch_topics(self) -> set[str]:
        """Topics whose queues are of the batch type (46-byte entries), which is another format."""
        return {path.name for path in (self.directory / "batchconsumequeue").glob("*")}

    def index_files(self) -> list[StoreFile]:
        return numbered_files(self.index_directory)[0]

    def checkpoint(self) -> Checkpoint | None:
        try:
            with (self.directory / "checkpoint").open("rb") as file:
                data = file.read(_CHECKPOINT.size)
        except FileNotFoundError:
            return None
        return Checkpoint(*_CHECKPOINT.unpack(data)) if len(data) == _CHECKPOINT.size else None

    @property
    def has_abort(self) -> bool:
        """Whether a broker runs here, or has not stopped cleanly."""
        return (self.directory / "abort").exists()

    def lock_holder(self) -> int | None:
        """The process that holds the store's lock (0 when it cannot be named), None when free."""
        try:
            descriptor = os.open(self.directory / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return lock_holder(descriptor)
        finally:
            os.close(descriptor)

    @property
    def is_running(self) -> bool:
        return self.lock_holder() is not None
