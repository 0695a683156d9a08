"""Writing rows to topics."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from goddard import Message, MessageQueue, Producer
from goddard.client.produce.producer import EncodedProducer
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.spark import drop_duplicate_writes
from goddard.spark.options import parse_sink
from goddard.spark.rows import ROW_PROPERTY
from goddard.spark.writing.writer import RowSender, write_batches
from goddard.testing.ports import lease_port
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.fake_cluster import FakeCluster, mute
from tests.support.numbered_topic import NumberedTopic, numbers, table_numbers
from tests.support.spark_readers import read_numbers, read_rows, retry_worker_start


def write(frame: DataFrame, topic: NumberedTopic, **options: str) -> None:
    writer = frame.write.format("rocketmq").mode("append")
    writer.options(nameServers=topic.site.namesrv, topic=topic.name, **options).save()


def read(spark: SparkSession, topic: NumberedTopic) -> DataFrame:
    return spark.read.format("rocketmq").options(**topic.options()).load()


def test_rows_are_written_as_messages(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "sink-rows")
    rows = spark.range(500).selectExpr(
        "cast(id AS string) AS body",
        "array(concat('a', id), concat('b', id)) AS keys",
        "if(id % 2 = 0, 'even', 'odd') AS tags",
        "map('number', cast(id AS string)) AS properties",
    )
    write(rows, topic)
    frame = read(spark, topic)
    assert numbers(frame) == list(range(500))
    row = frame.where("properties['number'] = '42'").collect()[0]
    assert (row["keys"], row.tags, row.body) == ("a42 b42", "even", bytearray(b"42"))
    keys = [
        row.row_key
        for row in frame.selectExpr(f"properties['{ROW_PROPERTY}'] AS row_key").collect()
    ]
    assert len(set(keys)) == 500


def test_rows_of_a_sharding_key_are_in_order_in_one_queue(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "sink-order")
    rows = spark.range(0, 400, 1, 1).selectExpr(
        "cast(id AS string) AS body", "cast(id % 7 AS string) AS shardingKey"
    )
    write(rows, topic, batchBytes="1000")
    found = read(spark, topic).orderBy("queueId", "queueOffset").collect()
    positions: dict[str, list[tuple[int, int]]] = {}
    for row in found:
        key = row.properties["__SHARDINGKEY"]
        positions.setdefault(key, []).append((row.queueId, int(row.body)))
    assert len(positions) == 7
    for key, rows_of_key in positions.items():
        assert len({queue for queue, _ in rows_of_key}) == 1
        assert [number for _, number in rows_of_key] == list(range(int(key), 400, 7))


def test_rows_with_topic_and_queue_columns(spark: SparkSession, site: Site) -> None:
    first, second = NumberedTopic(site, "sink-a"), NumberedTopic(site, "sink-b")
    (broker,) = site.brokers
    rows = spark.range(20).selectExpr(
        "cast(id AS string) AS body",
        f"if(id % 2 = 0, '{first.name}', '{second.name}') AS topic",
        f"'{broker}' AS brokerName",
        "cast(id % 4 AS int) AS queueId",
    )
    rows.write.format("rocketmq").mode("append").option("nameServers", site.namesrv).save()
    assert numbers(read(spark, first)) == list(range(0, 20, 2))
    queues = read(spark, second).select("queueId").distinct().collect()
    assert sorted(row.queueId for row in queues) == [1, 3]


def test_unknown_broker_name_fails_at_once(site: Site) -> None:
    topic = NumberedTopic(site, "sink-nobody")
    rows = pa.RecordBatch.from_pydict(
        {"body": [b"x", b"y"], "brokerName": [*site.brokers, "nobody"], "queueId": [0, 0]}
    )
    options = parse_sink({"nameServers": site.namesrv, "topic": topic.name, "maxOutage": "1d"})
    with pytest.raises(GoddardError, match=r"row q-1 could not be sent: .*nobody"):
        write_batches(iter([rows]), options, "q")


@pytest.mark.parametrize("bodies", [[b"0"], [b"0", b"1"]])
async def test_rows_that_are_not_replicated_fail_the_task(bodies: list[bytes]) -> None:
    """A row is retried at another broker; if no broker replicates it, the task fails."""
    async with FakeCluster("a", "b") as cluster:

        def write() -> int:
            options = parse_sink({"nameServers": cluster.namesrv, "topic": "T"})
            rows = pa.RecordBatch.from_pydict({"body": bodies})
            return write_batches(iter([rows]), options, "q")

        first, second = cluster.brokers
        first.answer = first.stored_as(ResponseCode.SLAVE_NOT_AVAILABLE)
        assert await asyncio.to_thread(write) == len(bodies)
        second.answer = second.stored_as(ResponseCode.SLAVE_NOT_AVAILABLE)
        with pytest.raises(
            GoddardError,
            match=r"q-0.* answered SLAVE_NOT_AVAILABLE: .* not yet on disk or on a slave",
        ):
            await asyncio.to_thread(write)


async def test_route_of_a_sharding_key_is_waited_for() -> None:
    async with FakeCluster("a") as cluster:
        given = {"nameServers": cluster.namesrv, "fetchOffset.numRetries": "0", "maxOutage": "1h"}
        options = parse_sink(given | {"topic": "T"})
        topics = ["T", "U", "T", "U"]
        rows = pa.RecordBatch.from_pydict(
            {"body": [b"x"] * 4, "topic": topics, "shardingKey": list("abab")}
        )

        def write(*, tolerates_outages: bool) -> int:
            return write_batches(iter([rows]), options, "q", tolerates_outages=tolerates_outages)

        # The first write does not wait for servers.
        with pytest.raises(GoddardError, match=r"^rows q-1 to q-3 could not be sent: .*route"):
            await asyncio.to_thread(write, tolerates_outages=False)
        cluster.route_requests.clear()

        def answer_after_some_requests(request: RemotingCommand) -> RemotingCommand:
            if len(cluster.route_requests) > 6:
                cluster.answer_route = None
                cluster.topics.add("U")
            return request.reply(ResponseCode.TOPIC_NOT_EXIST)

        cluster.answer_route = answer_after_some_requests
        assert await asyncio.to_thread(write, tolerates_outages=True) == 4


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
async def test_no_later_rows_are_stored_after_a_failure(code: ResponseCode) -> None:
    async with FakeCluster("a") as cluster:
        (broker,) = cluster.brokers
        refused: list[bytes] = []

        def answer(request: RemotingCommand) -> RemotingCommand:
            refused.append(bytes(request.body))
            if refused[0] != request.body:
                return broker.store(request)
            return request.reply(code)

        broker.answer = answer
        given = {"topic": "T", "batchBytes": "1000", "requestsInFlight": "20"}
        given |= {"fetchOffset.numRetries": "0", "maxOutage": "0s"}
        options = parse_sink({"nameServers": cluster.namesrv, **given})
        rows = pa.RecordBatch.from_pydict({"body": [b"x" * 200] * 50, "shardingKey": ["k"] * 50})
        with pytest.raises(GoddardError, match=r"^rows q-0 to q-\d+ could not be sent"):
            await asyncio.to_thread(write_batches, iter([rows]), options, "q")
        assert len(set(refused)) == 1


async def test_failed_write_does_not_wait_for_other_requests() -> None:
    async with FakeCluster("a", "b") as cluster:
        unresponsive, rejecting = cluster.brokers
        unresponsive.answer = mute
        rejecting.answer = lambda request: request.reply(ResponseCode.MESSAGE_ILLEGAL)
        hour_ms = 3_600_000
        options = parse_sink({"nameServers": cluster.namesrv, "topic": "T", "maxOutage": "1h"})
        rows = pa.RecordBatch.from_pydict(
            {"body": [b"x", b"y"], "brokerName": ["a", "b"], "queueId": [0, 0]}
        )
        producer = EncodedProducer("P", name_servers=cluster.namesrv, send_timeout_ms=hour_ms)
        await producer.start()
        sender = RowSender(producer, options, "q")
        try:
            async with asyncio.timeout(120):
                await sender.send(rows, 0)
                with pytest.raises(GoddardError, match=r"^row q-1 could not be sent"):
                    await sender.finish()
        finally:
            await sender.close()


def test_requests_continue_while_spark_produces_rows(site: Site) -> None:
    topic = NumberedTopic(site, "sink-slow")
    given = {"nameServers": site.namesrv, "topic": topic.name}

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"body": [b"0", b"1"]})
        # The first rows are stored before the second batch is requested.
        wait_until(lambda: read_numbers(topic.options()) == [0, 1], 60, "the first rows are stored")
        yield pa.RecordBatch.from_pydict({"body": [b"2"]})

    assert write_batches(batches(), parse_sink(given), "q") == 3
    assert read_numbers(topic.options()) == [0, 1, 2]


def test_large_rows_are_sent_in_separate_requests(spark: SparkSession, site: Site) -> None:
    topic = NumberedTopic(site, "sink-large")
    rows = spark.range(6).selectExpr("cast(repeat(cast(id AS string), 1000000) AS binary) AS body")
    write(rows, topic)
    sizes = [len(row.body) for row in read(spark, topic).select("body").collect()]
    assert sizes == [1_000_000] * 6


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["id"], "the sink has no column id"),
        (
            ["if(id = 3, null, cast(id AS string)) AS body"],
            r"row \w+-0-\d-\d+ cannot be sent: its body is null",
        ),
    ],
)
def test_invalid_rows_fail_the_write(
    spark: SparkSession, ours: Site, columns: list[str], words: str
) -> None:
    topic = NumberedTopic(ours, "sink-wrong")
    with pytest.raises(PySparkException, match=words):
        write(spark.range(10).selectExpr(*columns), topic)


def test_unreachable_name_server_is_a_clear_error(spark: SparkSession) -> None:
    writer = spark.range(1).selectExpr("'x' AS body").write.format("rocketmq").mode("append")
    servers = f"127.0.0.1:{lease_port()}"
    # If the write waited for the outage to end, the test would time out.
    with pytest.raises(PySparkException, match="no name server answers"):
        writer.options(nameServers=servers, topic="T", maxOutage="1h").save()


def copy_available(
    spark: SparkSession, source: NumberedTopic, target: NumberedTopic, checkpoint: Path, **more: str
) -> None:
    """Copy the new messages of a topic to another, with a stream."""

    def run() -> None:
        options = source.options(startingOffsets="earliest", **more)
        query = (
            spark.readStream.format("rocketmq")
            .options(**options)
            .load()
            .selectExpr("body", "keys", "tags", "keys AS shardingKey")
            .writeStream.format("rocketmq")
            .options(nameServers=target.site.namesrv, topic=target.name)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(200)

    retry_worker_start(run)


def delete_last_commit(checkpoint: Path) -> None:
    """As if the driver had crashed before it committed the last batch."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()


