"""Reading topics as streams: progress, limits, restarts, group offsets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.numbered import NumberedTopic, table_numbers
from tests.support.sparkreads import patiently

from goddard import Admin, MessageQueue
from goddard.spark import lag
from goddard.spark.cluster import Cluster
from goddard.spark.offsets import from_json
from goddard.spark.options import SINK, Given, connecting
from goddard.testing.process import wait_until
from goddard.testing.site import Site

_SECONDS = 100


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("rocketmq").options(**options).load()


def run_to_end(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Everything that is there now into a table, then stop."""

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

    return patiently(run)


def ends(query: StreamingQuery) -> list[dict[str, Any]]:
    return [json.loads(progress.sources[0].endOffset) for progress in query.recentProgress]


def test_available_now_reads_in_limited_batches_and_goes_on_later(
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
    assert lags[0].least <= lags[0].average == 12.5 <= lags[0].most
    topic.fill(10)
    run_to_end(stream(spark, options), tmp_path)
    assert table_numbers(spark, tmp_path / "table") == list(range(100))
    # The last batch is committed as well: tools see no lag.
    with Admin(name_servers=site.namesrv) as admin:
        (broker,) = site.brokers
        committed = [
            admin.consumer_offset(group, MessageQueue(topic.name, broker, queue_id))
            for queue_id in range(4)
        ]
    assert committed == [25] * 4


def test_a_broker_that_refuses_offsets_is_not_away(site: Site) -> None:
    topic = NumberedTopic(site, "stream-refused")
    (broker,) = site.brokers
    noted = MessageQueue(topic.name, broker, 0)
    refused = MessageQueue(f"{topic.name}-nowhere", broker, 0)
    away = MessageQueue(topic.name, "nobody", 0)
    with Cluster(connecting(Given({"nameServers": site.namesrv}, SINK))) as cluster:
        heard = cluster.commit(site.new_group("refused"), {noted: 1, refused: 2, away: 3})
    assert heard == {noted: 1, refused: 2}


def test_a_running_query_sees_what_comes(spark: SparkSession, site: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(site, "stream-live")
    topic.fill(5)
    name = f"live_{site.broker.port}"
    frame = stream(spark, topic.options())
    query = frame.writeStream.format("memory").queryName(name).start()

    def has_come(condition: Callable[[], bool]) -> bool:
        if (failure := query.exception()) is not None:
            raise failure
        return condition()

    try:
        wait_until(
            lambda: has_come(lambda: query.lastProgress is not None), _SECONDS, "the first look"
        )
        topic.fill(20)
        wait_until(
            lambda: has_come(lambda: spark.table(name).count() == 20), _SECONDS, "the messages"
        )
        bodies = sorted(int(row.body) for row in spark.table(name).select("body").collect())
        assert bodies == list(range(5, 25))
        progress = query.lastProgress
        assert progress is not None
        latest, _ = from_json(json.loads(progress.sources[0].latestOffset))
        assert sum(latest.values()) == 25
    finally:
        query.stop()


def test_a_batch_is_repeated_exactly_after_a_failure(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(site, "stream-repeat")
    topic.fill(10)
    seen: list[tuple[int, list[int]]] = []
    fails = True

    def note(frame: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, sorted(int(row.body) for row in frame.collect())))
        if fails:
            raise RuntimeError("on purpose")

    def run() -> StreamingQuery:
        writer = stream(spark, topic.options(startingOffsets="earliest")).writeStream
        checkpoint = str(tmp_path / "checkpoint")
        return (
            writer.foreachBatch(note)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(StreamingQueryException, match="on purpose"):
        run().awaitTermination(_SECONDS)
    fails = False
    topic.fill(10)
    run().awaitTermination(_SECONDS)
    assert seen == [(0, list(range(10))), (0, list(range(10))), (1, list(range(10, 20)))]


def test_queues_that_appear_are_read_from_their_first_message(
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
    _, first = from_json(ends(query)[-1])
    assert sorted(queue.queue_id for queue in first) == [1, 2]


def test_wrong_options_of_a_stream(spark: SparkSession) -> None:
    options = {"nameServers": "127.0.0.1:1", "subscribe": "T", "endingOffsets": "latest"}
    with pytest.raises(PySparkException, match="a stream has no end"):
        stream(spark, options).writeStream.format("noop").start().awaitTermination(_SECONDS)


def test_a_query_that_found_nothing_yet_knows_where_it_started(
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
    # And once more, with nothing new: no empty batch.
    third = run_to_end(stream(spark, options), tmp_path)
    assert [progress.batchId for progress in third.recentProgress if progress.numInputRows] == []
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 2
