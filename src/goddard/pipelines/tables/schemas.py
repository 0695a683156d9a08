"""What the columns of a Parquet table are, for a folder of files does not say: it has no schema.

    <table>/_goddard/schemas/<id>   the columns that the table had when one was added, as JSON

Whoever adds a column writes down all that there are when the rows with it are staged and before
the first file is published, under a name that nobody else has: several queries may write into a
table, and each may be killed. What fails before that leaves no trace. A table
without such files was written before there were any, or by others; there the footers of some files
tell, once. Rows may lack columns and bring new ones, inside of structs too. A column that is there
already keeps its type: readers of a table whose files differ in it fail, or get nonsense. Anything
may be null, as Spark writes it. Partition columns are text in names of folders and have no type.

Used by the driver, from one thread at a time.
"""

import json
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType

from goddard.errors import ConfigError
from goddard.pipelines.tables.files import File, Files

_logger: Final = logging.getLogger("goddard.pipelines")

_VERSION: Final = 1
# So many queries are asked what they wrote last into a table that has nothing written down.
_MAX_FOOTERS: Final = 16

Fold = Callable[[str], str]


class _MismatchError(Exception):
    """``place`` of a type, and the two that are to be one."""

    def __init__(self, place: str, there: DataType, now: DataType) -> None:
        super().__init__(place)
        self.place = place
        self.there = _words(there)
        self.now = _words(now)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns in the files of a table, and those in the names of its folders."""

    columns: StructType
    partition_by: tuple[str, ...]

    def taking(self, place: str, rows: "Layout", fold: Fold = str.lower) -> "Layout":
        """The layout with the columns that the rows bring; ConfigError if they do not fit.

        ``fold`` is what makes names the same.
        """
        if [*map(fold, self.partition_by)] != [*map(fold, rows.partition_by)]:
            there, now = (
                ", ".join(each) or "nothing" for each in (self.partition_by, rows.partition_by)
            )
            raise ConfigError(
                f"{place} is partitioned by {there}, and partitionBy says {now}; "
                "say the same, or write another table"
            )
        try:
            merged = _merged(self.columns, rows.columns, fold)
        except _MismatchError as error:
            raise ConfigError(
                f"{place} has the column {error.place} as {error.there}, and the rows have it as "
                f"{error.now}; cast it in a transform, or write another table"
            ) from error
        assert isinstance(merged, StructType)
        return Layout(merged, self.partition_by)


def layout_of(schema: StructType, partition_by: Sequence[str], fold: Fold = str.lower) -> Layout:
    """How a table of such rows looks."""
    in_folders = {fold(name) for name in partition_by}
    fields = [each for each in schema if fold(each.name) not in in_folders]
    plain = without_constraints(StructType(fields))
    assert isinstance(plain, StructType)
    return Layout(plain, tuple(partition_by))


def without_constraints(type_: DataType) -> DataType:
    """A type of which everything may be null, and nothing has remarks."""
    match type_:
        case StructType():
            return StructType(
                [StructField(each.name, without_constraints(each.dataType)) for each in type_]
            )
        case ArrayType():
            return ArrayType(without_constraints(type_.elementType))
        case MapType():
            return MapType(without_constraints(type_.keyType), without_constraints(type_.valueType))
        case _:
            return type_


def check_typed(type_: DataType, place: str = "") -> None:
    """ConfigError if something is null and never anything else.

    Files would say just that, and readers of them and of files with values fail.
    """
    match type_:
        case NullType():
            raise ConfigError(
                f"the column {place} is null without a type, which its values could not have "
                "later; say which one it is to have, as in cast(NULL AS string)"
            )
        case StructType():
            for field in type_:
                check_typed(field.dataType, f"{place}.{field.name}" if place else field.name)
        case ArrayType():
            check_typed(type_.elementType, f"{place}[]")
        case MapType():
            check_typed(type_.keyType, f"{place}[key]")
            check_typed(type_.valueType, f"{place}[value]")
        case _:
            pass


def _merged(there: DataType, now: DataType, fold: Fold, place: str = "") -> DataType:
    """What holds values of both types; they differ by fields of structs alone."""
    match there, now:
        case StructType(), StructType():
            added = {fold(each.name): each for each in now}
            fields = []
            for field in there:
                other = added.pop(fold(field.name), field)
                inner = f"{place}.{field.name}" if place else field.name
                merged = _merged(field.dataType, other.dataType, fold, inner)
                fields.append(StructField(field.name, merged))
            return StructType([*fields, *added.values()])
        case ArrayType(), ArrayType():
            return ArrayType(_merged(there.elementType, now.elementType, fold, f"{place}[]"))
        case MapType(), MapType():
            return MapType(
                _merged(there.keyType, now.keyType, fold, f"{place}[key]"),
                _merged(there.valueType, now.valueType, fold, f"{place}[value]"),
            )
        case _ if there == now:
            return there
        case _:
            raise _MismatchError(place, there, now)


def _words(type_: DataType) -> str:
    """A type as a cast takes it; what is inside of others would be too long."""
    return type_.simpleString().partition("<")[0]


class TableSchema:
    """What a table's columns are, as far as this process knows; looked up at the first batch."""

    def __init__(self, files: Files, own_folder: str) -> None:
        self._files = files
        self._own = own_folder
        self._folder = f"{own_folder}/schemas"
        self._known: Layout | None = None
        # To be noted before files are published, and the notes that were there before it.
        self._addition: tuple[Layout, list[str]] | None = None
        is_strict = files.spark.conf.get("spark.sql.caseSensitive") == "true"
        self._fold: Fold = str if is_strict else str.lower

    def admit(self, schema: StructType, partition_by: Sequence[str]) -> None:
        """ConfigError if the table cannot take such rows; what they add is still to be noted."""
        rows = layout_of(schema, partition_by, self._fold)
        check_typed(rows.columns)
        self._addition = None
        if self._known is not None and self._taking(self._known, rows) == self._known:
            return
        names = self._notes()
        known = self._layout(map(self._noted, names)) or self._by_footers() or rows
        taken = self._taking(known, rows)
        if names and taken == known:
            self._known = taken
        else:
            self._addition = (taken, names)

    def note(self) -> None:
        """Write down what the rows that were let in add, once it is sure that there are any.

        ConfigError if another query has noted what does not go with it since.
        """
        if self._addition is None:
            return
        layout, seen = self._addition
        self._write_note(layout, seen)
        self._known, self._addition = layout, None

    def _taking(self, known: Layout, rows: Layout) -> Layout:
        return known.taking(self._files.root, rows, self._fold)

    def _notes(self) -> list[str]:
        # What begins with a dot was being written when its process was killed.
        return [name for name in self._files.names(self._folder) if not name.startswith(".")]

    def _write_note(self, layout: Layout, seen: Sequence[str]) -> None:
        own = uuid.uuid4().hex
        text = {
            "version": _VERSION,
            "partitionBy": layout.partition_by,
            "columns": layout.columns.jsonValue(),
        }
        self._files.make_folder(self._folder)
        self._files.write_text(f"{self._folder}/{own}", json.dumps(text))
        # Another query may have done the same at the same time: one of the two sees the other.
        for name in self._notes():
            if name == own or name in seen:
                continue
            try:
                self._taking(self._noted(name), layout)
            except ConfigError:
                self._files.delete(f"{self._folder}/{own}")
                raise

    def _noted(self, name: str) -> Layout:
        path = f"{self._folder}/{name}"
        try:
            found: Any = json.loads(self._files.read_text(path))
            if found["version"] != _VERSION:
                raise ConfigError(
                    f"{self._files.full(path)} is of version {found['version']}, written by a "
                    "newer Goddard"
                )
            columns = StructType.fromJson(found["columns"])
            partition_by = tuple(str(each) for each in found["partitionBy"])
        except (ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
            raise ConfigError(
                f"{self._files.full(path)} is damaged; delete it, and the table's files tell"
            ) from error
        return layout_of(columns, partition_by, self._fold)

    def _by_footers(self) -> Layout | None:
        """What the newest file of every query says; of as many as are asked."""
        found = []
        for file in newest_of_each_query(self._data_files())[:_MAX_FOOTERS]:
            try:
                schema = self._files.spark.read.parquet(self._files.to_read(file.path)).schema
            except PySparkException as error:
                # Gone since, as after a merge; or no Parquet, and a reader's trouble anyway.
                _logger.warning("%s says nothing of its columns: %s", file.path, error)
                continue
            found.append(layout_of(schema, folder_columns(file.folder), self._fold))
        return self._layout(found)

    def _data_files(self) -> list[File]:
        return [
            file
            for file in self._files.walk("")
            if not file.path.startswith(f"{self._own}/") and not file.name.startswith(("_", "."))
        ]

    def _layout(self, found: Iterable[Layout]) -> Layout | None:
        """All columns; where types differ already, the first counts."""
        whole: Layout | None = None
        for each in found:
            try:
                whole = each if whole is None else self._taking(whole, each)
            except ConfigError as error:
                _logger.warning("not all files of the table agree: %s", error)
        return whole


def newest_of_each_query(files: Iterable[File]) -> list[File]:
    """The file that each query wrote last, by its name; the newest first."""
    newest: dict[str, File] = {}
    for file in files:
        query = file.name.split("-")[1] if file.name.count("-") > 1 else ""
        if query not in newest or newest[query].modified_ms <= file.modified_ms:
            newest[query] = file
    return sorted(newest.values(), key=lambda file: -file.modified_ms)


def folder_columns(folder: str) -> list[str]:
    """The columns that names of folders are about: ``day=2026-01-31/city=a``."""
    return [unquote(part.partition("=")[0]) for part in folder.split("/") if "=" in part]
