"""The store: group commit, visibility, listeners, locks, checkpoints, workers, cleaning."""

import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from goddard.environment import Environment
from goddard.environment.files import SystemFiles
from goddard.environment.threads import ThreadWorker
from goddard.errors import StoreError
from goddard.store.check.inspect import StoreView
from goddard.store.config import FlushMode, StoreConfig
from goddard.store.errors import StoreLockedError, StoreUnavailableError
from goddard.store.log.block import each_entry
from goddard.store.log.records import LogEntry
from goddard.store.log.retention import RetentionRules, SegmentAge, plan_retention
from goddard.store.recovery.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from goddard.store.recovery.decide import SegmentStart, Tail, Verdict, choose_start, judge_tail
from goddard.store.store import MessageStore
from goddard.testing.process import wait_until
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared, put_forged


def test_one_sync_answers_all_waiting_callers(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    small = SmallStore(tmp_path, files=files, flush_mode=FlushMode.SYNC)
    with small as store:
        small.flush_worker.is_held = True
        answers: list[tuple[int, StoreError | None]] = []

        def answer(number: int, error: StoreError | None) -> None:
            answers.append((number, error))

        for i in range(64):
            entry = store.put(prepared(queue_id=i % 4, body=b"%d" % i))
            store.wait_durable(entry.end_offset, partial(answer, i))
        assert not answers
        assert store.max_offset("TopicA", 0) == 0, "SYNC_FLUSH shows what is on disk"
        assert store.dispatch_behind_bytes == store.log_max_offset
        before = files.count("sync", "commitlog")
        small.flush_worker.run()
        assert answers == [(i, None) for i in range(64)]
        # One for each segment with messages.
        assert files.count("sync", "commitlog") - before == len(store.log.segments)
        assert store.max_offset("TopicA", 0) == 16
        small.flush_worker.is_held = False
        store.wait_durable(store.log_max_offset, partial(answer, 64))
        assert answers[-1] == (64, None)


@pytest.mark.parametrize("mode", list(FlushMode))
def test_an_empty_group_changes_nothing(tmp_path: Path, mode: FlushMode) -> None:
    with SmallStore(tmp_path, flush_mode=mode) as store:
        heard: list[LogEntry] = []
        store.add_listener(lambda placed: heard.extend(each_entry(placed)))
        assert store.put_many([]) == store.put_batch([]) == []
        answers: list[StoreError | None] = []
        entry = store.put(prepared())
        store.wait_durable(entry.end_offset, answers.append)
        store.flush()
        assert answers == [None]
        assert heard == [entry]


def test_all_waiters_are_answered_when_a_listener_or_waiter_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        small.flush_worker.is_held = True
        answers: list[StoreError | None] = []
        stop = store.add_listener(fail)
        entry = store.put(prepared())
        for callback in (answers.append, fail, answers.append):
            store.wait_durable(entry.end_offset, callback)
        with pytest.raises(ZeroDivisionError):
            small.flush_worker.run()
        assert answers == [None, None]
        assert "answering a wait" in caplog.text
        stop()
        small.flush_worker.is_held = False
        store.put(prepared())
        assert store.max_offset("TopicA", 0) == 2


def test_a_busy_worker_runs_its_periodic_jobs() -> None:
    worker = ThreadWorker("busy")
    had_its_turn = threading.Event()

    def again() -> None:
        if not had_its_turn.is_set():
            worker.submit(again)

    worker.every(1, had_its_turn.set)
    worker.submit(again)
    try:
        assert had_its_turn.wait(30)
    finally:
        had_its_turn.set()
        worker.stop()


def test_messages_sent_after_a_topic_is_deleted_during_a_sync_are_kept(tmp_path: Path) -> None:
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        store.put_many([prepared(body=b"old-%d" % i) for i in range(3)])
        small.flush_worker.is_held = True
        waiting = store.put(prepared(body=b"waiting"))
        store.delete_topic("TopicA")
        small.flush_worker.is_held = False
        small.flush_worker.run()
        later = store.put_many([prepared(body=b"later-%d" % i) for i in range(4)])
        assert [entry.queue_offset for entry in (waiting, *later)] == [3, 4, 5, 6, 7]
        found = store.get("TopicA", 0, store.min_offset("TopicA", 0), 32)
        assert found.queue_offsets == [3, 4, 5, 6, 7]


def test_waiters_get_an_error_when_the_store_closes(tmp_path: Path) -> None:
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    small.store.open()
    small.flush_worker.is_held = True
    answers: list[StoreError | None] = []
    small.store.wait_durable(10_000, answers.append)
    small.store.abandon()
    assert [type(answer) for answer in answers] == [StoreUnavailableError]
    with pytest.raises(StoreUnavailableError, match="closed"):
        small.store.put(prepared())


def test_async_flush_waits_for_pages_or_time(tmp_path: Path) -> None:
    small = SmallStore(tmp_path, segment_bytes=1 << 20)
    with small as store:
        store.put(prepared())
        store.tick()
        assert store.flushed_offset == 0
        small.clock.advance(10_000)
        store.tick()
        assert store.flushed_offset == store.log_max_offset
        store.put(prepared(body=b"x" * 20_000))
        store.tick()
        assert store.flushed_offset == store.log_max_offset


def test_listeners_are_called_for_visible_messages(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        heard: list[LogEntry] = []
        stop = store.add_listener(lambda placed: heard.extend(each_entry(placed)))
        entries = store.put_many([prepared(tags="a"), prepared("TopicB")])
        assert heard == entries
        stop()
        store.put(prepared())
        assert len(heard) == 2


def test_a_topic_may_have_the_name_of_a_rocksdb_file(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared("CURRENT"))
    with SmallStore(tmp_path) as store:
        assert store.max_offset("CURRENT", 0) == 1
    assert StoreView(tmp_path).log_files()


def test_a_second_process_cannot_open_the_store(tmp_path: Path) -> None:
    with SmallStore(tmp_path):
        with pytest.raises(StoreLockedError, match="this process"):
            SmallStore(tmp_path).store.open()
        code = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f,6,1,0)"
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "lock")],
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert b"BlockingIOError" in other.stderr
        assert (tmp_path / "lock").read_bytes() == b"lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code + "; print(1, flush=True); sys.stdin.read()",
            tmp_path / "lock",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(StoreLockedError, match="another broker"):
            SmallStore(tmp_path).store.open()
        holder.communicate(timeout=30)
    with SmallStore(tmp_path) as store:
        store.put(prepared())


