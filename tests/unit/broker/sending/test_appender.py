"""One append per tick: what is appended together, in which order, and the outcomes."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from goddard.broker.sending import appender
from goddard.broker.sending.appender import Appender, Done, FlushTimeoutError, LateError
from goddard.errors import StoreError
from goddard.store.config import FlushMode
from goddard.store.errors import (
    MessageIllegalError,
    StoreFullError,
    StoreUnavailableError,
)
from goddard.store.log.records import LogEntry, PreparedRecord
from goddard.store.store import MessageStore
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared
from tests.support.syncs import ThreadSyncs


class Outcomes:
    """Records the outcome of each submission, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.entries: dict[str, Sequence[LogEntry] | None] = {}
        self.errors: dict[str, StoreError | None] = {}

    def of(self, name: str) -> Done:
        def done(entries: Sequence[LogEntry] | None, error: StoreError | None) -> None:
            self.names.append(name)
            self.entries[name] = entries
            self.errors[name] = error

        return done


class CountingStore(MessageStore):
    """Counts calls of ``append``."""

    appends = 0

    def append(self, records: Sequence[PreparedRecord], *, whole: bool = False) -> list[LogEntry]:
        self.appends += not whole
        return super().append(records, whole=whole)


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


def appender_of(store: MessageStore, *, flush_timeout_ms: int = 5_000) -> Appender:
    return Appender(
        store,
        asyncio.get_running_loop(),
        clock=ManualClock(),
        flush_timeout_ms=flush_timeout_ms,
    )


