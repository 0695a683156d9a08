"""Temporary views of topics, so that SQL names them: ``SELECT ... FROM orders``."""

import re
from collections.abc import Iterable

from pyspark.sql import SparkSession

from goddard.errors import ConfigError
from goddard.spark.options import parse_source
from goddard.spark.reading.cluster import ClusterClient
from goddard.spark.schema import SCHEMA


def create_views(
    spark: SparkSession,
    name_servers: str,
    topics: Iterable[str] | str | re.Pattern[str] | None = None,
    **options: str,
) -> dict[str, str]:
    """Create a temporary view of each topic, with the topic's name.

    ``topics`` are names of topics, or a regular expression that must match the whole name; without
    it there is a view of each topic except system, retry and dead-letter topics. ``options`` are
    more options of the source. Existing temporary views with these names are replaced. A view reads
    the topic as it is when a query runs.

    Returns how to write each view in SQL, with the topic: names with other characters than
    letters, digits and ``_`` are quoted. Spark does not distinguish case, so topics whose names
    differ only in case are an error.
    """
    given = {"nameServers": name_servers, **options}
    if topics is None or isinstance(topics, str | re.Pattern):
        pattern = topics.pattern if isinstance(topics, re.Pattern) else topics or ".*"
        subscription = {"subscribePattern": pattern}
    else:
        subscription = {"subscribe": ",".join(topics)}
    source = parse_source(given | subscription, is_streaming=False)
    with ClusterClient(source.connection) as cluster:
        found = sorted({queue.topic for queue in cluster.queues(source)})
    lower: dict[str, str] = {}
    for topic in found:
        if (other := lower.setdefault(topic.lower(), topic)) != topic:
            raise ConfigError(
                f"the topics {other} and {topic} would have the same view, because Spark does not "
                "distinguish case; choose one of them with topics=[...]"
            )
    views = {}
    for topic in found:
        name = quoted(topic)
        reader = spark.read.format("rocketmq").schema(SCHEMA).options(**given)
        reader.option("subscribe", topic).load().createOrReplaceTempView(name)
        views[name] = topic
    return views


def quoted(name: str) -> str:
    """A name as it is written in SQL."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name}`"
