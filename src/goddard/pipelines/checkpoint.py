"""The folder of a job's checkpoint: its owner, the current run, and what the first run found.

    job.json      the job that owns the folder; another job is refused
    places.json   the source and the sink of the stream; others are refused
    back-fill-*.json   the same of each back-fill
    schema.json   the schema that the first run inferred
    locks/        on a local disk: files that a run locks
    runs/         on other file systems: the mark of the run that started last
    query/, quarantine/, back-fill-*/   Spark's: offsets, commits, state

Other file systems have no locks, and a killed run looks like a slow one. There, the run that starts
last owns the checkpoint: it deletes the marks of other runs, which end at their next batch because
their mark is gone. Spark detects two runs, too, but only after both have written the same batch.

Used by the driver.
"""

import fcntl
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines.files import Files
from goddard.pipelines.job import MESSAGES, Job
from goddard.spark.options import parse_source
from goddard.spark.reading import offsets
from goddard.spark.reading.offsets import OffsetsError, SourceOffset

_OWNER: Final = "job.json"
_PLACES: Final = "places.json"
_SCHEMA: Final = "schema.json"
_RUNS: Final = "runs"
# The name of the lock of a stream. Back-fills have locks of their own.
STREAM: Final = "run"
_FOLDER: Final = "locks"
_LOCAL: Final = "file:"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query: ``query`` is the same in every run, ``number`` counts its batches.

    A batch of a stream is never repeated after the next one has begun; a batch that is not part of
    a stream may be repeated at any time. ``ends`` is the JSON of the end offsets, if known: the
    same number with other offsets is another batch. ``rules`` is a digest of the rules that decide
    which rows are valid. ``messages`` is the number of offsets that the batch covers.
    """

    query: str
    number: int
    is_of_stream: bool = True
    ends: str | None = None
    rules: int | None = None
    messages: int | None = None

    @property
    def ends_digest(self) -> int | None:
        return None if self.ends is None else digest(self.ends)

    def is_written(self, table: str, last: int | None, last_ends: int | None) -> bool:
        """Whether a table has the batch already; ConfigError if it has another in its place.

        ``last`` is the last batch of the query that the table has, and ``last_ends`` the digest of
        its ends, as far as known.
        """
        if last is None or last < self.number:
            return False
        is_other = None not in (last_ends, self.ends) and last_ends != self.ends_digest
        if (last == self.number and is_other) or (last > self.number and self.is_of_stream):
            raise ConfigError(
                f"{table} has the batches of this query up to number {last}, and batch "
                f"{self.number} now has other messages; nothing was written. The checkpoint was "
                "restored from a copy, or files in it were deleted. Continue with the newest "
                "checkpoint, or with a new one and startingOffsets where the table ends"
            )
        return True


def digest(text: str) -> int:
    """63 bits of a hash."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def query_name(query_id: str) -> str:
    """Spark's id of a query, as it is in names of files."""
    return query_id.replace("-", "").lower()


def single(*identity: object) -> Batch:
    """A batch that is not part of a stream; equal identities give equal batches."""
    text = "\0".join(str(each) for each in identity)
    return Batch(hashlib.sha256(text.encode()).hexdigest()[:32], 0, is_of_stream=False)


def back_fill_name(job: Job, start_ms: int | None, end_ms: int | None) -> str:
    """The name of the query and the lock of a back-fill between two times."""
    return f"back-fill-{single(job.name, job.source.format, start_ms, end_ms).query}"


def local_folder(path: str, settings: Mapping[str, str] | None = None) -> Path | None:
    """The local folder of a path of Spark; None if it may be on another file system."""
    if path.startswith(_LOCAL):
        # Hadoop writes it with one slash or with three.
        return Path("/" + path.removeprefix(_LOCAL).lstrip("/"))
    is_elsewhere = "HADOOP_CONF_DIR" in os.environ or "spark.hadoop.fs.defaultFS" in (
        settings or {}
    )
    return None if "://" in path or is_elsewhere else Path(path)


