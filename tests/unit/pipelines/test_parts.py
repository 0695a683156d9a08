"""The parts of pipelines that run without Spark."""

import datetime as dt
import io
import json
import logging
import signal
import tomllib
import uuid
from pathlib import Path

import fastavro
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from goddard.cli.commands import goddard
from goddard.cli.pipeline import is_not_of_py4j, stop_on_signals
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.pipelines.builtin import builtin_names, find_job
from goddard.pipelines.checkpoint import single
from goddard.pipelines.config import load_job
from goddard.pipelines.errors import root_cause
from goddard.pipelines.files import literal
from goddard.pipelines.job import interval_ms
from goddard.pipelines.lakehouse import partition_values
from goddard.pipelines.parse import AvroDecoder
from goddard.pipelines.status import checkpoint_offsets
from goddard.spark.reading import offsets


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3a://bucket/a b/day=1", "s3a://bucket/a b/day=1"),
        ("file:/t[1]/x{a,b}", r"file:/t\[1\]/x\{a,b\}"),
        ("a*b?c\\d", r"a\*b\?c\\d"),
    ],
)
def test_patterns_without_wildcards_are_paths(path: str, expected: str) -> None:
    assert literal(path) == expected


def test_only_log_records_of_py4j_are_suppressed() -> None:
    def is_shown(path: str) -> bool:
        return is_not_of_py4j(logging.LogRecord("root", logging.ERROR, path, 1, "x", None, None))

    assert not is_shown("/lib/site-packages/py4j/java_gateway.py")
    assert is_shown("/home/py4j/jobs/steps.py")


def test_ids_of_single_batches() -> None:
    assert single("a", 1, None) == single("a", 1, None)
    assert single("a", 1, None) != single("a", 1, 2)
    assert not single("a").is_of_stream


def test_partition_values_from_folder_names() -> None:
    assert partition_values("") == {}
    assert partition_values("day=2026-01-31/city=a%2Fb") == {"day": "2026-01-31", "city": "a/b"}
    assert partition_values("city=__HIVE_DEFAULT_PARTITION__") == {"city": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10 minutes", 600_000), ("1 day", 86_400_000), ("5m", None), ("", None), ("-1 day", None)],
)
def test_intervals(text: str, expected: int | None) -> None:
    assert interval_ms(text) == expected


# Avro

_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "amounts", "type": {"type": "array", "items": "double"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def _body(order_id: uuid.UUID, at: dt.datetime) -> bytes:
    stream = io.BytesIO()
    record = {"id": order_id, "amounts": [1.5, 2.5], "at": at}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(_SCHEMA), record)
    return stream.getvalue()


def test_avro_bodies_become_rows() -> None:
    order_id, at = uuid.uuid4(), dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    body = _body(order_id, at)
    expected = {"id": str(order_id), "amounts": [1.5, 2.5], "at": at}
    assert AvroDecoder(_SCHEMA, 0, "problem")(body) == expected
    assert AvroDecoder(_SCHEMA, 5, "problem")(b"\0\0\0\0\1" + body) == expected


def test_other_bytes_fail_only_their_row() -> None:
    body = _body(uuid.uuid4(), dt.datetime(2026, 1, 31, tzinfo=dt.UTC))
    decode = AvroDecoder(_SCHEMA, 0, "problem")
    for wrong in (b"", None, body[:-1], body[:5], b"\xff" * 30, b"\x01" * 40):
        assert set(decode(wrong)) == {"problem"}
    assert decode(body + b"x") == {"problem": "the body has bytes after its AVRO"}


# Checkpoints


def _checkpoint(folder: Path, commits: list[int], ends: dict[int, str]) -> None:
    for name in ("commits", "offsets"):
        (folder / "query" / name).mkdir(parents=True)
    for number in commits:
        (folder / "query" / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    for number, text in ends.items():
        (folder / "query" / "offsets" / str(number)).write_text(f"v1\n{{}}\n{text}")


def test_the_offsets_of_the_last_batch_are_read_from_the_checkpoint(tmp_path: Path) -> None:
    queue = MessageQueue("t", "b", 0)
    ends = {at: json.dumps(offsets.to_json({queue: 10 * at})) for at in (9, 10, 11)}
    _checkpoint(tmp_path, [9, 10], ends)
    (tmp_path / "query" / "commits" / ".10.crc").write_text("")
    assert checkpoint_offsets(str(tmp_path)) == (10, {queue: 100})
    assert checkpoint_offsets(f"file://{tmp_path}") == (10, {queue: 100})


def test_an_unreadable_checkpoint_has_no_offsets(tmp_path: Path) -> None:
    assert checkpoint_offsets(str(tmp_path)) is None
    _checkpoint(tmp_path / "a", [], {})
    assert checkpoint_offsets(str(tmp_path / "a")) is None
    _checkpoint(tmp_path / "b", [0], {0: "no JSON"})
    assert checkpoint_offsets(str(tmp_path / "b")) is None
    _checkpoint(tmp_path / "c", [0], {0: "[1]"})
    assert checkpoint_offsets(str(tmp_path / "c")) is None


# Errors


_UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. "
    "SQLSTATE: 42703; line 1 pos 7;\n'Project ['nope]\n"
)
_WRITING = (
    "An error occurred while calling o314.parquet.\n"
    ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030\n"
    "\tat org.apache.spark.sql.errors.X(X.scala:823)\n"
    "Caused by: java.io.IOException: Mkdirs failed to create file:/x\n"
)
_NO_FORMAT = (
    "An error occurred while calling o1.save.\n"
    ": org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] No such source: hudi\n"
    "Caused by: java.lang.ClassNotFoundException: hudi.DefaultSource\n"
)
_IN_A_TASK = (
    "[STREAM_FAILED] Query failed\n"
    "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "x.py", line 1\n{line}\n'
    "\tat java\nCaused by: java.lang.RuntimeException: around it\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_UNRESOLVED, "A column with name `nope` cannot be resolved; line 1 pos 7"),
        (_WRITING, "Mkdirs failed to create file:/x"),
        (_NO_FORMAT, "No such source: hudi"),
        (_IN_A_TASK.format(line="goddard.errors.ConfigError: no such topic"), "no such topic"),
        (_IN_A_TASK.format(line="KeyError: 'x'"), "KeyError: 'x'"),
        ("Query [id = 1-2, runId = 3-4] terminated with exception: No such file", "No such file"),
        ("", "PySparkException"),
    ],
)
def test_errors_of_spark_are_one_sentence(text: str, expected: str) -> None:
    assert root_cause(PySparkException(text)) == expected


