"""Answering pulls and key queries from log, queues and index, with the statuses of Java's store.

Pulls run under the store's lock. Nothing is copied: records are slices of the mapped log.
``get_messages`` serves every filter; ``gather_messages`` does the same for tags by compiled code.
"""

import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import compress, pairwise
from operator import add, itemgetter, ne
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.store.config import StoreConfig
from goddard.store.index.index import KeyMatch
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.records import read_entry
from goddard.store.queues.entry import BLANK_SIZE, ENTRY
from goddard.store.queues.queue import ConsumeQueue

if IS_COMPILED or TYPE_CHECKING:
    from goddard.core import pulls as core_pulls

# At least this many entries are looked at for a filter that matches few.
_MIN_SCANNED: Final = 800
_MAX_SCANNED_BYTES: Final = 128 << 20
# What RocketMQ's clients ask for, and its brokers return, by default.
_MAX_ORDINARY_BYTES: Final = 256 << 10


class GetStatus(Enum):
    """The names are Java's (GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"


class MessageFilter(Protocol):
    """What a consumer subscribed to: first a look at the queue entry, then at the record."""

    def matches_code(self, tags_code: int) -> bool: ...

    def matches_record(self, record: memoryview) -> bool: ...


class TagFilter(MessageFilter, Protocol):
    """A filter that needs no records, but the hashes of tags alone."""

    @property
    def codes(self) -> "array[int]":
        """The hashes, unsigned 32-bit numbers, sorted."""
        ...


@dataclass(slots=True)
class GetResult:
    """Records, whole and as stored; ``queue_offsets`` has the offset of each, ``sizes`` its size.

    ``pieces`` are their bytes: records that are neighbours in the log may be one piece.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[memoryview] = field(default_factory=list)
    sizes: Sequence[int] = ()
    queue_offsets: list[int] = field(default_factory=list)
    total_bytes: int = 0
    is_slave_suggested: bool = False

    first_physical_offset: int = 0

    @property
    def count(self) -> int:
        return len(self.sizes)

    @property
    def records(self) -> list[memoryview]:
        """Each record by itself."""
        records: list[memoryview] = []
        sizes = iter(self.sizes)
        for piece in self.pieces:
            at = 0
            while at < len(piece):
                end = at + next(sizes)
                records.append(piece[at:end])
                at = end
        return records


# Compiled code leaves the records in the log, to copy them into the response later.
FoundMessages: TypeAlias = "GetResult | core_pulls.Gathered"


@dataclass(slots=True)
class QueryResult:
    records: list[memoryview]
    index_time_ms: int
    index_physical_offset: int


class ReadLimits(NamedTuple):
    """What one read may return at most.

    ``by_place``: how far behind the end of the log the memory reaches; then bytes and messages for
    a read from memory, and for one from disk.
    """

    max_count: int
    max_bytes: int
    by_place: tuple[int, int, int, int, int]


def get_messages(
    log: CommitLog,
    queue: ConsumeQueue | None,
    config: StoreConfig,
    queue_offset: int,
    max_count: int,
    *,
    max_bytes: int | None,
    message_filter: MessageFilter | None,
) -> GetResult:
    found = _find_entries(queue, queue_offset, max_count, message_filter)
    if isinstance(found, GetResult):
        return found
    return _gather(log, config, queue_offset, found, max_count, max_bytes, message_filter)


def gather_messages(
    log: CommitLog,
    queue: ConsumeQueue | None,
    config: StoreConfig,
    queue_offset: int,
    max_count: int,
    *,
    max_bytes: int | None,
    message_filter: TagFilter | None,
) -> FoundMessages:
    """As ``get_messages``, by compiled code."""
    found = _find_entries(queue, queue_offset, max_count, message_filter)
    if isinstance(found, GetResult):
        return found
    limits = read_limits(config, max_count, max_bytes)
    gathered = _gather_compiled(log, queue_offset, found.data, limits, message_filter)
    if gathered is None:  # an entry that is not of a whole record in one segment
        return _gather(log, config, queue_offset, found, max_count, max_bytes, message_filter)
    gathered.status = GetStatus.FOUND if gathered.count else GetStatus.NO_MATCHED_MESSAGE
    gathered.min_offset = found.min_offset
    gathered.max_offset = found.max_offset
    return gathered


