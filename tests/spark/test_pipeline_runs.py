"""Runs of jobs: from messages to tables, also after a crash."""

import copy
import io
import json
import os
import shutil
import time
from operator import attrgetter
from pathlib import Path
from typing import Any

import deltalake
import fastavro
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from goddard import Message, Producer
from goddard.pipelines.checkpoint import Checkpoint
from goddard.pipelines.config import parse_job
from goddard.pipelines.errors import PipelineError
from goddard.pipelines.job import Parse
from goddard.pipelines.lakehouse import read_delta
from goddard.pipelines.monitoring import Progress
from goddard.pipelines.parse import PROBLEM, parsed
from goddard.pipelines.runner import Pipeline
from goddard.pipelines.status import job_status
from goddard.spark.rows import ROW_PROPERTY
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic, numbers

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"]}],
}


def send_orders(site: Site, topic: str, numbers: range) -> None:
    """Send orders with ascending ids.

    Every tenth is sent twice, order 13 is not JSON, order 15 has no amount.
    """
    with Producer("orders", name_servers=site.namesrv) as producer:
        for number in numbers:
            order: dict[str, Any] = {"id": number, "amount": number % 7, "city": f"c{number % 2}"}
            body = json.dumps(order)
            if number == 13:
                body = '{"id": 13, '
            if number == 15:
                body = '{"id": 15, "city": "c1"}'
            message = Message(topic, body.encode(), keys=str(number))
            producer.send(message)
            if number % 10 == 1:
                producer.send(Message(topic, body.encode(), keys=str(number)))


def job_of(site: Site, topic: str, folder: Path, **tables: Any) -> dict[str, Any]:
    source = {
        "nameServers": site.namesrv,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 25,
    }
    return {
        "name": "orders",
        "source": source,
        "parse": {"schema": "id long, amount double, city string"},
        "expect": [{"name": "positive", "condition": "amount > 0"}],
        "quarantine": {"path": str(folder / "quarantine")},
        "run": {"checkpoint": str(folder / "checkpoint")},
        **tables,
    }


def run(spark: SparkSession, given: dict[str, Any], folder: Path = Path()) -> list[Progress]:
    progress: list[Progress] = []
    Pipeline(parse_job(copy.deepcopy(given), folder=folder), spark).run(progress.append)
    return progress


def table_at(spark: SparkSession, path: str) -> DataFrame:
    """A Delta table, as Spark reads it."""
    found = read_delta(spark, path)
    assert found is not None
    return found


def delete_last_commit(checkpoint: Path) -> int:
    """Undo the last commit, as if killed between writing a batch and committing it."""
    commits = checkpoint / "query" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    return last


def ids_in_table(spark: SparkSession, kind: str, folder: Path) -> list[int]:
    if kind == "delta":
        table = deltalake.DeltaTable(str(folder / "table"))
        ids = [row["id"] for row in table.to_pyarrow_table().to_pylist()]
        assert table.count() == len(ids)
    elif kind == "iceberg":
        catalog = load_catalog("default", **catalog_of(folder))
        rows = catalog.load_table("shop.orders").scan().to_arrow().to_pylist()
        ids = [row["id"] for row in rows]
    else:
        ids = [row["id"] for row in spark.read.parquet(str(folder / "table")).collect()]
    return sorted(ids)


def catalog_of(folder: Path) -> dict[str, str]:
    (folder / "warehouse").mkdir(exist_ok=True)
    uri = f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_lake_tables_have_each_order_once(
    spark: SparkSession, ours: Site, tmp_path: Path, kind: str
) -> None:
    check_each_order_once(spark, ours, tmp_path, kind)


