"""Making many small files durable at once, as the queues of a broker with many topics are.

A sync of one file costs a write of the file system's journal, so thousands of them take seconds. A
sync of the whole file system (``syncfs``) does the same for all of them in one go; where there is
none, threads sync the files, whose journal writes the kernel then shares. Runs in the thread that
saves the checkpoint.
"""

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from goddard.environment.files import Files
from goddard.environment.threads import NewExecutor
from goddard.store.errors import disk_errors

# From so many on, a sync of everything is quicker whatever else the disk has to write.
MANY_FILES: Final = 64
_THREADS: Final = 8


def sync_path(files: Files, path: Path) -> None:
    """Put a file, or the names in a directory, on the disk; raises StoreDiskError."""
    with disk_errors("sync", path), suppress(FileNotFoundError):  # cleaning may delete it
        facts = files.facts(path)
        if facts is None:
            return
        if facts.is_directory:
            files.sync_directory(path)
        else:
            files.sync_path(path)


class DirectorySync:
    """Syncs files and directories below one directory, all of it on one file system.

    The directory stays open from ``open`` on: a sync of the file system tells of failed writes only
    to descriptors that are older than the failure.
    """

    def __init__(self, files: Files, directory: Path, new_executor: NewExecutor) -> None:
        self._files = files
        self._new_executor = new_executor
        self._directory = directory
        self._fd = -1

    def open(self) -> None:
        if self._fd < 0:
            with disk_errors("open", self._directory):
                self._fd = self._files.open(self._directory, writable=False)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def sync_everything(self) -> bool:
        """Sync the whole file system; False where that cannot be, and paths have to be synced."""
        with disk_errors("sync", self._directory):
            return self._fd >= 0 and self._files.sync_file_system(self._fd)

    def sync(self, paths: Collection[Path]) -> None:
        """As ``sync_path``, for all of them."""
        if len(paths) < MANY_FILES:
            for path in paths:
                sync_path(self._files, path)
            return
        with self._new_executor(_THREADS, "store-sync") as threads:
            for _ in threads.map(partial(sync_path, self._files), paths):
                pass
