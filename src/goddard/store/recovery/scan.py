"""Reads a commit-log file record by record, at the speed of a verification.

Records are walked by their sizes, then checked in batches: NumPy reads the fixed fields of
thousands of records at once, and only the CRC of the body and the two texts cost a call each. A
record that is not whole does not end the scan: when the bytes after it make sense, it alone is
reported, else the next good record is searched for, and everything before it is one flaw.

The owner maps the file and may scan it while a broker writes to it; the scan never writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goddard.errors import ProtocolError
from goddard.protocol.hashing import crc32
from goddard.protocol.message import PROPERTY_TAGS
from goddard.protocol.record import (
    BLANK_BYTES,
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    decode_record,
    read_summary,
)
from goddard.store.index.columns import Hashes, PropertyColumns, Spans
from goddard.store.log.records import (
    MAX_QUEUE_ID,
    SCHEDULE_TOPIC,
    LogEntry,
    is_topic_name,
    with_due_time,
)

BATCH_RECORDS: Final = 4096

_START: Final = Struct(">iI")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
_MAGIC_BYTES: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
# The smallest record, and the part of a head before the first host.
_MIN_RECORD_BYTES: Final = 91
_HEAD_TYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
    ]
)
_BORN_HOST_AT: Final = 48
_V4_BYTES: Final = 8
_V6_BYTES: Final = 20
_TAGS: Final = PROPERTY_TAGS.encode()
# The property that may end a record: name, 0x01, ten digits (lowest first), 0x02.
_CRC_PROPERTY: Final = b"__CRC32#\x01"
_CRC_PROPERTY_BYTES: Final = 20

Numbers = npt.NDArray[np.int64]


class Fault(Enum):
    """What is wrong with bytes of a commit log."""

    UNREADABLE = "unreadable bytes"
    BAD_RECORD = "record not whole"
    BAD_TOPIC = "illegal topic name"
    BAD_CRC = "body CRC differs"
    BAD_PROPERTY_CRC = "record CRC differs"
    MISPLACED = "wrong physical offset"
    CUT_PROPERTIES = "properties end in zeros"
    BAD_FILLER = "bad end-of-file filler"
    TORN_TAIL = "torn tail"


class Flaw(NamedTuple):
    """Bytes [position, position + length) of the file are not as they were written."""

    fault: Fault
    position: int
    length: int
    detail: str


class FileEnd(Enum):
    """Why a scan of a file ended."""

    FILLED = "the next file goes on"
    OPEN = "nothing was written after this"


@dataclass(slots=True)
class RecordBatch:
    """Records of one file in its order, in columns; positions are those of the file."""

    positions: Numbers
    sizes: Numbers
    queue_ids: Numbers
    queue_offsets: Numbers
    sys_flags: Numbers
    store_ms: Numbers
    topics: list[bytes]
    properties: list[bytes]
    _columns: PropertyColumns | None = None
    _tags: tuple[Spans, Hashes] | None = None

    def __len__(self) -> int:
        return len(self.topics)

    @property
    def columns(self) -> PropertyColumns:
        """The properties taken apart; done once, and only if someone asks."""
        if self._columns is None:
            self._columns = PropertyColumns(self.properties)
        return self._columns

    @property
    def tags(self) -> tuple[Spans, Hashes]:
        """Where the tags are, and their hashes; queues and index both want them."""
        if self._tags is None:
            spans = self.columns.find(_TAGS)
            self._tags = spans, self.columns.hashes(spans)
        return self._tags


def read_entries(
    batch: RecordBatch, base_offset: int, dispatch_from: int, delay_times_ms: tuple[int, ...]
) -> list[LogEntry] | None:
    """The records of a batch from an offset of the log on, and always its last one.

    None when something about them is not right; ``Scan`` then says which and what.
    """
    topics = {topic: topic.decode("utf-8", "replace") for topic in set(batch.topics)}
    if int(batch.queue_ids.max()) > MAX_QUEUE_ID or not all(
        is_topic_name(topic) for topic in topics.values()
    ):
        return None
    offsets = batch.positions + base_offset
    first = min(int(offsets.searchsorted(dispatch_from)), len(batch) - 1)
    spans, hashes = batch.tags
    tags_codes = np.zeros(len(batch), dtype=np.int64)
    tags_codes[spans.rows] = hashes.view(np.int32)
    columns = zip(
        [topics[topic] for topic in batch.topics[first:]],
        batch.queue_ids[first:].tolist(),
        batch.queue_offsets[first:].tolist(),
        offsets[first:].tolist(),
        batch.sizes[first:].tolist(),
        tags_codes[first:].tolist(),
        batch.store_ms[first:].tolist(),
        batch.sys_flags[first:].tolist(),
        batch.properties[first:],
        strict=True,
    )
    # In the order of the fields; the tuple's own constructor takes a fraction of the class's.
    entries = list(map(partial(tuple.__new__, LogEntry), columns))
    if SCHEDULE_TOPIC in topics.values():  # whose codes are not those of tags
        entries = [with_due_time(entry, delay_times_ms) for entry in entries]
    return entries


class FileScan:
    """One pass over a file that starts at ``start`` of the log.

    Iterate to get batches; flaws are in ``flaws`` as they are met, and after the last batch
    ``end`` and ``end_position`` say where and why it stopped.
    """

    def __init__(
        self,
        data: mmap | bytes,
        start: int,
        *,
        first_position: int = 0,
        check_crc: bool = True,
        data_end: int | None = None,
    ) -> None:
        """``data_end`` is where the hole at the end of the file begins, if that is known."""
        self.flaws: list[Flaw] = []
        self.end = FileEnd.OPEN
        self.end_position = first_position
        self._data = data
        self._size = len(data)
        self._start = start
        self._check_crc = check_crc
        self._data_end = len(data) if data_end is None else data_end
        self._raw = np.frombuffer(data, dtype=np.uint8)

    def __iter__(self) -> Iterator[RecordBatch]:
        position = self.end_position
        while True:
            positions, stop = self._walk(position)
            if positions:
                batch, bad = self._check(np.array(positions, dtype=np.int64))
                # A bad record whose size leads to a good one, or to a proper end, stands alone.
                lost = bad[-1:] if bad and bad[-1] == len(positions) - 1 else []
                if lost and not self._is_end(stop):
                    bad.pop()
                    stop = positions[-1]
                for number in bad:
                    self._report_record(positions[number], read_size(self._data, positions[number]))
                if len(batch):
                    yield batch
                if len(positions) == BATCH_RECORDS and stop != positions[-1]:
                    position = stop
                    continue
            resumed = self._pass(stop)
            if resumed is None:
                return
            position = resumed

    def until_flaw(self) -> Iterator[RecordBatch]:
        """Batches of good records only, up to the one that would hold the first flaw, or the end.

        ``end_position`` is where they end; what lies there is not looked at.
        """
        positions, stop = self._walk(self.end_position)
        while positions:
            batch, bad = self._check(np.array(positions, dtype=np.int64))
            if bad or self.flaws:
                return
            self.end_position = stop
            yield batch
            positions, stop = self._walk(stop)

    def _walk(self, position: int) -> tuple[list[int], int]:
        """Positions that look like records, each where the one before ends, and the next one."""
        positions: list[int] = []
        unpack, data, add = _START.unpack_from, self._data, positions.append
        end = self._size
        last = end - _MIN_RECORD_BYTES
        for _ in range(BATCH_RECORDS):
            if position > last:
                break
            size, magic = unpack(data, position)
            if magic not in _MAGICS or size < _MIN_RECORD_BYTES or position + size > end:
                break
            add(position)
            position += size
        return positions, position

    def _check(self, at: Numbers) -> tuple[RecordBatch, list[int]]:
        """The records that are whole, and the numbers of those that are not."""
        raw, limit = self._raw, self._size
        heads = _take(raw, at, _HEAD_TYPE.itemsize).view(_HEAD_TYPE)[:, 0]
        sizes = heads["size"].astype(np.int64)
        sys_flags = heads["sys_flag"].astype(np.int64)
        ends = at + sizes
        born = np.where(sys_flags & BORN_HOST_V6, _V6_BYTES, _V4_BYTES)
        store = np.where(sys_flags & STORE_HOST_V6, _V6_BYTES, _V4_BYTES)
        store_time_at = _within(at + _BORN_HOST_AT + born, limit - 8)
        body_at = store_time_at + 8 + store + 16
        body_lengths = _read(raw, _within(body_at - 4, limit - 4), ">i4")
        is_whole = (body_lengths >= 0) & (body_at + body_lengths + 3 <= ends)
        topic_at = _within(np.where(is_whole, body_at + body_lengths, 0), limit - 2)
        is_v2 = heads["magic"] == MAGIC_V2
        topic_lengths = np.where(is_v2, _read(raw, topic_at, ">i2"), _read(raw, topic_at, "|i1"))
        topic_at += np.where(is_v2, 2, 1)
        is_whole &= (topic_lengths >= 0) & (topic_at + topic_lengths + 2 <= ends)
        properties_at = _within(np.where(is_whole, topic_at + topic_lengths, 0), limit - 2)
        properties_lengths = _read(raw, properties_at, ">i2")
        properties_at += 2
        is_whole &= (properties_lengths >= 0) & (properties_at + properties_lengths == ends)
        is_whole &= (heads["queue_id"] >= 0) & (heads["queue_offset"] >= 0)

        bad: list[int] = [] if is_whole.all() else np.flatnonzero(~is_whole).tolist()
        kept = slice(None) if not bad else np.flatnonzero(is_whole)
        at, body_at, ends = at[kept], body_at[kept], ends[kept]
        heads, topic_at, properties_at = heads[kept], topic_at[kept], properties_at[kept]
        topic_ends = (properties_at - 2).tolist()
        data = self._data
        properties = [data[a:b] for a, b in zip(properties_at.tolist(), ends.tolist(), strict=True)]
        batch = RecordBatch(
            positions=at,
            sizes=sizes[kept],
            queue_ids=heads["queue_id"].astype(np.int64),
            queue_offsets=heads["queue_offset"].astype(np.int64),
            sys_flags=sys_flags[kept],
            store_ms=_read(raw, store_time_at[kept], ">i8"),
            topics=[data[a:b] for a, b in zip(topic_at.tolist(), topic_ends, strict=True)],
            properties=properties,
        )
        self._check_contents(batch, heads, body_at, body_lengths[kept])
        return batch, bad

    def _check_contents(
        self,
        batch: RecordBatch,
        heads: npt.NDArray[np.void],
        body_at: Numbers,
        body_lengths: Numbers,
    ) -> None:
        """What can be wrong with a record whose parts are in their places."""
        strays = np.flatnonzero(heads["physical_offset"] != batch.positions + self._start)
        for number in strays.tolist():
            self._report(
                Fault.MISPLACED,
                batch,
                number,
                f"it says {heads['physical_offset'][number]}, it is at "
                f"{batch.positions[number] + self._start}",
            )
        illegal = {
            topic
            for topic in set(batch.topics)
            if not is_topic_name(topic.decode("utf-8", "replace"))
        }
        if illegal:
            for number, topic in enumerate(batch.topics):
                if topic in illegal:
                    self._report(Fault.BAD_TOPIC, batch, number, f"{topic!r}")
        if self._check_crc:
            view = memoryview(self._data)
            body_ends = (body_at + body_lengths).tolist()
            crcs = [crc32(view[a:b]) for a, b in zip(body_at.tolist(), body_ends, strict=True)]
            found = np.array(crcs, dtype=np.int64) & 0x7FFFFFFF
            # As in Java, the field of an empty body means nothing.
            for number in np.flatnonzero((found != heads["crc"]) & (body_lengths > 0)).tolist():
                detail = f"stored {heads['crc'][number]:#010x}, computed {found[number]:#010x}"
                self._report(Fault.BAD_CRC, batch, number, detail)
        ends = batch.positions + batch.sizes
        lengths = np.fromiter(map(len, batch.properties), np.int64, len(batch))
        for number in np.flatnonzero((self._raw[ends - 1] == 0) & (lengths > 0)).tolist():
            self._report(Fault.CUT_PROPERTIES, batch, number, "the end was never written")
        if self._check_crc:
            names = _take(self._raw, ends - _CRC_PROPERTY_BYTES, len(_CRC_PROPERTY))
            named = (names == np.frombuffer(_CRC_PROPERTY, dtype=np.uint8)).all(axis=1)
            for number in np.flatnonzero(named & (lengths >= _CRC_PROPERTY_BYTES)).tolist():
                self._check_property_crc(batch, number)

    def _check_property_crc(self, batch: RecordBatch, number: int) -> None:
        start = int(batch.positions[number])
        covered = start + int(batch.sizes[number]) - _CRC_PROPERTY_BYTES
        stored = batch.properties[number][-11:-1][::-1].decode("latin-1")
        computed = crc32(memoryview(self._data)[start:covered]) & 0x7FFFFFFF
        if stored != f"{computed:010d}":
            detail = f"stored {stored!r}, computed {computed:010d}"
            self._report(Fault.BAD_PROPERTY_CRC, batch, number, detail)

    def _report(self, fault: Fault, batch: RecordBatch, number: int, detail: str) -> None:
        position, size = int(batch.positions[number]), int(batch.sizes[number])
        self.flaws.append(Flaw(fault, position, size, detail))

    def _report_record(self, position: int, size: int) -> None:
        """Say in words what the batch check only said no to."""
        try:
            read_summary(memoryview(self._data), position, max_body_bytes=self._size)
        except ProtocolError as error:
            detail = str(error)
        else:
            detail = "a negative queue id or queue offset"
        self.flaws.append(Flaw(Fault.BAD_RECORD, position, size, detail))

    def _is_end(self, position: int) -> bool:
        """Whether a walk may end here: at the filler, at zeros, or at the end of the file."""
        if self._size - position < BLANK_BYTES:
            return True
        size, magic = _START.unpack_from(self._data, position)
        return bool((magic == MAGIC_BLANK and size == self._size - position) or size == magic == 0)

    def _pass(self, position: int) -> int | None:
        """What to do where no record follows: where to go on, or None when the file ends."""
        room = self._size - position
        self.end_position = position
        if room < BLANK_BYTES:
            self.end = FileEnd.FILLED
            return None
        size, magic = _START.unpack_from(self._data, position)
        if magic == MAGIC_BLANK and size == room:
            self.end = FileEnd.FILLED
            return None
        if size == magic == 0 and self._is_blank(position):
            self.end = FileEnd.OPEN
            self._mark_torn_tail()
            return None
        resumed = self._search(position + 1)
        if resumed is not None:
            length = resumed - position
            self.flaws.append(
                Flaw(Fault.UNREADABLE, position, length, f"no record for {length} bytes")
            )
            return resumed
        if magic == MAGIC_BLANK:
            # Nothing good follows in this file, so the filler's size is what is wrong.
            detail = f"it says {size} bytes, the file has {room} left"
            self.flaws.append(Flaw(Fault.BAD_FILLER, position, BLANK_BYTES, detail))
            self.end = FileEnd.FILLED
            return None
        used = len(bytes(self._data[position:]).rstrip(b"\0"))
        detail = f"{used} bytes after the last good record are none"
        self.flaws.append(Flaw(Fault.TORN_TAIL, position, used, detail))
        self.end = FileEnd.OPEN
        return None

    def _is_blank(self, position: int) -> bool:
        """Whether nothing but zeros follows. A hole is not read; the rest goes by whole words."""
        end = self._data_end
        first_word = -(-position // 8) * 8
        words = max(end - first_word, 0) // 8
        if self._raw[position : min(first_word, end)].any():
            return False
        if np.frombuffer(self._data, np.uint64, words, min(first_word, self._size)).any():
            return False
        return not self._raw[first_word + words * 8 : end].any()

    def _mark_torn_tail(self) -> None:
        """A flaw that reaches the end of what was written is the write that was cut short."""
        if self.flaws and self.flaws[-1].position + self.flaws[-1].length == self.end_position:
            flaw = self.flaws[-1]
            if flaw.fault is not Fault.MISPLACED:
                detail = f"the last record: {flaw.fault.value}, {flaw.detail}"
                self.flaws[-1] = flaw._replace(fault=Fault.TORN_TAIL, detail=detail)
                self.end_position = flaw.position

    def _search(self, position: int) -> int | None:
        """The next position at which a whole record says that it is there."""
        candidates = [self._next_magic(magic, position) for magic in _MAGIC_BYTES]
        view = memoryview(self._data)
        while any(candidate is not None for candidate in candidates):
            nearest = min(candidate for candidate in candidates if candidate is not None)
            try:
                record, _ = decode_record(view, nearest, max_body_bytes=self._size)
            except ProtocolError:
                pass
            else:
                if record.physical_offset == self._start + nearest:
                    return nearest
            for number, magic in enumerate(_MAGIC_BYTES):
                if candidates[number] == nearest:
                    candidates[number] = self._next_magic(magic, nearest + 1)
        return None

    def _next_magic(self, magic: bytes, position: int) -> int | None:
        """Where a record would start whose magic is the next one found."""
        found = self._data.find(magic, position + 4)
        return None if found < 0 else found - 4


def read_size(data: mmap | bytes, position: int) -> int:
    return int(_START.unpack_from(data, position)[0])


def record_positions(data: mmap, first: int = 0) -> Iterator[int]:
    """The chain of records from one on, by size and magic alone; for tools that list them."""
    size, position = len(data), first
    while position <= size - _MIN_RECORD_BYTES:
        length, magic = _START.unpack_from(data, position)
        if magic not in _MAGICS or not _MIN_RECORD_BYTES <= length <= size - position:
            return
        yield position
        position += length


def chain_end(data: mmap) -> tuple[int, FileEnd]:
    """Where the chain of records ends, without looking into them, and whether a file follows."""
    position = 0
    for last in record_positions(data):
        position = last + read_size(data, last)
    room = len(data) - position
    if room < BLANK_BYTES:
        return position, FileEnd.FILLED
    size, magic = _START.unpack_from(data, position)
    is_filled = magic == MAGIC_BLANK and size == room
    return position, FileEnd.FILLED if is_filled else FileEnd.OPEN


def _take(raw: npt.NDArray[np.uint8], at: Numbers, width: int) -> npt.NDArray[np.uint8]:
    """Rows of ``width`` bytes at the positions given."""
    rows = np.lib.stride_tricks.sliding_window_view(raw, width)[at]
    return np.ascontiguousarray(rows)


def _read(raw: npt.NDArray[np.uint8], at: Numbers, form: str) -> Numbers:
    """Big-endian numbers at the positions given."""
    return _take(raw, at, int(form[-1])).view(form)[:, 0].astype(np.int64)


def _within(at: Numbers, most: int) -> Numbers:
    """Positions of a broken record may lie anywhere; those are read at the edge, and not used."""
    return np.clip(at, 0, most)