def test_abort_marks_a_running_store(tmp_path: Path) -> None:
    small = SmallStore(tmp_path)
    small.store.open()
    assert (tmp_path / "abort").read_text().isdigit()
    small.store.close()
    assert not (tmp_path / "abort").exists()
    small.store.close()  # a second close does nothing


def test_the_checkpoint_has_javas_bytes(tmp_path: Path) -> None:
    files = SystemFiles()
    path = tmp_path / "checkpoint"
    assert load_checkpoint(files, path) == Checkpoint()
    checkpoint = Checkpoint(5_000, 4_000, 3_000, 2, 1)
    save_checkpoint(files, path, checkpoint)
    data = path.read_bytes()
    assert len(data) == 4096
    assert [int.from_bytes(data[i : i + 8], "big") for i in range(0, 48, 8)] == [
        5_000,
        4_000,
        3_000,
        2,
        1,
        0,
    ]
    assert load_checkpoint(files, path) == checkpoint
    assert checkpoint.safe_time_ms == 1_000
    path.write_bytes(b"short")
    assert load_checkpoint(files, path) == Checkpoint()


def test_the_checkpoint_never_exceeds_what_is_synced(tmp_path: Path) -> None:
    small = SmallStore(tmp_path)
    with small as store:
        store.put(prepared())
        small.clock.advance(10_000)
        entry = store.put(prepared())
        store.tick()
        checkpoint = load_checkpoint(SystemFiles(), tmp_path / "checkpoint")
        assert checkpoint.log_time_ms == checkpoint.queue_time_ms == entry.store_timestamp_ms
        small.clock.advance(1_000)
        store.put(prepared())
        store.tick()
        assert load_checkpoint(SystemFiles(), tmp_path / "checkpoint") == checkpoint


