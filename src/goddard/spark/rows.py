"""Rows of a DataFrame to messages: which columns there are, and what a row says.

Columns of the sink, all but ``body`` optional; case matters, as in the sources:

    body         binary or string; never null
    topic        string; else the option ``topic``
    keys         string (separated by spaces) or array of strings
    tags         string
    properties   map of strings
    delayLevel   int: 1 to 18 are RocketMQ's levels, null or 0 is none
    shardingKey  string: equal keys go to one queue, in the order of the task's rows
    brokerName, queueId    the queue itself; both or none

Every message gets the property ``SPARK_ROW``, its idempotence key: query, batch, partition and row.
A batch that Spark repeats gives its messages the same keys, so that a reader can drop what it has.

Here rows become messages one by one, which says what each column means, and of a row that cannot be
sent, why. ``entries`` does the same for many rows at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from goddard.client.message import Message
from goddard.client.produce.encoding import check_body
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.names import topic_problem
from goddard.spark.arrays import Positions

ROW_PROPERTY: Final = "SPARK_ROW"

_TEXT: Final = frozenset({"string"})
COLUMNS: Final[dict[str, frozenset[str]]] = {
    "body": frozenset({"binary", "string"}),
    "topic": _TEXT,
    "keys": frozenset({"string", "array<string>"}),
    "tags": _TEXT,
    "properties": frozenset({"map<string,string>"}),
    "delayLevel": frozenset({"int", "tinyint", "smallint", "bigint"}),
    "shardingKey": _TEXT,
    "brokerName": _TEXT,
    "queueId": frozenset({"int", "tinyint", "smallint", "bigint"}),
}


class RowError(GoddardError):
    """A row that is no message; the text says which row and why."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What all rows of a task have in common.

    ``identity`` is what comes before a row's number in its key: query, batch and partition.
    """

    topic: str | None
    identity: str
    namespace: str = ""
    max_body_bytes: int = 4 * 1024 * 1024


def check_columns(types: dict[str, str], topic: str | None) -> None:
    """Whether rows with these columns (name to type) can be written at all."""
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ConfigError(
                f"the sink has no column {name}; it knows {', '.join(COLUMNS)}: "
                "put others into properties, or drop them"
            )
        if kind not in COLUMNS[name]:
            raise ConfigError(
                f"the column {name} is {kind}; cast it to {' or '.join(sorted(COLUMNS[name]))}"
            )
    if "body" not in types:
        raise ConfigError("there is no column body; name one so, as binary or string")
    if "topic" not in types and topic is None:
        raise ConfigError("there is neither a column nor an option topic")
    if ("brokerName" in types) != ("queueId" in types):
        raise ConfigError("brokerName and queueId go together; one of the columns is missing")


def messages(batch: pa.RecordBatch, rows: Positions, writing: Writing) -> Iterator[Message]:
    """The rows of a batch one by one; ``rows`` are their numbers."""
    columns = _columns(batch, rows, writing)
    nothing: list[Any] = [None] * len(rows)
    bodies = columns["body"]
    topics = columns.get("topic", nothing)
    keys = columns.get("keys", nothing)
    tags = columns.get("tags", nothing)
    properties = columns.get("properties", nothing)
    levels = columns.get("delayLevel", nothing)
    sharding_keys = columns.get("shardingKey", nothing)
    brokers = columns.get("brokerName", nothing)
    queue_ids = columns.get("queueId", nothing)
    known_topics: set[str] = set()
    for index, number in enumerate(rows.tolist()):
        row = f"{writing.identity}-{number}"
        try:
            if bodies[index] is None:
                raise ConfigError("its body is null")
            check_body(bodies[index], writing.max_body_bytes)
            target = topics[index] or writing.topic
            if target is None:
                raise ConfigError("its topic is null, and there is no option topic")
            if target not in known_topics:
                if (problem := topic_problem(target)) is not None:
                    raise ConfigError(f"its topic is {target!r}: {problem}")
                known_topics.add(target)
            message = Message(
                target,
                bodies[index],
                tags=tags[index],
                keys=keys[index],
                delay_level=levels[index] or 0,
                sharding_key=sharding_keys[index],
                properties=properties[index],
            )
            if (brokers[index] is None) != (queue_ids[index] is None):
                raise ConfigError("one of its brokerName and queueId is null")
        except (GoddardError, TypeError, ValueError) as error:
            raise RowError(f"row {row} cannot be sent: {error}") from error
        message.properties[ROW_PROPERTY] = row
        yield message


def _columns(batch: pa.RecordBatch, rows: Positions, writing: Writing) -> dict[str, list[Any]]:
    try:
        return {name: _values(batch, name) for name in batch.schema.names}
    except UnicodeDecodeError as error:
        # Spark takes any bytes for a string; which row has them?
        if len(rows) == 1:
            row = f"{writing.identity}-{rows[0]}"
            raise RowError(f"row {row} cannot be sent: a text is no UTF-8: {error}") from error
        for index in range(len(rows)):
            _columns(batch.slice(index, 1), rows[index : index + 1], writing)
        raise


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    if name == "body":
        return column.cast(pa.binary()).to_pylist()
    if not isinstance(column, pa.MapArray):
        return column.to_pylist()
    # Much cheaper than to_pylist, which makes a tuple of each pair first.
    bounds = column.offsets.to_pylist()
    names, values = (
        each.slice(bounds[0], bounds[-1] - bounds[0]).to_pylist()
        for each in (column.keys, column.items)
    )
    maps: list[Any] = []
    for index, is_there in enumerate(column.is_valid().to_pylist()):
        begin, end = (bound - bounds[0] for bound in bounds[index : index + 2])
        given = zip(names[begin:end], values[begin:end], strict=True) if is_there else ()
        maps.append({each: value for each, value in given if value is not None})
    return maps
