"""Iceberg and Delta tables, exactly once, without their Java: Spark writes files, Python commits.

Spark's tasks write Parquet files into a folder of the batch; one atomic commit of the table's own
log then adds them, and says in the same commit which batch it was. A batch that is repeated looks
there first: what was committed is left alone; what was not is written over and committed. The two
packages are the extra ``lake``.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from goddard.errors import ConfigError
from goddard.pipelines.failures import sentence
from goddard.pipelines.tables.batches import Batch
from goddard.pipelines.tables.files import File, Files

_COMMIT_TRIES: Final = 5
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_TWIN: Final = "_partition_"


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """The schema of the rows; any field may be null, whatever the first batch looks like."""
    fields = [StructField(each.name, each.dataType, nullable=True) for each in frame.schema]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def check_table(
    place: str,
    table: pa.Schema,
    rows: pa.Schema,
    table_partitions: Sequence[str],
    partition_by: Sequence[str],
) -> list[str]:
    """The columns that a table lacks; ConfigError if it cannot take the rows as they are.

    Neither library looks: files that do not fit would be found out by whoever reads the table.
    """
    if list(table_partitions) != list(partition_by):
        there, now = (", ".join(each) or "nothing" for each in (table_partitions, partition_by))
        raise ConfigError(
            f"{place} is partitioned by {there}, and [sink] partitionBy says {now}; "
            "say the same, or write another table"
        )
    for name in rows.names:
        if name not in table.names:
            continue
        there, now = _kind(table.field(name).type), _kind(rows.field(name).type)
        if there != now:
            raise ConfigError(
                f"{place} has the column {name} as {there}, and the rows have it as {now}; "
                "cast it in a transform, or write another table"
            )
    return [name for name in rows.names if name not in table.names]


def _kind(type_: pa.DataType) -> str:
    """A type in words; what is inside of lists and the like is the table's own to check."""
    name = str(type_).removeprefix("large_").partition("<")[0]
    # Iceberg has none of the small ones, and keeps them like this.
    return "int32" if name in ("int8", "int16") else name


def _write_files(frame: DataFrame, files: Files, partition_by: tuple[str, ...]) -> list[File]:
    """Write the rows into a folder, in place of what an earlier attempt left there."""
    # The older default for times is one that Iceberg does not take.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = frame.write.mode("overwrite")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(files.root)
    return [file for file in files.walk("") if not file.name.startswith(("_", "."))]


class IcebergTable:
    """A table of a catalog, made when the first batch comes."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        catalog: dict[str, str],
        *,
        location: str | None = None,
        partition_by: tuple[str, ...] = (),
    ) -> None:
        self._spark = spark
        self._name = name
        self._location = location
        self._partition_by = partition_by
        properties = {key: value for key, value in catalog.items() if key != "name"}
        try:
            self._catalog: Catalog = load_catalog(catalog.get("name", "default"), **properties)
        except Exception as error:
            # Each kind of catalog has errors of its own.
            raise ConfigError(
                f"the catalog of {name} cannot be opened: {sentence(error)}; check [sink] catalog"
            ) from error

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        schema = _arrow_schema(frame)
        table = self._table(schema)
        if _is_in_iceberg(table, batch):
            return False
        parts = [each.name for each in table.spec().fields]
        if check_table(self._name, table.schema().as_arrow(), schema, parts, self._partition_by):
            with table.update_schema() as update:
                update.union_by_name(schema)
        # Iceberg's files hold their partition's columns too, which Spark leaves out: twins of them
        # make the folders.
        twins = {f"{_TWIN}{name}": sf.col(name) for name in self._partition_by}
        folder = f"{table.location()}/data/{batch.query}-{batch.number:010d}"
        files = Files(self._spark, folder)
        found = _write_files(frame.withColumns(twins), files, tuple(twins))
        paths = [files.full(file.path) for file in found]
        for left in reversed(range(_COMMIT_TRIES)):
            try:
                self._commit(table, paths, batch)
                break
            except CommitFailedException:
                # Somebody else was faster; what they did stays.
                if not left:
                    raise
                table = self._catalog.load_table(self._name)
                if _is_in_iceberg(table, batch):
                    break
        return True

    def withdraw(self, batch: Batch) -> None:
        """Nothing: a batch without rows had none at its first attempt either."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def _commit(self, table: Table, paths: list[str], batch: Batch) -> None:
        marks = {"goddard.query": batch.query, "goddard.batch": str(batch.number)}
        with table.transaction() as transaction:
            transaction.set_properties({_iceberg_mark(batch): str(batch.number)})
            # The mark tells what is there already; looking through all files would take longer and
            # longer.
            transaction.add_files(paths, snapshot_properties=marks, check_duplicate_files=False)

    def _table(self, schema: pa.Schema) -> Table:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            pass
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with (
            self._catalog.create_table_transaction(
                self._name, schema, location=self._location
            ) as transaction,
            transaction.update_spec() as update,
        ):
            for name in self._partition_by:
                update.add_identity(name)
        return self._catalog.load_table(self._name)


def _iceberg_mark(batch: Batch) -> str:
    return f"goddard.batch.{batch.query}"


def _is_in_iceberg(table: Table, batch: Batch) -> bool:
    # A property of the table, for snapshots expire.
    last = table.properties.get(_iceberg_mark(batch))
    return last is not None and int(last) >= batch.number


class DeltaTable:
    """A table in a folder, made when the first batch comes."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        partition_by: tuple[str, ...] = (),
        options: dict[str, str] | None = None,
    ) -> None:
        self._files = Files(spark, path)
        self._spark = spark
        self._partition_by = partition_by
        self._options = options

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        schema = _arrow_schema(frame)
        table = self._table(schema)
        if (last := table.transaction_version(batch.query)) is not None and last >= batch.number:
            return False
        known: Any = table.schema()
        new = check_table(
            self._files.root,
            pa.schema(known),
            schema,
            table.metadata().partition_columns,
            self._partition_by,
        )
        if new:
            fields = deltalake.Schema.from_arrow(schema).fields
            table.alter.add_columns([field for field in fields if field.name in new])
        folder = f"batches/{batch.query}-{batch.number:010d}"
        files = Files(self._spark, self._files.full(folder))
        now_ms = time.time_ns() // 1_000_000
        actions: list[Any] = [
            AddAction(
                path=f"{folder}/{file.path}",
                size=file.size_bytes,
                partition_values=partition_values(file.folder),
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": files.parquet_rows(file.path)}),
            )
            for file in _write_files(frame, files, self._partition_by)
        ]
        mark = deltalake.Transaction(batch.query, batch.number)
        table.create_write_transaction(
            actions,
            "append",
            deltalake.Schema.from_arrow(schema),
            list(self._partition_by),
            commit_properties=CommitProperties(app_transactions=[mark]),
        )
        return True

    def withdraw(self, batch: Batch) -> None:
        """Nothing: a batch without rows had none at its first attempt either."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def _table(self, schema: pa.Schema) -> deltalake.DeltaTable:
        root = self._files.root
        try:
            return deltalake.DeltaTable(root, storage_options=self._options)
        except TableNotFoundError:
            return deltalake.DeltaTable.create(
                root,
                deltalake.Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(self._partition_by),
                storage_options=self._options,
            )


def partition_values(folder: str) -> dict[str, str | None]:
    """What the names of folders say: ``day=2026-01-31/city=a%2Fb``."""
    values: dict[str, str | None] = {}
    for part in folder.split("/") if folder else ():
        name, _, value = part.partition("=")
        values[unquote(name)] = None if value == _NULL_PARTITION else unquote(value)
    return values
