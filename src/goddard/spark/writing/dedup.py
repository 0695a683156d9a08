"""Drop the duplicates that the sink's retries write; they have equal idempotence keys."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from goddard.errors import ConfigError
from goddard.spark.rows import ROW_PROPERTY

_KEY: Final = "__goddard_row"
_REQUIRED: Final = ("topic", "brokerName", "queueId", "queueOffset", "properties")


def drop_duplicate_writes(frame: DataFrame, *, watermark: str = "1 hour") -> DataFrame:
    """Messages of a ``rocketmq`` source, with each row that a Spark sink wrote only once.

    The sink writes at least once: when Spark retries a failed task, its rows are sent again with
    the same idempotence keys (the property ``SPARK_ROW``). Messages without such a key are kept.
    In a batch all messages are compared. A stream keeps the keys of messages in its state for
    ``watermark``, by ``storeTimestamp``; set it longer than the writing query may be down in the
    middle of a batch.
    """
    required = (*_REQUIRED, "storeTimestamp") if frame.isStreaming else _REQUIRED
    missing = [name for name in required if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"the column {missing[0]} is missing; dropping duplicates needs {', '.join(required)}"
        )
    # Nulls would be equal to each other, so messages without a key are identified by their offset.
    position = f.concat_ws("/", "brokerName", f.col("queueId"), f.col("queueOffset"))
    keyed = frame.withColumn(_KEY, f.coalesce(f.col("properties")[ROW_PROPERTY], position))
    if frame.isStreaming:
        keyed = keyed.withWatermark("storeTimestamp", watermark)
        return keyed.dropDuplicatesWithinWatermark(["topic", _KEY]).drop(_KEY)
    return keyed.dropDuplicates(["topic", _KEY]).drop(_KEY)
