"""Reading the records in bytes that another broker's log had before (replication).

The bytes come in pieces that end anywhere, so the last record may not be all there yet. What is
there must be records, a filler at the end of a segment, or the beginning of either.
"""

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final

from goddard.protocol.record import BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from goddard.store.errors import StoreCorruptError
from goddard.store.log.block import QueueKey
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.dispatch import EntriesByQueue
from goddard.store.log.records import PREPARED, LogEntry, ScanStop
from goddard.store.log.segment import Segment
from goddard.store.recovery.scan import FileScan, read_entries

_START: Final = Struct(">iI")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
# Reading many records at once has a cost of its own.
_BULK_BYTES: Final = 16 << 10
_MAX_BULK_BYTES: Final = 4 << 20


def read_new_records(
    log: CommitLog, physical_offset: int, group_bytes: int | None = None
) -> Iterator[list[LogEntry]]:
    """The records that are complete between an offset and the end of the log, in groups.

    A group has about ``group_bytes``, or is as large as is efficient.
    Raises StoreCorruptError at the first bytes that can never become a record.
    """
    bulk_bytes = min(group_bytes or _MAX_BULK_BYTES, _MAX_BULK_BYTES)
    while physical_offset < log.end_offset:
        segment = log.segment_at(physical_offset)
        if segment is None or not _has_whole_record(log, segment, physical_offset):
            return
        limit = min(segment.end_offset, log.end_offset)
        position = physical_offset - segment.base_offset
        if limit - physical_offset > _BULK_BYTES:
            begin = position
            stop = min(limit - segment.base_offset, position + bulk_bytes)
            # A copy: past the end of the log there may be anything.
            data = bytes(segment.view[position:stop])
            bulk = FileScan(data, physical_offset)
            for batch in bulk.until_flaw():
                entries = read_entries(batch, physical_offset, 0, log.delay_times_ms)
                if entries is None:
                    break
                position = (
                    physical_offset
                    - segment.base_offset
                    + int(batch.positions[-1] + batch.sizes[-1])
                )
                yield entries
            if stop < limit - segment.base_offset:
                if position == begin:  # inside one large record, or at damage
                    bulk_bytes *= 2
                physical_offset = segment.base_offset + position
                continue
        scan = log.scan_segment(segment, position, limit=limit - segment.base_offset)
        rest = list(scan)
        if rest:
            yield rest
        physical_offset = segment.base_offset + scan.position
        if scan.stop is ScanStop.INVALID:
            if _has_whole_record(log, segment, physical_offset):
                raise _damage(segment, physical_offset, scan.reason)
            return
        if limit < segment.end_offset:
            return
        physical_offset = segment.end_offset


def complete_end(log: CommitLog, physical_offset: int) -> int:
    """Where the log ends, given the end of its last complete record, without the beginning of
    another."""
    offset = max(physical_offset, log.min_offset)
    while (segment := log.segment_at(offset)) is not None and segment.end_offset <= log.end_offset:
        _, magic = _START.unpack_from(segment.view, offset - segment.base_offset)
        if magic != MAGIC_BLANK:
            break
        offset = segment.end_offset
    return offset


def continues_queues(by_queue: EntriesByQueue, next_offsets: Mapping[QueueKey, int]) -> bool:
    """Whether each queue goes on without a gap, as nearly always."""
    for key, entries in by_queue.items():
        first, last = entries[0][2], entries[-1][2]
        if first < next_offsets.get(key, 0) or last - first != len(entries) - 1:
            return False
    return True


def split_at_restarts(
    entries: list[LogEntry], next_offsets: Mapping[QueueKey, int]
) -> Iterator[tuple[QueueKey | None, list[LogEntry]]]:
    """The entries in runs, each with the queue, if any, that restarts with the run.

    A queue restarts where its offsets go back although the log goes on: the other broker
    deleted its topic.
    """
    restarted: QueueKey | None = None
    expected: dict[QueueKey, int] = {}
    start = 0
    for place, entry in enumerate(entries):
        if entry[7] & PREPARED:
            continue
        key = entry[:2]
        queue_offset = entry[2]
        if queue_offset < expected.get(key, next_offsets.get(key, 0)):
            if place > start:
                yield restarted, entries[start:place]
            restarted, start = key, place
        expected[key] = queue_offset + 1
    yield restarted, entries[start:]


def _has_whole_record(log: CommitLog, segment: Segment, physical_offset: int) -> bool:
    """Whether all bytes of the record or filler that begins at an offset are there."""
    available = min(segment.end_offset, log.end_offset) - physical_offset
    left = segment.end_offset - physical_offset
    if available < BLANK_BYTES:
        if left < BLANK_BYTES:
            raise _damage(segment, physical_offset, f"the segment ends after {left} bytes")
        return False
    size, magic = _START.unpack_from(segment.view, physical_offset - segment.base_offset)
    if magic == MAGIC_BLANK:
        if size != left:
            raise _damage(
                segment,
                physical_offset,
                f"a segment of the other log ends {size} bytes after this, and ours {left} bytes "
                "after it: mappedFileSizeCommitLog differs",
            )
    elif magic not in _MAGICS or not 0 < size <= left:
        raise _damage(segment, physical_offset, f"no record has size {size} and magic {magic:#x}")
    return bool(size <= available)


def _damage(segment: Segment, physical_offset: int, reason: str) -> StoreCorruptError:
    text = f"the bytes at {physical_offset} are no record: {reason}"
    return StoreCorruptError(text, segment.path, physical_offset)
