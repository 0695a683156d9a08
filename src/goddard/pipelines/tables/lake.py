"""Iceberg and Delta tables, exactly once, without their Java: Spark writes files, Python commits.

Spark's tasks write Parquet files into a folder of the attempt; one atomic commit of the table's own
log then adds them, and says in the same commit which batch it was and at which offsets it ends. A
batch that is repeated looks there first: what was committed is left alone. Files of attempts that
were not committed stay until the table is vacuumed, because another process may be about to commit
them. The two packages are the extra ``lake``.
"""

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table, TableProperties
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from goddard.errors import ConfigError
from goddard.pipelines.failures import sentence
from goddard.pipelines.tables.batches import Batch
from goddard.pipelines.tables.files import File, Files
from goddard.pipelines.tables.schemas import without_constraints

_COMMIT_TRIES: Final = 5
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_TWIN: Final = "_partition_"
# The last batch of a query, and the offsets at its end, in the log of a table.
_BATCH: Final = "goddard.batch"
_OFFSETS: Final = "goddard.offsets"


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """The schema of the rows; anything may be null, whatever the first batch looks like."""
    schema = without_constraints(frame.schema)
    assert isinstance(schema, StructType)
    return to_arrow_schema(schema, timezone="UTC")


def check_table(
    place: str,
    table: pa.Schema,
    rows: pa.Schema,
    table_partitions: Sequence[str],
    partition_by: Sequence[str],
) -> list[str]:
    """The columns that the table lacks, or that have fields which it lacks.

    ConfigError if the table cannot take the rows. Neither library looks: files that do not fit
    would be found out by whoever reads the table.
    """
    if list(table_partitions) != list(partition_by):
        there, now = (", ".join(each) or "nothing" for each in (table_partitions, partition_by))
        raise ConfigError(
            f"{place} is partitioned by {there}, and [sink] partitionBy says {now}; "
            "say the same, or write another table"
        )
    new = []
    for field in rows:
        is_known = field.name in table.names
        if not is_known or _has_new_fields(
            place, field.name, table.field(field.name).type, field.type
        ):
            new.append(field.name)
    return new


def _has_new_fields(place: str, column: str, there: pa.DataType, now: pa.DataType) -> bool:
    """Whether the type of the rows has fields that the table's lacks; ConfigError if they differ
    in anything else.
    """
    if _kind(there) != _kind(now):
        raise ConfigError(
            f"{place} has the column {column} as {_kind(there)}, and the rows have it as "
            f"{_kind(now)}; cast it in a transform, or write another table"
        )
    inner = [now.field(index) for index in range(now.num_fields)]
    # All are compared, also after the first that is new.
    if _kind(now) == "struct":
        fields = [there.field(index) for index in range(there.num_fields)]
        known = {field.name: field.type for field in fields}
        are_new = [
            field.name not in known
            or _has_new_fields(place, f"{column}.{field.name}", known[field.name], field.type)
            for field in inner
        ]
    else:
        # The element of a list; key and value of a map, as a struct.
        are_new = [
            _has_new_fields(place, f"{column}[]", there.field(index).type, field.type)
            for index, field in enumerate(inner)
        ]
    return any(are_new)


def _kind(type_: pa.DataType) -> str:
    """A type in words, without the types inside it."""
    name = str(type_).removeprefix("large_").partition("<")[0]
    # Iceberg has none of the small ones, and keeps them like this.
    return "int32" if name in ("int8", "int16") else name


def _write_files(frame: DataFrame, files: Files, partition_by: tuple[str, ...]) -> list[File]:
    """Write the rows into a new folder."""
    # The older default for times is one that Iceberg does not take.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = frame.write
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(files.root)
    return [file for file in files.walk("") if not file.name.startswith(("_", "."))]


def _attempt(batch: Batch) -> str:
    """The name of a folder that no other attempt at the batch has, in any process."""
    return f"{batch.query}-{batch.number:010d}-{uuid.uuid4().hex}"


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
        if self._is_written(table, batch):
            return False
        parts = [each.name for each in table.spec().fields]
        if check_table(self._name, table.schema().as_arrow(), schema, parts, self._partition_by):
            with table.update_schema() as update:
                update.union_by_name(schema)
        # Iceberg's files hold their partition's columns too, which Spark leaves out: twins of them
        # make the folders.
        twins = {f"{_TWIN}{name}": sf.col(name) for name in self._partition_by}
        folder = f"{table.location()}/data/{_attempt(batch)}"
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
                if self._is_written(table, batch):
                    break
        return True

    def withdraw(self, batch: Batch) -> None:
        """Nothing: a batch without rows had none at its first attempt either."""

    def finish(self) -> None:
        """Nothing is left to do."""

    def _commit(self, table: Table, paths: list[str], batch: Batch) -> None:
        marks = {"goddard.query": batch.query, _BATCH: str(batch.number)}
        # Not stored. pyiceberg would repeat a commit without looking at what another one added.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        with table.transaction() as transaction:
            properties = {f"{_BATCH}.{batch.query}": str(batch.number)}
            if batch.ends is not None:
                properties[f"{_OFFSETS}.{batch.query}"] = batch.ends
            transaction.set_properties(properties)
            # The mark tells what is there already; looking through all files would take longer and
            # longer.
            transaction.add_files(paths, snapshot_properties=marks, check_duplicate_files=False)

    def _is_written(self, table: Table, batch: Batch) -> bool:
        last = self._last_batch(table, batch.query)
        if last is None:
            return False
        return batch.is_written(self._name, last.number, last.ends_digest)

    def _last_batch(self, table: Table, query: str) -> Batch | None:
        # Properties of the table, because snapshots expire.
        number = table.properties.get(f"{_BATCH}.{query}")
        if number is None:
            return None
        return Batch(query, int(number), ends=table.properties.get(f"{_OFFSETS}.{query}"))

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
        last = table.transaction_version(batch.query)
        if batch.is_written(
            root := self._files.root, last, table.transaction_version(_ends(batch))
        ):
            return False
        known: Any = table.schema()
        new = check_table(
            root,
            pa.schema(known),
            schema,
            table.metadata().partition_columns,
            self._partition_by,
        )
        if new:
            fields = deltalake.Schema.from_arrow(schema).fields
            table.alter.add_columns([field for field in fields if field.name in new])
        folder = f"batches/{_attempt(batch)}"
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
        marks = [deltalake.Transaction(batch.query, batch.number)]
        notes = {"goddard.query": batch.query, _BATCH: str(batch.number)}
        if batch.ends is not None and batch.ends_digest is not None:
            # The log keeps the newest transaction of each name, but other notes only for a time.
            marks.append(deltalake.Transaction(_ends(batch), batch.ends_digest))
            notes[_OFFSETS] = batch.ends
        table.create_write_transaction(
            actions,
            "append",
            deltalake.Schema.from_arrow(schema),
            list(self._partition_by),
            commit_properties=CommitProperties(app_transactions=marks, custom_metadata=notes),
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


def _ends(batch: Batch) -> str:
    """The name under which a Delta table keeps the digest of a batch's end offsets."""
    return f"{batch.query}-ends"


def partition_values(folder: str) -> dict[str, str | None]:
    """What the names of folders say: ``day=2026-01-31/city=a%2Fb``."""
    values: dict[str, str | None] = {}
    for part in folder.split("/") if folder else ():
        name, _, value = part.partition("=")
        values[unquote(name)] = None if value == _NULL_PARTITION else unquote(value)
    return values
