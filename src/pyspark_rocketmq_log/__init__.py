"""Registers the source: Spark imports packages named ``pyspark_*`` and their DefaultSource."""

from goddard.spark.source import RocketMQLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
