"""Column encoding gives the same bytes as encoding row by row."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.client.produce.encoding import prepare_batch, split_batch
from goddard.core import IS_COMPILED
from goddard.errors import GoddardError
from goddard.protocol.message import (
    PROPERTY_UNIQUE_ID,
    decode_batch,
    decode_properties,
    encode_batch,
)
from goddard.spark.rows import ROW_PROPERTY, RowError, WriteContext, messages
from goddard.spark.writing.encode import MessageIds, encode

_PREFIX = "7F0000010001DEADBEEF00000001"
_MAPS = pa.map_(pa.string(), pa.string())
# Spark's list types: non-null elements, large strings.
_LISTS = (
    pa.list_(pa.string()),
    pa.list_(pa.large_string()),
    pa.list_(pa.field("element", pa.string(), nullable=False)),
)
_TYPES = {
    "body": (pa.binary(), pa.string(), pa.large_binary()),
    "topic": (pa.string(),),
    "keys": (pa.string(), pa.large_string(), *_LISTS),
    "tags": (pa.string(), pa.large_string()),
    "properties": (
        _MAPS,
        pa.map_(pa.large_string(), pa.large_string()),
        pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False)),
    ),
    "shardingKey": (pa.string(),),
    "rowKey": (pa.string(), pa.large_string()),
    "brokerName": (pa.string(),),
    "queueId": (pa.int32(), pa.int64()),
}


@pytest.fixture(params=sorted({IS_COMPILED, False}), scope="module", autouse=True)
def is_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests run with and without the compiled modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("goddard.spark.writing.encode.IS_COMPILED", request.param)
        yield


# Includes blank strings, separators and reserved names.
_WORDS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", " ", "\u2003", "a\x1c", "a b ", "x\x01y", "x\x02y", "é𝄞"]),
)
_NAMES = st.one_of(
    st.sampled_from(["a", "b", "c", "ä", "__SHARDINGKEY", ROW_PROPERTY, "KEYS", "n\x01"]),
    st.text(min_size=1, max_size=3),
)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "body": st.binary(min_size=1, max_size=30),
    "topic": st.sampled_from([None, "", "T", "U"]),
    "tags": st.none() | _WORDS,
    "properties": st.none() | st.lists(st.tuples(_NAMES, st.none() | _WORDS), max_size=4),
    "shardingKey": st.none() | _WORDS,
    "rowKey": _WORDS,
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows with some of the columns, as a slice of a longer batch."""
    count = draw(st.integers(1, 12))
    columns = {}
    optional = ["topic", "keys", "tags", "properties", "shardingKey", "rowKey"]
    chosen = draw(st.sets(st.sampled_from(optional)))
    for name in ["body", *sorted(chosen)]:
        kind = draw(st.sampled_from(_TYPES[name]))
        values: st.SearchStrategy[Any]
        if name == "keys":
            values = st.none() | (st.lists(_WORDS, max_size=3) if kind in _LISTS else _WORDS)
        elif name == "body" and kind == pa.string():
            values = st.text(min_size=1, max_size=20)
        elif kind == _TYPES["properties"][-1]:
            values = st.lists(st.tuples(_NAMES, _WORDS), max_size=4)
        else:
            values = _VALUES[name]
        columns[name] = pa.array(draw(st.lists(values, min_size=count, max_size=count)), kind)
    batch = pa.RecordBatch.from_pydict(columns)
    start = draw(st.integers(0, count - 1))
    return batch.slice(start, draw(st.integers(1, count - start)))


def encode_by_rows(
    batch: pa.RecordBatch, rows: Any, context: WriteContext, ids: MessageIds
) -> bytes:
    """The request body that a producer sends for the messages of these rows."""
    row_messages = messages(batch, rows, context)
    for number, message in enumerate(row_messages):
        counter = (ids.first + number) % 65_536
        message.properties[PROPERTY_UNIQUE_ID] = f"{ids.prefix}{counter:04X}"
    ((_, entries),) = split_batch(row_messages, context.namespace, 1 << 30)
    return prepare_batch("T", "T", encode_batch(entries), (), wait=True).body


