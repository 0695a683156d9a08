"""The data sources ``format("rocketmq")`` and ``format("rocketmq-log")``."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from goddard.errors import ConfigError
from goddard.spark.log import parse_log
from goddard.spark.options import SinkOptions, parse_sink, parse_source
from goddard.spark.reading.reader import BatchReader, FilteringReader, LogReader, StreamReader
from goddard.spark.rows import check_columns
from goddard.spark.schema import SCHEMA, selected_columns
from goddard.spark.writing.transactions import TransactionStreamWriter
from goddard.spark.writing.writer import BatchWriter, StreamWriter


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ or Goddard as DataFrames; docs/guide/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        # Spark calls this first, so wrong options fail when a read is defined, not when it runs.
        parse_source(self._option_values(), is_streaming=None)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source(self._option_values(), is_streaming=False)
        kind = FilteringReader if options.pushes_filters else BatchReader
        return kind(options, selected_columns(schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_source(self._option_values(), is_streaming=True)
        return StreamReader(options, selected_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = self._sink(schema, overwrite)
        if options.transaction_topic is not None:
            raise ConfigError("deliveryGuarantee=exactly-once is for streams")
        return BatchWriter(options)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._sink(schema, overwrite)
        if options.transaction_topic is None:
            return StreamWriter(options)
        if "delayLevel" in schema.names:
            raise ConfigError("deliveryGuarantee=exactly-once allows no column delayLevel")
        return TransactionStreamWriter(options)

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise ConfigError('a topic cannot be overwritten; write with .mode("append")')
        options = parse_sink(self._option_values())
        check_columns(
            {field.name: field.dataType.simpleString() for field in schema.fields}, options.topic
        )
        return options

    def _option_values(self) -> dict[str, str]:
        options: Any = self.options
        return dict(options.items())


class RocketMQLogDataSource(DataSource):
    """Commit-log files of RocketMQ or Goddard as DataFrames, without a broker."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-log"

    def schema(self) -> StructType:
        parse_log(self._option_values())
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(parse_log(self._option_values()), selected_columns(schema))

    def _option_values(self) -> dict[str, str]:
        options: Any = self.options
        return dict(options.items())


def register(spark: SparkSession) -> None:
    """Register the data sources with a session; needed only where Spark does not find them."""
    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(RocketMQLogDataSource)
