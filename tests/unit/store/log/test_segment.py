"""Commit log files: created completely or not at all, in advance, without delaying appends."""

import errno
import os
import threading
from pathlib import Path

import pytest

from goddard.environment.files import Data, DiskUsage, SystemFiles
from goddard.environment.threads import ThreadWorker
from goddard.store.errors import StoreFullError, StoreLayoutError
from goddard.store.log.segment import Segment, SegmentAllocator, create_segment, load_offsets
from tests.support.faulty_files import FaultyFiles
from tests.support.store import InlineWorker


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_new_file_has_its_full_size(tmp_path: Path) -> None:
    segment = create_segment(SystemFiles(), tmp_path, 65_536, 65_536)
    assert segment.path.name == f"{65_536:020d}"
    assert segment.path.stat().st_size == 65_536
    assert blocks(segment.path) < 65_536


@pytest.mark.parametrize("operation", ["truncate", "sync", "sync_directory"])
def test_no_incomplete_file_is_left(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles(tmp_path)
    files.fail(operation, errno.ENOSPC)
    with pytest.raises(StoreFullError):
        create_segment(files, tmp_path, 0, 8192)
    assert not list(tmp_path.iterdir())


def test_writes_are_visible_in_the_mapping(tmp_path: Path) -> None:
    segment = create_segment(SystemFiles(), tmp_path, 0, 8192)
    view = segment.view
    segment.write(100, b"hello")
    assert bytes(view[100:105]) == b"hello"
    with pytest.raises(TypeError):
        view[0] = 1
    segment.zero(0, 8192)
    assert view[:] == bytes(8192)
    segment.delete()
    assert view[100:105] == bytes(5), "a reader in mid-read is safe"


def test_zeroing_touches_no_mapped_page(tmp_path: Path) -> None:
    """On a full tmpfs, reading a hole through the mapping would kill the process."""
    files = FaultyFiles(tmp_path)
    segment = create_segment(files, tmp_path, 0, 65_536)
    segment.write(100, b"hello")
    segment.zero(0, 65_536)
    assert files.count("map") == 0
    assert segment.path.read_bytes() == bytes(65_536)


def test_names_and_sizes_are_checked(tmp_path: Path) -> None:
    files = SystemFiles()
    for offset in (0, 8192, 16384):
        create_segment(files, tmp_path, offset, 8192).close()
    (tmp_path / "directory").mkdir()
    assert load_offsets(files, tmp_path, 8192) == [0, 8192, 16384]
    assert load_offsets(files, tmp_path / "nothing", 8192) == []
    odd = tmp_path / f"{8193:020d}"
    odd.write_bytes(bytes(8192))
    with pytest.raises(StoreLayoutError, match="multiple"):
        load_offsets(files, tmp_path, 8192)
    odd.unlink()
    (tmp_path / f"{8192:020d}").write_bytes(b"")
    with pytest.raises(StoreLayoutError, match="0 bytes"):
        load_offsets(files, tmp_path, 8192)


def allocator(directory: Path, worker: InlineWorker | ThreadWorker) -> SegmentAllocator:
    return SegmentAllocator(SystemFiles(), directory, 8192, prezero=True, worker=worker)


def test_the_next_file_is_made_by_the_worker(tmp_path: Path) -> None:
    worker = ThreadWorker("test-files")
    next_segments = allocator(tmp_path, worker)
    makers: list[str] = []
    next_segments.prepare(8192)
    worker.submit(lambda: makers.append(threading.current_thread().name))
    segment = next_segments.take(8192)
    assert segment.base_offset == 8192
    next_segments.prepare(16384)
    worker.stop()
    assert makers == ["test-files"]
    assert len(list(tmp_path.iterdir())) == 2
    next_segments.discard()
    assert [path.name for path in tmp_path.iterdir()] == [segment.path.name]


def test_a_prepared_segment_with_another_offset_is_deleted(tmp_path: Path) -> None:
    next_segments = allocator(tmp_path, InlineWorker())
    next_segments.prepare(8192)
    assert next_segments.take(0).base_offset == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_blocks_are_written_in_advance(tmp_path: Path) -> None:
    next_segments = allocator(tmp_path, InlineWorker())
    next_segments.prepare(0)
    segment = next_segments.take(0)
    assert blocks(segment.path) >= 8192
    assert segment.view[:] == bytes(8192)


class SlowZeros(SystemFiles):
    """Signals that the first zeros are being written, and blocks until released."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.writes = 0

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        self.writes += 1
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        super().pwrite(fd, data, position)


def test_zeroing_stops_when_the_file_is_taken(tmp_path: Path) -> None:
    """Taking the file waits for at most one chunk, and zeros overwrite no appended data."""
    files, worker = SlowZeros(), ThreadWorker("test-files")
    size = 8 << 20
    next_segments = SegmentAllocator(files, tmp_path, size, prezero=True, worker=worker)
    next_segments.prepare(0)
    assert files.has_begun.wait(30)
    taken: list[Segment] = []
    taker = threading.Thread(target=lambda: taken.append(next_segments.take(0)))
    taker.start()
    taker.join(0.1)
    assert taker.is_alive(), "zeros on their way could still come over what is appended"
    files.may_go_on.set()
    taker.join(30)
    taken[0].write(0, b"appended")
    worker.stop()
    assert bytes(taken[0].view[:8]) == b"appended"
    assert files.writes < 8
    assert blocks(taken[0].path) < size


@pytest.mark.parametrize("operation", ["pwrite", "sync"])
def test_a_full_disk_while_zeroing_does_not_fail_the_append(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles(tmp_path)
    files.fail(operation, errno.ENOSPC, skip=operation == "sync")
    next_segments = SegmentAllocator(files, tmp_path, 8192, prezero=True, worker=InlineWorker())
    next_segments.prepare(0)
    segment = next_segments.take(0)
    segment.write(0, b"appended")
    assert bytes(segment.view[:8]) == b"appended"


def test_no_zeros_are_written_after_stop_prezeroing(tmp_path: Path) -> None:
    next_segments = allocator(tmp_path, InlineWorker())
    next_segments.stop_prezeroing()
    next_segments.prepare(0)
    assert blocks(next_segments.take(0).path) < 8192


def test_periodic_jobs_run_again_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    worker = ThreadWorker("test-periodic")
    runs = threading.Semaphore(0)

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    worker.every(1, runs.release)
    worker.submit(fail)
    for _ in range(3):
        assert runs.acquire(timeout=10), "a failing job does not end the worker"
    worker.stop()
    assert "a defect" in caplog.text
    done: list[int] = []
    worker.submit(lambda: done.append(1))
    assert done == [1], "after the end jobs run in the caller"


def test_used_share_is_rounded_up() -> None:
    assert DiskUsage(1000, 0, 1000).ratio == 0
    assert DiskUsage(1000, 501, 499).ratio == 0.51
    assert DiskUsage(1000, 750, 250).ratio == 0.75
    assert DiskUsage(0, 0, 0).ratio == 0


def test_faulty_files_drop_unsynced_changes_at_a_crash(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    (root / "old").write_bytes(b"old")
    files = FaultyFiles(root)
    fd = files.open(root / "new", create=True)
    files.pwrite(fd, b"one", 0)
    files.sync(fd)
    files.sync_directory(root)
    files.pwrite(fd, b"two", 0)
    unnamed = files.open(root / "unnamed", create=True)
    files.sync(unnamed)
    files.unlink(root / "old")
    files.crash()
    found = {path.name: path.read_bytes() for path in root.iterdir()}
    assert found == {"new": b"one", "old": b"old"}, "the deletion was not synced either"
    with pytest.raises(OSError, match="crashed"):
        files.sync(fd)
    os.close(fd)
    os.close(unnamed)
