"""Delta and Iceberg tables, exactly once, without their Java: Spark writes files, Python commits.

Spark's tasks write Parquet files into a folder of the attempt; one atomic commit of the table's own
log adds them, with the number of the batch and the offsets at which it ends. A batch that is
repeated looks there first, and is not written twice. Files of attempts that were not committed stay
until the table is vacuumed, because another process may be about to commit them.

Upserts and histories (SCD type 2) merge the rows of a batch into a Delta table on the driver.
"""

import importlib
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, Literal
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table, TableProperties
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from goddard.errors import ConfigError
from goddard.pipelines.checkpoint import Batch
from goddard.pipelines.errors import root_cause
from goddard.pipelines.files import File, Files, literal
from goddard.pipelines.job import Sink

_COMMIT_TRIES: Final = 5
_COMPACT_EVERY_BATCHES: Final = 32
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_TWIN: Final = "_partition_"
# The last batch of a query, the offsets at its end and its rules, in the log of a table.
_BATCH: Final = "goddard.batch"
_OFFSETS: Final = "goddard.offsets"
_RULES: Final = "goddard.rules"

# When a row of a history became current and when it ceased to be, as Spark Declarative Pipelines
# call these columns.
START: Final = "__START_AT"
END: Final = "__END_AT"
_IS_NEW: Final = "_goddard_new"
_RANK: Final = "_goddard_rank"

Mode = Literal["append", "overwrite", "upsert", "scd2"]


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """The schema of the rows, with every field nullable."""
    schema = _nullable(frame.schema)
    assert isinstance(schema, StructType)
    return to_arrow_schema(schema, timezone="UTC")


def _nullable(type_: DataType, place: str = "") -> DataType:
    """A type whose fields are all nullable; ConfigError if one has no type but null."""
    match type_:
        case NullType():
            raise ConfigError(
                f"the column {place} is null without a type; write for example cast(NULL AS string)"
            )
        case StructType():
            prefix = f"{place}." if place else ""
            return StructType(
                [
                    StructField(each.name, _nullable(each.dataType, f"{prefix}{each.name}"))
                    for each in type_
                ]
            )
        case ArrayType():
            return ArrayType(_nullable(type_.elementType, f"{place}[]"))
        case MapType():
            key = _nullable(type_.keyType, f"{place}[key]")
            return MapType(key, _nullable(type_.valueType, f"{place}[value]"))
        case _:
            return type_


