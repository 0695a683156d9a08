"""Where the rows of a batch go: tables exactly once; topics and whatever else at least once."""

import importlib
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from goddard.errors import ConfigError
from goddard.extras import missing_extra
from goddard.pipelines.jobs.job import MESSAGES, Sink
from goddard.pipelines.tables.batches import Batch
from goddard.pipelines.tables.files import Files
from goddard.pipelines.tables.parquet import ParquetTable

_CONSOLE_COLUMN_WIDTH: Final = 60


class BatchSink(Protocol):
    """Takes batches, one after the other, from one thread."""

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        """Take the rows of a batch; for a table, in place of earlier attempts at it.

        False if the batch was there already, and was left alone.
        """

    def withdraw(self, batch: Batch) -> None:
        """The batch has no rows; earlier attempts at it are undone."""

    def finish(self) -> None:
        """No batch follows in this run."""


def open_sink(
    sink: Sink, spark: SparkSession, *, replaces: bool = False, keys: tuple[str, ...] = ()
) -> BatchSink:
    """The sink that a job names.

    ``replaces``: every batch is the whole content. ``keys``: a row takes the place of the one that
    has the same.
    """
    if sink.format == "parquet":
        return ParquetTable(
            Files(spark, sink.path or ""),
            partition_by=sink.partition_by,
            options=dict(sink.options),
            compacts=sink.compacts,
            replaces=replaces,
            keys=keys,
        )
    if sink.format in ("iceberg", "delta"):
        return _lake_table(sink, spark)
    if sink.format == "console":
        return _Console(int(sink.options["rows"]))
    return _SparkFormat(sink)


def _lake_table(sink: Sink, spark: SparkSession) -> BatchSink:
    try:
        # An extra of its own: only those who want such tables need its packages.
        lake: Any = importlib.import_module("goddard.pipelines.tables.lake")
    except ImportError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise ConfigError(f"{sink.format} tables: {missing}") from error
    made: BatchSink
    if sink.format == "delta":
        made = lake.DeltaTable(
            spark, sink.path, partition_by=sink.partition_by, options=dict(sink.options) or None
        )
    else:
        made = lake.IcebergTable(
            spark,
            sink.table,
            dict(sink.catalog),
            location=sink.path,
            partition_by=sink.partition_by,
        )
    return made


class _Console:
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        print(f"batch {batch.number}")
        frame.show(self._rows, truncate=_CONSOLE_COLUMN_WIDTH)
        return True

    def withdraw(self, batch: Batch) -> None:
        """Nothing was shown."""

    def finish(self) -> None:
        """Nothing is left to do."""


class _SparkFormat:
    """A topic, or whatever else Spark can append to."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        sink = self._sink
        options = dict(sink.options)
        mode = options.pop("mode", "append") if sink.format != MESSAGES else "append"
        writer = frame.write.format(sink.format).mode(mode).options(**options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.save(sink.path)
        return True

    def withdraw(self, batch: Batch) -> None:
        """What was sent stays sent."""

    def finish(self) -> None:
        """Nothing is left to do."""
