"""Found by Spark itself, which imports packages named ``pyspark_*`` for their DefaultSource."""

from goddard.spark.source import RocketMQLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