def encode_by_columns(
    batch: pa.RecordBatch, rows: Any, context: WriteContext, ids: MessageIds
) -> bytes:
    entries = encode(batch, rows, context, ids)
    assert len(entries) == len(rows)
    return b"".join(entries.to_pylist())


@given(batches(), st.integers(0, 1 << 40), st.integers(0, 65_535), st.sampled_from(["", "ns"]))
def test_columns_and_rows_give_equal_bytes(
    batch: pa.RecordBatch, first_row: int, counter: int, namespace: str
) -> None:
    rows = np.arange(first_row, first_row + batch.num_rows)
    context = WriteContext("T", "query-7-2", namespace)
    ids = MessageIds(_PREFIX, counter)
    try:
        expected = encode_by_rows(batch, rows, context, ids)
    except GoddardError:
        with pytest.raises(RowError, match=r"^row query-7-2-\d+ cannot be sent: "):
            encode(batch, rows, context, ids)
    else:
        assert encode_by_columns(batch, rows, context, ids) == expected


_PLAIN = st.sampled_from(["a", "bc", "é𝄞", "some words"])
_PLAIN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "body": st.sampled_from([b"x", b"yz"]),
    "topic": st.sampled_from([None, "", "T", "U"]),
    "keys": st.none() | st.lists(_PLAIN, max_size=2),
    "tags": st.none() | _PLAIN,
    "properties": st.none()
    | st.dictionaries(st.sampled_from("abcd"), st.none() | _PLAIN, min_size=2, max_size=3).map(
        lambda pairs: list(pairs.items())
    ),
    "shardingKey": st.none() | _PLAIN,
    "queue": st.sampled_from([(None, None), ("b", 0), ("c", 3)]),
}


