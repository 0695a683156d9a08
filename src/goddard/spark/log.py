"""Read commit-log files as rows, without a broker and without pyspark.

The driver cuts files into splits, and a task reads one split. A file is named after the physical
offset of its first byte, and every record contains its own physical offset. So a split may begin
anywhere in a file: the next record is where magic, size and physical offset agree. The end of the
newest file is still being written, or was torn by a crash: reading stops at the first incomplete
record there. Damage anywhere else is an error with file and position; with ``fails_on_data_loss``
off it is a warning, and reading continues at the next record.

Brokers write a log sequentially. So a record is complete if later bytes of the file were already
written when it was read; only records without later bytes are checked completely.
"""

import contextlib
import logging
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from goddard.core import IS_COMPILED
from goddard.errors import ConfigError, ProtocolError
from goddard.protocol.hashing import body_crc
from goddard.protocol.names import is_internal_topic, topic_problem
from goddard.protocol.record import (
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_BODY_BYTES,
    STORE_HOST_V6,
)
from goddard.spark import compiled, log_index
from goddard.spark.arrays import Positions
from goddard.spark.columns import RecordColumns
from goddard.spark.inner_batches import unwrap
from goddard.spark.options import RawOptions
from goddard.spark.reading.offsets import DataLossError

if IS_COMPILED or TYPE_CHECKING:
    from goddard.core import columns as core_columns

_logger: Final = logging.getLogger("goddard.spark")

_NAME_DIGITS: Final = 20
# Chunks of this size, with their columns, stay in the processor's cache.
_CHUNK_BYTES: Final = 1024 * 1024
_PARTITION_BYTES: Final = 128 * 1024 * 1024
# The largest body, topic and properties, and the fixed fields.
_MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 2 * 32_768 + 1024
_MIN_RECORD_BYTES: Final = 91
_OVERLAP_BYTES: Final = 64
_PROBE_BYTES: Final = 4096
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)

_START: Final = struct.Struct(">iI")
_I64: Final = struct.Struct(">q")
_PHYSICAL_OFFSET_AT: Final = 28
# Size, magic, physical offset.
_HEAD: Final = struct.Struct(">iI20xq")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_SYS_FLAG_AT: Final = 36