def test_other_errors_are_shown_with_their_type() -> None:
    assert root_cause(ConfigError("no such topic")) == "no such topic"
    assert root_cause(KeyError("x")) == "KeyError: 'x'"
    assert root_cause(ValueError("one\ntwo")) == "ValueError: one"
    assert root_cause(RuntimeError()) == "RuntimeError"
    assert root_cause(PermissionError(13, "Permission denied", "/x")) == "Permission denied: /x"
    assert root_cause(OSError("cannot make /x")) == "cannot make /x"


# Ready pipelines


def test_builtin_pipelines_are_valid_and_described() -> None:
    assert builtin_names() == ("archive", "dead-letter", "traffic")
    for name in builtin_names():
        job = find_job(name, {"source.nameServers": "h:1"})
        assert job.name == name
        assert job.description
        assert job.source.options["nameServers"] == "h:1"


def test_an_unknown_pipeline_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean archive"):
        find_job("archiv")
    with pytest.raises(ConfigError, match=r"x\.toml does not exist"):
        find_job("x.toml")
    with pytest.raises(ConfigError, match=r"\.\. is a folder; a job file is wanted, or archive, "):
        find_job("..")
    with pytest.raises(ConfigError, match=r"^archive: \[sink\] pth is unknown"):
        find_job("archive", {"sink.pth": "x"})


def test_examples_are_valid() -> None:
    examples = Path(__file__).parents[3] / "examples" / "pipelines"
    found = sorted(examples.glob("*.toml"))
    assert len(found) >= 3
    for path in found:
        assert load_job(path).name
        tomllib.loads(path.read_text())


# The command


def test_the_command_checks_and_explains_without_spark(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "archive: valid" in runner.invoke(goddard, ["pipeline", "validate", "archive"]).output
    listed = runner.invoke(goddard, ["pipeline", "list"]).output
    assert all(name in listed for name in builtin_names())
    args = ["pipeline", "plan", "archive", "-n", "h:1", "--set", "sink.path=elsewhere"]
    planned = runner.invoke(goddard, args).output
    assert "nameServers=h:1" in planned
    assert "delta elsewhere, by day, topic (exactly once)" in planned
    secret = ["--set", "source.accessKey=a", "--set", "source.secretKey=hush"]
    planned = runner.invoke(goddard, [*args, *secret]).output
    assert "secretKey=***" in planned
    assert "hush" not in planned
    # A sink topic is accessed with the same credentials.
    sending = [*_sink_of(tmp_path), "--set", "source.accessKey=a", "--set", "source.secretKey=hush"]
    planned = runner.invoke(goddard, ["pipeline", "plan", *sending]).output
    assert planned.count("secretKey=***") == 2
    for words in ("when they change, and dropped 1 hour after their end", "note:"):
        args = ["pipeline", "plan", "traffic", "--set", "source.maxOffsetsPerTrigger=5"]
        assert words in " ".join(runner.invoke(goddard, args).output.split())
    assert "hush" not in planned
    wrong = runner.invoke(goddard, ["pipeline", "validate", "archive", "--set", "sink.pth=x"])
    assert wrong.exit_code == 1
    assert "did you mean path?" in wrong.output
    wrong = runner.invoke(goddard, ["pipeline", "run", "archive", "--from", "yesterday"])
    assert wrong.exit_code == 1
    assert "--from is 'yesterday'" in wrong.output
    times = ["--from", "2026-01-31", "--to", "2026-01-30"]
    wrong = runner.invoke(goddard, ["pipeline", "run", "archive", *times])
    assert wrong.exit_code == 1
    assert "--to 2026-01-30 is not after --from 2026-01-31" in wrong.output


def _sink_of(folder: Path) -> list[str]:
    path = folder / "job.toml"
    path.write_text(
        "name = 'x'\n[source]\nnameServers = 'h:1'\nsubscribe = 't'\n"
        "[sink]\nformat = 'rocketmq'\ntopic = 'u'\n"
    )
    return [str(path)]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        "name = 'x'\n[source]\nnameServers = 'h:1'\nsubscribe = 't'\n"
        "[sink]\nformat = 'delta'\npath = 'tables/x'\n"
    )
    args = ["pipeline", "validate", str(path)]
    assert CliRunner().invoke(goddard, args).exit_code == 0
    # As if it were not installed.
    monkeypatch.setattr("goddard.extras.find_spec", lambda _: None)
    wrong = CliRunner().invoke(goddard, args)
    assert wrong.exit_code == 1
    assert "deltalake is not installed; it comes with the extra 'spark'" in wrong.output
    assert "pip install '.[spark]'" in wrong.output


def test_a_second_ctrl_c_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGINT):
        with stop_on_signals() as stop:
            signal.raise_signal(number)
            assert stop.wait(10)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
