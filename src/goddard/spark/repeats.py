"""Rows that the sink wrote more than once: known by their idempotence key, and dropped."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from goddard.errors import ConfigError
from goddard.spark.rows import ROW_PROPERTY

_KEY: Final = "__goddard_row"
_NEEDED: Final = ("topic", "brokerName", "queueId", "queueOffset", "properties")


def without_repeats(frame: DataFrame, *, within: str = "1 hour") -> DataFrame:
    """Messages of a ``rocketmq`` source, each row of a Spark sink once.

    The sink writes at least once: a batch that Spark repeats after a failure is sent again, with
    the same keys (the property ``SPARK_ROW``). Messages without such a key are left alone. A batch
    is compared as a whole. A stream remembers the keys of messages for ``within``, by their
    ``storeTimestamp``: make it longer than the writing query may be down in mid-batch.
    """
    needed = (*_NEEDED, "storeTimestamp") if frame.isStreaming else _NEEDED
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise ConfigError(f"repeats are found by {', '.join(needed)}; {missing[0]} is not there")
    # A null would be equal to every other: messages of others are told apart by their place.
    place = f.concat_ws("/", "brokerName", f.col("queueId"), f.col("queueOffset"))
    keyed = frame.withColumn(_KEY, f.coalesce(f.col("properties")[ROW_PROPERTY], place))
    if frame.isStreaming:
        keyed = keyed.withWatermark("storeTimestamp", within)
        return keyed.dropDuplicatesWithinWatermark(["topic", _KEY]).drop(_KEY)
    return keyed.dropDuplicates(["topic", _KEY]).drop(_KEY)
