"""Streaming reads: progress, limits, restarts, group offsets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from goddard import Admin, MessageQueue
from goddard.errors import ConfigError
from goddard.spark import lag
from goddard.spark.options import SINK_OPTIONS, RawOptions, parse_connection
from goddard.spark.reading.cluster import ClusterClient
from goddard.spark.reading.offsets import from_json
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic, table_numbers
from tests.support.spark_readers import ManualStream, retry_worker_start, write_bodies

_SECONDS = 100


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("rocketmq").options(**options).load()


def run_to_end(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Write all messages that are available now to a table, then stop."""

    def run() -> StreamingQuery:
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(folder / "table"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(_SECONDS)
        return query

    return retry_worker_start(run)


def end_offsets(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(progress.sources[0].endOffset) for progress in query.recentProgress]


def test_available_now_reads_limited_batches_and_continues(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(site, "stream-limits")
    topic.fill(90)
    group = site.new_group("stream-limits")
    options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="40", group=group)
    query = run_to_end(stream(spark, options), tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress] == [40, 40, 10]
    lags = [lag(progress) for progress in query.recentProgress]
    assert [each.total for each in lags] == [50, 10, 0]
    assert lags[0].min <= lags[0].avg == 12.5 <= lags[0].max
    topic.fill(10)
    run_to_end(stream(spark, options), tmp_path)
    assert table_numbers(spark, tmp_path / "table") == list(range(100))
    # The offsets of the last batch are committed too, so tools show no lag.
    with Admin(name_servers=site.namesrv) as admin:
        (broker,) = site.brokers
        committed = [
            admin.consumer_offset(group, MessageQueue(topic.name, broker, queue_id))
            for queue_id in range(4)
        ]
    assert committed == [25] * 4


def test_checkpoint_of_another_topic_is_refused(ours: Site) -> None:
    one, other = NumberedTopic(ours, "stream-one"), NumberedTopic(ours, "stream-other")
    for topic in (one, other):
        topic.fill(4)
    start = ManualStream(one.options(startingOffsets="earliest")).offset
    both = {"nameServers": ours.namesrv, "subscribe": f"{one.name},{other.name}"}
    assert len(from_json(ManualStream(both, start).plan()).queues) == 8
    for options in (
        other.options(),
        {"nameServers": ours.namesrv, "subscribePattern": "stream-other.*"},
    ):
        with pytest.raises(ConfigError, match=f"has offsets of {one.name}, which this query does"):
            ManualStream(options, start).plan()


def test_batches_are_limited_by_their_bytes(site: Site) -> None:
    topic = NumberedTopic(site, "stream-bytes")
    write_bodies({"nameServers": site.namesrv, "topic": topic.name}, [b"%0500d" % 0] * 12_000)
    with Admin(site.namesrv) as admin:  # RocketMQ's broker writes queues after its answer
        wait_until(
            lambda: admin.topic_stats(topic.name).message_count == 12_000, _SECONDS, "all are there"
        )
    stream = ManualStream(topic.options(startingOffsets="earliest", maxBytesPerTrigger="2m"))
    limit = stream.reader.getDefaultReadLimit()
    end = stream.reader.latestOffset(stream.offset, limit)
    # A stored message of 500 bytes has about 750 bytes.
    assert 1_500 < sum(from_json(end).queues.values()) < 2**21 // 500
    # What is left has so few messages that its bytes do not matter.
    stream.offset = stream.reader.latestOffset(end, limit)
    assert sum(from_json(stream.offset).queues.values()) == 12_000


def test_broker_that_rejects_a_commit_is_reachable(site: Site) -> None:
    topic = NumberedTopic(site, "stream-rejected")
    (broker,) = site.brokers
    accepted = MessageQueue(topic.name, broker, 0)
    rejected = MessageQueue(f"{topic.name}-nowhere", broker, 0)
    away = MessageQueue(topic.name, "nobody", 0)
    with ClusterClient(
        parse_connection(RawOptions({"nameServers": site.namesrv}, SINK_OPTIONS))
    ) as cluster:
        answered = cluster.commit(site.new_group("rejected"), {accepted: 1, rejected: 2, away: 3})
    assert answered == {accepted: 1, rejected: 2}


def test_running_query_reads_new_messages(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(site, "stream-live")
    topic.fill(5)
    name = f"live_{site.broker.port}"
    frame = stream(spark, topic.options())
    query = frame.writeStream.format("memory").queryName(name).start()

    def holds_without_failure(condition: Callable[[], bool]) -> bool:
        if (failure := query.exception()) is not None:
            raise failure
        return condition()

    try:
        wait_until(
            lambda: holds_without_failure(lambda: query.lastProgress is not None),
            _SECONDS,
            "the first progress",
        )
        topic.fill(20)
        wait_until(
            lambda: holds_without_failure(lambda: spark.table(name).count() == 20),
            _SECONDS,
            "the messages",
        )
        bodies = sorted(int(row.body) for row in spark.table(name).select("body").collect())
        assert bodies == list(range(5, 25))
        progress = query.lastProgress
        assert progress is not None
        latest = from_json(json.loads(progress.sources[0].latestOffset)).queues
        assert sum(latest.values()) == 25
    finally:
        query.stop()


def test_failed_batch_is_repeated_exactly(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(site, "stream-repeat")
    topic.fill(10)
    batches: list[tuple[int, list[int]]] = []
    fails = True

    def record(frame: DataFrame, batch_id: int) -> None:
        batches.append((batch_id, sorted(int(row.body) for row in frame.collect())))
        if fails:
            raise RuntimeError("on purpose")

    def run() -> StreamingQuery:
        writer = stream(spark, topic.options(startingOffsets="earliest")).writeStream
        checkpoint = str(tmp_path / "checkpoint")
        return (
            writer.foreachBatch(record)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(StreamingQueryException, match="on purpose"):
        run().awaitTermination(_SECONDS)
    fails = False
    topic.fill(10)
    run().awaitTermination(_SECONDS)
    assert batches == [(0, list(range(10))), (0, list(range(10))), (1, list(range(10, 20)))]


def test_new_queues_are_read_from_their_first_message(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(site, "stream-grow", queues=1)
    topic.fill(10)
    options = topic.options(startingOffsets="earliest")
    run_to_end(stream(spark, options), tmp_path)
    with Admin(name_servers=site.namesrv) as admin:
        (broker,) = site.brokers
        admin.create_topic(topic.name, broker=broker, read_queues=3, write_queues=3)
    topic.fill(12)
    query = run_to_end(stream(spark, options), tmp_path)
    assert table_numbers(spark, tmp_path / "table") == list(range(22))
    first = from_json(end_offsets(query)[-1]).first
    assert sorted(queue.queue_id for queue in first) == [1, 2]


def test_wrong_option_of_a_stream_is_refused(spark: SparkSession) -> None:
    options = {"nameServers": "127.0.0.1:1", "subscribe": "T", "endingOffsets": "latest"}
    with pytest.raises(PySparkException, match="a stream has no end"):
        stream(spark, options).writeStream.format("noop").start().awaitTermination(_SECONDS)


def test_query_without_messages_keeps_its_start_offsets(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(site, "stream-start", queues=2)
    topic.fill(6)
    options = topic.options(startingOffsets="latest")
    first = run_to_end(stream(spark, options), tmp_path)
    assert [progress.numInputRows for progress in first.recentProgress] == [0]
    topic.fill(6)
    run_to_end(stream(spark, options), tmp_path)
    assert table_numbers(spark, tmp_path / "table") == list(range(6, 12))
    # A third run without new messages writes no empty batch.
    third = run_to_end(stream(spark, options), tmp_path)
    assert [progress.batchId for progress in third.recentProgress if progress.numInputRows] == []
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 2
