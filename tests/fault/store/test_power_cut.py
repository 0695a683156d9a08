"""Power cuts and failed syncs of queues and index: the checkpoint never exceeds synced data."""

import errno
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.record import decode_record
from goddard.store.config import FlushMode
from goddard.store.store import MessageStore
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared

_SIZES: dict[str, Any] = {"segment_bytes": 1024, "queue_file_bytes": 4000, "index_entries": 1000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that had another topic, so that its directories and an index exist."""
    root = tmp_path / "store"
    with SmallStore(root, **_SIZES) as store:
        store.put(prepared("Old", keys="k"))
    return root


def bodies(store: MessageStore) -> list[bytes]:
    found: list[bytes] = []
    while records := store.get("TopicA", 0, len(found), 32).records:
        found += [decode_record(view)[0].body for view in records]
    return found


def fill(small: SmallStore, first: int, count: int) -> None:
    """Messages in several segments, then a checkpoint that covers them."""
    for i in range(first, first + count):
        small.clock.advance(1_000)
        small.store.put(prepared(body=b"m%d" % i, keys=f"k{i}"))
    small.clock.advance(20_000)
    small.store.tick()


def test_a_new_store_is_found_after_a_power_cut(tmp_path: Path) -> None:
    """The names of its directory, and of those above it, are durable before the first message."""
    disk = tmp_path / "disk"
    disk.mkdir()
    files = FaultyFiles(disk)
    root = disk / "above" / "store"
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    small.store.put(prepared(body=b"m0"))
    files.crash()
    small.store.abandon()
    with SmallStore(root, **_SIZES) as store:
        assert bodies(store) == [b"m0"]


def test_a_new_queue_is_found_after_a_power_cut(root: Path) -> None:
    """Its directories, too, must be synced before the checkpoint covers it."""
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    fill(small, 0, 60)
    files.crash()
    small.store.abandon()
    with SmallStore(root, **_SIZES) as store:
        assert bodies(store) == [b"m%d" % i for i in range(60)]
        assert len(store.query("TopicA", "k0", 8).records) == 1


def test_a_queue_of_a_killed_process_is_found_after_a_power_cut(root: Path) -> None:
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    small.clock.advance(1_000)
    small.store.put(prepared(body=b"m0", keys="k0"))
    small.store.tick()  # written, not synced: the checkpoint is not due
    small.store.abandon()
    small = SmallStore(root, files=files, clock=small.clock, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    fill(small, 1, 59)
    files.crash()
    small.store.abandon()
    with SmallStore(root, **_SIZES) as store:
        assert bodies(store) == [b"m%d" % i for i in range(60)]


@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_after_a_failed_sync_the_checkpoint_does_not_advance(root: Path, part: str) -> None:
    """A second sync may succeed although the pages are lost; only a rebuild is safe."""
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    before = small.store.checkpoint.queue_time_ms
    files.fail("sync", errno.EIO, path_part=part)
    fill(small, 0, 30)
    assert small.store.checkpoint.queue_time_ms == before
    fill(small, 30, 30)
    assert small.store.checkpoint.queue_time_ms == before
    assert small.store.is_writable
    small.store.close()
    assert (root / "abort").exists(), "the next start must not trust queues and index"
    with SmallStore(root, **_SIZES) as store:
        assert bodies(store) == [b"m%d" % i for i in range(60)]


def test_a_new_index_file_is_found_after_a_power_cut(root: Path) -> None:
    sizes = _SIZES | {"index_entries": 40}
    for path in (root / "index").iterdir():
        path.unlink()
    with SmallStore(root, **sizes) as store:  # an index file exists and is nearly full
        store.put_many([prepared("Old", keys=f"o{i}") for i in range(30)])
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **sizes)
    small.store.open()
    fill(small, 0, 60)
    files.crash()
    small.store.abandon()
    with SmallStore(root, **sizes) as store:
        for i in range(60):
            assert len(store.query("TopicA", f"k{i}", 8).records) == 1


def test_the_checkpoint_does_not_cover_an_unsynced_log(root: Path) -> None:
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, **_SIZES)
    small.store.open()
    before = small.store.checkpoint.log_time_ms
    files.fail("sync", errno.EIO, count=1000, path_part="commitlog")
    fill(small, 0, 5)
    assert small.store.checkpoint.queue_time_ms > before
    assert small.store.checkpoint.log_time_ms == before
    small.store.abandon()


def test_deleted_segments_do_not_reappear_after_a_power_cut(root: Path) -> None:
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    fill(small, 0, 60)
    files.used = 0.87  # above the second ratio, files are deleted at any age
    assert small.store.clean() > 0
    left = {segment.path.name for segment in small.store.log.segments}
    files.crash()
    small.store.abandon()
    assert {path.name for path in (root / "commitlog").iterdir()} - left <= {
        f"{(max(map(int, left)) + 1024):020d}"  # the one created in advance
    }
