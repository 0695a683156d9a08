"""Schemas of bodies as far as they are known without Spark: files, names, Avro as DDL."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from goddard.errors import ConfigError
from goddard.pipelines.job import Parse

_MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_DEPTH: Final = 20


def body_schema(parse: Parse, folder: Path) -> str:
    """The fields of bodies in Spark's DDL, or "infer"."""
    if parse.format == "text":
        return f"`{parse.into or 'text'}` string"
    if parse.format == "avro":
        return avro_ddl(avro_schema(parse, folder))
    return (parse.schema or _schema_text(parse, folder)).strip()


def avro_schema(parse: Parse, folder: Path) -> Any:
    try:
        return msgspec.json.decode(_schema_text(parse, folder))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"[parse] schemaFile {parse.schema_file} has no JSON: {error}") from error


def _schema_text(parse: Parse, folder: Path) -> str:
    path = folder / (parse.schema_file or "")
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"[parse] schemaFile {path} is over {_MAX_FILE_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[parse] schemaFile {path} cannot be read: {error}") from error


def field_names(ddl: str) -> tuple[str, ...]:
    """The names of the fields of a schema; Spark checks their types."""
    names, depth, start, is_quoted = [], 0, 0, False
    for at, mark in enumerate(f"{ddl},"):
        is_quoted ^= mark == "`"
        depth += 0 if is_quoted else (mark in "<(") - (mark in ">)")
        if mark == "," and depth == 0 and not is_quoted:
            matched = re.match(r"\s*(`(?:[^`]|``)+`|[^\s:`]+)[\s:]+\S", ddl[start:at])
            if matched is None:
                raise ConfigError(
                    f"[parse] schema has {ddl[start:at].strip()!r}; write it as 'name type'"
                )
            names.append(matched[1].strip("`").replace("``", "`"))
            start = at + 1
    return tuple(names)


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
