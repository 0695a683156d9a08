"""Running a job on Spark: as a stream with a checkpoint, or as a batch between two times.

A stream is one query whose batches go through ``foreachBatch``: there they are judged, transformed
and written, so that the source is read once for table and quarantine. What needs memory between
batches (duplicates, windows) is part of the query itself. Windows leave no rows behind to tell bad
ones from, so a job with windows and a quarantine is two queries, each with a checkpoint of its own.

Spark calls ``foreachBatch`` from a thread of its own, one call at a time.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from goddard.errors import ConfigError, GoddardError
from goddard.pipelines import locks, parsing, quality, transform
from goddard.pipelines.checkpoints import Checkpoint
from goddard.pipelines.failures import (
    JAVA_ENDED,
    PipelineError,
    is_of_shared_checkpoint,
    java_has_ended,
    line_in_worker,
    sentence,
)
from goddard.pipelines.jobs import functions
from goddard.pipelines.jobs.job import (
    AVAILABLE_NOW,
    INFER,
    TABLES,
    Aggregate,
    Deduplicate,
    Emit,
    Job,
    Source,
)
from goddard.pipelines.jobs.sections import interval_ms, near
from goddard.pipelines.quality import Tally
from goddard.pipelines.tables.batches import Batch, single
from goddard.pipelines.tables.files import Files
from goddard.pipelines.tables.sinks import BatchSink, open_sink
from goddard.spark.progress import lag

_logger: Final = logging.getLogger("goddard.pipelines")

_POLL_SECONDS: Final = 0.2
_OUTPUT_MODES: Final[Mapping[Emit, str]] = {
    "closed": "append",
    "changed": "update",
    "all": "complete",
}
_STREAM_ONLY: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "newQueues",
)


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch that is done.

    ``rows`` are the messages that were read and ``lag`` those that are still to be, where known.
    ``late`` are rows that came too late for a window or a key that is forgotten; of windows, Spark
    counts those that it has put together already.
    """

    query: str
    batch: int
    rows: int | None
    seconds: float
    lag: int | None
    tally: Tally | None = None
    late: int = 0


Report = Callable[[Progress], None]


