"""Stores that RocketMQ 4.9.4 and 5.4.0 wrote: ours must read exactly what Java read."""

import gzip
import hashlib
import json
import tarfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.compression import decompress
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import SysFlag, decode_properties
from goddard.protocol.record import Record, decode_record
from goddard.store.check.inspect import StoreView
from goddard.store.check.repair import guess_config
from goddard.store.check.verify import verify
from goddard.store.config import StoreConfig
from goddard.store.log.reading import GetStatus
from goddard.store.queues.queue import Boundary
from goddard.store.store import MessageStore
from goddard.store.tables import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicTable,
)

DATA = Path(__file__).parent / "data" / "store"
NAMES = ("clean-5.4.0", "clean-4.9.4", "kill9-5.4.0")
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@dataclass
class Golden:
    """A store that Java wrote, unpacked, and the messages that Java's client read from it."""

    name: str
    root: Path
    manifest: dict[str, Any]

    def open(self) -> MessageStore:
        store = MessageStore(golden_config(self.root))
        store.open()
        return store


def golden_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        segment_bytes=1_048_576,
        queue_file_bytes=6_000,
        index_slots=1_000,
        index_entries=2_000,
        reserved_hours=720,
    )


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    name = str(request.param)
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    manifest = json.loads(gzip.decompress((DATA / f"{name}.manifest.json.gz").read_bytes()))
    return Golden(name, tmp_path / "store", manifest)


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """Every message of a queue, pulled as a consumer would."""
    records: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32)
        assert result.status is GetStatus.FOUND
        for raw, queue_offset in zip(result.records, result.queue_offsets, strict=True):
            record, _ = decode_record(raw)
            assert record.queue_offset == queue_offset
            records.append(record)
        assert result.next_offset > offset
        offset = result.next_offset
    return records


def described(record: Record, size: int, server: str) -> dict[str, Any]:
    """A record with the names of the manifest."""
    properties = decode_properties(record.properties)
    body = decompress(record.body, record.sys_flag, max_bytes=16 * 1024 * 1024)
    message_id = offset_message_id(record.store_host, record.physical_offset)
    sys_flag = record.sys_flag
    if server.startswith("5."):
        sys_flag &= ~int(SysFlag.COMPRESSED)  # Java's client clears it after decompressing
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": size,
        "msgId": properties.get("UNIQ_KEY", message_id),
        "offsetMsgId": message_id,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "bodySha1": hashlib.sha1(body).hexdigest(),
        "bodyLength": len(body),
        "storeTimestamp": record.store_timestamp_ms,
        "bornTimestamp": record.born_timestamp_ms,
        "sysFlag": sys_flag,
        "flag": record.flag,
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": properties,
    }


def test_every_message_is_as_java_read_it(golden: Golden) -> None:
    expected = {message["physicalOffset"]: message for message in golden.manifest["messages"]}
    store = golden.open()
    try:
        assert store.report.findings == []
        found = {}
        for queue in store.queues:
            for record in read_queue(store, queue.topic, queue.queue_id):
                view = store.lookup(record.physical_offset)
                assert view is not None
                found[record.physical_offset] = described(
                    record, len(view), golden.manifest["server"]
                )
    finally:
        store.close()
    # A 4.9.4 broker does not answer pulls of its op topic, so Java's list lacks those records.
    unlisted = [each for each in found.values() if each["topic"] == OP_TOPIC]
    if golden.name == "clean-4.9.4":
        assert len(unlisted) == 22
        found = {offset: each for offset, each in found.items() if each["topic"] != OP_TOPIC}
    assert found.keys() == expected.keys()
    for offset, message in expected.items():
        assert found[offset] == message
    assert len(found) == golden.manifest["messageCount"]


def test_queue_bounds(golden: Golden) -> None:
    store = golden.open()
    try:
        for queue in golden.manifest["queues"]:
            where = queue["topic"], queue["queueId"]
            bounds = store.min_offset(*where), store.max_offset(*where)
            assert bounds == (queue["minOffset"], queue["maxOffset"]), where
        listed = {(queue["topic"], queue["queueId"]) for queue in golden.manifest["queues"]}
        assert {(queue.topic, queue.queue_id) for queue in store.queues} <= listed
    finally:
        store.close()


