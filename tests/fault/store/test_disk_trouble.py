"""A full, failing or read-only disk: typed errors, no partial records, and recovery."""

import errno
from pathlib import Path

import pytest

from goddard.errors import StoreError
from goddard.protocol.record import decode_record
from goddard.store.config import FlushMode
from goddard.store.errors import (
    StoreDiskError,
    StoreFullError,
    StoreLayoutError,
    StoreUnavailableError,
)
from goddard.store.jsonfile import JsonFile
from goddard.store.store import MessageStore
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


def bodies(store: MessageStore, topic: str = "TopicA") -> list[bytes]:
    found: list[bytes] = []
    while records := store.get(topic, 0, len(found), 32).records:
        found += [decode_record(view)[0].body for view in records]
    return found


def is_writable(store: MessageStore) -> bool:
    return store.is_writable


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("short_bytes", [0, 1, 60, 500])
@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, StoreFullError), (errno.EIO, StoreDiskError)]
)
def test_a_failed_write_leaves_no_records(
    root: Path, code: int, kind: type[StoreDiskError], short_bytes: int
) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        store.put_many([prepared(body=b"before-%d" % i) for i in range(3)])
        end = store.log_max_offset
        files.fail("pwrite", code, path_part="commitlog", short_bytes=short_bytes)
        with pytest.raises(kind, match="commitlog"):
            store.put_many([prepared(body=b"lost" * 20, queue_id=0) for _ in range(5)])
        assert store.log_max_offset == end
        assert bodies(store) == [b"before-0", b"before-1", b"before-2"]
        # The disk works again: the queue continues without a gap.
        entry = store.put(prepared(body=b"after"))
        assert (entry.queue_offset, entry.physical_offset) == (3, end)
    with SmallStore(root) as store:
        assert not store.report.findings
        assert bodies(store) == [b"before-0", b"before-1", b"before-2", b"after"]


def test_records_of_a_failed_group_do_not_reappear_after_a_kill(root: Path) -> None:
    """They are overwritten with zeros before the next append."""
    files = FaultyFiles(root)
    small = SmallStore(root, files=files)
    store = small.store
    store.open()
    group = [prepared(body=b"lost-%d" % i) for i in range(5)]
    files.fail("pwrite", errno.ENOSPC, path_part="commitlog", short_bytes=group[0].size * 4)
    with pytest.raises(StoreFullError):
        store.put_many(group)
    store.put(prepared(body=b"kept-0"))
    store.abandon()
    with SmallStore(root) as store:
        assert bodies(store) == [b"kept-0"]


