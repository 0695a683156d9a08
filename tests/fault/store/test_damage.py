"""Torn tails, flipped bytes and power cuts: nothing acknowledged is lost, damage is reported."""

import random
import shutil
from pathlib import Path

import pytest

from goddard.errors import StoreError
from goddard.protocol.record import decode_record, read_summary
from goddard.store.config import FlushMode
from goddard.store.errors import StoreCorruptError, StoreLayoutError
from goddard.store.log.records import LogEntry
from goddard.store.store import MessageStore
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared

SEGMENT = 4096


def write_store(root: Path, count: int, *, clean: bool, gap_ms: int = 10) -> list[LogEntry]:
    small = SmallStore(root, segment_bytes=SEGMENT)
    store = small.store
    store.open()
    entries = []
    for i in range(count):
        small.clock.advance(gap_ms)
        entries.append(store.put(prepared(body=b"body %d " % i * 5, keys=f"k{i}")))
    if clean:
        store.close()
    else:
        store.abandon()
    return entries


def stored_bodies(store: MessageStore) -> list[bytes]:
    found: list[bytes] = []
    while records := store.get("TopicA", 0, len(found), 32).records:
        found += [decode_record(view)[0].body for view in records]
    return found


def expected_bodies(count: int) -> list[bytes]:
    return [b"body %d " % i * 5 for i in range(count)]


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x55]))


def test_a_tail_torn_at_every_byte_of_the_last_three_records(tmp_path: Path) -> None:
    original = tmp_path / "original"
    entries = write_store(original, 12, clean=False)
    segment = original / "commitlog" / ("0" * 20)
    content = segment.read_bytes()
    for end in range(entries[-3].physical_offset, entries[-1].end_offset):
        root = tmp_path / "torn"
        shutil.copytree(original, root)
        torn = content[:end].ljust(SEGMENT, b"\0")
        (root / "commitlog" / segment.name).write_bytes(torn)
        whole = sum(
            1 for entry in entries if torn[: entry.end_offset] == content[: entry.end_offset]
        )
        with SmallStore(root, files=FaultyFiles(root), segment_bytes=SEGMENT) as store:
            assert stored_bodies(store) == expected_bodies(whole)
            assert store.max_offset("TopicA", 0) == whole
            for i in range(len(entries)):
                assert len(store.query("TopicA", f"k{i}", 8).records) == (i < whole)
            # The cut part is reported and saved, unless the cut is at the end of a record.
            torn_bytes = torn[entries[whole - 1].end_offset :].rstrip(b"\0")
            assert bool(store.report.findings) == bool(torn_bytes)
            if torn_bytes:
                (saved,) = store.report.cut_files
                assert saved.read_bytes().rstrip(b"\0") == torn_bytes
            assert store.put(prepared()).queue_offset == whole
        shutil.rmtree(root)


def test_after_a_clean_stop_a_flip_before_good_records_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    entries = write_store(root, 12, clean=True)
    damaged = entries[4]
    flip(root / "commitlog" / ("0" * 20), damaged.physical_offset + 100)
    before = {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()}
    with pytest.raises(StoreCorruptError) as caught:
        SmallStore(root, segment_bytes=SEGMENT).store.open()
    assert caught.value.physical_offset == damaged.physical_offset
    assert caught.value.path.name == "0" * 20
    assert str(entries[5].physical_offset) in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before
    # The operator decides to cut there; the rest is saved in another file.
    store = SmallStore(root, segment_bytes=SEGMENT).store
    report = store.open(cut_corrupt=True)
    assert report.end_offset == damaged.physical_offset
    assert stored_bodies(store) == expected_bodies(4)
    (saved,) = report.cut_files
    assert len(saved.read_bytes()) == entries[-1].end_offset - damaged.physical_offset
    store.close()


def test_every_flipped_byte_of_a_small_log_is_detected(tmp_path: Path) -> None:
    """One wrong byte anywhere in the records is refused or reported, or visible when it is read.

    Fields that no checksum covers (times, hosts, flags) keep their record readable; such a flip
    may stay undetected by recovery, but must not lose another record.
    """
    original = tmp_path / "original"
    entries = write_store(original, 6, clean=True)
    name = "0" * 20
    unseen = set()
    refused_at: dict[int, int] = {}
    for position in range(entries[-1].end_offset):
        root = tmp_path / "flipped"
        shutil.copytree(original, root)
        flip(root / "commitlog" / name, position)
        place = next(i for i, entry in enumerate(entries) if position < entry.end_offset)
        store = SmallStore(root, files=FaultyFiles(root), segment_bytes=SEGMENT).store
        try:
            report = store.open()
        except StoreCorruptError as error:
            refused_at[position] = error.physical_offset
        else:
            views = store.get("TopicA", 0, 0, 32).records
            found = [read_summary(view).physical_offset for view in views]
            if not report.findings:
                unseen.add(position - entries[place].physical_offset)
            starts = [entry.physical_offset for entry in entries]
            assert found in (starts, starts[:place] + starts[place + 1 :])
            store.close()
        shutil.rmtree(root)
    for position, offset in refused_at.items():
        assert offset == max(e.physical_offset for e in entries if e.physical_offset <= position)
    # Damage to sizes, magic, CRC, body, topic length and properties length is always detected.
    assert not unseen & set(range(12))
    body_at = 84
    assert not unseen & set(range(body_at, body_at + 4 + len(expected_bodies(1)[0]) + 1))