def gather_cached(
    log: CommitLog,
    queue: ConsumeQueue,
    queue_offset: int,
    limits: ReadLimits,
    message_filter: TagFilter | None,
    *,
    is_in_memory: bool,
) -> "core_pulls.Gathered | None":
    """As ``gather_messages``, if there are messages to read without waiting for the disk.

    ``is_in_memory``: they are known to be in the page cache. None in any other case.
    """
    low, high = queue.min_offset, queue.max_offset
    if not low <= queue_offset < high:
        return None
    count = limits.max_count if message_filter is None else max(_MIN_SCANNED, limits.max_count)
    last_offset = min(queue_offset + count, high) - 1
    if not is_in_memory and not (queue.is_cached(queue_offset) and queue.is_cached(last_offset)):
        return None
    data = queue.read(queue_offset, count)
    gathered = _gather_compiled(log, queue_offset, data, limits, message_filter)
    if gathered is None or not gathered.count:
        return None
    if not is_in_memory and not (
        log.is_cached(gathered.first_physical_offset)
        and log.is_cached(gathered.last_physical_offset)
    ):
        return None
    gathered.status = GetStatus.FOUND
    gathered.min_offset = low
    gathered.max_offset = high
    return gathered


def _gather_compiled(
    log: CommitLog,
    queue_offset: int,
    entries: bytes,
    limits: ReadLimits,
    message_filter: TagFilter | None,
) -> "core_pulls.Gathered | None":
    return core_pulls.gather(
        entries,
        queue_offset,
        log.end_offset,
        limits.max_count,
        limits.max_bytes,
        limits.by_place,
        None if message_filter is None else message_filter.codes,
        log.segment_at,
    )


def is_bulk_read(config: StoreConfig, max_bytes: int | None) -> bool:
    """Whether a pull asks for more bytes than RocketMQ's clients do, as Spark's source does."""
    return bool(config.max_bulk_read_bytes) and (max_bytes or 0) > _MAX_ORDINARY_BYTES


def read_limits(config: StoreConfig, max_count: int, max_bytes: int | None) -> ReadLimits:
    byte_limit = _MAX_SCANNED_BYTES if max_bytes is None else max_bytes
    memory_bytes = config.in_memory_bytes
    if is_bulk_read(config, max_bytes):
        most_bytes = config.max_bulk_read_bytes
        by_place = (memory_bytes, most_bytes, max_count, most_bytes, max_count)
    else:
        by_place = (
            memory_bytes,
            config.max_get_memory_bytes,
            config.max_get_memory_count,
            config.max_get_disk_bytes,
            config.max_get_disk_count,
        )
    return ReadLimits(max_count, byte_limit, by_place)


class _Entries(NamedTuple):
    data: bytes
    min_offset: int
    max_offset: int


def _find_entries(
    queue: ConsumeQueue | None,
    queue_offset: int,
    max_count: int,
    message_filter: MessageFilter | None,
) -> _Entries | GetResult:
    """The queue's entries from an offset on; a result without messages if there are none."""
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if queue_offset < low:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
    if queue_offset > high:
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    scanned = max(_MIN_SCANNED, max_count) if message_filter is not None else max_count
    data = queue.read(queue_offset, max(scanned, 1))
    if not data:
        following = queue.next_file_offset(queue_offset)
        return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
    return _Entries(data, low, high)