def test_files_of_sparks_file_sink_have_each_order_once(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "with spaces"
    folder.mkdir()
    check_each_order_once(spark, site, folder, "parquet")


def check_each_order_once(spark: SparkSession, ours: Site, tmp_path: Path, kind: str) -> None:
    topic = ours.create_topic(f"pipeline-{kind}")
    send_orders(ours, topic, range(40))
    sink: dict[str, Any] = {"format": kind, "partitionBy": ["city"]}
    if kind == "iceberg":
        sink |= {"table": "shop.orders", "catalog": catalog_of(tmp_path)}
    else:
        sink["path"] = str(tmp_path / "table")
    given = job_of(
        ours,
        topic,
        tmp_path,
        sink=sink,
        deduplicate={"keys": ["id"], "watermark": "10 minutes"},
        transform=[{"sql": "SELECT id, amount * 2 AS doubled, city FROM input"}],
    )
    progress = run(spark, given)
    main = [each for each in progress if each.query == "orders-query"]
    assert sum(each.rows or 0 for each in main) == 44
    assert main[-1].lag == 0
    expected = [number for number in range(40) if number % 7 and number not in (13, 15)]
    assert ids_in_table(spark, kind, tmp_path) == expected
    delete_last_commit(tmp_path / "checkpoint")
    send_orders(ours, topic, range(40, 50))
    run(spark, given)
    expected += [number for number in range(40, 50) if number % 7]
    assert ids_in_table(spark, kind, tmp_path) == expected
    bad = table_at(spark, str(tmp_path / "quarantine")).collect()
    reasons = {int(row["keys"]): row["reason"] for row in bad}
    # Invalid rows are not deduplicated: order 21 was sent twice and is there twice.
    assert sorted(int(row["keys"]) for row in bad) == [0, 7, 13, 14, 15, 21, 21, 28, 35, 42, 49]
    assert reasons[13] == "the body is no JSON of the schema"
    assert reasons[15] == reasons[0] == "positive"
    (row,) = [row for row in bad if row["keys"] == "13"]
    assert row["body"] == b'{"id": 13, '
    assert row["topic"] == topic
    assert row["msgId"]
    assert row["queueId"] in range(4)
    assert row["queueOffset"] >= 0


def test_windows_quarantine_status_and_backfill(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-windows")
    send_orders(ours, topic, range(20))
    given = job_of(
        ours,
        topic,
        tmp_path,
        aggregate={
            "time": "storeTimestamp",
            "window": "1 hour",
            "by": ["city"],
            "values": {"orders": "count(*)", "total": "sum(amount)"},
            "outputMode": "complete",
        },
        sink={"path": str(tmp_path / "table")},
    )
    given["source"]["group"] = ours.new_group("windows")
    before = job_status(parse_job(copy.deepcopy(given)))
    assert (before.lag, before.last_batch) == (22, None)
    run(spark, given)
    good = [number for number in range(20) if number % 7 and number not in (13, 15)]
    good += [1, 11]

    def totals(path: Path) -> dict[str, int]:
        sums: dict[str, int] = {"c0": 0, "c1": 0}
        for row in table_at(spark, str(path)).collect():
            sums[row["city"]] += row["orders"]
        return sums

    expected = {f"c{rest}": sum(number % 2 == rest for number in good) for rest in (0, 1)}
    assert totals(tmp_path / "table") == expected
    bad = table_at(spark, str(tmp_path / "quarantine")).collect()
    assert sorted(int(row["keys"]) for row in bad) == [0, 7, 13, 14, 15]
    after = job_status(parse_job(copy.deepcopy(given)))
    assert (after.lag, after.last_batch) == (0, 0)
    assert sum(queue.position or 0 for queue in after.queues) == 22
    # The same job as a batch into other tables; a second run changes nothing.
    filled = copy.deepcopy(given)
    filled["sink"]["path"] = str(tmp_path / "filled")
    filled["quarantine"]["path"] = str(tmp_path / "filled_quarantine")
    until = int(time.time() * 1000)
    for rows in ([22], [None]):
        progress: list[Progress] = []
        Pipeline(parse_job(copy.deepcopy(filled)), spark).back_fill(0, until, progress.append)
        assert [each.rows for each in progress] == rows
    assert totals(tmp_path / "filled") == expected
    assert table_at(spark, str(tmp_path / "filled_quarantine")).count() == 5


def send_timed(site: Site, topic: str, *times: tuple[int, str]) -> None:
    with Producer("timed", name_servers=site.namesrv) as producer:
        for number, at in times:
            body = json.dumps({"id": number, "at": at, "city": "c"})
            producer.send(Message(topic, body.encode(), keys=str(number)))


def test_invalid_row_does_not_advance_the_watermark(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-late")
    given = job_of(
        ours,
        topic,
        tmp_path,
        sink={"path": str(tmp_path / "table")},
        deduplicate={"keys": ["id"], "watermark": "1 minute", "time": "at"},
        expect=[{"name": "of this age", "condition": "at < '2100-01-01'"}],
    )
    given["parse"]["schema"] = "id long, at timestamp, city string"
    send_timed(ours, topic, (1, "2026-01-31T12:00:00Z"), (2, "9999-01-01T00:00:00Z"))
    run(spark, given)
    send_timed(ours, topic, (3, "2026-01-31T12:00:01Z"), (1, "2026-01-31T12:00:00Z"))
    run(spark, given)
    assert ids_in_table(spark, "delta", tmp_path) == [1, 3]
    (bad,) = table_at(spark, str(tmp_path / "quarantine")).collect()
    assert (bad["keys"], bad["reason"]) == ("2", "of this age")


def test_windows_with_deduplication(spark: SparkSession, ours: Site, tmp_path: Path) -> None:
    topic = ours.create_topic("pipeline-both")
    given = job_of(
        ours,
        topic,
        tmp_path,
        sink={"path": str(tmp_path / "table")},
        deduplicate={"keys": ["id"], "watermark": "1 minute", "time": "at"},
        aggregate={
            "time": "at",
            "window": "1 minute",
            "watermark": "2 minutes",
            "values": {"orders": "count(*)"},
        },
        expect=[],
    )
    given["parse"] = {"schema": "id long, at timestamp", "onViolation": "drop"}
    del given["quarantine"]
    times = [(1, "12:00:00"), (1, "12:00:05"), (2, "12:00:10"), (3, "12:01:00"), (4, "12:09:00")]
    send_timed(ours, topic, *((number, f"2026-01-31T{at}Z") for number, at in times))
    run(spark, given)
    rows = table_at(spark, str(tmp_path / "table")).orderBy("windowStart").collect()
    # The last window has not ended yet.
    assert [row["orders"] for row in rows] == [2, 1]


def test_changed_windows_are_updated_until_the_watermark(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-changed")
    given = job_of(
        ours,
        topic,
        tmp_path,
        sink={"path": str(tmp_path / "table"), "partitionBy": ["day"]},
        transform=[{"sql": "SELECT id, at, date_format(at, 'yyyy-MM-dd') AS day FROM input"}],
        aggregate={
            "time": "at",
            "window": "1 minute",
            "watermark": "2 minutes",
            "by": ["day"],
            "values": {"orders": "count(*)"},
            "outputMode": "update",
        },
        expect=[],
    )
    given["parse"] = {"schema": "id long, at timestamp", "onViolation": "drop"}
    del given["quarantine"], given["source"]["maxOffsetsPerTrigger"]

    def after(*times: str) -> tuple[dict[str, int], int]:
        """Send orders and run; returns the orders of every minute and the number of late rows."""
        send_timed(ours, topic, *((0, f"2026-01-{at}:00Z") for at in times))
        progress = run(spark, given)
        table = table_at(spark, str(tmp_path / "table"))
        rows = table.selectExpr("date_format(windowStart, 'dd HH:mm') AS at", "orders").collect()
        assert len(rows) == len({row["at"] for row in rows})
        return {row["at"]: row["orders"] for row in rows}, sum(each.late for each in progress)

    first = {"30T23:59": 2, "31T00:00": 1}
    expected = {at.replace("T", " "): orders for at, orders in first.items()}
    assert after("30T23:59", "31T00:00", "30T23:59") == (expected, 0)
    # Rows in time, for an ended and for a current minute; also if the batch is repeated.
    expected |= {"30 23:59": 3, "31 00:00": 2, "31 00:01": 1}
    assert after("30T23:59", "31T00:00", "31T00:01") == (expected, 0)
    delete_last_commit(tmp_path / "checkpoint")
    delete_last_commit(tmp_path / "checkpoint")
    expected |= {"31 09:00": 1}
    assert after("31T09:00") == (expected, 0)
    # A late row does not change its window.
    expected |= {"31 09:00": 2}
    assert after("31T00:01", "31T09:00") == (expected, 1)
    state = spark.read.format("statestore").load(str(tmp_path / "checkpoint" / "query"))
    assert state.count() == 1


def test_log_files_are_backfilled_between_two_times(spark: SparkSession, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        topic = NumberedTopic(site, "files", queues=1)
        for _ in range(2):
            topic.fill(5)
            time.sleep(0.01)  # so that the messages of the two fills have different times
        stored = (
            spark.read.format("rocketmq").options(**topic.options()).load().orderBy("queueOffset")
        )
        times = [row[0] for row in stored.selectExpr("unix_millis(storeTimestamp)").collect()]
        given = {
            "name": "files",
            "source": {
                "format": "rocketmq-log",
                "path": str(cluster.brokers[0].home / "store"),
                "subscribe": topic.name,
            },
            "sink": {"path": str(tmp_path / "table")},
            "run": {"checkpoint": str(tmp_path / "checkpoint")},
        }
        progress: list[Progress] = []
        Pipeline(parse_job(given), spark).back_fill(times[0], times[5], progress.append)
    assert [each.rows for each in progress] == [None]
    assert numbers(table_at(spark, str(tmp_path / "table"))) == list(range(5))


def test_repeated_backfill_without_an_end_adds_the_new_messages(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(ours, "pipeline-refill")
    path = str(tmp_path / "table")
    given = {
        "name": "refill",
        "source": topic.options(startingOffsets="latest"),
        "transform": [{"sql": "SELECT body FROM input"}],
        "sink": {"path": path},
        "run": {"checkpoint": str(tmp_path / "checkpoint"), "trigger": "10 seconds"},
    }

    def fill(end_ms: int | None) -> str | None:
        pipeline = Pipeline(parse_job(copy.deepcopy(given)), spark)
        pipeline.back_fill(0, end_ms, lambda _: None)
        return pipeline.summary

    for count in (4, 8):
        topic.fill(4)
        assert fill(None) is None
        assert numbers(table_at(spark, path)) == list(range(count))
    # One with an end covers the same messages again, and runs once.
    until = int(time.time() * 1000)
    given["sink"] = {"path": f"{path}-until"}
    assert fill(until) is None
    assert fill(until) == f"{path}-until: filled between these times before, and left alone"
    assert deltalake.DeltaTable(f"{path}-until").count() == 8
    with pytest.raises(PipelineError, match="a back-fill ends in the past"):
        fill(until + 3_600_000)
    # The other table would not have what the first one has.
    with pytest.raises(PipelineError, match="is the checkpoint of a stream from"):
        fill(None)
    given["deduplicate"] = {}
    given["sink"] = {"path": path}
    with pytest.raises(PipelineError, match="needs an end, so that every row is in one batch"):
        fill(None)


def test_checkpoint_is_used_by_one_job_and_one_run_at_a_time(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(ours, "pipeline-own")
    topic.fill(4)
    path = str(tmp_path / "checkpoint")
    given = {
        "name": "first",
        "source": topic.options(startingOffsets="earliest"),
        "sink": {"path": str(tmp_path / "table")},
        "run": {"checkpoint": path},
    }
    with (
        Checkpoint(spark, parse_job(copy.deepcopy(given))).running("run"),
        pytest.raises(PipelineError, match=f"first: it runs already, as process {os.getpid()}"),
    ):
        run(spark, given)
    run(spark, given)
    assert table_at(spark, str(tmp_path / "table")).count() == 4
    with pytest.raises(PipelineError, match="is the checkpoint of the job first"):
        run(spark, given | {"name": "second"})


def test_checkpoint_of_another_source_or_sink_is_refused(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic, other = NumberedTopic(ours, "pipeline-a"), NumberedTopic(ours, "pipeline-b")
    topic.fill(4)
    other.fill(4)
    source = topic.options(startingOffsets="earliest")
    given = {
        "name": "places",
        "source": source,
        "sink": {"path": str(tmp_path / "wrong")},
        "run": {"checkpoint": str(tmp_path / "checkpoint")},
        "transform": [{"sql": "SELECT missing FROM input"}],
    }
    with pytest.raises(PipelineError, match="missing"):
        run(spark, given)
    # Nothing was read yet, so the job may still be corrected.
    given |= {"transform": [{"sql": "SELECT body FROM input"}]}
    given |= {"sink": {"path": str(tmp_path / "table")}}
    run(spark, given)
    elsewhere = {"path": str(tmp_path / "elsewhere")}
    for changed, words in (
        ({"source": other.options()}, f"topics {other.name} to"),
        ({"sink": elsewhere}, f"path {tmp_path}/elsewhere; messages"),
        ({"sink": elsewhere | {"format": "delta"}}, "format delta"),
    ):
        with pytest.raises(PipelineError, match=f"is the checkpoint of a stream .*{words}"):
            run(spark, given | changed)
    both = source | {"subscribe": f"{topic.name},{other.name}"}
    run(spark, given | {"source": both})
    assert table_at(spark, str(tmp_path / "table")).count() == 8


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("damage", ["restored", "deleted"])
def test_older_checkpoint_does_not_skip_messages(
    spark: SparkSession, ours: Site, tmp_path: Path, kind: str, damage: str
) -> None:
    topic = NumberedTopic(ours, f"pipeline-{damage}-{kind}")
    sink: dict[str, Any] = {"format": kind, "path": str(tmp_path / "table")}
    if kind == "iceberg":
        sink = {"format": kind, "table": "shop.orders", "catalog": catalog_of(tmp_path)}
    checkpoint = tmp_path / "checkpoint"
    given = {
        "name": "restored",
        "source": topic.options(startingOffsets="earliest"),
        "transform": [{"sql": "SELECT cast(cast(body AS string) AS int) AS id FROM input"}],
        "sink": sink,
        "run": {"checkpoint": str(checkpoint)},
    }
    topic.fill(4)
    run(spark, given)
    shutil.copytree(checkpoint, tmp_path / "copy")
    topic.fill(4)
    run(spark, given)
    topic.fill(4)
    if damage == "restored":
        shutil.rmtree(checkpoint)
        (tmp_path / "copy").rename(checkpoint)
    else:
        for name in ("offsets", "commits"):
            for path in (checkpoint / "query" / name).glob("*1*"):
                path.unlink()
    with pytest.raises(PipelineError, match=r"batch 1 now has other messages; nothing was written"):
        run(spark, given)
    assert ids_in_table(spark, kind, tmp_path) == list(range(8))


@pytest.mark.parametrize("written_file", ["offsets/1", "commits/0"])
def test_concurrent_writes_to_the_checkpoint_end_the_run(
    spark: SparkSession, ours: Site, tmp_path: Path, written_file: str
) -> None:
    """Without a lock the run fails on the files that the other run has written."""
    topic = NumberedTopic(ours, "pipeline-shared")
    topic.fill(8)
    path = tmp_path / "checkpoint"
    name = f"another_run_{written_file.partition('/')[0]}"
    (tmp_path / f"{name}.py").write_text(
        "from pathlib import Path\n\n"
        "def write_offsets(frame):\n"
        f"    Path({str(path)!r}, 'query', {written_file!r}).write_text('v1\\n{{}}')\n"
        "    return frame\n"
    )
    given = {
        "name": "shared",
        "source": topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="4"),
        "transform": [{"python": f"{name}:write_offsets"}],
        "sink": {"format": "noop"},
        "run": {"checkpoint": str(path)},
    }
    words = f"^shared: another run uses the checkpoint {path} at the same time; this one has ended"
    with pytest.raises(PipelineError, match=words):
        run(spark, given, tmp_path)


@pytest.mark.parametrize("then", ["return frame", "raise ValueError('half of it is gone')"])
def test_last_started_run_takes_over_the_checkpoint(
    spark: SparkSession, ours: Site, tmp_path: Path, then: str
) -> None:
    """Without locks: the checkpoint is on a file system that is not known to be local."""
    topic = NumberedTopic(ours, "pipeline-elsewhere")
    topic.fill(8)
    context: Any = attrgetter("_jsc")(spark.sparkContext)
    mount = f"fs.viewfs.mounttable.{tmp_path.name.replace('_', '-')}.link./all"
    context.hadoopConfiguration().set(mount, f"file://{tmp_path}")
    path = f"viewfs://{tmp_path.name.replace('_', '-')}/all/checkpoint"
    name = f"taking_over_and_{then.partition(' ')[0]}"
    (tmp_path / f"{name}.py").write_text(
        "from pathlib import Path\n\n"
        "def take_over(frame):\n"
        f"    folder = Path({str(tmp_path)!r}, 'checkpoint/runs/run')\n"
        "    (mark,) = folder.glob('[!.]*')\n"
        "    mark.unlink()\n"
        "    (folder / 'other').write_text('process 7 on host')\n"
        f"    {then}\n"
    )
    given: dict[str, Any] = {
        "name": "elsewhere",
        "source": topic.options(startingOffsets="earliest"),
        "sink": {"path": str(tmp_path / "table")},
        "run": {"checkpoint": path},
    }
    words = f"^elsewhere: another run, process 7 on host, has taken over the checkpoint {path}; see"
    with pytest.raises(PipelineError, match=words):
        run(spark, given | {"transform": [{"python": f"{name}:take_over"}]}, tmp_path)
    # The next run takes over from the other one and repeats the batch.
    run(spark, given)
    assert numbers(table_at(spark, str(tmp_path / "table"))) == list(range(8))
    marks = tmp_path / "checkpoint" / "runs" / "run"
    assert not list(marks.iterdir())
    # Another run took over after the last batch and has ended: this run does not compact.
    topic.fill(1)
    given["sink"]["compact"] = True

    def lose_the_mark(_batch: Progress) -> None:
        for mark in marks.iterdir():
            mark.unlink()

    words = f"^elsewhere: another run had taken over the checkpoint {path} and has ended; see to"
    with pytest.raises(PipelineError, match=words):
        Pipeline(parse_job(copy.deepcopy(given)), spark).run(lose_the_mark)


def test_failing_function_is_named_with_its_line(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(ours, "pipeline-failing")
    topic.fill(2)
    (tmp_path / "failing_on_purpose.py").write_text(
        "def fail(frame):\n    return {}['x']\n\n\ndef odd(frame):\n    return 5\n\n\n"
        "def late(frame):\n"
        "    from pyspark.sql.functions import udf\n"
        "    return frame.select(udf(boom, useArrow=False)('body').alias('x'))\n\n\n"
        "def boom(body):\n    raise ValueError('row boom')\n"
    )
    (tmp_path / "no_python_at_all.py").write_text("def fail(:\n")
    given = {
        "name": "failing",
        "source": topic.options(startingOffsets="earliest"),
        "sink": {"path": str(tmp_path / "table")},
        "run": {"checkpoint": str(tmp_path / "checkpoint")},
    }
    for function, words in {
        "failing_on_purpose:fail": r"failed in line 2 of failing_on_purpose\.py: KeyError: 'x'",
        "failing_on_purpose:odd": "returned int; a DataFrame is wanted",
        "failing_on_purpose:nothing": "has no function nothing",
        "no_python_at_all:fail": "cannot be used: SyntaxError",
        # Fails on an executor, while rows are processed.
        "failing_on_purpose:late": r"failed in line 15 of failing_on_purpose\.py: .*row boom",
    }.items():
        steps = {"transform": [{"python": function}]}
        with pytest.raises(PipelineError, match=f"{function} .*{words}"):
            run(spark, given | steps, tmp_path)


def test_failed_expectation_ends_the_job_with_a_clear_error(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-fail")
    send_orders(ours, topic, range(3))
    sink = {"path": str(tmp_path / "table")}
    given = job_of(ours, topic, tmp_path, sink=sink)
    del given["quarantine"]
    given["parse"] = {"schema": "infer"}
    given["expect"][0]["onViolation"] = "fail"
    words = "orders: batch 0: a row is not accepted: positive; it is the message [0-9A-F]{32}"
    with pytest.raises(PipelineError, match=words):
        run(spark, given)
    assert deltalake.DeltaTable(str(tmp_path / "table")).count() == 0
    # With the row accepted, the job continues there, with the schema of its first run.
    given["expect"][0]["onViolation"] = "drop"
    run(spark, given)
    assert ids_in_table(spark, "delta", tmp_path) == [1, 1, 2]
    schema = json.loads((tmp_path / "checkpoint" / "schema.json").read_text())
    assert {field["name"] for field in schema["fields"]} == {"id", "amount", "city"}
    given["expect"][0]["condition"] = "amonut > 0"
    given["run"]["checkpoint"] = str(tmp_path / "other")
    with pytest.raises(PipelineError, match="amonut"):
        run(spark, given)


def test_python_transform_with_a_topic_as_sink(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    numbered = NumberedTopic(ours, "pipeline-python")
    numbered.fill(30)
    out = ours.create_topic("pipeline-out")
    (tmp_path / "halving_of_numbers.py").write_text(
        "def halve(frame):\n"
        "    return frame.where('cast(cast(body AS string) AS int) % 2 = 0')"
        ".select('body', 'keys')\n"
    )
    given = {
        "name": "halves",
        "source": numbered.options(startingOffsets="earliest"),
        "transform": [{"python": "halving_of_numbers:halve"}],
        "sink": {"format": "rocketmq", "topic": out},
        "run": {"checkpoint": str(tmp_path / "checkpoint")},
    }
    run(spark, given, tmp_path)
    delete_last_commit(tmp_path / "checkpoint")
    run(spark, given, tmp_path)
    options = {"nameServers": ours.namesrv, "subscribe": out}
    sent = spark.read.format("rocketmq").options(**options).load()
    # At least once; duplicates have the same idempotence key.
    assert sent.count() == 30
    keys = sent.selectExpr("cast(body AS string) AS b", f"properties['{ROW_PROPERTY}'] AS k")
    assert keys.distinct().count() == 15


def test_parsing_of_every_format(spark: SparkSession, tmp_path: Path) -> None:
    stream = io.BytesIO()
    schema = fastavro.parse_schema(AVRO)
    fastavro.schemaless_writer(stream, schema, {"id": 5, "city": "x"})
    ddl = "id long, city string"
    none = (None, None)
    cases: list[tuple[Parse, bytes, tuple[Any, ...], str | None]] = []
    json_parse = Parse(format="json", schema=ddl)
    cases.append((json_parse, b'{"id": 5, "city": "x", "more": 1}', (5, "x"), None))
    cases.append((json_parse, b"{}", none, None))
    cases.append((json_parse, b"", none, "the body is no JSON"))
    cases.append((json_parse, b"nothing", none, "the body is no JSON of the schema"))
    cases.append((json_parse, b'{"id": "five"}', none, "the body is no JSON of the schema"))
    cases.append((json_parse, b'{"city": "\xff"}', none, "the body is not UTF-8"))
    csv_parse = Parse(format="csv", schema=ddl, options={"sep": ";"})
    cases.append((csv_parse, b"5;x", (5, "x"), None))
    cases.append((csv_parse, b"five;x", none, "the body is no CSV of the schema"))
    cases.append((csv_parse, b"5", none, "the body is no CSV of the schema"))
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    avro_parse = Parse(format="avro", schema_file="order.avsc")
    cases.append((avro_parse, stream.getvalue(), (5, "x"), None))
    cases.append((avro_parse, b"\x01", none, "the body is no AVRO of the schema"))
    for kind in ("json", "csv", "avro"):
        chosen = [case for case in cases if case[0].format == kind]
        frame = spark.createDataFrame([(body,) for _, body, _, _ in chosen], "body binary")
        found = parsed(frame.coalesce(1), chosen[0][0], as_schema(spark, ddl), tmp_path).collect()
        for row, (_, body, values, problem) in zip(found, chosen, strict=True):
            assert row[PROBLEM] == problem, body
            if problem is None:
                assert (row["id"], row["city"]) == values


def test_unknown_fields_are_rescued_and_counted(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-rescue")

    def send(*bodies: str) -> None:
        with Producer("rescue", name_servers=ours.namesrv) as producer:
            for body in bodies:
                producer.send(Message(topic, body.encode()))

    given = job_of(ours, topic, tmp_path, sink={"path": str(tmp_path / "table")}, expect=[])
    given["parse"] = {"schema": "infer"}
    given["transform"] = [{"sql": "SELECT id, _rescued FROM input"}]
    send('{"id": 1}', '{"id": 2}')
    run(spark, given)
    send('{"id": 3, "x": {"y": [1, "a"]}, "z": null}', '{"id": 4}', '{"id": "no"}')
    (progress,) = run(spark, given)
    rows = {
        row["id"]: row["_rescued"] for row in table_at(spark, str(tmp_path / "table")).collect()
    }
    assert json.loads(rows.pop(3)) == {"x": {"y": [1, "a"]}, "z": None}
    assert rows == {1: None, 2: None, 4: None}
    assert progress.counts is not None
    assert (progress.counts.rescued, progress.counts.quarantined) == (1, 1)


def test_quality_table_and_metrics_count_violations(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-quality")
    send_orders(ours, topic, range(20))
    sink = {"path": str(tmp_path / "table")}
    given = job_of(ours, topic, tmp_path, sink=sink)
    given["expect"].append({"name": "c0", "condition": "city = 'c0'", "onViolation": "drop"})
    given["monitoring"] = {"prometheusFile": str(tmp_path / "metrics" / "orders.prom")}
    progress = run(spark, given)
    counts = [each.counts for each in progress if each.counts is not None]
    # Of 22 rows, 5 violate the first rule (0, 7, 14; 15 without amount) or are no JSON (13).
    expected = {"[parse]": 1, "positive": 4, "c0": 11}
    for rule, number in expected.items():
        assert sum(each.violations[rule] for each in counts) == number
    assert sum(each.quarantined for each in counts) == 5
    assert sum(each.dropped for each in counts) == 9
    quality = table_at(spark, str(tmp_path / "table_quality")).collect()
    found = dict.fromkeys(expected, 0)
    for row in quality:
        found[row["rule"]] += row["violations"]
    assert found == expected
    assert sum(row["rows"] for row in quality) == 3 * 22
    text = (tmp_path / "metrics" / "orders.prom").read_text()
    labels = 'job="orders",query="orders-query"'
    assert f"goddard_pipeline_messages_total{{{labels}}} 22\n" in text
    assert f'goddard_pipeline_violations_total{{{labels},rule="c0"}} 11\n' in text
    assert f"goddard_pipeline_lag_messages{{{labels}}} 0\n" in text


def test_transform_that_reads_few_rows_keeps_the_quarantine_whole(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-limit")
    # The first row of every queue is valid.
    send_orders(ours, topic, range(1, 20))
    given = job_of(ours, topic, tmp_path, sink={"path": str(tmp_path / "table")})
    given["transform"] = [{"sql": "SELECT id FROM input LIMIT 1"}]
    del given["source"]["maxOffsetsPerTrigger"]
    run(spark, given)
    assert table_at(spark, str(tmp_path / "table")).count() == 1
    bad = table_at(spark, str(tmp_path / "quarantine")).collect()
    assert sorted(int(row["keys"]) for row in bad) == [7, 13, 14, 15]


def test_transforms_after_a_deduplication_get_whole_batches(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(ours, "pipeline-per-batch")
    topic.fill(6)
    given: dict[str, Any] = {
        "name": "whole",
        "source": topic.options(startingOffsets="earliest"),
        "deduplicate": {"keys": ["tags"]},
        "transform": [{"sql": "SELECT count(*) AS rows, max(tags) AS tag FROM input"}],
        "sink": {"path": str(tmp_path / "table")},
        "run": {"checkpoint": str(tmp_path / "checkpoint")},
    }
    run(spark, given)
    rows = table_at(spark, str(tmp_path / "table")).collect()
    # Spark adds a batch without messages to advance the watermark.
    assert [(row["rows"], row["tag"]) for row in rows if row["rows"]] == [(2, "odd")]


def test_rules_that_change_in_the_middle_of_a_batch_are_refused(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = ours.create_topic("pipeline-rules")
    send_orders(ours, topic, range(10))
    given = job_of(ours, topic, tmp_path, sink={"path": str(tmp_path / "table")})
    del given["source"]["maxOffsetsPerTrigger"]
    # The quarantine cannot be written, after the valid rows were.
    (tmp_path / "quarantine" / "batches").mkdir(parents=True)
    (tmp_path / "quarantine" / "batches").chmod(0)
    blocked = tmp_path / "quarantine" / "_delta_log"
    blocked.write_text("")
    with pytest.raises(PipelineError):
        run(spark, given)
    assert table_at(spark, str(tmp_path / "table")).count() == 9
    (tmp_path / "quarantine" / "batches").chmod(0o700)
    blocked.unlink()
    changed = copy.deepcopy(given)
    changed["expect"][0]["condition"] = "amount > 1"
    with pytest.raises(PipelineError, match="was changed after the valid rows of batch 0"):
        run(spark, changed)
    run(spark, given)
    run(spark, changed)
    bad = table_at(spark, str(tmp_path / "quarantine")).collect()
    assert sorted(int(row["keys"]) for row in bad) == [0, 7]
    assert table_at(spark, str(tmp_path / "table")).count() == 9


def as_schema(spark: SparkSession, ddl: str) -> Any:
    empty: DataFrame = spark.createDataFrame([], ddl)
    return empty.schema
