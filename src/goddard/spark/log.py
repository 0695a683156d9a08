"""Commit-log files as rows, without a broker: planning by file, reading by piece. No pyspark here.

A file is named after the physical offset of its first byte, and every record holds its own physical
offset. So a piece may begin anywhere in a file: the next record is where magic, size and offset
agree. The end of the newest file is still being written, or was torn by a crash: reading stops at
the first record there that is not whole. Damage anywhere else is an error with file and place, or
with ``fails_on_data_loss`` off a warning, and reading goes on at the next record.

Brokers write a log from its beginning to its end. So what lies before bytes that were there when
reading began is there as a whole; only the rest is checked byte by byte.
"""

import contextlib
import itertools
import logging
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from goddard.errors import ConfigError, ProtocolError
from goddard.protocol.hashing import body_crc
from goddard.protocol.names import is_dlq_topic, is_retry_topic, is_system_topic, topic_problem
from goddard.protocol.record import (
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_BODY_BYTES,
    STORE_HOST_V6,
)
from goddard.spark import logindex
from goddard.spark.columns import RecordColumns
from goddard.spark.offsets import DataLossError
from goddard.spark.options import Given
from goddard.spark.wrapped import unwrapped

_logger: Final = logging.getLogger("goddard.spark")

_NAME_DIGITS: Final = 20
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 128 * 1024 * 1024
# A body, the longest topic and properties, and what is fixed.
_MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 2 * 32_768 + 1024
_MIN_RECORD_BYTES: Final = 91
_SEEN_AGAIN_BYTES: Final = 64
_PROBE_BYTES: Final = 4096
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)

_START: Final = struct.Struct(">iI")
_PLACE: Final = struct.Struct(">q")
_PLACE_AT: Final = 28
_HEAD: Final = struct.Struct(">iI20xq")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_SYS_FLAG_AT: Final = 36

