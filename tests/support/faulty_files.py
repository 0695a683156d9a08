"""A file layer with injected failures, and with power cuts that lose unsynced data.

``FaultyFiles`` works on a real directory. It keeps a copy of what each sync made durable: file
contents by ``sync``, names by ``sync_directory``. ``crash`` restores the directory to that state,
as after a power cut, and every later call through this object fails. For small files only.
"""

import errno
import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from goddard.environment.files import Data, DiskUsage, FileFacts, SystemFiles
from tests.support.syncs import ThreadSyncs

PAGE_BYTES = 4096

# (path, page number) to whether a written but unsynced page survives a crash.
KeepPage: TypeAlias = Callable[[Path, int], bool]


@dataclass(slots=True)
class Fault:
    """Fails matching calls: the first ``skip`` calls succeed, the next ``count`` fail."""

    operation: str
    code: int
    skip: int = 0
    count: int = 1
    path_part: str = ""
    short_bytes: int = 0  # a failing write still writes this number of bytes
    wait: Callable[[], None] | None = None  # called instead of failing, to delay the call

    def applies(self, operation: str, path: Path) -> bool:
        if operation != self.operation or self.count == 0 or self.path_part not in str(path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.count -= 1
        return True


class FaultyFiles(SystemFiles):
    """Wraps the system's files below ``root``."""

    __slots__ = (
        "_content",
        "_names",
        "_paths",
        "calls",
        "faults",
        "has_file_system_sync",
        "is_crashed",
        "root",
        "used",
    )

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, Path]] = []
        self.is_crashed = False
        self.has_file_system_sync = True
        self.used: float | None = None  # reported instead of the real disk usage ratio
        self._paths: dict[int, Path] = {}
        self._content: dict[int, bytes] = {}  # by inode
        self._names: dict[Path, dict[str, int]] = {}  # by directory: name and inode
        if root.exists():
            for directory, _, _ in os.walk(root):
                self._remember_names(Path(directory))
                for path in Path(directory).iterdir():
                    if path.is_file():
                        self._content[path.stat().st_ino] = path.read_bytes()

    def fail(
        self,
        operation: str,
        code: int = errno.EIO,
        *,
        skip: int = 0,
        count: int = 1,
        path_part: str = "",
        short_bytes: int = 0,
    ) -> Fault:
        """Let calls of an operation fail: open, pread, pwrite, truncate, allocate, map, sync, …"""
        fault = Fault(operation, code, skip, count, path_part, short_bytes)
        self.faults.append(fault)
        return fault

    def slow(
        self,
        operation: str,
        wait: Callable[[], None],
        *,
        skip: int = 0,
        count: int = 1,
        path_part: str = "",
    ) -> Fault:
        """Let calls of an operation call ``wait`` first, which may block or advance a clock."""
        fault = Fault(operation, 0, skip, count, path_part, wait=wait)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()

    def count(self, operation: str, path_part: str = "") -> int:
        return sum(1 for name, path in self.calls if name == operation and path_part in str(path))

    def _enter(self, operation: str, path: Path) -> Fault | None:
        if self.is_crashed:
            raise OSError(errno.EIO, "the machine has crashed")
        self.calls.append((operation, path))
        for fault in self.faults:
            if fault.applies(operation, path):
                if fault.wait is not None:
                    fault.wait()
                    continue
                if not fault.short_bytes:
                    raise OSError(fault.code, os.strerror(fault.code))
                return fault
        return None

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self._enter("open", path)
        fd = super().open(path, create=create, writable=writable)
        self._paths[fd] = path
        return fd

    def create(self, path: Path, size: int) -> int:
        self._enter("open", path)
        self._enter("truncate", path)
        fd = super().create(path, size)
        self._paths[fd] = path
        return fd

    def lock(self, path: Path) -> int:
        fd = super().lock(path)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._enter("pread", self._paths[fd])
        return super().pread(fd, size, position)

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        fault = self._enter("pwrite", self._paths[fd])
        if fault is not None:
            super().pwrite(fd, bytes(data[: fault.short_bytes]), position)
            raise OSError(fault.code, os.strerror(fault.code))
        super().pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        self._enter("truncate", self._paths[fd])
        super().truncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._enter("allocate", self._paths[fd])
        super().allocate(fd, position, size)

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        self._enter("map", self._paths[fd])
        return super().map(fd, size, writable=writable)

    def sync(self, fd: int) -> None:
        self._enter("sync", self._paths[fd])
        self._content[os.fstat(fd).st_ino] = self._paths[fd].read_bytes()

    def open_syncs(self) -> ThreadSyncs:
        return ThreadSyncs(self.sync)

    def sync_path(self, path: Path) -> None:
        self._enter("sync", path)
        self._content[path.stat().st_ino] = path.read_bytes()

    def sync_directory(self, path: Path) -> None:
        self._enter("sync_directory", path)
        self._remember_names(path)

    def sync_file_system(self, fd: int) -> bool:
        self._enter("sync_file_system", self._paths[fd])
        if not self.has_file_system_sync:
            return False
        for directory, _, names in os.walk(self.root):
            self._remember_names(Path(directory))
            for name in names:
                path = Path(directory, name)
                self._content[path.stat().st_ino] = path.read_bytes()
        return True

    def _remember_names(self, directory: Path) -> None:
        self._names[directory] = {item.name: item.stat().st_ino for item in directory.iterdir()}

    def make_directories(self, path: Path) -> None:
        self._enter("make_directories", path)
        super().make_directories(path)

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename", source)
        self._keep_inode(target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        self._keep_inode(path)
        super().unlink(path)

    def _keep_inode(self, path: Path) -> None:
        """Keep another link to a file that loses its name, so that its inode is not reused."""
        if path.exists():
            folder = self.root.with_name(f"{self.root.name}.unlinked")
            folder.mkdir(exist_ok=True)
            (folder / str(len(list(folder.iterdir())))).hardlink_to(path)

    def remove_directory(self, path: Path) -> None:
        self._enter("remove_directory", path)
        super().remove_directory(path)

    def names(self, path: Path) -> list[str]:
        self._enter("names", path)
        return super().names(path)

    def contents(self, path: Path) -> list[tuple[str, FileFacts]]:
        self._enter("contents", path)
        return super().contents(path)

    def facts(self, path: Path) -> FileFacts | None:
        self._enter("facts", path)
        return super().facts(path)

    def usage(self, path: Path) -> DiskUsage:
        self._enter("usage", path)
        if self.used is None:
            return super().usage(path)
        used = int(self.used * 1000)
        return DiskUsage(1000, used, 1000 - used)

    def crash(self, keep_page: KeepPage | None = None) -> None:
        """Simulate a power cut. ``keep_page`` selects unsynced pages that survive."""
        self.is_crashed = True
        written = {
            path.stat().st_ino: path.read_bytes() for path in self.root.rglob("*") if path.is_file()
        }
        names = dict(self._names)
        directories = {path.stat().st_ino for path in self.root.rglob("*") if path.is_dir()}
        shutil.rmtree(self.root)
        self.root.mkdir()
        pending = [self.root]
        while pending:
            directory = pending.pop()
            for name, inode in names.get(directory, {}).items():
                path = directory / name
                if inode in directories:
                    path.mkdir()
                    pending.append(path)
                else:
                    durable = self._content.get(inode, b"")
                    path.write_bytes(
                        durable
                        if keep_page is None
                        else _mix(path, durable, written.get(inode, durable), keep_page)
                    )


def _mix(path: Path, durable: bytes, written: bytes, keep_page: KeepPage) -> bytes:
    result = bytearray(durable.ljust(len(written), b"\0")[: len(written)])
    for number in range(-(-len(written) // PAGE_BYTES)):
        page = slice(number * PAGE_BYTES, (number + 1) * PAGE_BYTES)
        if result[page] != written[page] and keep_page(path, number):
            result[page] = written[page]
    return bytes(result)
