"""Parquet tables: a batch that is killed at any point is in the table once after a retry."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from typing_extensions import override

from goddard.errors import ConfigError
from goddard.pipelines import quality
from goddard.pipelines.jobs.job import Aggregate, Sink
from goddard.pipelines.tables.batches import Batch, single
from goddard.pipelines.tables.files import File, Files
from goddard.pipelines.tables.parquet import ParquetTable
from goddard.pipelines.tables.sinks import BatchSink, open_sink
from goddard.pipelines.transform import aggregated

QUERY = "a" * 32


class KilledError(Exception):
    """Simulates kill -9 for file operations."""


class KillingFiles(Files):
    """Files whose n-th change raises KilledError."""

    changes_left: int | None = None

    def _count_change(self) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise KilledError

    @override
    def make_folder(self, path: str) -> None:
        self._count_change()
        super().make_folder(path)

    @override
    def delete(self, path: str) -> None:
        self._count_change()
        super().delete(path)

    @override
    def rename(self, source: str, target: str) -> None:
        self._count_change()
        super().rename(source, target)


def rows(spark: SparkSession, start: int, count: int) -> DataFrame:
    numbers = spark.range(start, start + count, 1, 1)
    return numbers.selectExpr("id AS number", "concat('c', id % 2) AS city")


def content(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row["number"] for row in spark.read.parquet(str(folder)).collect())


def data_files(folder: Path) -> dict[str, int]:
    """The data files of the table, and their modification times."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*.parquet")
        if "_goddard" not in path.parts
    }


def kill_at_every_change(files: KillingFiles, attempt: Callable[[], object]) -> int:
    """Kill attempt n at its n-th change, until an attempt succeeds; returns the number of kills."""
    for changes in range(100):
        files.changes_left = changes
        try:
            attempt()
        except KilledError:
            continue
        finally:
            files.changes_left = None
        return changes
    pytest.fail("no attempt succeeded")


def test_batch_killed_at_any_change_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    files = KillingFiles(spark, str(folder))
    table = ParquetTable(files, partition_by=("city",))
    table.write(rows(spark, 0, 4), Batch(QUERY, 0))
    other = ParquetTable(files, partition_by=("city",))
    other.write(rows(spark, 100, 2), single("somebody else"))
    before = data_files(folder)
    frame = rows(spark, 4, 4).selectExpr("*", "1 AS more").persist()
    kills = kill_at_every_change(files, lambda: table.write(frame, Batch(QUERY, 1)))
    # A new column, two lists, two files, two folders, the staging folder twice: many changes.
    assert kills >= 10
    assert content(spark, folder) == [*range(8), 100, 101]
    after = data_files(folder)
    assert before.items() <= after.items()
    # Repeated, as if the checkpoint was not written: the result is equal, other files unchanged.
    table.write(frame, Batch(QUERY, 1))
    assert content(spark, folder) == [*range(8), 100, 101]
    assert before.items() <= data_files(folder).items()
    # Repeated with other rows, as by a nondeterministic transform: they replace the old ones.
    table.write(rows(spark, 50, 1), Batch(QUERY, 1))
    assert content(spark, folder) == [0, 1, 2, 3, 50, 100, 101]
    table.withdraw(Batch(QUERY, 1))
    assert content(spark, folder) == [0, 1, 2, 3, 100, 101]
    assert data_files(folder) == before
    frame.unpersist()


def test_compaction_killed_at_any_change_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    files = KillingFiles(spark, str(folder))
    table = ParquetTable(files, compacts=True)
    for number in range(5):
        # Each batch has its own additional column.
        table.write(
            rows(spark, number, 1).selectExpr("*", f"number AS own{number}"), Batch(QUERY, number)
        )
    other = ParquetTable(files)
    other.write(rows(spark, 100, 1), single("somebody else"))
    kills = kill_at_every_change(files, table.finish)
    assert kills >= 5
    assert content(spark, folder) == [0, 1, 2, 3, 4, 100]
    names = sorted(name.split("-")[0] for name in data_files(folder))
    # The last batch may be repeated, so it is not merged. Files of other writers never are.
    assert names == ["merged", "part", "part"]
    merged = spark.read.parquet(*map(str, folder.glob("merged-*"))).orderBy("number").collect()
    for row in merged:
        own = {f"own{number}": number if number == row["number"] else None for number in range(4)}
        assert row.asDict() == {"number": row["number"], "city": f"c{row['number'] % 2}"} | own
    table.write(rows(spark, 4, 1), Batch(QUERY, 4))
    table.write(rows(spark, 5, 1), Batch(QUERY, 5))
    assert content(spark, folder) == [*range(6), 100]


