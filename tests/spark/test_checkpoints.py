"""Checkpoints that earlier versions wrote: a query goes on from them as if nothing had happened.

The folders were made by ``tools/write_spark_checkpoint.py`` and are never written again.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.numbered import NumberedTopic, numbers
from tests.support.sparkreads import patiently

from goddard.testing.cluster import Cluster
from goddard.testing.site import Site

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
    """What each batch has that is read from now on."""
    seen: Batches = []

    def note(frame: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, numbers(frame)))

    def run() -> None:
        query = (
            spark.readStream.format("rocketmq")
            .options(**options)
            .load()
            .writeStream.foreachBatch(note)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(_SECONDS)

    patiently(run)
    return seen


@pytest.mark.parametrize("version", ["v1"])
def test_in_mid_life(spark: SparkSession, golden: Site, tmp_path: Path, version: str) -> None:
    shutil.copytree(_DATA / f"spark-checkpoint-{version}" / "middle", tmp_path / "checkpoint")
    topic = NumberedTopic(golden, "GoldenMiddle", is_exact=True)
    topic.fill(90)
    topic.fill(30)
    options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="1000")
    # Two batches of 40 were done; the third was planned up to 90 and is repeated as it was.
    batches = restart(spark, options, tmp_path / "checkpoint")
    assert [(batch_id, len(rows)) for batch_id, rows in batches] == [(2, 10), (3, 30)]
    repeated, fresh = (rows for _, rows in batches)
    assert set(repeated) <= set(range(90))
    assert fresh == list(range(90, 120))


@pytest.mark.parametrize("version", ["v1"])
def test_at_the_beginning(spark: SparkSession, golden: Site, tmp_path: Path, version: str) -> None:
    shutil.copytree(_DATA / f"spark-checkpoint-{version}" / "beginning", tmp_path / "checkpoint")
    topic = NumberedTopic(golden, "GoldenBeginning", queues=2, is_exact=True)
    topic.fill(40)
    topic.fill(20)
    options = topic.options(startingOffsets="latest")
    # "latest" was 40 when the query was started, and that counts.
    batches = restart(spark, options, tmp_path / "checkpoint")
    assert batches == [(0, []), (1, list(range(40, 60)))]
