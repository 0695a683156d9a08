"""Openings that rebuild queues or index from the log and are interrupted.

The next opening has to detect that work remains: no entry may be lost because some of them exist
already.
"""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from goddard.protocol.record import decode_record
from goddard.store.config import FlushMode
from goddard.store.errors import StoreCorruptError, StoreDiskError, StoreFullError
from goddard.store.store import MessageStore
from tests.support.faulty_files import Fault, FaultyFiles
from tests.support.store import SmallStore, prepared

_SIZES: dict[str, Any] = {"segment_bytes": 4096, "queue_file_bytes": 200, "index_entries": 2000}
_TOPICS = ("T0", "T1", "T2")
_COUNT = 60

_CHANGES = ("pwrite", "unlink", "truncate", "sync", "sync_directory", "make_directories")

Damage: TypeAlias = Callable[[Path], None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cleanly stopped store with several segments, and several files for each queue.

    The last record of every queue is in the last segment.
    """
    root = tmp_path / "store"
    small = SmallStore(root, flush_mode=FlushMode.SYNC, **_SIZES)
    with small as store:
        for i in range(_COUNT):
            small.clock.advance(10_000)
            store.put_many([prepared(topic, body=b"m%d" % i, keys=f"k{i}") for topic in _TOPICS])
    return root


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while records := store.get(topic, 0, len(found), 32).records:
        found += [decode_record(view)[0].body for view in records]
    return found


def check(store: MessageStore) -> None:
    for topic in _TOPICS:
        assert bodies(store, topic) == [b"m%d" % i for i in range(_COUNT)]
        assert store.max_offset(topic, 0) == _COUNT
        for i in (0, _COUNT // 2, _COUNT - 1):
            assert len(store.query(topic, f"k{i}", 8).records) == 1


def queue_file(root: Path, topic: str, number: int) -> Path:
    return root / "consumequeue" / topic / "0" / f"{number * 200:020d}"


def lose_all_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def destroy_entries(root: Path) -> None:
    """Destroy entries of the last files whose records are in the first half of the log."""
    for number in (4, 5):
        queue_file(root, "T1", number).write_bytes(b"\xff" * 200)


def lose_a_file(root: Path) -> None:
    queue_file(root, "T1", 2).unlink()


def lose_the_index(root: Path) -> None:
    for path in (root / "index").iterdir():
        path.unlink()


def kill(root: Path) -> None:
    (root / "abort").write_text("1")


DAMAGES = [lose_all_queues, destroy_entries, lose_a_file, lose_the_index]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_power_cut_after_the_opening(root: Path, damage: Damage, was_killed: bool) -> None:
    """Rebuilt entries are not on disk before the next checkpoint."""
    damage(root)
    if was_killed:
        kill(root)
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, **_SIZES)
    small.store.open()
    check(small.store)
    files.crash()
    small.store.abandon()
    with SmallStore(root, **_SIZES) as store:
        check(store)


def opens(root: Path, files: FaultyFiles) -> bool:
    """Open the store and abandon it, as in a crash; False if the disk failed."""
    small = SmallStore(root, files=files, **_SIZES)
    try:
        small.store.open()
    except StoreDiskError:
        return False
    small.store.abandon()
    return True


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("part", ["/T2/", "/T1/", "/index/"])
def test_a_disk_that_becomes_full(root: Path, damage: Damage, was_killed: bool, part: str) -> None:
    damage(root)
    if was_killed:
        kill(root)
    files = FaultyFiles(root)
    files.fail("pwrite", errno.ENOSPC, count=1000, path_part=part)
    opens(root, files)
    with SmallStore(root, **_SIZES) as store:
        check(store)


def test_the_error_names_the_full_disk(root: Path) -> None:
    """Also while the index is relinked and its mapping is in use."""
    kill(root)
    files = FaultyFiles(root)
    files.fail("pwrite", errno.ENOSPC, count=1000)
    with pytest.raises(StoreFullError):
        SmallStore(root, files=files, **_SIZES).store.open()
    with SmallStore(root, **_SIZES) as store:
        check(store)


class DyingFiles(FaultyFiles):
    """The process dies before its n-th change of the files."""

    __slots__ = ("_calls_left",)

    def __init__(self, root: Path, calls_left: int) -> None:
        super().__init__(root)
        self._calls_left = calls_left

    def _enter(self, operation: str, path: Path) -> Fault | None:
        if operation in _CHANGES:
            self._calls_left -= 1
            self.is_crashed = self._calls_left < 0
        return super()._enter(operation, path)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("was_killed", [False, True])
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_crash_at_any_call(
    root: Path, tmp_path: Path, damage: Damage, was_killed: bool, is_power_cut: bool
) -> None:
    damage(root)
    if was_killed:
        kill(root)
    calls = 0
    while True:
        copy = tmp_path / f"copy{calls}"
        shutil.copytree(root, copy)
        files = DyingFiles(copy, calls)
        if opens(copy, files):
            break
        if is_power_cut:
            files.crash()
        with SmallStore(copy, **_SIZES) as store:
            check(store)
        shutil.rmtree(copy)
        calls += 1 if calls < 8 else 5
    assert calls > 8


def test_a_damaged_log_is_refused_again(root: Path) -> None:
    """The damage is found while queues are rebuilt; the log must not be cut because of that."""
    lose_all_queues(root)
    segment = max((root / "commitlog").iterdir())
    content = segment.read_bytes()
    end = len(content.rstrip(b"\0"))
    segment.write_bytes(content[: end - 500] + b"\xff" * 60 + content[end - 440 :])
    for _ in range(3):
        with pytest.raises(StoreCorruptError):
            SmallStore(root, **_SIZES).store.open()
    segment.write_bytes(content)
    with SmallStore(root, **_SIZES) as store:
        check(store)
    assert not (root / "commitlog.cut").exists()
