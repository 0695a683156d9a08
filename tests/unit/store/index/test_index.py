"""The key index: Java's rules, applied entry by entry, and the repair."""

import shutil
import struct
import threading
from pathlib import Path

import pytest

from goddard.protocol.hashing import index_hash
from goddard.protocol.record import decode_record
from goddard.store.errors import QueryCancelledError, StoreLayoutError
from goddard.store.store import MessageStore
from tests.support.store import SmallStore, prepared

SLOTS = 16
ENTRIES = 40


class OneByOne:
    """An index file, filled key by key as Java does."""

    def __init__(self, before: "OneByOne | None" = None) -> None:
        self.slots = [0] * SLOTS
        self.entries: list[tuple[int, int, int, int]] = []
        self.begin_time: int = before.end_time if before else 0
        self.begin_offset: int = before.end_offset if before else 0
        self.end_time: int = self.begin_time
        self.end_offset: int = self.begin_offset
        self.used = 0

    def put(self, key: str, offset: int, time_ms: int) -> bool:
        count = len(self.entries) + 1
        if count >= ENTRIES:
            return False
        key_hash = index_hash(key)
        previous = self.slots[key_hash % SLOTS]
        seconds = max((time_ms - self.begin_time) // 1000, 0) if self.begin_time > 0 else 0
        self.entries.append((key_hash, offset, seconds, previous))
        self.slots[key_hash % SLOTS] = count
        if count <= 1:
            self.begin_offset, self.begin_time = offset, time_ms
        self.used += previous == 0
        self.end_offset, self.end_time = offset, time_ms
        return True

    def to_bytes(self) -> bytes:
        head = struct.pack(
            ">4q2i",
            self.begin_time,
            self.end_time,
            self.begin_offset,
            self.end_offset,
            self.used,
            len(self.entries) + 1,
        )
        body = b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        slots = struct.pack(f">{SLOTS}i", *self.slots)
        return (head + slots + bytes(20) + body).ljust(40 + SLOTS * 4 + ENTRIES * 20, b"\0")


def fill(store: MessageStore, small: SmallStore, count: int) -> list[OneByOne]:
    """Append messages with keys in groups of uneven size; enter the same keys one by one."""
    model = [OneByOne()]
    for i in range(count):
        small.clock.advance(700)
        unique, keys, tag = f"U{i}", f"a{i % 7} b{i}", f"tag{i % 3}"
        entry = store.put(prepared(unique_key=unique, keys=keys, tags=tag))
        for key in (unique, *keys.split(), f"T#{tag}"):
            full_key = f"TopicA#{key}"
            if not model[-1].put(full_key, entry.physical_offset, entry.store_timestamp_ms):
                model.append(OneByOne(model[-1]))
                model[-1].put(full_key, entry.physical_offset, entry.store_timestamp_ms)
        if i % 11 == 0:
            store.tick()
    return model


def index_bytes(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def test_files_have_javas_bytes(tmp_path: Path) -> None:
    small = SmallStore(tmp_path)
    with small as store:
        model = fill(store, small, 45)
    assert index_bytes(tmp_path) == [file.to_bytes() for file in model]
    names = [path.name for path in sorted((tmp_path / "index").iterdir())]
    assert all(len(name) == 17 and name.isdigit() for name in names)


def test_queries(tmp_path: Path) -> None:
    small = SmallStore(tmp_path)
    start = small.clock.now_ms()

    def found(store: MessageStore, key: str, *args: int) -> list[int]:
        views = store.query("TopicA", key, *args).records
        return [decode_record(view)[0].queue_offset for view in views]

    with small as store:
        fill(store, small, 45)
        assert found(store, "U7", 32) == [7]
        assert found(store, "b44", 32) == [44], "entries in memory count"
        assert found(store, "a3", 32) == [3, 10, 17, 24, 31, 38]
        assert found(store, "a3", 2) == [31, 38], "the newest, oldest first"
        assert found(store, "a3", 32, start + 7_000, start + 18_000) == [10, 17, 24]
        assert found(store, "T#tag1", 64) == list(range(1, 45, 3))
        assert found(store, "nothing", 32) == []
        result = store.query("TopicA", "U7", 32)
        assert (
            result.index_physical_offset
            == store.queues.get_or_create("TopicA", 0).entries(44, 1).__next__().physical_offset
        )
        assert store.query("TopicB", "U7", 32).records == []
    with SmallStore(tmp_path) as store:
        assert found(store, "a3", 32) == [3, 10, 17, 24, 31, 38]


def test_a_slot_with_thousands_of_entries_is_read_to_its_end(tmp_path: Path) -> None:
    with SmallStore(tmp_path, index_slots=1, index_entries=9_000, segment_bytes=1 << 20) as store:
        store.put(prepared(keys="first"))
        store.put_many([prepared(keys=f"k{number}") for number in range(8_000)])
        (record,) = store.query("TopicA", "first", 32).records
        assert decode_record(record)[0].queue_offset == 0
        assert store.query("TopicA", "nothing", 32).records == []


def test_a_query_does_not_hold_the_lock_while_it_reads_entries(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared(keys="a"))
        store.index.write_pending()
        completed: list[bool] = []

        def append() -> None:
            store.put(prepared(keys="a"))
            store.index.write_pending()

        def append_meanwhile() -> bool:
            if not completed:
                thread = threading.Thread(target=append, daemon=True)
                thread.start()
                thread.join(5)
                completed.append(not thread.is_alive())
            return False

        records = store.query("TopicA", "a", 32, is_cancelled=append_meanwhile).records
        assert completed == [True]
        assert len(records) == 1, "what was added meanwhile is not part of the query"
        assert len(store.query("TopicA", "a", 32).records) == 2


def test_a_cancelled_query_ends(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared(keys="a"))
        with pytest.raises(QueryCancelledError):
            store.query("TopicA", "a", 32, is_cancelled=lambda: True)


def test_a_file_that_is_deleted_during_a_query_gives_nothing(tmp_path: Path) -> None:
    with SmallStore(tmp_path, index_entries=4) as store:
        for _ in range(6):
            store.put(prepared(keys="a"))
        store.index.write_pending()
        deleted: list[int] = []

        def delete_meanwhile() -> bool:
            if not deleted:
                deleted.append(store.index.delete_before(store.log_max_offset))
            return False

        records = store.query("TopicA", "a", 32, is_cancelled=delete_meanwhile).records
        assert deleted == [1]
        assert len(records) == 3


def test_tags_are_not_indexed_when_disabled(tmp_path: Path) -> None:
    with SmallStore(tmp_path, is_tag_indexed=False) as store:
        store.put(prepared(tags="x", keys="k"))
        assert store.query("TopicA", "T#x", 8).records == []
        assert len(store.query("TopicA", "k", 8).records) == 1


def test_rolled_back_records_are_not_indexed(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared(sys_flag=0xC, keys="rolled"))
        store.put(prepared(sys_flag=0x4, keys="half"))
        assert store.query("TopicA", "rolled", 8).records == []
        assert len(store.query("TopicA", "half", 8).records) == 1


@pytest.mark.parametrize("damage", ["slots", "links", "header", "entry"])
def test_repair_after_a_crash(tmp_path: Path, damage: str) -> None:
    small = SmallStore(tmp_path)
    small.store.open()
    model = fill(small.store, small, 45)
    small.store.tick()
    small.store.abandon()
    path = max((tmp_path / "index").iterdir())
    content = bytearray(path.read_bytes())
    entries_at = 40 + SLOTS * 4 + 20
    match damage:
        case "slots":
            content[40 : 40 + SLOTS * 4] = b"\x7f" * (SLOTS * 4)
        case "links":
            for number in range(5):
                content[entries_at + number * 20 + 16 : entries_at + number * 20 + 20] = b"\0\0\0\3"
        case "header":
            content[36:40] = (3).to_bytes(4, "big")
        case "entry":
            content[entries_at + 20 : entries_at + 40] = bytes(20)
    path.write_bytes(content)
    with SmallStore(tmp_path) as store:
        for i in range(45):
            assert len(store.query("TopicA", f"U{i}", 8).records) == 1
            assert len(store.query("TopicA", f"b{i}", 8).records) == 1
    if damage in {"slots", "links"}:
        assert index_bytes(tmp_path)[: len(model) - 1] == [m.to_bytes() for m in model][:-1]


def test_files_are_deleted_with_the_log(tmp_path: Path) -> None:
    small = SmallStore(tmp_path, segment_bytes=2048)
    with small as store:
        fill(store, small, 60)
        store.flush()
        small.clock.jump(10 * 365 * 86_400_000)
        before = len(list((tmp_path / "index").iterdir()))
        assert store.clean(is_manual=True) >= 2
        assert len(list((tmp_path / "index").iterdir())) < before
        assert store.query("TopicA", "U1", 8).records == []
        assert len(store.query("TopicA", "U59", 8).records) == 1


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared(keys="k"))
    with pytest.raises(StoreLayoutError, match="configuration says"):
        SmallStore(tmp_path, index_slots=17).store.open()


def test_records_dispatched_twice_are_entered_once(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        for number in range(5):
            store.put(prepared(keys=f"k{number}"))
    shutil.rmtree(tmp_path / "consumequeue")
    with SmallStore(tmp_path) as store:
        assert store.report.dispatched == 5
        store.put(prepared(keys="k5"))
        store.index.write_pending()
        assert [file.count for file in store.index.files] == [1 + 6]
