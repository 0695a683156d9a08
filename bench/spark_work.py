"""Run measurements in one Spark session, in its own process: ``spark_work.py WORKS.json``.

This program does not import Goddard, so that it also runs in the environment of Spark's Kafka
source. The last line of its output is JSON: for each work the rates of all its runs, each with the
processor time of a row in microseconds. This is the time of all processes of the benchmark: Spark,
its Python workers and the servers.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

_SECONDS = 600


def _bodies(spark: SparkSession, work: dict[str, Any]) -> DataFrame:
    """Rows of one size, which start with their number."""
    body = f.rpad(f.col("id").cast("string"), work["bytes"], "x").cast("binary")
    return spark.range(0, work["rows"], 1, work["partitions"]).select(body.alias(work["column"]))


def _write(spark: SparkSession, work: dict[str, Any]) -> float:
    writer = _bodies(spark, work).write.format(work["format"]).mode("append")
    began = time.perf_counter()
    writer.options(**work["options"]).save()
    return float(work["rows"] / (time.perf_counter() - began))


def _read(spark: SparkSession, work: dict[str, Any]) -> float:
    reader = spark.read.format(work["format"]).options(**work["options"])
    if "schema" in work:
        reader = reader.schema(work["schema"])
    frame = reader.load(work["path"]) if "path" in work else reader.load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return float(work["rows"] / (time.perf_counter() - began))


def _stream(spark: SparkSession, work: dict[str, Any]) -> float:
    reader = spark.readStream.format(work["format"]).options(**work["options"])
    if "schema" in work:
        reader = reader.schema(work["schema"])
    query = reader.load().writeStream.format("noop").trigger(availableNow=True).start()
    if not query.awaitTermination(_SECONDS):
        raise TimeoutError("the stream does not end")
    batches = [each for each in query.recentProgress if each.numInputRows]
    rows = sum(each.numInputRows for each in batches)
    if rows != work["rows"]:
        raise ValueError(f"{rows} rows were read, expected {work['rows']}")
    # Corresponds to processedRowsPerSecond, over all batches.
    return float(1000 * rows / sum(each.durationMs["triggerExecution"] for each in batches))


def _latency(spark: SparkSession, work: dict[str, Any]) -> list[float]:
    """Milliseconds from storing a message to the end of the batch that writes it to the table."""
    folder = Path(work["folder"])
    done_ms: dict[int, float] = {}

    def append(frame: DataFrame, batch_id: int) -> None:
        named = frame.select(f.lit(batch_id).alias("batch"), "storeTimestamp", "body")
        named.write.mode("append").parquet(str(folder / "table"))
        done_ms[batch_id] = time.time() * 1000

    source = spark.readStream.format(work["format"]).options(**work["options"])
    query = (
        source.load()
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while not done_ms and query.isActive:
        time.sleep(0.1)
    # The sender waits for this file.
    (folder / "reading").touch()
    while not (folder / "sent").exists() and query.isActive:
        time.sleep(0.1)
    query.processAllAvailable()
    query.stop()
    rows = spark.read.parquet(str(folder / "table")).where(f"batch > {min(done_ms)}")
    times = rows.selectExpr("batch", "unix_millis(storeTimestamp) AS ms").collect()
    return sorted(done_ms[row.batch] - row.ms for row in times)


def _queues(spark: SparkSession, work: dict[str, Any]) -> list[float]:
    """Seconds from the first send to the end of the batch that reads the last message."""
    folder = Path(work["folder"])
    options = work["options"] | {"startingOffsets": "latest"}
    source = spark.readStream.format(work["format"]).options(**options)
    query = source.load().writeStream.format("noop").start()
    rows: dict[int, int] = {}
    while sum(rows.values()) < work["rows"] and query.isActive:
        for progress in query.recentProgress:
            # An idle query reports its next batch, without rows.
            rows[progress.batchId] = max(progress.numInputRows, rows.get(progress.batchId, 0))
        # The query has planned its first, empty batch; the sender waits for this file.
        if rows:
            (folder / "reading").touch()
        time.sleep(0.05)
    done = time.time()
    while not (folder / "began").exists():
        time.sleep(0.05)
    began = float((folder / "began").read_text())
    query.stop()
    return [done - began]


_WORKS = {"write": _write, "read": _read, "stream": _stream}


def _run_work(spark: SparkSession, work: dict[str, Any]) -> list[Any]:
    if work["kind"] == "latency":
        return _latency(spark, work)
    if work["kind"] == "queues":
        return _queues(spark, work)
    runs = []
    for _ in range(work["runs"]):
        before = _cpu_seconds()
        rate = _WORKS[work["kind"]](spark, work)
        runs.append((rate, 1e6 * (_cpu_seconds() - before) / work["rows"]))
    return runs


def _cpu_seconds() -> float:
    """The processor time of the benchmark: of the parent of this process, and its descendants."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        # User and system time, of the process and of its children that have ended.
        ticks[pid] = sum(map(int, fields[11:15]))
    root = os.getppid()
    total = 0
    for pid, used in ticks.items():
        at = pid
        while at not in (root, 0):
            at = parents.get(at, 0)
        total += used if at == root else 0
    return total / os.sysconf("SC_CLK_TCK")


def main(path: Path) -> None:
    given = json.loads(path.read_text())
    builder = SparkSession.Builder().master("local[2]").appName("bench")
    for name, value in given["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    results = [_run_work(spark, work) for work in given["works"]]
    spark.stop()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
