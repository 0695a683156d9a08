"""Running a job on Spark: as a stream with a checkpoint, or as a batch between two times.

A stream is one query whose batches go through ``foreachBatch``: there they are judged, transformed
and written, so that the source is read once for table and quarantine. What needs memory between
batches (duplicates, windows) is part of the query itself. Windows leave no rows behind to tell bad
ones from, so a job with windows and a quarantine is two queries, each with a checkpoint of its own.

The folder of a checkpoint: ``query/`` and ``quarantine/`` are Spark's, ``schema.json`` is the
schema that was inferred when the job first ran.

Spark calls ``foreachBatch`` from a thread of its own, one call at a time.
"""

import importlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from goddard.errors import ConfigError, GoddardError
from goddard.pipelines import parsing, quality, transform
from goddard.pipelines.batches import Batch, query_name, single
from goddard.pipelines.files import Files
from goddard.pipelines.jobs import AVAILABLE_NOW, INFER, Job, Source
from goddard.pipelines.quality import Tally
from goddard.pipelines.sinks import BatchSink, open_sink
from goddard.spark import offsets

_logger: Final = logging.getLogger("goddard.pipelines")

# It has no types of its own.
_JavaError: Any = importlib.import_module("py4j.protocol").Py4JError

_POLL_SECONDS: Final = 0.2
_STREAM_ONLY: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_PYTHON_ERROR: Final = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Za-z_]\w*(?:Error|Exception)): (.+)$"
)


class PipelineError(GoddardError):
    """A job that cannot go on; the text is for whoever started it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch that is done. ``lag`` is how many messages are still to be read, if that is known."""

    query: str
    batch: int
    rows: int
    seconds: float
    lag: int | None
    tally: Tally | None = None


Report = Callable[[Progress], None]


