"""Cold reads: when reading messages would wait for the disk, and what is read before."""

import os
from pathlib import Path

import pytest

from goddard.environment.files import SystemFiles
from tests.support.store import SmallStore, prepared


class CountingFiles(SystemFiles):
    """Nothing is in the page cache; notes what is read."""

    def __init__(self) -> None:
        self.read: list[tuple[str, int, int]] = []
        self.ahead = 0
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self._names[fd] = path.name
        return fd

    def is_cached(self, fd: int, position: int) -> bool:
        return False

    def will_need(self, fd: int, position: int, size: int) -> None:
        self.ahead = position
        super().will_need(fd, position, size)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.read.append((self._names[fd], position, size))
        return super().pread(fd, size, position)


def test_entries_and_records_are_read_in_few_pieces(tmp_path: Path) -> None:
    with SmallStore(tmp_path, segment_bytes=1 << 20) as store:
        entries = store.put_many([prepared(body=bytes(1000))] * 15)
    files = CountingFiles()
    with SmallStore(tmp_path, segment_bytes=1 << 20, files=files) as store:
        cold = store.cold_read("TopicA", 0, 5, 10)
        assert cold is not None
        files.read.clear()
        cold.warm()
        first, last = entries[5], entries[14]
        size = last.end_offset - first.physical_offset
        name = f"{0:020d}"
        assert files.read == [(name, 100, 200), (name, first.physical_offset, size)]
        assert files.ahead == last.end_offset


def test_a_file_that_is_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put_many([prepared()] * 5)
    with SmallStore(tmp_path, files=CountingFiles()) as store:
        cold = store.cold_read("TopicA", 0, 0, 5)
        store.delete_topic("TopicA")
        assert cold is not None
        cold.warm()
        assert store.cold_read("TopicA", 0, 0, 5) is None


@pytest.mark.parametrize("queue_offset", [-1, 5, 99])
def test_no_message_is_no_cold_read(tmp_path: Path, queue_offset: int) -> None:
    with SmallStore(tmp_path) as store:
        store.put_many([prepared()] * 5)
    with SmallStore(tmp_path, files=CountingFiles()) as store:
        assert store.cold_read("TopicA", 0, queue_offset, 5) is None
        assert store.cold_read("TopicB", 0, 0, 5) is None


def test_old_messages_of_this_run_are_looked_at_when_much_was_appended(tmp_path: Path) -> None:
    files = CountingFiles()
    with SmallStore(tmp_path, files=files, memory_bytes=4096) as store:
        store.put_many([prepared(body=bytes(100))] * 5)
        store.tick()
        assert store.cold_read("TopicA", 0, 0, 5) is None
        store.put_many([prepared(queue_id=1, body=bytes(1000))] * 5)
        assert store.cold_read("TopicA", 0, 0, 5) is not None


def test_what_was_just_written_is_in_the_page_cache(tmp_path: Path) -> None:
    files = SystemFiles()
    fd = files.open(tmp_path / "file", create=True)
    try:
        os.pwrite(fd, bytes(8192), 0)
        assert files.is_cached(fd, 8191)
    finally:
        files.close(fd)
