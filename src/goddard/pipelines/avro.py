"""Avro bodies to rows; this is what tasks run. No pyspark here."""

import datetime as dt
import io
import json
import struct
import uuid
from typing import Any, Final

import fastavro

# What hostile bytes make fastavro raise.
_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class AvroDecoder:
    """From a body to its fields; ``problem_field`` says what is wrong with a body that has none."""

    def __init__(self, schema: Any, skip_bytes: int, problem_field: str) -> None:
        self._text = json.dumps(schema)
        self._skip_bytes = skip_bytes
        self._problem_field = problem_field
        self._schema: Any = None

    def __call__(self, body: bytes | bytearray | None) -> dict[str, Any]:
        if self._schema is None:
            self._schema = fastavro.parse_schema(json.loads(self._text))
        stream = io.BytesIO(bytes(body or b""))
        stream.seek(self._skip_bytes)
        try:
            value: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except _ERRORS:
            return {self._problem_field: "the body is no AVRO of the schema"}
        if stream.read(1):
            return {self._problem_field: "the body has bytes after its AVRO"}
        row = _plain(value)
        assert isinstance(row, dict)
        return row


def _plain(value: Any) -> Any:
    """Values as Spark takes them."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, (uuid.UUID, dt.time)):
        return str(value)
    return value
