"""Answering pulls and key queries from log, queues and index, with the statuses of Java's store.

Pulls run under the store's lock. Nothing is copied: records come as slices of the mapped log.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Final, Protocol

from goddard.errors import ProtocolError
from goddard.store.config import StoreConfig
from goddard.store.index.index import KeyMatch
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.records import read_entry
from goddard.store.queues.entry import BLANK_SIZE, ENTRY
from goddard.store.queues.queue import ConsumeQueue

# At least this many entries are looked at for a filter that matches few.
_MIN_SCANNED: Final = 800
_MAX_SCANNED_BYTES: Final = 128 << 20
_FIRST: Final = Struct(">q")


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


@dataclass(slots=True)
class GetResult:
    """``records`` and ``queue_offsets`` go together, unless neighbours were to come joined.

    Records are whole, as stored; joined, a slice holds one or more of them.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    total_bytes: int = 0
    is_slave_suggested: bool = False


@dataclass(slots=True)
class QueryResult:
    records: list[memoryview]
    index_time_ms: int
    index_physical_offset: int


def get_messages(
    log: CommitLog,
    queue: ConsumeQueue | None,
    config: StoreConfig,
    queue_offset: int,
    max_count: int,
    *,
    max_bytes: int | None,
    message_filter: MessageFilter | None,
    is_joined: bool = False,
) -> GetResult:
    """``is_joined``: records that lie next to each other may come as one slice.

    A filter is then asked for queue entries only, never for a record.
    """
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
    result = GetResult(GetStatus.NO_MATCHED_MESSAGE, queue_offset, low, high)
    if (
        is_joined
        and message_filter is None
        and _take_all(log, config, result, data, max_count, max_bytes)
    ):
        return result
    if is_joined:
        _gather_joined(log, config, result, data, max_count, max_bytes, message_filter)
    else:
        _gather(log, config, result, data, max_count, max_bytes, message_filter)
    return result