def test_replaced_table_keeps_rows_of_other_writers(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    files = Files(spark, str(folder))
    ParquetTable(files).write(rows(spark, 100, 1), single("somebody else"))
    table = ParquetTable(files, replaces=True)
    for number in range(3):
        table.write(rows(spark, 0, number + 1), Batch(QUERY, number))
    assert content(spark, folder) == [0, 1, 2, 100]


def test_upsert_killed_at_any_change_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    files = KillingFiles(spark, str(folder))
    keys = ("city", "number")

    def counts(*values: tuple[int | None, str, int]) -> DataFrame:
        made = spark.createDataFrame(list(values), "number long, city string, orders int")
        return made.coalesce(1).persist()

    def found() -> list[tuple[Any, ...]]:
        table = spark.read.parquet(str(folder))
        return sorted((row["city"], str(row["number"]), row["orders"]) for row in table.collect())

    other = ParquetTable(files, partition_by=("city",))
    other.write(counts((1, "a", 100)), single("somebody else"))
    table = ParquetTable(files, partition_by=("city",), keys=keys)
    table.write(counts((1, "a", 1), (2, "a", 1), (1, "b", 1), (None, "b", 1)), Batch(QUERY, 0))
    before = data_files(folder)
    changed = counts((2, "a", 5), (3, "a", 5))
    expected = [("a", "1", 1), ("a", "1", 100), ("a", "2", 5), ("a", "3", 5)]
    rest = [("b", "1", 1), ("b", "None", 1)]
    assert kill_at_every_change(files, lambda: table.write(changed, Batch(QUERY, 1))) >= 8
    assert found() == [*expected, *rest]
    # Files of other writers and partitions without changes are unchanged.
    untouched = {name for name in before if "city=b" in name or QUERY not in name}
    assert len(untouched) == 2
    assert {name: data_files(folder)[name] for name in untouched} == {
        name: before[name] for name in untouched
    }
    # Repeated, as if the checkpoint was not written; then withdrawn.
    table = ParquetTable(files, partition_by=("city",), keys=keys)
    table.write(changed, Batch(QUERY, 1))
    assert found() == [*expected, *rest]
    assert kill_at_every_change(files, lambda: table.withdraw(Batch(QUERY, 1))) >= 4
    assert data_files(folder) == before
    table.write(changed, Batch(QUERY, 1))
    table.write(counts((None, "b", 7)), Batch(QUERY, 2))
    assert found() == [*expected, ("b", "1", 1), ("b", "None", 7)]
    replaced_files = folder / "_goddard" / QUERY / "replaced"
    assert [path.name for path in replaced_files.iterdir()] == ["0000000002"]


def test_upsert_with_all_keys_in_partition_columns(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    files = KillingFiles(spark, str(folder))
    keys = ("city", "day")
    table = ParquetTable(files, partition_by=keys, keys=keys)

    def counts(orders: int, *cities: str | None) -> DataFrame:
        made = [("monday", city, orders) for city in cities]
        return spark.createDataFrame(made, "day string, city string, orders int").coalesce(1)

    def found() -> dict[str | None, int]:
        rows = spark.read.parquet(str(folder)).collect()
        assert len(rows) == len({row["city"] for row in rows})
        return {row["city"]: row["orders"] for row in rows}

    table.write(counts(1, "a", "b", None), Batch(QUERY, 0))
    before = data_files(folder)
    changed = counts(2, "b", None).persist()
    kill_at_every_change(files, lambda: table.write(changed, Batch(QUERY, 1)))
    assert found() == {"a": 1, "b": 2, None: 2}
    table.withdraw(Batch(QUERY, 1))
    assert data_files(folder) == before


def test_null_and_empty_partition_values_share_a_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = Aggregate(
        time="at",
        window="1 minute",
        by=("city",),
        values={"orders": "sum(orders)", "cities": "count(city)"},
    )
    made = [(None, 5), ("", 7), ("__HIVE_DEFAULT_PARTITION__", 1), ("a", 1)]
    frame = spark.createDataFrame(made, "city string, orders long")
    frame = frame.selectExpr("*", "timestamp'2026-01-31 12:00:00' AS at")
    assert aggregated(frame, spec).count() == 4
    windows = aggregated(frame, spec, folders=("City",)).coalesce(1)
    keys = ("windowStart", "windowEnd", "city")
    table = ParquetTable(Files(spark, str(tmp_path / "table")), partition_by=("city",), keys=keys)
    for number in range(2):
        table.write(windows, Batch(QUERY, number))
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    # The aggregates see the original values.
    expected = {(None, 13, 2), ("a", 1, 1)}
    assert len(rows) == 2
    assert {(row["city"], row["orders"], row["cities"]) for row in rows} == expected


def test_path_with_characters_of_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[b]{c,d}*?\\e"
    files = Files(spark, str(folder))
    for number in range(2):
        # The schema is read from footers, then from the recorded schemas.
        shutil.rmtree(folder / "_goddard", ignore_errors=True)
        table = ParquetTable(files, keys=("number",))
        table.write(rows(spark, 0, number + 1), Batch(QUERY, number))
    assert sorted(row["number"] for row in spark.read.parquet(files.to_read("")).collect()) == [
        0,
        1,
    ]
    shutil.rmtree(folder / "_goddard")
    with pytest.raises(ConfigError, match="number as bigint, and the rows have it as string"):
        ParquetTable(files).write(rows(spark, 0, 1).selectExpr("city AS number"), Batch(QUERY, 2))


class CountingFiles(Files):
    """Files that count their listings."""

    listings = 0

    @override
    def names(self, folder: str) -> list[str]:
        self.listings += "schemas" in folder
        return super().names(folder)

    @override
    def walk(self, folder: str) -> list[File]:
        self.listings += not folder
        return super().walk(folder)


def test_parquet_table_adds_columns_and_refuses_other_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "table"
    files = CountingFiles(spark, str(folder))
    table = ParquetTable(files, partition_by=("city",))
    table.write(rows(spark, 0, 2), Batch(QUERY, 0))
    grown = rows(spark, 2, 1).selectExpr("*", "named_struct('a', 1) AS more")
    table.write(grown, Batch(QUERY, 1))
    before = data_files(folder)
    # The next run, and another query, list the recorded schemas once and the table never.
    for query in (QUERY, "b" * 32):
        files.listings = 0
        table = ParquetTable(files, partition_by=("City",))
        for number in (2, 3):
            table.write(rows(spark, 10 * number, 1), Batch(query, number))
        assert files.listings == 1
    table.write(rows(spark, 1, 1).selectExpr("number", "city AS City"), Batch(QUERY, 4))
    all_of_them = spark.read.option("mergeSchema", "true").parquet(str(folder))
    assert sorted(row["number"] for row in all_of_them.collect()) == [0, 1, 1, 2, 20, 20, 30, 30]
    after = data_files(folder)
    assert before.items() <= after.items()
    for columns, words in {
        "cast(number AS string) AS number; city": "number as bigint, .* have it as string; cast it",
        "cast(number AS int) AS NUMBER; city": "number as bigint, .* have it as int; cast it",
        "number; named_struct('a', 'x') AS more; city": r"more\.a as int, .* as string; cast it",
        "number; 5 AS more; city": "more as struct, and the rows have it as int; cast it",
    }.items():
        # The files of an earlier attempt at the batch stay.
        other = ParquetTable(files, partition_by=("city",))
        with pytest.raises(ConfigError, match=f"^file:{folder} has the column {words}"):
            other.write(rows(spark, 0, 1).selectExpr(*columns.split("; ")), Batch(QUERY, 4))
    with pytest.raises(ConfigError, match="is partitioned by city, and partitionBy says nothing"):
        ParquetTable(files).write(rows(spark, 0, 1), Batch(QUERY, 5))
    assert data_files(folder) == after


def test_batch_succeeds_after_failed_attempts(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    files = Files(spark, str(folder))
    table = ParquetTable(files)
    failing = "cast(raise_error('no') AS int) AS"
    with pytest.raises(PySparkException):
        table.write(rows(spark, 0, 1).selectExpr(f"{failing} number", "city"), Batch(QUERY, 0))
    recorded = folder / "_goddard" / "schemas"
    # A file of a writer that was killed.
    recorded.mkdir(parents=True)
    (recorded / ".torn.tmp").write_text("{")
    table.write(rows(spark, 0, 1), Batch(QUERY, 0))
    # The same for a column that is added later.
    with pytest.raises(PySparkException):
        table.write(rows(spark, 1, 1).selectExpr("*", f"{failing} more"), Batch(QUERY, 1))
    for retried in (table, ParquetTable(files)):
        retried.write(rows(spark, 1, 1).selectExpr("*", "'x' AS more"), Batch(QUERY, 1))
    assert content(spark, folder) == [0, 1]
    with pytest.raises(ConfigError, match="more as string, and the rows have it as int"):
        table.write(rows(spark, 1, 1).selectExpr("*", "1 AS more"), Batch(QUERY, 2))


def test_untyped_null_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "table"
    table = ParquetTable(Files(spark, str(folder)))
    table.write(rows(spark, 0, 1), Batch(QUERY, 0))
    with pytest.raises(ConfigError, match=r"the column note is null .* cast\(NULL AS string\)"):
        table.write(rows(spark, 1, 1).selectExpr("*", "NULL AS note"), Batch(QUERY, 1))
    for number, note in enumerate(("cast(NULL AS string)", "'x'"), 1):
        table.write(rows(spark, number, 1).selectExpr("*", f"{note} AS note"), Batch(QUERY, number))
    found = spark.read.option("mergeSchema", "true").parquet(str(folder)).orderBy("number")
    assert [row["note"] for row in found.collect()] == [None, None, "x"]


@pytest.mark.parametrize("writer", ["before", "spark"])
def test_schema_is_read_from_files_if_not_recorded(
    spark: SparkSession, tmp_path: Path, writer: str
) -> None:
    folder = tmp_path / "table"
    files = Files(spark, str(folder))
    if writer == "spark":
        rows(spark, 0, 2).write.partitionBy("city").parquet(str(folder))
    else:
        table = ParquetTable(files, partition_by=("city",))
        table.write(rows(spark, 0, 2), Batch(QUERY, 0))
        shutil.rmtree(folder / "_goddard" / "schemas")
    table = ParquetTable(files, partition_by=("city",))
    texts = rows(spark, 2, 1).selectExpr("cast(number AS string) AS number", "city")
    with pytest.raises(ConfigError, match="column number as bigint, and the rows have it as str"):
        table.write(texts, Batch(QUERY, 1))
    with pytest.raises(ConfigError, match="is partitioned by city, and partitionBy says nothing"):
        ParquetTable(files).write(rows(spark, 2, 1), Batch(QUERY, 1))
    table.write(rows(spark, 2, 1), Batch(QUERY, 1))
    assert content(spark, folder) == [0, 1, 2]
    (schema_file,) = (folder / "_goddard" / "schemas").iterdir()
    # From now on the recorded schema is used.
    schema_file.write_text("{}")
    with pytest.raises(
        ConfigError, match=f"{schema_file.name} is damaged; delete it, and the table's"
    ):
        ParquetTable(files, partition_by=("city",)).write(rows(spark, 3, 1), Batch(QUERY, 2))


# Lake tables

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


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
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

    def content() -> list[dict[str, Any]]:
        if kind != "parquet":
            return lake_rows(kind, tmp_path)
        reader = spark.read.option("mergeSchema", "true")
        frame = reader.parquet(str(tmp_path / "table")).orderBy("number")
        return [row.asDict(recursive=True) for row in frame.collect()]

    found = content()
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
    assert content() == found


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


def test_parquet_table_refuses_an_older_batch(spark: SparkSession, tmp_path: Path) -> None:
    table = ParquetTable(Files(spark, str(tmp_path / "table")))
    for number in range(3):
        table.write(rows(spark, number, 1), Batch(QUERY, number, ends=f"{number}"))
    # The last batch may be repeated with more messages: its rows are replaced.
    table.write(rows(spark, 2, 2), Batch(QUERY, 2, ends="more"))
    for attempt in (
        lambda: table.write(rows(spark, 1, 3), Batch(QUERY, 1, ends="other")),
        lambda: table.withdraw(Batch(QUERY, 1, ends="other")),
    ):
        with pytest.raises(ConfigError, match=r"up to number 2, .* nothing was written"):
            attempt()
    assert content(spark, tmp_path / "table") == [0, 1, 2, 3]


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


def test_all_rejected_rows_are_counted(spark: SparkSession) -> None:
    frame = spark.range(0, 3000, 1, 1).selectExpr(
        "CASE WHEN id % 3 = 1 THEN 'quarantine' WHEN id % 3 = 2 THEN 'drop' END AS _goddard_action",
        "CASE WHEN id % 3 > 0 THEN cast(id AS string) END AS _goddard_problem",
        "cast(id AS string) AS msgId",
    )
    assert quality.tally(frame) == quality.Tally(good=1000, quarantined=1000, dropped=1000)
