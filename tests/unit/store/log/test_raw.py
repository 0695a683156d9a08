"""Copying the log of another store: pieces that end anywhere, damage, queues that restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goddard.store.errors import StoreCorruptError
from goddard.store.store import MessageStore
from tests.support.store import SmallStore, prepared


def put_some(store: MessageStore, count: int, size: int = 200) -> None:
    for number in range(count):
        store.put(prepared(queue_id=number % 3, body=b"%d" % number * size, keys=f"k{number}"))


def pieces(store: MessageStore, start: int, size: int) -> list[bytes]:
    """The log from an offset on in pieces, none of which crosses a segment."""
    found: list[bytes] = []
    while view := store.read_log(start, size):
        found.append(bytes(view))
        start += len(view)
    return found


def log_bytes(store: MessageStore) -> bytes:
    return b"".join(pieces(store, store.log_min_offset, 1 << 20))


@pytest.mark.parametrize("size", [7, 100, 3_001, 1 << 20])
def test_pieces_of_any_size_make_the_same_log_and_queues(tmp_path: Path, size: int) -> None:
    sizes: dict[str, Any] = {"segment_bytes": 65_536, "index_entries": 4_000}
    source = SmallStore(tmp_path / "a", **sizes)
    with source as master:
        put_some(master, 600)
        assert len(master.log.segments) > 1
        with SmallStore(tmp_path / "b", **sizes) as slave:
            for piece in pieces(master, 0, size):
                slave.append_raw(piece)
            assert log_bytes(slave) == log_bytes(master)
            assert [slave.max_offset("TopicA", queue_id) for queue_id in range(3)] == [200] * 3
            found = slave.query("TopicA", "k599", 8).records
            assert found == master.query("TopicA", "k599", 8).records != []
            assert slave.log.last_store_timestamp_ms == master.log.last_store_timestamp_ms
        with SmallStore(tmp_path / "b", **sizes) as slave:
            assert slave.report.findings == []
            assert slave.put(prepared(queue_id=1)).queue_offset == 200


def test_half_a_record_is_cut_when_asked(tmp_path: Path) -> None:
    with SmallStore(tmp_path / "a") as master, SmallStore(tmp_path / "b") as slave:
        put_some(master, 10)
        whole = bytes(master.read_log(0, 8192) or b"")
        slave.append_raw(whole[:-3])
        last = slave.max_offset("TopicA", 2)
        slave.drop_incomplete()
        assert slave.log_max_offset < len(whole) - 3
        assert slave.flushed_offset <= slave.log_max_offset
        slave.append_raw(whole[slave.log_max_offset :])
        assert log_bytes(slave) == whole
        assert last == 3
        slave.drop_incomplete()
        assert log_bytes(slave) == whole


def test_a_filler_at_the_end_is_not_cut(tmp_path: Path) -> None:
    with SmallStore(tmp_path / "a") as master, SmallStore(tmp_path / "b") as slave:
        put_some(master, 40)
        first, second = pieces(master, 0, 8192)[:2]
        slave.append_raw(first)
        slave.drop_incomplete()
        assert slave.log_max_offset == len(first) == 8192
        slave.append_raw(second[:5])
        slave.drop_incomplete()
        assert slave.log_max_offset == 8192


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(lambda data: data[:88] + b"!" + data[89:], id="a body"),
        pytest.param(lambda data: data[:4] + b"\0\0\0\0" + data[8:], id="a magic"),
        pytest.param(lambda data: b"\0\0\0\7" + data[4:], id="a size"),
        pytest.param(lambda data: b"\0\xff\0\0" + data[4:], id="a size beyond the segment"),
        pytest.param(lambda data: b"\0\0\1\0\xcb\xd4\x31\x94" + data[8:], id="a filler elsewhere"),
    ],
)
@pytest.mark.parametrize("before", [0, 90], ids=["in a few", "in bulk"])
def test_what_is_no_record_is_not_kept(
    tmp_path: Path, damaged: Callable[[bytes], bytes], before: int
) -> None:
    sizes: dict[str, Any] = {"segment_bytes": 65_536, "index_entries": 4_000}
    with (
        SmallStore(tmp_path / "a", **sizes) as master,
        SmallStore(tmp_path / "b", **sizes) as slave,
    ):
        put_some(master, before)
        good = master.log_max_offset
        put_some(master, 3)
        whole = bytes(master.read_log(0, 65_536) or b"")
        bad = whole[:good] + damaged(whole[good:])
        with pytest.raises(StoreCorruptError, match="are no record"):
            slave.append_raw(bad)
        assert slave.log_max_offset == good
        assert log_bytes(slave) == whole[:good]
        slave.append_raw(whole[good:])
        assert log_bytes(slave) == whole
        assert slave.max_offset("TopicA", 0) == master.max_offset("TopicA", 0)


def test_a_queue_begins_again_when_its_topic_was_deleted_and_created_again(tmp_path: Path) -> None:
    with SmallStore(tmp_path / "a") as master, SmallStore(tmp_path / "b") as slave:
        put_some(master, 6)
        master.delete_topic("TopicA")
        master.put(prepared(queue_id=1, body=b"new"))
        master.put(prepared(queue_id=1, body=b"newer"))
        slave.append_raw(bytes(master.read_log(0, 8192) or b""))
        assert slave.max_offset("TopicA", 1) == 2
        (record,) = slave.get("TopicA", 1, 0, 1).records
        assert b"new" in bytes(record)
        assert slave.max_offset("TopicA", 0) == 2, "nobody has written to it since"
        slave.tick()
    with SmallStore(tmp_path / "b") as slave:
        assert slave.max_offset("TopicA", 1) == 2


def test_a_log_can_begin_at_a_later_segment(tmp_path: Path) -> None:
    with SmallStore(tmp_path / "a") as master:
        put_some(master, 40)
        with SmallStore(tmp_path / "b") as slave:
            slave.begin_at(8192)
            assert slave.flushed_offset == slave.log_min_offset == slave.log_max_offset == 8192
            for piece in pieces(master, 8192, 3000):
                slave.append_raw(piece)
            assert slave.min_offset("TopicA", 0) > 0
            assert slave.max_offset("TopicA", 0) == master.max_offset("TopicA", 0)
        with SmallStore(tmp_path / "b") as slave:
            assert slave.report.findings == []
            assert slave.log_min_offset == 8192
            assert log_bytes(slave) == log_bytes(master)[8192:]
