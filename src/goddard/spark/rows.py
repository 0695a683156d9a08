"""Rows of a DataFrame to messages: which columns there are, and what each row of a batch says.

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
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from goddard.client.message import Message
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.names import topic_problem

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
class Outgoing:
    """A message and where it is to go."""

    message: Message
    queue: MessageQueue | None
    sharding_key: str | None


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


def messages(
    batch: pa.RecordBatch, *, topic: str | None, identity: str, first_row: int
) -> Iterator[Outgoing]:
    """The rows of a batch; ``identity`` is what comes before the row's number in its key."""
    count = batch.num_rows
    columns = {name: _values(batch, name) for name in batch.schema.names}
    nothing: list[Any] = [None] * count
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
    for index in range(count):
        row = f"{identity}-{first_row + index}"
        try:
            body = bodies[index]
            if body is None:
                raise ConfigError("its body is null")
            target = topics[index] or topic
            if target is None:
                raise ConfigError("its topic is null, and there is no option topic")
            if target not in known_topics:
                if (problem := topic_problem(target)) is not None:
                    raise ConfigError(f"its topic is {target!r}: {problem}")
                known_topics.add(target)
            message = Message(
                target,
                body.encode() if isinstance(body, str) else body,
                tags=tags[index],
                keys=keys[index],
                delay_level=levels[index] or 0,
                sharding_key=sharding_keys[index],
                properties=properties[index],
            )
            queue = None
            if brokers[index] is not None and queue_ids[index] is not None:
                queue = MessageQueue(target, brokers[index], queue_ids[index])
            elif brokers[index] is not None or queue_ids[index] is not None:
                raise ConfigError("one of its brokerName and queueId is null")
        except (GoddardError, TypeError, ValueError) as error:
            raise RowError(f"row {row} cannot be sent: {error}") from error
        message.properties[ROW_PROPERTY] = row
        yield Outgoing(message, queue, sharding_keys[index])


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    column = batch.column(name)
    if not isinstance(column, pa.MapArray):
        return column.to_pylist()
    # Much cheaper than to_pylist, which makes a tuple of each pair first.
    names, values = column.keys.to_pylist(), column.items.to_pylist()
    bounds = column.offsets.to_pylist()
    maps: list[Any] = []
    for index in range(len(column)):
        begin, end = bounds[index], bounds[index + 1]
        given = zip(names[begin:end], values[begin:end], strict=True)
        maps.append({each: value for each, value in given if value is not None})
    return maps
