"""Files through Hadoop's FileSystem, so that every path works that Spark can write to.

Only the driver uses it, from one thread at a time. Paths are relative to the root, with "/".
"""

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from pyspark.sql import SparkSession

from goddard.errors import ConfigError
from goddard.pipelines.errors import root_cause

_MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
_PATTERN_CHARACTERS: Final = re.compile(r"[\\*?\[\]{}]")


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size_bytes: int

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Files:
    """A folder and what is in it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        # Spark's Python has no public way to Hadoop's files.
        self._jvm: Any = attrgetter("_jvm")(spark)
        context: Any = attrgetter("_jsc")(spark.sparkContext)
        path = self._jvm.org.apache.hadoop.fs.Path(root)
        self._system: Any = path.getFileSystem(context.hadoopConfiguration())
        self._root: Any = self._system.makeQualified(path)
        self._is_local = str(self._root.toUri().getScheme()) == "file"

    @property
    def root(self) -> str:
        return str(self._root.toString())

    def full(self, path: str) -> str:
        """The absolute path."""
        return f"{self.root}/{path}" if path else self.root

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.full(path))

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._path(path)))

    def make_folder(self, path: str) -> None:
        self._check(self._system.mkdirs(self._path(path)), "make", path)

    def delete(self, path: str) -> None:
        """Delete a file or a folder with its content, if it exists."""
        target = self._path(path)
        if not self._system.delete(target, True) and self._system.exists(target):
            raise OSError(f"{self.full(path)} cannot be deleted")

    def rename(self, source: str, target: str) -> None:
        self._check(self._system.rename(self._path(source), self._path(target)), "make", target)

    def make_root(self) -> None:
        """Create the root folder; ConfigError if that is not possible."""
        try:
            self.make_folder("")
        except Exception as error:
            # Every file system has errors of its own.
            raise ConfigError(
                f"{self.root} cannot be written to ({root_cause(error)}); is the path right, "
                "and may this user write there?"
            ) from error

    def _check(self, is_done: bool, verb: str, path: str) -> None:
        if not is_done:
            raise OSError(f"cannot {verb} {self.full(path)}")

    def walk(self, folder: str) -> list[File]:
        """The files in a folder and its subfolders; none if it does not exist."""
        target = self._path(folder)
        if not self._system.exists(target):
            return []
        found = []
        prefix = len(self.root) + 1
        every = self._system.listFiles(target, True)
        while every.hasNext():
            status = every.next()
            path = str(status.getPath().toString())[prefix:]
            found.append(File(path, int(status.getLen())))
        return sorted(found, key=lambda file: file.path)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it does not exist."""
        target = self._path(folder)
        if not self._system.exists(target):
            return []
        return sorted(str(each.getPath().getName()) for each in self._system.listStatus(target))

    def parquet_rows(self, path: str) -> int:
        """How many rows a Parquet file has, by its footer."""
        parquet = self._jvm.org.apache.parquet.hadoop
        file = parquet.util.HadoopInputFile.fromPath(self._path(path), self._system.getConf())
        reader = parquet.ParquetFileReader.open(file)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def write_text(self, path: str, text: str) -> None:
        """Create a file with all of its text or not at all; existing files are not replaced."""
        folder, _, name = path.rpartition("/")
        fresh = f"{folder}/.{name}.tmp" if folder else f".{name}.tmp"
        # Hadoop leaves a file of checksums beside each that it writes to a disk.
        system = self._system.getRawFileSystem() if self._is_local else self._system
        stream = system.create(self._path(fresh), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        self.rename(fresh, path)

    def read_text(self, path: str) -> str:
        target = self._path(path)
        size_bytes = int(self._system.getFileStatus(target).getLen())
        if size_bytes > _MAX_TEXT_BYTES:
            raise OSError(f"{self.full(path)} is too large, {size_bytes} bytes")
        stream = self._system.open(target)
        try:
            return bytes(stream.readNBytes(size_bytes)).decode()
        finally:
            stream.close()


def literal(path: str) -> str:
    """A pattern that matches this path alone: Spark reads patterns, and writes paths."""
    return _PATTERN_CHARACTERS.sub(r"\\\g<0>", path)
