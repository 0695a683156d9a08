"""The folder of a job's checkpoint: whose it is, who runs now, and what the first run saw.

    job.json      the job that began it; another job would go on where that one stopped
    schema.json   the schema that was inferred when the job first ran
    locks/        files that a run holds a lock on, on this machine's disks
    query/, quarantine/   Spark's: offsets, commits, state

Used by the driver.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines.batches import query_name
from goddard.pipelines.files import Files

_OWNER: Final = "job.json"
_SCHEMA: Final = "schema.json"
_LOCAL: Final = "file:"


class Checkpoint:
    """One job's folder, at any place that Spark can write to; ConfigError if it is another's."""

    def __init__(self, spark: SparkSession, path: str, job_name: str) -> None:
        self._files = Files(spark, path)
        self._job_name = job_name
        if self._files.exists(_OWNER):
            owner = json.loads(self._files.read_text(_OWNER)).get("job")
            if owner != job_name:
                raise ConfigError(
                    f"{path} is the checkpoint of the job {owner}; give this one its own in [run]"
                )

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Keep other processes from running the same; a process that is killed lets go at once.

        Other places than disks know no locks: there Spark notices, one batch later.
        """
        self._files.make_root()
        if not self._files.exists(_OWNER):
            self._files.write_text(_OWNER, json.dumps({"job": self._job_name}))
        if not self._files.root.startswith(_LOCAL):
            yield
            return
        folder = Path(self._files.root.removeprefix(_LOCAL)) / "locks"
        folder.mkdir(exist_ok=True)
        with (folder / what).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise ConfigError(
                    f"it runs already, as process {file.read(20).strip()}; wait for it or stop it"
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

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
