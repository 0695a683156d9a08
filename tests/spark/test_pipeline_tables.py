"""Delta and Iceberg tables: each batch once, new columns, other types refused, rows replaced."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError
from msgspec.structs import replace
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from goddard.errors import ConfigError
from goddard.pipelines.checkpoint import Batch
from goddard.pipelines.job import Aggregate, Sink
from goddard.pipelines.lakehouse import read_delta
from goddard.pipelines.sinks import BatchSink, open_sink

QUERY = "a" * 32


def rows(spark: SparkSession, start: int, count: int) -> DataFrame:
    numbers = spark.range(start, start + count, 1, 1)
    return numbers.selectExpr("id AS number", "concat('c', id % 2) AS city")


ODD = [(0, "a/b"), (1, "ä b"), (2, "100%"), (3, None), (4, "x#y?z"), (5, "a%2Fb"), (6, "q'\"")]


def lake_table(spark: SparkSession, kind: str, folder: Path, *partition_by: str) -> BatchSink:
    sink = Sink(format=kind, path=str(folder / "table"), partition_by=partition_by)
    if kind == "iceberg":
        (folder / "warehouse").mkdir(parents=True, exist_ok=True)
        sink = replace(sink, path=None, table="shop.orders", catalog=catalog_of(folder))
    return open_sink(sink, spark)


def catalog_of(folder: Path) -> dict[str, str]:
    uri = f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}


def lake_rows(kind: str, folder: Path) -> list[dict[str, Any]]:
    if kind == "delta":
        rows = deltalake.DeltaTable(str(folder / "table")).to_pyarrow_table().to_pylist()
    else:
        table = load_catalog("default", **catalog_of(folder)).load_table("shop.orders")
        rows = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: int(row["number"]))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_lake_table_adds_columns_and_refuses_other_types(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    table = lake_table(spark, kind, folder, "city")
    odd = spark.createDataFrame(ODD, "number long, city string").coalesce(1)
    assert table.write(odd, Batch(QUERY, 0))
    assert not table.write(odd, Batch(QUERY, 0))
    more = spark.createDataFrame([(7, "c", 5)], "number long, city string, more short").coalesce(1)
    assert table.write(more, Batch(QUERY, 1))
    assert table.write(rows(spark, 8, 1), Batch(QUERY, 2))
    none = rows(spark, 0, 0)
    assert table.write(none, Batch(QUERY, 3))
    expected = [(number, city, None) for number, city in ODD] + [(7, "c", 5), (8, "c0", None)]
    found = [(row["number"], row["city"], row["more"]) for row in lake_rows(kind, folder)]
    assert found == expected
    texts = none.selectExpr("cast(number AS string) AS number", "city")
    with pytest.raises(ConfigError, match="number as int64, and the rows have it as string; cast"):
        table.write(texts, Batch(QUERY, 4))
    other = lake_table(spark, kind, folder)
    with pytest.raises(ConfigError, match=r"is partitioned by city, and .* says nothing; say the"):
        other.write(none, Batch(QUERY, 4))


def nested(spark: SparkSession, number: int, *columns: str) -> DataFrame:
    return spark.range(number, number + 1, 1, 1).selectExpr("id AS number", *columns)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_fields_of_structs_are_added_and_keep_their_types(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = lake_table(spark, kind, tmp_path)
    plain = ("named_struct('a', 1) AS s", "array(named_struct('a', 1)) AS l", "map('k', 1) AS m")
    assert table.write(nested(spark, 0, *plain), Batch(QUERY, 0))
    more = (
        "named_struct('a', 1, 'b', 22) AS s",
        "array(named_struct('a', 1, 'b', 33)) AS l",
        "map('k', 1) AS m",
    )
    assert table.write(nested(spark, 1, *more), Batch(QUERY, 1))

    found = lake_rows(kind, tmp_path)
    assert [row["s"] for row in found] == [{"a": 1, "b": None}, {"a": 1, "b": 22}]
    assert [row["l"] for row in found] == [[{"a": 1, "b": None}], [{"a": 1, "b": 33}]]
    for column, place in {
        "named_struct('a', 'x') AS s": r"s\.a",
        "array(named_struct('b', 'x')) AS l": r"l\[\]\.b",
        "array(1) AS l": r"l\[\]",
        "map('k', 'x') AS m": r"m\[",
    }.items():
        with pytest.raises(ConfigError, match=rf"has the column {place}.* cast it in a transform"):
            table.write(nested(spark, 2, column), Batch(QUERY, 2))
    assert lake_rows(kind, tmp_path) == found


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_batch_with_other_offsets_is_not_skipped(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = lake_table(spark, kind, tmp_path)
    for number in range(3):
        assert table.write(rows(spark, number, 1), Batch(QUERY, number, ends=f"{number}"))
    assert not table.write(rows(spark, 2, 1), Batch(QUERY, 2, ends="2"))
    # Written by a version that did not know the offsets.
    assert not table.write(rows(spark, 2, 1), Batch(QUERY, 2))
    for number, ends in ((2, "other"), (1, "1"), (0, "other")):
        with pytest.raises(ConfigError, match=r"up to number 2, .* nothing was written"):
            table.write(rows(spark, 9, 1), Batch(QUERY, number, ends=ends))
    assert [row["number"] for row in lake_rows(kind, tmp_path)] == [0, 1, 2]


class InterruptedFrame:
    """A DataFrame that calls a function before it is written."""

    def __init__(self, frame: DataFrame, before: Callable[[], object]) -> None:
        self._frame = frame
        self._before = before

    def __getattr__(self, name: str) -> Any:
        if name == "withColumns":
            return lambda columns: InterruptedFrame(self._frame.withColumns(columns), self._before)
        return getattr(self._frame, name)

    @property
    def write(self) -> DataFrameWriter:
        self._before()
        return self._frame.write


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_two_processes_that_write_one_batch_leave_it_once(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table, other = lake_table(spark, kind, tmp_path), lake_table(spark, kind, tmp_path)
    table.write(rows(spark, 0, 1), Batch(QUERY, 0))
    batch = Batch(QUERY, 1, ends="1")
    slow = InterruptedFrame(rows(spark, 1, 2), lambda: other.write(rows(spark, 1, 2), batch))
    with contextlib.suppress(CommitFailedError):
        table.write(cast(DataFrame, slow), batch)
    assert [row["number"] for row in lake_rows(kind, tmp_path)] == [0, 1, 2]


def test_delta_table_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert read_delta(spark, str(tmp_path / "table")) is None
    folder = tmp_path / "a[b] c"
    table = lake_table(spark, "delta", folder, "city")
    table.write(spark.createDataFrame(ODD, "number long, city string").coalesce(1), Batch(QUERY, 0))
    table.write(rows(spark, 8, 1).selectExpr("*", "5 AS more"), Batch(QUERY, 1))
    frame = read_delta(spark, str(folder / "table"))
    assert frame is not None
    found = sorted((row["number"], row["city"], row["more"]) for row in frame.collect())
    assert found == [(number, city, None) for number, city in ODD] + [(8, "c0", 5)]


def test_untyped_null_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = lake_table(spark, "delta", tmp_path)
    nulls = rows(spark, 0, 1).selectExpr("*", "named_struct('x', array(NULL)) AS note")
    with pytest.raises(ConfigError, match=r"column note\.x\[\] is null .* cast\(NULL AS string\)"):
        table.write(nulls, Batch(QUERY, 0))


def test_windows_replace_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    windows = Aggregate(
        window="1 minute", by=("city",), values={"orders": "count(*)"}, output_mode="update"
    )
    sink = Sink(path=str(tmp_path / "table"), partition_by=("city",))
    table = open_sink(sink, spark, windows)

    def counts(*values: tuple[int, str | None, int]) -> DataFrame:
        made = spark.createDataFrame(list(values), "minute int, city string, orders int")
        start, end = "timestamp_seconds(60 * minute)", "timestamp_seconds(60 * minute + 60)"
        columns = (f"{start} AS windowStart", f"{end} AS windowEnd", "city", "orders")
        return made.coalesce(1).selectExpr(*columns)

    def found(path: Path) -> list[tuple[int, str | None, int]]:
        rows = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        return [(row["windowStart"].minute, row["city"], row["orders"]) for row in rows]

    assert table.write(counts((0, "a", 1), (1, "a", 1), (0, None, 1)), Batch(QUERY, 0))
    changed = counts((1, "a", 5), (0, None, 7), (2, "b", 1))
    assert table.write(changed, Batch(QUERY, 1, ends="x"))
    # Repeated, and with other messages.
    assert not table.write(changed, Batch(QUERY, 1, ends="x"))
    with pytest.raises(ConfigError, match="nothing was written"):
        table.write(changed, Batch(QUERY, 1, ends="y"))
    expected = {(0, "a", 1), (1, "a", 5), (0, None, 7), (2, "b", 1)}
    assert set(found(tmp_path / "table")) == expected
    assert len(found(tmp_path / "table")) == 4
    complete = replace(windows, output_mode="complete")
    table = open_sink(replace(sink, path=str(tmp_path / "whole")), spark, complete)
    for number in range(3):
        table.write(counts((number, "a", number)), Batch(QUERY, number))
    assert found(tmp_path / "whole") == [(2, "a", 2)]


def changes(spark: SparkSession, *rows: tuple[int | None, str, int | None]) -> DataFrame:
    return spark.createDataFrame(list(rows), "id int, city string, version int").coalesce(1)


def content(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    rows = deltalake.DeltaTable(str(folder / "table")).to_pyarrow_table().to_pylist()
    return sorted((tuple(row[name] for name in columns) for row in rows), key=repr)


def test_upsert_keeps_the_row_with_the_highest_sequence(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = Sink(path=str(tmp_path / "table"), mode="upsert", keys=("id",), sequence="version")
    table = open_sink(sink, spark)
    # Two changes of one key in a batch, in the wrong order.
    assert table.write(changes(spark, (1, "a", 3), (1, "b", 2), (2, "a", 1)), Batch(QUERY, 0))
    # Late, newer, new and null keys; the same batch again, and another one in its place.
    more = changes(spark, (1, "late", 1), (2, "b", 2), (3, "a", 1), (None, "a", 1), (None, "b", 2))
    assert table.write(more, Batch(QUERY, 1, ends="x"))
    assert not table.write(changes(spark, (2, "no", 9)), Batch(QUERY, 1, ends="x"))
    with pytest.raises(ConfigError, match="nothing was written"):
        table.write(changes(spark, (2, "no", 9)), Batch(QUERY, 1, ends="y"))
    expected = [(1, "a", 3), (2, "b", 2), (3, "a", 1), (None, "b", 2)]
    assert content(tmp_path, "id", "city", "version") == expected
    # A new column is null in the rows that were there.
    assert table.write(changes(spark, (3, "c", 2)).selectExpr("*", "5 AS more"), Batch(QUERY, 2))
    assert content(tmp_path, "id", "more") == [(1, None), (2, None), (3, 5), (None, None)]
    with pytest.raises(PySparkException, match="the sequence column version is null"):
        table.write(changes(spark, (1, "x", None)), Batch(QUERY, 3))


def test_history_has_the_range_of_every_version(spark: SparkSession, tmp_path: Path) -> None:
    sink = Sink(path=str(tmp_path / "table"), mode="scd2", keys=("id",), sequence="version")
    table = open_sink(sink, spark)
    columns = ("id", "city", "__START_AT", "__END_AT")
    first = changes(spark, (1, "a", 1), (1, "c", 5), (2, "a", 1), (None, "a", 1))
    assert table.write(first, Batch(QUERY, 0))
    expected = [(1, "a", 1, 5), (1, "c", 5, None), (2, "a", 1, None), (None, "a", 1, None)]
    assert content(tmp_path, *columns) == expected
    # One between two versions, a newer one, one that was there, and a new key.
    more = changes(spark, (1, "b", 3), (2, "b", 2), (1, "a", 1), (3, "a", 1), (None, "b", 2))
    assert table.write(more, Batch(QUERY, 1, ends="x"))
    assert not table.write(more, Batch(QUERY, 1, ends="x"))
    assert content(tmp_path, *columns) == [
        (1, "a", 1, 3),
        (1, "b", 3, 5),
        (1, "c", 5, None),
        (2, "a", 1, 2),
        (2, "b", 2, None),
        (3, "a", 1, None),
        (None, "a", 1, 2),
        (None, "b", 2, None),
    ]
    with pytest.raises(ConfigError, match="nothing was written"):
        table.write(more, Batch(QUERY, 1, ends="y"))
