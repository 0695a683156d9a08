"""kill -9 of a driver, of its Python workers and of the broker, each in the middle of a batch.

What is in the table is there once, what is in the topic at least once, counted by number. By
default a few kills of each; GODDARD_SPARK_CYCLES says how many.
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
from tests.support.numbered import NumberedTopic
from tests.support.sparkjob import READY

from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.site import Site

CYCLES = int(os.environ.get("GODDARD_SPARK_CYCLES", "2"))
_SECONDS = 240
_BATCH = 50

pytestmark = pytest.mark.timeout(400 + 120 * CYCLES)


class Job:
    """The streaming job, and what it left behind."""

    def __init__(self, folder: Path, source: NumberedTopic, target: NumberedTopic) -> None:
        self.folder = folder
        self.source = source
        folder.mkdir()
        values = {
            # A task that fails is tried again.
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
            [sys.executable, "-m", "tests.support.sparkjob", str(folder)],
            log=folder / "output.log",
            ready=READY,
            start_timeout=_SECONDS,
        )

    def start(self) -> None:
        if not self.process.is_running:
            self.process.start()

    def kill(self) -> None:
        """The driver and its Java at once, as when their machine fails."""
        os.killpg(self.process.pid, signal.SIGKILL)
        wait_until(lambda: not self.process.is_running, _SECONDS, "the driver is dead")

    def await_mid_batch(self) -> None:
        """Wait for a batch that is planned and not done, while there is more to come."""
        if self.batches("commits") >= self.batches("offsets"):
            self.source.fill(4 * _BATCH)
        wait_until(self._is_in_mid_batch, _SECONDS, "a batch begins")

    def await_progress(self) -> None:
        """Wait for one more batch, of messages that come now if there are no others."""
        done = self.batches("commits")
        self.source.fill(_BATCH)
        wait_until(lambda: self.batches("commits") > done, _SECONDS, "it goes on")

    def _is_in_mid_batch(self) -> bool:
        if not self.process.is_running:
            raise AssertionError(f"the job ended:\n{self.process.output()[-3000:]}")
        # Spark itself refuses a checkpoint whose very first offsets were being written at the kill.
        has_begun = self.batches("offsets", of="topic") > 0
        return has_begun and self.batches("commits") < self.batches("offsets")

    def batches(self, kind: str, *, of: str = "table") -> int:
        folder = self.folder / f"checkpoint-{of}" / kind
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0

    def workers(self) -> list[int]:
        """Python processes that run tasks: the children of one of Spark's daemons.

        Those of others work for the driver, and Spark ends the query when one dies.
        """
        return [
            worker
            for java in _children(self.process.pid)
            for daemon in _children(java)
            if b"\0pyspark.daemon\0pyspark.worker\0" in _command(daemon)
            for worker in _children(daemon)
        ]

    def finish(self) -> dict[str, Any]:
        """Let it read the rest; what is in table and topic then."""
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
        made = Job(tmp_path / "job", source, target)
        with made.process:
            yield made


def check(job: Job, record: Callable[[str, object], None]) -> None:
    result = job.finish()
    everything = list(range(job.source.count))
    assert len(everything) >= 4 * _BATCH
    assert result["table"] == everything, "once into the table"
    assert sorted(set(result["topic"])) == everything, "at least once into the topic"
    assert result["identities"] == len(everything), "a key for each row, the same when repeated"
    record("kills of each kind", CYCLES)
    record("messages", len(everything))
    record("again in the topic", len(result["topic"]) - len(everything))


def test_of_the_driver(job: Job, record_property: Callable[[str, object], None]) -> None:
    for _ in range(CYCLES):
        job.start()
        job.await_mid_batch()
        job.kill()
    check(job, record_property)


def test_of_python_workers_and_of_the_broker(
    job: Job, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(7)
    broker = job.source.site.broker
    job.start()
    for _ in range(CYCLES):
        job.await_mid_batch()
        workers = wait_until(job.workers, _SECONDS, "workers run")
        os.kill(chance.choice(workers), signal.SIGKILL)
        job.await_progress()
        job.await_mid_batch()
        broker.restart()
        job.await_progress()
    check(job, record_property)
