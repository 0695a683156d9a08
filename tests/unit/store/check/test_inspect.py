"""The read-only view on small stores: bounds, sizes, and folders without a store."""

import fcntl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from goddard.store.check.inspect import (
    ENTRY_BYTES,
    FILLER_SIZE,
    IndexView,
    NotAStoreError,
    QueueView,
    StoreView,
)
from goddard.store.check.repair import CopyError, copy_store, guess_config
from goddard.store.recovery.scan import FileEnd, FileScan, chain_end, record_positions
from tests.support.store import SmallStore, prepared


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    small = SmallStore(
        root, segment_bytes=2048, queue_file_bytes=100, index_slots=7, index_entries=31
    )
    with small as store:
        for number in range(20):
            small.clock.advance(10)
            store.put(prepared("T", number % 2, b"x" * number, keys=f"k{number}"))
    return root


def snapshot(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_bounds_and_sizes_are_read_from_the_files(root: Path) -> None:
    before = snapshot(root)
    view = StoreView(root)
    config = guess_config(view)
    assert (config.segment_bytes, config.queue_file_bytes) == (2048, 100)
    assert (config.index_slots, config.index_entries) == (7, 31)
    assert [(str(queue), *queue.bounds()) for queue in view.queues()] == [
        ("T/0", 0, 10),
        ("T/1", 0, 10),
    ]
    assert not view.has_abort
    assert not view.is_running
    assert view.checkpoint() is not None
    assert view.foreign_files() == []
    assert snapshot(root) == before


def test_any_number_of_index_slots_is_inferred(tmp_path: Path) -> None:
    for slots, entries in ((1, 9), (5, 100), (16, 40), (100, 33), (999, 2000)):
        root = tmp_path / f"{slots}"
        small = SmallStore(root, index_slots=slots, index_entries=entries)
        with small as store:
            for number in range(6):
                store.put(prepared(keys=f"key{number} other{number}", tags="A"))
        for file in StoreView(root).index_files():
            assert IndexView(file).slot_count == slots


def test_the_first_offset_of_a_queue_follows_the_log(root: Path) -> None:
    queue = StoreView(root).queues()[0]
    entries = queue.read(0, 10)
    limit = int(entries["physical_offset"][4])
    assert queue.bounds(limit) == (4, 10)
    assert queue.bounds(1 << 40) == (10, 10)
    assert len(queue.read(8, 100)) == 2  # up to the end of the last file
    assert queue.locate(7) == (queue.files[1].path, 2 * ENTRY_BYTES)


def test_filler_before_the_first_entry_is_skipped(tmp_path: Path) -> None:
    directory = tmp_path / "T" / "0"
    directory.mkdir(parents=True)
    entries = np.zeros(5, dtype=[("physical_offset", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
    entries["size"][:2] = FILLER_SIZE
    entries["size"][2:4] = 120
    entries["physical_offset"][2:4] = (0, 120)
    (directory / f"{100:020d}").write_bytes(entries.tobytes())
    assert QueueView("T", 0, directory).bounds() == (7, 9)


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="not a directory"):
        StoreView(tmp_path / "missing")
    with pytest.raises(NotAStoreError, match="no commitlog"):
        StoreView(tmp_path)
    (tmp_path / "commitlog").mkdir()
    StoreView(tmp_path)
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000005\n")
    with pytest.raises(NotAStoreError, match="RocksDB"):
        StoreView(tmp_path)


def test_the_lock_is_reported_and_not_taken(root: Path) -> None:
    script = (
        "import fcntl, sys\n"
        f"file = open({str(root / 'lock')!r}, 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    view = StoreView(root)
    assert view.lock_holder() is None
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        assert view.lock_holder() == holder.pid
        holder.stdin.close()
        holder.wait(10)
    assert view.lock_holder() is None
    with (root / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_scan_and_chain_agree(root: Path) -> None:
    ends = []
    for file in StoreView(root).log_files():
        data = file.map()
        scan = FileScan(data, file.start)
        positions = [int(position) for batch in scan for position in batch.positions]
        assert positions == list(record_positions(data))
        assert scan.flaws == []
        assert chain_end(data) == (scan.end_position, scan.end)
        ends.append(scan.end)
    assert ends == [FileEnd.FILLED] * (len(ends) - 1) + [FileEnd.OPEN]


def test_a_copy_is_complete_and_refuses_bad_targets(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    copy_store(root, target)
    for path in root.rglob("*"):
        if path.is_file():
            assert (target / path.relative_to(root)).read_bytes() == path.read_bytes()
    for bad in (target, root, root / "inside"):
        with pytest.raises(CopyError):
            copy_store(root, bad)
    assert not (root / "inside").exists()
