"""Where the logs of two stores differ: of a master and its slave, or of a broker before and after.

Replicas have the same bytes at the same offsets, so the logs are compared as bytes, over the range
that both have. Nothing is locked or changed. A broker may run: what it appends meanwhile is not
looked at.
"""

from itertools import takewhile
from mmap import mmap
from typing import Final, NamedTuple

from goddard.store.check.inspect import StoreFile, StoreView
from goddard.store.recovery.scan import FileEnd, chain_end, record_positions

_BLOCK_BYTES: Final = 1 << 20


class LogBounds(NamedTuple):
    """From where to where a log has bytes."""

    min_offset: int
    end_offset: int


class Difference(NamedTuple):
    """The first byte that differs, and the record of both logs in which it lies or would begin."""

    physical_offset: int
    record_offset: int


class Comparison(NamedTuple):
    """``difference`` is None if all bytes that both logs have are equal."""

    first: LogBounds
    second: LogBounds
    compared: LogBounds
    difference: Difference | None

    @property
    def is_equal(self) -> bool:
        """Whether the logs are the same; where they begin may differ, because old files expire."""
        return self.difference is None and self.first.end_offset == self.second.end_offset


def compare(first: StoreView, second: StoreView) -> Comparison:
    """Compare the logs of two stores."""
    bounds = _bounds(first), _bounds(second)
    start = max(bounds[0].min_offset, bounds[1].min_offset)
    end = max(start, min(bounds[0].end_offset, bounds[1].end_offset))
    found = _first_difference(first.log_files(), second.log_files(), start, end)
    difference = None
    if found is not None:
        difference = Difference(found, _record_start(first.log_files(), found))
    return Comparison(*bounds, LogBounds(start, end), difference)


def _bounds(view: StoreView) -> LogBounds:
    files = view.log_files()
    if not files:
        return LogBounds(0, 0)
    end = files[0].start
    for file in files:
        if not file.size_bytes or file.start != end:
            break
        used, how = chain_end(file.map())
        end = file.end if how is FileEnd.FILLED else file.start + used
        if how is FileEnd.OPEN:
            break
    return LogBounds(files[0].start, end)


def _first_difference(
    first: list[StoreFile], second: list[StoreFile], start: int, end: int
) -> int | None:
    """The files may have different sizes."""
    maps: dict[StoreFile, mmap] = {}
    offset = start
    while offset < end:
        pieces = []
        for files in (first, second):
            file = next((each for each in files if each.start <= offset < each.end), None)
            if file is None:
                return offset
            if file not in maps:
                maps = {kept: data for kept, data in maps.items() if kept.end > offset}
                maps[file] = file.map()
            position = offset - file.start
            pieces.append(memoryview(maps[file])[position : position + _BLOCK_BYTES])
        size = min(end - offset, *map(len, pieces))
        one, other = (bytes(piece[:size]) for piece in pieces)
        if one != other:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True))
            return offset + sum(1 for _ in same)
        offset += size
    return None


def _record_start(files: list[StoreFile], offset: int) -> int:
    """Where the record begins in which an offset lies."""
    file = next((each for each in files if each.start <= offset < each.end), None)
    if file is None:
        return offset
    start = file.start
    for position in record_positions(file.map()):
        if file.start + position > offset:
            break
        start = file.start + position
    return start
