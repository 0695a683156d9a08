"""Tables of plain Parquet files, exactly once: a batch that is repeated replaces its own files.

    <table>/day=2026-01-31/part-<query>-<batch>-<n>.snappy.parquet
    <table>/_goddard/<query>/staging/             what Spark is writing
    <table>/_goddard/<query>/batches/<batch>-<id> the files that an attempt at the batch publishes
    <table>/_goddard/<query>/replaced/<batch>/    the files that a batch made out of date
    <table>/_goddard/<query>/merges/<id>/         a merge of small files: its plan and its result
    <table>/_goddard/schemas/                     what the columns are, see ``schemas``

Spark writes into the staging folder. Then the names of the files-to-be are written down, and only
then the files are renamed into their places. A process may be killed at any point: the next attempt
at the batch finds the list, deletes what is on it, and publishes anew. Lists of earlier batches are
of no use any more, for Spark starts a batch only when the one before it is committed.

Where rows take the place of others (``keys``), a batch writes anew the folders that it has rows
for, as far as they are of its query. The files that were there are set aside and not deleted before
the next batch: another attempt at this one puts them back first.

Readers skip names that begin with an underscore. One that reads while a batch is published may see
a part of it; Iceberg and Delta tables do not have this.
"""

import json
import logging
import re
import uuid
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from goddard.pipelines.tables.batches import Batch
from goddard.pipelines.tables.files import File, Files
from goddard.pipelines.tables.schemas import TableSchema

_logger: Final = logging.getLogger("goddard.pipelines")

_OWN: Final = "_goddard"
_SMALL_BYTES: Final = 32 * 1024 * 1024
_MERGED_BYTES: Final = 128 * 1024 * 1024
_LEAST_FILES: Final = 4
_MERGE_EVERY_BATCHES: Final = 32
_LIST: Final = re.compile(r"(\d{10})-[0-9a-f]{32}")