def test_where_recovery_starts() -> None:
    segments = [SegmentStart(i * 100, 1_000 * i) for i in range(5)]

    def start(**options: int) -> int:
        is_clean = "indexed" in options
        return choose_start(
            segments,
            is_clean=is_clean,
            indexed_offset=options.get("indexed", 0),
            safe_time_ms=options.get("safe", 0),
        )

    assert start(indexed=0) == 0
    assert start(indexed=399) == 3
    assert start(indexed=10_000) == 4
    assert start(safe=0) == 0
    assert start(safe=2_999) == 2
    assert start(safe=99_999) == 4
    segments[4] = SegmentStart(400, None)  # created in advance, still empty
    assert start(safe=99_999) == 3
    assert start(indexed=10_000) == 3


def test_verdicts_on_the_tail_of_the_log() -> None:
    def judge(tail: Tail | None, *, is_clean: bool) -> Verdict:
        return judge_tail(tail, is_clean=is_clean, safe_time_ms=1_000)

    for is_clean in (True, False):
        assert judge(None, is_clean=is_clean) is Verdict.CLEAN_END
        assert judge(Tail(10, 20, None, None), is_clean=is_clean) is Verdict.CUT
        assert judge(Tail(10, 20, 15, 1_000), is_clean=is_clean) is Verdict.CORRUPT
    assert judge(Tail(10, 20, 15, 1_001), is_clean=False) is Verdict.CUT
    assert judge(Tail(10, 20, 15, 1_001), is_clean=True) is Verdict.CORRUPT


RULES = RetentionRules(
    reserved_ms=1_000,
    delete_hours=frozenset({4}),
    high_ratio=0.75,
    force_ratio=0.85,
    full_ratio=0.90,
    is_forced_enabled=True,
    batch_files=3,
)


@pytest.mark.parametrize(
    ("hour", "ratio", "manual", "deleted", "full"),
    [
        (5, 0.5, False, 0, False),
        (4, 0.5, False, 2, False),
        (5, 0.75, False, 0, False),
        (5, 0.76, False, 2, False),
        (5, 0.5, True, 2, False),
        (5, 0.86, False, 3, False),
        (5, 0.91, False, 3, True),
    ],
)
def test_which_segments_retention_deletes(
    hour: int, ratio: float, manual: bool, deleted: int, full: bool
) -> None:
    ages = [SegmentAge(0, 0), SegmentAge(100, 500), SegmentAge(200, 9_500), SegmentAge(300, 0)]
    plan = plan_retention(
        RULES, ages, now_ms=10_000, local_hour=hour, disk_ratio=ratio, is_manual=manual
    )
    assert plan == (deleted, full)


def test_files_older_than_48_hours_are_deleted_at_4_o_clock(tmp_path: Path) -> None:
    """``fileReservedTime=48`` and ``deleteWhen=04``, with the ages of real files."""
    # 3:59 of local time, which is the time of deleteWhen.
    clock = ManualClock(int(time.mktime((2023, 11, 15, 3, 59, 0, 0, 0, -1)) * 1000))
    files = FaultyFiles(tmp_path)
    files.used = 0.5  # else a full disk of this machine would count
    config = StoreConfig(
        root=tmp_path,
        segment_bytes=1024,
        reserved_hours=48,
        delete_when="04",
        retention_interval_ms=10,
    )
    with MessageStore(config, environment=Environment(clock=clock, files=files)) as store:
        for _ in range(30):
            store.put(prepared(body=b"x" * 100))
        store.flush()
        paths = [segment.path for segment in store.log.segments]
        assert len(paths) > 4
        for path, age_hours in zip(paths, (50, 49, 47, 49), strict=False):
            modified = clock.now_ms() / 1000 - age_hours * 3600
            os.utime(path, (modified, modified))
        assert store.clean() == 0, "3:59"
        assert all(path.exists() for path in paths)
        clock.advance(60_000)
        wait_until(lambda: not paths[1].exists(), 60, "the deletion of two files")
        # A young file keeps those after it, however old they are.
        assert [path.exists() for path in paths[:4]] == [False, False, True, True]
        assert store.clean() == 0