async def ticks() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_messages_of_one_tick_are_appended_together_in_order(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    small = SmallStore(tmp_path)
    small.store.__class__ = CountingStore
    with small as store:
        assert isinstance(store, CountingStore)
        appender = appender_of(store)
        appender.submit([prepared(body=b"1"), prepared(body=b"2")], outcomes.of("a"))
        appender.submit([prepared(queue_id=1, body=b"3")], outcomes.of("b"))
        assert (appender.queued_requests, store.log_max_offset, outcomes.names) == (2, 0, [])
        await ticks()
        assert outcomes.names == ["a", "b"]
        a, b = outcomes.entries["a"], outcomes.entries["b"]
        assert a is not None
        assert b is not None
        assert [(entry.queue_id, entry.queue_offset) for entry in (*a, *b)] == [
            (0, 0),
            (0, 1),
            (1, 0),
        ]
        assert a[1].end_offset == b[0].physical_offset
        assert (store.appends, appender.queued_requests) == (1, 0)


async def test_sends_wait_for_the_next_segment_without_holding_up_the_loop(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    small = SmallStore(tmp_path)
    small.file_worker.is_held = True
    with small as store:
        appender = appender_of(store)
        for name in "abc":
            appender.submit([prepared(body=name.encode())], outcomes.of(name))
            await ticks()
        assert (appender.queued_requests, outcomes.names) == (3, [])
        assert list((tmp_path / "commitlog").iterdir()) == [], "only the worker creates segments"
        small.file_worker.is_held = False
        small.file_worker.run()
        await ticks()
        assert (appender.queued_requests, outcomes.names) == (0, ["a", "b", "c"])


async def test_sends_wait_while_the_index_is_far_behind(tmp_path: Path, outcomes: Outcomes) -> None:
    small = SmallStore(tmp_path, segment_bytes=8 << 20, index_entries=40_000)
    small.upkeep_worker.is_held = True
    with small as store:
        appender = appender_of(store)
        appender.submit([prepared(keys="k")] * 16_384, outcomes.of("a"))
        await ticks()
        appender.submit([prepared()], outcomes.of("b"))
        await ticks()
        assert outcomes.names == ["a"]
        assert store.index.files == [], "only the worker fills the index"
        small.upkeep_worker.is_held = False
        small.upkeep_worker.run()
        await ticks()
        assert outcomes.names == ["a", "b"]
        assert store.index.files[0].count == 1 + 16_384


async def test_a_drain_waits_for_the_next_segment(tmp_path: Path, outcomes: Outcomes) -> None:
    small = SmallStore(tmp_path)
    small.file_worker.is_held = True
    with small as store:
        appender = appender_of(store)
        appender.submit([prepared()], outcomes.of("a"))
        draining = asyncio.ensure_future(appender.drain())
        await ticks()
        assert not draining.done()
        small.file_worker.is_held = False
        small.file_worker.run()
        await asyncio.wait_for(draining, 5)
        assert outcomes.names == ["a"]


async def test_sends_that_wait_are_refused_when_the_store_closes(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    small = SmallStore(tmp_path)
    small.file_worker.is_held = True
    with small as store:
        appender = appender_of(store)
        appender.submit([prepared()], outcomes.of("a"))
        await ticks()
    await ticks()
    assert isinstance(outcomes.errors["a"], StoreUnavailableError)


async def test_a_batch_keeps_its_place_between_other_messages(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        appender = appender_of(store)
        appender.submit([prepared(body=b"x" * 500)], outcomes.of("before"))
        appender.submit([prepared(body=b"y" * 300)] * 2, outcomes.of("batch"), whole=True)
        appender.submit([prepared(body=b"z")], outcomes.of("after"))
        await ticks()
        batch, after = outcomes.entries["batch"], outcomes.entries["after"]
        assert batch is not None
        assert after is not None
        # The batch did not fit after the first message: all of it is in the next segment.
        assert [entry.physical_offset // 1024 for entry in batch] == [1, 1]
        assert after[0].queue_offset == 3


async def test_an_illegal_group_does_not_fail_the_others(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with SmallStore(tmp_path, max_message_bytes=100) as store:
        appender = appender_of(store)
        appender.submit([prepared(body=b"1")], outcomes.of("good"))
        appender.submit([prepared(body=b"x" * 9000)], outcomes.of("bad"))
        appender.submit([prepared(body=b"2")], outcomes.of("also good"))
        await ticks()
        assert isinstance(outcomes.errors["bad"], MessageIllegalError)
        assert outcomes.entries["bad"] is None
        for name, offset in (("good", 0), ("also good", 1)):
            entries = outcomes.entries[name]
            assert entries is not None
            assert entries[0].queue_offset == offset


async def test_all_submissions_fail_when_the_store_is_closed(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with SmallStore(tmp_path) as store:
        appender = appender_of(store)
    appender.submit([prepared()], outcomes.of("a"))
    appender.submit([prepared()], outcomes.of("b"), whole=True)
    await ticks()
    assert all(isinstance(error, StoreUnavailableError) for error in outcomes.errors.values())
    assert outcomes.names == ["a", "b"]
    with pytest.raises(StoreUnavailableError):
        await appender.put([prepared()])


async def test_an_error_in_a_callback_does_not_affect_others(
    tmp_path: Path, outcomes: Outcomes, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(entries: Sequence[LogEntry] | None, error: StoreError | None) -> None:
        raise ZeroDivisionError

    with SmallStore(tmp_path) as store:
        appender = appender_of(store)
        appender.submit([prepared()], faulty)
        appender.submit([prepared()], outcomes.of("next"))
        await ticks()
        assert outcomes.entries["next"]
        assert "ZeroDivisionError" in caplog.text


async def test_submissions_that_waited_too_long_are_refused(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with SmallStore(tmp_path) as store:
        clock = ManualClock()
        appender = Appender(store, asyncio.get_running_loop(), clock=clock)
        appender.submit([prepared()], outcomes.of("impatient"), max_wait_ms=200)
        appender.submit([prepared()], outcomes.of("patient"))
        clock.advance(200)
        await ticks()
        late = outcomes.errors["impatient"]
        assert isinstance(late, LateError)
        assert (late.waited_ms, late.queued_requests) == (200, 2)
        assert outcomes.entries["patient"]
        assert store.max_offset("TopicA", 0) == 1


async def test_sync_flush_answers_when_the_disk_has_it(tmp_path: Path, outcomes: Outcomes) -> None:
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        appender = appender_of(store)
        small.flush_worker.is_held = True
        appender.submit([prepared()], outcomes.of("waits"))
        appender.submit([prepared()], outcomes.of("does not"), wait_durable=False)
        appender.submit([prepared()], outcomes.of("waits too"), whole=True)
        await ticks()
        assert outcomes.names == ["does not"]
        assert appender.undurable_requests == 2
        small.flush_worker.run()
        await ticks()
        assert outcomes.names == ["does not", "waits", "waits too"]
        assert outcomes.errors == {"does not": None, "waits": None, "waits too": None}
        assert appender.undurable_requests == 0
        small.flush_worker.is_held = False


async def test_messages_that_arrive_during_a_sync_are_appended_after_it(
    tmp_path: Path, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "_MAX_HELD_BACK_SECONDS", 60)
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        appending = appender_of(store)
        small.flush_worker.is_held = True
        appending.submit([prepared()], outcomes.of("first"))
        await ticks()
        appending.submit([prepared()], outcomes.of("during the sync"))
        appending.submit([prepared()], outcomes.of("with it"))
        await ticks()
        assert (appending.queued_requests, outcomes.names) == (2, [])
        small.flush_worker.run()
        await ticks()
        assert (appending.queued_requests, outcomes.names) == (0, ["first"])
        small.flush_worker.run()
        await ticks()
        assert outcomes.names == ["first", "during the sync", "with it"]
        assert store.max_offset("TopicA", 0) == 3
        small.flush_worker.is_held = False


async def test_messages_that_arrive_during_a_slow_sync_do_not_wait_for_its_end(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        appending = appender_of(store)
        small.flush_worker.is_held = True
        appending.submit([prepared()], outcomes.of("first"))
        await ticks()
        async with asyncio.timeout(60):
            await appending.put([prepared()], wait_durable=False)
        assert outcomes.names == []
        small.flush_worker.is_held = False
        small.flush_worker.run()
        await ticks()
        assert outcomes.names == ["first"]


async def test_sync_flush_makes_messages_without_waiters_visible(tmp_path: Path) -> None:
    with SmallStore(tmp_path, flush_mode=FlushMode.SYNC) as store:
        appender = appender_of(store)
        await appender.put([prepared()], wait_durable=False)
        assert store.max_offset("TopicA", 0) == 1


async def test_a_slow_disk_is_a_flush_timeout_with_the_entries(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        appender = appender_of(store, flush_timeout_ms=20)
        small.flush_worker.is_held = True
        appender.submit([prepared()], outcomes.of("a"))
        appender.submit([prepared(queue_id=1)], outcomes.of("b"))
        async with asyncio.timeout(60):
            await appender.drain()
        await ticks()
        for name, queue_id in (("a", 0), ("b", 1)):
            error, entries = outcomes.errors[name], outcomes.entries[name]
            assert isinstance(error, FlushTimeoutError)
            assert "did not confirm 1 messages in 20 ms" in str(error)
            assert entries is not None
            assert entries[0].queue_id == queue_id
        small.flush_worker.is_held = False
        small.flush_worker.run()  # the disk recovers; no outcome is reported twice
        await ticks()
        assert outcomes.names == ["a", "b"]


async def test_a_failed_sync_fails_the_waiting_submissions(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    files = FaultyFiles(tmp_path)
    with SmallStore(tmp_path, files=files, flush_mode=FlushMode.SYNC) as store:
        appender = appender_of(store)
        files.fail("sync", path_part="commitlog", count=100)
        appender.submit([prepared()], outcomes.of("a"))
        appender.submit([prepared()], outcomes.of("b"), wait_durable=False)
        await ticks()
        assert isinstance(outcomes.errors["a"], FlushTimeoutError)
        assert "the disk did not confirm 1 messages (" in str(outcomes.errors["a"])
        assert outcomes.entries["a"] is not None, "it is in the log, and may yet be on disk"
        assert outcomes.errors["b"] is None
        appender.submit([prepared()], outcomes.of("c"))
        await ticks()
        assert isinstance(outcomes.errors["c"], StoreUnavailableError)
        files.heal()


class ControlledSyncs(FaultyFiles):
    """Files whose syncs of the log by the kernel last until they are allowed to end."""

    __slots__ = ("may_end", "syncs")

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_end = threading.Event()
        self.syncs: ThreadSyncs | None = None

    def open_syncs(self) -> ThreadSyncs:
        def sync(fd: int) -> None:
            assert self.may_end.wait(60)
            self.sync(fd)

        self.syncs = ThreadSyncs(sync)
        return self.syncs


@contextlib.contextmanager
def kernel_syncs(
    tmp_path: Path, flush_timeout_ms: int = 60_000
) -> Iterator[tuple[ControlledSyncs, SmallStore, Appender]]:
    """An appender that has the kernel run the syncs; the worker that flushes is held."""
    files = ControlledSyncs(tmp_path)
    small = SmallStore(tmp_path, files=files, flush_mode=FlushMode.SYNC)
    with small as store:
        small.flush_worker.is_held = True
        appending = appender_of(store, flush_timeout_ms=flush_timeout_ms)
        appending.start()
        yield files, small, appending
        files.may_end.set()
        appending.stop()
        small.flush_worker.is_held = False


async def test_the_kernel_syncs_what_waits_and_then_what_arrived_meanwhile(
    tmp_path: Path, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "_MAX_HELD_BACK_SECONDS", 60)
    with kernel_syncs(tmp_path) as (files, small, appending):
        appending.submit([prepared()], outcomes.of("first"))
        appending.submit([prepared()], outcomes.of("with it"), whole=True)
        await ticks()
        appending.submit([prepared()], outcomes.of("during the sync"))
        await ticks()
        assert (appending.queued_requests, outcomes.names) == (1, [])
        assert small.store.max_offset("TopicA", 0) == 0, "not on disk"
        files.may_end.set()
        async with asyncio.timeout(60):
            await appending.drain()
        await ticks()
        assert outcomes.names == ["first", "with it", "during the sync"]
        assert set(outcomes.errors.values()) == {None}
        assert small.store.max_offset("TopicA", 0) == 3
        assert files.syncs is not None
        assert files.syncs.count == 2, "one for each turn"
        small.flush_worker.run()
        assert small.store.flushed_offset == small.store.log_max_offset


async def test_a_sync_of_the_kernel_that_fails_is_handled_like_any_other(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with kernel_syncs(tmp_path) as (files, small, appending):
        files.may_end.set()
        files.fail("sync", path_part="commitlog", count=100)
        appending.submit([prepared()], outcomes.of("a"))
        async with asyncio.timeout(60):
            await appending.drain()
        assert isinstance(outcomes.errors["a"], FlushTimeoutError)
        assert outcomes.entries["a"] is not None, "it is in the log, and may yet be on disk"
        assert small.store.max_offset("TopicA", 0) == 0
        with pytest.raises(StoreUnavailableError):
            await appending.put([prepared()])
        files.heal()
        small.store.tick()  # rewrites and syncs
        assert small.store.max_offset("TopicA", 0) == 1
        await asyncio.wait_for(appending.put([prepared()]), 60)
        assert small.store.max_offset("TopicA", 0) == 2


async def test_a_sync_of_the_kernel_that_is_late_is_a_flush_timeout(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with kernel_syncs(tmp_path, flush_timeout_ms=20) as (files, small, appending):
        appending.submit([prepared()], outcomes.of("a"))
        async with asyncio.timeout(60):
            await appending.drain()
        assert isinstance(outcomes.errors["a"], FlushTimeoutError)
        files.may_end.set()
        await asyncio.wait_for(appending.put([prepared()]), 60)
        assert outcomes.names == ["a"], "told once"
        assert small.store.max_offset("TopicA", 0) == 2


async def test_a_thread_that_flushes_waits_for_the_sync_of_the_kernel(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with kernel_syncs(tmp_path) as (files, small, appending):
        appending.submit([prepared()], outcomes.of("a"))
        await ticks()
        flushing = asyncio.create_task(asyncio.to_thread(small.store.flush))
        await ticks()
        assert not flushing.done()
        files.may_end.set()
        await asyncio.wait_for(flushing, 60)
        await asyncio.wait_for(appending.drain(), 60)
        assert outcomes.errors == {"a": None}


@pytest.mark.parametrize("reason", ["refused", "two segments", "stopped"])
async def test_a_thread_syncs_what_the_kernel_cannot(
    tmp_path: Path, outcomes: Outcomes, reason: str
) -> None:
    with kernel_syncs(tmp_path) as (files, small, appending):
        assert files.syncs is not None
        files.may_end.set()
        if reason == "refused":
            files.syncs.is_refusing = True
        elif reason == "stopped":
            appending.stop()
        sizes = (5000, 5000) if reason == "two segments" else (5,)
        for number, size in enumerate(sizes):
            appending.submit([prepared(body=b"x" * size)], outcomes.of(str(number)), whole=True)
        await ticks()
        assert (outcomes.names, files.syncs.count) == ([], 0)
        small.flush_worker.run()
        await ticks()
        assert set(outcomes.errors.values()) == {None}
        assert len(outcomes.names) == len(sizes)


async def test_stopping_waits_for_the_sync_of_the_kernel(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    with kernel_syncs(tmp_path) as (files, small, appending):
        appending.submit([prepared()], outcomes.of("a"))
        await ticks()
        asyncio.get_running_loop().run_in_executor(None, files.may_end.set)
        appending.stop()
        await ticks()
        assert outcomes.errors == {"a": None}
        assert small.store.flushed_offset == small.store.log_max_offset


async def test_a_full_disk_is_reported_until_there_is_space(
    tmp_path: Path, outcomes: Outcomes
) -> None:
    files = FaultyFiles(tmp_path)
    with SmallStore(tmp_path, files=files) as store:
        appender = appender_of(store)
        files.fail("pwrite", errno.ENOSPC, path_part="commitlog")
        appender.submit([prepared(body=b"1")], outcomes.of("a"))
        await ticks()
        assert isinstance(outcomes.errors["a"], StoreFullError)
        files.heal()
        (entry,) = await appender.put([prepared(body=b"2")])
        assert entry.queue_offset == 0


async def test_an_unexpected_error_of_the_store_is_reported(
    tmp_path: Path, outcomes: Outcomes, caplog: pytest.LogCaptureFixture
) -> None:
    with SmallStore(tmp_path) as store:
        appender = appender_of(store)
        record = prepared()
        del record.tags_code
        appender.submit([record], outcomes.of("a"))
        await ticks()
        assert type(outcomes.errors["a"]) is StoreError
        assert "appending 1 messages failed" in caplog.text


async def test_put_returns_the_entries_and_stores_them_when_cancelled(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        appender = appender_of(store)
        entries = await appender.put([prepared(body=b"1"), prepared(body=b"2")])
        assert [entry.queue_offset for entry in entries] == [0, 1]
        waiting = asyncio.create_task(appender.put([prepared()]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await ticks()
        assert store.max_offset("TopicA", 0) == 3


async def test_drain_stores_queued_messages(tmp_path: Path, outcomes: Outcomes) -> None:
    with SmallStore(tmp_path) as store:
        appender = appender_of(store)
        await appender.drain()
        appender.submit([prepared()], outcomes.of("a"))
        await appender.drain()
        assert outcomes.names == ["a"]
        await ticks()
        assert store.max_offset("TopicA", 0) == 1
