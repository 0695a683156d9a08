"""Delayed, transactional and batch messages, with Goddard's and RocketMQ's brokers, without Spark.

The readers interpret the stored form of transactions, compression and tags.
"""

import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from goddard import (
    Admin,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    TransactionListener,
    TransactionProducer,
    TransactionState,
)
from goddard.client.produce.encoding import SendSettings, prepare_batch, send_command
from goddard.errors import ConfigError
from goddard.protocol.bodies import QueueMappingItem, TopicConfig, TopicQueueMappingDetail
from goddard.protocol.codes import ResponseCode
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.spark.options import parse_sink
from goddard.spark.writing.writer import write_batches
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from goddard.testing.wire import ask, query_route
from tests.support.spark_readers import ManualStream, read_numbers, read_rows, write_delayed

_SECONDS = 60


def test_rows_with_a_delay_level_are_delayed(site: Site) -> None:
    topic = site.create_topic("kinds-delay")
    servers = {"nameServers": site.namesrv}
    options = servers | {"subscribe": topic}
    assert write_delayed(servers | {"topic": topic}, [b"1", b"2"], level=1) == 2
    # Brokers store delayed messages in this topic.
    waiting = read_rows(servers | {"subscribe": "SCHEDULE_TOPIC_XXXX"}, ["topic", "body"])
    assert [row["body"] for row in waiting].count(b"1") == 1
    wait_until(lambda: read_numbers(options) == [1, 2], _SECONDS, "both messages are delivered")
    for row in read_rows(options, ["bornTimestamp", "storeTimestamp"]):
        assert (row["storeTimestamp"] - row["bornTimestamp"]).total_seconds() >= 0.9


def test_delayed_and_immediate_rows_in_one_batch(site: Site) -> None:
    topic = site.create_topic("kinds-some")
    options = {"nameServers": site.namesrv, "subscribe": topic}
    levels = [None, 1, 0, 1, 0]
    rows = pa.RecordBatch.from_pydict(
        {
            "body": [b"%d" % number for number in range(5)],
            "delayLevel": pa.array(levels, pa.int8()),
            "shardingKey": ["same"] * 5,
        }
    )
    sink = parse_sink({"nameServers": site.namesrv, "topic": topic})
    assert write_batches(iter([rows]), sink, "q-0") == 5
    wait_until(lambda: read_numbers(options) == list(range(5)), _SECONDS, "all are delivered")
    found = read_rows(options, ["body", "queueId", "queueOffset", "properties"])
    assert len({row["queueId"] for row in found}) == 1
    in_order = sorted(found, key=lambda row: row["queueOffset"])
    immediate = [row["body"] for row in in_order if not levels[int(row["body"])]]
    assert immediate == [b"0", b"2", b"4"]
    for row in found:
        key = dict(row["properties"])["SPARK_ROW"]
        assert key.startswith(f"q-0-{row['body'].decode()}-")


def test_tags_with_equal_hashes_are_distinguished(site: Site) -> None:
    topic = site.create_topic("kinds-tags")
    with Producer("kinds", name_servers=site.namesrv) as producer:
        for number, tag in enumerate(["Aa", "BB", "C"]):
            producer.send(Message(topic, b"%d" % number, tags=tag))
    options = {"nameServers": site.namesrv, "subscribe": topic}
    assert read_numbers(options | {"filter": "Aa"}) == [0]
    assert read_numbers(options | {"filter": "BB || C"}) == [1, 2]


class CommitFirst(TransactionListener):
    def execute(self, message: Message, argument: object) -> TransactionState:
        return TransactionState.COMMIT if message.body == b"1" else TransactionState.ROLLBACK

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


