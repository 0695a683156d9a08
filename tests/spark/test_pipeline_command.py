"""``goddard pipeline``: successful runs, and errors with one clear line and an exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from goddard.cli.commands import goddard
from goddard.pipelines.lakehouse import read_delta
from goddard.testing.ports import lease_port
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic

_JOB = """
name = "numbers"
[source]
startingOffsets = "earliest"
[[transform]]
sql = "{query}"
{more}
[sink]
[run]
"""
_QUERY = "SELECT cast(body AS string) AS number FROM input"
# A transform that stops the run and then waits until its query is stopped.
_STOPPING = """
import os, signal, time

def stopped(frame):
    os.kill(os.getpid(), signal.SIGTERM)
    deadline = time.monotonic() + 60
    while frame.sparkSession.streams.active and time.monotonic() < deadline:
        time.sleep(0.1)
    raise InterruptedError
"""


def count(spark: SparkSession, path: str) -> int:
    table = read_delta(spark, path)
    return 0 if table is None else table.count()


class Command:
    """Runs the command with a valid job; arguments may make it invalid."""

    def __init__(self, topic: NumberedTopic, folder: Path) -> None:
        self._job = folder / "job.toml"
        self.write(_QUERY)
        # An absolute path, because Java runs in another directory.
        self.table = str(folder / "table")
        self._args = [
            *(str(self._job), *_set("subscribe", topic.name)),
            *_set("path", self.table, "sink"),
            *_set("checkpoint", str(folder / "checkpoint"), "run"),
        ]
        self._site = topic.site

    def write(self, query: str, more: str = "") -> None:
        self._job.write_text(_JOB.format(query=query, more=more))

    def __call__(self, verb: str, *more: str) -> tuple[int, str, str]:
        args = ["pipeline", verb, *self._args, "-n", self._site.namesrv, *more]
        done = CliRunner().invoke(goddard, args)
        return done.exit_code, done.stdout, done.stderr

    def error_of(self, *more: str, verb: str = "run") -> str:
        code, _, error = self(verb, *more)
        assert code == 1
        (line,) = error.splitlines()
        return line


def _set(name: str, value: str, table: str = "source") -> list[str]:
    return ["--set", f"{table}.{name}={value}"]


@pytest.fixture
def command(spark: SparkSession, ours: Site, tmp_path: Path) -> Command:
    # The command uses the active session and does not stop it.
    assert SparkSession.getActiveSession() is spark
    topic = NumberedTopic(ours, "command")
    # One of the four queues stays empty.
    topic.fill(3)
    return Command(topic, tmp_path)


def test_valid_job_runs_and_reports_its_status(command: Command, spark: SparkSession) -> None:
    code, output, _ = command("run")
    assert code == 0
    assert "numbers-query batch 0: 3 rows in" in output
    assert "numbers: 3 messages in" in output
    assert count(spark, command.table) == 3
    code, output, _ = command("status")
    assert code == 0
    assert "0 messages behind; the last batch was 0; 1 other queue is empty" in output
    assert len([line for line in output.splitlines() if "broker" in line]) == 1 + 3
    # The same messages again, selected by time.
    assert command("run", "--from", "2020-01-01")[0] == 0
    assert count(spark, command.table) == 6
    assert command("plan", "--explain")[0] == 0
    command.write("SELECT 5 AS number FROM input")
    line = command.error_of("--from", "2020-01-02")
    assert line.startswith("Error: numbers: file:")
    assert line.endswith(
        "has the column number as string, and the rows have it as int32; "
        "cast it in a transform, or write another table"
    )
    assert count(spark, command.table) == 6


def test_every_error_is_one_line(command: Command) -> None:
    unreachable = f"127.0.0.1:{lease_port()}"
    cases = {
        "no name server answers": ["-n", unreachable],
        "No route info of this topic: nowhere": _set("subscribe", "nowhere"),
        "cannot be written to": _set("path", "/proc/nowhere/table", "sink"),
        "/proc/nowhere/c cannot be written to": _set("checkpoint", "/proc/nowhere/c", "run"),
        "partitionBy names day, which the rows do not have": _set("partitionBy", "day", "sink"),
        "is not after --from": ["--from", "2026-01-02", "--to", "2026-01-01"],
        "--conf x has no '='": ["--conf", "x"],
    }
    for words, more in cases.items():
        assert words in command.error_of(*more), more
    # None of the failed runs prevents a later one.
    assert command("run")[0] == 0


def test_unreachable_name_server_is_reported_before_spark_starts(tmp_path: Path) -> None:
    """In its own process, where log lines would be printed too."""
    job = tmp_path / "job.toml"
    job.write_text(_JOB.format(query=_QUERY, more=""))
    unreachable = f"127.0.0.1:{lease_port()}"
    args = [
        "run",
        str(job),
        "-n",
        unreachable,
        *_set("subscribe", "T"),
        *_set("path", "table", "sink"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "goddard.cli.main", "pipeline", *args],
        cwd=tmp_path,
        env=os.environ | {"PATH": "", "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"goddard: numbers: no name server answers; at {unreachable}; ")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT nmber FROM input", "Did you mean one of the following?"),
        ("SELEKT * FROM input", "Syntax error at or near 'SELEKT'"),
        ("SELECT nosuch(body) FROM input", "nosuch"),
    ],
)
def test_invalid_sql_is_one_line(command: Command, sql: str, words: str) -> None:
    command.write(sql)
    line = command.error_of()
    assert line.startswith("Error: numbers: [[transform]] 1: ")
    assert words in line
    assert "SQLSTATE" not in line
    assert words in command.error_of("--explain", verb="plan")


@pytest.mark.parametrize("condition", ["nmber > 0", "number >> > 0"])
def test_invalid_condition_is_one_line(command: Command, condition: str) -> None:
    command.write(
        _QUERY, f"[[expect]]\nname = 'positive'\ncondition = '{condition}'\nonViolation = 'drop'"
    )
    assert command.error_of().startswith("Error: numbers: [[expect]] positive: ")


def test_stopped_run_continues_with_the_next_run(
    command: Command, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stopping.py").write_text(_STOPPING)
    monkeypatch.syspath_prepend(tmp_path)
    command.write(_QUERY, "[[transform]]\npython = 'stopping:stopped'")
    code, output, error = command("run")
    assert code == 128 + signal.SIGTERM
    assert "numbers: 0 messages in" in output
    assert error == "stopped before all messages were read; the next run continues from here\n"
    command.write(_QUERY)
    assert command("run")[0] == 0
    assert count(spark, command.table) == 3


def test_checkpoint_of_another_job_is_refused(command: Command) -> None:
    assert command("run")[0] == 0
    line = command.error_of("--set", "name=others")
    assert line.endswith("is the checkpoint of the job numbers; give this one its own in [run]")


def test_replay_without_a_table_is_refused(command: Command) -> None:
    args = ["pipeline", "replay", "--where", "true", *_set("path", command.table, "sink")]
    done = CliRunner().invoke(goddard, args)
    assert done.exit_code == 1
    expected = f"Error: there is no table at {command.table} yet; run the pipeline first\n"
    assert done.stderr == expected
