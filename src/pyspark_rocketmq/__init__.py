"""Found by Spark itself, which imports packages named ``pyspark_*`` for their DefaultSource."""

from goddard.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