def check_table(
    place: str,
    table: pa.Schema,
    rows: pa.Schema,
    table_partitions: Sequence[str],
    partition_by: Sequence[str],
) -> list[str]:
    """The columns that the table lacks, or that have fields which it lacks.

    ConfigError if the table cannot take the rows. Neither library looks: files that do not fit
    would only be found when the table is read.
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

    def __init__(self, spark: SparkSession, sink: Sink) -> None:
        self._spark = spark
        self._name = name = sink.table or ""
        self._location = sink.path
        self._partition_by = sink.partition_by
        catalog = {key: str(value) for key, value in sink.catalog.items()}
        properties = {key: value for key, value in catalog.items() if key != "name"}
        try:
            self._catalog: Catalog = load_catalog(catalog.get("name", "default"), **properties)
        except Exception as error:
            # Each kind of catalog has errors of its own.
            raise ConfigError(
                f"the catalog of {name} cannot be opened: {root_cause(error)}; check [sink] catalog"
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
            if batch.rules is not None:
                properties[f"{_RULES}.{batch.query}"] = str(batch.rules)
            transaction.set_properties(properties)
            # The mark tells what is there already; looking through all files would take longer and
            # longer.
            transaction.add_files(paths, snapshot_properties=marks, check_duplicate_files=False)

    def last(self, batch: Batch) -> Batch | None:
        try:
            return self._last_batch(self._catalog.load_table(self._name), batch.query)
        except NoSuchTableError:
            return None

    def _is_written(self, table: Table, batch: Batch) -> bool:
        last = self._last_batch(table, batch.query)
        if last is None:
            return False
        return batch.is_written(self._name, last.number, last.ends_digest)

    def _last_batch(self, table: Table, query: str) -> Batch | None:
        # Properties of the table, because snapshots expire.
        found = table.properties
        number, rules = found.get(f"{_BATCH}.{query}"), found.get(f"{_RULES}.{query}")
        if number is None:
            return None
        return Batch(
            query,
            int(number),
            ends=found.get(f"{_OFFSETS}.{query}"),
            rules=None if rules is None else int(rules),
        )

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
    """A table in a folder, created with the first batch.

    The mode "overwrite" replaces all rows with every batch. "upsert" replaces the row that has the
    same ``keys``, unless its sequence is higher. "scd2" adds a row for each new sequence of the
    keys, and sets the end of the one before it. Sequences may arrive in any order.
    """

    def __init__(
        self, spark: SparkSession, sink: Sink, *, mode: Mode = "append", keys: tuple[str, ...] = ()
    ) -> None:
        self._files = Files(spark, sink.path or "")
        self._spark = spark
        self._partition_by = sink.partition_by
        self._options = {name: str(value) for name, value in sink.options.items()} or None
        self._compact = sink.compact
        self._mode = mode
        self._keys = keys
        self._sequence = sink.sequence

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        if self._sequence is not None:
            frame = _with_sequence(frame, self._sequence)
        if self._mode == "scd2" and self._sequence is not None:
            column = sf.col(self._sequence)
            nothing = sf.when(sf.lit(False), column)
            frame = frame.withColumns({START: column, END: nothing})
        schema = _arrow_schema(frame)
        table = self._table(schema)
        last = table.transaction_version(batch.query)
        if batch.is_written(
            root := self._files.root, last, table.transaction_version(_ends(batch))
        ):
            return False
        known: Any = table.schema()
        partitions = table.metadata().partition_columns
        new = check_table(root, pa.schema(known), schema, partitions, self._partition_by)
        if new:
            fields = deltalake.Schema.from_arrow(schema).fields
            table.alter.add_columns([field for field in fields if field.name in new])
        if self._compact and batch.number and batch.number % _COMPACT_EVERY_BATCHES == 0:
            table.optimize.compact()
        if self._mode == "upsert":
            self._merge(table, self._newest(frame), batch, self._keys)
        elif self._mode == "scd2":
            self._merge(table, self._history(table, frame), batch, (*self._keys, START))
        else:
            self._add(table, frame, schema, batch)
        return True

    def last(self, batch: Batch) -> Batch | None:
        try:
            table = deltalake.DeltaTable(self._files.root, storage_options=self._options)
        except TableNotFoundError:
            return None
        number = table.transaction_version(batch.query)
        if number is None:
            return None
        rules = table.transaction_version(_rules(batch))
        return Batch(batch.query, number, rules=rules)

    def finish(self) -> None:
        """Merge small files, if the sink says so."""
        if self._compact and deltalake.DeltaTable.is_deltatable(self._files.root, self._options):
            table = deltalake.DeltaTable(self._files.root, storage_options=self._options)
            table.optimize.compact()

    def _add(
        self, table: deltalake.DeltaTable, frame: DataFrame, schema: pa.Schema, batch: Batch
    ) -> None:
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
        table.create_write_transaction(
            actions,
            self._mode,
            deltalake.Schema.from_arrow(schema),
            list(self._partition_by),
            commit_properties=_commit(batch),
        )

    def _merge(
        self, table: deltalake.DeltaTable, frame: DataFrame, batch: Batch, keys: Sequence[str]
    ) -> None:
        """Replace the rows that have the same keys; others are added."""
        rows: Any = frame.toArrow()
        merge = table.merge(
            rows,
            _same(keys),
            source_alias="new",
            target_alias="old",
            commit_properties=_commit(batch),
        )
        is_newer = None
        if self._mode == "upsert" and self._sequence is not None:
            name = _quoted(self._sequence)
            is_newer = f"new.{name} >= old.{name}"
        merge.when_matched_update_all(is_newer).when_not_matched_insert_all().execute()

    def _newest(self, frame: DataFrame) -> DataFrame:
        """One row of each key: that with the highest sequence."""
        if self._sequence is None:
            return frame
        by_key = Window.partitionBy(*self._keys).orderBy(sf.col(self._sequence).desc_nulls_last())
        return (
            frame.withColumn(_RANK, sf.row_number().over(by_key)).where(f"{_RANK} = 1").drop(_RANK)
        )

    def _history(self, table: deltalake.DeltaTable, frame: DataFrame) -> DataFrame:
        """The rows of the batch and those that the table has of their keys, each with its end."""
        schema = frame.schema
        rows: Any = frame.toArrow()
        new, old = (
            self._spark.createDataFrame(each.select(schema.names), schema)
            for each in (rows, _rows_with_keys(table, rows.select(list(self._keys))))
        )
        new, old = new.withColumn(_IS_NEW, sf.lit(True)), old.withColumn(_IS_NEW, sf.lit(False))
        both = new.unionByName(old)
        # A message that was sent twice has the sequence of the first.
        same = Window.partitionBy(*self._keys, START).orderBy(_IS_NEW)
        both = both.withColumn(_RANK, sf.row_number().over(same)).where(f"{_RANK} = 1")
        in_order = Window.partitionBy(*self._keys).orderBy(START)
        return both.withColumn(END, sf.lead(START).over(in_order)).drop(_IS_NEW, _RANK)

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


def _with_sequence(frame: DataFrame, name: str) -> DataFrame:
    """The rows; the query fails at one without a sequence, which nothing could be compared with."""
    words = sf.lit(f"the sequence column {name} is null")
    is_known = sf.when(sf.col(name).isNotNull(), sf.lit(True))
    return frame.where(is_known.otherwise(sf.raise_error(words).cast("boolean")))


def _rows_with_keys(table: deltalake.DeltaTable, keys: Any) -> Any:
    """The rows of a table that may have one of the keys."""
    compute: Any = importlib.import_module("pyarrow.compute")
    dataset: Any = table.to_pyarrow_dataset()
    wanted = None
    for name in keys.column_names:
        is_one = compute.field(name).isin(keys[name])
        wanted = is_one if wanted is None else wanted & is_one
    return dataset.to_table(filter=wanted)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _same(keys: Sequence[str]) -> str:
    """The condition that two rows have the same keys; null is equal to null."""
    return " AND ".join(
        f"(old.{key} = new.{key} OR (old.{key} IS NULL AND new.{key} IS NULL))"
        for key in map(_quoted, keys)
    )


def _commit(batch: Batch) -> CommitProperties:
    """What a commit says of its batch."""
    marks = [deltalake.Transaction(batch.query, batch.number)]
    notes = {"goddard.query": batch.query, _BATCH: str(batch.number)}
    # The log keeps the newest transaction of each name, but other notes only for a time.
    if batch.ends is not None and batch.ends_digest is not None:
        marks.append(deltalake.Transaction(_ends(batch), batch.ends_digest))
        notes[_OFFSETS] = batch.ends
    if batch.rules is not None:
        marks.append(deltalake.Transaction(_rules(batch), batch.rules))
    return CommitProperties(app_transactions=marks, custom_metadata=notes)


def append_rows(
    path: str, rows: Any, batch: Batch | None = None, options: dict[str, str] | None = None
) -> None:
    """Append a few rows to a Delta table, once for each batch."""
    try:
        table = deltalake.DeltaTable(path, storage_options=options)
    except TableNotFoundError:
        schema = deltalake.Schema.from_arrow(rows.schema)
        table = deltalake.DeltaTable.create(path, schema, mode="ignore", storage_options=options)
    properties = None
    if batch is not None:
        properties = _commit(batch)
        last = table.transaction_version(batch.query)
        if last is not None and last >= batch.number:
            return
    deltalake.write_deltalake(table, rows, mode="append", commit_properties=properties)


def read_delta(spark: SparkSession, path: str) -> DataFrame | None:
    """A Delta table as a DataFrame, read by Spark's Parquet reader; None if there is no table."""
    root = Files(spark, path).root
    try:
        table = deltalake.DeltaTable(root)
    except TableNotFoundError:
        return None
    known: Any = table.schema()
    schema = from_arrow_schema(pa.schema(known))
    partition_by = table.metadata().partition_columns
    stored = StructType([each for each in schema if each.name not in partition_by])
    by_partition: dict[tuple[str | None, ...], list[str]] = {}
    arrow: Any = pa
    for action in arrow.table(table.get_add_actions()).to_pylist():
        values = action.get("partition") or {}
        key = tuple(values.get(name) for name in partition_by)
        by_partition.setdefault(key, []).append(f"{root}/{unquote(action['path'])}")
    whole = spark.createDataFrame([], schema)
    for key, paths in by_partition.items():
        part = spark.read.schema(stored).parquet(*map(literal, paths))
        columns = {
            name: sf.lit(value).cast(schema[name].dataType)
            for name, value in zip(partition_by, key, strict=True)
        }
        whole = whole.unionByName(part.withColumns(columns))
    return whole.select(*schema.names)


def _ends(batch: Batch) -> str:
    """The name under which a Delta table keeps the digest of a batch's end offsets."""
    return f"{batch.query}-ends"


def _rules(batch: Batch) -> str:
    """The name under which a Delta table keeps the digest of the rules of a batch."""
    return f"{batch.query}-rules"


def partition_values(folder: str) -> dict[str, str | None]:
    """What the names of folders say: ``day=2026-01-31/city=a%2Fb``."""
    values: dict[str, str | None] = {}
    for part in folder.split("/") if folder else ():
        name, _, value = part.partition("=")
        values[unquote(name)] = None if value == _NULL_PARTITION else unquote(value)
    return values
