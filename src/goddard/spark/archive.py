"""Read an archive of topics and the live topics as one DataFrame, each message once.

An archive has the first messages of each queue, and the topic has the last ones. Usually they
overlap: retention deletes messages long after a pipeline has archived them. The seam of a queue is
the offset behind the last message in the archive. Offsets identify messages exactly, so the frame
has the archive up to the seam, and the topic from there. Both ends are determined when ``history``
is called, and the frame keeps them: its rows are the same each time it is evaluated, also if a
pipeline appends to the archive in the meantime.

The rows of the archive alone determine the seam, whichever program wrote them. A queue whose
offsets have a gap in the archive, or between the archive and the topic, has lost messages.
"""

import importlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.extras import require
from goddard.spark.options import SourceOptions, parse_source
from goddard.spark.reading.cluster import Bounds, ClusterClient
from goddard.spark.reading.offsets import DataLossError, to_json
from goddard.spark.schema import SCHEMA, selected_columns

_logger: Final = logging.getLogger("goddard.spark")

# What identifies a message in an archive.
_QUEUE: Final = ("topic", "brokerName", "queueId")
_OFFSET: Final = "queueOffset"
_END: Final = "__goddard_end"
# These options would select different messages of the archive and of the topic.
_REFUSED: Final = ("starting", "ending", "filter", "group")
_SUBSCRIPTIONS: Final = ("subscribe", "subscribepattern", "assign")
# A Delta table with the version has renamed columns. Other features change which rows are valid.
_COLUMN_MAPPING_VERSION: Final = 2
_KNOWN_FEATURES: Final = {"timestampNtz"}


class ArchivedQueue(NamedTuple):
    """What an archive has of a queue: the offsets from ``first`` to before ``end``."""

    first: int
    end: int
    messages: int
    # Store time of the last message; None if the archive does not have this column.
    last_stored_ms: int | None


@dataclass(frozen=True, slots=True)
class Seam:
    """The ranges of offsets to read from the topic, before and behind the archive."""

    before: dict[MessageQueue, tuple[int, int]]
    behind: dict[MessageQueue, tuple[int, int]]
    # Queues whose last archived message is not in the topic any more, nor deleted by retention.
    replaced: list[MessageQueue]
    losses: list[str]


def history(spark: SparkSession, archive: DataFrame | str | Path, **options: str) -> DataFrame:
    """The messages of an archive and of its topics as one DataFrame, each message once.

    ``archive`` is the folder of a Delta or Parquet table with columns of the source, a store
    directory or commit log of a broker, or any DataFrame with the columns ``topic``,
    ``brokerName``, ``queueId`` and ``queueOffset``. ``options`` are options of the source, with
    ``nameServers`` and ``subscribe``, ``subscribePattern`` or ``assign``. The result has the
    columns of the source that the archive has. It ends at the latest messages of now.

    Raises DataLossError if messages are missing: in the archive, or because the topic's retention
    deleted them before they were archived. With ``failOnDataLoss=false`` that is a warning.
    """
    for name in options:
        if name.lower().startswith(_REFUSED):
            raise ConfigError(
                f"history reads all messages, so it has no option {name}; select rows with where()"
            )
    source = parse_source(options, is_streaming=False)
    with ClusterClient(source.connection) as cluster:
        queues = cluster.queues(source)
        frame = _archive_frame(spark, archive, queues)
        archived = _archived_queues(frame, source)
        # Only now, because the archive may grow while it is read.
        bounds = cluster.bounds(queues)
        last_offsets = {
            queue: each.end - 1
            for queue, each in archived.items()
            if bounds.earliest.get(queue, each.end) < each.end <= bounds.latest.get(queue, 0)
        }
        seam = plan_seam(archived, bounds, cluster.store_times(last_offsets))
        if seam.losses and source.fails_on_data_loss:
            raise DataLossError(seam.losses)
        for loss in seam.losses:
            _logger.warning("messages were lost before they were read: %s", loss)
        _continue_after_loss(cluster, archived, bounds, seam)
    columns = [name for name in SCHEMA.names if name in frame.columns]
    whole = _up_to_seam(frame, archived).select(*columns)
    for ranges in (seam.before, seam.behind):
        if ranges:
            whole = whole.unionByName(_live(spark, options, ranges, columns))
    return whole


# The archive


