"""Dead letters, sent again to the topics they came from.

At least once: what was sent is written down after it was sent, in the table ``<path>_replays``, and
not sent a second time unless that is asked for.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from goddard.errors import ConfigError
from goddard.pipelines.jobs.job import MESSAGES, TABLES, Job
from goddard.pipelines.tables.batches import single
from goddard.pipelines.tables.files import Files
from goddard.pipelines.tables.parquet import ParquetTable
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
    if job.sink.format != TABLES[0] or job.sink.path is None:
        raise ConfigError(f"{job.name} writes {job.sink.format}; a Parquet table is wanted")
    files = Files(spark, job.sink.path)
    if not files.walk(""):
        raise ConfigError(f"there is no table at {job.sink.path} yet; run the pipeline first")
    # Conditions may name columns that not all files have.
    letters = spark.read.option("mergeSchema", "true").parquet(files.to_read(""))
    if not {"originTopic", "msgId", "body"} <= set(letters.columns):
        raise ConfigError(f"{job.sink.path} is no table of dead letters")
    # A message that several groups gave up on is in the table for each, and sent once.
    chosen = (
        letters.where(sf.expr(where))
        .where("originTopic IS NOT NULL")
        .dropDuplicates(["originTopic", "msgId"])
    )
    sent_files = Files(spark, f"{job.sink.path}_replays")
    if not again and sent_files.walk(""):
        sent = spark.read.parquet(sent_files.to_read("")).select("msgId").distinct()
        chosen = chosen.join(sent, "msgId", "left_anti")
    chosen = chosen.persist()
    try:
        counts = chosen.groupBy("originTopic").count().orderBy("originTopic").collect()
        found = Replay({row["originTopic"]: row["count"] for row in counts})
        if found.total and not only_show:
            _send(chosen, job)
            table = ParquetTable(sent_files)
            ids = chosen.select("msgId", "originTopic", sf.current_timestamp().alias("sentAt"))
            table.write(ids.coalesce(1), single("replay", sorted_ids(chosen)))
        return found
    finally:
        chosen.unpersist()


def sorted_ids(frame: DataFrame) -> str:
    """The same text for the same letters, so that writing them down twice is once."""
    row = frame.agg(sf.sum(sf.xxhash64("msgId").cast("decimal(38,0)")), sf.count("*")).collect()[0]
    return f"{row[0]}-{row[1]}"


def _send(chosen: DataFrame, job: Job) -> None:
    # One that died again was sent again before: it says so anew.
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
