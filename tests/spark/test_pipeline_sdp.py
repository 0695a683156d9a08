"""Jobs exported as projects of Spark Declarative Pipelines.

``spark-pipelines`` needs Spark Connect, whose packages are not installed with Goddard. So the
exported file is run by ``LocalGraph``, which creates its tables in the shared session.
"""

import json
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import Output, Sink, StreamingTable
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from goddard import Message, Producer
from goddard.cli.pipeline import pipeline
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic
from tests.support.spark_readers import read_numbers, retry_worker_start

_SECONDS = 200
_ORDERS = """
name = "{name}"
[source]
nameServers = "127.0.0.1:1"
subscribe = "{topic}"
startingOffsets = "earliest"
[parse]
schemaFile = "order.ddl"
[[expect]]
condition = "amount > 0"
[[expect]]
condition = "city != 'Nowhere'"
onViolation = "drop"
[deduplicate]
keys = ["id"]
[[transform]]
sql = "SELECT id, amount, city, '{{}}' AS braces FROM input;"
[[transform]]
python = "prices:doubled"
[sink]
path = "tables/orders"
partitionBy = ["city"]
[quarantine]
path = "tables/bad"
[run]
trigger = "1 minute"
"""


class LocalGraph(GraphElementRegistry):
    """Runs the flows of a project once, in the order in which they were declared."""

    def __init__(self) -> None:
        self.outputs: dict[str, Output] = {}
        self.flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        self.outputs[output.name] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise NotImplementedError

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise NotImplementedError

    def run(self, project: Path) -> None:
        (program,) = (project / "transformations").glob("*.py")
        with graph_element_registration_context(self):
            runpy.run_path(str(program))
        for flow in self.flows:
            self._run_flow(flow, project / "storage" / flow.name)

    def _run_flow(self, flow: Flow, checkpoint: Path) -> None:
        output = self.outputs[flow.target]
        with pytest.MonkeyPatch.context() as patch:
            # Spark refuses these in the query of a table.
            for name in ("columns", "isStreaming", "schema"):
                patch.setattr(DataFrame, name, property(_refuse_analysis))
            frame = flow.func()
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(availableNow=True)
        if isinstance(output, Sink):
            query = writer.format(output.format).options(**output.options).start()
        else:
            assert isinstance(output, StreamingTable)
            if output.partition_cols:
                writer = writer.partitionBy(*output.partition_cols)
            query = writer.format(output.format or "parquet").toTable(flow.target)
        assert query.awaitTermination(_SECONDS)


def _refuse_analysis(_: DataFrame) -> None:
    raise AssertionError("ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION")


def export(job: Path, project: Path, *options: str) -> Result:
    return CliRunner().invoke(pipeline, ["export", str(job), "--sdp", str(project), *options])


def test_exported_project_writes_valid_and_invalid_rows(
    spark: SparkSession, ours: Site, tmp_path: Path
) -> None:
    topic = NumberedTopic(ours, "declared")
    orders = [
        {"id": 1, "amount": 2, "city": "Oslo"},
        {"id": 1, "amount": 2, "city": "Oslo"},
        {"id": 2, "amount": 3, "city": "Rome"},
        {"id": 3, "amount": 0, "city": "Rome"},
        {"id": 4, "amount": 1, "city": "Nowhere"},
    ]
    with Producer("orders", name_servers=ours.namesrv) as producer:
        for order in orders:
            producer.send(Message(topic.name, json.dumps(order).encode()))
        producer.send(Message(topic.name, b"no JSON"))
    job = tmp_path / "job"
    job.mkdir()
    (job / "orders.toml").write_text(_ORDERS.format(name="declared-1", topic=topic.name))
    (job / "order.ddl").write_text("id long, amount double, city string")
    (job / "prices.py").write_text(
        "from pyspark.sql.functions import col\n\n"
        "def doubled(frame):\n    return frame.withColumn('amount', col('amount') * 2)\n"
    )
    project = tmp_path / "project"
    result = export(job / "orders.toml", project, "-n", ours.namesrv)
    assert result.exit_code == 0, result.output
    assert "left out: [run] trigger 1 minute" in result.output
    assert 'name: "declared_1"' in (project / "spark-pipeline.yml").read_text()
    # The project does not depend on the folder of the job file.
    for path in job.iterdir():
        path.unlink()
    LocalGraph().run(project)
    rows = spark.table("declared_1").select("id", "amount", "city", "braces").orderBy("id")
    assert rows.collect() == [(1, 4.0, "Oslo", "{}"), (2, 6.0, "Rome", "{}")]
    bad = spark.table("declared_1_quarantine")
    assert sorted(row.reason for row in bad.collect()) == [
        "amount > 0",
        "the body is no JSON of the schema",
    ]
    for name in ("declared_1", "declared_1_quarantine"):
        spark.sql(f"DROP TABLE {name}")


def test_exported_project_writes_to_a_topic(
    ours: Site, spark: SparkSession, tmp_path: Path
) -> None:
    source, target = NumberedTopic(ours, "declared-from"), NumberedTopic(ours, "declared-to")
    source.fill(10)
    job = tmp_path / "copy.toml"
    job.write_text(
        f'name = "copy"\n[source]\nsubscribe = "{source.name}"\nstartingOffsets = "earliest"\n'
        f'[[transform]]\nsql = "SELECT body FROM input"\n'
        f'[sink]\nformat = "rocketmq"\ntopic = "{target.name}"\n'
    )
    result = export(job, tmp_path / "project", "-n", ours.namesrv)
    assert result.exit_code == 0, result.output
    retry_worker_start(lambda: LocalGraph().run(tmp_path / "project"))
    assert read_numbers(target.options()) == list(range(10))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[parse]\nschema = "infer"\n[sink]\npath = "t"', "declare the schema"),
        (
            '[sink]\npath = "t"\nmode = "upsert"\nkeys = ["msgId"]\nsequence = "storeTimestamp"',
            "mode is upsert",
        ),
        ('[sink]\nformat = "console"', "its sink is console"),
        (
            '[aggregate]\nwindow = "1 minute"\nvalues = { n = "count(*)" }\n'
            'outputMode = "update"\n[sink]\npath = "t"',
            "outputMode is update",
        ),
        ('[parse]\nschemaFile = "../x.ddl"\n[sink]\npath = "t"', "not in the folder"),
    ],
)
def test_jobs_without_a_counterpart_are_refused(tmp_path: Path, more: str, words: str) -> None:
    (tmp_path / "x.ddl").write_text("id long")
    job = tmp_path / "jobs" / "job.toml"
    job.parent.mkdir()
    job.write_text(f'name = "j"\n[source]\nnameServers = "a:1"\nsubscribe = "T"\n{more}\n')
    result = export(job, tmp_path / "project")
    assert result.exit_code == 1
    assert words in result.output
    assert not (tmp_path / "project").exists()


def test_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(pipeline, ["export", "archive", "--sdp", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not empty; give a new folder" in result.output
