"""Rows that are valid messages, and the errors of those that are not."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from goddard.client.message import Message
from goddard.errors import ConfigError
from goddard.spark.rows import ROW_PROPERTY, RowError, WriteContext, check_columns, messages

_BODY = {"body": "string"}


@pytest.mark.parametrize(
    ("types", "topic", "words"),
    [
        (_BODY | {"id": "bigint"}, "T", "the sink has no column id"),
        ({"tags": "string"}, "T", "the column body is missing"),
        ({"body": "bigint"}, "T", "the column body is bigint; cast it to binary or string"),
        (_BODY | {"queueId": "int"}, "T", "brokerName and queueId must be given together"),
        (_BODY | {"properties": "map<string,int>"}, "T", "cast it to map<string,string>"),
        (_BODY, None, "the topic is missing; give a column topic or the option topic"),
    ],
)
def test_wrong_columns_are_refused(types: dict[str, str], topic: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_columns(types, topic)


def invalid_strings(*values: bytes) -> pa.Array:
    """A column of strings with any bytes, as Spark allows them."""
    binaries = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binaries.buffers())


def rows(**columns: Any) -> list[Message]:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], **columns})
    return messages(batch, np.arange(10, 12), WriteContext(None, "q-7-2"))


def row_keys(**columns: Any) -> list[str]:
    return [message.properties[ROW_PROPERTY] for message in rows(topic=["A", "A"], **columns)]


def test_delay_levels_above_18_are_kept() -> None:
    # A broker may be configured with other levels; it reduces a level above its highest.
    assert [each.delay_level for each in rows(topic=["A", "A"], delayLevel=[18, 99])] == [
        18,
        99,
    ]


def test_key_of_a_row_is_its_position_and_content() -> None:
    found = rows(topic=["A", "B"], delayLevel=[None, 3], keys=["k l", None])
    assert [each.topic for each in found] == ["A", "B"]
    # Keys are stored in topics, so later versions must create the same.
    assert [each.properties[ROW_PROPERTY] for each in found] == [
        "q-7-2-10-6C17E448D0BBA8CC",
        "q-7-2-11-3C8EDEC38901861E",
    ]
    assert [each.delay_level for each in found] == [0, 3]


@pytest.mark.parametrize(
    "columns",
    [
        {"body": [b"y", b"x"]},
        {"tags": ["t", None]},
        {"keys": ["k", None]},
        {"shardingKey": ["s", None]},
        {"properties": pa.array([[("n", "1")], None], pa.map_(pa.string(), pa.string()))},
    ],
)
def test_different_rows_at_one_position_have_different_keys(columns: dict[str, Any]) -> None:
    assert row_keys(**columns)[0] != row_keys()[0]


def test_column_row_key_is_the_key() -> None:
    assert row_keys(rowKey=["order-1", "order-2"]) == ["order-1", "order-2"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"topic": ["A", None]}, "row q-7-2-11 cannot be sent: its topic is null"),
        ({"topic": ["A", "a b"]}, "row q-7-2-11 cannot be sent: its topic is 'a b'"),
        ({"topic": ["A", "A"], "body": [b"x", None]}, "q-7-2-11 cannot be sent: its body is null"),
        (
            {"topic": ["A", "A"], "brokerName": ["b", "b"], "queueId": [0, None]},
            "q-7-2-11 cannot be sent: only one of its brokerName and queueId is null",
        ),
        ({"topic": ["A", "A"], "delayLevel": [0, -1]}, "row q-7-2-11 cannot be sent"),
        ({"topic": ["A", "A"], "rowKey": ["k", None]}, "its rowKey is null or empty"),
        ({"topic": ["A", "A"], "rowKey": ["k", ""]}, "q-7-2-11 cannot be sent: its rowKey is null"),
        ({"topic": ["A", "A"], "body": [b"x", b""]}, "row q-7-2-11 cannot be sent: the message bo"),
        (
            {"topic": ["A", "A"], "body": [b"x", b"y" * (4 * 1024 * 1024 + 1)]},
            "row q-7-2-11 cannot be sent: the message body size over max value",
        ),
        (
            {"topic": ["A", "A"], "tags": invalid_strings(b"t", b"\xff")},
            "row q-7-2-11 cannot be sent: a string is not UTF-8",
        ),
        (
            {
                "topic": ["A", "A"],
                "properties": pa.array([[], [("KEYS", "x")]], pa.map_(pa.string(), pa.string())),
            },
            "row q-7-2-11 cannot be sent",
        ),
    ],
)
def test_error_names_the_invalid_row(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(RowError, match=re.escape(words)):
        rows(**columns)
