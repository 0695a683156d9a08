"""The store against a plain list: appends, new segments, flushes, stops, crashes, retention."""

import random
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goddard.protocol.record import decode_record
from goddard.store.config import FlushMode
from goddard.store.log.reading import GetStatus
from goddard.store.log.records import LogEntry, PreparedRecord
from goddard.store.store import MessageStore
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared

TOPICS = ("TopicA", "%RETRY%group", "x" * 140)
SEGMENT_BYTES = 4096


@dataclass
class Sent:
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    end_offset: int
    body: bytes
    key: str


messages = st.tuples(st.sampled_from(TOPICS), st.integers(0, 1), st.integers(0, 900), st.booleans())


class StoreModel(RuleBasedStateMachine):
    flush_mode = FlushMode.ASYNC

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="goddard-store-"))
        self.clock = ManualClock()
        self.sent: list[Sent] = []
        self.number = 0
        (self.directory / "store").mkdir()
        self.files = FaultyFiles(self.directory / "store")
        self.small: SmallStore
        self.store: MessageStore

    @initialize()
    def start(self) -> None:
        self.open()

    def open(self) -> None:
        self.small = SmallStore(
            self.directory / "store",
            files=self.files,
            clock=self.clock,
            segment_bytes=SEGMENT_BYTES,
            flush_mode=self.flush_mode,
            disk_high_ratio=0.75,
            max_get_memory_count=1000,
        )
        self.small.flush_worker.is_held = True  # with SYNC_FLUSH, too, only the test flushes
        self.store = self.small.store
        self.store.open()

    def teardown(self) -> None:
        self.store.abandon()
        shutil.rmtree(self.directory)

    # Actions of users

    def make(self, message: tuple[str, int, int, bool]) -> tuple[PreparedRecord, str, bytes]:
        topic, queue_id, size, has_key = message
        self.number += 1
        body = (f"{self.number}:".encode() * (size // 2 + 1))[:size]
        key = f"key{self.number}" if has_key else ""
        record = prepared(topic, queue_id, body, tags="tag", unique_key=key)
        return record, key, body

    def remember(
        self, entries: list[LogEntry], made: list[tuple[PreparedRecord, str, bytes]]
    ) -> None:
        for entry, (_, key, body) in zip(entries, made, strict=True):
            self.sent.append(
                Sent(
                    entry.topic,
                    entry.queue_id,
                    entry.queue_offset,
                    entry.physical_offset,
                    entry.end_offset,
                    body,
                    key,
                )
            )

    @rule(group=st.lists(messages, min_size=1, max_size=12))
    def put_many(self, group: list[Any]) -> None:
        made = [self.make(message) for message in group]
        self.remember(self.store.put_many([record for record, _, _ in made]), made)

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8))
    def put_batch(self, sizes: list[int]) -> None:
        made = [self.make((TOPICS[0], 1, size, True)) for size in sizes]
        entries = self.store.put_batch([record for record, _, _ in made])
        self.remember(entries, made)
        assert len({entry.physical_offset // SEGMENT_BYTES for entry in entries}) == 1

    @rule(message=messages)
    def put(self, message: tuple[str, int, int, bool]) -> None:
        made = self.make(message)
        self.remember([self.store.put(made[0])], [made])

    # Time and actions of operators

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.flushed_offset == self.store.log_max_offset

    @rule(milliseconds=st.sampled_from([10, 1_000, 20_000]))
    def tick(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.store.tick()

    @rule()
    def delete_oldest(self) -> None:
        self.files.used = 0.87
        self.store.clean()
        self.files.used = None
        self.sent = [
            sent for sent in self.sent if sent.physical_offset >= self.store.log_min_offset
        ]

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.open()
        assert self.store.report.is_clean
        assert not self.store.report.findings, self.store.report

    @rule()
    def kill(self) -> None:
        """The process is killed; written data stays in the page cache."""
        self.store.abandon()
        self.open()
        assert not self.store.report.is_clean
        assert not self.store.report.findings, self.store.report

    @rule(seed=st.none() | st.integers(0, 1 << 30))
    def power_cut(self, seed: int | None) -> None:
        """A power cut; of the unsynced data, no pages or some pages remain."""
        flushed = self.store.flushed_offset
        if seed is None:
            self.files.crash()
        else:
            chance = random.Random(seed)
            self.files.crash(lambda path, page: chance.random() < 0.5)
        self.store.abandon()
        self.files = FaultyFiles(self.directory / "store")
        self.open()
        end = self.store.log_max_offset
        assert end >= flushed, (end, flushed)
        self.sent = [
            sent
            for sent in self.sent
            if sent.end_offset <= end and sent.physical_offset >= self.store.log_min_offset
        ]

    # Invariants

    def visible(self) -> list[Sent]:
        if self.flush_mode is FlushMode.ASYNC or not self.store.dispatch_behind_bytes:
            return self.sent
        flushed = self.store.flushed_offset
        return [sent for sent in self.sent if sent.end_offset <= flushed]

    @invariant()
    def queues_hold_what_was_sent(self) -> None:
        by_queue: dict[tuple[str, int], list[Sent]] = defaultdict(list)
        for sent in self.visible():
            by_queue[sent.topic, sent.queue_id].append(sent)
        for (topic, queue_id), expected in by_queue.items():
            assert self.store.min_offset(topic, queue_id) == expected[0].queue_offset, (
                topic,
                queue_id,
                self.store.min_offset(topic, queue_id),
                expected[0],
                self.store.log_min_offset,
            )
            assert self.store.max_offset(topic, queue_id) == expected[-1].queue_offset + 1, (
                topic,
                queue_id,
                self.store.max_offset(topic, queue_id),
                expected[-1],
                self.store.report,
            )
            found = self.read_queue(topic, queue_id, expected[0].queue_offset)
            assert found == [(sent.queue_offset, sent.body) for sent in expected]

    def read_queue(self, topic: str, queue_id: int, offset: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while True:
            result = self.store.get(topic, queue_id, offset, 1000)
            if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
                return found
            assert result.status is GetStatus.FOUND
            for view in result.records:
                record, _ = decode_record(view)
                found.append((record.queue_offset, record.body))
            offset = result.next_offset

    @precondition(lambda self: any(sent.key for sent in self.sent))
    @rule(data=st.data())
    def query(self, data: st.DataObject) -> None:
        with_key = [sent for sent in self.visible() if sent.key]
        if with_key:
            sent = data.draw(st.sampled_from(with_key))
            result = self.store.query(sent.topic, sent.key, 64)
            bodies = [decode_record(view)[0].body for view in result.records]
            assert sent.body in bodies

    @invariant()
    def log_holds_what_was_sent(self) -> None:
        end = self.store.log_max_offset
        if self.sent and end != self.sent[-1].end_offset:
            # A filler may remain although the records after it are lost.
            assert end == -(-self.sent[-1].end_offset // SEGMENT_BYTES) * SEGMENT_BYTES
        for sent in self.sent[-3:]:
            view = self.store.log.read(sent.physical_offset, sent.end_offset - sent.physical_offset)
            assert view is not None
            assert decode_record(view)[0].body == sent.body
        for sent in self.visible()[-3:]:
            view = self.store.lookup(sent.physical_offset)
            assert view is not None
            assert decode_record(view)[0].body == sent.body


class SyncStoreModel(StoreModel):
    flush_mode = FlushMode.SYNC


_SETTINGS = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
StoreModel.TestCase.settings = _SETTINGS
SyncStoreModel.TestCase.settings = _SETTINGS
TestStoreModel = StoreModel.TestCase
TestSyncStoreModel = pytest.mark.slow(SyncStoreModel.TestCase)
