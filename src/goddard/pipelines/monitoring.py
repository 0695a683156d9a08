"""What a run reports: progress of batches on the terminal, a quality table, Prometheus metrics.

Spark sends the progress of every batch to a listener, and observes the counts of valid and invalid
rows while it writes them: neither costs a job of its own.
"""

import datetime as dt
import queue
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from typing_extensions import override

from goddard.pipelines import expectations
from goddard.pipelines.checkpoint import Batch, query_name
from goddard.pipelines.expectations import Counts
from goddard.pipelines.job import Job
from goddard.pipelines.lakehouse import append_rows
from goddard.spark.progress import lag

# The name of the metrics that Spark observes in the plan of a query.
OBSERVED: Final = "goddard"
_QUALITY_SCHEMA: Final = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("job", pa.string()),
        pa.field("query", pa.string()),
        pa.field("batch", pa.int64()),
        pa.field("rule", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("violations", pa.int64()),
    ]
)
_GAUGES: Final = {
    "batch": "the number of the last batch",
    "batch_seconds": "how long the last batch took",
    "messages_per_second": "the rate of the last batch",
    "lag_messages": "messages that are not read yet",
}
_COUNTERS: Final = {
    "messages": "messages that were read since the start of the run",
    "quarantined_rows": "rows that were written to the quarantine table",
    "dropped_rows": "rows that violated an expectation and were dropped",
    "late_rows": "rows that were too late for a window or a key",
    "violations": "violations of a rule",
}


@dataclass(frozen=True, slots=True)
class Progress:
    """A completed batch.

    ``rows`` are the messages that were read, ``lag`` those that are not read yet, where known.
    ``late`` are rows that came too late for a window or a key; of windows, Spark counts rows after
    the partial aggregation.
    """

    query: str
    batch: int
    rows: int | None
    seconds: float
    lag: int | None
    counts: Counts | None = None
    late: int = 0


def progress_of(job: Job, found: StreamingQueryProgress, counts: Counts | None) -> Progress:
    """The progress that Spark reports; ``counts`` if they were observed in the batch itself."""
    observed = found.observedMetrics.get(OBSERVED)
    if counts is None and observed is not None:
        counts = expectations.counts(job, observed.asDict())
    behind = lag(found)
    return Progress(
        query=found.name or job.name,
        batch=found.batchId,
        rows=found.numInputRows if counts is None else counts.rows,
        seconds=found.batchDuration / 1000,
        lag=behind.total if behind.queues else None,
        counts=counts,
        late=sum(each.numRowsDroppedByWatermark for each in found.stateOperators),
    )


class Listener(StreamingQueryListener):
    """Keeps the progress of queries until it is asked for; Spark calls it from other threads."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[StreamingQueryProgress | str] = queue.SimpleQueue()

    def events(self, seconds: float) -> Iterator[StreamingQueryProgress | str]:
        """Progress of batches, and the run ids of queries that ended; ends when none comes."""
        while True:
            try:
                event = self._events.get(timeout=seconds)
            except queue.Empty:
                return
            yield event

    @override
    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to report yet."""

    @override
    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to report."""

    @override
    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        # Triggers without a batch have progress, too.
        if "addBatch" in event.progress.durationMs:
            self._events.put(event.progress)

    @override
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._events.put(str(event.runId))


class Monitor:
    """Writes the quality table and the Prometheus metrics of a run."""

    def __init__(self, job: Job, quality: str | None) -> None:
        self._job = job
        self._quality = quality
        self._totals: Counter[tuple[str, str, str]] = Counter()
        self._last: dict[str, dict[str, float]] = {}

    def record(self, progress: Progress, query_id: str | None = None) -> None:
        """Take the progress of a batch; with ``query_id``, its quality is written once."""
        if progress.counts is not None and self._quality is not None:
            self._write_quality(self._quality, progress, progress.counts, query_id)
        if self._job.monitoring.prometheus_file is not None:
            self._count(progress)
            self._write_metrics(Path(self._job.monitoring.prometheus_file))

    def _write_quality(
        self, path: str, progress: Progress, counts: Counts, query_id: str | None
    ) -> None:
        row = {
            "at": dt.datetime.now(dt.UTC),
            "job": self._job.name,
            "query": progress.query,
            "batch": progress.batch,
            "rows": counts.rows,
        }
        rules = dict(counts.violations)
        if counts.rescued:
            rules["rescued fields"] = counts.rescued
        rows = [row | {"rule": name, "violations": number} for name, number in rules.items()]
        name = None if query_id is None else f"{query_name(query_id)}-quality"
        batch = None if name is None else Batch(name, progress.batch)
        sink = self._job.sink
        options = {key: str(value) for key, value in sink.options.items()}
        table = pa.Table.from_pylist(rows, _QUALITY_SCHEMA)
        append_rows(path, table, batch, options if sink.format == "delta" else None)

    def _count(self, progress: Progress) -> None:
        query, counts = progress.query, progress.counts or Counts()
        self._totals["messages", query, ""] += progress.rows or 0
        self._totals["quarantined_rows", query, ""] += counts.quarantined
        self._totals["dropped_rows", query, ""] += counts.dropped
        self._totals["late_rows", query, ""] += progress.late
        for rule, number in counts.violations.items():
            self._totals["violations", query, rule] += number
        self._last[query] = {
            "batch": progress.batch,
            "batch_seconds": progress.seconds,
            "messages_per_second": (progress.rows or 0) / max(progress.seconds, 0.001),
        }
        if progress.lag is not None:
            self._last[query]["lag_messages"] = progress.lag

    def _write_metrics(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.tmp")
        fresh.write_text("\n".join(self._lines()) + "\n", encoding="utf-8")
        # A reader never sees half of a file.
        fresh.replace(path)

    def _lines(self) -> Iterator[str]:
        for name, words in _GAUGES.items():
            yield from _heading(name, words, "gauge")
            for query, values in self._last.items():
                if name in values:
                    yield f"goddard_pipeline_{name}{self._labels(query)} {values[name]:g}"
        for name, words in _COUNTERS.items():
            yield from _heading(f"{name}_total", words, "counter")
            for (counter, query, rule), value in self._totals.items():
                if counter == name:
                    yield f"goddard_pipeline_{name}_total{self._labels(query, rule)} {value}"

    def _labels(self, query: str, rule: str = "") -> str:
        labels = {"job": self._job.name, "query": query} | ({"rule": rule} if rule else {})
        return "{" + ",".join(f'{name}="{_escaped(each)}"' for name, each in labels.items()) + "}"


def _heading(name: str, words: str, kind: str) -> Iterator[str]:
    yield f"# HELP goddard_pipeline_{name} {words}"
    yield f"# TYPE goddard_pipeline_{name} {kind}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
