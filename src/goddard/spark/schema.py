"""The Spark schema of the sources; users select columns with ``.schema()``."""

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from goddard.errors import ConfigError
from goddard.spark.columns import COLUMNS

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "binary": BinaryType(),
    "timestamp[us, tz=UTC]": TimestampType(),
}


def _type_of(name: str) -> DataType:
    if name == "properties":
        return MapType(StringType(), StringType(), valueContainsNull=False)
    return _TYPES[str(COLUMNS[name])]


SCHEMA = StructType([StructField(name, _type_of(name), nullable=True) for name in COLUMNS])


def selected_columns(schema: StructType) -> list[str]:
    """The column names of a schema, in its order; ConfigError for an unknown name or type."""
    names = []
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ConfigError(
                f"there is no column {field.name}; the columns are {', '.join(COLUMNS)}"
            )
        expected = _type_of(field.name)
        if not _is_same_type(field.dataType, expected):
            raise ConfigError(
                f"the column {field.name} is {expected.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after reading"
            )
        names.append(field.name)
    return names


def _is_same_type(given: DataType, expected: DataType) -> bool:
    if isinstance(given, MapType) and isinstance(expected, MapType):
        return given.keyType == expected.keyType and given.valueType == expected.valueType
    return given == expected