def test_every_key_finds_its_messages(golden: Golden) -> None:
    by_key: dict[tuple[str, str], set[int]] = defaultdict(set)
    for message in golden.manifest["messages"]:
        properties = message["properties"]
        keys = [*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY", "")]
        for key in filter(None, keys):
            by_key[message["topic"], key].add(message["physicalOffset"])
    assert len(by_key) > 1000
    store = golden.open()
    try:
        for (topic, key), expected in by_key.items():
            records = [decode_record(raw)[0] for raw in store.query(topic, key, 64).records]
            # An answer has at most the 64 newest. Keys may share a hash, so compare them.
            found = {each.physical_offset for each in records if has_key(each, topic, key)}
            if len(records) < 64:
                assert found == expected, (topic, key)
            else:
                assert found <= expected, (topic, key)
                assert max(expected) in found
    finally:
        store.close()


def has_key(record: Record, topic: str, key: str) -> bool:
    properties = decode_properties(record.properties)
    keys = [*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY", "")]
    return record.topic == topic and key in keys


def test_messages_are_found_by_time(golden: Golden) -> None:
    times: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for message in golden.manifest["messages"]:
        where = message["topic"], message["queueId"]
        times[where].append((message["queueOffset"], message["storeTimestamp"]))
    store = golden.open()
    try:
        for (topic, queue_id), messages in times.items():
            for offset, stored in messages[:: max(len(messages) // 8, 1)]:
                lower = min(other for other, time in messages if time >= stored)
                upper = max(other for other, time in messages if time <= stored)
                assert lower <= offset <= upper
                assert store.offset_by_time(topic, queue_id, stored) == lower
                assert store.offset_by_time(topic, queue_id, stored, Boundary.UPPER) == upper
    finally:
        store.close()


def test_group_and_delay_offsets(golden: Golden) -> None:
    config = golden.root / "config"
    offsets = ConsumerOffsetTable(config)
    offsets.load()
    listed = {
        (group, topic, queue_id): offset
        for group, topic, queues in offsets.items()
        for queue_id, offset in queues.items()
    }
    assert listed == {
        (each["group"], each["topic"], each["queueId"]): each["offset"]
        for each in golden.manifest["groupOffsets"]
    }
    delays = DelayOffsetTable(config)
    delays.load()
    expected = {int(level): offset for level, offset in golden.manifest["delayOffsets"].items()}
    assert delays.offsets == expected


def test_topics_groups_and_filters(golden: Golden) -> None:
    config = golden.root / "config"
    topics, groups, filters = (
        TopicTable(config),
        SubscriptionGroupTable(config),
        ConsumerFilterTable(config),
    )
    for table in (topics, groups, filters):
        table.load()
    topic = topics.get("TopicA")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (4, 4, 6)
    assert topics.data_version.counter > 0
    group = groups.get("GroupRetry")
    assert group is not None
    assert group.retry_queue_nums == 1
    sql = filters.get("TopicA", "GroupSql")
    assert sql is not None
    assert sql.expression == "color = 'red' AND TAGS IS NOT NULL"
    assert sql.is_dead


def test_java_stores_verify_clean_before_and_after_ours(golden: Golden) -> None:
    view = StoreView(golden.root)
    before = verify(view)
    assert before.damages == []
    golden.open().close()
    after = verify(StoreView(golden.root))
    assert after.damages == []
    assert (after.records, after.queue_entries) == (before.records, before.queue_entries)
    assert not after.is_unclean


def test_sizes_are_read_from_the_files(golden: Golden) -> None:
    guessed, true = guess_config(StoreView(golden.root)), golden_config(golden.root)
    for name in ("segment_bytes", "queue_file_bytes", "index_slots", "index_entries"):
        assert getattr(guessed, name) == getattr(true, name)
