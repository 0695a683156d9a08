"""Reading topics in batches."""

import asyncio
import json
import time

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from goddard import Message, MessageQueue, Producer
from goddard.errors import ConfigError
from goddard.protocol.bodies import (
    BrokerData,
    QueueData,
    TopicList,
    TopicQueueMapping,
    TopicRoute,
    encode_body,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.spark.columns import COLUMNS
from goddard.spark.options import parse_source
from goddard.spark.reading.cluster import ClusterClient
from goddard.testing.ports import lease_port
from goddard.testing.site import Site
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.numbered_topic import NumberedTopic, numbers


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("rocketmq").options(**options).load()


def test_batch_reads_all_messages_with_all_columns(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-all")
    topic.fill(1_000)
    frame = read(spark, topic.options())
    assert frame.columns == list(COLUMNS)
    assert numbers(frame) == list(range(1_000))
    row = frame.where("keys = 'key7'").collect()[0].asDict()
    assert row["topic"] == topic.name
    assert row["queueId"] == 3
    assert row["queueOffset"] == 1
    assert row["tags"] == "odd"
    assert row["properties"]["number"] == "7"
    assert row["body"] == b"7"
    assert row["brokerName"] in site.brokers
    assert row["msgId"] == row["properties"]["UNIQ_KEY"]
    assert row["storeHost"] == site.broker.address
    assert row["transaction"] == "none"
    assert abs(row["storeTimestamp"].timestamp() - time.time()) < 86_400


def test_schema_selects_columns(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-columns")
    topic.fill(10)
    reader = spark.read.format("rocketmq").options(**topic.options())
    frame = reader.schema("tags STRING, body BINARY").load()
    assert frame.columns == ["tags", "body"]
    assert numbers(frame) == list(range(10))


def test_pattern_without_matches_is_logged(ours: Site, caplog: pytest.LogCaptureFixture) -> None:
    given = {"nameServers": ours.namesrv, "subscribePattern": "orderz.*"}
    options = parse_source(given, is_streaming=False)
    with ClusterClient(options.connection) as cluster:
        assert cluster.queues(options) == []
    assert "no topic matches orderz.* yet" in caplog.messages


async def test_static_topics_are_skipped_in_patterns(caplog: pytest.LogCaptureFixture) -> None:
    """A normal topic and a static topic, both from a scripted name server."""

    async def respond(request: RemotingCommand, _: Connection) -> RemotingCommand:
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return request.reply(body=encode_body(TopicList(topic_list=["plain", "moving"])))
        mapping = TopicQueueMapping(bname="b", topic="moving", curr_id_map={0: 0}, total_queues=1)
        route = TopicRoute(
            queue_datas=[QueueData("b", perm=6, read_queue_nums=1, write_queue_nums=1)],
            broker_datas=[
                BrokerData(broker_name="b", cluster="C", broker_addrs={0: "127.0.0.1:1"})
            ],
            topic_queue_mapping_by_broker={"b": mapping}
            if request.fields["topic"] == "moving"
            else None,
        )
        return request.reply(body=encode_body(route))

    handlers = Handlers()
    handlers.set_fallback(respond)

    def check_queues(address: str) -> None:
        for streams in (True, False):
            with_pattern, by_name, by_queue = (
                parse_source({"nameServers": address, **given}, is_streaming=streams)
                for given in (
                    {"subscribePattern": ".*"},
                    {"subscribe": "plain,moving"},
                    {"assign": '{"moving": {"b": [0]}}'},
                )
            )
            caplog.clear()
            with ClusterClient(with_pattern.connection) as cluster:
                for is_running in (False, True, True):
                    found = cluster.queues(with_pattern, is_running=is_running)
                    assert found == [MessageQueue("plain", "b", 0)]
                    for options in (by_name, by_queue):
                        with pytest.raises(ConfigError, match=r"^moving is a static topic"):
                            cluster.queues(options, is_running=is_running)
            assert len([each for each in caplog.messages if "moving is a static" in each]) == 1

    async with Server(ServerOptions(), handlers) as name_server:
        await asyncio.to_thread(check_queues, f"127.0.0.1:{name_server.port}")


def test_start_and_end_offsets_by_number(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-offsets")
    topic.fill(100)
    (broker,) = site.brokers
    start = {topic.name: {broker: {"0": 5, "1": -2, "2": 25, "3": -2}}}
    end = {topic.name: {broker: {"0": 10, "1": 0, "2": -1, "3": -1}}}
    frame = read(
        spark,
        topic.options(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)),
    )
    expected = [n for n in range(100) if n % 4 == 3] + [4 * n for n in range(5, 10)]
    assert numbers(frame) == sorted(expected)


def test_timestamps_split_a_topic(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-time")
    topic.fill(40)
    cut_ms = _time_after_all(read(spark, topic.options()))
    topic.fill(40)
    after = read(spark, topic.options(startingTimestamp=str(cut_ms)))
    before = read(spark, topic.options(endingTimestamp=str(cut_ms)))
    assert numbers(after) == list(range(40, 80))
    assert numbers(before) == list(range(40))
    by_topic = json.dumps({topic.name: cut_ms})
    again = read(spark, topic.options(startingOffsetsByTimestamp=by_topic))
    assert numbers(again) == list(range(40, 80))


def _time_after_all(frame: DataFrame) -> int:
    """A time later than all messages of a frame and earlier than any message sent next."""
    last = max(row.storeTimestamp.timestamp() for row in frame.select("storeTimestamp").collect())
    cut_ms = int(last * 1000) + 1
    while time.time() * 1000 <= cut_ms:
        time.sleep(0.001)
    return cut_ms


def test_start_time_without_messages_fails_or_starts_at_the_end(
    spark: SparkSession, site: Site
) -> None:
    topic = NumberedTopic(site, "source-late")
    topic.fill(8)
    late = topic.options(startingTimestamp=str(int(time.time() * 1000) + 3_600_000))
    with pytest.raises(PySparkException, match="no message of MessageQueue"):
        read(spark, late).collect()
    frame = read(spark, late | {"startingOffsetsByTimestampStrategy": "latest"})
    assert numbers(frame) == []


def test_broker_applies_tag_and_sql_filters(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-filter")
    topic.fill(200)
    even = read(spark, topic.options(filter="even || other"))
    assert numbers(even) == list(range(0, 200, 2))
    some = read(spark, topic.options(filter="number BETWEEN 10 AND 20", filterType="sql92"))
    assert numbers(some) == list(range(10, 21))


def test_queues_are_split_into_partitions(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-cut", queues=2)
    topic.fill(600)
    frame = read(spark, topic.options(minPartitions="6"))
    assert frame.rdd.getNumPartitions() == 6
    assert numbers(frame) == list(range(600))
    frame = read(spark, topic.options(maxRecordsPerPartition="100"))
    assert frame.rdd.getNumPartitions() == 6


def test_patterns_and_assignments_select_queues(spark: SparkSession, site: Site) -> None:
    first, second = NumberedTopic(site, "pattern-x"), NumberedTopic(site, "pattern-y")
    first.fill(8)
    second.fill(8)
    (broker,) = site.brokers
    servers = {"nameServers": site.namesrv}
    frame = read(spark, servers | {"subscribePattern": f"{first.name}|{second.name}"})
    assert numbers(frame) == sorted(2 * list(range(8)))
    assigned = json.dumps({first.name: {broker: [1, 3]}})
    frame = read(spark, servers | {"assign": assigned})
    assert numbers(frame) == [1, 3, 5, 7]
    wrong = json.dumps({first.name: {broker: [9]}})
    with pytest.raises(PySparkException, match="which does not exist"):
        read(spark, servers | {"assign": wrong}).collect()


def test_large_and_compressed_bodies(spark: SparkSession, site: Site) -> None:
    topic = site.create_topic("source-large")
    bodies = [bytes([65 + number]) * (300_000 * number + 1) for number in range(4)]
    with Producer("large", name_servers=site.namesrv, compress_from_bytes=500_000) as producer:
        for body in bodies:
            producer.send(Message(topic, body))
    frame = read(spark, {"nameServers": site.namesrv, "subscribe": topic})
    found = sorted(frame.select("body").collect(), key=lambda row: len(row.body))
    assert [row.body for row in found] == [bytearray(body) for body in bodies]


def test_empty_topic_has_no_rows(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-empty")
    assert numbers(read(spark, topic.options())) == []


def test_retry_and_system_topics_are_read_on_request(spark: SparkSession, site: Site) -> None:
    retry = "%RETRY%spark-readers"
    with Producer("retriers", name_servers=site.namesrv) as producer:
        producer.send(Message(retry, b"1"))
    servers = {"nameServers": site.namesrv}
    hidden = servers | {"subscribePattern": ".*spark-readers"}
    assert numbers(read(spark, hidden)) == []
    assert numbers(read(spark, hidden | {"includeSystemTopics": "true"})) == [1]
    assert numbers(read(spark, servers | {"subscribe": retry})) == [1]


def test_sql_view_with_options(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-sql")
    topic.fill(10)
    options = ", ".join(f"{name} '{text}'" for name, text in topic.options().items())
    spark.sql(f"CREATE TEMPORARY VIEW messages USING rocketmq OPTIONS ({options})")
    try:
        counted = spark.sql("SELECT tags, count(*) AS n FROM messages GROUP BY tags ORDER BY tags")
        assert [(row.tags, row.n) for row in counted.collect()] == [("even", 5), ("odd", 5)]
    finally:
        spark.catalog.dropTempView("messages")


def test_wrong_options_fail_when_the_read_is_defined(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="did you mean subscribe"):
        read(spark, {"nameServers": "127.0.0.1:1", "subscrib": "T"})
    reader = spark.read.format("rocketmq").options(nameServers="127.0.0.1:1", subscribe="T")
    with_price = reader.schema("price DOUBLE").load()
    with pytest.raises(PySparkException, match="there is no column price"):
        with_price.collect()


def test_unreachable_name_server_is_a_clear_error(spark: SparkSession) -> None:
    options = {"nameServers": f"127.0.0.1:{lease_port()}", "subscribe": "T"}
    with pytest.raises(PySparkException, match="no name server answers"):
        read(spark, options | {"fetchOffset.numRetries": "1"}).collect()


def test_offsets_beyond_the_end_are_data_loss(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-loss", queues=1)
    topic.fill(10)
    (broker,) = site.brokers
    beyond = json.dumps({topic.name: {broker: {"0": 50}}})
    options = topic.options(endingOffsets=beyond)
    with pytest.raises(PySparkException, match="ends at 10, offset 50 was requested"):
        read(spark, options).collect()
    assert numbers(read(spark, options | {"failOnDataLoss": "false"})) == list(range(10))
    with pytest.raises(PySparkException, match="ends at 10, offset 50 was requested"):
        read(spark, topic.options(startingOffsets=beyond)).collect()


def test_pushed_filters_reduce_what_is_read(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "source-push")
    topic.fill(80)
    cut_ms = _time_after_all(read(spark, topic.options()))
    topic.fill(80)
    time = f"timestamp_millis({cut_ms})"
    pushed = topic.options(pushFilters="true")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, pushed)
        some = frame.where(f"queueId = 1 AND queueOffset >= 10 AND storeTimestamp < {time}")
        assert some.rdd.getNumPartitions() == 1
        assert numbers(some) == list(range(41, 80, 4))
        late = frame.where(f"storeTimestamp >= {time} AND tags = 'even' AND queueId IN (0, 1)")
        assert late.rdd.getNumPartitions() == 2
        assert numbers(late) == list(range(80, 160, 4))
        assert numbers(frame.where("topic = 'other'")) == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(PySparkException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        read(spark, pushed).collect()