LOG: Final = {
    "path": "a store directory, or the commitlog folder in it",
    "subscribe": "topics, separated by commas (all but system, retry and dead-letter topics)",
    "includeSystemTopics": "true: those too (false)",
    "startingTimestamp": "stored at this time or later, milliseconds since 1970",
    "endingTimestamp": "stored before this time",
    "brokerName": "what the column brokerName is to say; files do not know it",
    "failOnDataLoss": "false: go on behind damaged records (true)",
    "useIndex": "false: read files that have, by its queues, no message of the topics (true)",
    "pieceBytes": "bytes of a file that a task reads (128 MiB)",
    "rowsPerBatch": "rows of an Arrow batch (20000)",
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
    piece_bytes: int = _PIECE_BYTES
    rows_per_batch: int = 20_000


class Piece(NamedTuple):
    """Records that begin in ``[begin, end)`` of a file; positions are those in the file."""

    path: str
    file_offset: int
    begin: int
    end: int
    is_newest: bool


def parse_log(given: Mapping[str, str]) -> LogOptions:
    """Check the options of a read of files."""
    options = Given(given, LOG)
    text = options.text("path")
    if text is None:
        raise ConfigError('no path is given; write load("/path/of/store")')
    folder = Path(text.removeprefix("file://").removeprefix("file:"))
    if (folder / "commitlog").is_dir():
        folder /= "commitlog"
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory; give a store directory or its commitlog")
    topics: tuple[str, ...] = ()
    if (names := options.text("subscribe")) is not None:
        topics = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
        for topic in topics:
            if (problem := topic_problem(topic)) is not None:
                raise ConfigError(f"subscribe names the topic {topic!r}: {problem}")
    start_ms = options.count("startingTimestamp", None, low=0)
    end_ms = options.count("endingTimestamp", None, low=0)
    if start_ms is not None and end_ms is not None and end_ms <= start_ms:
        raise ConfigError(f"endingTimestamp, {end_ms}, is not after startingTimestamp, {start_ms}")
    return LogOptions(
        folder=folder,
        topics=topics,
        includes_system_topics=options.flag("includeSystemTopics", default=False),
        start_ms=start_ms,
        end_ms=end_ms,
        broker_name=options.text("brokerName"),
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        uses_index=options.flag("useIndex", default=True),
        piece_bytes=options.count("pieceBytes", _PIECE_BYTES, low=1024 * 1024),
        rows_per_batch=options.count("rowsPerBatch", 20_000, high=1_000_000),
    )


# Planning


class _File(NamedTuple):
    offset: int
    path: Path
    size_bytes: int
    # When its first record was stored; None if there is none.
    begins_ms: int | None


def plan(options: LogOptions) -> list[Piece]:
    """What the tasks read: files, cut into pieces, without those that have nothing for us."""
    files = _files(options.folder)
    # Brokers make files ahead of need: the newest is the last that something was written to.
    while files and files[-1].begins_ms is None:
        files.pop()
    if not files:
        return []
    files[-1] = files[-1]._replace(size_bytes=_written_bytes(files[-1]))
    queues = options.folder.parent / "consumequeue"
    for topic in options.topics if queues.is_dir() else ():
        if not (queues / topic).is_dir():
            _logger.warning("%s has no queue of the topic %s; is the name right?", queues, topic)
    ends_ms: list[int | None] = [*(file.begins_ms for file in files[1:]), None]
    indexed = _indexed(options, files)
    pieces = []
    for file, until_ms in zip(files, ends_ms, strict=True):
        begins_ms = file.begins_ms
        if options.end_ms is not None and begins_ms is not None and begins_ms >= options.end_ms:
            continue
        if options.start_ms is not None and until_ms is not None and until_ms < options.start_ms:
            continue
        if indexed is not None and until_ms is not None and not indexed.has(file, until_ms):
            continue
        is_newest = file is files[-1]
        for begin in range(0, file.size_bytes, options.piece_bytes):
            end = min(file.size_bytes, begin + options.piece_bytes)
            pieces.append(Piece(str(file.path), file.offset, begin, end, is_newest))
    return pieces


class _Indexed(NamedTuple):
    """Where the files with messages of the topics begin; complete up to ``until_ms``."""

    offsets: set[int]
    until_ms: int

    def has(self, file: _File, ends_ms: int) -> bool:
        """Whether a file may have such messages."""
        return ends_ms >= self.until_ms or file.offset in self.offsets


def _indexed(options: LogOptions, files: Sequence[_File]) -> _Indexed | None:
    root = options.folder.parent
    if not options.uses_index or not options.topics:
        return None
    until_ms = logindex.settled_until_ms(root)
    if until_ms is None:
        return None
    offsets = logindex.files_of_topics(root, options.topics, [file.offset for file in files])
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
        # A broker may be deleting old files meanwhile.
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            files.append(_File(offset, path, size_bytes, _first_time_ms(file.read(128))))
    return files


def _written_bytes(file: _File) -> int:
    """Up to where a file of full size was ever written to, where the file system can tell."""
    end = 0
    # Behind the last data there is nothing to seek: that is an error, and the end.
    with contextlib.suppress(OSError), file.path.open("rb") as opened:
        while end < file.size_bytes:
            data = os.lseek(opened.fileno(), end, os.SEEK_DATA)
            end = os.lseek(opened.fileno(), data, os.SEEK_HOLE)
    return end or file.size_bytes


def _first_time_ms(head: bytes) -> int | None:
    """When the record that begins a file was stored; None if there is none."""
    if len(head) < 128 or _START.unpack_from(head)[1] not in _MAGICS:
        return None
    (sys_flag,) = _I32.unpack_from(head, _SYS_FLAG_AT)
    (time_ms,) = _PLACE.unpack_from(head, 48 + (20 if sys_flag & BORN_HOST_V6 else 8))
    return int(time_ms)


# Reading


def read_piece(piece: Piece, options: LogOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a piece; what a task does."""
    for position, data, starts in _chunks(piece, options):
        bounds = [*starts[:: options.rows_per_batch], len(data)]
        for index, (begin, end) in enumerate(itertools.pairwise(bounds)):
            first = index * options.rows_per_batch
            some = starts[first : first + options.rows_per_batch]
            part = data[begin:end]
            for columns in _columns(
                part, [at - begin for at in some], piece, position + begin, options
            ):
                chosen = _chosen(columns, options)
                if chosen.all():
                    yield from columns.batches(names)
                elif chosen.any():
                    yield from columns.rows(chosen).batches(names)


def _columns(
    data: bytes, starts: list[int], piece: Piece, position: int, options: LogOptions
) -> Iterator[RecordColumns]:
    """Records as columns; one whose parts do not fit is damage, and left out if that is allowed."""
    try:
        yield RecordColumns(*unwrapped(data, starts), broker_name=options.broker_name)
    except ProtocolError:
        if len(starts) == 1:
            _lost(f"{piece.path} is damaged at byte {position + starts[0]}", options)
            return
        half = len(starts) // 2
        yield from _columns(data[: starts[half]], starts[:half], piece, position, options)
        rest = [at - starts[half] for at in starts[half:]]
        yield from _columns(data[starts[half] :], rest, piece, position + starts[half], options)


def _chosen(columns: RecordColumns, options: LogOptions) -> npt.NDArray[np.bool_]:
    chosen = columns.topics_that(lambda topic: _is_wanted(topic, options))
    times = columns.store_times_ms
    if options.start_ms is not None:
        chosen &= times >= options.start_ms
    if options.end_ms is not None:
        chosen &= times < options.end_ms
    return chosen


def _is_wanted(topic: str, options: LogOptions) -> bool:
    if options.topics:
        return topic in options.topics
    is_internal = is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)
    return options.includes_system_topics or not is_internal


def _chunks(piece: Piece, options: LogOptions) -> Iterator[tuple[int, bytes, list[int]]]:
    """Bytes of a piece, where they are in the file, and where the records begin in them."""
    try:
        with Path(piece.path).open("rb") as file:
            yield from _chunks_of(file.fileno(), piece, options)
    except FileNotFoundError:
        _lost(f"{piece.path} was deleted before it was read", options)


def _chunks_of(
    file: int, piece: Piece, options: LogOptions
) -> Iterator[tuple[int, bytes, list[int]]]:
    position = piece.begin
    is_synced = position == 0
    want_bytes = _CHUNK_BYTES
    while position < piece.end:
        # Asked before the bytes are read: see the module's text.
        is_settled = not piece.is_newest or any(os.pread(file, _PROBE_BYTES, position + want_bytes))
        data = os.pread(file, want_bytes, position)
        is_end = len(data) < want_bytes
        if not is_synced:
            found = _next_record(data, piece.file_offset + position)
            if found is None and is_end:
                return
            # A record may lie across the end of the bytes: its first ones are seen again.
            position += len(data) - _SEEN_AGAIN_BYTES if found is None else found
            is_synced = found is not None
            continue
        starts, reached, stop = _walk(
            data, piece, position, is_file_end=is_end, is_settled=is_settled
        )
        if starts:
            yield position, data[:reached], starts
        position += reached
        want_bytes = _CHUNK_BYTES if reached else _MAX_RECORD_BYTES
        if stop is _Stop.END:
            return
        if stop is _Stop.DAMAGE:
            _lost(f"{piece.path} is damaged at byte {position}", options)
            position += 1
            is_synced = False


class _Stop(Enum):
    """Why the walk over some bytes ended."""

    MORE = "the bytes end, or the piece"
    END = "nothing more was written"
    DAMAGE = "what follows is no record"


def _walk(
    data: bytes, piece: Piece, position: int, *, is_file_end: bool, is_settled: bool
) -> tuple[list[int], int, _Stop]:
    """The records at the beginning of the bytes, how far they reach, and why they end there."""
    starts: list[int] = []
    at = 0
    size = len(data)
    limit = min(piece.end - position, size)
    file_offset = piece.file_offset + position
    head_of = _HEAD.unpack_from
    while at < limit:
        if size - at < _MIN_RECORD_BYTES and not is_file_end:
            return starts, at, _Stop.MORE
        if size - at < _HEAD.size:
            return starts, at, _Stop.END
        length, magic, place = head_of(data, at)
        if magic == MAGIC_BLANK:
            return starts, at, _Stop.END
        is_record = magic in _MAGICS and _MIN_RECORD_BYTES <= length <= _MAX_RECORD_BYTES
        if is_record and length > size - at and not is_file_end:
            return starts, at, _Stop.MORE
        if (
            not is_record
            or length > size - at
            or place != file_offset + at
            or not (is_settled or _is_whole(data, at, at + length))
        ):
            # Files are made at full size: what follows the last record is zeros.
            is_tail = piece.is_newest or not any(data[at : at + 4096])
            return starts, at, _Stop.END if is_tail else _Stop.DAMAGE
        starts.append(at)
        at += length
    return starts, at, _Stop.MORE


def _is_whole(data: bytes, at: int, end: int) -> bool:
    """Whether a record of the newest file is there with all its bytes."""
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
    # Properties never end with a zero byte; those of a torn record may.
    is_ended = properties_bytes == 0 or data[end - 1] != 0
    (body_sum,) = _I32.unpack_from(data, at + 8)
    return (
        properties_at + properties_bytes == end
        and is_ended
        and body_crc(data[body_at:body_end]) == body_sum & 0x7FFFFFFF
    )


def _next_record(data: bytes, physical_offset: int) -> int | None:
    """Where the first record begins in bytes that begin anywhere."""
    found = len(data)
    for magic in _MAGICS:
        pattern = struct.pack(">I", magic)
        at = data.find(pattern)
        while 0 <= at < found + 4:
            start = at - 4
            if start >= 0 and start + _PLACE_AT + 8 <= len(data):
                (length,) = _I32.unpack_from(data, start)
                (place,) = _PLACE.unpack_from(data, start + _PLACE_AT)
                if place == physical_offset + start and length >= _MIN_RECORD_BYTES:
                    found = min(found, start)
                    break
            at = data.find(pattern, at + 1)
    return found if found < len(data) else None


def _lost(what: str, options: LogOptions) -> None:
    if options.fails_on_data_loss:
        raise DataLossError([what])
    _logger.warning("%s; going on at the next record", what)
