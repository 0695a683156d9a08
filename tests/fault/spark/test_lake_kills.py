"""kill -9 of pipelines in the middle of a batch: Delta and Iceberg tables have each message once.

One job writes both: valid rows to a Delta table, the others to a quarantine table in Iceberg. By
default there is one kill. The environment variable GODDARD_SPARK_CYCLES sets another number.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.site import Site
from tests.support.numbered_topic import NumberedTopic

CYCLES = int(os.environ.get("GODDARD_SPARK_CYCLES", "1"))
_SECONDS = 240
_BATCH = 100

pytestmark = pytest.mark.timeout(400 + 120 * CYCLES)

_JOB = """
name = "numbers"
[source]
nameServers = "{name_servers}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {batch}
[parse]
format = "text"
[[expect]]
name = "even"
condition = "cast(text AS int) % 2 = 0"
[[transform]]
sql = "SELECT cast(text AS bigint) AS number, queueId FROM input"
[run]
trigger = "1 second"
checkpoint = "{folder}/checkpoint"
"""
_TABLES = """
[sink]
format = "delta"
path = "{folder}/good"
partitionBy = ["queueId"]
[quarantine]
format = "iceberg"
table = "numbers.odd"
[quarantine.catalog]
type = "sql"
uri = "sqlite:///{folder}/catalog.db"
warehouse = "file://{folder}/warehouse"
"""


class Pipeline:
    """A pipeline in its own process, and its tables."""

    def __init__(self, folder: Path, source: NumberedTopic) -> None:
        self.folder = folder
        self.source = source
        (folder / "warehouse").mkdir(parents=True)
        values = {"folder": folder, "topic": source.name, "batch": _BATCH}
        text = (_JOB + _TABLES).format(name_servers=source.site.namesrv, **values)
        (folder / "job.toml").write_text(text)
        self.command = [
            *(sys.executable, "-m", "goddard.cli.main", "pipeline", "run"),
            *(str(folder / "job.toml"), "--master", "local[2]"),
        ]
        self.process = Process(
            "pipeline",
            self.command,
            log=folder / "output.log",
            ready=" batch ",
            start_timeout=_SECONDS,
        )

    def kill_in_mid_batch(self, delay_seconds: float) -> None:
        self.process.start()
        self.source.fill(2 * _BATCH)
        wait_until(self._is_in_mid_batch, _SECONDS, "a batch begins")
        time.sleep(delay_seconds)  # to kill at a random point of the batch
        # Kill the driver and its Java process together, as when their machine fails.
        os.killpg(self.process.pid, signal.SIGKILL)
        wait_until(lambda: not self.process.is_running, _SECONDS, "the driver is dead")

    def _is_in_mid_batch(self) -> bool:
        if not self.process.is_running:
            raise AssertionError(f"the job ended:\n{self.process.output()[-3000:]}")
        return self._batches("commits") < self._batches("offsets")

    def _batches(self, kind: str) -> int:
        folder = self.folder / "checkpoint" / "query" / kind
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.is_dir() else 0

    def finish(self) -> None:
        """Process all remaining messages and stop."""
        command = [*self.command, "--set", "run.trigger=availableNow"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def good(self) -> list[int]:
        table = deltalake.DeltaTable(str(self.folder / "good"))
        assert table.count() == table.to_pyarrow_table().num_rows
        return sorted(row["number"] for row in table.to_pyarrow_table().to_pylist())

    def bad(self) -> list[int]:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        catalog = load_catalog("default", type="sql", uri=uri, warehouse=warehouse)
        rows = catalog.load_table("numbers.odd").scan().to_arrow().to_pylist()
        return sorted(int(row["body"]) for row in rows)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with Cluster(tmp_path / "cluster") as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        source = NumberedTopic(site, "numbers")
        source.fill(_BATCH)
        pipeline = Pipeline(tmp_path / "job", source)
        with pipeline.process:
            yield pipeline


def test_tables_have_each_message_once(pipeline: Pipeline) -> None:
    generator = random.Random(11)
    for _ in range(CYCLES):
        pipeline.kill_in_mid_batch(generator.uniform(0, 2))
    pipeline.finish()
    everything = range(pipeline.source.count)
    assert pipeline.good() == [number for number in everything if number % 2 == 0]
    assert pipeline.bad() == [number for number in everything if number % 2]