@st.composite
def plain_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A slice of a batch whose rows column encoding supports."""
    count = draw(st.integers(1, 6))
    rows = draw(st.lists(st.fixed_dictionaries(_PLAIN_VALUES), min_size=count, max_size=count))
    columns = {
        name: pa.array([row[name] for row in rows], _LISTS[0] if name == "keys" else kinds[0])
        for name, kinds in _TYPES.items()
        if name in _PLAIN_VALUES
    }
    columns["brokerName"] = pa.array([row["queue"][0] for row in rows], pa.string())
    columns["queueId"] = pa.array([row["queue"][1] for row in rows], pa.int32())
    start = draw(st.integers(0, count - 1))
    return pa.RecordBatch.from_pydict(columns).slice(start, draw(st.integers(1, count - start)))


def test_plain_rows_are_encoded_by_columns(caplog: pytest.LogCaptureFixture) -> None:
    @given(plain_batches())
    def check(batch: pa.RecordBatch) -> None:
        rows, context, ids = (
            np.arange(batch.num_rows),
            WriteContext("T", "q"),
            MessageIds(_PREFIX, 0),
        )
        caplog.clear()
        encoded = encode_by_columns(batch, rows, context, ids)
        assert "one by one" not in caplog.text
        assert encoded == encode_by_rows(batch, rows, context, ids)

    with caplog.at_level(logging.DEBUG, "goddard.spark"):
        check()


def test_slice_of_maps_is_encoded_by_columns(caplog: pytest.LogCaptureFixture) -> None:
    maps = pa.array([[("a", "1")], [("b", "2"), ("c", "3")], None, [("d", "4")]], _MAPS)
    batch = pa.RecordBatch.from_pydict({"body": [b"x"] * 4, "properties": maps}).slice(1, 3)
    with caplog.at_level(logging.DEBUG, "goddard.spark"):
        encoded = encode_by_columns(
            batch, np.arange(3), WriteContext("T", "q"), MessageIds(_PREFIX, 0)
        )
    assert "one by one" not in caplog.text
    found = [decode_properties(each.properties) for each in decode_batch(encoded)]
    assert [sorted(each.keys() & set("abcd")) for each in found] == [["b", "c"], [], ["d"]]


def test_null_map_with_hidden_entries_is_empty() -> None:
    maps = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], _MAPS)
    assert isinstance(maps, pa.MapArray)
    mask = pa.array([False, True, False])
    masked = pa.MapArray.from_arrays(maps.offsets, maps.keys, maps.items, mask=mask)
    batch = pa.RecordBatch.from_pydict({"body": [b"x"] * 3, "properties": masked})
    encoded = encode_by_columns(batch, np.arange(3), WriteContext("T", "q"), MessageIds(_PREFIX, 0))
    found = [decode_properties(each.properties) for each in decode_batch(encoded)]
    assert [sorted(each.keys() & set("abc")) for each in found] == [["a"], [], ["c"]]


@pytest.mark.parametrize(
    ("columns", "is_supported"),
    [
        ({}, True),
        ({"tags": ["a", None], "keys": [["k", "l"], []], "shardingKey": ["s", ""]}, True),
        ({"topic": ["T", None], "brokerName": ["b", None], "queueId": [1, None]}, True),
        ({"properties": pa.array([[("a", "1"), ("b", None)], None], _MAPS)}, True),
        ({"properties": pa.array([[("a", "1"), ("a", "2")], None], _MAPS)}, False),
        ({"properties": pa.array([[(ROW_PROPERTY, "1")], None], _MAPS)}, False),
        ({"rowKey": ["a", "b"]}, True),
    ],
)
def test_rows_are_encoded_one_by_one_only_if_necessary(
    columns: dict[str, Any], is_supported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], **columns})
    with caplog.at_level(logging.DEBUG, "goddard.spark"):
        encode(batch, np.arange(2), WriteContext("T", "q"), MessageIds(_PREFIX, 0))
    assert ("one by one" not in caplog.text) is is_supported


def test_properties_of_encoded_rows() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": ["é", "z"],
            "keys": [["a", "b"], None],
            "tags": [None, "t"],
            "properties": pa.array([[("n", "1")], None], _MAPS),
        }
    )
    encoded = encode_by_columns(
        batch, np.array([7, 9]), WriteContext("T", "q-0-1", "ns"), MessageIds(_PREFIX, 65_535)
    )
    first, second = decode_batch(encoded)
    assert (first.body, second.body) == ("é".encode(), b"z")
    assert list(decode_properties(first.properties).items()) == [
        ("KEYS", "a b"),
        ("WAIT", "true"),
        ("n", "1"),
        (ROW_PROPERTY, "q-0-1-7-628D0E7D5438FCD5"),
        ("UNIQ_KEY", f"{_PREFIX}FFFF"),
        ("INSTANCE_ID", "ns"),
    ]
    assert decode_properties(second.properties) == {
        "WAIT": "true",
        "TAGS": "t",
        ROW_PROPERTY: "q-0-1-9-DBD78F12030E06A0",
        "UNIQ_KEY": f"{_PREFIX}0000",
        "INSTANCE_ID": "ns",
    }


_HALF = "cannot be sent: only one of its brokerName and queueId is null"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"tags": ["t", "x" * 40_000]}, "row q-6 cannot be sent: properties of 40"),
        ({"tags": ["t", "a\x02b"]}, "row q-6 cannot be sent: the property 'TAGS' contains a sep"),
        ({"keys": [["k"], ["k", None]]}, "row q-6 cannot be sent: keys must be one str or a"),
        ({"body": [b"x", b""]}, "row q-6 cannot be sent: the message body length is zero"),
        ({"topic": ["T", "a b"]}, "row q-6 cannot be sent: its topic is 'a b'"),
        ({"brokerName": ["b", "b"], "queueId": [0, None]}, f"row q-6 {_HALF}"),
        ({"brokerName": ["b", None], "queueId": [0, 0]}, f"row q-6 {_HALF}"),
        ({"brokerName": [None, "b"], "queueId": [0, None]}, f"row q-5 {_HALF}"),
        ({"body": [b"x" * 100, b"y" * 101]}, "row q-6 cannot be sent: the message body size"),
        ({"properties": pa.array([None, [("a", "b" * 40_000)]], _MAPS)}, "row q-6 cannot be sent"),
        ({"properties": pa.array([None, [("n\x01", "v")]], _MAPS)}, "row q-6 cannot be sent"),
    ],
)
def test_error_names_the_invalid_row(columns: dict[str, Any], words: str) -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], **columns})
    with pytest.raises(RowError, match=re.escape(words)):
        encode(
            batch,
            np.arange(5, 7),
            WriteContext("T", "q", max_body_bytes=100),
            MessageIds(_PREFIX, 0),
        )
