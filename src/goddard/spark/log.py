"""Commit-log files as rows, without a broker: planning by file, reading by piece. No pyspark here.

A file is named after the physical offset of its first byte, and every record holds its own physical
offset. So a piece may begin anywhere in a file: the next record is where magic, size and offset
agree. The end of the newest file is still being written, or was torn by a crash: reading stops at
the first record there that is not whole. Damage anywhere else is an error with file and place, or
with ``fails_on_data_loss`` off a warning, and reading goes on at the next record.
"""

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
from goddard.spark.columns import RecordColumns
from goddard.spark.offsets import DataLossError
from goddard.spark.options import Given

_logger: Final = logging.getLogger("goddard.spark")

_NAME_DIGITS: Final = 20
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 128 * 1024 * 1024
# A body, the longest topic and properties, and what is fixed.
_MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 2 * 32_768 + 1024
_MIN_RECORD_BYTES: Final = 91
_SEEN_AGAIN_BYTES: Final = 64
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)

_START: Final = struct.Struct(">iI")
_PLACE: Final = struct.Struct(">q")
_PLACE_AT: Final = 28
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
        piece_bytes=options.count("pieceBytes", _PIECE_BYTES, low=1024 * 1024),
        rows_per_batch=options.count("rowsPerBatch", 20_000, high=1_000_000),
    )


# Planning


def plan(options: LogOptions) -> list[Piece]:
    """What the tasks read: files, cut into pieces, without those that lie outside of the times."""
    files = _files(options.folder)
    first_times = [_first_time_ms(path) for _, path in files]
    pieces = []
    for index, (file_offset, path) in enumerate(files):
        is_newest = index == len(files) - 1
        begins_ms = first_times[index]
        ends_ms = None if is_newest else first_times[index + 1]
        if begins_ms is None and is_newest:
            continue  # nothing was written to it yet
        if options.end_ms is not None and begins_ms is not None and begins_ms >= options.end_ms:
            continue
        if options.start_ms is not None and ends_ms is not None and ends_ms < options.start_ms:
            continue
        size = path.stat().st_size
        for begin in range(0, size, options.piece_bytes):
            end = min(size, begin + options.piece_bytes)
            pieces.append(Piece(str(path), file_offset, begin, end, is_newest))
    return pieces


def _files(folder: Path) -> list[tuple[int, Path]]:
    files = sorted(
        (int(path.name), path)
        for path in folder.iterdir()
        if len(path.name) == _NAME_DIGITS and path.name.isdigit() and path.is_file()
    )
    if not files:
        raise ConfigError(f"{folder} has no commit-log files")
    return files


def _first_time_ms(path: Path) -> int | None:
    """When the first record of a file was stored; None if there is none."""
    with path.open("rb") as file:
        head = file.read(128)
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
                    yield columns.batch(names)
                elif chosen.any():
                    yield columns.rows(chosen).batch(names)


def _columns(
    data: bytes, starts: list[int], piece: Piece, position: int, options: LogOptions
) -> Iterator[RecordColumns]:
    """Records as columns; one whose parts do not fit is damage, and left out if that is allowed."""
    try:
        yield RecordColumns(data, starts, broker_name=options.broker_name)
    except ProtocolError:
        if len(starts) == 1:
            _report(piece, position + starts[0], options)
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
    position = piece.begin
    is_synced = position == 0
    want_bytes = _CHUNK_BYTES
    with Path(piece.path).open("rb") as file:
        while position < piece.end:
            data = os.pread(file.fileno(), want_bytes, position)
            is_end = len(data) < want_bytes
            if not is_synced:
                found = _next_record(data, piece.file_offset + position)
                if found is None and is_end:
                    return
                # A record may lie across the end of the bytes: its first ones are seen again.
                position += len(data) - _SEEN_AGAIN_BYTES if found is None else found
                is_synced = found is not None
                continue
            starts, reached, stop = _walk(data, piece, position, is_end)
            if starts:
                yield position, data[:reached], starts
            position += reached
            want_bytes = _CHUNK_BYTES if reached else _MAX_RECORD_BYTES
            if stop is _Stop.END:
                return
            if stop is _Stop.DAMAGE:
                _report(piece, position, options)
                position += 1
                is_synced = False


class _Stop(Enum):
    """Why the walk over some bytes ended."""

    MORE = "the bytes end, or the piece"
    END = "nothing more was written"
    DAMAGE = "what follows is no record"


def _walk(
    data: bytes, piece: Piece, position: int, is_file_end: bool
) -> tuple[list[int], int, _Stop]:
    """The records at the beginning of the bytes, how far they reach, and why they end there."""
    starts: list[int] = []
    at = 0
    size = len(data)
    limit = min(piece.end - position, size)
    file_offset = piece.file_offset + position
    start_of, place_of = _START.unpack_from, _PLACE.unpack_from
    while at < limit:
        if size - at < _MIN_RECORD_BYTES and not is_file_end:
            return starts, at, _Stop.MORE
        if size - at < _START.size:
            return starts, at, _Stop.END
        length, magic = start_of(data, at)
        if magic == MAGIC_BLANK:
            return starts, at, _Stop.END
        is_record = magic in _MAGICS and _MIN_RECORD_BYTES <= length <= _MAX_RECORD_BYTES
        if is_record and length > size - at and not is_file_end:
            return starts, at, _Stop.MORE
        if (
            not is_record
            or length > size - at
            or place_of(data, at + _PLACE_AT)[0] != file_offset + at
            or (piece.is_newest and not _is_whole(data, at, at + length))
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


def _report(piece: Piece, position: int, options: LogOptions) -> None:
    text = f"{piece.path} is damaged at byte {position}"
    if options.fails_on_data_loss:
        raise DataLossError([text])
    _logger.warning("%s; going on at the next record", text)
