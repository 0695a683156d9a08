"""A streaming job in its own process, for tests that kill it: from a topic to a table and a topic.

    python -m tests.support.spark_job FOLDER     # FOLDER contains job.json

``job.json`` has ``source`` and ``sink``. Without ``master`` it must be run by ``spark-submit``,
which gives the session its settings. The job runs until a file ``stop`` exists. Then it processes
all available messages and writes its results to ``result.json``.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from goddard.spark import spark_session
from goddard.spark.rows import ROW_PROPERTY
from tests.support.numbered_topic import numbers

READY = "the queries are running"
_POLL_SECONDS = 1


def _start(spark: SparkSession, folder: Path, job: dict[str, Any]) -> list[StreamingQuery]:
    messages = spark.readStream.format("rocketmq").options(**job["source"]).load()
    table = (
        messages.writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint-table"))
        .start()
    )
    topic = (
        messages.select("body", "keys", "tags")
        .writeStream.format("rocketmq")
        .options(**job["sink"])
        .option("checkpointLocation", str(folder / "checkpoint-topic"))
        .start()
    )
    return [table, topic]


def _result(spark: SparkSession, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    sink = job["sink"]
    options = {"nameServers": sink["nameServers"], "subscribe": sink["topic"]}
    written = spark.read.format("rocketmq").options(**options).load()
    row_keys = written.selectExpr(f"properties['{ROW_PROPERTY}'] AS row").distinct()
    return {
        "table": numbers(spark.read.parquet(str(folder / "table"))),
        "topic": numbers(written),
        "row_keys": row_keys.count(),
        "origins": _origins(spark),
    }


def _origins(spark: SparkSession) -> list[str]:
    """The paths from which the executors imported the package."""

    def origin(_: int) -> str:
        return str(importlib.import_module("goddard").__file__)

    return sorted(set(spark.sparkContext.parallelize(range(8), 8).map(origin).collect()))


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    if "master" in job:
        spark = spark_session(job["master"], name="job", log=folder / "spark.log")
    else:
        spark = SparkSession.builder.getOrCreate()
    queries = _start(spark, folder, job)
    print(READY, flush=True)
    while not (folder / "stop").exists():
        for query in queries:
            # Raises the exception that ended the query.
            query.awaitTermination(_POLL_SECONDS)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    result = folder / "result.json"
    result.with_suffix(".new").write_text(json.dumps(_result(spark, folder, job)))
    result.with_suffix(".new").rename(result)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
