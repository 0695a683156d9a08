"""Appending to and reading the commit log, by its bytes."""

from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V2,
    Host,
    Record,
    decode_record,
    encode_record,
)
from goddard.store.errors import MessageIllegalError
from goddard.store.log.records import PreparedRecord, RequestFields, is_topic_name, prepare_record
from tests.support.store import HOST, SmallStore, prepared

V6 = Host.parse("[2001:db8::1]:9000")


@pytest.mark.parametrize(
    "topic", ["T", "x" * 127, "x" * 128, "%RETRY%" + "y" * 200, "rmq_sys_主题"]
)
@pytest.mark.parametrize("born", [HOST, V6])
@pytest.mark.parametrize("host", [HOST, V6])
@pytest.mark.parametrize("body", [b"", b"hello"])
def test_records_are_what_the_codec_writes(
    tmp_path: Path, topic: str, born: Host, host: Host, body: bytes
) -> None:
    small = SmallStore(tmp_path)
    with small as store:
        store.put(prepared(topic, 3))
        entry = store.put(
            prepare_record(
                topic=topic,
                queue_id=3,
                body=body,
                properties=b"TAGS\x01a\x02",
                born_timestamp_ms=1_700_000_000_123,
                born_host=born,
                store_host=host,
                flag=7,
                sys_flag=0x108,
                reconsume_times=2,
                prepared_transaction_offset=99,
            )
        )
        view = store.lookup(entry.physical_offset)
        assert view is not None
        expected = encode_record(
            Record(
                topic=topic,
                queue_id=3,
                queue_offset=1,
                physical_offset=entry.physical_offset,
                store_timestamp_ms=small.clock.now_ms(),
                store_host=host,
                born_timestamp_ms=1_700_000_000_123,
                born_host=born,
                body=body,
                properties=b"TAGS\x01a\x02",
                flag=7,
                sys_flag=0x108,
                reconsume_times=2,
                prepared_transaction_offset=99,
            )
        )
        assert bytes(view) == expected
        assert entry.size == len(expected)
        assert entry.queue_offset == 1


def test_prepared_and_rolled_back_records_have_no_queue_entry(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared(body=b"plain"))
        for sys_flag in (0x4, 0xC):
            entry = store.put(prepared(sys_flag=sys_flag))
            assert entry.queue_offset == 0
        assert store.put(prepared(sys_flag=0x8, body=b"commit")).queue_offset == 1
        assert store.max_offset("TopicA", 0) == 2


def test_a_record_that_does_not_fit_starts_the_next_segment(tmp_path: Path) -> None:
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        first = store.put(prepared(body=b"a" * 500))
        second = store.put(prepared(body=b"b" * 500))
        assert second.physical_offset == 1024
        filler = bytes((tmp_path / "commitlog" / ("0" * 20)).read_bytes()[first.size :][:8])
        assert filler == (1024 - first.size).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
        assert [path.name for path in sorted((tmp_path / "commitlog").iterdir())] == [
            f"{offset:020d}" for offset in (0, 1024, 2048)
        ], "one segment is made ahead"
        # Across the end of a segment, as replication reads it.
        both = store.log.read(0, 1024 + 8)
        assert both is not None
        assert bytes(both[1024:1032]) == bytes(store.log.read(1024, 8) or b"")
    assert len(list((tmp_path / "commitlog").iterdir())) == 2, "a clean stop leaves no empty one"


def test_eight_bytes_are_reserved_for_the_filler(tmp_path: Path) -> None:
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        overhead = prepared(body=b"").size
        assert store.put(prepared(body=b"x" * (1024 - overhead - 8))).physical_offset == 0
        assert store.put(prepared(body=b"x" * (1024 - overhead - 8))).physical_offset == 1024
        with pytest.raises(MessageIllegalError):
            store.put(prepared(body=b"x" * (1024 - overhead - 7)))


