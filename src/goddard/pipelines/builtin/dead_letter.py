"""Dead letters, sent again to the topics they came from.

At least once: what was sent is written down after it was sent, in the table ``<path>_replays``, and
not sent a second time unless that is asked for.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from goddard.errors import ConfigError
from goddard.pipelines.files import Files
from goddard.pipelines.job import MESSAGES, Job
from goddard.pipelines.lakehouse import append_rows, read_delta
from goddard.protocol.message import PROPERTY_SHARDING_KEY, RESERVED_PROPERTIES
from goddard.spark.options import CONNECTION_OPTIONS

# What a message says about itself when it is sent again.
REPLAYED = "REPLAYED_FROM"


@dataclass(frozen=True, slots=True)
class Replay:
    """Dead letters that were chosen, by origin topic; sent or to be sent."""

    rows: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.rows.values())


def replay(
    job: Job, spark: SparkSession, *, where: str, again: bool = False, only_show: bool = False
) -> Replay:
    """Send the dead letters that meet a condition on the table's columns."""
    if job.sink.format != "delta" or job.sink.path is None:
        raise ConfigError(f"{job.name} writes {job.sink.format}; a Delta table is needed")
    letters = read_delta(spark, job.sink.path)
    if letters is None:
        raise ConfigError(f"there is no table at {job.sink.path} yet; run the pipeline first")
    if not {"originTopic", "msgId", "body"} <= set(letters.columns):
        raise ConfigError(f"{job.sink.path} is no table of dead letters")
    # A message that several groups gave up on is in the table for each, and sent once.
    chosen = (
        letters.where(sf.expr(where))
        .where("originTopic IS NOT NULL")
        .dropDuplicates(["originTopic", "msgId"])
    )
    replays = f"{job.sink.path}_replays"
    sent = None if again else read_delta(spark, replays)
    if sent is not None:
        chosen = chosen.join(sent.select("msgId").distinct(), "msgId", "left_anti")
    chosen = chosen.persist()
    try:
        counts = chosen.groupBy("originTopic").count().orderBy("originTopic").collect()
        found = Replay({row["originTopic"]: row["count"] for row in counts})
        if found.total and not only_show:
            _send(chosen, job)
            ids = chosen.select("msgId", "originTopic", sf.current_timestamp().alias("sentAt"))
            append_rows(Files(spark, replays).root, ids.toArrow())
        return found
    finally:
        chosen.unpersist()


def _send(chosen: DataFrame, job: Job) -> None:
    # One that died again was sent again before: it says so again.
    reserved = sorted(RESERVED_PROPERTIES | {PROPERTY_SHARDING_KEY, REPLAYED})
    kept = sf.map_filter(
        "properties", lambda name, _: ~name.isin(reserved) & ~name.startswith("__")
    )
    messages = chosen.select(
        "body",
        sf.col("originTopic").alias("topic"),
        "keys",
        "tags",
        sf.map_concat(kept, sf.create_map(sf.lit(REPLAYED), sf.col("msgId"))).alias("properties"),
        sf.col("properties")[PROPERTY_SHARDING_KEY].alias("shardingKey"),
    )
    options = {
        name: value for name, value in job.source.options.items() if name in CONNECTION_OPTIONS
    }
    messages.write.format(MESSAGES).mode("append").options(**options).save()
