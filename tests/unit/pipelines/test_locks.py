"""Only one run of a job at a time; checked before Spark starts."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from goddard.cli.commands import goddard
from goddard.errors import ConfigError
from goddard.pipelines import checkpoint
from goddard.pipelines.config import load_job

_JOB = """
name = "small"
[source]
nameServers = "127.0.0.1:9876"
subscribe = "t"
[sink]
path = "{folder}/table"
[run]
checkpoint = "{folder}/checkpoint"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(_JOB.format(folder=tmp_path))
    return path


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("checkpoints/a", Path("checkpoints/a")),
        ("/data/a", Path("/data/a")),
        ("file:/data/a", Path("/data/a")),
        ("file:///data/a", Path("/data/a")),
        ("hdfs://host/data/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_only_local_paths_have_locks(
    path: str, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert checkpoint.local_folder(path) == folder
    assert checkpoint.local_folder("a", {"spark.hadoop.fs.defaultFS": "hdfs://host"}) is None
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert checkpoint.local_folder("a") is None


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with checkpoint.held(tmp_path, "run"):
        with (
            pytest.raises(ConfigError, match=f"it runs already, as process {os.getpid()}; wait"),
            checkpoint.held(tmp_path, "run"),
        ):
            raise AssertionError
        with checkpoint.held(tmp_path, "back-fill-1"):
            pass
    with checkpoint.held(tmp_path, "run"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot be written to \(Not a directory\)"),
        checkpoint.held(tmp_path / "file" / "checkpoint", "run"),
    ):
        raise AssertionError


def test_the_command_refuses_before_spark_starts(file: Path, tmp_path: Path) -> None:
    # Nothing listens on the name server's address: the job is refused before it is asked.
    with checkpoint.held(tmp_path / "checkpoint", checkpoint.STREAM):
        done = CliRunner().invoke(goddard, ["pipeline", "run", str(file)])
    assert done.exit_code == 1
    said = f"it runs already, as process {os.getpid()}; wait for it or stop it"
    assert done.stderr == f"Error: small: {said}\n"
    job = load_job(file)
    with checkpoint.held(tmp_path / "checkpoint", checkpoint.back_fill_name(job, 5, None)):
        done = CliRunner().invoke(goddard, ["pipeline", "run", str(file), "--from", "5"])
    assert (done.exit_code, done.stderr) == (1, f"Error: small: {said}\n")