def test_only_committed_transactions_are_read(site: Site) -> None:
    topic = site.create_topic("kinds-transaction")
    group = site.new_group("kinds")
    with TransactionProducer(group, CommitFirst(), name_servers=site.namesrv) as producer:
        for body in (b"1", b"2"):
            producer.send_in_transaction(Message(topic, body))
    options = {"nameServers": site.namesrv, "subscribe": topic}
    wait_until(lambda: read_numbers(options), _SECONDS, "the commit is done")
    (row,) = read_rows(options, ["body", "transaction", "preparedTransactionOffset", "properties"])
    assert (row["body"], row["transaction"]) == (b"1", "commit")
    assert dict(row["properties"])["PGROUP"] == group


@pytest.mark.parametrize("site", [pytest.param("java", marks=pytest.mark.java)], indirect=True)
def test_static_topics_are_refused(site: Site) -> None:
    """Also when a topic becomes static while a stream reads it."""
    (name,) = site.brokers
    topic = site.create_topic("kinds-static", queues=2)
    options = {"nameServers": site.namesrv, "subscribe": topic}
    stream = ManualStream(options | {"startingOffsets": "earliest"})
    assert (read_numbers(options), stream.run_batch(10)) == ([], [])
    open_ended = [QueueMappingItem(bname=name, queue_id=number) for number in range(2)]
    mapping = TopicQueueMappingDetail(
        topic=topic,
        bname=name,
        total_queues=2,
        epoch=int(time.time() * 1000),
        curr_id_map={0: 0, 1: 1},
        hosted_queues={number: [item] for number, item in enumerate(open_ended)},
    )
    config = TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)
    with Admin(name_servers=site.namesrv) as admin:
        admin.create_static_topic(name, config, mapping, force=True)

    def is_refused(read: Callable[[], object]) -> bool:
        try:
            read()
        except ConfigError as error:
            return f"{topic} is a static topic" in str(error)
        return False

    wait_until(lambda: is_refused(lambda: read_numbers(options)), _SECONDS, "reads are refused")
    wait_until(lambda: is_refused(lambda: stream.run_batch(10)), _SECONDS, "the stream ends")


@pytest.mark.parametrize("site", [pytest.param("java", marks=pytest.mark.java)], indirect=True)
def test_inner_batches_are_read(site: Site) -> None:
    """Topics with BatchCQ consume queues, which only RocketMQ's brokers support."""
    (name,) = site.brokers
    topic = site.new_group("kinds-batches")
    with Admin(name_servers=site.namesrv) as admin:
        admin.create_topic(
            topic, broker=name, read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}
        )
    wait_until(lambda: query_route(site.namesrv, topic) is not None, _SECONDS, "its route")
    queue = MessageQueue(topic, name, 0)
    for begin in range(0, 30, 10):
        entries = [
            BatchEntry(b"%d" % number, b"TAGS\x01t\x02", 0) for number in range(begin, begin + 10)
        ]
        batch = prepare_batch(topic, topic, encode_batch(entries), (), wait=True)
        # Like Java's producer: the batch has its own unique id.
        batch = batch._replace(properties=batch.properties + f"UNIQ_KEY\x01{begin:032X}\x02")
        now_ms = int(time.time() * 1000)
        answer = ask(
            site.broker.address, send_command(batch, queue, now_ms, SendSettings(group="kinds"))
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    options = {"nameServers": site.namesrv, "subscribe": topic}
    wait_until(lambda: len(read_numbers(options)) == 30, _SECONDS, "all are there")
    rows = read_rows(options, ["queueOffset", "body", "tags", "sysFlag"])
    assert [(row["queueOffset"], row["body"]) for row in rows] == [
        (number, b"%d" % number) for number in range(30)
    ]
    assert {row["tags"] for row in rows} == {"t"}
    # Ranges that begin and end inside a batch.
    assert read_numbers(options | {"maxRecordsPerPartition": "7"}) == list(range(30))
    stream = ManualStream(options | {"startingOffsets": "earliest"})
    assert [stream.run_batch(7) for _ in range(3)] == [
        list(range(7)),
        list(range(7, 14)),
        list(range(14, 21)),
    ]