class Pipeline:
    """A job with its sinks, ready to run once."""

    def __init__(self, job: Job, spark: SparkSession) -> None:
        self.job = job
        self._spark = spark
        # What the function after the run had to say.
        self.last_words: str | None = None
        # What a batch failed with, before Spark wraps it up.
        self._failure: Exception | None = None
        self._tallies: dict[int, Tally] = {}
        # Spark may stop a query while a batch of it is being written, and does not wait for us.
        self._writing = threading.Lock()
        with self._clear_errors():
            self._prepare()

    def _prepare(self) -> None:
        job, spark = self.job, self._spark
        self._steps = transform.steps(job.transforms, job.folder)
        after = job.run.after
        self._after = None if after is None else transform.load_function(after, job.folder)
        for each in job.transforms:
            if each.python is not None and (file := transform.module_file(each.python)) is not None:
                spark.sparkContext.addPyFile(str(file))
        self._schema = self._body_schema()
        replaces = job.aggregate is not None and job.aggregate.emit == "all"
        self._sink = open_sink(job.sink, spark, replaces=replaces)
        self._quarantine = None if job.quarantine is None else open_sink(job.quarantine, spark)

    # What the job does to rows

    def judged(self, frame: DataFrame) -> DataFrame:
        """Parsed and held against the expectations; good and bad rows together."""
        job = self.job
        if job.parse is not None and self._schema is not None:
            frame = parsing.parsed(frame, job.parse, self._schema)
        return quality.judged(frame, job.expectations, job.parse) if job.judges_rows else frame

    def transformed(self, frame: DataFrame) -> DataFrame:
        for step in self._steps:
            frame = step(frame)
        return frame

    def main_frame(self, messages: DataFrame) -> DataFrame:
        """What the main query of a stream hands to ``foreachBatch``."""
        job = self.job
        frame = self.judged(messages)
        if job.aggregate is not None and job.judges_rows:
            frame = quality.good_or_fail(frame)
        if job.deduplicate is not None:
            frame = transform.deduplicated(frame, job.deduplicate)
        if job.aggregate is not None:
            frame = transform.aggregated(self.transformed(frame), job.aggregate)
        return frame

    def final_frame(self, messages: DataFrame) -> DataFrame:
        """The rows of the sink, for a batch of messages: what ``plan`` explains."""
        frame = self.main_frame(messages)
        if self.job.aggregate is not None:
            return frame
        return self.transformed(quality.good(frame) if self.job.judges_rows else frame)

    def _body_schema(self) -> StructType | None:
        parse = self.job.parse
        if parse is None:
            return None
        if parse.schema != INFER:
            return _from_ddl(parse.schema)
        files = Files(self._spark, self.job.run.checkpoint)
        if files.exists("schema.json"):
            return StructType.fromJson(json.loads(files.read_text("schema.json")))
        messages = self.messages(startingOffsets="earliest")
        schema = parsing.inferred(messages, parse)
        files.make_folder("")
        files.write_text("schema.json", schema.json())
        return schema

    def messages(self, **more: str) -> DataFrame:
        """The messages there are, as a batch."""
        source = self.job.source
        options = _batch_options(source) | more if source.is_stream else dict(source.options)
        return self._spark.read.format(source.format).options(**options).load()

    # Streams

    def run(self, report: Report, stop: threading.Event | None = None) -> None:
        """Run as a stream, until all is read (availableNow) or ``stop`` is set."""
        with self._clear_errors():
            queries = [self._start_main()]
            try:
                if self.job.aggregate is not None and self._quarantine is not None:
                    queries.append(self._start_quarantine(self._quarantine))
                self._watch(queries, report, stop or threading.Event())
            finally:
                for query in queries:
                    query.stop()
            self._finish()

    def _stream(self, *, without_group: bool = False) -> DataFrame:
        options = dict(self.job.source.options)
        if without_group:
            options.pop("group", None)
        return self._spark.readStream.format(self.job.source.format).options(**options).load()

    def _start_main(self) -> StreamingQuery:
        aggregate = self.job.aggregate
        write = self._write_rows if aggregate is not None else self._write_judged
        mode = "complete" if aggregate is not None and aggregate.emit == "all" else "append"
        return self._start("query", self.main_frame(self._stream()), write, mode)

    def _start_quarantine(self, sink: BatchSink) -> StreamingQuery:
        def write(frame: DataFrame, batch: Batch) -> None:
            self._write_to(sink, frame, batch)

        rows = quality.quarantined(self.judged(self._stream(without_group=True)))
        return self._start("quarantine", rows, write, "append")

    def _start(
        self, name: str, frame: DataFrame, write: Callable[[DataFrame, Batch], object], mode: str
    ) -> StreamingQuery:
        checkpoint = f"{self.job.run.checkpoint}/{name}"
        files = Files(self._spark, checkpoint)

        def take(rows: DataFrame, number: int) -> None:
            try:
                # The id of the query in all its runs, which Spark keeps with the checkpoint.
                query_id = json.loads(files.read_text("metadata"))["id"]
                with self._writing:
                    write(rows, Batch(query_name(query_id), number))
            except Exception as error:
                self._failure = error
                raise

        writer = (
            frame.writeStream.foreachBatch(take)
            .outputMode(mode)
            .option("checkpointLocation", files.root)
            .queryName(f"{self.job.name}-{name}")
        )
        trigger = self.job.run.trigger
        if trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger).start()

    def _watch(self, queries: list[StreamingQuery], report: Report, stop: threading.Event) -> None:
        seen: dict[str, int] = {}
        while not stop.is_set():
            active = [query for query in queries if query.isActive]
            for query in queries:
                self._tell(query, seen, report)
            if len(active) < len(queries):
                failed = next((each for each in queries if each.exception() is not None), None)
                if failed is not None:
                    failed.awaitTermination()
                if not active:
                    return
            stop.wait(_POLL_SECONDS)

    def _tell(self, query: StreamingQuery, seen: dict[str, int], report: Report) -> None:
        told = seen.get(query.name, -1)
        last = query.lastProgress
        # All that is recent is asked for only when there is news: it is up to a hundred batches.
        if last is None or last.batchId <= told:
            return
        for progress in query.recentProgress:
            if progress.batchId <= seen.get(query.name, -1) or not _has_run(progress):
                continue
            seen[query.name] = progress.batchId
            report(
                Progress(
                    query=query.name,
                    batch=progress.batchId,
                    rows=progress.numInputRows,
                    seconds=progress.batchDuration / 1000,
                    lag=_lag(progress),
                    tally=self._tallies.pop(progress.batchId, None),
                )
            )

    # Batches

    def back_fill(self, start_ms: int | None, end_ms: int | None, report: Report) -> None:
        """Run once over the messages that were stored between two times, the second excluded.

        Run again, it replaces what it wrote; rows that the stream wrote stay as they are.
        """
        job = self.job
        more = {}
        if start_ms is not None:
            more["startingTimestamp"] = str(start_ms)
        if end_ms is not None:
            more["endingTimestamp"] = str(end_ms)
        if job.source.is_stream:
            more["startingOffsetsByTimestampStrategy"] = "latest"
        batch = single(job.name, job.source.format, start_ms, end_ms)
        began = time.monotonic()
        with self._clear_errors():
            frame = self.judged(self.messages(**more))
            if job.deduplicate is not None:
                frame = transform.deduplicated(frame, job.deduplicate)
            rows = self._write_judged(frame, batch)
            self._finish()
        seconds = time.monotonic() - began
        report(Progress(job.name, 0, rows or 0, seconds, None, self._tallies.pop(0, None)))

    def _finish(self) -> None:
        with self._writing:
            for sink in (self._sink, self._quarantine):
                if sink is not None:
                    sink.finish()
        if self._after is not None:
            said = self._after(self.job, self._spark)
            self.last_words = said if isinstance(said, str) else None

    # Writing

    def _write_judged(self, frame: DataFrame, batch: Batch) -> int | None:
        """Write the good rows and the bad ones; how many there were, if it was counted."""
        job = self.job
        if not job.judges_rows and not job.is_stateful:
            self._sink.write(self.transformed(frame), batch)
            return None
        frame = frame.persist()
        try:
            if not job.judges_rows:
                rows = frame.count()
                self._write_good(frame if rows else None, batch)
                return rows
            tally = quality.tally(frame)
            self._tallies[batch.number] = tally
            if self._quarantine is not None:
                if tally.quarantined:
                    self._quarantine.write(quality.quarantined(frame), batch)
                else:
                    self._quarantine.withdraw(batch)
            self._write_good(quality.good(frame) if tally.good else None, batch)
            return tally.good + tally.quarantined + tally.dropped
        finally:
            frame.unpersist()

    def _write_good(self, frame: DataFrame | None, batch: Batch) -> None:
        if frame is None:
            self._sink.withdraw(batch)
            return
        frame = self.transformed(frame)
        if self.job.aggregate is not None:
            frame = transform.aggregated(frame, self.job.aggregate)
        self._sink.write(frame, batch)

    def _write_rows(self, frame: DataFrame, batch: Batch) -> None:
        self._write_to(self._sink, frame, batch)

    def _write_to(self, sink: BatchSink, frame: DataFrame, batch: Batch) -> None:
        # Kept, so that looking whether there are rows does not compute them a second time.
        frame = frame.persist()
        try:
            if frame.count():
                sink.write(frame, batch)
            else:
                sink.withdraw(batch)
        finally:
            frame.unpersist()

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """One sentence for a person in place of Spark's pages."""
        try:
            yield
        except StreamingQueryException as error:
            cause = self._failure if self._failure is not None else error
            raise PipelineError(f"{self.job.name}: {sentence(cause)}") from error
        except (PySparkException, _JavaError, ConfigError, OSError) as error:
            raise PipelineError(f"{self.job.name}: {sentence(error)}") from error


def sentence(error: BaseException) -> str:
    """What an error comes down to: of a Python error inside of Spark's text, its own words."""
    text = str(error)
    found = [
        matched for line in text.splitlines() if (matched := _PYTHON_ERROR.match(line.strip()))
    ]
    if found:
        return f"{found[-1][2]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _from_ddl(text: str) -> StructType:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


def _batch_options(source: Source) -> dict[str, str]:
    """The options of a stream, as far as a batch has them."""
    dropped = {name.lower() for name in _STREAM_ONLY}
    return {name: value for name, value in source.options.items() if name.lower() not in dropped}


def _has_run(progress: Any) -> bool:
    """Progress is told of idle triggers, too; those ran no batch."""
    return "addBatch" in progress.durationMs


def _lag(progress: Any) -> int | None:
    total = None
    for source in progress.sources:
        try:
            latest, _ = offsets.from_json(json.loads(source.latestOffset))
            end, _ = offsets.from_json(json.loads(source.endOffset))
        except (TypeError, ValueError, GoddardError):
            continue
        behind = sum(max(0, offset - end.get(queue, offset)) for queue, offset in latest.items())
        total = behind if total is None else total + behind
    return total