@contextmanager
def held(checkpoint: Path, what: str) -> Iterator[None]:
    """Hold a lock; ConfigError if another process holds it."""
    folder = checkpoint / _FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / what).open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{checkpoint} cannot be written to ({error.strerror}); is the path right, and may "
            "this user write there?"
        ) from error
    with file:
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


class Checkpoint:
    """The folder of one job, on any file system of Spark; ConfigError if another job owns it."""

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
        """Hold the lock ``what``, unless the caller holds it already (``is_held``)."""
        self._files.make_root()
        if not self._files.exists(_OWNER):
            self._files.write_text(_OWNER, json.dumps({"job": self._job.name}))
        with self._held(what, is_held=is_held):
            if self._job.source.is_stream:
                self._check_places(what)
            yield

    def _check_places(self, what: str) -> None:
        """ConfigError if the stream had another source or sink before; topics may be added."""
        now = places_of(self._job)
        name, query = (_PLACES, "query") if what == STREAM else (f"{what}.json", what)
        if self._files.exists(name):
            there = json.loads(self._files.read_text(name))
            if there == now:
                return
            has_begun = any(name.isdigit() for name in self._files.names(f"{query}/offsets"))
            if has_begun and not _only_adds_topics(there, now):
                raise ConfigError(
                    f"{self._files.root} is the checkpoint of a stream from {_words(there)}, and "
                    f"the job now is a stream from {_words(now)}; messages that the other has read "
                    "would be missing. Give the job another checkpoint in [run]"
                )
            self._files.delete(name)
        self._files.write_text(name, json.dumps(now))

    @contextmanager
    def _held(self, what: str, *, is_held: bool) -> Iterator[None]:
        folder = local_folder(self._files.root)
        if folder is None:
            self._mark = self._take_over(f"{_RUNS}/{what}")
            yield
            self._files.delete(self._mark)
            self._mark = None
        elif is_held:
            yield
        else:
            with held(folder, what):
                yield

    def _take_over(self, folder: str) -> str:
        self._files.delete(folder)
        self._files.make_folder(folder)
        mark = f"{folder}/{uuid.uuid4().hex}"
        self._files.write_text(mark, f"process {os.getpid()} on {socket.gethostname()}")
        return mark

    def check_alone(self) -> None:
        """ConfigError if another run has started since; only for file systems without locks."""
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
        """The folder of Spark's checkpoint of a query."""
        return self._files.full(name)

    def query_id(self, name: str) -> str:
        """The id of a query, which is the same in all its runs."""
        return query_name(json.loads(self._files.read_text(f"{name}/metadata"))["id"])

    def ends(self, name: str, batch: int) -> str | None:
        """The JSON of the source's offsets at the end of a batch; None for another source."""
        found = self._offsets(name, batch)
        return None if found is None else json.dumps(offsets.to_json(found.queues)["queues"])

    def messages(self, name: str, batch: int) -> int | None:
        """The number of offsets that a batch covers."""
        end = self._offsets(name, batch)
        if end is None:
            return None
        before = self._offsets(name, batch - 1) if batch else None
        starts = end.first | (before.queues if before is not None else {})
        return sum(last - starts.get(queue, last) for queue, last in end.queues.items())

    def _offsets(self, name: str, batch: int) -> SourceOffset | None:
        path = f"{name}/offsets/{batch}"
        if not self._files.exists(path):
            return None
        try:
            return offsets.from_json(json.loads(self._files.read_text(path).splitlines()[-1]))
        except (OffsetsError, ValueError, IndexError):
            return None

    def schema(self) -> StructType | None:
        if not self._files.exists(_SCHEMA):
            return None
        return StructType.fromJson(json.loads(self._files.read_text(_SCHEMA)))

    def keep_schema(self, schema: StructType) -> None:
        self._files.make_root()
        self._files.write_text(_SCHEMA, schema.json())


def places_of(job: Job) -> dict[str, dict[str, Any]]:
    """The source and the sink of a stream, which a checkpoint belongs to.

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
