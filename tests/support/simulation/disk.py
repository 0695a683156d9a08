"""Disks in memory: a power cut loses what was not synced, syncs fail, space runs out.

Contents are kept by page. For every page that was written since the last sync of its file, the disk
knows the durable content; a power cut brings that back, or keeps the page, as the seed says. A sync
that fails leaves its pages as the kernel does: marked clean, but not on the disk. Names are durable
once their directory was synced. ``DiskFiles`` is what one process sees of the disk.
"""

import errno
import mmap
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from goddard.environment.files import Data, DiskUsage, FileFacts
from tests.support.simulation.loop import Life, SimulatedLoop
from tests.support.simulation.trace import Trace

_PAGE: Final = 4096
_CAPACITY: Final = 1 << 40


class Inode:
    """One file or directory. Its bytes are in a memory file, so it can be mapped."""

    __slots__ = ("dirty", "durable_size", "is_directory", "lost", "memory", "modified_ms", "size")

    def __init__(self, *, is_directory: bool = False) -> None:
        self.is_directory = is_directory
        self.size = 0
        self.durable_size = 0
        self.memory = -1 if is_directory else os.memfd_create("simulated")
        self.modified_ms = 0
        # The durable content of pages that differ from it; of those in ``lost`` the kernel thinks
        # that they are clean.
        self.dirty: dict[int, bytes] = {}
        self.lost: dict[int, bytes] = {}

    def grow(self, size: int) -> None:
        """The memory never shrinks, because it may be mapped."""
        if os.fstat(self.memory).st_size < size:
            os.ftruncate(self.memory, size)
        self.size = max(self.size, size)

    def page(self, number: int) -> bytes:
        return os.pread(self.memory, _PAGE, number * _PAGE)

    def touch(self, start: int, end: int) -> None:
        """Remember the durable content of the pages that change."""
        for number in range(start // _PAGE, -(-end // _PAGE)):
            if number in self.dirty:
                continue
            lost = self.lost.pop(number, None)
            self.dirty[number] = self.page(number) if lost is None else lost

    def lose(self, keeps: Callable[[], bool]) -> None:
        """Go back to what is durable, but for pages that happened to be written."""
        for number, durable in {**self.lost, **self.dirty}.items():
            if not (number in self.dirty and keeps()):
                size = len(self.page(number))
                os.pwrite(self.memory, durable.ljust(size, b"\0")[:size], number * _PAGE)
        self.dirty.clear()
        self.lost.clear()
        if self.size != self.durable_size and not keeps():
            self.size = self.durable_size
        self.durable_size = self.size


class Disk:
    """The disk of one machine; it outlives the processes."""

    def __init__(self, random: Random, trace: Trace, loop: SimulatedLoop, name: str) -> None:
        self.random = random
        self.trace = trace
        self.loop = loop
        self.name = name
        self.names: dict[str, dict[str, Inode]] = {"/": {}}
        self._durable: dict[str, dict[str, Inode]] = {"/": {}}
        self.locks: dict[str, Life] = {}
        self.is_full = False
        self.failing_syncs = 0
        self.sync_seconds = random.choice((0.001, 0.005, 0.05))
        self._memories: list[int] = []

    def new_inode(self) -> Inode:
        inode = Inode()
        self._memories.append(inode.memory)
        return inode

    def close(self) -> None:
        """Give the memory back."""
        for memory in self._memories:
            os.close(memory)
        self._memories.clear()

    def find(self, path: Path) -> Inode | None:
        if path == path.parent:
            return Inode(is_directory=True)
        return self.names.get(str(path.parent), {}).get(path.name)

    def sync_names(self, directory: str) -> None:
        self._durable[directory] = dict(self.names.get(directory, {}))

    def sync_everything(self) -> None:
        for directory in self.names:
            self.sync_names(directory)
        for names in self.names.values():
            for inode in names.values():
                sync_inode(inode)

    def lose_power(self) -> None:
        """Only what is durable is left, and some of what was being written."""
        random = self.random
        for directory in list(self.names):
            if random.random() < 0.5:
                self.names[directory] = dict(self._durable.get(directory, {}))
        reached = {"/"}
        pending = ["/"]
        while pending:
            directory = pending.pop()
            for name, inode in self.names.get(directory, {}).items():
                if inode.is_directory:
                    path = str(Path(directory, name))
                    reached.add(path)
                    pending.append(path)
                    self.names.setdefault(path, {})
        self.names = {path: names for path, names in self.names.items() if path in reached}
        likely = random.choice((0.0, 0.5, 0.9))
        for names in self.names.values():
            for inode in names.values():
                inode.lose(lambda: random.random() < likely)
        self._durable = {path: dict(names) for path, names in self.names.items()}

    def free(self) -> None:
        self.is_full = False

    def sync_fails(self) -> bool:
        if self.failing_syncs > 0:
            self.failing_syncs -= 1
            return True
        return False


def sync_inode(inode: Inode) -> None:
    inode.dirty.clear()
    inode.durable_size = inode.size


class DiskFiles:
    """The file layer of one process. After its end every call fails."""

    def __init__(self, disk: Disk, life: Life, now_ms: Callable[[], int]) -> None:
        self.disk = disk
        self._life = life
        self._now_ms = now_ms
        self._open: dict[int, tuple[Inode, str]] = {}

    def _enter(self, operation: str, path: object) -> None:
        if self._life.is_over:
            raise OSError(errno.EIO, "this process has ended")
        self.disk.trace.add(f"{self.disk.name} {operation} {path}")

    def _existing(self, path: Path) -> Inode:
        inode = self.disk.find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _add(self, path: Path, inode: Inode) -> None:
        names = self.disk.names.get(str(path.parent))
        if names is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        names[path.name] = inode
        inode.modified_ms = self._now_ms()

    def _opened(self, inode: Inode, path: Path) -> int:
        fd = self.disk.loop.next_fd()
        self._open[fd] = inode, str(path)
        return fd

    def _check_room(self) -> None:
        if self.disk.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # Files

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self._enter("open", path)
        inode = self.disk.find(path)
        if inode is None:
            if not create:
                self._existing(path)
            self._check_room()
            inode = self.disk.new_inode()
            self._add(path, inode)
        return self._opened(inode, path)

    def create(self, path: Path, size: int) -> int:
        self._enter("create", path)
        self._check_room()
        inode = self.disk.new_inode()
        inode.grow(size)
        inode.durable_size = size  # the name never stands for a smaller file
        self._add(path, inode)
        return self._opened(inode, path)

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        inode = self._open[fd][0]
        end = min(position + size, inode.size)
        if self._life.is_over:
            raise OSError(errno.EIO, "this process has ended")
        return os.pread(inode.memory, end - position, position) if end > position else b""

    def is_cached(self, fd: int, position: int) -> bool:
        return True

    def will_need(self, fd: int, position: int, size: int) -> None:
        """Everything is in memory."""

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        inode, path = self._open[fd]
        data = bytes(data)
        self._enter("pwrite", f"{path} {position} {len(data)} {zlib.crc32(data)}")
        end = position + len(data)
        if end > inode.size or self.disk.is_full:
            self._check_room()
        inode.touch(position, end)
        inode.grow(end)
        os.pwrite(inode.memory, data, position)
        inode.modified_ms = self._now_ms()

    def truncate(self, fd: int, size: int) -> None:
        inode, path = self._open[fd]
        self._enter("truncate", f"{path} {size}")
        if size < inode.size:
            inode.touch(size, inode.size)
            os.pwrite(inode.memory, bytes(inode.size - size), size)
        inode.grow(size)
        inode.size = size

    def allocate(self, fd: int, position: int, size: int) -> None:
        inode, path = self._open[fd]
        self._enter("allocate", path)
        self._check_room()
        inode.grow(position + size)

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return mmap.mmap(self._open[fd][0].memory, size, access=access)

    # Syncs

    def sync(self, fd: int) -> None:
        inode, path = self._open[fd]
        self._sync(inode, path)

    def _sync(self, inode: Inode, path: str) -> None:
        self._enter("sync", path)
        if self.disk.sync_fails():
            inode.lost.update(inode.dirty)
            inode.dirty.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_inode(inode)

    def open_syncs(self) -> "DiskSyncs":
        return DiskSyncs(self)

    def inode_of(self, fd: int) -> tuple[Inode, str]:
        return self._open[fd]

    def sync_path(self, path: Path) -> None:
        self._sync(self._existing(path), str(path))

    def sync_directory(self, path: Path) -> None:
        self._enter("sync_directory", path)
        if self.disk.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.disk.sync_names(str(path))

    def sync_file_system(self, fd: int) -> bool:
        self._enter("sync_file_system", "")
        if self.disk.sync_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.disk.sync_everything()
        return True

    # Names

    def make_directories(self, path: Path) -> None:
        self._enter("make_directories", path)
        for directory in (*reversed(path.parents), path):
            if directory != directory.parent and self.disk.find(directory) is None:
                self._add(directory, Inode(is_directory=True))
                self.disk.names[str(directory)] = {}

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename", f"{source} {target}")
        inode = self._existing(source)
        self._add(target, inode)
        del self.disk.names[str(source.parent)][source.name]
        if inode.is_directory:
            for old in [old for old in self.disk.names if Path(old).is_relative_to(source)]:
                new = target / Path(old).relative_to(source)
                self.disk.names[str(new)] = self.disk.names.pop(old)

    def link(self, source: Path, target: Path) -> None:
        self._enter("link", target)
        inode = self._existing(source)
        if self.disk.find(target) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._add(target, inode)

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        self._existing(path)
        del self.disk.names[str(path.parent)][path.name]

    def remove_directory(self, path: Path) -> None:
        self._enter("remove_directory", path)
        if self.disk.names.get(str(path)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._existing(path)
        self.disk.names.pop(str(path), None)
        del self.disk.names[str(path.parent)][path.name]

    def names(self, path: Path) -> list[str]:
        return sorted(self.disk.names.get(str(path), {}))

    def contents(self, path: Path) -> list[tuple[str, FileFacts]]:
        return [
            (name, _facts_of(inode))
            for name, inode in sorted(self.disk.names.get(str(path), {}).items())
        ]

    def facts(self, path: Path) -> FileFacts | None:
        if self._life.is_over:
            raise OSError(errno.EIO, "this process has ended")
        inode = self.disk.find(path)
        return None if inode is None else _facts_of(inode)

    def data_start(self, fd: int, position: int, end: int) -> int:
        return position

    def usage(self, path: Path) -> DiskUsage:
        # Not more when the disk is full: cleaning would delete what the checker expects.
        return DiskUsage(_CAPACITY, _CAPACITY // 4, _CAPACITY - _CAPACITY // 4)

    def lock(self, path: Path) -> int:
        fd = self.open(path, create=True)
        holder = self.disk.locks.get(str(path))
        if holder is not None and not holder.is_over:
            raise BlockingIOError(errno.EAGAIN, "in use by another broker: its lock is taken")
        self.disk.locks[str(path)] = self._life
        return fd

    def unlock(self, fd: int) -> None:
        self.disk.locks.pop(self._open[fd][1], None)
        self.close(fd)


class DiskSyncs:
    """Syncs that take their time while the loop goes on."""

    def __init__(self, files: DiskFiles) -> None:
        self._files = files
        self._fd = files.disk.loop.next_fd()
        self._running: tuple[Inode, str, dict[int, bytes], int] | None = None
        self._code: int | None = None

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        """There is nothing to read."""

    def start(self, fd: int) -> bool:
        inode, path = self._files.inode_of(fd)
        written = {number: inode.page(number) for number in inode.dirty}
        self._running = inode, path, written, inode.size
        self._code = None
        disk = self._files.disk
        disk.loop.call_later(disk.random.random() * 2 * disk.sync_seconds, self._end, self._running)
        return True

    def _end(self, running: tuple[Inode, str, dict[int, bytes], int]) -> None:
        if self._running is not running or self._code is not None:
            return
        inode, path, written, size = running
        disk = self._files.disk
        disk.trace.add(f"{disk.name} synced {path}")
        if disk.sync_fails():
            self._code = errno.EIO
            inode.lost.update(inode.dirty)
            inode.dirty.clear()
        else:
            self._code = 0
            inode.durable_size = size
            for number, content in written.items():
                if inode.page(number) == content:
                    inode.dirty.pop(number, None)
                else:
                    inode.dirty[number] = content
        disk.loop.make_readable(self._fd)

    def result(self, *, wait: bool) -> int | None:
        if self._running is not None and self._code is None and wait:
            self._end(self._running)
        code, self._code = self._code, None
        if code is not None:
            self._running = None
        return code

    def close(self) -> None:
        self._running = None


def _facts_of(inode: Inode) -> FileFacts:
    return FileFacts(inode.size, inode.modified_ms, inode.is_directory)
