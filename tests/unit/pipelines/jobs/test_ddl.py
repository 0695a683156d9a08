"""Schemas as text: Spark's and Avro's."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.errors import ConfigError
from goddard.pipelines.jobs.ddl import avro_ddl, field_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a int", ("a",)),
        ("a: int, b STRING", ("a", "b")),
        ("id LONG NOT NULL, `odd name` decimal(10, 2)", ("id", "odd name")),
        ("tags array<string>, more map<string, array<int>>", ("tags", "more")),
        ("at timestamp, place struct<x: double, y: double, z struct<q: int>>", ("at", "place")),
        ("`a``b` int", ("a`b",)),
    ],
)
def test_names_of_fields(text: str, names: tuple[str, ...]) -> None:
    assert field_names(text) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "ends where the name"),
        ("a", "ends where a type"),
        ("a int b int", "a comma?"),
        ("a int,", "ends where the name"),
        ("a strng", "did you mean string?"),
        ("a array<int", "ends where"),
        ("a map<string>", "where ',' is wanted"),
        ("a decimal(10", "ends where"),
        ("a int, A long", "twice"),
        ("1 int", "where a field's name is wanted"),
        ("a " + "array<" * 50 + "int" + ">" * 50, "nested deeper"),
    ],
)
def test_text_that_is_not_a_schema_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        field_names(text)
    assert words in str(caught.value)


@given(st.text(alphabet="ab int<>(),:`struct map;9\n", max_size=80))
def test_any_text_is_a_schema_or_an_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert field_names(text)


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("int", "int"),
        ({"type": "string"}, "string"),
        (["null", "double"], "double"),
        ({"type": "array", "items": "bytes"}, "array<binary>"),
        ({"type": "map", "values": ["null", "long"]}, "map<string, bigint>"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9, 2)"),
        (record({"name": "x", "type": "int"}), "struct<`x`: int>"),
    ],
)
def test_avro_types(kind: object, expected: str) -> None:
    assert avro_ddl(record({"name": "a", "type": kind})) == f"`a` {expected}"


def test_avro_types_by_name() -> None:
    place = record({"name": "x", "type": "int"}) | {"name": "Place", "namespace": "n"}
    schema = record({"name": "a", "type": place}, {"name": "b", "type": "n.Place"})
    assert avro_ddl(schema) == "`a` struct<`x`: int>, `b` struct<`x`: int>"


@pytest.mark.parametrize(
    "schema",
    [
        "int",
        {"type": "record", "name": "R", "fields": []},
        record({"name": "a", "type": ["int", "string"]}),
        record({"name": "a", "type": "Unknown"}),
        record({"name": "a", "type": record({"name": "b", "type": "R"})}),
    ],
)
def test_avro_without_counterpart_is_refused(schema: object) -> None:
    with pytest.raises(ConfigError):
        avro_ddl(schema)
