"""Queue entries by their bytes, offsets by time, and the corrections of the first offset."""

import random
from pathlib import Path

import pytest

from goddard.environment.files import SystemFiles
from goddard.protocol.record import decode_record
from goddard.store.config import StoreConfig
from goddard.store.log.reading import GetStatus
from goddard.store.log.records import SCHEDULE_TOPIC
from goddard.store.queues.entry import BLANK_SIZE, ENTRY, QueueEntry, count_valid, count_valid_bulk
from goddard.store.queues.queue import Boundary, ConsumeQueue, QueueFiles
from tests.support.store import SmallStore, prepared


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    return new_queue(tmp_path)


def new_queue(root: Path) -> ConsumeQueue:
    files = SystemFiles()
    return ConsumeQueue(files, QueueFiles(files, 2), root / "T" / "0", "T", 0, 200)


def entries(queue: ConsumeQueue) -> list[QueueEntry]:
    found: list[QueueEntry] = []
    while len(found) < queue.max_offset:
        found += queue.entries(len(found), 100)
    return found


def test_entries_have_javas_bytes(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        entry = store.put(prepared(tags="polygenelubricants", queue_id=2))
        store.put(prepared(tags="TagA", queue_id=2))
        store.put(prepared(queue_id=2))
    data = (tmp_path / "consumequeue" / "TopicA" / "2" / ("0" * 20)).read_bytes()
    assert len(data) == 400
    assert data[:8] == bytes(8)
    assert data[8:12] == entry.size.to_bytes(4, "big")
    # The hash is sign-extended to 64 bits.
    assert data[12:20] == (-2147483648).to_bytes(8, "big", signed=True)
    assert data[32:40] == (2598919).to_bytes(8, "big")
    assert data[52:60] == bytes(8)
    assert not any(data[60:])


def test_a_delayed_message_has_its_delivery_time_as_tag_code(tmp_path: Path) -> None:
    small = SmallStore(tmp_path)
    now = small.clock.now_ms()
    with small as store:
        for level in (1, 3, 99):
            store.put(prepared(SCHEDULE_TOPIC, 0, properties=b"DELAY\x01%d\x02" % level, tags="t"))
        found = [
            entry.tags_code for entry in store.queues.get_or_create(SCHEDULE_TOPIC, 0).entries(0, 9)
        ]
    assert found == [now + 1_000, now + 10_000, now + 7_200_000]
    # Recovery makes the same entry from the log.
    for path in (tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir():
        path.unlink()
    with SmallStore(tmp_path) as store:
        queue = store.queues.get_or_create(SCHEDULE_TOPIC, 0)
        assert [entry.tags_code for entry in queue.entries(0, 9)] == found


def test_entries_of_files_and_memory_are_read_together(tmp_path: Path, queue: ConsumeQueue) -> None:
    expected = []
    for i in range(47):
        assert queue.put(i, 100 * i, 100, i)
        expected.append((100 * i, 100, i))
        if i % 9 == 0:
            queue.write_pending()
        assert entries(queue) == expected
    queue.write_pending()
    assert queue.file_count == 5
    again = new_queue(tmp_path)
    assert again.load(lambda *_: True) is None
    assert entries(again) == expected
    assert again.max_physical_offset == 4700


def test_one_read_takes_entries_of_the_file_and_of_memory(queue: ConsumeQueue) -> None:
    for number in range(5):
        if number == 3:
            queue.write_pending()
        queue.put(number, number * 100, 100, 7)
    assert [entry.physical_offset for entry in queue.entries(1, 3)] == [100, 200, 300]
    assert [entry.physical_offset for entry in queue.entries(1, 99)] == [100, 200, 300, 400]


def test_existing_entries_are_not_added_again(queue: ConsumeQueue) -> None:
    for i in range(5):
        queue.put(i, 100 * i, 100, 0)
    assert queue.put(2, 200, 100, 0)
    assert not queue.put(3, 999, 100, 0), "another record claims the offset"
    assert queue.max_offset == 5


def test_a_queue_whose_first_offset_is_not_zero(tmp_path: Path, queue: ConsumeQueue) -> None:
    assert queue.put(24, 7000, 100, 1)
    queue.write_pending()
    assert (queue.min_offset, queue.max_offset) == (24, 25)
    assert [path.name for path in (tmp_path / "T" / "0").iterdir()] == [f"{400:020d}"]
    assert queue.entry(21) == (0, BLANK_SIZE, 0)
    again = new_queue(tmp_path)
    assert again.load(lambda *_: True) is None
    again.correct_min(0)
    assert (again.min_offset, again.max_offset) == (24, 25)


def test_a_gap_is_filled_with_blank_entries(queue: ConsumeQueue) -> None:
    queue.put(0, 0, 100, 0)
    assert not queue.put(3, 300, 100, 0)
    assert queue.entry(3) == (300, 100, 0)
    assert queue.entry(1) == (0, BLANK_SIZE, 0)
    assert not queue.put(1 << 50, 400, 100, 0), "a damaged offset does not fill the disk"
    assert queue.max_offset == 5


def test_truncation(tmp_path: Path, queue: ConsumeQueue) -> None:
    for i in range(33):
        queue.put(i, 100 * i, 100, 0)
        if i == 30:
            queue.write_pending()
    queue.truncate(3150)
    assert queue.max_offset == 32
    queue.truncate(1200)
    assert queue.max_offset == 12
    assert queue.max_physical_offset == 1200
    queue.clear_stale()
    assert queue.file_count == 2
    for i in range(12, 15):
        assert queue.put(i, 2000 + 10 * i, 10, 0)
    queue.write_pending()
    again = new_queue(tmp_path)
    again.load(lambda *_: True)
    assert entries(again) == entries(queue)
    again.truncate(0)
    assert again.max_offset == 0


def test_first_offset_follows_the_log(queue: ConsumeQueue) -> None:
    for i in range(33):
        queue.put(i, 100 * i, 100, 0)
    queue.write_pending()
    queue.correct_min(0)
    assert queue.min_offset == 0
    assert [path.name for path in queue.forget_before(1250)] == [f"{0:020d}"]
    assert queue.min_offset == 13
    assert len(queue.forget_before(1 << 40)) == 2, "the last file stays, and with it the counter"
    assert (queue.min_offset, queue.max_offset) == (33, 33)


def test_search_by_time(tmp_path: Path) -> None:
    small = SmallStore(tmp_path)
    with small as store:
        start = small.clock.now_ms()
        for step in (0, 1000, 0, 0, 1000):  # times 0, 1000, 1000, 1000, 2000
            small.clock.advance(step)
            store.put(prepared())

        def find(time_ms: int, boundary: Boundary) -> int:
            return store.offset_by_time("TopicA", 0, start + time_ms, boundary)

        lower = [find(t, Boundary.LOWER) for t in (-5, 0, 500, 1000, 1500, 2000, 2001)]
        assert lower == [0, 0, 1, 1, 4, 4, 5]
        upper = [find(t, Boundary.UPPER) for t in (-5, 0, 500, 1000, 1500, 2000, 2001)]
        assert upper == [0, 0, 0, 3, 3, 4, 4]
        assert store.offset_by_time("Nobody", 0, start) == 0
        assert store.message_store_time("TopicA", 0, 4) == start + 2000
        assert store.message_store_time("TopicA", 0, 5) is None
        assert store.earliest_store_time() == store.earliest_store_time("TopicA") == start


class Tags:
    """A filter like those of the broker: by tag code, then by record."""

    def __init__(self, code: int, *, record: bool = True) -> None:
        self._code = code
        self._record = record

    def matches_code(self, tags_code: int) -> bool:
        return tags_code == self._code

    def matches_record(self, record: memoryview) -> bool:
        return self._record


def test_get_statuses(tmp_path: Path) -> None:
    with SmallStore(tmp_path, max_get_memory_count=4) as store:
        for i in range(10):
            store.put(prepared(body=b"%d" % i, tags="TagA" if i % 2 else "TagB"))

        def get(offset: int, count: int = 32, **options: Tags) -> tuple[GetStatus, int, list[int]]:
            result = store.get("TopicA", 0, offset, count, message_filter=options.get("only"))
            assert (result.min_offset, result.max_offset) == (0, 10)
            return result.status, result.next_offset, result.queue_offsets

        assert get(0) == (GetStatus.FOUND, 4, [0, 1, 2, 3])
        assert get(8, 1) == (GetStatus.FOUND, 9, [8])
        assert get(10) == (GetStatus.OFFSET_OVERFLOW_ONE, 10, [])
        assert get(11) == (GetStatus.OFFSET_OVERFLOW_BADLY, 10, [])
        assert get(-1) == (GetStatus.OFFSET_TOO_SMALL, 0, [])
        assert get(0, only=Tags(2598919)) == (GetStatus.FOUND, 8, [1, 3, 5, 7])
        assert get(0, only=Tags(1)) == (GetStatus.NO_MATCHED_MESSAGE, 10, [])
        assert get(0, only=Tags(2598919, record=False)) == (GetStatus.NO_MATCHED_MESSAGE, 10, [])
        assert store.get("Nobody", 0, 5, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        result = store.get("TopicA", 0, 0, 32, max_bytes=250)
        assert len(result.records) == 2
        assert store.get("TopicA", 0, 0, 32, max_bytes=1).queue_offsets == [0], "always one"


def test_records_that_are_neighbours_in_the_log_are_one_piece(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        for number, queue_id in enumerate((0, 0, 1, 0, 0, 0)):
            store.put(prepared(queue_id=queue_id, body=b"body %d" % number))
        result = store.get("TopicA", 0, 0, 32)
        bodies = [decode_record(record)[0].body for record in result.records]
        assert bodies == [b"body 0", b"body 1", b"body 3", b"body 4", b"body 5"]
        first, second = result.pieces
        assert (len(first), len(second)) == (sum(result.sizes[:2]), sum(result.sizes[2:]))
        assert b"".join(result.pieces) == b"".join(result.records)


def test_reads_beyond_memory_return_fewer_messages(tmp_path: Path) -> None:
    with SmallStore(tmp_path, memory_bytes=200) as store:
        for _ in range(20):
            store.put(prepared())
        result = store.get("TopicA", 0, 0, 32)
        assert len(result.records) == 8
        assert result.is_slave_suggested
        assert not store.get("TopicA", 0, 19, 32).is_slave_suggested


def test_config_of_a_broker(tmp_path: Path) -> None:
    config = StoreConfig.from_properties(
        tmp_path,
        {
            "mappedFileSizeCommitLog": "1048576",
            "mappedFileSizeConsumeQueue": "6001",
            "flushDiskType": "SYNC_FLUSH",
            "diskMaxUsedSpaceRatio": "95",
            "diskSpaceCleanForciblyRatio": "96",
            "accessMessageInMemoryMaxRatio": "50",
            "deleteWhen": "04;16",
            "brokerName": "not ours",
        },
    )
    assert config.segment_bytes == 1048576
    assert config.queue_file_bytes == 6020
    assert config.prezero
    ratios = (config.disk_high_ratio, config.disk_force_ratio, config.disk_full_ratio)
    assert ratios == (0.95, 0.96, 0.96)
    assert config.in_memory_bytes > 1 << 24
    assert config.delete_hours() == {4, 16}
    assert len(config.delay_times_ms()) == 18


@pytest.mark.parametrize("seed", range(200))
def test_single_and_bulk_counting_agree(seed: int) -> None:
    chance = random.Random(seed)
    end = chance.choice((0, 0, 1000))
    data = b""
    position = end
    for _ in range(chance.randrange(40)):
        size = chance.choice((1, 99, 5000, BLANK_SIZE))
        data += ENTRY.pack(position if size != BLANK_SIZE else 0, size, chance.getrandbits(62))
        position += 0 if size == BLANK_SIZE else size + chance.choice((0, 0, 7))
        if chance.random() < 0.05:  # not an entry, or out of order
            data += chance.choice(
                (
                    bytes(20),
                    chance.randbytes(20),
                    ENTRY.pack(max(position - 1, 0), 5, 0),
                    ENTRY.pack(-1, 5, 0),
                    ENTRY.pack(1 << 62, BLANK_SIZE - 1, 0),
                    ENTRY.pack((1 << 62) + 1, 5, 0),
                    ENTRY.pack(position, -5, 0),
                )
            )
    assert count_valid(data, end) == count_valid_bulk(data, end)
