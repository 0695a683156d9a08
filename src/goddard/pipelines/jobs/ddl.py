"""Schemas as text: Spark's ``name type, name type`` checked without Spark, and Avro's put into it.

The grammar is the part of Spark's that describes data: primitive types, decimal(p, s), array<t>,
map<k, v>, struct<name: t>. Nesting is bounded. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from goddard.errors import ConfigError
from goddard.pipelines.jobs.sections import near

PRIMITIVES: Final = (
    "boolean",
    "tinyint",
    "byte",
    "smallint",
    "short",
    "int",
    "integer",
    "bigint",
    "long",
    "float",
    "real",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal",
)
_MAX_DEPTH: Final = 20
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[A-Za-z_]\w*)|(?P<number>\d{1,3})"
    r"|(?P<mark>[<>(),:])|(?P<other>\S))"
)


def field_names(text: str) -> tuple[str, ...]:
    """The names that a schema declares; ConfigError if it is none."""
    reader = _Reader(text)
    names = reader.fields(end="", depth=0)
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise ConfigError(f"the schema has the field {name} twice")
    return names


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        at = 0
        stripped = text.rstrip()
        while at < len(stripped):
            matched = _TOKEN.match(stripped, at)
            assert matched is not None  # anything but a space is at least "other"
            kind = matched.lastgroup or "other"
            self._tokens.append(_Token(kind, matched[kind]))
            at = matched.end()
        self._at = 0

    def fields(self, *, end: str, depth: int) -> tuple[str, ...]:
        """Fields until a mark, which is taken too; "" is the end of the text."""
        if depth > _MAX_DEPTH:
            raise ConfigError(f"the schema is nested deeper than {_MAX_DEPTH}")
        names = []
        while True:
            name = self._take("the name of a field")
            if name.kind not in ("word", "quoted"):
                raise ConfigError(f"the schema has {name.text!r} where a field's name is wanted")
            names.append(name.text.strip("`").replace("``", "`"))
            self._skip(":")
            self._type(depth)
            if self._next_is("not"):
                self._expect("null")
            mark = self._peek()
            if mark == end:
                self._at += 1
                return tuple(names)
            if not self._skip(","):
                raise ConfigError(f"the schema has {mark!r} after the field {names[-1]}; a comma?")

    def _type(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ConfigError(f"the schema is nested deeper than {_MAX_DEPTH}")
        kind = self._take("a type").text.lower()
        if kind == "array":
            self._expect("<")
            self._type(depth + 1)
            self._expect(">")
        elif kind == "map":
            self._expect("<")
            self._type(depth + 1)
            self._expect(",")
            self._type(depth + 1)
            self._expect(">")
        elif kind == "struct":
            self._expect("<")
            self.fields(end=">", depth=depth + 1)
        elif kind not in PRIMITIVES:
            known = (*PRIMITIVES, "array", "map", "struct")
            raise ConfigError(f"the schema has the unknown type {kind}; {near(kind, known)}")
        elif kind == "decimal" and self._skip("("):
            self._take("a precision")
            if self._skip(","):
                self._take("a scale")
            self._expect(")")

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _take(self, what: str) -> _Token:
        if self._at >= len(self._tokens):
            raise ConfigError(f"the schema ends where {what} is wanted")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, mark: str) -> bool:
        found = self._peek() == mark
        self._at += found
        return found

    def _next_is(self, word: str) -> bool:
        found = self._peek().lower() == word
        self._at += found
        return found

    def _expect(self, mark: str) -> None:
        token = self._take(repr(mark))
        if token.text.lower() != mark:
            raise ConfigError(f"the schema has {token.text!r} where {mark!r} is wanted")


# Avro

_AVRO: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL: Final = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
    "time-millis": "string",
    "time-micros": "string",
}


def avro_ddl(schema: object) -> str:
    """The fields of an Avro record as Spark's schema; ConfigError for what has no counterpart."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise ConfigError("the Avro schema is no record at its top")
    return ", ".join(f"`{name}` {kind}" for name, kind in _avro_fields(schema, {}, 0))


def _avro_fields(
    record: Mapping[str, Any], named: dict[str, Mapping[str, Any]], depth: int
) -> list[tuple[str, str]]:
    fields = record.get("fields")
    if not isinstance(fields, list) or not fields:
        raise ConfigError(f"the Avro record {record.get('name')} has no fields")
    return [(str(field["name"]), _avro_type(field["type"], named, depth + 1)) for field in fields]


def _avro_type(schema: Any, named: dict[str, Mapping[str, Any]], depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"the Avro schema is nested deeper than {_MAX_DEPTH}, or in itself")
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ConfigError(f"the Avro union {schema} has no counterpart in a table")
        return _avro_type(branches[0], named, depth)
    if isinstance(schema, str):
        if schema in _AVRO:
            return _AVRO[schema]
        if schema not in named:
            raise ConfigError(f"the Avro type {schema} is not known at this place")
        return _avro_type(named[schema], named, depth + 1)
    if "name" in schema:
        named[schema["name"]] = schema
        if "namespace" in schema:
            named[f"{schema['namespace']}.{schema['name']}"] = schema
    kind = schema.get("type")
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        inner = _avro_fields(schema, named, depth)
        return f"struct<{', '.join(f'`{name}`: {each}' for name, each in inner)}>"
    if kind == "array":
        return f"array<{_avro_type(schema['items'], named, depth + 1)}>"
    if kind == "map":
        return f"map<string, {_avro_type(schema['values'], named, depth + 1)}>"
    return _avro_type(kind, named, depth + 1)
