"""Commit-log files read by Spark, also while a broker writes to them."""

import threading
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from goddard.spark.columns import COLUMNS
from goddard.spark.log import parse_log, plan, read_split
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic, numbers

_READS = 15


def read(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format("rocketmq-log").options(**options).load(str(store))


def test_store_is_read_while_its_broker_writes(spark: SparkSession, tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster, properties={"mappedFileSizeCommitLog": "1048576"})
        store = cluster.brokers[0].home / "store"
        topic, other = NumberedTopic(site, "log-live"), NumberedTopic(site, "log-other")
        other.fill(100)
        stopping = threading.Event()

        def keep_filling() -> None:
            while not stopping.is_set():
                topic.fill(400)

        filling = threading.Thread(target=keep_filling)
        filling.start()
        try:
            _check_repeatedly(topic, store)
        finally:
            stopping.set()
            filling.join()
        while len(plan(parse_log({"path": str(store)}))) < 2:
            topic.fill(2_000)
        frame = read(spark, store, subscribe=topic.name, maxPartitionBytes="1048576")
        assert frame.columns == list(COLUMNS)
        assert frame.rdd.getNumPartitions() > 1
        assert numbers(frame) == list(range(topic.count))
        counted = read(spark, store, brokerName="here").groupBy("topic", "brokerName").count()
        assert sorted(tuple(row) for row in counted.collect()) == [
            (topic.name, "here", topic.count),
            (other.name, "here", 100),
        ]


def _check_repeatedly(topic: NumberedTopic, store: Path) -> None:
    """Each read contains every message acknowledged before it, and no message twice."""
    options = parse_log({"path": str(store), "subscribe": topic.name})
    for _ in range(_READS):
        acknowledged = topic.count
        found = [
            int(row["body"])
            for split in plan(options)
            for batch in read_split(split, options, ["body"])
            for row in batch.to_pylist()
        ]
        assert len(found) == len(set(found))
        assert set(range(acknowledged)) <= set(found)


def test_wrong_options_fail_when_the_read_is_defined(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match="is not a directory"):
        read(spark, tmp_path / "nowhere")
    with pytest.raises(AnalysisException, match="did you mean subscribe"):
        read(spark, tmp_path, subscribed="T")
