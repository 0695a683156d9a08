"""How ``goddard pipeline run`` ends: stopped, Java killed, or refused because it runs already."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from goddard.cli.commands import goddard
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic

_SECONDS = 300

pytestmark = pytest.mark.timeout(2 * _SECONDS)

_JOB = """
name = "numbers"
[source]
nameServers = "{name_servers}"
subscribe = "{topic}"
startingOffsets = "earliest"
[sink]
path = "{folder}/table"
[run]
trigger = "1 second"
checkpoint = "{folder}/checkpoint"
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Process]:
    """A running job that has processed all available messages."""
    with Cluster(tmp_path / "cluster") as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        topic = NumberedTopic(site, "numbers")
        topic.fill(20)
        text = _JOB.format(name_servers=site.namesrv, topic=topic.name, folder=tmp_path)
        (tmp_path / "job.toml").write_text(text)
        job = Process(
            "pipeline",
            [
                *(sys.executable, "-m", "goddard.cli.main", "pipeline", "run"),
                str(tmp_path / "job.toml"),
            ],
            log=tmp_path / "output.log",
            ready="batch 0: ",
            start_timeout=_SECONDS,
        )
        with job:
            yield job.start()


def test_second_run_is_refused_and_killed_java_is_reported(
    running: Process, tmp_path: Path
) -> None:
    # The second run is refused before Spark starts.
    second = CliRunner().invoke(goddard, ["pipeline", "run", str(tmp_path / "job.toml")])
    assert second.exit_code == 1
    expected = (
        f"Error: numbers: it runs already, as process {running.pid}; wait for it or stop it\n"
    )
    assert second.stderr == expected
    os.kill(_java(running.pid), signal.SIGKILL)
    wait_until(lambda: not running.is_running, _SECONDS, "the job ends")
    assert running.exit_code == 1
    last, *before = reversed(running.output().splitlines())
    assert last.startswith("goddard: numbers: Spark's Java process has ended")
    assert last.endswith("run it again")
    assert not [line for line in before if "Traceback" in line or "rror" in line]


def test_stop_signal_to_driver_and_java(running: Process) -> None:
    """Service managers send the signal to all processes of a service."""
    for pid in (running.pid, _java(running.pid)):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not running.is_running, _SECONDS, "the job ends")
    assert running.exit_code == 0
    assert running.output().splitlines()[-1].startswith("numbers: 20 messages in")
    assert "rror" not in running.output()


def _java(pid: int) -> int:
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    (java,) = [
        child for child in children if b"java" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return java
