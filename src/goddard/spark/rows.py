"""Convert rows of a DataFrame to messages; the columns of the sink.

All columns but ``body`` are optional; names are case-sensitive, as in the sources:

    body         binary or string; never null
    topic        string; without it, the option ``topic``
    keys         string (separated by spaces) or array of strings
    tags         string
    properties   map of strings
    delayLevel   int: 1 to 18 are RocketMQ's levels, null or 0 is no delay
    shardingKey  string: equal keys go to one queue, in the order of the task's rows
    brokerName, queueId    the target queue; both or none
    rowKey       string that identifies the row; never null or empty

Every message gets the property ``SPARK_ROW``, its idempotence key, so that a reader can drop the
duplicates of a batch that Spark repeats. It is the row's ``rowKey``. Without that column it is
query, batch, partition and row number, followed by a hash of the content: a repeated batch may have
other rows at these positions (after a change of ``minPartitions``, or a shuffle), and two different
rows must never have equal keys.

This module converts rows one by one. It is the reference for the meaning of each column, and it
reports why a row cannot be sent. ``encode`` does the same for many rows at once.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from goddard.client.message import Message
from goddard.client.produce.encoding import check_body
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.message import encode_properties
from goddard.protocol.names import topic_problem
from goddard.spark.arrays import Positions
from goddard.spark.writing.content_hash import content_hashes

ROW_PROPERTY: Final = "SPARK_ROW"

_BODY_LENGTH: Final = struct.Struct(">i")

_STRING: Final = frozenset({"string"})
COLUMNS: Final[dict[str, frozenset[str]]] = {
    "body": frozenset({"binary", "string"}),
    "topic": _STRING,
    "keys": frozenset({"string", "array<string>"}),
    "tags": _STRING,
    "properties": frozenset({"map<string,string>"}),
    "delayLevel": frozenset({"int", "tinyint", "smallint", "bigint"}),
    "shardingKey": _STRING,
    "brokerName": _STRING,
    "queueId": frozenset({"int", "tinyint", "smallint", "bigint"}),
    "rowKey": _STRING,
}


class RowError(GoddardError):
    """A row that is not a valid message; the text says which row and why."""


@dataclass(frozen=True, slots=True)
class WriteContext:
    """What all rows of a task have in common.

    ``key_prefix`` is the query, the batch and the partition; with the row number it names a row in
    errors and begins its idempotence key.
    """

    topic: str | None
    key_prefix: str
    namespace: str = ""
    max_body_bytes: int = 4 * 1024 * 1024


def check_columns(types: dict[str, str], topic: str | None) -> None:
    """Raise ConfigError if rows with these columns (name to type) cannot be written."""
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ConfigError(
                f"the sink has no column {name}; its columns are {', '.join(COLUMNS)}; "
                "put other values into properties, or drop them"
            )
        if kind not in COLUMNS[name]:
            raise ConfigError(
                f"the column {name} is {kind}; cast it to {' or '.join(sorted(COLUMNS[name]))}"
            )
    if "body" not in types:
        raise ConfigError("the column body is missing; it must be binary or string")
    if "topic" not in types and topic is None:
        raise ConfigError("the topic is missing; give a column topic or the option topic")
    if ("brokerName" in types) != ("queueId" in types):
        raise ConfigError("brokerName and queueId must be given together; one column is missing")


def messages(batch: pa.RecordBatch, rows: Positions, context: WriteContext) -> list[Message]:
    """One message per row of a batch; ``rows`` are the row numbers."""
    columns = _columns(batch, rows, context)
    nulls: list[Any] = [None] * len(rows)
    bodies = columns["body"]
    topics = columns.get("topic", nulls)
    keys = columns.get("keys", nulls)
    tags = columns.get("tags", nulls)
    properties = columns.get("properties", nulls)
    levels = columns.get("delayLevel", nulls)
    sharding_keys = columns.get("shardingKey", nulls)
    brokers = columns.get("brokerName", nulls)
    queue_ids = columns.get("queueId", nulls)
    row_keys = columns.get("rowKey")
    found: list[Message] = []
    contents: list[bytes] = []
    valid_topics: set[str] = set()
    for index, number in enumerate(rows.tolist()):
        row = f"{context.key_prefix}-{number}"
        try:
            if bodies[index] is None:
                raise ConfigError("its body is null")
            check_body(bodies[index], context.max_body_bytes)
            topic = topics[index] or context.topic
            if topic is None:
                raise ConfigError("its topic is null, and the option topic is missing")
            if topic not in valid_topics:
                if (problem := topic_problem(topic)) is not None:
                    raise ConfigError(f"its topic is {topic!r}: {problem}")
                valid_topics.add(topic)
            message = Message(
                topic,
                bodies[index],
                tags=tags[index],
                keys=keys[index],
                delay_level=levels[index] or 0,
                sharding_key=sharding_keys[index],
                properties=properties[index],
            )
            if (brokers[index] is None) != (queue_ids[index] is None):
                raise ConfigError("only one of its brokerName and queueId is null")
            if row_keys is None:
                contents.append(_content(message))
            elif row_keys[index]:
                message.properties[ROW_PROPERTY] = row_keys[index]
            else:
                raise ConfigError("its rowKey is null or empty")
        except (GoddardError, TypeError, ValueError) as error:
            raise RowError(f"row {row} cannot be sent: {error}") from error
        found.append(message)
    if row_keys is None:
        keys_of_rows = zip(found, rows.tolist(), _hashes(contents), strict=True)
        for message, number, content_hash in keys_of_rows:
            message.properties[ROW_PROPERTY] = f"{context.key_prefix}-{number}-{content_hash:016X}"
    return found


def _content(message: Message) -> bytes:
    """What the hash of a row covers: body and properties.

    Topics are not part of it, because readers compare messages of one topic.
    """
    properties = encode_properties(message.properties)
    return _BODY_LENGTH.pack(len(message.body)) + message.body + properties


def _hashes(contents: Sequence[bytes]) -> Iterable[int]:
    bounds = np.cumsum([0, *(len(content) for content in contents)])
    hashes: list[int] = content_hashes(np.frombuffer(b"".join(contents), np.uint8), bounds).tolist()
    return hashes


def _columns(batch: pa.RecordBatch, rows: Positions, context: WriteContext) -> dict[str, list[Any]]:
    try:
        return {name: _values(batch, name) for name in batch.schema.names}
    except UnicodeDecodeError as error:
        # Spark accepts any bytes as a string. Convert row by row to find the invalid one.
        if len(rows) == 1:
            row = f"{context.key_prefix}-{rows[0]}"
            raise RowError(f"row {row} cannot be sent: a string is not UTF-8: {error}") from error
        for index in range(len(rows)):
            _columns(batch.slice(index, 1), rows[index : index + 1], context)
        raise


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    if name == "body":
        return column.cast(pa.binary()).to_pylist()
    if not isinstance(column, pa.MapArray):
        return column.to_pylist()
    # Much faster than to_pylist, which creates a tuple of each pair first.
    bounds = column.offsets.to_pylist()
    names, values = (
        each.slice(bounds[0], bounds[-1] - bounds[0]).to_pylist()
        for each in (column.keys, column.items)
    )
    maps: list[Any] = []
    for index, is_valid in enumerate(column.is_valid().to_pylist()):
        begin, end = (bound - bounds[0] for bound in bounds[index : index + 2])
        pairs = zip(names[begin:end], values[begin:end], strict=True) if is_valid else ()
        maps.append({key: value for key, value in pairs if value is not None})
    return maps