def test_repeated_batch_of_a_stream_has_the_same_keys(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    source, target = NumberedTopic(site, "sink-from"), NumberedTopic(site, "sink-to")
    for _ in range(2):
        source.fill(20)
        copy_available(spark, source, target, tmp_path)
    assert read_numbers(target.options()) == list(range(40))
    delete_last_commit(tmp_path)
    copy_available(spark, source, target, tmp_path)
    rows = read_rows(target.options(), ["body", "keys", "properties"])
    assert sorted(int(row["body"]) for row in rows) == sorted([*range(40), *range(20, 40)])
    key_of = {int(row["body"]): dict(row["properties"])[ROW_PROPERTY] for row in rows}
    assert all(dict(row["properties"])[ROW_PROPERTY] == key_of[int(row["body"])] for row in rows)
    assert len(set(key_of.values())) == 40
    assert numbers(drop_duplicate_writes(read(spark, target))) == list(range(40))


def test_no_row_is_lost_if_a_batch_is_repeated_with_other_partitions(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    source, target = NumberedTopic(ours, "sink-split"), NumberedTopic(ours, "sink-split-to")
    source.fill(40)
    copy_available(spark, source, target, tmp_path)
    delete_last_commit(tmp_path)
    copy_available(spark, source, target, tmp_path, minPartitions="12")
    rows = read_rows(target.options(), ["body", "properties"])
    assert len(rows) == 80
    bodies_of_keys = {(dict(row["properties"])[ROW_PROPERTY], row["body"]) for row in rows}
    assert len({key for key, _ in bodies_of_keys}) == len(bodies_of_keys)
    # Rows may be kept twice, but none is missing.
    assert set(numbers(drop_duplicate_writes(read(spark, target)))) == set(range(40))


def test_rows_with_a_row_key_are_kept_once_for_any_partitions(
    spark: SparkSession, ours: Site
) -> None:
    topic = NumberedTopic(ours, "sink-row-key")
    for partitions in (2, 5):
        rows = spark.range(0, 40, 1, partitions)
        write(rows.selectExpr("cast(id AS string) AS body", "concat('id-', id) AS rowKey"), topic)
    assert len(numbers(read(spark, topic))) == 80
    assert numbers(drop_duplicate_writes(read(spark, topic))) == list(range(40))


def test_overwrite_mode_is_refused(spark: SparkSession, ours: Site) -> None:
    topic = NumberedTopic(ours, "sink-overwrite")
    rows = spark.range(1).selectExpr("'x' AS body")
    writer = rows.write.format("rocketmq").mode("overwrite")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.options(nameServers=ours.namesrv, topic=topic.name).save()


def test_duplicate_writes_are_dropped(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(site, "sink-twice")
    topic.fill(10)  # from another producer, without keys: they are kept
    (broker,) = site.brokers
    with Producer("repeaters", name_servers=site.namesrv) as producer:
        for number in [*range(10, 30), *range(20, 40)]:
            key = {ROW_PROPERTY: f"query-7-0-{number}"}
            message = Message(topic.name, b"%d" % number, properties=key)
            producer.send(message, queue=MessageQueue(topic.name, broker, number % 4))
    assert len(numbers(read(spark, topic))) == 50
    assert numbers(drop_duplicate_writes(read(spark, topic))) == list(range(40))
    reader = spark.readStream.format("rocketmq").options(
        **topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="30")
    )
    query = (
        drop_duplicate_writes(reader.load(), watermark="10 minutes")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)
    assert table_numbers(spark, tmp_path / "table") == list(range(40))
    with pytest.raises(ConfigError, match="the column properties is missing"):
        drop_duplicate_writes(read(spark, topic).drop("properties"))
