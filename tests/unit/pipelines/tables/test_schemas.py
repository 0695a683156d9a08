"""Which rows a table of files accepts: columns by name and type, at any depth."""

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from goddard.errors import ConfigError
from goddard.pipelines.tables.files import File
from goddard.pipelines.tables.schemas import (
    check_typed,
    folder_columns,
    layout_of,
    newest_of_each_query,
)


def fields(**types: DataType) -> StructType:
    return StructType([StructField(name, type_) for name, type_ in types.items()])


INT, LONG, TEXT = IntegerType(), LongType(), StringType()


@pytest.mark.parametrize(
    ("there", "now", "expected"),
    [
        (fields(a=INT), fields(a=INT), fields(a=INT)),
        (fields(a=INT, b=TEXT), fields(b=TEXT), fields(a=INT, b=TEXT)),
        (fields(b=TEXT), fields(a=INT, b=TEXT), fields(b=TEXT, a=INT)),
        (fields(a=INT), fields(A=INT), fields(a=INT)),
        (
            fields(a=fields(x=INT)),
            fields(a=fields(y=TEXT, x=INT)),
            fields(a=fields(x=INT, y=TEXT)),
        ),
        (
            fields(a=ArrayType(fields(x=INT), containsNull=False)),
            fields(a=ArrayType(fields(y=INT))),
            fields(a=ArrayType(fields(x=INT, y=INT))),
        ),
        (
            fields(a=MapType(TEXT, fields(x=INT))),
            fields(a=MapType(TEXT, fields(y=INT), valueContainsNull=False)),
            fields(a=MapType(TEXT, fields(x=INT, y=INT))),
        ),
    ],
)
def test_rows_that_are_accepted(there: StructType, now: StructType, expected: StructType) -> None:
    taken = layout_of(there, ()).taking("t", layout_of(now, ()))
    assert taken == layout_of(expected, ())
    # A second time, they add nothing.
    assert taken.taking("t", layout_of(now, ())) == taken


def test_nullability_and_comments_are_ignored() -> None:
    strict = StructType([StructField("a", INT, nullable=False, metadata={"comment": "x"})])
    assert layout_of(strict, ()) == layout_of(fields(a=INT), ())


@pytest.mark.parametrize(
    ("there", "now", "words"),
    [
        (fields(a=INT), fields(a=LONG), "t has the column a as int, and the rows .* as bigint;"),
        (fields(a=INT), fields(A=TEXT), "column a as int, and the rows have it as string;"),
        (
            fields(a=DecimalType(10, 2)),
            fields(a=DecimalType(12, 2)),
            r"as decimal\(10,2\), .* decimal\(12,2\)",
        ),
        (fields(a=fields(x=INT)), fields(a=fields(x=TEXT)), r"column a\.x as int"),
        (fields(a=fields(x=INT)), fields(a=INT), "column a as struct, and the rows have it as int"),
        (
            fields(a=ArrayType(fields(x=INT))),
            fields(a=ArrayType(fields(x=TEXT))),
            r"column a\[\]\.x as int",
        ),
        (
            fields(a=MapType(TEXT, INT)),
            fields(a=MapType(TEXT, LONG)),
            r"column a\[value\] as int",
        ),
        (fields(a=MapType(INT, INT)), fields(a=MapType(TEXT, INT)), r"column a\[key\] as int"),
    ],
)
def test_rows_that_are_refused(there: StructType, now: StructType, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        layout_of(there, ()).taking("t", layout_of(now, ()))


def test_names_that_differ_by_case_are_two_columns_if_spark_is_case_sensitive() -> None:
    taken = layout_of(fields(a=INT), (), str).taking("t", layout_of(fields(A=TEXT), (), str), str)
    assert taken.columns == fields(a=INT, A=TEXT)


@pytest.mark.parametrize(
    ("type_", "place"),
    [
        (NullType(), "a"),
        (fields(x=INT, y=NullType()), "a.y"),
        (ArrayType(NullType()), "a[]"),
        (MapType(TEXT, ArrayType(fields(x=NullType()))), "a[value][].x"),
        (MapType(NullType(), INT), "a[key]"),
    ],
)
def test_nulls_have_a_type(type_: DataType, place: str) -> None:
    words = re.escape(f"the column {place} is null without a type")
    with pytest.raises(ConfigError, match=words):
        check_typed(fields(b=INT, a=type_))
    check_typed(fields(b=INT, a=MapType(TEXT, ArrayType(fields(x=INT)))))


def test_columns_of_folders() -> None:
    rows = fields(day=TEXT, number=INT)
    table = layout_of(rows, ("Day",))
    assert table.columns == fields(number=INT)
    # Folder names have no types.
    assert table.taking("t", layout_of(fields(day=INT, number=INT), ("day",))) == table
    for partition_by in ((), ("number",), ("day", "number")):
        with pytest.raises(ConfigError, match="t is partitioned by Day, and partitionBy says"):
            table.taking("t", layout_of(rows, partition_by))
    assert folder_columns("day=2026-01-31/a%20b=c=d") == ["day", "a b"]
    assert folder_columns("") == folder_columns("plain") == []


def test_the_newest_file_of_each_query() -> None:
    files = [
        File("part-a-0000000001-00000.parquet", 1, 10),
        File("day=1/part-a-0000000002-00000.parquet", 1, 30),
        File("part-b-0000000001-00000.parquet", 1, 20),
        File("merged-b-1.parquet", 1, 40),
        File("x.parquet", 1, 5),
    ]
    assert [file.modified_ms for file in newest_of_each_query(files)] == [40, 30, 5]
