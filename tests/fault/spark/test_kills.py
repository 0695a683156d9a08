"""kill -9 of the driver, of its Python workers and of the broker, each in the middle of a batch.

Every message must be in the table exactly once and in the topic at least once. The environment
variable GODDARD_SPARK_CYCLES sets the number of kills of each kind.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic
from tests.support.spark_job import READY

CYCLES = int(os.environ.get("GODDARD_SPARK_CYCLES", "2"))
_SECONDS = 240
_BATCH = 50

pytestmark = pytest.mark.timeout(400 + 120 * CYCLES)


class Job:
    """The streaming job in its own process, and its files."""

    def __init__(self, folder: Path, source: NumberedTopic, target: NumberedTopic) -> None:
        self.folder = folder
        self.source = source
        folder.mkdir()
        values = {
            # Failed tasks are retried.
            "master": "local[2,4]",
            "source": source.options(
                startingOffsets="earliest",
                maxOffsetsPerTrigger=str(_BATCH),
                requestTimeoutMs="2000",
            ),
            "sink": {"nameServers": target.site.namesrv, "topic": target.name},
        }
        (folder / "job.json").write_text(json.dumps(values))
        self.process = Process(
            "Spark job",
            [sys.executable, "-m", "tests.support.spark_job", str(folder)],
            log=folder / "output.log",
            ready=READY,
            start_timeout=_SECONDS,
        )

    def start(self) -> None:
        if not self.process.is_running:
            self.process.start()

    def kill(self) -> None:
        """Kill the driver and its Java process together, as when their machine fails."""
        os.killpg(self.process.pid, signal.SIGKILL)
        wait_until(lambda: not self.process.is_running, _SECONDS, "the driver is dead")

    def await_mid_batch(self) -> None:
        """Wait until a batch is planned and not committed."""
        if self.batches("commits") >= self.batches("offsets"):
            self.source.fill(4 * _BATCH)
        wait_until(self._is_in_mid_batch, _SECONDS, "a batch begins")

    def await_progress(self) -> None:
        """Send messages and wait for one more committed batch."""
        done = self.batches("commits")
        self.source.fill(_BATCH)
        wait_until(lambda: self.batches("commits") > done, _SECONDS, "a batch is committed")

    def _is_in_mid_batch(self) -> bool:
        if not self.process.is_running:
            raise AssertionError(f"the job ended:\n{self.process.output()[-3000:]}")
        # Spark rejects a checkpoint if the driver is killed while it writes the first offsets.
        has_begun = self.batches("offsets", of="topic") > 0
        return has_begun and self.batches("commits") < self.batches("offsets")

    def batches(self, kind: str, *, of: str = "table") -> int:
        folder = self.folder / f"checkpoint-{of}" / kind
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0

    def workers(self) -> list[int]:
        """The Python processes that run tasks: the children of pyspark's worker daemon.

        Other Python processes work for the driver; Spark ends the query when one of them dies.
        """
        return [
            worker
            for java in _children(self.process.pid)
            for daemon in _children(java)
            if b"\0pyspark.daemon\0pyspark.worker\0" in _command(daemon)
            for worker in _children(daemon)
        ]

    def finish(self) -> dict[str, Any]:
        """Let the job process all messages and stop; returns its results."""
        self.start()
        (self.folder / "stop").touch()
        wait_until(lambda: not self.process.is_running, _SECONDS, "the job ends")
        assert self.process.exit_code == 0, self.process.output()[-3000:]
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Cluster(tmp_path / "cluster") as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        source, target = NumberedTopic(site, "from"), NumberedTopic(site, "to")
        source.fill(4 * _BATCH)
        running_job = Job(tmp_path / "job", source, target)
        with running_job.process:
            yield running_job


def check(job: Job, record: Callable[[str, object], None]) -> None:
    result = job.finish()
    everything = list(range(job.source.count))
    assert len(everything) >= 4 * _BATCH
    assert result["table"] == everything, "exactly once in the table"
    assert sorted(set(result["topic"])) == everything, "at least once in the topic"
    assert result["row_keys"] == len(everything), "duplicates have the same key"
    record("kills of each kind", CYCLES)
    record("messages", len(everything))
    record("duplicates in the topic", len(result["topic"]) - len(everything))


def test_kill_driver(job: Job, record_property: Callable[[str, object], None]) -> None:
    for _ in range(CYCLES):
        job.start()
        job.await_mid_batch()
        job.kill()
    check(job, record_property)


def test_kill_python_workers_and_broker(
    job: Job, record_property: Callable[[str, object], None]
) -> None:
    generator = random.Random(7)
    broker = job.source.site.broker
    job.start()
    for _ in range(CYCLES):
        job.await_mid_batch()
        workers = wait_until(job.workers, _SECONDS, "workers run")
        os.kill(generator.choice(workers), signal.SIGKILL)
        job.await_progress()
        job.await_mid_batch()
        broker.restart()
        job.await_progress()
    check(job, record_property)