def _gather(
    log: CommitLog,
    config: StoreConfig,
    result: GetResult,
    data: bytes,
    max_count: int,
    max_bytes: int | None,
    message_filter: MessageFilter | None,
) -> None:
    """Take records for the entries in ``data`` until a limit of Java's store is reached."""
    end_offset = log.end_offset
    memory_bytes = config.in_memory_bytes
    records = result.records
    queue_offset = result.next_offset
    total = 0
    byte_limit = _MAX_SCANNED_BYTES if max_bytes is None else max_bytes
    skip_below = 0
    last_physical = end_offset
    for physical_offset, size, tags_code in ENTRY.iter_unpack(data):
        if physical_offset < skip_below or size == BLANK_SIZE:
            queue_offset += 1
            continue
        if records:
            if end_offset - physical_offset > memory_bytes:
                bytes_here, count_here = config.max_get_disk_bytes, config.max_get_disk_count
            else:
                bytes_here, count_here = config.max_get_memory_bytes, config.max_get_memory_count
            if len(records) >= min(max_count, count_here):
                break
            if total + size > min(byte_limit, bytes_here):
                break
        last_physical = physical_offset
        if message_filter is not None and not message_filter.matches_code(tags_code):
            queue_offset += 1
            continue
        record = log.read(physical_offset, size)
        if record is None:
            # Its segment is gone: so is everything before the next one.
            if not records:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
            skip_below = (physical_offset // log.segment_bytes + 1) * log.segment_bytes
        elif message_filter is None or message_filter.matches_record(record):
            records.append(record)
            result.queue_offsets.append(queue_offset)
            total += size
        queue_offset += 1
    if records:
        result.status = GetStatus.FOUND
    result.total_bytes = total
    result.next_offset = queue_offset
    result.is_slave_suggested = end_offset - last_physical > memory_bytes


def _gather_joined(
    log: CommitLog,
    config: StoreConfig,
    result: GetResult,
    data: bytes,
    max_count: int,
    max_bytes: int | None,
    message_filter: MessageFilter | None,
) -> None:
    """As ``_gather``, several times faster: the path of most pulls.

    The limits are those of where the first record lies: a pull that crosses from disk to memory
    goes on with the next one.
    """
    end_offset = log.end_offset
    memory_bytes = config.in_memory_bytes
    records, queue_offsets = result.records, result.queue_offsets
    queue_offset = result.next_offset
    byte_limit = _MAX_SCANNED_BYTES if max_bytes is None else max_bytes
    count_limit = max_count
    matches_code = None if message_filter is None else message_filter.matches_code
    total = 0
    last_physical = end_offset
    skip_below = 0
    # The slice being made, of one segment, which begins at ``base``; ``limit`` is its usable end.
    view: memoryview | None = None
    base = limit = start = stop = -1
    for physical_offset, size, tags_code in ENTRY.iter_unpack(data):
        if physical_offset < skip_below or size == BLANK_SIZE:
            queue_offset += 1
            continue
        if not queue_offsets:
            if end_offset - physical_offset > memory_bytes:
                bytes_here, count_here = config.max_get_disk_bytes, config.max_get_disk_count
            else:
                bytes_here, count_here = config.max_get_memory_bytes, config.max_get_memory_count
            byte_limit = min(byte_limit, bytes_here)
            count_limit = min(count_limit, count_here)
        elif len(queue_offsets) >= count_limit or total + size > byte_limit:
            break
        last_physical = physical_offset
        if matches_code is not None and not matches_code(tags_code):
            queue_offset += 1
            continue
        end = physical_offset + size
        if physical_offset != stop or end > limit or size <= 0:
            if view is not None and start < stop:
                records.append(view[start - base : stop - base])
            start = stop = physical_offset
            if not base <= physical_offset or end > limit or size <= 0:
                segment = log.segment_at(physical_offset)
                if segment is None or size <= 0 or end > min(segment.end_offset, end_offset):
                    if not queue_offsets:
                        result.status = GetStatus.MESSAGE_WAS_REMOVING
                    skip_below = (physical_offset // log.segment_bytes + 1) * log.segment_bytes
                    queue_offset += 1
                    continue
                view, base = segment.view, segment.base_offset
                limit = min(segment.end_offset, end_offset)
        stop = end
        queue_offsets.append(queue_offset)
        total += size
        queue_offset += 1
    if queue_offsets:
        if view is not None and start < stop:
            records.append(view[start - base : stop - base])
        result.status = GetStatus.FOUND
    result.total_bytes = total
    result.next_offset = queue_offset
    result.is_slave_suggested = end_offset - last_physical > memory_bytes


@lru_cache(maxsize=256)
def _entries(count: int) -> Struct:
    return Struct(">" + ENTRY.format.removeprefix(">") * count)


def _take_all(
    log: CommitLog,
    config: StoreConfig,
    result: GetResult,
    data: bytes,
    max_count: int,
    max_bytes: int | None,
) -> bool:
    """The usual case in one go: every entry is wanted, fits the limits and lies in one segment.

    False, with nothing done, when that is not so.
    """
    end_offset = log.end_offset
    memory_bytes = config.in_memory_bytes
    (first,) = _FIRST.unpack_from(data)
    is_slow = end_offset - first > memory_bytes
    if is_slow:
        byte_limit, count_limit = config.max_get_disk_bytes, config.max_get_disk_count
    else:
        byte_limit, count_limit = config.max_get_memory_bytes, config.max_get_memory_count
    count = min(max_count, count_limit, len(data) // ENTRY.size)
    segment = log.segment_at(first)
    if count <= 0 or segment is None:
        return False
    values = _entries(count).unpack_from(data)
    offsets, sizes = values[::3], values[1::3]
    total = sum(sizes)
    last = offsets[-1]
    base = segment.base_offset
    lowest, highest = min(offsets), max(offsets)
    if (
        total > byte_limit
        or (max_bytes is not None and total > max_bytes)
        or min(sizes) <= 0
        or lowest < base
        or highest + max(sizes) > min(segment.end_offset, end_offset)
    ):
        return False
    view = segment.view
    # Records do not overlap: if their sizes fill the space from first to last, they are neighbours.
    if lowest == first and highest == last and last + sizes[-1] - first == total:
        result.records.append(view[first - base : first - base + total])
    else:
        result.records += [
            view[offset - base : offset - base + size]
            for offset, size in zip(offsets, sizes, strict=True)
        ]
    start = result.next_offset
    result.queue_offsets += range(start, start + count)
    result.status = GetStatus.FOUND
    result.total_bytes = total
    result.next_offset = start + count
    result.is_slave_suggested = end_offset - last > memory_bytes
    return True


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