def test_a_batch_is_never_split(tmp_path: Path) -> None:
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        store.put(prepared(body=b"a" * 400))
        batch = store.put_batch([prepared(body=b"b" * 100) for _ in range(3)])
        assert [entry.physical_offset // 1024 for entry in batch] == [1, 1, 1]
        assert [entry.queue_offset for entry in batch] == [1, 2, 3]
        end = store.log_max_offset
        with pytest.raises(MessageIllegalError):
            store.put_batch([prepared(body=b"c" * 100) for _ in range(6)])
        assert store.log_max_offset == end
        many = store.put_many([prepared(body=b"c" * 100) for _ in range(6)])
        assert len({entry.physical_offset // 1024 for entry in many}) > 1


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": ""},
        {"topic": "x" * 256},
        {"topic": "a/b"},
        {"topic": ".."},
        {"topic": "nul\0"},
        {"queue_id": -1},
        {"queue_id": 1 << 20},
        {"properties": b"x" * 32768},
        {"flag": 1 << 40},
        {"born_timestamp_ms": 1 << 70},
        {"reconsume_times": -(1 << 40)},
    ],
)
def test_limits_are_checked_before_anything_is_written(fields: dict[str, Any]) -> None:
    with pytest.raises(MessageIllegalError):
        prepared(**fields)


def test_an_illegal_record_fails_only_its_group(tmp_path: Path) -> None:
    with SmallStore(tmp_path, max_message_bytes=200, segment_bytes=1 << 20) as store:
        store.put(prepared(body=b"first"))
        with pytest.raises(MessageIllegalError, match="longer"):
            store.put_many([prepared(), prepared(body=b"x" * 70_000)])
        assert store.put(prepared()).queue_offset == 1


class Unencodable(PreparedRecord):
    """A record that fails only when it is placed."""

    __slots__ = ()

    def place(self, *_: object) -> None:
        raise ZeroDivisionError("a defect")


def test_a_failure_within_a_group_skips_no_offset(tmp_path: Path) -> None:
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        store.put(prepared(body=b"first"))
        end = store.log_max_offset
        fields = RequestFields(
            topic="TopicA", queue_id=0, born_timestamp_ms=0, born_host=HOST, store_host=HOST
        )
        bad = Unencodable(fields, b"", b"")
        with pytest.raises(ZeroDivisionError):
            store.put_many([*(prepared(body=b"x" * 200) for _ in range(8)), bad, prepared()])
        assert store.log_max_offset == end
        entry = store.put(prepared(body=b"second"))
        assert (entry.queue_offset, entry.physical_offset) == (1, end)
    with SmallStore(tmp_path, segment_bytes=1024) as store:
        assert not store.report.findings
        assert store.max_offset("TopicA", 0) == 2


def test_a_record_may_be_in_a_group_twice(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        record = prepared(body=b"again")
        entries = store.put_many([record, record])
        views = [store.lookup(entry.physical_offset) for entry in entries]
        assert [decode_record(view)[0].queue_offset for view in views if view] == [0, 1]


def test_a_record_with_a_wrong_size_is_not_written(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared())
        end = store.log_max_offset
        liar = prepared(body=b"long")
        liar.size += 1
        with pytest.raises(ValueError, match="say that they have"):
            store.put_many([prepared(), liar])
        assert store.log_max_offset == end
        assert store.put(prepared()).queue_offset == 1
    with SmallStore(tmp_path) as store:
        assert not store.report.findings


def test_v2_records_only_for_long_topics(tmp_path: Path) -> None:
    with SmallStore(tmp_path) as store:
        view = store.lookup(store.put(prepared("x" * 128)).physical_offset)
        assert view is not None
        assert int.from_bytes(view[4:8], "big") == MAGIC_V2


def test_views_stay_readable_when_their_segment_is_deleted(tmp_path: Path) -> None:
    small = SmallStore(tmp_path, segment_bytes=1024, disk_high_ratio=0.001)
    with small as store:
        for i in range(10):
            store.put(prepared(body=b"%d" % i * 600))
        held = store.get("TopicA", 0, 0, 1).records[0]
        store.flush()
        small.clock.jump(400 * 86_400_000 * 10)
        assert store.clean(is_manual=True) == 9
        assert not (tmp_path / "commitlog" / ("0" * 20)).exists()
        assert decode_record(held)[0].body == b"0" * 600
        assert store.lookup(0) is None
        assert store.log_min_offset == 9 * 1024


@pytest.mark.parametrize("offset", [-1, 1, 139, 10_000, 1 << 60])
def test_lookup_where_no_record_begins(tmp_path: Path, offset: int) -> None:
    with SmallStore(tmp_path) as store:
        store.put(prepared())
        assert store.lookup(offset) is None


@pytest.mark.parametrize(
    ("topic", "is_legal"),
    [
        ("Orders", True),
        ("%RETRY%G+T", True),
        ("rmq_sys_REVIVE_LOG_my.cluster", True),
        ("my.cluster_REPLY_TOPIC", True),
        ("Or+ers", False),
        ("Or.ers", False),
        ("rmq_sys_a/b", False),
        ("Or\0ers", False),
        ("", False),
    ],
)
def test_legal_topic_names(topic: str, is_legal: bool) -> None:
    assert is_topic_name(topic) is is_legal
