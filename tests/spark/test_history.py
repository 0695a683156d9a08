"""An archive and the live topic as one DataFrame."""

import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession

from goddard import Admin
from goddard.errors import ConfigError
from goddard.spark import history
from goddard.spark.reading.offsets import DataLossError
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from goddard.testing.wire import query_route
from tests.support.numbered_topic import NumberedTopic, numbers
from tests.support.small_files import SmallFilesCluster

_SECONDS = 60


def live(spark: SparkSession, topic: NumberedTopic) -> DataFrame:
    return spark.read.format("rocketmq").options(**topic.options()).load()


def test_parquet_archive_and_topic_have_each_message_once(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    # Spark takes a partition folder of this name for a number.
    topic = NumberedTopic(ours, "007", is_exact=True)
    topic.fill(40)
    table = str(tmp_path / "table")
    # The archive was started late: the first messages are only in the topic.
    rows = live(spark, topic).where("queueOffset > 1").selectExpr("*", "'x' AS day")
    rows.write.partitionBy("day", "topic").parquet(table)
    topic.fill(20)
    whole = history(spark, table, **topic.options())
    assert numbers(whole) == list(range(60))
    assert "day" not in whole.columns
    assert {row.topic for row in whole.select("topic").collect()} == {topic.name}
    # The frame stays as it is while the archive and the topic grow; a new one has all messages.
    growing = history(spark, spark.read.schema(rows.schema).parquet(table), **topic.options())
    late = live(spark, topic).where("queueOffset >= 10").selectExpr("*", "'y' AS day")
    late.write.mode("append").partitionBy("day", "topic").parquet(table)
    topic.fill(20)
    spark.catalog.refreshByPath(table)
    assert numbers(growing) == list(range(60))
    assert numbers(history(spark, table, **topic.options())) == list(range(80))


def test_delta_archive_and_several_topics(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    first, second = NumberedTopic(ours, "past"), NumberedTopic(ours, "past")
    first.fill(30)
    rows: Any = live(spark, first).toArrow()
    deltalake.write_deltalake(tmp_path, rows, partition_by=["topic", "queueId"])
    first.fill(10)
    second.fill(5)
    options = {"nameServers": ours.namesrv, "subscribe": f"{first.name},{second.name}"}
    whole = history(spark, tmp_path, **options)
    assert numbers(whole.where(whole.topic == first.name)) == list(range(40))
    assert numbers(whole.where(whole.topic == second.name)) == list(range(5))
    pattern = {"nameServers": ours.namesrv, "subscribePattern": f"{first.name}|none"}
    assert numbers(history(spark, tmp_path, **pattern)) == list(range(40))


def test_log_archive_and_messages_that_were_never_archived(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(tmp_path / "cluster") as daemons:
        cluster = SmallFilesCluster(daemons)
        topic = NumberedTopic(cluster.site, "logged", queues=1)
        topic.fill(50)
        shutil.copytree(cluster.broker.home / "store", tmp_path / "copy")
        topic.fill(20)
        whole = history(spark, tmp_path / "copy", **topic.options())
        assert numbers(whole) == list(range(70))
        first = cluster.expire_old_files(topic)
        words = rf"ends at 50, and the topic begins at {first}: retention has deleted {first - 50}"
        with pytest.raises(DataLossError, match=words):
            history(spark, tmp_path / "copy", **topic.options())
        lenient = history(spark, tmp_path / "copy", **topic.options(failOnDataLoss="false"))
        assert numbers(lenient) == [*range(50), *range(first, topic.count)]


def test_recreated_topic_is_noticed(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(ours, "history-recreated", is_exact=True)
    topic.fill(20)
    archive = live(spark, topic).select(
        "topic", "brokerName", "queueId", "queueOffset", "body", "storeTimestamp"
    )
    archive.write.parquet(str(tmp_path / "table"))
    with Admin(name_servers=ours.namesrv) as admin:
        admin.delete_topic(topic.name, cluster="DefaultCluster")
    wait_until(lambda: query_route(ours.namesrv, topic.name) is None, _SECONDS, "the topic is gone")
    again = NumberedTopic(ours, "history-recreated", is_exact=True)
    again.count = 20
    again.fill(40)
    with pytest.raises(DataLossError, match="was the topic recreated, or truncated"):
        history(spark, tmp_path / "table", **topic.options())
    lenient = history(spark, tmp_path / "table", **topic.options(failOnDataLoss="false"))
    assert numbers(lenient) == list(range(60))


def test_wrong_archives_are_refused(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    topic = NumberedTopic(ours, "history-wrong")
    options = topic.options()
    with pytest.raises(ConfigError, match="reads all messages, so it has no option startingOff"):
        history(spark, tmp_path, **options, startingOffsets="earliest")
    with pytest.raises(ConfigError, match="s3a://b/t is not a folder on this machine"):
        history(spark, "s3a://b/t", **options)
    names = "topic STRING, brokerName STRING, queueId INT, queueOffset LONG"
    with pytest.raises(ConfigError, match="the archive has no column queueOffset"):
        history(spark, spark.createDataFrame([], names).drop("queueOffset"), **options)
    with pytest.raises(ConfigError, match="does not fit the topics: the column body is binary"):
        history(spark, spark.createDataFrame([], f"{names}, body STRING"), **options)
    unknown = spark.createDataFrame([(topic.name, None, 0, 0)], names)
    with pytest.raises(ConfigError, match=rf"of topic {topic.name}; history cannot tell"):
        history(spark, unknown, **options)
