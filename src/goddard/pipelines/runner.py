"""Running a job on Spark: as a stream with a checkpoint, or as a batch between two times.

A stream is one query. Its batches go through ``foreachBatch``, where valid rows are transformed and
written to the sink and invalid ones to the quarantine table. The rows are read a second time for
the quarantine table, but only if Spark observed some while it wrote the valid ones. State between
batches (keys of a deduplication, windows) is in the query itself. Spark's file sink is a query
without ``foreachBatch``. State and file sinks see valid rows alone: such a job with a quarantine
table is two queries, each with a checkpoint of its own.

Spark calls ``foreachBatch`` from another thread, one call at a time.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.observation import Observation
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from goddard.errors import ConfigError, GoddardError
from goddard.pipelines import checkpoint, expectations, parse, transforms
from goddard.pipelines.checkpoint import STREAM, Batch, Checkpoint, single
from goddard.pipelines.errors import (
    JAVA_ENDED,
    PipelineError,
    is_of_shared_checkpoint,
    java_has_ended,
    line_in_worker,
    near,
    root_cause,
)
from goddard.pipelines.expectations import Counts
from goddard.pipelines.files import Files
from goddard.pipelines.job import AVAILABLE_NOW, INFER, TABLES, Deduplicate, Job, interval_ms
from goddard.pipelines.monitoring import OBSERVED, Listener, Monitor, Progress, progress_of
from goddard.pipelines.schemas import body_schema
from goddard.pipelines.sinks import BatchSink, open_sink

_logger: Final = logging.getLogger("goddard.pipelines")

_POLL_SECONDS: Final = 0.2
# How long Spark takes to report what it has observed, or the end of a query.
_EVENT_SECONDS: Final = 30.0
_OBSERVED_POLL_SECONDS: Final = 0.005
_STREAM_ONLY: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "newQueues",
)

Report = Callable[[Progress], None]


class Pipeline:
    """A job with its sinks, ready to run once.

    ``is_held``: the caller holds the lock of the checkpoint, see ``checkpoint.held``.
    """

    def __init__(self, job: Job, spark: SparkSession, *, is_held: bool = False) -> None:
        self.job = job
        self._spark = spark
        self._is_held = is_held
        # What the function after the run returned.
        self.summary: str | None = None
        self.has_read_all = False
        # What a batch failed with, before Spark wraps it.
        self._failure: Exception | None = None
        self._failed_batch: int | None = None
        # The files of the transforms, by which errors on executors are recognised.
        self._code: dict[Path, list[str]] = {}
        self._counts: dict[int, Counts] = {}
        self._is_observed = True
        quality = None if job.quality is None else Files(spark, job.quality).root
        self._monitor = Monitor(job, quality)
        # Spark may stop a query while a batch of it is being written, and does not wait for us.
        self._writing = threading.Lock()
        # Tables that had the batch before, and were left alone.
        self._left_alone: list[str] = []
        self._rules = checkpoint.digest(
            msgspec.json.encode([job.parse, job.expectations], enc_hook=str).decode()
        )
        with self._clear_errors():
            self._prepare()

    def _prepare(self) -> None:
        job, spark = self.job, self._spark
        self._checkpoint = Checkpoint(spark, job)
        self._steps = transforms.steps(job.transforms, job.folder)
        after = job.run.after
        self._after = None if after is None else transforms.load_function(after, job.folder)
        for each in job.transforms:
            if each.python is None:
                continue
            if (file := transforms.module_file(each.python)) is not None:
                self._code.setdefault(file, []).append(each.python)
        for file in self._code:
            spark.sparkContext.addPyFile(str(file))
        self._schema = self._body_schema()
        self._sink = open_sink(job.sink, spark, job.aggregate)
        self._quarantine = None if job.quarantine is None else open_sink(job.quarantine, spark)

    # What the job does to rows

    def checked(self, frame: DataFrame) -> DataFrame:
        """Parsed and checked against the expectations; valid and invalid rows together."""
        job = self.job
        if job.parse is not None and self._schema is not None:
            frame = parse.parsed(frame, job.parse, self._schema, job.folder)
        return expectations.with_action(frame, job) if job.has_rules else frame

    def transformed(self, frame: DataFrame) -> DataFrame:
        for step in self._steps:
            frame = step(frame)
        return frame

    def valid_frame(
        self, messages: DataFrame, observation: Observation | str | None = None
    ) -> DataFrame:
        """The rows of the sink, for messages of a batch or of a stream."""
        frame = self._state_frame(messages, observation)
        return frame if self.job.aggregate is not None else self.transformed(frame)

    def _state_frame(self, messages: DataFrame, observation: Observation | str | None) -> DataFrame:
        """The rows up to the last step with state: what a stream hands to ``foreachBatch``."""
        job = self.job
        frame = self.checked(messages)
        if job.has_rules:
            if observation is not None:
                frame = self._observing(frame, observation)
            frame = expectations.valid_or_fail(frame)
        if job.deduplicate is not None:
            spec = _with_one_watermark(job)
            frame = transforms.deduplicated(frame, spec, is_stream=messages.isStreaming)
        if job.aggregate is not None:
            frame = transforms.aggregated(
                self.transformed(frame), job.aggregate, has_watermark=job.deduplicate is not None
            )
        return frame

    def _body_schema(self) -> StructType | None:
        spec = self.job.parse
        if spec is None:
            return None
        text = body_schema(spec, self.job.folder)
        if text != INFER:
            schema = StructType.fromDDL(text)
            assert isinstance(schema, StructType)
            return schema
        found = self._checkpoint.schema()
        if found is None:
            found = parse.inferred(self.messages(), spec)
            self._checkpoint.keep_schema(found)
        return found

    def messages(self, **more: str) -> DataFrame:
        """The stored messages, as a batch."""
        source = self.job.source
        options = dict(source.options)
        if source.is_stream:
            dropped = {name.lower() for name in _STREAM_ONLY}
            options = {
                name: value for name, value in options.items() if name.lower() not in dropped
            }
        return self._spark.read.format(source.format).options(**options | more).load()

    def _check_places(self) -> None:
        """Whether tables can be written at all, before a message is read."""
        for sink in (self.job.sink, self.job.quarantine):
            if sink is not None and sink.path is not None and sink.format in TABLES:
                Files(self._spark, sink.path).make_root()

    def _check_rows(self, messages: DataFrame) -> None:
        """Let Spark check queries and columns before a message is read.

        Not what follows a Python transform: it may do more with its rows than look at them.
        """
        job = self.job
        empty = self._spark.createDataFrame([], messages.schema)
        if any(each.python is not None for each in job.transforms):
            self.checked(empty)
            return
        frame = self.valid_frame(empty)
        for name in job.sink.partition_by:
            if name.lower() not in {column.lower() for column in frame.columns}:
                raise ConfigError(
                    f"[sink] partitionBy names {name}, which the rows do not have; "
                    f"{near(name, frame.columns)}"
                )

    # Streams

    def run(self, report: Report, stop: threading.Event | None = None) -> None:
        """Run as a stream, until all is read (availableNow) or ``stop`` is set.

        ``has_read_all`` says which.
        """
        stop = stop or threading.Event()
        try:
            with self._clear_errors(), self._running(STREAM):
                self._run("query", self._stream(), report, stop)
        except PipelineError as error:
            # A signal to the whole process group also ends Java, which may be faster than we are.
            if not (stop.is_set() and java_has_ended(self._spark, error, is_ending=True)):
                raise

    def _run(self, name: str, messages: DataFrame, report: Report, stop: threading.Event) -> None:
        self._check_places()
        self._check_rows(messages)
        listener = Listener()
        self._spark.streams.addListener(listener)
        queries = []
        try:
            queries.append(self._start_main(name, messages))
            if self._quarantine is not None and self._has_own_quarantine_query:
                queries.append(self._start_quarantine(self._quarantine, name))
            self.has_read_all = self._watch(queries, listener, report, stop)
        except Exception as error:
            self._fail_without_java(error)
            raise
        finally:
            if not java_has_ended(self._spark):
                for query in queries:
                    query.stop()
                self._spark.streams.removeListener(listener)
        self._finish()

    @property
    def _has_own_quarantine_query(self) -> bool:
        return self.job.is_stateful or self.job.sink.is_files

    def _running(self, what: str) -> AbstractContextManager[None]:
        return self._checkpoint.running(what, is_held=self._is_held)

    def _stream(self, *without: str, **more: str) -> DataFrame:
        source = self.job.source
        dropped = {name.lower() for name in without}
        options = {
            name: value for name, value in source.options.items() if name.lower() not in dropped
        } | more
        return self._spark.readStream.format(source.format).options(**options).load()

    def _start_main(self, name: str, messages: DataFrame) -> StreamingQuery:
        job = self.job
        mode = "append" if job.aggregate is None else job.aggregate.output_mode
        if job.sink.is_files:
            return self._start_files(name, self.valid_frame(messages, OBSERVED))
        if job.is_stateful:
            return self._start(name, self._state_frame(messages, OBSERVED), self._write_rows, mode)
        return self._start(name, self.checked(messages), self._write_checked, mode)

    def _start_quarantine(self, sink: BatchSink, name: str) -> StreamingQuery:
        def write(frame: DataFrame, batch: Batch) -> None:
            self._put(sink, frame, batch)

        name = "quarantine" if name == "query" else f"{name}-quarantine"
        rows = expectations.quarantined(self.checked(self._stream("group")))
        return self._start(name, rows, write, "append")

    def _start(
        self, name: str, frame: DataFrame, write: Callable[[DataFrame, Batch], object], mode: str
    ) -> StreamingQuery:
        def take(rows: DataFrame, number: int) -> None:
            try:
                with self._writing, self._alone():
                    write(rows, self._batch(name, number))
            except Exception as error:
                # Other batches fail after it, because they are stopped.
                if self._failure is None:
                    self._failure, self._failed_batch = error, number
                raise

        return self._begin(name, frame.writeStream.foreachBatch(take).outputMode(mode))

    def _start_files(self, name: str, frame: DataFrame) -> StreamingQuery:
        sink = self.job.sink
        options = {key: str(value) for key, value in sink.options.items()}
        writer = frame.writeStream.format(sink.format).options(**options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        return self._begin(name, writer.option("path", sink.path or ""))

    def _begin(self, name: str, writer: Any) -> StreamingQuery:
        writer = writer.option("checkpointLocation", self._checkpoint.query(name))
        writer = writer.queryName(f"{self.job.name}-{name}")
        trigger = self.job.run.trigger
        is_continuous = trigger != AVAILABLE_NOW and name in ("query", "quarantine")
        chosen = {"processingTime": trigger} if is_continuous else {"availableNow": True}
        query: StreamingQuery = writer.trigger(**chosen).start()
        return query

    def _batch(self, name: str, number: int) -> Batch:
        query, ends = self._checkpoint.query_id(name), self._checkpoint.ends(name, number)
        messages = None
        if self._quarantine is not None:
            messages = self._checkpoint.messages(name, number)
        return Batch(query, number, ends=ends, rules=self._rules, messages=messages)

    def _watch(
        self,
        queries: list[StreamingQuery],
        listener: Listener,
        report: Report,
        stop: threading.Event,
    ) -> bool:
        """Until the queries end or ``stop`` is set: whether they ended by themselves."""
        running = {str(query.runId) for query in queries}
        deadline = float("inf")
        while running and time.monotonic() < deadline:
            for event in listener.events(_POLL_SECONDS):
                if isinstance(event, str):
                    running.discard(event)
                elif any(str(event.runId) == str(query.runId) for query in queries):
                    self._report(event, report)
            if stop.is_set():
                # Batches fail now, because they are stopped.
                break
            for query in queries:
                if query.exception() is not None:
                    query.awaitTermination()
            if deadline == float("inf") and not any(query.isActive for query in queries):
                # Their last progress may still be on its way.
                deadline = time.monotonic() + _EVENT_SECONDS
        return not any(query.isActive or query.exception() is not None for query in queries)

    def _report(self, event: Any, report: Report) -> None:
        counts = self._counts.pop(event.batchId, None)
        progress = progress_of(self.job, event, counts)
        self._monitor.record(progress, str(event.id))
        report(progress)

    # Batches

    def back_fill(self, start_ms: int | None, end_ms: int | None, report: Report) -> None:
        """Run once over the messages that were stored between two times, the second excluded.

        Without an end, all messages up to now are read, and a checkpoint keeps how far: the same
        back-fill again reads those that came since. With an end it runs once.
        """
        if start_ms is not None and end_ms is not None and end_ms <= start_ms:
            raise ConfigError("a back-fill ends after it begins; the two times are the wrong way")
        with self._clear_errors():
            if end_ms is not None and end_ms > time.time() * 1000:
                raise ConfigError("a back-fill ends in the past; without an end it is up to now")
            name = checkpoint.back_fill_name(self.job, start_ms, end_ms)
            with self._running(name):
                if self.job.source.is_stream and end_ms is None:
                    self._fill_until_now(name, start_ms, report)
                else:
                    self._fill_between(start_ms, end_ms, report)

    def _fill_until_now(self, name: str, start_ms: int | None, report: Report) -> None:
        if self.job.is_stateful:
            raise ConfigError(
                "a back-fill with [deduplicate] or [aggregate] needs an end, so that every row is "
                "in one batch; give --to"
            )
        stream = self._stream(
            "group",
            *_STREAM_ONLY,
            startingTimestamp=str(start_ms or 0),
            startingOffsetsByTimestampStrategy="latest",
        )
        self._run(name, stream, report, threading.Event())

    def _fill_between(self, start_ms: int | None, end_ms: int | None, report: Report) -> None:
        job = self.job
        more = {}
        if start_ms is not None:
            more["startingTimestamp"] = str(start_ms)
        if end_ms is not None:
            more["endingTimestamp"] = str(end_ms)
        if job.source.is_stream:
            more["startingOffsetsByTimestampStrategy"] = "latest"
        batch = replace(single(job.name, job.source.format, start_ms, end_ms), rules=self._rules)
        began = time.monotonic()
        self._check_places()
        messages = self.messages(**more)
        self._check_rows(messages)
        with self._alone():
            if job.is_stateful:
                self._fill_with_state(messages, batch)
            else:
                self._write_checked(self.checked(messages), batch)
        self._finish()
        counts = self._counts.pop(batch.number, None)
        rows = None if counts is None else counts.rows
        progress = Progress(job.name, 0, rows, time.monotonic() - began, None, counts)
        self._monitor.record(progress)
        report(progress)
        if self._left_alone:
            tables = " and ".join(self._left_alone)
            self.summary = f"{tables}: filled between these times before, and left alone"

    def _fill_with_state(self, messages: DataFrame, batch: Batch) -> None:
        observation = Observation() if self.job.has_rules else None
        is_new = self._put(self._sink, self.valid_frame(messages, observation), batch)
        if is_new and observation is not None and (counts := self._observed(observation)):
            self._counts[batch.number] = counts
        if self._quarantine is not None:
            self._put(self._quarantine, expectations.quarantined(self.checked(messages)), batch)

    def _finish(self) -> None:
        with self._writing, self._alone():
            for sink in (self._sink, self._quarantine):
                if sink is not None:
                    sink.finish()
        if self._after is not None:
            said = self._after(self.job, self._spark)
            self.summary = said if isinstance(said, str) else None

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

    def _write_checked(self, frame: DataFrame, batch: Batch) -> None:
        """Write the valid rows, and the invalid ones if there are any."""
        if not self.job.has_rules:
            self._put(self._sink, self.transformed(frame), batch)
            return
        observation = Observation()
        valid = expectations.valid_or_fail(self._observing(frame, observation))
        is_new = self._put(self._sink, self.transformed(valid), batch)
        counts = self._observed(observation) if is_new else None
        # A transform may read less than all rows.
        is_all_valid = (
            counts is not None and counts.rows == batch.messages and not counts.quarantined
        )
        if self._quarantine is not None and not is_all_valid:
            if not is_new:
                self._check_rules(self._quarantine, batch)
            observation = Observation()
            rows = expectations.quarantined(self._observing(frame, observation))
            if self._put(self._quarantine, rows, batch):
                counts = self._observed(observation)
        if counts is not None:
            self._counts[batch.number] = counts

    def _observing(self, frame: DataFrame, observation: Observation | str) -> DataFrame:
        return frame.observe(observation, *expectations.metrics(self.job))

    def _observed(self, observation: Observation) -> Counts | None:
        """What Spark observed; None if a transform did not use the observed rows."""
        if not self._is_observed:
            return None
        # Python's Observation waits without a limit.
        future: Any = attrgetter("_jo")(observation).future()
        deadline = time.monotonic() + _EVENT_SECONDS
        while not future.isCompleted():
            if time.monotonic() > deadline:
                self._is_observed = False
                return None
            time.sleep(_OBSERVED_POLL_SECONDS)
        return expectations.counts(self.job, observation.get)

    def _check_rules(self, quarantine: BatchSink, batch: Batch) -> None:
        """ConfigError if the valid rows of a batch were written by other rules."""
        valid, invalid = self._sink.last(batch), quarantine.last(batch)
        if valid is None or valid.rules in (None, batch.rules):
            return
        if invalid is None or invalid.number < batch.number:
            raise ConfigError(
                f"[parse] or [[expect]] was changed after the valid rows of batch {batch.number} "
                "were written, and before the invalid ones were; rows may be missing in both "
                "tables. Run the job once with the rules as they were, then change them"
            )

    def _write_rows(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows of a query with state."""
        rows = frame if self.job.aggregate is not None else self.transformed(frame)
        if not self._put(self._sink, rows, batch):
            # The state of the batch is stored when its rows are computed.
            frame.write.format("noop").mode("append").save()

    def _put(self, sink: BatchSink, frame: DataFrame, batch: Batch) -> bool:
        """Whether the rows were written; False if the table had them."""
        if sink.write(frame, batch):
            return True
        _logger.info("batch %d was written before, and is left alone", batch.number)
        chosen = self.job.quarantine if sink is self._quarantine else self.job.sink
        if chosen is not None:
            self._left_alone.append(chosen.place)
        return False

    # Errors

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        """One sentence in place of Spark's pages; transforms may raise anything."""
        try:
            yield
        except PipelineError:
            raise
        except StreamingQueryException as error:
            cause = self._failure if self._failure is not None else error
            raise self._explained(cause) from cause
        except Exception as error:
            self._fail_without_java(error)
            raise self._explained(error) from error

    def _explained(self, error: BaseException) -> PipelineError:
        if is_of_shared_checkpoint(error):
            return PipelineError(
                f"{self.job.name}: another run uses the checkpoint {self.job.run.checkpoint} at "
                "the same time; this one has ended, see to it that there is only one"
            )
        # Our own errors name what they are about.
        is_own = self._failed_batch is None or isinstance(error, GoddardError)
        batch = "" if is_own else f"batch {self._failed_batch}: "
        text = f"{self.job.name}: {batch}{self._failed_function(error)}{root_cause(error)}"
        return PipelineError(self.job.redacted(text))

    def _failed_function(self, error: BaseException) -> str:
        """The function of the job that failed on an executor, if one did."""
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
    """A Spark query has one watermark: the longer of those of keys and windows."""
    spec, windows = job.deduplicate, job.aggregate
    assert spec is not None
    if windows is None:
        return spec
    delays = (spec.watermark, windows.delay or spec.watermark)
    longest = max(delays, key=lambda each: interval_ms(each) or 0)
    return msgspec.structs.replace(spec, watermark=longest)