LOG_OPTIONS: Final = {
    "path": "a store directory, or the commitlog folder in it",
    "subscribe": "topics, separated by commas (all but system, retry and dead-letter topics)",
    "includeSystemTopics": "true: include system, retry and dead-letter topics (false)",
    "startingTimestamp": "only messages stored at this time or later, milliseconds since 1970",
    "endingTimestamp": "only messages stored before this time, milliseconds since 1970",
    "brokerName": "value of the column brokerName, which the files do not contain",
    "failOnDataLoss": "false: skip damaged records with a warning (true)",
    "useIndex": "true: skip files without messages of the topics, by the consume queues (true)",
    "maxPartitionBytes": "maximum bytes of a file that one task reads (128 MiB)",
    "rowsPerBatch": "maximum rows of an Arrow batch (20000)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    folder: Path
    topics: tuple[str, ...] = ()
    includes_system_topics: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    broker_name: str | None = None
    fails_on_data_loss: bool = True
    uses_index: bool = True
    partition_bytes: int = _PARTITION_BYTES
    rows_per_batch: int = 20_000


class FileSplit(NamedTuple):
    """The records that begin in ``[begin, end)``, positions within the file."""

    path: str
    file_offset: int
    begin: int
    end: int
    is_newest: bool


def parse_log(given: Mapping[str, str]) -> LogOptions:
    """Parse and check the options of ``format("rocketmq-log")``."""
    options = RawOptions(given, LOG_OPTIONS)
    text = options.text("path")
    if text is None:
        raise ConfigError('the path is missing; write load("/path/of/store")')
    folder = Path(text.removeprefix("file://").removeprefix("file:"))
    if (folder / "commitlog").is_dir():
        folder /= "commitlog"
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a directory; give a store directory or its commitlog")
    topics: tuple[str, ...] = ()
    if (names := options.text("subscribe")) is not None:
        topics = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
        for topic in topics:
            if (problem := topic_problem(topic)) is not None:
                raise ConfigError(f"subscribe names the topic {topic!r}: {problem}")
    start_ms = options.count("startingTimestamp", None, low=0)
    end_ms = options.count("endingTimestamp", None, low=0)
    if start_ms is not None and end_ms is not None and end_ms <= start_ms:
        raise ConfigError(f"endingTimestamp {end_ms} is not after startingTimestamp {start_ms}")
    return LogOptions(
        folder=folder,
        topics=topics,
        includes_system_topics=options.flag("includeSystemTopics", default=False),
        start_ms=start_ms,
        end_ms=end_ms,
        broker_name=options.text("brokerName"),
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        uses_index=options.flag("useIndex", default=True),
        partition_bytes=options.count("maxPartitionBytes", _PARTITION_BYTES, low=1024 * 1024),
        rows_per_batch=options.count("rowsPerBatch", 20_000, high=1_000_000),
    )


# Planning


class _File(NamedTuple):
    offset: int
    path: Path
    size_bytes: int
    # Store time of the first record; None if the file has no record.
    first_stored_ms: int | None


def plan(options: LogOptions) -> list[FileSplit]:
    """The splits to read, without files that cannot contain a selected message."""
    files = _files(options.folder)
    # Brokers preallocate files: the newest is the last that contains a record.
    while files and files[-1].first_stored_ms is None:
        files.pop()
    if not files:
        return []
    files[-1] = files[-1]._replace(size_bytes=_written_bytes(files[-1]))
    queues = options.folder.parent / "consumequeue"
    for topic in options.topics if queues.is_dir() else ():
        if not (queues / topic).is_dir():
            _logger.warning("%s has no queue of topic %s; check the name", queues, topic)
    ends_ms: list[int | None] = [*(file.first_stored_ms for file in files[1:]), None]
    indexed = _indexed(options, files)
    splits = []
    for file, until_ms in zip(files, ends_ms, strict=True):
        first_stored_ms = file.first_stored_ms
        if (
            options.end_ms is not None
            and first_stored_ms is not None
            and first_stored_ms >= options.end_ms
        ):
            continue
        if options.start_ms is not None and until_ms is not None and until_ms < options.start_ms:
            continue
        if indexed is not None and until_ms is not None and not indexed.has(file, until_ms):
            continue
        is_newest = file is files[-1]
        for begin in range(0, file.size_bytes, options.partition_bytes):
            end = min(file.size_bytes, begin + options.partition_bytes)
            splits.append(FileSplit(str(file.path), file.offset, begin, end, is_newest))
    return splits


class _Indexed(NamedTuple):
    """Start offsets of the files with messages of the topics; complete up to ``until_ms``."""

    offsets: set[int]
    until_ms: int

    def has(self, file: _File, ends_ms: int) -> bool:
        """Whether a file may contain messages of the topics."""
        return ends_ms >= self.until_ms or file.offset in self.offsets


def _indexed(options: LogOptions, files: Sequence[_File]) -> _Indexed | None:
    root = options.folder.parent
    if not options.uses_index or not options.topics:
        return None
    until_ms = log_index.complete_until_ms(root)
    if until_ms is None:
        return None
    offsets = log_index.files_of_topics(root, options.topics, [file.offset for file in files])
    return None if offsets is None else _Indexed(offsets, until_ms)


def _files(folder: Path) -> list[_File]:
    found = sorted(
        (int(path.name), path)
        for path in folder.iterdir()
        if len(path.name) == _NAME_DIGITS and path.name.isdigit() and path.is_file()
    )
    if not found:
        raise ConfigError(f"{folder} has no commit-log files")
    files = []
    for offset, path in found:
        # A broker may delete old files at the same time.
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            files.append(_File(offset, path, size_bytes, _first_time_ms(file.read(128))))
    return files


def _written_bytes(file: _File) -> int:
    """The end of the written part of a preallocated file, if the file system can tell."""
    end = 0
    # SEEK_DATA raises OSError after the last data.
    with contextlib.suppress(OSError), file.path.open("rb") as opened:
        while end < file.size_bytes:
            data = os.lseek(opened.fileno(), end, os.SEEK_DATA)
            end = os.lseek(opened.fileno(), data, os.SEEK_HOLE)
    return end or file.size_bytes


def _first_time_ms(head: bytes) -> int | None:
    """Store time of the first record of a file; None if the file has no record."""
    if len(head) < 128 or _START.unpack_from(head)[1] not in _MAGICS:
        return None
    (sys_flag,) = _I32.unpack_from(head, _SYS_FLAG_AT)
    (time_ms,) = _I64.unpack_from(head, 48 + (20 if sys_flag & BORN_HOST_V6 else 8))
    return int(time_ms)


# Reading


def read_split(
    split: FileSplit, options: LogOptions, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a split. Runs in a task."""
    for position, data, starts, end in _chunks(split, options):
        for first in range(0, len(starts), options.rows_per_batch):
            batch_starts = starts[first : first + options.rows_per_batch]
            batch = compiled.decode_selected(
                data,
                batch_starts,
                names,
                broker_name=options.broker_name,
                is_selected=partial(_is_selected, options=options),
                start_ms=options.start_ms,
                end_ms=options.end_ms,
            )
            if batch is None:
                after = first + options.rows_per_batch
                begin, stop = (
                    int(batch_starts[0]),
                    int(starts[after]) if after < len(starts) else end,
                )
                own_starts = (batch_starts - begin).tolist()
                yield from _decode(
                    data[begin:stop], own_starts, split, position + begin, names, options
                )
            elif batch.num_rows:
                yield batch


def _decode(
    data: bytes,
    starts: list[int],
    split: FileSplit,
    position: int,
    names: Sequence[str],
    options: LogOptions,
) -> Iterator[pa.RecordBatch]:
    for columns in _columns(data, starts, split, position, options):
        mask = _selection(columns, options)
        if mask.all():
            yield from columns.batches(names)
        elif mask.any():
            yield from columns.filter(mask).batches(names)


def _columns(
    data: bytes, starts: list[int], split: FileSplit, position: int, options: LogOptions
) -> Iterator[RecordColumns]:
    """Records as columns. A malformed record is data loss; it is found by bisection and skipped."""
    try:
        yield RecordColumns(*unwrap(data, starts), broker_name=options.broker_name)
    except ProtocolError:
        if len(starts) == 1:
            _report_loss(f"{split.path} is damaged at byte {position + starts[0]}", options)
            return
        half = len(starts) // 2
        yield from _columns(data[: starts[half]], starts[:half], split, position, options)
        rest = [at - starts[half] for at in starts[half:]]
        yield from _columns(data[starts[half] :], rest, split, position + starts[half], options)


def _selection(columns: RecordColumns, options: LogOptions) -> npt.NDArray[np.bool_]:
    mask = columns.topic_mask(lambda topic: _is_selected(topic, options))
    times = columns.store_times_ms
    if options.start_ms is not None:
        mask &= times >= options.start_ms
    if options.end_ms is not None:
        mask &= times < options.end_ms
    return mask


def _is_selected(topic: str, options: LogOptions) -> bool:
    if options.topics:
        return topic in options.topics
    return options.includes_system_topics or not is_internal_topic(topic)


class _Chunk(NamedTuple):
    """Bytes at a position of the file, and the positions of the records in them."""

    position: int
    data: bytes
    starts: Positions
    # After the last record.
    end: int


def _chunks(split: FileSplit, options: LogOptions) -> Iterator[_Chunk]:
    try:
        with Path(split.path).open("rb") as file:
            yield from _chunks_of(file.fileno(), split, options)
    except FileNotFoundError:
        _report_loss(f"{split.path} was deleted before it was read", options)


def _chunks_of(file: int, split: FileSplit, options: LogOptions) -> Iterator[_Chunk]:
    position = split.begin
    is_synced = position == 0
    want_bytes = _CHUNK_BYTES
    while position < split.end:
        # Checked before the bytes are read: see the module docstring.
        is_settled = not split.is_newest or any(os.pread(file, _PROBE_BYTES, position + want_bytes))
        data = os.pread(file, want_bytes, position)
        is_end = len(data) < want_bytes
        if not is_synced:
            found = _next_record(data, split.file_offset + position)
            if found is None and is_end:
                return
            # A record's head may lie across the end of the bytes, so chunks overlap.
            position += len(data) - _OVERLAP_BYTES if found is None else found
            is_synced = found is not None
            continue
        starts, scanned_bytes, stop = _scan(
            data, split, position, is_file_end=is_end, is_settled=is_settled
        )
        if len(starts):
            yield _Chunk(position, data, starts, scanned_bytes)
        position += scanned_bytes
        want_bytes = _CHUNK_BYTES if scanned_bytes else _MAX_RECORD_BYTES
        if stop is _Stop.END:
            return
        if stop is _Stop.DAMAGE:
            _report_loss(f"{split.path} is damaged at byte {position}", options)
            position += 1
            is_synced = False


class _Stop(Enum):
    """Why a scan ended."""

    MORE = "end of the bytes or of the split"
    END = "end of the written part of the file"
    DAMAGE = "the bytes are not a record"


def _scan(
    data: bytes, split: FileSplit, position: int, *, is_file_end: bool, is_settled: bool
) -> tuple[Positions, int, _Stop]:
    """Scan records from the start of the bytes: their positions, their total size, the reason."""
    limit = min(split.end - position, len(data))
    at, plain = 0, np.empty(0, np.int64)
    if IS_COMPILED and is_settled:
        numbers, at = core_columns.scan_records(
            data, split.file_offset + position, limit, _MAX_RECORD_BYTES
        )
        plain = np.frombuffer(numbers, np.int64)
    starts, at, stop = _scan_from(
        at, limit, data, split, position, is_file_end=is_file_end, is_settled=is_settled
    )
    return np.append(plain, np.array(starts, np.int64)) if starts else plain, at, stop


def _scan_from(
    at: int,
    limit: int,
    data: bytes,
    split: FileSplit,
    position: int,
    *,
    is_file_end: bool,
    is_settled: bool,
) -> tuple[list[int], int, _Stop]:
    """Scan records from a position on: their positions, the end of the last one, the reason."""
    starts: list[int] = []
    size = len(data)
    file_offset = split.file_offset + position
    unpack_head = _HEAD.unpack_from
    while at < limit:
        if size - at < _MIN_RECORD_BYTES and not is_file_end:
            return starts, at, _Stop.MORE
        if size - at < _HEAD.size:
            return starts, at, _Stop.END
        length, magic, physical_offset = unpack_head(data, at)
        if magic == MAGIC_BLANK:
            return starts, at, _Stop.END
        is_record = magic in _MAGICS and _MIN_RECORD_BYTES <= length <= _MAX_RECORD_BYTES
        if is_record and length > size - at and not is_file_end:
            return starts, at, _Stop.MORE
        if (
            not is_record
            or length > size - at
            or physical_offset != file_offset + at
            or not (is_settled or _is_complete_record(data, at, at + length))
        ):
            # Files are preallocated: zeros follow the last record.
            is_tail = split.is_newest or not any(data[at : at + 4096])
            return starts, at, _Stop.END if is_tail else _Stop.DAMAGE
        starts.append(at)
        at += length
    return starts, at, _Stop.MORE


def _is_complete_record(data: bytes, at: int, end: int) -> bool:
    """Whether all bytes of a record of the newest file are written."""
    (sys_flag,) = _I32.unpack_from(data, at + _SYS_FLAG_AT)
    is_v2 = _START.unpack_from(data, at)[1] == MAGIC_V2
    body_at = at + 88 + (12 if sys_flag & BORN_HOST_V6 else 0)
    body_at += 12 if sys_flag & STORE_HOST_V6 else 0
    body_end = body_at + _I32.unpack_from(data, body_at - 4)[0] if body_at <= end else end
    if not body_at <= body_end <= end - (4 if is_v2 else 3):
        return False
    topic_bytes = _I16.unpack_from(data, body_end)[0] if is_v2 else data[body_end]
    properties_at = body_end + (4 if is_v2 else 3) + topic_bytes
    if not body_end < properties_at <= end:
        return False
    (properties_bytes,) = _I16.unpack_from(data, properties_at - 2)
    # Properties never end with a zero byte, unless the record is torn.
    is_ended = properties_bytes == 0 or data[end - 1] != 0
    (body_sum,) = _I32.unpack_from(data, at + 8)
    return (
        properties_at + properties_bytes == end
        and is_ended
        and body_crc(data[body_at:body_end]) == body_sum & 0x7FFFFFFF
    )


def _next_record(data: bytes, physical_offset: int) -> int | None:
    """The position of the first record in bytes that start anywhere in the file."""
    found = len(data)
    for magic in _MAGICS:
        pattern = struct.pack(">I", magic)
        at = data.find(pattern)
        while 0 <= at < found + 4:
            start = at - 4
            if start >= 0 and start + _PHYSICAL_OFFSET_AT + 8 <= len(data):
                (length,) = _I32.unpack_from(data, start)
                (own_offset,) = _I64.unpack_from(data, start + _PHYSICAL_OFFSET_AT)
                if own_offset == physical_offset + start and length >= _MIN_RECORD_BYTES:
                    found = min(found, start)
                    break
            at = data.find(pattern, at + 1)
    return found if found < len(data) else None


def _report_loss(loss: str, options: LogOptions) -> None:
    if options.fails_on_data_loss:
        raise DataLossError([loss])
    _logger.warning("%s; continuing at the next record", loss)
