"""Saving tables outside the loop: saved changes are on disk, and failed saves are retried."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goddard.broker.tables.saving import TableSaver
from goddard.errors import StoreError
from goddard.protocol.bodies import TopicConfig
from goddard.store.jsonfile import JsonFile
from goddard.store.tables import TopicTable
from tests.support.clock import ManualClock


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    table = TopicTable(tmp_path)
    table.put("one", TopicConfig(topic_name="one"))
    return table


def saved_topics(table: TopicTable) -> set[str]:
    read = TopicTable(table.file.path.parent)
    read.load()
    return set(read)


async def test_a_table_is_on_disk_when_its_save_returns(table: TopicTable) -> None:
    with ThreadPoolExecutor(1) as executor:
        await TableSaver(executor).save(table)
    assert saved_topics(table) == {"one"}
    assert not table.is_changed


async def test_a_table_without_changes_is_not_written(table: TopicTable) -> None:
    table.is_changed = False
    with ThreadPoolExecutor(1) as executor:
        await TableSaver(executor).save(table)
    assert not table.file.path.exists()


async def test_many_requests_become_few_saves_without_lost_changes(table: TopicTable) -> None:
    with ThreadPoolExecutor(1) as executor:
        saver = TableSaver(executor)
        gate = threading.Event()
        executor.submit(gate.wait, 10)
        for number in range(100):
            table.put(f"t{number}", TopicConfig(topic_name=f"t{number}"))
            saver.save_soon(table)
            await asyncio.sleep(0)  # the first save has started and waits for the executor
        gate.set()
        await saver.close([table])
        assert saved_topics(table) == {"one", *(f"t{number}" for number in range(100))}
        assert not table.is_changed


async def test_a_failure_is_logged_and_the_change_is_kept(
    table: TopicTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    lost = TopicTable(tmp_path / "file" / "config")
    lost.put("one", TopicConfig(topic_name="one"))
    with ThreadPoolExecutor(1) as executor:
        saver = TableSaver(executor)
        with pytest.raises(StoreError):
            await saver.save(lost)
        assert lost.is_changed
        with caplog.at_level(logging.ERROR):
            await saver.save_all([lost, table])
    assert "topics.json was not saved" in caplog.text
    assert lost.is_changed
    assert saved_topics(table) == {"one"}


async def test_waiting_callers_share_a_save(table: TopicTable) -> None:
    with ThreadPoolExecutor(1) as executor:
        saver = TableSaver(executor)
        first = asyncio.create_task(saver.save(table))
        await asyncio.sleep(0)
        table.put("two", TopicConfig(topic_name="two"))
        await asyncio.gather(first, *(saver.save(table) for _ in range(10)))
    assert saved_topics(table) == {"one", "two"}


async def test_a_postponed_table_is_written_when_the_saver_closes(table: TopicTable) -> None:
    clock = ManualClock()

    class SlowTable(TopicTable):
        def snapshot(self) -> Callable[[], bytes]:
            clock.advance(3_600_000)  # so that its next save is postponed by most of a day
            return super().snapshot()

    slow = SlowTable(table.file.path.parent)
    slow.put("one", TopicConfig(topic_name="one"))
    with ThreadPoolExecutor(1) as executor:
        saver = TableSaver(executor, clock=clock)
        await saver.save(slow)
        slow.put("two", TopicConfig(topic_name="two"))
        saver.save_soon(slow)
        for _ in range(10):
            await asyncio.sleep(0)
        assert slow.is_changed
        assert saved_topics(table) == {"one"}
        async with asyncio.timeout(60):
            await saver.close([slow])
    assert saved_topics(table) == {"one", "two"}


async def test_a_save_whose_caller_is_cancelled_is_finished_before_the_next(
    table: TopicTable,
) -> None:
    class GatedFile(JsonFile):
        begun, gate, writers = threading.Event(), threading.Event(), 0

        def replace(self, data: bytes) -> None:
            self.writers += 1
            assert self.writers == 1
            self.begun.set()
            assert self.gate.wait(10)
            super().replace(data)
            self.writers -= 1

    table.file = GatedFile(table.file.path)
    with ThreadPoolExecutor(2) as executor:
        saver = TableSaver(executor)
        first = asyncio.create_task(saver.save(table))
        await asyncio.to_thread(table.file.begun.wait, 10)
        table.put("two", TopicConfig(topic_name="two"))
        first.cancel()
        closing = asyncio.create_task(saver.close([table]))
        for _ in range(5):
            await asyncio.sleep(0)
        table.file.gate.set()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await first
    assert saved_topics(table) == {"one", "two"}
    assert not table.is_changed
