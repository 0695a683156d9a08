"""Which thread makes synced messages visible; listeners hear of messages only when they are."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from goddard.errors import StoreError
from goddard.store.config import FlushMode, StoreConfig
from goddard.store.log.block import Placed, count_messages, end_offset
from goddard.store.store import MessageStore
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared

TIMEOUT = 30.0


@contextmanager
def synced_store(root: Path) -> Iterator[MessageStore]:
    """A store with its own flush thread, as in a broker."""
    config = StoreConfig(
        root=root,
        segment_bytes=1 << 20,
        index_slots=16,
        index_entries=40,
        flush_mode=FlushMode.SYNC,
    )
    with MessageStore(config) as store:
        yield store


class Loop:
    """Collects the jobs to run in this thread."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.given = threading.Event()
        self.may_go_on = threading.Event()

    def call_soon_threadsafe(self, job: Callable[[], None]) -> None:
        self.given.set()
        self.may_go_on.wait(TIMEOUT)
        self.jobs.append(job)


def test_the_loop_makes_synced_messages_visible(tmp_path: Path) -> None:
    shown: list[int] = []

    def listen(placed: Placed) -> None:
        shown.append(threading.get_ident())

    loop = Loop()
    loop.may_go_on.set()
    with synced_store(tmp_path) as store:
        store.add_listener(listen)
        store.publish_on(loop.call_soon_threadsafe)
        notified = threading.Event()
        store.wait_durable(store.put(prepared()).end_offset, lambda error: notified.set())
        assert notified.wait(TIMEOUT)
        for job in loop.jobs:
            job()
        assert store.max_offset("TopicA", 0) == 1
        assert shown == [threading.get_ident()]


def test_a_waiter_for_synced_messages_sees_them(tmp_path: Path) -> None:
    loop = Loop()
    with synced_store(tmp_path) as store:
        store.publish_on(loop.call_soon_threadsafe)
        entry = store.put(prepared())
        assert loop.given.wait(TIMEOUT), "synced, and about to be shown"
        seen: list[tuple[StoreError | None, int]] = []
        store.wait_durable(
            entry.end_offset, lambda error: seen.append((error, store.max_offset("TopicA", 0)))
        )
        assert seen == [(None, 1)]
        loop.may_go_on.set()


def test_messages_appended_during_a_sync_are_visible_after_the_next(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    small = SmallStore(tmp_path, files=files, flush_mode=FlushMode.SYNC)
    shown: list[int] = []

    def listen(placed: Placed) -> None:
        assert end_offset(placed) <= small.store.flushed_offset
        shown.append(count_messages(placed))

    def append_another() -> None:
        small.flush_worker.is_held = True
        small.store.put(prepared(body=b"during the sync"))

    with small as store:
        store.put(prepared())  # the first append takes one segment and has another created
        store.add_listener(listen)
        files.slow("sync", append_another, path_part="commitlog")
        store.put(prepared(body=b"before it"))
        small.flush_worker.run()
        assert shown == [1, 1]
        assert store.max_offset("TopicA", 0) == 3


@pytest.mark.parametrize("is_closed_early", [True, False])
def test_the_store_makes_messages_visible_when_the_loop_is_closed(
    tmp_path: Path, is_closed_early: bool
) -> None:
    def refuse(job: Callable[[], None]) -> None:
        if is_closed_early:
            raise RuntimeError("Event loop is closed")

    with synced_store(tmp_path) as store:
        store.publish_on(refuse)
        store.put(prepared())
        closing = threading.Thread(target=store.close)  # in a thread, as a broker does
        closing.start()
        closing.join(TIMEOUT)
    with synced_store(tmp_path) as store:
        assert store.report.is_clean
        assert store.max_offset("TopicA", 0) == 1