def _archive_frame(
    spark: SparkSession, archive: DataFrame | str | Path, queues: Iterable[MessageQueue]
) -> DataFrame:
    """The rows of the archive, with columns that fit those of the source."""
    frame = archive if isinstance(archive, DataFrame) else _open(spark, str(archive), queues)
    missing = [name for name in (*_QUEUE, _OFFSET) if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"the archive has no column {missing[0]}; history needs {', '.join((*_QUEUE, _OFFSET))}"
        )
    known = [field for field in frame.schema.fields if field.name in SCHEMA.names]
    try:
        selected_columns(StructType(known))
    except ConfigError as error:
        raise ConfigError(f"the archive does not fit the topics: {error}") from error
    return frame


def _open(spark: SparkSession, path: str, queues: Iterable[MessageQueue]) -> DataFrame:
    folder = Path(path.removeprefix("file://"))
    if not folder.is_dir():
        raise ConfigError(
            f"{path} is not a folder on this machine; read the archive with spark.read, and pass "
            "the DataFrame"
        )
    if (folder / "_delta_log").is_dir():
        return _open_delta(spark, folder)
    if folder.name == "commitlog" or (folder / "commitlog").is_dir():
        return _open_log(spark, folder, {queue.broker_name for queue in queues})
    return _open_parquet(spark, folder, [str(folder)])


def _open_delta(spark: SparkSession, folder: Path) -> DataFrame:
    """The files of the newest version of a table, without Delta's Java libraries."""
    require("spark", "deltalake")
    # Imported here, because it belongs to another extra than the source.
    deltalake: Any = importlib.import_module("deltalake")
    table = deltalake.DeltaTable(str(folder))
    protocol = table.protocol()
    features = set(protocol.reader_features or ()) - _KNOWN_FEATURES
    if features or protocol.min_reader_version == _COLUMN_MAPPING_VERSION:
        raise ConfigError(
            f"the Delta table {folder} uses {', '.join(sorted(features)) or 'column mapping'}; "
            "read it with Delta's package for Spark, and pass the DataFrame"
        )
    files = table.file_uris()
    return _open_parquet(spark, folder, files) if files else spark.createDataFrame([], SCHEMA)


def _open_parquet(spark: SparkSession, folder: Path, paths: list[str]) -> DataFrame:
    options = {"basePath": str(folder), "mergeSchema": "true"}
    inferred = spark.read.options(**options).parquet(*paths).schema
    # Spark infers numbers and dates from the names of partition folders.
    fields = [
        StructField(each.name, StringType()) if each.name in ("topic", "brokerName") else each
        for each in inferred.fields
    ]
    return spark.read.schema(StructType(fields)).options(**options).parquet(*paths)


def _open_log(spark: SparkSession, folder: Path, brokers: set[str]) -> DataFrame:
    if len(brokers) != 1:
        raise ConfigError(
            f"{folder} does not say which of the brokers {', '.join(sorted(brokers))} wrote it; "
            'read it with format("rocketmq-log") and the option brokerName, and pass the DataFrame'
        )
    reader = spark.read.format("rocketmq-log").option("brokerName", *brokers)
    return reader.option("includeSystemTopics", "true").load(str(folder))


def _archived_queues(frame: DataFrame, source: SourceOptions) -> dict[MessageQueue, ArchivedQueue]:
    """What the archive has of each queue that the options select."""
    stored = f.lit(None)
    if "storeTimestamp" in frame.columns:
        stored = f.unix_millis(f.max_by("storeTimestamp", _OFFSET))
    chosen = frame.where(f.col("topic").isin(*source.topics)) if source.topics else frame
    rows = (
        chosen.groupBy(*_QUEUE)
        .agg(f.min(_OFFSET), f.max(_OFFSET), f.count(f.lit(1)), stored)
        .collect()
    )
    found = {}
    for topic, broker_name, queue_id, first, last, count, stored_ms in rows:
        if None in (topic, broker_name, queue_id, first):
            raise ConfigError(
                f"the archive has rows without topic, broker, queue or offset, of topic {topic}; "
                "history cannot tell whether the topic has these messages too"
            )
        queue = MessageQueue(topic, broker_name, queue_id)
        if source.selects(queue):
            found[queue] = ArchivedQueue(first, last + 1, count, stored_ms)
    return found