class Pipeline:
    """A job with its sinks, ready to run once.

    ``is_held``: the caller keeps other processes from running the same, see ``locks``.
    """

    def __init__(self, job: Job, spark: SparkSession, *, is_held: bool = False) -> None:
        self.job = job
        self._spark = spark
        self._is_held = is_held
        # What the function after the run had to say.
        self.last_words: str | None = None
        self.has_read_all = False
        # What a batch failed with, before Spark wraps it up.
        self._failure: Exception | None = None
        self._failed_batch: int | None = None
        # The files that transforms are in, by which errors on executors are known.
        self._code: dict[Path, list[str]] = {}
        self._tallies: dict[int, Tally] = {}
        # Spark may stop a query while a batch of it is being written, and does not wait for us.
        self._writing = threading.Lock()
        # Tables that had the batch before, and were left alone.
        self._left_alone: list[str] = []
        with self._clear_errors():
            self._prepare()

    def _prepare(self) -> None:
        job, spark = self.job, self._spark
        self._checkpoint = Checkpoint(spark, job)
        self._steps = transform.steps(job.transforms, job.folder)
        after = job.run.after
        self._after = None if after is None else functions.load_function(after, job.folder)
        for each in job.transforms:
            if each.python is not None and (file := functions.module_file(each.python)) is not None:
                self._code.setdefault(file, []).append(each.python)
        for file in self._code:
            spark.sparkContext.addPyFile(str(file))
        self._schema = self._body_schema()
        windows = job.aggregate
        self._sink = open_sink(
            job.sink,
            spark,
            replaces=windows is not None and windows.emit == "all",
            keys=windows.keys if windows is not None and windows.emit == "changed" else (),
        )
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
            frame = transform.deduplicated(frame, _with_one_watermark(job))
        if job.aggregate is not None:
            frame = self._in_windows(
                self.transformed(frame), job.aggregate, has_watermark=job.deduplicate is not None
            )
        return frame

    def _in_windows(
        self, frame: DataFrame, windows: Aggregate, *, has_watermark: bool = False
    ) -> DataFrame:
        folders = self.job.sink.partition_by if windows.emit == "changed" else ()
        return transform.aggregated(frame, windows, has_watermark=has_watermark, folders=folders)

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
        schema = self._checkpoint.schema()
        if schema is None:
            schema = parsing.inferred(self.messages(), parse)
            self._checkpoint.keep_schema(schema)
        return schema

    def messages(self, **more: str) -> DataFrame:
        """The messages there are, as a batch."""
        source = self.job.source
        options = _batch_options(source) | more
        return self._spark.read.format(source.format).options(**options).load()

    def _check_places(self) -> None:
        """Whether tables can be written at all, before a message is read."""
        for sink in (self.job.sink, self.job.quarantine):
            if sink is not None and sink.path is not None and sink.format in TABLES:
                Files(self._spark, sink.path).make_root()

    def _check_rows(self, messages: DataFrame) -> None:
        """Have Spark look at queries and columns before a message is read.

        Not at what comes behind a function: it may do more with its rows than look at them.
        """
        frame = self.main_frame(messages)
        if self.job.aggregate is None:
            frame = quality.good(frame) if self.job.judges_rows else frame
            frame = self._spark.createDataFrame([], frame.schema)
            for declared, step in zip(self.job.transforms, self._steps, strict=True):
                if declared.python is not None:
                    return
                frame = step(frame)
        for name in self.job.sink.partition_by:
            if name.lower() not in {column.lower() for column in frame.columns}:
                raise ConfigError(
                    f"[sink] partitionBy names {name}, which the rows do not have; "
                    f"{near(name, frame.columns)}"
                )

    # Streams

    def run(self, report: Report, stop: threading.Event | None = None) -> None:
        """Run as a stream, until all is read (availableNow) or ``stop`` is set.

        Which it was, ``has_read_all`` tells.
        """
        stop = stop or threading.Event()
        try:
            self._run(report, stop)
        except PipelineError as error:
            # Whoever stops a whole group of processes stops Java, too, and it may be the faster.
            if not (stop.is_set() and java_has_ended(self._spark, error, is_ending=True)):
                raise

    def _run(self, report: Report, stop: threading.Event) -> None:
        with self._clear_errors(), self._running(locks.STREAM):
            self._check_places()
            messages = self._stream()
            self._check_rows(messages)
            queries = [self._start_main(messages)]
            try:
                if self.job.aggregate is not None and self._quarantine is not None:
                    queries.append(self._start_quarantine(self._quarantine))
                self.has_read_all = self._watch(queries, report, stop)
            except Exception as error:
                self._fail_without_java(error)
                raise
            finally:
                if not java_has_ended(self._spark):
                    for query in queries:
                        query.stop()
            self._finish()

    def _running(self, what: str) -> AbstractContextManager[None]:
        return self._checkpoint.running(what, is_held=self._is_held)

    def _stream(self, *, without_group: bool = False) -> DataFrame:
        options = dict(self.job.source.options)
        if without_group:
            options.pop("group", None)
        return self._spark.readStream.format(self.job.source.format).options(**options).load()

    def _start_main(self, messages: DataFrame) -> StreamingQuery:
        aggregate = self.job.aggregate
        write = self._write_rows if aggregate is not None else self._write_judged
        mode = "append" if aggregate is None else _OUTPUT_MODES[aggregate.emit]
        return self._start("query", self.main_frame(messages), write, mode)

    def _start_quarantine(self, sink: BatchSink) -> StreamingQuery:
        def write(frame: DataFrame, batch: Batch) -> None:
            self._write_to(sink, frame, batch)

        rows = quality.quarantined(self.judged(self._stream(without_group=True)))
        return self._start("quarantine", rows, write, "append")

    def _start(
        self, name: str, frame: DataFrame, write: Callable[[DataFrame, Batch], object], mode: str
    ) -> StreamingQuery:
        def take(rows: DataFrame, number: int) -> None:
            try:
                with self._writing, self._alone():
                    query, ends = (
                        self._checkpoint.query_id(name),
                        self._checkpoint.ends(name, number),
                    )
                    write(rows, Batch(query, number, ends=ends))
            except Exception as error:
                self._failure, self._failed_batch = error, number
                raise

        writer = (
            frame.writeStream.foreachBatch(take)
            .outputMode(mode)
            .option("checkpointLocation", self._checkpoint.query(name))
            .queryName(f"{self.job.name}-{name}")
        )
        trigger = self.job.run.trigger
        if trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger).start()

    def _watch(self, queries: list[StreamingQuery], report: Report, stop: threading.Event) -> bool:
        """Until the queries end, or until they are to: whether they did by themselves."""
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
                    return True
            stop.wait(_POLL_SECONDS)
        return not any(query.isActive for query in queries)

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
                    late=sum(each.numRowsDroppedByWatermark for each in progress.stateOperators),
                )
            )

    # Batches

    def back_fill(self, start_ms: int | None, end_ms: int | None, report: Report) -> None:
        """Run once over the messages that were stored between two times, the second excluded.

        Run again, it replaces what it wrote; rows that the stream wrote stay as they are.
        """
        job = self.job
        if start_ms is not None and end_ms is not None and end_ms <= start_ms:
            raise ConfigError("a back-fill ends after it begins; the two times are the wrong way")
        more = {}
        if start_ms is not None:
            more["startingTimestamp"] = str(start_ms)
        if end_ms is not None:
            more["endingTimestamp"] = str(end_ms)
        if job.source.is_stream:
            more["startingOffsetsByTimestampStrategy"] = "latest"
        batch = single(job.name, job.source.format, start_ms, end_ms)
        began = time.monotonic()
        with self._clear_errors(), self._running(locks.back_fill(job, start_ms, end_ms)):
            self._check_places()
            messages = self.messages(**more)
            self._check_rows(messages)
            frame = self.judged(messages)
            if job.deduplicate is not None:
                frame = transform.deduplicated(frame, job.deduplicate)
            with self._alone():
                rows = self._write_judged(frame, batch)
            self._finish()
        seconds = time.monotonic() - began
        report(Progress(job.name, 0, rows, seconds, None, self._tallies.pop(0, None)))
        if self._left_alone:
            tables = " and ".join(self._left_alone)
            self.last_words = f"{tables}: filled between these times before, and left alone"

    def _finish(self) -> None:
        with self._writing, self._alone():
            for sink in (self._sink, self._quarantine):
                if sink is not None:
                    sink.finish()
        if self._after is not None:
            said = self._after(self.job, self._spark)
            self.last_words = said if isinstance(said, str) else None

    # Writing

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Write while nobody else does; if somebody does, that explains whatever failed."""
        self._checkpoint.check_alone()
        try:
            yield
        except Exception as error:
            if not java_has_ended(self._spark, error):
                self._checkpoint.check_alone()
            raise
        # Before Spark writes down that the batch is done.
        self._checkpoint.check_alone()

    def _write_judged(self, frame: DataFrame, batch: Batch) -> int | None:
        """Write the good rows and the bad ones; how many there were, if it was counted."""
        job = self.job
        if not job.judges_rows and not job.is_stateful:
            self._put(self._sink, self.transformed(frame), batch)
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
                    self._put(self._quarantine, quality.quarantined(frame), batch)
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
            frame = self._in_windows(frame, self.job.aggregate)
        self._put(self._sink, frame, batch)

    def _write_rows(self, frame: DataFrame, batch: Batch) -> None:
        self._write_to(self._sink, frame, batch)

    def _write_to(self, sink: BatchSink, frame: DataFrame, batch: Batch) -> None:
        # Kept, so that looking whether there are rows does not compute them a second time.
        frame = frame.persist()
        try:
            if frame.count():
                self._put(sink, frame, batch)
            else:
                sink.withdraw(batch)
        finally:
            frame.unpersist()

    def _put(self, sink: BatchSink, frame: DataFrame, batch: Batch) -> None:
        if not sink.write(frame, batch):
            _logger.info("batch %d was written before, and is left alone", batch.number)
            chosen = self.job.quarantine if sink is self._quarantine else self.job.sink
            if chosen is not None:
                self._left_alone.append(chosen.table or chosen.path or chosen.format)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """One sentence for a person in place of Spark's pages; transforms raise what they like."""
        try:
            yield
        except PipelineError:
            raise
        except StreamingQueryException as error:
            cause = self._failure if self._failure is not None else error
            raise self._told(cause) from cause
        except Exception as error:
            self._fail_without_java(error)
            raise self._told(error) from error

    def _told(self, error: BaseException) -> PipelineError:
        if is_of_shared_checkpoint(error):
            return PipelineError(
                f"{self.job.name}: another run uses the checkpoint {self.job.run.checkpoint} at "
                "the same time; this one has ended, see to it that there is only one"
            )
        # Our own errors name what they are about.
        is_told = self._failed_batch is None or isinstance(error, GoddardError)
        batch = "" if is_told else f"batch {self._failed_batch}: "
        return PipelineError(f"{self.job.name}: {batch}{self._culprit(error)}{sentence(error)}")

    def _culprit(self, error: BaseException) -> str:
        """Whose code failed on an executor, if it is a function's of the job."""
        for file, places in self._code.items():
            line = line_in_worker(error, file)
            if line is not None:
                who = places[0] if len(places) == 1 else "a transform"
                return f"{who} failed in line {line} of {file.name}: "
        return ""

    def _fail_without_java(self, error: BaseException) -> None:
        if java_has_ended(self._spark, error):
            raise PipelineError(f"{self.job.name}: {JAVA_ENDED}") from error


def _with_one_watermark(job: Job) -> Deduplicate:
    """How long to remember keys; Spark allows a query one watermark, so windows wait as long."""
    spec, windows = job.deduplicate, job.aggregate
    assert spec is not None
    if windows is None:
        return spec
    waits = (spec.within, windows.late or spec.within)
    return replace(spec, within=max(waits, key=lambda each: interval_ms(each) or 0))


def _from_ddl(text: str) -> StructType:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


def _batch_options(source: Source) -> dict[str, str]:
    """The options of a source, as far as a batch has them."""
    if not source.is_stream:
        return dict(source.options)
    dropped = {name.lower() for name in _STREAM_ONLY}
    return {name: value for name, value in source.options.items() if name.lower() not in dropped}


def _has_run(progress: Any) -> bool:
    """Progress is told of idle triggers, too; those ran no batch."""
    return "addBatch" in progress.durationMs


def _lag(progress: Any) -> int | None:
    found = lag(progress)
    return found.total if found.queues else None
