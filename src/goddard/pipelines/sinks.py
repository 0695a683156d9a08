"""Where the rows of a batch go: tables exactly once; topics and other formats at least once.

Spark's file sink writes streams of files; it is started in ``runner``.
"""

from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from goddard.errors import ConfigError
from goddard.pipelines.checkpoint import Batch
from goddard.pipelines.files import Files
from goddard.pipelines.job import MESSAGES, Aggregate, Sink
from goddard.pipelines.lakehouse import DeltaTable, IcebergTable

_CONSOLE_COLUMN_WIDTH: Final = 60
# Readers of a folder with this log ignore files that are not in it.
_FILE_SINK_LOG: Final = "_spark_metadata"


class BatchSink(Protocol):
    """Takes batches, one after the other, from one thread."""

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        """Write the rows of a batch; False if the table had the batch and was left as it is."""

    def last(self, batch: Batch) -> Batch | None:
        """The last batch of the same query that the table has."""

    def finish(self) -> None:
        """The run has ended."""


def open_sink(sink: Sink, spark: SparkSession, windows: Aggregate | None = None) -> BatchSink:
    """The sink of a job; ``windows`` say how its rows replace others."""
    if sink.format == "delta":
        if windows is None or windows.output_mode == "append":
            return DeltaTable(spark, sink, mode=sink.mode, keys=sink.keys)
        if windows.output_mode == "update":
            return DeltaTable(spark, sink, mode="upsert", keys=windows.keys)
        return DeltaTable(spark, sink, mode="overwrite")
    if sink.format == "iceberg":
        return IcebergTable(spark, sink)
    return _Console(sink.rows) if sink.format == "console" else _SparkFormat(spark, sink)


class _Console:
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        print(f"batch {batch.number}")
        frame.show(self._rows, truncate=_CONSOLE_COLUMN_WIDTH)
        return True

    def last(self, batch: Batch) -> Batch | None:
        """Nothing is known of rows that were printed."""
        return None

    def finish(self) -> None:
        """Nothing is left to do."""


class _SparkFormat:
    """A topic, or another format that Spark can append to."""

    def __init__(self, spark: SparkSession, sink: Sink) -> None:
        self._spark = spark
        self._sink = sink

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        sink = self._sink
        if (
            sink.is_files
            and sink.path is not None
            and Files(self._spark, sink.path).exists(_FILE_SINK_LOG)
        ):
            raise ConfigError(
                f"{sink.path} belongs to a stream: readers ignore files that its file sink has not "
                "written. Back-fill another folder, or use a Delta table"
            )
        options = {name: str(value) for name, value in sink.options.items()}
        mode = options.pop("mode", "append") if sink.format != MESSAGES else "append"
        writer = frame.write.format(sink.format).mode(mode).options(**options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.save(sink.path)
        return True

    def last(self, batch: Batch) -> Batch | None:
        """Nothing is known of rows that were sent."""
        return None

    def finish(self) -> None:
        """Nothing is left to do."""