def test_records_of_a_failed_group_do_not_reappear_after_a_stop(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        store.put(prepared(body=b"kept"))
        group = [prepared(body=b"lost-%d" % i) for i in range(5)]
        files.fail("pwrite", errno.ENOSPC, path_part="commitlog", short_bytes=group[0].size * 4)
        with pytest.raises(StoreFullError):
            store.put_many(group)
    with SmallStore(root) as store:
        assert store.report.is_clean
        assert bodies(store) == [b"kept"]


def test_appends_are_refused_while_a_failed_write_cannot_be_erased(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        store.put(prepared(body=b"first"))
        files.fail("pwrite", errno.EIO, path_part="commitlog", short_bytes=300)
        with pytest.raises(StoreDiskError):
            store.put_many([prepared(body=b"lost") for _ in range(5)])
        files.fail("pwrite", errno.EIO, path_part="commitlog")
        with pytest.raises(StoreDiskError):
            store.put(prepared(body=b"refused"))
        store.put(prepared(body=b"second"))
        assert bodies(store) == [b"first", b"second"]


def test_no_space_for_the_next_segment(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files, segment_bytes=1024) as store:
        files.fail("truncate", errno.ENOSPC, count=100, path_part="commitlog")
        sent = [b"message %d" % i * 10 for i in range(4)]
        for body in sent:  # as much as fits into segment 0
            store.put(prepared(body=body))
        for _ in range(2):
            with pytest.raises(StoreFullError):
                store.put(prepared(body=b"no room" * 40))
        assert bodies(store) == sent
        names = {path.name for path in (root / "commitlog").iterdir()}
        assert all((root / "commitlog" / name).stat().st_size == 1024 for name in names)
        files.heal()
        for _ in range(10):
            store.put(prepared(body=b"goes on"))
        assert bodies(store)[len(sent) :] == [b"goes on"] * 10


def test_a_failed_group_in_two_segments_is_removed_completely(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files, segment_bytes=1024) as store:
        store.put(prepared(body=b"first"))
        end = store.log_max_offset
        # The first write (rest of segment 0) succeeds, the second fails.
        files.fail("pwrite", errno.EIO, skip=1, path_part="commitlog")
        with pytest.raises(StoreDiskError):
            store.put_many([prepared(body=b"x" * 100) for _ in range(6)])
        assert store.log_max_offset == end
        store.put_many([prepared(body=b"y" * 100) for _ in range(6)])
        assert bodies(store) == [b"first"] + [b"y" * 100] * 6
    with SmallStore(root, segment_bytes=1024) as store:
        assert not store.report.findings
        assert bodies(store) == [b"first"] + [b"y" * 100] * 6


def test_after_a_failed_sync_the_store_refuses_messages_until_a_sync_succeeds(root: Path) -> None:
    files = FaultyFiles(root)
    small = SmallStore(root, files=files, flush_mode=FlushMode.SYNC)
    with small as store:
        answers: list[StoreError | None] = []
        files.fail("sync", errno.EIO, path_part=f"commitlog/{0:020d}", count=2)
        small.flush_worker.is_held = True
        entry = store.put(prepared(body=b"doubtful"))
        store.wait_durable(entry.end_offset, answers.append)
        assert not answers
        small.flush_worker.is_held = False
        small.flush_worker.run()
        assert [type(answer) for answer in answers] == [StoreUnavailableError]
        assert store.flushed_offset == 0
        assert not store.get("TopicA", 0, 0, 32).records
        with pytest.raises(StoreUnavailableError):
            store.put(prepared(body=b"refused"))
        with pytest.raises(StoreDiskError):
            store.flush()
        writes = files.count("pwrite", "commitlog")
        store.tick()  # tries to recover: the sync fails again
        assert not is_writable(store)
        store.tick()
        assert is_writable(store)
        assert files.count("pwrite", "commitlog") > writes, "a bare second sync proves nothing"
        assert bodies(store) == [b"doubtful"]
        entry = store.put(prepared(body=b"next"))
        store.wait_durable(entry.end_offset, answers.append)
        assert answers[-1] is None


def test_a_store_that_lost_pages_after_a_failed_sync_stays_closed(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        store.put(prepared(body=b"gone from the page cache"))
        files.fail("sync", errno.EIO, path_part="commitlog")
        with pytest.raises(StoreDiskError):
            store.flush()
        path = root / "commitlog" / ("0" * 20)
        with path.open("r+b") as file:
            file.write(bytes(200))
        store.tick()
        assert "no longer reads as records" in str(store.unwritable_reason)
    assert (root / "abort").exists(), "the next start must recover"


def test_queue_files_on_a_full_disk(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        files.fail("pwrite", errno.ENOSPC, path_part="consumequeue", count=3)
        for i in range(5):
            store.put(prepared(body=b"m%d" % i))
        assert bodies(store) == [b"m%d" % i for i in range(5)], "entries in memory are readable"
        store.tick()
        with pytest.raises(StoreUnavailableError, match="consumequeue"):
            store.put(prepared())
        store.tick()
        store.tick()
        store.tick()
        assert is_writable(store)
        store.put(prepared(body=b"m5"))
    with SmallStore(root) as store:
        assert bodies(store) == [b"m%d" % i for i in range(6)]


def test_index_on_a_full_disk(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        files.fail("allocate", errno.ENOSPC, path_part="index")
        store.put(prepared(keys="k1"))
        store.tick()
        assert not is_writable(store)
        assert not list((root / "index").iterdir()), "no half-made index file stays"
        store.tick()
        assert is_writable(store)
        assert len(store.query("TopicA", "k1", 32).records) == 1


def test_the_disk_ratio_closes_and_opens_the_store(root: Path) -> None:
    files = FaultyFiles(root)
    with SmallStore(root, files=files) as store:
        store.put(prepared(body=b"one"))
        files.used = 0.95
        store.clean()
        with pytest.raises(StoreUnavailableError, match="full"):
            store.put(prepared())
        assert bodies(store) == [b"one"]
        files.used = 0.5
        store.clean()
        store.put(prepared(body=b"two"))


def test_a_clean_stop_needs_a_working_disk(root: Path) -> None:
    files = FaultyFiles(root)
    small = SmallStore(root, files=files)
    small.store.open()
    small.store.put(prepared(body=b"kept"))
    files.fail("sync", errno.EIO, count=100)
    small.store.close()
    assert (root / "abort").exists()
    with SmallStore(root) as store:
        assert not store.report.is_clean
        assert bodies(store) == [b"kept"]


def test_wrong_sizes_and_foreign_files(root: Path) -> None:
    with SmallStore(root) as store:
        store.put(prepared())
    with pytest.raises(StoreLayoutError, match="8192 bytes, the configuration says 4096"):
        SmallStore(root, segment_bytes=4096).store.open()
    foreign = root / "commitlog" / "notes.txt"
    foreign.write_text("mine")
    with pytest.raises(StoreLayoutError, match=r"notes\.txt"):
        SmallStore(root).store.open()
    assert foreign.read_text() == "mine"
    foreign.unlink()
    with SmallStore(root) as store:
        assert bodies(store) == [b"hello"]


def test_a_missing_segment_is_refused(root: Path) -> None:
    with SmallStore(root, segment_bytes=1024) as store:
        for _ in range(20):
            store.put(prepared(body=b"x" * 100))
    gone = sorted((root / "commitlog").iterdir())[1]
    gone.unlink()
    with pytest.raises(StoreLayoutError, match=gone.name):
        SmallStore(root, segment_bytes=1024).store.open()


def test_an_empty_last_file_after_a_crash_is_accepted(root: Path) -> None:
    with SmallStore(root) as store:
        store.put(prepared())
    (root / "commitlog" / f"{8192:020d}").touch()
    with SmallStore(root) as store:
        assert bodies(store) == [b"hello"]


def test_a_rocksdb_store_is_refused(root: Path) -> None:
    (root / "consumequeue").mkdir()
    (root / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(StoreLayoutError, match="RocksDB"):
        SmallStore(root).store.open()
    # The refusal releases the directory.
    (root / "consumequeue" / "CURRENT").unlink()
    with SmallStore(root) as store:
        store.put(prepared())


def test_a_read_only_directory(root: Path) -> None:
    with SmallStore(root) as store:
        store.put(prepared())
    files = FaultyFiles(root)
    files.fail("open", errno.EROFS, count=1000, path_part="abort")
    with pytest.raises(StoreDiskError, match="Read-only"):
        SmallStore(root, files=files).store.open()
    with SmallStore(root) as store:
        assert bodies(store) == [b"hello"]


def test_file_descriptors_do_not_leak(root: Path) -> None:
    before = open_descriptors()
    for _ in range(3):
        with SmallStore(root, segment_bytes=1024, open_queue_files=4) as store:
            for i in range(40):
                store.put(prepared(topic=f"Topic{i}", keys="k", body=b"x" * 100))
            store.tick()
            for i in range(40):
                assert store.get(f"Topic{i}", 0, 0, 1).records
    assert open_descriptors() == before


def test_no_key_is_lost_when_the_next_index_file_cannot_be_created(tmp_path: Path) -> None:
    """A file has room for 39 entries: only the unique key of the 20th record fits."""
    files = FaultyFiles(tmp_path)
    with SmallStore(tmp_path, files=files) as store:
        for number in range(25):
            store.put(prepared(unique_key=f"u{number}", keys=f"k{number}"))
        files.fail("truncate", errno.ENOSPC, path_part="index", skip=1)
        with pytest.raises(StoreFullError):
            store.index.write_pending()
        files.heal()
        names = [f"{kind}{number}" for number in range(25) for kind in "uk"]
        found = {name: len(store.query("TopicA", name, 32).records) for name in names}
        assert found == dict.fromkeys(names, 1)


OPERATIONS = (
    *("open", "pread", "pwrite", "truncate", "allocate", "map", "sync", "sync_directory"),
    *("make_directories", "unlink", "names", "contents", "facts"),
)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("was_killed", [False, True])
def test_a_failed_opening_raises_and_releases_the_directory(
    tmp_path: Path, operation: str, was_killed: bool
) -> None:
    """For every call: the error is a StoreError, and the next opening finds everything."""
    root = tmp_path / "store"
    with SmallStore(root) as store:
        store.put_many([prepared(keys=f"k{i}", body=b"m%d" % i) for i in range(40)])
    if was_killed:
        (root / "abort").touch()
        with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.seek(7000)
            file.write(b"torn")
    for skip in range(200):
        files = FaultyFiles(root)
        fault = files.fail(operation, skip=skip)
        small = SmallStore(root, files=files)
        try:
            small.store.open()
        except StoreDiskError:
            assert fault.count == 0
            continue
        small.store.abandon()
        if fault.count:
            break
    with SmallStore(root) as store:
        found = store.get("TopicA", 0, 0, 64, max_bytes=1 << 20).records
        assert [decode_record(view)[0].body for view in found[:3]] == [b"m0", b"m1", b"m2"]
        assert store.max_offset("TopicA", 0) == 40


def test_a_metadata_file_that_cannot_be_read(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    files.fail("facts")
    with pytest.raises(StoreDiskError):
        JsonFile(tmp_path / "topics.json", files).load()