def test_cleaning_keeps_unsynced_segments(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    files.used = 0.89
    with SmallStore(tmp_path, files=files, segment_bytes=1024) as store:
        for _ in range(30):
            store.put(prepared(body=b"x" * 100))
        assert store.clean() == 0, "nothing is on disk yet"
        store.flush()
        segments = len(store.log.segments)
        assert store.clean() == segments - 1
        assert store.log_min_offset == (segments - 1) * 1024
        first = store.get("TopicA", 0, store.min_offset("TopicA", 0), 1)
        assert first.records
        assert store.get("TopicA", 0, 0, 1).next_offset == store.min_offset("TopicA", 0)
        assert store.max_offset("TopicA", 0) == 30


def test_deleting_topics_and_stale_queues(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    with SmallStore(tmp_path, files=files, segment_bytes=1024) as store:
        for queue_id in range(3):
            store.put(prepared("Old", queue_id))
        store.put(prepared("Doomed"))
        store.tick()
        for _ in range(20):
            store.put(prepared(body=b"x" * 100))
        assert store.delete_topic("Doomed") == 1
        assert not (tmp_path / "consumequeue" / "Doomed").exists()
        store.flush()
        files.used = 0.89
        store.clean()
        assert store.delete_stale_queues(lambda topic: topic == "Old") == 0
        assert store.delete_stale_queues(lambda topic: False) == 3
        assert store.queues.topics() == ["TopicA"]
        assert store.put(prepared("Doomed")).queue_offset == 0
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        assert store.queues.topics() == ["Doomed", "TopicA"]


def test_raw_bytes_make_an_identical_log(tmp_path: Path) -> None:
    source, copy = SmallStore(tmp_path / "a"), SmallStore(tmp_path / "b")
    with source as master, copy as slave:
        for i in range(100):
            master.put(prepared(body=b"%d" % i * 20, keys=f"k{i}", tags="t"))
        while (view := master.read_log(slave.log_max_offset, 3000)) is not None and len(view):
            slave.append_raw(view)
        assert slave.max_offset("TopicA", 0) == 100
        assert len(slave.query("TopicA", "k99", 8).records) == 1
    for path in (tmp_path / "a" / "commitlog").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / "commitlog" / path.name).read_bytes()


def test_worker_threads(tmp_path: Path) -> None:
    """With threads instead of inline workers: many waiters, new segments, a clean stop."""
    config = StoreConfig(
        root=tmp_path,
        segment_bytes=65_536,
        queue_file_bytes=4_000,
        index_slots=100,
        index_entries=10_000,
        flush_mode=FlushMode.SYNC,
    )
    before = threading.active_count()
    with MessageStore(config) as store:
        done = threading.Semaphore(0)
        for i in range(1_000):
            entries = store.put_many([prepared(queue_id=i % 4, body=b"x" * 100, keys="k")] * 1)
            store.wait_durable(entries[-1].end_offset, lambda error: done.release())
        for _ in range(1_000):
            assert done.acquire(timeout=30)
        assert sum(store.max_offset("TopicA", i) for i in range(4)) == 1_000
    assert threading.active_count() == before
    with MessageStore(config) as store:
        assert store.report.is_clean
        assert sum(store.max_offset("TopicA", i) for i in range(4)) == 1_000


@pytest.mark.parametrize("queue_offset", [0, 1, 2, 2**40])
def test_a_record_inside_of_a_body_is_not_found(tmp_path: Path, queue_offset: int) -> None:
    with SmallStore(tmp_path) as store:
        genuine = [store.put(prepared("Secret")) for _ in range(2)]
        forged = put_forged(store, "Secret", b"", queue_offset)
        assert store.log.entry_at(forged) is not None, "its bytes are a record"
        assert store.lookup(forged) is None
        for entry in genuine:
            view = store.lookup(entry.physical_offset)
            assert view is not None
            assert len(view) == entry.size


def test_a_record_is_found_after_a_restart_and_as_long_as_the_log_has_it(tmp_path: Path) -> None:
    with SmallStore(tmp_path, segment_bytes=4096, queue_file_bytes=400) as store:
        offsets = [
            store.put(prepared(body=bytes(500), queue_id=i % 2)).physical_offset for i in range(60)
        ]
    with SmallStore(tmp_path, segment_bytes=4096, queue_file_bytes=400) as store:
        assert None not in map(store.lookup, offsets)
        store.clean(is_manual=True)
        found = [offset for offset in offsets if store.lookup(offset) is not None]
        assert found == [offset for offset in offsets if offset >= store.log_min_offset]
