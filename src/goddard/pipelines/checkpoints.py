"""The folder of a job's checkpoint: whose it is, who runs now, and what the first run saw.

    job.json      the job that began it; another job would go on where that one stopped
    places.json   the source and the sink of the stream, for the same reason
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
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines import locks
from goddard.pipelines.jobs.job import MESSAGES, Job
from goddard.pipelines.tables.batches import query_name
from goddard.pipelines.tables.files import Files
from goddard.spark.options import parse_source
from goddard.spark.reading import offsets
from goddard.spark.reading.offsets import OffsetsError

_OWNER: Final = "job.json"
_PLACES: Final = "places.json"
_SCHEMA: Final = "schema.json"
_RUNS: Final = "runs"


class Checkpoint:
    """One job's folder, at any place that Spark can write to; ConfigError if it is another's."""

    def __init__(self, spark: SparkSession, job: Job) -> None:
        path, job_name = job.run.checkpoint, job.name
        self._files = Files(spark, path)
        self._job = job
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
            self._files.write_text(_OWNER, json.dumps({"job": self._job.name}))
        with self._held(what, is_held=is_held):
            if what == locks.STREAM:
                self._check_places()
            yield

    def _check_places(self) -> None:
        """ConfigError if a stream with another source or sink has begun; topics may be added."""
        now = places_of(self._job)
        if self._files.exists(_PLACES):
            there = json.loads(self._files.read_text(_PLACES))
            if there == now:
                return
            has_begun = any(name.isdigit() for name in self._files.names("query/offsets"))
            if has_begun and not _only_adds_topics(there, now):
                raise ConfigError(
                    f"{self._files.root} is the checkpoint of a stream from {_words(there)}, and "
                    f"the job now is a stream from {_words(now)}; messages that the other has read "
                    "would be missing. Give the job another checkpoint in [run]"
                )
            self._files.delete(_PLACES)
        self._files.write_text(_PLACES, json.dumps(now))

    @contextmanager
    def _held(self, what: str, *, is_held: bool) -> Iterator[None]:
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

    def ends(self, name: str, batch: int) -> str | None:
        """The JSON of the source's offsets at the end of a batch; None for another source."""
        lines = self._files.read_text(f"{name}/offsets/{batch}").strip().splitlines()
        try:
            ends = offsets.from_json(json.loads(lines[-1])).queues
        except (OffsetsError, ValueError, IndexError):
            return None
        return json.dumps(offsets.to_json(ends)["queues"])

    def schema(self) -> StructType | None:
        if not self._files.exists(_SCHEMA):
            return None
        return StructType.fromJson(json.loads(self._files.read_text(_SCHEMA)))

    def keep_schema(self, schema: StructType) -> None:
        self._files.make_root()
        self._files.write_text(_SCHEMA, schema.json())


def places_of(job: Job) -> dict[str, dict[str, Any]]:
    """The source and the sink of a stream, as far as a checkpoint belongs to them.

    Name servers are not part of it: a cluster may get new addresses.
    """
    options = parse_source(job.source.options, is_streaming=True)
    source: dict[str, Any] = {"topics": sorted(options.topics)}
    if options.pattern is not None:
        source = {"pattern": options.pattern.pattern}
    elif options.assigned:
        source = {"queues": sorted(map(str, options.assigned))}
    if namespace := options.connection.keywords.get("namespace"):
        source["namespace"] = namespace
    sink = job.sink
    topic = sink.options.get("topic") if sink.format == MESSAGES else None
    named = {"format": sink.format, "path": sink.path, "table": sink.table, "topic": topic}
    return {
        "source": source,
        "sink": {name: value for name, value in named.items() if value is not None},
    }


def _only_adds_topics(there: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> bool:
    before, after = dict(there["source"]), dict(now["source"])
    topics = set(before.pop("topics", [])), set(after.pop("topics", []))
    return there["sink"] == now["sink"] and before == after and topics[0] <= topics[1]


def _words(places: dict[str, dict[str, Any]]) -> str:
    source, sink = (
        ", ".join(
            f"{name} {' '.join(value) if isinstance(value, list) else value}"
            for name, value in places[side].items()
        )
        for side in ("source", "sink")
    )
    return f"{source} to {sink}"