def test_damage_in_the_middle_after_a_power_cut(tmp_path: Path) -> None:
    """Old damage is refused; a gap among records after the checkpoint is cut."""
    clock = ManualClock()
    root = tmp_path / "store"
    small = SmallStore(root, segment_bytes=SEGMENT, clock=clock)
    store = small.store
    store.open()
    entries = []
    for i in range(6):
        clock.advance(2_000)
        entries.append(store.put(prepared(body=b"body %d " % i * 5, tags="t")))
    clock.advance(60_000)
    entries.append(store.put(prepared(body=b"body 6 " * 5, tags="t")))
    store.tick()
    assert store.flushed_offset == entries[-1].end_offset
    for i in range(7, 12):
        clock.advance(2_000)
        entries.append(store.put(prepared(body=b"body %d " % i * 5, tags="t")))
    store.abandon()
    young = tmp_path / "young"
    shutil.copytree(root, young)
    flip(young / "commitlog" / ("0" * 20), entries[9].physical_offset + 90)
    with SmallStore(young, segment_bytes=SEGMENT) as store:
        assert stored_bodies(store) == expected_bodies(9)
        assert store.report.findings[0].physical_offset == entries[9].physical_offset
        assert store.report.cut_bytes == entries[-1].end_offset - entries[9].physical_offset
    flip(root / "commitlog" / ("0" * 20), entries[2].physical_offset + 90)
    with pytest.raises(StoreCorruptError):
        SmallStore(root, segment_bytes=SEGMENT).store.open()


@pytest.mark.parametrize("what", ["consumequeue", "index", "checkpoint"])
@pytest.mark.parametrize("clean", [True, False])
def test_derived_files_are_rebuilt(tmp_path: Path, what: str, clean: bool) -> None:
    root = tmp_path / "store"
    write_store(root, 60, clean=clean)
    path = root / what
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert stored_bodies(store) == expected_bodies(60)
        for i in range(60):
            assert len(store.query("TopicA", f"k{i}", 8).records) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_queue_entries_are_rebuilt(tmp_path: Path, clean: bool) -> None:
    root = tmp_path / "store"
    write_store(root, 60, clean=True)
    if not clean:
        (root / "abort").touch()
    files = sorted((root / "consumequeue" / "TopicA" / "0").iterdir())
    content = bytearray(files[-1].read_bytes())
    content[3 * 20 : 4 * 20] = b"\xff" * 20
    files[-1].write_bytes(content)
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert stored_bodies(store) == expected_bodies(60)


def test_a_power_cut_at_every_sync_point(tmp_path: Path) -> None:
    """Messages acknowledged before the cut exist after it, in order, exactly once."""

    def run(root: Path, last_sync: int | None, seed: int | None) -> int:
        root.mkdir()
        files = FaultyFiles(root)
        if last_sync is not None:
            files.fail("sync", skip=last_sync, count=10_000)
        small = SmallStore(
            root, files=files, segment_bytes=1024, flush_mode=FlushMode.SYNC, index_entries=400
        )
        store = small.store
        answered: list[int] = []
        try:
            store.open()
            for i in range(12):
                small.clock.advance(500)
                entry = store.put(prepared(body=b"body %d " % i * 5, keys=f"k{i}"))
                outcomes: list[StoreError | None] = []
                store.wait_durable(entry.end_offset, outcomes.append)
                if outcomes == [None]:
                    answered.append(i)
                if i % 4 == 3:
                    small.clock.advance(10_000)
                    store.tick()
        except StoreError:
            assert last_sync is not None, "the undisturbed run failed"
        syncs = files.count("sync")
        chance = random.Random(seed)
        files.crash(None if seed is None else lambda path, page: chance.random() < 0.5)
        store.abandon()
        with SmallStore(
            root, segment_bytes=1024, flush_mode=FlushMode.SYNC, index_entries=400
        ) as store:
            found = stored_bodies(store)
            assert answered == list(range(len(answered)))
            assert found[: len(answered)] == expected_bodies(len(answered))
            assert found == expected_bodies(len(found))
            for i in range(len(found)):
                assert len(store.query("TopicA", f"k{i}", 8).records) == 1
        shutil.rmtree(root)
        return syncs

    total = run(tmp_path / "whole", None, None)
    assert total > 15
    for number in range(total):
        for seed in (None, number):
            run(tmp_path / f"cut-{number}", number, seed)