def _gather(
    log: CommitLog,
    config: StoreConfig,
    queue_offset: int,
    entries: _Entries,
    max_count: int,
    max_bytes: int | None,
    message_filter: MessageFilter | None,
) -> GetResult:
    """Take records for the entries until a limit of Java's store is reached."""
    result = GetResult(
        GetStatus.NO_MATCHED_MESSAGE, queue_offset, entries.min_offset, entries.max_offset
    )
    pieces, queue_offsets = result.pieces, result.queue_offsets
    sizes: list[int] = []
    result.sizes = sizes
    end_offset = log.end_offset
    _, byte_limit, limits = read_limits(config, max_count, max_bytes)
    memory_bytes = limits[0]
    memory_limits = (min(byte_limit, limits[1]), min(max_count, limits[2]))
    disk_limits = (min(byte_limit, limits[3]), min(max_count, limits[4]))
    if message_filter is None and _take_all(log, entries.data, memory_bytes, memory_limits, result):
        return result
    total = 0
    skip_below = 0
    last_physical = end_offset
    # The segment of the last record, and the offsets of its first byte and of its end.
    view = memoryview(b"")
    base = limit = 0
    for physical_offset, size, tags_code in ENTRY.iter_unpack(entries.data):
        if physical_offset < skip_below or size == BLANK_SIZE:
            queue_offset += 1
            continue
        if sizes:
            is_on_disk = end_offset - physical_offset > memory_bytes
            bytes_here, count_here = disk_limits if is_on_disk else memory_limits
            if len(sizes) >= count_here or total + size > bytes_here:
                break
        last_physical = physical_offset
        if message_filter is not None and not message_filter.matches_code(tags_code):
            queue_offset += 1
            continue
        record: memoryview | None
        if 0 < size <= limit - physical_offset and base <= physical_offset:
            record = view[physical_offset - base : physical_offset - base + size]
        else:
            record = log.read(physical_offset, size)
            segment = log.segment_at(physical_offset)
            if record is not None and segment is not None:
                view, base = segment.view, segment.base_offset
                limit = min(segment.end_offset, end_offset)
        if record is None:
            # Its segment is gone: so is everything before the next one.
            if not sizes:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
            skip_below = (physical_offset // log.segment_bytes + 1) * log.segment_bytes
        elif message_filter is None or message_filter.matches_record(record):
            if not sizes:
                result.first_physical_offset = physical_offset
            pieces.append(record)
            sizes.append(size)
            queue_offsets.append(queue_offset)
            total += size
        queue_offset += 1
    if sizes:
        result.status = GetStatus.FOUND
    result.total_bytes = total
    result.next_offset = queue_offset
    result.is_slave_suggested = end_offset - last_physical > memory_bytes
    return result


def _take_all(
    log: CommitLog,
    data: bytes,
    memory_bytes: int,
    limits: tuple[int, int],
    result: GetResult,
) -> bool:
    """Take the records of all entries at once if they are in memory, in one segment, and within
    the limits; else nothing is taken.
    """
    count = len(data) // ENTRY.size
    values = _entries_struct(count).unpack(data)
    physical_offsets, sizes = values[::3], values[1::3]
    ends = tuple(map(add, physical_offsets, sizes))
    # Where a record is not the neighbour of the one before it.
    breaks = compress(range(1, count), map(ne, ends, physical_offsets[1:]))
    spans = [(physical_offsets[at], ends[to - 1]) for at, to in pairwise((0, *breaks, count))]
    first, end = min(spans)[0], max(map(itemgetter(1), spans))
    segment = log.segment_at(first)
    total = sum(sizes)
    if (
        segment is None
        or min(sizes) <= 0
        or total > min(limits[0], BLANK_SIZE - 1)  # less than the size of a blank entry
        or count > limits[1]
        or log.end_offset - first > memory_bytes
        or end > min(log.end_offset, segment.end_offset)
    ):
        return False
    view, base = segment.view, segment.base_offset
    result.pieces = [view[start - base : stop - base] for start, stop in spans]
    result.sizes = sizes
    result.queue_offsets = list(range(result.next_offset, result.next_offset + count))
    result.status = GetStatus.FOUND
    result.total_bytes = total
    result.first_physical_offset = physical_offsets[0]
    result.next_offset += count
    return True


@lru_cache(maxsize=1024)
def _entries_struct(count: int) -> Struct:
    return Struct(ENTRY.format[:1] + ENTRY.format[1:] * count)


def read_matches(log: CommitLog, lock: threading.RLock, match: KeyMatch) -> QueryResult:
    """The records that a key was found for; those that have left the log are left out.

    Reading them may wait for the disk, so the store's lock is held only to find their segments.
    """
    with lock:
        tails = [(each, log.tail(each, log.segment_bytes)) for each in match.physical_offsets]
    records: list[memoryview] = []
    for physical_offset, tail in tails:
        if tail is not None:
            with suppress(ProtocolError):
                entry = read_entry(
                    tail, 0, physical_offset, check_crc=False, delay_times_ms=log.delay_times_ms
                )
                records.append(tail[: entry.size])
    return QueryResult(records, match.last_time_ms, match.last_physical_offset)
