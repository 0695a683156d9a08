"""What the pipeline ``traffic`` does besides its table: the lag of groups, and a chart.

The lag is sampled when the pipeline ends, into ``<path>_lag``; the chart is ``<path>.svg``.
"""

import datetime as dt
from collections import defaultdict
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from goddard.client.blocking.admin import Admin
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.pipelines.builtin.chart import GroupLag, Slot, chart
from goddard.pipelines.files import Files
from goddard.pipelines.job import Job
from goddard.pipelines.lakehouse import append_rows, read_delta
from goddard.protocol.names import is_dlq_topic, is_retry_topic, is_system_group
from goddard.spark.options import SourceOptions, parse_source

_MAX_SLOTS: Final = 24 * 60


def finish(job: Job, spark: SparkSession) -> str:
    """After a run: sample the lag, draw the chart; returns what to tell the user."""
    assert job.sink.path is not None
    options = parse_source(job.source.options, is_streaming=True)
    lags = sample_lags(options)
    now = dt.datetime.now(dt.UTC)
    if lags:
        rows = [(now, each.group, each.topic, each.lag) for each in lags]
        schema = "sampledAt timestamp, consumerGroup string, topic string, lag bigint"
        samples = spark.createDataFrame(rows, schema).toArrow()
        append_rows(Files(spark, f"{job.sink.path}_lag").root, samples)
    slots = read_slots(spark, job.sink.path)
    if not slots:
        return "there was no traffic yet, so there is no chart"
    picture = f"{job.sink.path}.svg"
    folder, _, name = picture.rpartition("/")
    files = Files(spark, folder or ".")
    files.delete(name)
    # That of this pipeline is what came while it ran.
    others = [each for each in lags if each.group != options.group]
    files.write_text(name, chart(slots, others))
    return f"chart: {picture}"


def sample_lags(options: SourceOptions) -> list[GroupLag]:
    """How far every consumer group is behind in every topic that it consumes; the longest first."""
    connection = options.connection
    lags: dict[tuple[str, str], int] = defaultdict(int)
    latest: dict[MessageQueue, int | None] = {}
    with Admin(name_servers=connection.name_servers, **connection.keywords) as admin:
        masters = [place for place in admin.brokers() if place.is_master]
        for place in masters:
            # By offsets and not by group: groups of Spark and of old clients are declared nowhere.
            for (topic, group), positions in admin.consumer_offsets(place.address).items():
                if is_system_group(group) or is_retry_topic(topic) or is_dlq_topic(topic):
                    continue
                for queue_id, position in positions.items():
                    queue = MessageQueue(topic, place.name, queue_id)
                    if queue not in latest:
                        latest[queue] = _max_offset(admin, queue)
                    if (end := latest[queue]) is not None:
                        lags[group, topic] += max(0, end - position)
    found = [GroupLag(group, topic, lag) for (group, topic), lag in lags.items()]
    return sorted(found, key=lambda each: (-each.lag, each.group, each.topic))


def _max_offset(admin: Admin, queue: MessageQueue) -> int | None:
    try:
        return admin.max_offset(queue)
    except GoddardError:
        return None  # its topic was deleted; offsets stay behind for a while


def read_slots(spark: SparkSession, path: str) -> list[Slot]:
    """The newest windows of the table; of minutes, those of a day."""
    table = read_delta(spark, path)
    if table is None:
        return []
    # As numbers: Spark hands times out in the zone of this machine, without saying so.
    at, end = sf.unix_micros("windowStart"), sf.unix_micros("windowEnd")
    table = table.withColumns({"at": at, "length": end - at})
    newest, length = table.agg(sf.max("at"), sf.min("length")).collect()[0]
    if newest is None:
        return []
    since = newest - _MAX_SLOTS * length
    rows = table.where(table["at"] > since).orderBy("at", "topic").collect()
    return [
        Slot(
            at=dt.datetime.fromtimestamp(row["at"] / 1e6, dt.UTC),
            length=dt.timedelta(microseconds=row["length"]),
            topic=row["topic"],
            messages=row["messages"],
            bytes=row["bytes"] or 0,
            p50_ms=max(0, row["latencyP50Ms"] or 0),
            p95_ms=max(0, row["latencyP95Ms"] or 0),
            p99_ms=max(0, row["latencyP99Ms"] or 0),
        )
        for row in rows
    ]