def write_two_queues(root: Path, count: int) -> list[bytes]:
    """Messages of TopicA between those of another topic, so that both are near the log's end."""
    small = SmallStore(root, segment_bytes=SEGMENT)
    with small as store:
        for i in range(count):
            small.clock.advance(10)
            store.put(prepared(body=b"body %d " % i * 5, keys=f"k{i}"))
            store.put(prepared("TopicB", body=b"other"))
    return expected_bodies(count)


@pytest.mark.parametrize("entry", range(12))
@pytest.mark.parametrize("value", [b"\0\0\xff\0\0\0\0\0", b"\0" * 6 + b"\x0b\0", b"\0" * 8])
@pytest.mark.parametrize("clean", [True, False])
def test_a_wrong_offset_in_a_queue_hides_no_message(
    tmp_path: Path, entry: int, value: bytes, clean: bool
) -> None:
    root = tmp_path / "store"
    bodies = write_two_queues(root, 12)
    if not clean:
        (root / "abort").touch()
    path = root / "consumequeue" / "TopicA" / "0" / ("0" * 20)
    content = bytearray(path.read_bytes())
    is_changed = content[entry * 20 : entry * 20 + 8] != value
    content[entry * 20 : entry * 20 + 8] = value
    path.write_bytes(content)
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert stored_bodies(store) == bodies
        if clean:
            assert [each.path for each in store.report.findings] == [path.parent] * is_changed
        assert store.put(prepared()).queue_offset == len(bodies)
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert store.report.findings == []
        assert len(stored_bodies(store)) == len(bodies) + 1


def test_damaged_entries_are_unchanged_while_the_log_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    bodies = write_two_queues(root, 12)
    log = root / "commitlog" / ("0" * 20)
    good_log = log.read_bytes()
    log.write_bytes(good_log[:60] + b"\xff" * 60 + good_log[120:])
    path = root / "consumequeue" / "TopicA" / "0" / ("0" * 20)
    flip(path, 5 * 20 + 2)
    with pytest.raises(StoreCorruptError):
        SmallStore(root, segment_bytes=SEGMENT).store.open()
    log.write_bytes(good_log)
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert stored_bodies(store) == bodies
        assert store.report.findings


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("header", [b"\xff" * 40, b"\0" * 40, b"\x01" * 40])
def test_an_index_file_with_a_destroyed_header_is_rebuilt(
    tmp_path: Path, number: int, header: bytes
) -> None:
    root = tmp_path / "store"
    write_store(root, 100, clean=True)
    path = sorted((root / "index").iterdir())[number]
    path.write_bytes(header + path.read_bytes()[40:])
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert [each.path for each in store.report.findings] == [path]
        for i in range(100):
            assert len(store.query("TopicA", f"k{i}", 8).records) == 1
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert store.report.findings == []


def test_results_of_recovery_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    write_two_queues(root, 12)
    flip(root / "consumequeue" / "TopicA" / "0" / ("0" * 20), 5 * 20 + 2)
    with caplog.at_level("INFO", "goddard.store"), SmallStore(root, segment_bytes=SEGMENT) as store:
        warning, outcome = caplog.records
        assert warning.levelname == "WARNING"
        assert store.report.findings[0].text in warning.message
        assert outcome.levelname == "INFO"
        assert f"store {root} opened after a clean stop: 24 records read" in outcome.message
    (root / "abort").touch()
    caplog.clear()
    with caplog.at_level("INFO", "goddard.store"), SmallStore(root, segment_bytes=SEGMENT):
        assert [record.levelname for record in caplog.records] == ["INFO"]
        assert "an unclean stop" in caplog.text


@pytest.mark.parametrize("queue_offset", [(1 << 63) - 1, 1 << 61, 1 << 59])
def test_an_impossible_queue_offset_does_not_damage_the_queue(
    tmp_path: Path, queue_offset: int
) -> None:
    """No checksum covers it, and a rebuilt queue starts at the offset in its first record."""
    root = tmp_path / "store"
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        store.put(prepared(body=b"first"))
    path = root / "commitlog" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[20:28] = queue_offset.to_bytes(8, "big")
    path.write_bytes(content)
    shutil.rmtree(root / "consumequeue")
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        assert len(store.report.findings) == 1
        store.put(prepared(body=b"second"))
    for _ in range(2):
        with SmallStore(root, segment_bytes=SEGMENT) as store:
            assert stored_bodies(store) == [b"first", b"second"]
        (root / "abort").touch()


def test_a_file_whose_name_is_too_large_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with SmallStore(root, segment_bytes=SEGMENT) as store:
        store.put(prepared())
    path = root / "consumequeue" / "TopicA" / "0" / ("0" * 20)
    path.rename(path.with_name("99999999999999999600"))
    with pytest.raises(StoreLayoutError):
        SmallStore(root, segment_bytes=SEGMENT).store.open()
