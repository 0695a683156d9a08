"""The readers and the writer of the Spark source, driven by hand as Spark drives them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from goddard.spark.options import parse_sink, parse_source
from goddard.spark.read import BatchReader, StreamReader
from goddard.spark.write import write_batches
from goddard.testing.process import wait_until

_SECONDS = 60
_STARTS = 4


T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """Run a query, again if Spark gave up on its own Python, which has ten seconds to start.

    A machine at several times its load takes longer, and nothing can be set. The query has done
    nothing by then.
    """
    for _ in range(_STARTS - 1):
        try:
            return run()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
    return run()


class Stream:
    """A streaming query on numbered messages; ``start`` is what its checkpoint says, if it has
    one."""

    def __init__(self, options: dict[str, str], start: dict[str, Any] | None = None) -> None:
        self.reader = StreamReader(parse_source(options, is_streaming=True), ["body"])
        self.at: dict[str, Any] = self.reader.initialOffset() if start is None else start

    def plan(self, most: int | None = None) -> dict[str, Any]:
        """Where the next batch ends."""
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        return self.reader.latestOffset(self.at, limit)

    def read(self, end: dict[str, Any]) -> list[int]:
        """The numbers of the batch that ends there, as often as wanted."""
        return sorted(
            int(row["body"])
            for partition in self.reader.partitions(self.at, end)
            for batch in self.reader.read(partition)
            for row in batch.to_pylist()
        )

    def step(self, most: int | None = None) -> list[int]:
        """One batch; nothing if there is nothing new."""
        end = self.plan(most)
        found = self.read(end)
        self.at = end
        return found

    def until_something_comes(self) -> list[int]:
        return wait_until(self.step, _SECONDS, "new messages")

    def until_as_many_came(self, count: int) -> list[int]:
        """The numbers of as many batches as it takes."""
        found: list[int] = []
        while len(found) < count:
            found += self.until_something_comes()
        return sorted(found)


def read_rows(options: dict[str, str], names: Iterable[str]) -> list[dict[str, Any]]:
    """What a batch has."""
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
    """What a task does with these rows; how many there were."""
    return _write(options, {"body": list(bodies)})


def write_delayed(options: dict[str, str], bodies: Sequence[bytes], *, level: int) -> int:
    return _write(options, {"body": list(bodies), "delayLevel": [level] * len(bodies)})


def _write(options: dict[str, str], columns: dict[str, list[Any]]) -> int:
    rows = pa.RecordBatch.from_pydict(columns)
    return write_batches(iter([rows]), parse_sink(options), "q-0-0")
