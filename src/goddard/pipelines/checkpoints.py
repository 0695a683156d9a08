"""The folder of a job's checkpoint: whose it is, who runs now, and what the first run saw.

    job.json      the job that began it; another job would go on where that one stopped
    schema.json   the schema that was inferred when the job first ran
    locks/        files that a run holds a lock on, on this machine's disks
    query/, quarantine/   Spark's: offsets, commits, state

Used by the driver.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines import locks
from goddard.pipelines.batches import query_name
from goddard.pipelines.files import Files

_OWNER: Final = "job.json"
_SCHEMA: Final = "schema.json"


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
    def running(self, what: str, *, is_held: bool = False) -> Iterator[None]:
        """Keep other processes from running the same, unless the caller does so already.

        Other places than disks know no locks: there Spark notices, one batch later.
        """
        self._files.make_root()
        if not self._files.exists(_OWNER):
            self._files.write_text(_OWNER, json.dumps({"job": self._job_name}))
        folder = locks.local_folder(self._files.root)
        if is_held or folder is None:
            yield
            return
        with locks.held(folder, what):
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