def _up_to_seam(frame: DataFrame, archived: Mapping[MessageQueue, ArchivedQueue]) -> DataFrame:
    """The rows before the seam; a pipeline may append others at the same time."""
    spark = frame.sparkSession
    rows = [(*queue, each.end) for queue, each in sorted(archived.items())]
    ends = spark.createDataFrame(
        rows, "topic STRING, brokerName STRING, queueId INT, `__goddard_end` LONG"
    )
    # Equal topics are a condition on the archive's partitions too.
    kept = frame.where(f.col("topic").isin(*{queue.topic for queue in archived}))
    joined = kept.join(f.broadcast(ends), list(_QUEUE))
    return joined.where(f.col(_OFFSET) < f.col(_END)).drop(_END)


# The seam


def plan_seam(
    archived: Mapping[MessageQueue, ArchivedQueue],
    bounds: Bounds,
    stored_ms: Mapping[MessageQueue, int | None],
) -> Seam:
    """What to read from each queue of the topics, and descriptions of the lost messages. Pure.

    ``stored_ms`` has the store time of the message that the topic has in the place of the archive's
    last one, where it is known.
    """
    seam = Seam({}, {}, [], [])
    for queue, each in sorted(archived.items()):
        if each.messages != each.end - each.first:
            seam.losses.append(
                f"the archive has {each.messages} messages of {queue} with offsets from "
                f"{each.first} to {each.end - 1}, which are {each.end - each.first} offsets: were "
                "messages filtered, or written twice?"
            )
    for queue, latest in sorted(bounds.latest.items()):
        earliest = bounds.earliest[queue]
        old = archived.get(queue)
        if old is None:
            if earliest:
                seam.losses.append(
                    f"the archive has no message of {queue}, and the topic begins at {earliest}"
                )
            seam.behind[queue] = (earliest, latest)
            continue
        found_ms = stored_ms.get(queue)
        if earliest > old.end:
            seam.losses.append(
                f"the archive of {queue} ends at {old.end}, and the topic begins at {earliest}: "
                f"retention has deleted {earliest - old.end} messages that were not archived"
            )
        elif latest < old.end:
            seam.replaced.append(queue)
            seam.losses.append(
                f"the archive of {queue} ends at {old.end}, and the topic ends at {latest}: was "
                "the topic recreated, or truncated by a failover?"
            )
        elif found_ms is not None and old.last_stored_ms not in (None, found_ms):
            seam.replaced.append(queue)
            seam.losses.append(
                f"the message of {queue} at offset {old.end - 1} was stored at "
                f"{old.last_stored_ms} ms in the archive, and at {found_ms} ms in the topic: was "
                "the topic recreated, or truncated by a failover?"
            )
        if earliest < old.first:
            seam.before[queue] = (earliest, min(old.first, latest))
        seam.behind[queue] = (max(earliest, old.end), latest)
    return seam


def _continue_after_loss(
    cluster: ClusterClient,
    archived: Mapping[MessageQueue, ArchivedQueue],
    bounds: Bounds,
    seam: Seam,
) -> None:
    """Read the messages of replaced queues that were stored after the archive's last one."""
    times_ms = {
        queue: stored_ms
        for queue in seam.replaced
        if (stored_ms := archived[queue].last_stored_ms) is not None
    }
    after = cluster.offsets_after(times_ms, bounds)
    for queue in seam.replaced:
        latest = bounds.latest[queue]
        seam.before.pop(queue, None)
        seam.behind[queue] = (min(after.get(queue, latest), archived[queue].end), latest)


# The topics


def _live(
    spark: SparkSession,
    options: Mapping[str, str],
    ranges: Mapping[MessageQueue, tuple[int, int]],
    columns: list[str],
) -> DataFrame:
    """The messages of the topics in these ranges of offsets."""
    starts = to_json({queue: start for queue, (start, _) in ranges.items()})["queues"]
    ends = to_json({queue: end for queue, (_, end) in ranges.items()})["queues"]
    assigned = {
        topic: {name: [int(each) for each in numbers] for name, numbers in brokers.items()}
        for topic, brokers in starts.items()
    }
    own = {name: value for name, value in options.items() if name.lower() not in _SUBSCRIPTIONS}
    return (
        spark.read.format("rocketmq")
        .schema(StructType([SCHEMA[name] for name in columns]))
        .options(**own)
        .options(
            assign=json.dumps(assigned),
            startingOffsets=json.dumps(starts),
            endingOffsets=json.dumps(ends),
        )
        .load()
    )
