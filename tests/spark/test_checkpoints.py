"""Queries continue from checkpoints that earlier versions wrote.

The checkpoints were created by ``tools/write_spark_checkpoint.py`` and must never change.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic, numbers
from tests.support.spark_readers import retry_worker_start

_DATA = Path(__file__).parents[1] / "golden" / "data"
_SECONDS = 200

Batches = list[tuple[int, list[int]]]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Cluster(tmp_path_factory.mktemp("site-golden")) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster, "broker-golden")
        yield site


def restart(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> Batches:
    """Run the query from the checkpoint; returns the id and the numbers of each batch."""
    batches: Batches = []

    def record(frame: DataFrame, batch_id: int) -> None:
        batches.append((batch_id, numbers(frame)))

    def run() -> None:
        query = (
            spark.readStream.format("rocketmq")
            .options(**options)
            .load()
            .writeStream.foreachBatch(record)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(_SECONDS)

    retry_worker_start(run)
    return batches


@pytest.mark.parametrize("version", ["v1"])
def test_query_continues_with_a_planned_batch(
    spark: SparkSession, golden: Site, tmp_path: Path, version: str
) -> None:
    shutil.copytree(_DATA / f"spark-checkpoint-{version}" / "middle", tmp_path / "checkpoint")
    topic = NumberedTopic(golden, "GoldenMiddle", is_exact=True)
    topic.fill(90)
    topic.fill(30)
    options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    # Two batches of 40 were committed; the third was planned up to 90 and is repeated unchanged.
    batches = restart(spark, options, tmp_path / "checkpoint")
    assert [(batch_id, len(rows)) for batch_id, rows in batches] == [(2, 10), (3, 30)]
    repeated, fresh = (rows for _, rows in batches)
    assert set(repeated) <= set(range(90))
    assert fresh == list(range(90, 120))


@pytest.mark.parametrize("version", ["v1"])
def test_query_continues_before_its_first_batch(
    spark: SparkSession, golden: Site, tmp_path: Path, version: str
) -> None:
    shutil.copytree(_DATA / f"spark-checkpoint-{version}" / "beginning", tmp_path / "checkpoint")
    topic = NumberedTopic(golden, "GoldenBeginning", queues=2, is_exact=True)
    topic.fill(40)
    topic.fill(20)
    options = topic.options(startingOffsets="latest")
    # The query started at offset 40, which was "latest" then.
    batches = restart(spark, options, tmp_path / "checkpoint")
    assert batches == [(0, []), (1, list(range(40, 60)))]
