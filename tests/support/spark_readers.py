"""Call the readers and the writer of the Spark source as Spark calls them, without Spark."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from goddard.spark.options import parse_sink, parse_source
from goddard.spark.reading.reader import BatchReader, StreamReader
from goddard.spark.writing.writer import write_batches
from goddard.testing.process import wait_until

_SECONDS = 60
_STARTS = 4


T = TypeVar("T")


def retry_worker_start(run: Callable[[], T]) -> T:
    """Run a query; repeat it if a Python worker of Spark did not start in time.

    Spark's limit of ten seconds cannot be configured, and an overloaded machine takes longer. The
    query has done nothing by then.
    """
    for _ in range(_STARTS - 1):
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return run()


class ManualStream:
    """A streaming query on numbered messages, run batch by batch by the test.

    ``start``: the offsets of its checkpoint, if it has one.
    """

    def __init__(self, options: dict[str, str], start: dict[str, Any] | None = None) -> None:
        self.reader = StreamReader(parse_source(options, is_streaming=True), ["body"])
        self.offset: dict[str, Any] = self.reader.initialOffset() if start is None else start

    def plan(self, max_rows: int | None = None) -> dict[str, Any]:
        """The end offsets of the next batch."""
        limit = ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)
        return self.reader.latestOffset(self.offset, limit)

    def read(self, end: dict[str, Any]) -> list[int]:
        """The numbers of the batch that ends there; it can be read repeatedly."""
        return sorted(
            int(row["body"])
            for partition in self.reader.partitions(self.offset, end)
            for batch in self.reader.read(partition)
            for row in batch.to_pylist()
        )

    def run_batch(self, max_rows: int | None = None) -> list[int]:
        """Plan and read one batch; empty if there are no new messages."""
        end = self.plan(max_rows)
        found = self.read(end)
        self.offset = end
        return found

    def wait_for_rows(self) -> list[int]:
        return wait_until(self.run_batch, _SECONDS, "new messages")


def read_rows(options: dict[str, str], names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of a batch query."""
    reader = BatchReader(parse_source(options, is_streaming=False), list(names))
    return [
        row
        for partition in reader.partitions()
        for rows in reader.read(partition)
        for row in rows.to_pylist()
    ]


def read_numbers(options: dict[str, str]) -> list[int]:
    return sorted(int(row["body"]) for row in read_rows(options, ["body"]))


def write_bodies(options: dict[str, str], bodies: Iterable[bytes]) -> int:
    """Write rows with these bodies in one task; returns their number."""
    return _write(options, {"body": list(bodies)})


def write_delayed(options: dict[str, str], bodies: Sequence[bytes], *, level: int) -> int:
    return _write(options, {"body": list(bodies), "delayLevel": [level] * len(bodies)})


def _write(options: dict[str, str], columns: dict[str, list[Any]]) -> int:
    rows = pa.RecordBatch.from_pydict(columns)
    return write_batches(iter([rows]), parse_sink(options), "q-0-0")
