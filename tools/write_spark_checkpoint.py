"""Write Spark checkpoints with this version, for tests that continue from them.

    python -m tools.write_spark_checkpoint tests/golden/data/spark-checkpoint-v1

Run once for each version of the offsets' JSON, and never again: later versions must be able to read
the files. Each checkpoint is as after kill -9 in a batch: its last batch is planned and not
committed.
"""

import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from goddard.spark import spark_session
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic

BROKER = "broker-golden"
_SECONDS = 300


def run(spark: SparkSession, topic: NumberedTopic, checkpoint: Path, **options: str) -> None:
    """Read all available messages in batches and discard them."""

    def count_rows(frame: DataFrame, _: int) -> None:
        frame.count()

    source = spark.readStream.format("rocketmq").options(**topic.options(**options))
    query = (
        source.load()
        .writeStream.foreachBatch(count_rows)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(_SECONDS):
        raise TimeoutError("the query does not end")


def delete_last_commit(checkpoint: Path) -> None:
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch)) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster, BROKER)
        spark = spark_session("local[2]", name="checkpoints")
        # Three batches; the last must be repeated.
        middle = NumberedTopic(site, "GoldenMiddle", is_exact=True)
        middle.fill(90)
        limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
        run(spark, middle, target / "middle", **limits)
        delete_last_commit(target / "middle")
        # Before the first batch: "latest" was 40 when the query started.
        beginning = NumberedTopic(site, "GoldenBeginning", queues=2, is_exact=True)
        beginning.fill(40)
        run(spark, beginning, target / "beginning", startingOffsets="latest")
        delete_last_commit(target / "beginning")
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
