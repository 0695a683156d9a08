"""The folder of a job's checkpoint: whose it is, who runs now, and what the first run saw.

    job.json      the job that began it; another job would go on where that one stopped
    schema.json   the schema that was inferred when the job first ran
    locks/        files that a run holds a lock on, on this machine's disks
    runs/         elsewhere: the mark of the run that began last
    query/, quarantine/   Spark's: offsets, commits, state

Other places than disks know no locks, and nobody can tell a run that was killed from one that is
slow. So there the one that begins last has the checkpoint: it removes the marks of others, who find
theirs gone at their next batch and end. Spark would notice too, but only when both write down the
same batch, with half of it written by each.

Used by the driver.
"""

import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines import locks
from goddard.pipelines.tables.batches import query_name
from goddard.pipelines.tables.files import Files

_OWNER: Final = "job.json"
_SCHEMA: Final = "schema.json"
_RUNS: Final = "runs"


class Checkpoint:
    """One job's folder, at any place that Spark can write to; ConfigError if it is another's."""

    def __init__(self, spark: SparkSession, path: str, job_name: str) -> None:
        self._files = Files(spark, path)
        self._job_name = job_name
        # Ours in ``runs``, where there are no locks.
        self._mark: str | None = None
        if self._files.exists(_OWNER):
            owner = json.loads(self._files.read_text(_OWNER)).get("job")
            if owner != job_name:
                raise ConfigError(
                    f"{path} is the checkpoint of the job {owner}; give this one its own in [run]"
                )

    @contextmanager
    def running(self, what: str, *, is_held: bool = False) -> Iterator[None]:
        """Keep other processes from running the same, unless the caller does so already."""
        self._files.make_root()
        if not self._files.exists(_OWNER):
            self._files.write_text(_OWNER, json.dumps({"job": self._job_name}))
        folder = locks.local_folder(self._files.root)
        if folder is None:
            self._mark = self._take_over(f"{_RUNS}/{what}")
            yield
            self._files.delete(self._mark)
            self._mark = None
        elif is_held:
            yield
        else:
            with locks.held(folder, what):
                yield

    def _take_over(self, folder: str) -> str:
        self._files.delete(folder)
        self._files.make_folder(folder)
        mark = f"{folder}/{uuid.uuid4().hex}"
        self._files.write_text(mark, f"process {os.getpid()} on {socket.gethostname()}")
        return mark

    def check_alone(self) -> None:
        """ConfigError if another run has begun since; always fine where locks are held."""
        if self._mark is None:
            return
        folder, _, own = self._mark.rpartition("/")
        # Of two that began at the very same time both marks are there, and one is the first.
        names = [name for name in self._files.names(folder) if not name.startswith(".")]
        if not names:
            raise ConfigError(
                f"another run had taken over the checkpoint {self._files.root} and has ended; "
                "see to it that there is only one"
            )
        if names[0] != own:
            other = self._files.read_text(f"{folder}/{names[0]}")
            raise ConfigError(
                f"another run, {other}, has taken over the checkpoint {self._files.root}; "
                "see to it that there is only one"
            )

    def query(self, name: str) -> str:
        """Where Spark keeps what it knows of a query."""
        return self._files.full(name)

    def query_id(self, name: str) -> str:
        """The name of a query in all its runs."""
        return query_name(json.loads(self._files.read_text(f"{name}/metadata"))["id"])

    def schema(self) -> StructType | None:
        if not self._files.exists(_SCHEMA):
            return None
        return StructType.fromJson(json.loads(self._files.read_text(_SCHEMA)))

    def keep_schema(self, schema: StructType) -> None:
        self._files.make_root()
        self._files.write_text(_SCHEMA, schema.json())
