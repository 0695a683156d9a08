"""Zeros ahead of the log: where they are written, and that they overwrite no appended data."""

import errno
import os
import threading
from pathlib import Path

import pytest

from goddard.environment.files import Data, SystemFiles
from goddard.environment.threads import ThreadWorker, Worker
from goddard.store.log.segment import Segment, create_segment
from goddard.store.log.zeroing import ZeroAhead
from tests.support.faulty_files import FaultyFiles
from tests.support.store import InlineWorker

PAGE = 4096
SIZE = 64 * PAGE


def zero_ahead(files: SystemFiles, worker: Worker) -> ZeroAhead:
    return ZeroAhead(files, worker, step_bytes=PAGE, reserved_bytes=2 * PAGE, ahead_bytes=8 * PAGE)


def segment_in(files: SystemFiles, directory: Path, base_offset: int = 0) -> Segment:
    return create_segment(files, directory, base_offset, SIZE)


def append(zeros: ZeroAhead, segment: Segment, position: int, data: bytes) -> None:
    zeros.reserve(segment, position + len(data))
    segment.write(position, data)


def holes(path: Path) -> list[int]:
    """The pages without a block."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return [
            page
            for page in range(SIZE // PAGE)
            if SystemFiles().data_start(fd, page * PAGE, (page + 1) * PAGE) > page * PAGE
        ]
    finally:
        os.close(fd)


def test_a_fixed_length_ahead_is_zeroed(tmp_path: Path) -> None:
    files = SystemFiles()
    zeros, segment = zero_ahead(files, InlineWorker()), segment_in(files, tmp_path)
    append(zeros, segment, 0, b"x" * PAGE)
    # One page appended, two reserved, eight ahead of them.
    assert holes(segment.path) == [1, 2, *range(11, 64)]
    for page in range(1, 64):
        append(zeros, segment, page * PAGE, b"x" * PAGE)
        following = set(range(page + 3, min(page + 5, 64)))
        assert following.isdisjoint(holes(segment.path))
    assert segment.path.read_bytes() == b"x" * SIZE


def test_zeroed_pages_are_not_zeroed_again(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    segment = segment_in(files, tmp_path)
    segment.write(0, bytes(SIZE))
    before = files.count("pwrite")
    zeros = zero_ahead(files, InlineWorker())
    for page in range(8):
        zeros.reserve(segment, (page + 1) * PAGE)
    assert files.count("pwrite") == before


def test_zeroing_continues_in_the_next_segment(tmp_path: Path) -> None:
    files = SystemFiles()
    zeros = zero_ahead(files, InlineWorker())
    first, second = segment_in(files, tmp_path), segment_in(files, tmp_path, SIZE)
    append(zeros, first, 0, b"x" * SIZE)
    append(zeros, second, 0, b"y")
    assert first.path.read_bytes() == b"x" * SIZE
    assert 5 not in holes(second.path)


def test_zeros_never_overwrite_appended_data(tmp_path: Path) -> None:
    files, worker = SystemFiles(), ThreadWorker("test-zeros")
    zeros, segment = zero_ahead(files, worker), segment_in(files, tmp_path)
    for position in range(0, SIZE, 1000):
        append(zeros, segment, position, b"x" * min(1000, SIZE - position))
    worker.stop()
    assert segment.path.read_bytes() == b"x" * SIZE


class SlowZeros(SystemFiles):
    """Signals that zeros are being written, and blocks until released."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        if not any(data):
            self.has_begun.set()
            assert self.may_go_on.wait(30)
        super().pwrite(fd, data, position)


def test_an_append_waits_only_where_zeros_are_being_written(tmp_path: Path) -> None:
    files, worker = SlowZeros(), ThreadWorker("test-zeros")
    zeros, segment = zero_ahead(files, worker), segment_in(files, tmp_path)
    append(zeros, segment, 0, b"x" * PAGE)
    assert files.has_begun.wait(30)
    append(zeros, segment, PAGE, b"x" * (2 * PAGE))  # this much was reserved
    appender = threading.Thread(target=append, args=(zeros, segment, 3 * PAGE, b"x" * PAGE))
    appender.start()
    appender.join(0.1)
    assert appender.is_alive()
    files.may_go_on.set()
    appender.join(30)
    zeros.stop()
    worker.stop()
    assert segment.path.read_bytes().rstrip(b"\0") == b"x" * (4 * PAGE)


@pytest.mark.parametrize("operation", ["open", "pwrite", "sync"])
def test_a_failure_to_write_zeros_does_not_fail_the_append(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles(tmp_path)
    segment = segment_in(files, tmp_path)
    segment.write(0, b"x")
    zeros = zero_ahead(files, InlineWorker())
    files.fail(operation, errno.ENOSPC)
    append(zeros, segment, 1, b"x")
    append(zeros, segment, 2, b"x" * (4 * PAGE))
    assert segment.path.read_bytes().rstrip(b"\0") == b"x" * (4 * PAGE + 2)


def test_nothing_is_written_after_stop(tmp_path: Path) -> None:
    files, worker = SystemFiles(), InlineWorker()
    zeros, segment = zero_ahead(files, worker), segment_in(files, tmp_path)
    worker.is_held = True
    append(zeros, segment, 0, b"x")
    zeros.stop()
    worker.run()
    append(zeros, segment, 0, b"x" * (8 * PAGE))
    worker.run()
    assert holes(segment.path) == list(range(8, 64))
