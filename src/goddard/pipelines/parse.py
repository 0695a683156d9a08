"""Bodies to columns: JSON, CSV, text and Avro.

A body that cannot be parsed keeps its row: its fields are null, and the column PROBLEM has the
reason. What happens to such rows is decided in ``expectations``.
"""

import datetime as dt
import io
import json
import struct
import uuid
from pathlib import Path
from typing import Any, Final

import fastavro
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from goddard.errors import ConfigError
from goddard.pipelines.job import INFER, RESCUED, Parse
from goddard.pipelines.registry import PREFIX_BYTES, SchemaRegistry, schema_id
from goddard.pipelines.schemas import avro_schema
from goddard.spark.columns import COLUMNS

# Why a body could not be parsed; null if it was.
PROBLEM: Final = "_goddard_problem"
_VALUE: Final = "_goddard_value"
_CORRUPT: Final = "_goddard_corrupt"

NOT_UTF8: Final = "the body is not UTF-8"
# The exceptions that fastavro raises for arbitrary bytes.
_AVRO_ERRORS: Final = (
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


def rescued_column(parse: Parse) -> str | None:
    """The column for fields that the schema does not have; inferred schemas always have one."""
    return parse.rescue or (RESCUED if parse.schema == INFER else None)


def parsed(frame: DataFrame, parse: Parse, schema: StructType, folder: Path = Path()) -> DataFrame:
    """The rows with the fields of their bodies, and PROBLEM."""
    value, problem = _columns(parse, schema, folder)
    # In two steps, so that Spark decodes a body once and not once for each field.
    frame = frame.withColumn(_VALUE, value).withColumn(PROBLEM, problem)
    rescue = rescued_column(parse)
    if rescue is not None:
        frame = frame.withColumn(rescue, _rescued(parse, schema))
    if parse.into is not None and parse.format != "text":
        fields = sf.struct(*(sf.col(_VALUE)[field.name].alias(field.name) for field in schema))
        return frame.withColumn(parse.into, fields).drop(_VALUE)
    columns = {field.name: sf.col(_VALUE)[field.name] for field in schema}
    return frame.withColumns(columns).drop(_VALUE)


def _columns(parse: Parse, schema: StructType, folder: Path) -> tuple[Column, Column]:
    """The body as a struct, and what is wrong with it."""
    text = _text(parse)
    is_text = sf.is_valid_utf8(text)
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    if parse.format == "text":
        value = sf.struct(sf.when(is_text, text).alias(schema.fields[0].name))
        return value, sf.when(~is_text, sf.lit(NOT_UTF8))
    if parse.format == "avro":
        schema_of_rows = avro_schema(parse, folder)
        decoder = AvroDecoder(schema_of_rows, parse.skip_bytes, _CORRUPT, parse.registry)
        decode = sf.udf(decoder, with_corrupt, useArrow=False)
        return decode(sf.col("body")), sf.col(_VALUE)[_CORRUPT]
    options = _options(parse) | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    name = parse.format.upper()
    if parse.format == "json":
        value = sf.from_json(text, with_corrupt, options)
    else:
        value = sf.from_csv(text, ", ".join(_ddl(field) for field in with_corrupt), options)
    # An empty body is null for one and a row of nulls for the other.
    is_nothing = sf.col(_VALUE).isNull() | (sf.length(sf.trim(text)) == 0)
    problem = (
        sf.when(~is_text, sf.lit(NOT_UTF8))
        .when(is_nothing, sf.lit(f"the body is no {name}"))
        .when(sf.col(_VALUE)[_CORRUPT].isNotNull(), sf.lit(f"the body is no {name} of the schema"))
    )
    return value, problem


def _text(parse: Parse) -> Column:
    body = sf.col("body")
    if parse.skip_bytes:
        body = sf.substring(body, parse.skip_bytes + 1, 2**31 - 1)
    return body.cast("string")


def _rescued(parse: Parse, schema: StructType) -> Column:
    """The other fields of a JSON body, as JSON; null if there are none."""
    fields = sf.from_json(_text(parse), "map<string, variant>", _options(parse))
    known = [sf.lit(field.name) for field in schema]
    rest = sf.map_filter(fields, lambda name, _: ~name.isin(*known))
    is_parsed = sf.col(PROBLEM).isNull() & (sf.size(sf.map_keys(rest)) > 0)
    return sf.when(is_parsed, sf.to_json(rest))


def _options(parse: Parse) -> dict[str, str]:
    return {name: str(value) for name, value in parse.options.items()}


def _ddl(field: StructField) -> str:
    name = field.name.replace("`", "``")
    return f"`{name}` {field.dataType.simpleString()}"


def inferred(frame: DataFrame, parse: Parse) -> StructType:
    """The schema of JSON bodies, from a sample of the stored messages."""
    bodies = frame.select(_text(parse).alias("body")).limit(parse.sample)
    texts = [row["body"] for row in bodies.collect() if row["body"]]
    if not texts:
        raise ConfigError(
            "[parse] schema is infer, but there is no message yet to infer it from; declare it"
        )
    spark = frame.sparkSession
    reader = spark.read.options(**_options(parse)).option("dropFieldIfAllNull", "true")
    schema = reader.json(spark.sparkContext.parallelize(texts, 1)).schema
    fields = [field for field in schema if not field.name.startswith("_corrupt")]
    if not fields:
        raise ConfigError("[parse] schema is infer, but no message of the sample is a JSON object")
    taken = {name.lower() for name in COLUMNS} if parse.into is None else set()
    for field in fields:
        if field.name.lower() in taken:
            raise ConfigError(
                f"[parse] schema is infer, and bodies have {field.name}, a column that messages "
                'have already; write into = "value"'
            )
    return StructType(fields)


class AvroDecoder:
    """From a body to its fields, in tasks; ``problem_field`` says why a body has none.

    With a ``registry``, a body names the schema that it was written with, and is read as
    ``schema``.
    """

    def __init__(
        self, schema: Any, skip_bytes: int, problem_field: str, registry: str | None = None
    ) -> None:
        self._text = json.dumps(schema)
        self._skip_bytes = skip_bytes
        self._problem_field = problem_field
        self._schema: Any = None
        self._registry = None if registry is None else SchemaRegistry(registry)

    def __call__(self, body: bytes | bytearray | None) -> dict[str, Any]:
        if self._schema is None:
            self._schema = fastavro.parse_schema(json.loads(self._text))
        data, start, reader = bytes(body or b""), self._skip_bytes, None
        writer = self._schema
        if self._registry is not None:
            number = schema_id(data)
            if number is None:
                return {self._problem_field: "the body has no schema id"}
            start, reader, writer = PREFIX_BYTES, self._schema, self._registry.schema(number)
            if writer is None:
                return {self._problem_field: f"the schema {number} is not in the registry"}
        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            value: Any = fastavro.schemaless_reader(stream, writer, reader)
        except _AVRO_ERRORS:
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
