"""Bodies to columns: JSON, CSV, text and Avro.

Whatever a body holds, its row goes on: one that does not parse has nulls for its fields and the
reason in the column PROBLEM. What happens to such rows is ``quality``'s to decide.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from goddard.errors import ConfigError
from goddard.pipelines.avro import AvroDecoder
from goddard.pipelines.jobs.job import Parse
from goddard.spark.columns import COLUMNS

# Why a row is bad; null if it is not.
PROBLEM: Final = "_goddard_problem"
_VALUE: Final = "_goddard_value"
_CORRUPT: Final = "_goddard_corrupt"

NOT_UTF8: Final = "the body is not UTF-8"


def parsed(frame: DataFrame, parse: Parse, schema: StructType) -> DataFrame:
    """The rows with the fields of their bodies, and PROBLEM."""
    value, problem = _columns(parse, schema)
    # In two steps, so that Spark decodes a body once and not once for each field.
    frame = frame.withColumn(_VALUE, value).withColumn(PROBLEM, problem)
    if parse.into is not None:
        fields = sf.struct(*(sf.col(_VALUE)[field.name].alias(field.name) for field in schema))
        return frame.withColumn(parse.into, fields).drop(_VALUE)
    columns = {field.name: sf.col(_VALUE)[field.name] for field in schema}
    return frame.withColumns(columns).drop(_VALUE)


def _columns(parse: Parse, schema: StructType) -> tuple[Column, Column]:
    """The body as a struct, and what is wrong with it."""
    body = sf.substring(sf.col("body"), parse.skip_bytes + 1, 2**31 - 1)
    text = (body if parse.skip_bytes else sf.col("body")).cast("string")
    is_text = sf.is_valid_utf8(text)
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    if parse.format == "text":
        value = sf.struct(sf.when(is_text, text).alias(schema.fields[0].name))
        return value, sf.when(~is_text, sf.lit(NOT_UTF8))
    if parse.format == "avro":
        # Python decodes it, and says itself what is wrong.
        decode = sf.udf(
            AvroDecoder(parse.avro_schema, parse.skip_bytes, _CORRUPT), with_corrupt, useArrow=False
        )
        return decode(sf.col("body")), sf.col(_VALUE)[_CORRUPT]
    options = dict(parse.options) | {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
    }
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


def _ddl(field: StructField) -> str:
    name = field.name.replace("`", "``")
    return f"`{name}` {field.dataType.simpleString()}"


def inferred(frame: DataFrame, parse: Parse) -> StructType:
    """The schema of JSON bodies, from a sample of the messages that there are."""
    bodies = frame.select(sf.col("body").cast("string").alias("body")).limit(parse.sample)
    texts = [row["body"] for row in bodies.collect() if row["body"]]
    if not texts:
        raise ConfigError(
            "[parse] schema is infer, but there is no message yet to infer it from; declare it"
        )
    spark = frame.sparkSession
    reader = spark.read.options(**parse.options).option("dropFieldIfAllNull", "true")
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
