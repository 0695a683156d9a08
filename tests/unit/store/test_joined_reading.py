"""Reads that join adjacent records into one slice return the same bytes as reads that do not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.protocol.record import Host
from goddard.store.config import StoreConfig
from goddard.store.log.reading import GetResult, GetStatus
from goddard.store.log.records import PreparedRecord
from goddard.store.store import MessageStore

HOST = Host.parse("127.0.0.1:10911")


def record(queue_id: int, size: int) -> PreparedRecord:
    return PreparedRecord(
        topic="T",
        queue_id=queue_id,
        body=bytes([queue_id]) * size,
        properties=b"",
        born_timestamp_ms=1,
        born_host=HOST,
        store_host=HOST,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    config = StoreConfig(root=tmp_path, segment_bytes=4096, queue_file_bytes=400)
    with MessageStore(config) as opened:
        yield opened


def body(result: GetResult) -> bytes:
    return b"".join(result.records)


@pytest.mark.parametrize("max_count", [1, 2, 7, 32])
@pytest.mark.parametrize("max_bytes", [None, 0, 500, 5000])
def test_joined_slices_hold_the_same_bytes(
    store: MessageStore, max_count: int, max_bytes: int | None
) -> None:
    for number in range(120):
        # Runs of one queue, single messages, and many segments and queue files.
        store.put(record(0 if number % 5 else 1, number % 90))
    offset = 0
    while offset < store.max_offset("T", 0):
        plain = store.get("T", 0, offset, max_count, max_bytes=max_bytes)
        joined = store.get("T", 0, offset, max_count, max_bytes=max_bytes, is_joined=True)
        assert joined.queue_offsets == plain.queue_offsets[: len(joined.queue_offsets)]
        assert joined.next_offset == offset + len(joined.queue_offsets) > offset
        assert body(plain).startswith(body(joined))
        assert joined.total_bytes == len(body(joined))
        assert joined.status is GetStatus.FOUND
        assert len(joined.queue_offsets) == len(plain.queue_offsets)
        offset = joined.next_offset


def test_adjacent_records_are_one_slice(store: MessageStore) -> None:
    store.put_many([record(0, 10) for _ in range(8)])
    result = store.get("T", 0, 0, 8, is_joined=True)
    assert len(result.records) == 1
    assert len(result.queue_offsets) == 8


def test_records_of_a_deleted_segment_are_skipped(store: MessageStore) -> None:
    store.put_many([record(0, 1000) for _ in range(12)])
    gone = store.log.forget_first(1)
    result = store.get("T", 0, 0, 32, is_joined=True)
    plain = store.get("T", 0, 0, 32)
    assert body(result) == body(plain)
    assert result.queue_offsets == plain.queue_offsets != []
    assert result.next_offset == plain.next_offset
    for segment in gone:
        segment.close()


def test_a_slice_stays_readable_after_its_segment_is_deleted(store: MessageStore) -> None:
    store.put_many([record(0, 1000) for _ in range(12)])
    result = store.get("T", 0, 0, 3, is_joined=True)
    before = body(result)
    for segment in store.log.forget_first(2):
        segment.delete()
    assert body(result) == before


class EveryThird:
    """A filter by queue entry; ``matches_record`` must not be called."""

    def __init__(self) -> None:
        self._asked = 0

    def matches_code(self, tags_code: int) -> bool:
        self._asked += 1
        return self._asked % 3 == 0

    def matches_record(self, record: memoryview) -> bool:
        raise AssertionError("asked for a record")


def test_filters_see_only_queue_entries(store: MessageStore) -> None:
    store.put_many([record(0, number) for number in range(30)])
    result = store.get("T", 0, 0, 5, message_filter=EveryThird(), is_joined=True)
    assert result.queue_offsets == [2, 5, 8, 11, 14]
    assert result.next_offset == 15
    singles = [store.get("T", 0, offset, 1).records[0] for offset in result.queue_offsets]
    assert body(result) == b"".join(singles)
    few = store.get("T", 0, 0, 5, max_bytes=300, message_filter=EveryThird(), is_joined=True)
    assert few.queue_offsets == [2, 5, 8]