class ParquetTable:
    """One table; see the module's text. Used by one thread at a time."""

    def __init__(
        self,
        files: Files,
        *,
        partition_by: tuple[str, ...] = (),
        options: dict[str, str] | None = None,
        compacts: bool = False,
        replaces: bool = False,
        keys: tuple[str, ...] = (),
    ) -> None:
        """``replaces``: every batch is the whole table, as far as this query wrote it.

        ``keys``: a row takes the place of the one that a batch before wrote with the same; those
        that partition the table are among them.
        """
        self._files = files
        self._partition_by = partition_by
        self._options = options or {}
        self._compacts = compacts
        self._replaces = replaces
        in_folders = {name.lower() for name in partition_by}
        self._brings_up_to_date = bool(keys)
        # Rows of one folder agree in the others already.
        self._keys = tuple(name for name in keys if name.lower() not in in_folders)
        self._last: Batch | None = None
        self._schema = TableSchema(files, _OWN)

    def write(self, frame: DataFrame, batch: Batch) -> bool:
        """Publish the rows of a batch in place of those of its earlier attempts.

        ConfigError, and the table is as it was, if its columns are others than the rows'.
        """
        self._schema.admit(frame.schema, self._partition_by)
        self._check_order(batch)
        own = _own_folder(batch)
        self._finish_merges(batch)
        self._withdraw(batch)
        if self._compacts and batch.number and batch.number % _MERGE_EVERY_BATCHES == 0:
            self._merge_small_files(batch)
        staging = f"{own}/staging"
        self._files.delete(staging)
        writer = frame.write.mode("overwrite").options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.parquet(self._files.full(staging))
        replaced = self._stage_the_rest(staging, batch) if self._brings_up_to_date else []
        self._schema.note()
        self._publish(staging, batch)
        self._set_aside(replaced, batch)
        if self._replaces:
            for file in self._data_files():
                if batch.follows(file.name):
                    self._files.delete(file.path)
        self._last = batch
        return True

    def withdraw(self, batch: Batch) -> None:
        """Undo earlier attempts at a batch that has no rows this time."""
        self._check_order(batch)
        self._finish_merges(batch)
        self._withdraw(batch)
        self._last = batch

    def finish(self) -> None:
        """After the last batch: merge small files of those before it, if that is wanted.

        Not those of the last itself: that it was committed is known when the next one starts.
        """
        if self._compacts and self._last is not None and self._last.is_of_stream:
            self._merge_small_files(self._last)

    # Batches

    def _check_order(self, batch: Batch) -> None:
        """ConfigError if the query has written later batches: its checkpoint is not the newest.

        The rows of those batches would be there twice.
        """
        names = self._files.names(f"{_own_folder(batch)}/batches")
        last = max((int(found[1]) for name in names if (found := _LIST.fullmatch(name))), default=0)
        if batch.is_of_stream and last > batch.number:
            batch.is_written(self._files.root, last, None)

    def _publish(self, staging: str, batch: Batch) -> None:
        moves: list[tuple[str, str]] = []
        for file in _visible(self._files.walk(staging)):
            folder = file.folder[len(staging) + 1 :]
            suffix = file.name.partition(".")[2]
            name = batch.file_name(len(moves), suffix)
            moves.append((file.path, f"{folder}/{name}" if folder else name))
        if moves:
            lists = f"{_own_folder(batch)}/batches"
            self._files.make_folder(lists)
            targets = "\n".join(target for _, target in moves)
            self._files.write_text(f"{lists}/{batch.number:010d}-{uuid.uuid4().hex}", targets)
        for folder in sorted({target.rpartition("/")[0] for _, target in moves}):
            self._files.make_folder(folder)
        for source, target in moves:
            self._files.rename(source, target)
        self._files.delete(staging)

    def _stage_the_rest(self, staging: str, batch: Batch) -> list[File]:
        """Add the rows of the staged folders that stay as they are; the files they are from."""
        replaced: list[File] = []
        staged: dict[str, list[str]] = {}
        for file in _visible(self._files.walk(staging)):
            staged.setdefault(file.folder[len(staging) + 1 :], []).append(file.path)
        for folder, paths in staged.items():
            old = [
                file
                for file in _visible(self._files.walk(folder))
                if file.folder == folder and batch.follows(file.name)
            ]
            replaced += old
            if not old or not self._keys:
                continue
            changed = self._read(paths).alias("changed")
            rest = self._read([file.path for file in old]).alias("old")
            same = [sf.col(f"old.{key}").eqNullSafe(sf.col(f"changed.{key}")) for key in self._keys]
            parts = 1 + sum(file.size_bytes for file in old) // _MERGED_BYTES
            rest = rest.join(changed, same, "left_anti").coalesce(parts)
            # Beside what is staged already.
            place = f"{staging}/{folder}" if folder else staging
            rest.write.mode("append").options(**self._options).parquet(self._files.full(place))
        return replaced

    def _read(self, paths: list[str]) -> DataFrame:
        """Files of one folder, whatever columns each of them has."""
        full = [self._files.to_read(path) for path in paths]
        return self._files.spark.read.option("mergeSchema", "true").parquet(*full)

    def _set_aside(self, files: list[File], batch: Batch) -> None:
        aside = f"{_own_folder(batch)}/replaced/{batch.number:010d}"
        for folder in sorted({file.folder for file in files}):
            self._files.make_folder(f"{aside}/{folder}" if folder else aside)
        for file in files:
            self._files.rename(file.path, f"{aside}/{file.path}")

    def _put_back(self, batch: Batch) -> None:
        """Undo what earlier attempts at the batch set aside; earlier batches are done for good."""
        replaced, current = f"{_own_folder(batch)}/replaced", f"{batch.number:010d}"
        for name in self._files.names(replaced):
            place = f"{replaced}/{name}"
            if name == current:
                for file in self._files.walk(place):
                    self._files.rename(file.path, file.path[len(place) + 1 :])
            if name <= current:
                self._files.delete(place)

    def _withdraw(self, batch: Batch) -> None:
        """Undo what earlier attempts at the batch did, and forget what is out of date."""
        lists = f"{_own_folder(batch)}/batches"
        for name in self._files.names(lists):
            matched = _LIST.fullmatch(name)
            if matched is None:
                continue
            number = int(matched[1])
            if number == batch.number:
                for path in self._files.read_text(f"{lists}/{name}").splitlines():
                    # Whatever a list says: files of other batches are not ours to delete.
                    if batch.owns(path.rpartition("/")[2]):
                        self._files.delete(path)
            if number == batch.number or (batch.is_of_stream and number < batch.number):
                self._files.delete(f"{lists}/{name}")
        if self._brings_up_to_date:
            self._put_back(batch)

    def _data_files(self) -> list[File]:
        return [file for file in self._files.walk("") if not file.path.startswith(f"{_OWN}/")]

    # Small files

    def _merge_small_files(self, batch: Batch) -> None:
        """Merge what this query wrote before a batch, folder by folder."""
        self._finish_merges(batch)
        by_folder: dict[str, list[File]] = {}
        for file in self._data_files():
            is_own = batch.follows(file.name) or file.name.startswith(f"merged-{batch.query}-")
            if is_own and file.size_bytes < _SMALL_BYTES:
                by_folder.setdefault(file.folder, []).append(file)
        for folder, small in by_folder.items():
            for group in groups_to_merge(small):
                try:
                    self._merge(batch, folder, group)
                except PySparkException as error:
                    # The table is as good as before; only its files stay small.
                    _logger.warning("files in %s are not merged: %s", folder, error)

    def _merge(self, batch: Batch, folder: str, group: list[File]) -> None:
        merge_id = uuid.uuid4().hex
        place = f"{_own_folder(batch)}/merges/{merge_id}"
        frame = self._read([file.path for file in group])
        one = frame.coalesce(1).write.options(**self._options).option("maxRecordsPerFile", 0)
        one.parquet(self._files.full(f"{place}/data"))
        (made,) = _visible(self._files.walk(f"{place}/data"))
        name = f"merged-{batch.query}-{merge_id}.{made.name.partition('.')[2]}"
        plan = {
            "made": made.path,
            "target": f"{folder}/{name}" if folder else name,
            "merged": [file.path for file in group],
        }
        self._files.write_text(f"{place}/plan", json.dumps(plan))
        self._carry_out(place)

    def _finish_merges(self, batch: Batch) -> None:
        """A merge with a plan is carried out to its end; one without has changed nothing yet."""
        merges = f"{_own_folder(batch)}/merges"
        for name in self._files.names(merges):
            place = f"{merges}/{name}"
            if self._files.exists(f"{place}/plan"):
                self._carry_out(place)
            else:
                self._files.delete(place)

    def _carry_out(self, place: str) -> None:
        plan: dict[str, Any] = json.loads(self._files.read_text(f"{place}/plan"))
        if self._files.exists(plan["made"]):
            self._files.rename(plan["made"], plan["target"])
        for path in plan["merged"]:
            self._files.delete(path)
        self._files.delete(place)


def _visible(files: list[File]) -> list[File]:
    """Those that readers see."""
    return [file for file in files if not file.name.startswith(("_", "."))]


def _own_folder(batch: Batch) -> str:
    return f"{_OWN}/{batch.query}"


def groups_to_merge(files: list[File]) -> list[list[File]]:
    """Files of a folder that are worth a merge, in groups that make one file each."""
    groups: list[list[File]] = []
    size_bytes = _MERGED_BYTES
    for file in files:
        if size_bytes + file.size_bytes > _MERGED_BYTES:
            groups.append([])
            size_bytes = 0
        groups[-1].append(file)
        size_bytes += file.size_bytes
    return [group for group in groups if len(group) >= _LEAST_FILES]
