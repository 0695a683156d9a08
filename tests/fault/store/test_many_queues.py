"""Thousands of queues: stop and start need few disk operations and lose nothing."""

from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.record import decode_record
from goddard.store.store import MessageStore
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared

QUEUES = 2_000


def new_store(root: Path, files: FaultyFiles | None = None) -> SmallStore:
    return SmallStore(root, files=files, segment_bytes=1 << 20, index_slots=64, index_entries=9000)


def fill(store: MessageStore, body: bytes, queues: int = QUEUES) -> None:
    store.put_many(
        [
            prepared(f"T{number // 4}", number % 4, body, unique_key=f"K{number}")
            for number in range(queues)
        ]
    )


def bodies(store: MessageStore, queues: int = QUEUES) -> set[tuple[bytes, ...]]:
    """The set of the queues' contents: one element if all queues are equal."""
    found = set()
    for number in range(queues):
        result = store.get(f"T{number // 4}", number % 4, 0, 32)
        found.add(tuple(decode_record(view)[0].body for view in result.records))
    return found


@pytest.mark.parametrize("has_file_system_sync", [True, False])
def test_a_clean_stop_survives_a_power_cut(tmp_path: Path, has_file_system_sync: bool) -> None:
    root = tmp_path / "store"
    files = FaultyFiles(root)
    files.has_file_system_sync = has_file_system_sync
    with new_store(root, files) as store:
        fill(store, b"first")
        files.calls.clear()
    synced = files.count("sync", "consumequeue") + files.count("sync_directory", "consumequeue")
    if has_file_system_sync:
        assert synced == 0
        assert files.count("sync_file_system") == 1
    else:
        assert synced == QUEUES * 2 + QUEUES // 4 + 1  # each file, its directory, topics, the root
    files.crash()
    small = new_store(root)
    with small as store:
        assert store.report.is_clean
        assert store.report.dispatched == 0
        assert bodies(store) == {(b"first",)}


def test_a_power_cut_after_a_checkpoint_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    files = FaultyFiles(root)
    small = new_store(root, files)
    store = small.store
    store.open()
    fill(store, b"first", 400)
    store.flush()
    small.clock.advance(store.config.checkpoint_interval_ms)
    store.tick()
    assert files.count("sync_file_system") == 1
    assert store.checkpoint.queue_time_ms > 0
    small.clock.advance(60_000)
    fill(store, b"second", 400)
    store.flush()
    files.crash()
    store.abandon()
    with new_store(root) as store:
        assert not store.report.is_clean
        assert bodies(store, 400) == {(b"first", b"second")}


def test_when_the_file_system_cannot_be_synced_the_stop_is_not_clean(tmp_path: Path) -> None:
    root = tmp_path / "store"
    files = FaultyFiles(root)
    small = new_store(root, files)
    store = small.store
    store.open()
    fill(store, b"first", 400)
    files.fail("sync_file_system")
    store.close()
    assert (root / "abort").exists()
    assert store.checkpoint.queue_time_ms == 0
    files.crash()
    with new_store(root) as store:
        assert not store.report.is_clean
        assert bodies(store, 400) == {(b"first",)}


def test_opening_reads_each_queue_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with new_store(root) as store:
        fill(store, b"first")
    files = FaultyFiles(root)
    with new_store(root, files) as store:
        assert files.count("open", "consumequeue/") == QUEUES
        assert files.count("contents", "consumequeue/") == QUEUES
        assert files.count("pread", "consumequeue/") == QUEUES
        assert store.max_offset("T9", 3) == 1


def test_a_sparse_queue_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Reading holes fills the page cache with zeros, up to a megabyte for each queue."""
    root = tmp_path / "store"
    settings: dict[str, Any] = {"queue_file_bytes": 6_000_000}
    with SmallStore(root, **settings) as store:
        store.put(prepared())
    read = 0
    pread = FaultyFiles.pread

    class Counted(FaultyFiles):
        def pread(self, fd: int, size: int, position: int) -> bytes:
            nonlocal read
            data = pread(self, fd, size, position)
            read += len(data) if "consumequeue" in str(self._paths[fd]) else 0
            return data

    files = Counted(root)
    with SmallStore(root, files=files, **settings) as store:
        assert store.max_offset("TopicA", 0) == 1
    assert 0 < read <= 16_384


def test_opening_after_a_kill_reads_each_queue_once_and_writes_it_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    small = new_store(root)
    small.store.open()
    fill(small.store, b"first")
    small.store.tick()
    small.store.abandon()
    files = FaultyFiles(root)
    with new_store(root, files) as store:
        assert not store.report.is_clean
        assert files.count("contents", "consumequeue/") == QUEUES
        assert files.count("pread", "consumequeue/") == QUEUES
        assert files.count("pwrite", "consumequeue/") == QUEUES
        assert files.count("open", "consumequeue/") <= QUEUES * 2
        assert bodies(store) == {(b"first",)}


def test_entries_of_records_lost_in_a_power_cut_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    files = FaultyFiles(root)
    files.has_file_system_sync = False  # a file system sync would also sync the log
    small = new_store(root, files)
    store = small.store
    store.open()
    fill(store, b"first", 80)
    store.flush()
    fill(store, b"second", 80)
    store.put_many([prepared("T0", 0, b"long") for _ in range(50)])  # two more files
    small.clock.advance(store.config.checkpoint_interval_ms)
    files.fail("sync", path_part="commitlog", count=1000)
    store.tick()
    files.crash()
    store.abandon()
    with new_store(root) as store:
        assert bodies(store, 80) == {(b"first",)}
    for path in (root / "consumequeue").rglob("0*0"):
        if path.is_file():
            assert not any(path.read_bytes()[20:]), path
    assert len(list((root / "consumequeue" / "T0" / "0").iterdir())) == 1
    with new_store(root) as store:
        assert store.report.is_clean
        assert not store.report.findings
