"""Power cuts and failing syncs around queues and index: the checkpoint may lag, never lead."""

import errno
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.record import decode_record
from goddard.store.config import FlushMode
from goddard.store.store import MessageStore
from goddard.testing.files import FaultyFiles
from goddard.testing.store import SmallStore, prepared

_SIZES: dict[str, Any] = {"segment_bytes": 1024, "queue_file_bytes": 4000, "index_entries": 1000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that has known another topic, so that its directories and an index exist."""
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
    """Messages over several segments, then a checkpoint that vouches for them."""
    for i in range(first, first + count):
        small.clock.advance(1_000)
        small.store.put(prepared(body=b"m%d" % i, keys=f"k{i}"))
    small.clock.advance(20_000)
    small.store.tick()


def test_a_new_queue_is_found_after_a_power_cut(root: Path) -> None:
    """Its directories must be durable, too, before the checkpoint says so."""
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC, **_SIZES)
    small.store.open()
    fill(small, 0, 60)
    files.crash()
    small.store.abandon()
    with SmallStore(root, **_SIZES) as store:
        assert bodies(store) == [b"m%d" % i for i in range(60)]
        assert len(store.query("TopicA", "k0", 8).records) == 1


def test_a_queue_that_a_killed_process_made_is_found_after_a_power_cut(root: Path) -> None:
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
def test_after_a_failed_sync_the_checkpoint_vouches_for_nothing_new(root: Path, part: str) -> None:
    """The pages may be gone although a second sync succeeds; only reading the log again helps."""
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
