"""The file layer: every call through which servers touch a disk.

It is injected, so that tests can fail the n-th call or forget what was never synced. Descriptors
are plain integers; the caller that opened one closes it.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from goddard.environment.syncs import Syncs, open_kernel_syncs

Data: TypeAlias = bytes | bytearray | memoryview

# What sandboxes and strange file systems answer to a call that they do not offer.
_NOT_OFFERED: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP})
# struct flock of Linux on 64 bits: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK: Final = struct.Struct("hhqqi4x")


class FileFacts(NamedTuple):
    size: int
    modified_ms: int
    is_directory: bool


class DiskUsage(NamedTuple):
    total_bytes: int
    used_bytes: int
    available_bytes: int

    @property
    def ratio(self) -> float:
        """Used share, rounded up to whole percents as df and Java do."""
        reachable = self.used_bytes + self.available_bytes
        if reachable <= 0:
            return 0.0
        return -(-self.used_bytes * 100 // reachable) / 100


class Files(Protocol):
    """What the store needs of a file system. Implementations raise OSError."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int: ...

    def create(self, path: Path, size: int) -> int:
        """Make a file of this size, all hole, and open it; on an error none is left.

        Where the file system can do that, the name never stands for a smaller file: RocketMQ does
        not start on a file that a crash left without its size.
        """

    def close(self, fd: int) -> None: ...

    def pread(self, fd: int, size: int, position: int) -> bytes: ...

    def is_cached(self, fd: int, position: int) -> bool:
        """Whether a byte can be read without waiting for the disk; True where nobody can tell."""

    def will_need(self, fd: int, position: int, size: int) -> None:
        """Have bytes read into the page cache in the background."""

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        """Write all of ``data``; when it raises, any part of it may be on disk."""

    def truncate(self, fd: int, size: int) -> None: ...

    def allocate(self, fd: int, position: int, size: int) -> None:
        """Reserve real blocks, so that later writes there cannot find the disk full."""

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap: ...

    def sync(self, fd: int) -> None: ...

    def open_syncs(self) -> Syncs | None:
        """Syncs without a thread; None where there are none. The caller closes them."""

    def sync_path(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def sync_file_system(self, fd: int) -> bool:
        """Make all of the file system that an open file is on durable; False if that cannot be.

        Raises OSError when any write to it failed since the file was opened.
        """

    def make_directories(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name."""

    def unlink(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None: ...

    def names(self, path: Path) -> list[str]:
        """Names in a directory, sorted; none when it does not exist."""

    def contents(self, path: Path) -> list[tuple[str, FileFacts]]:
        """As ``names``, each with its facts: for directories by the thousand."""

    def facts(self, path: Path) -> FileFacts | None:
        """Size, time of change and kind; None when there is nothing at the path."""

    def data_start(self, fd: int, position: int, end: int) -> int:
        """The first position from ``position`` on that is not in a hole; ``end`` when none is."""

    def usage(self, path: Path) -> DiskUsage: ...

    def lock(self, path: Path) -> int:
        """Open a file, which is created, and hold its POSIX lock: no other process, and nobody in
        this one, can do the same before ``unlock``. BlockingIOError if somebody has it."""

    def unlock(self, fd: int) -> None: ...


def make_durable_directories(files: Files, path: Path) -> None:
    """Create a directory and those above it; the name of each new one is on the disk on return."""
    missing = []
    existing = path
    while files.facts(existing) is None:
        missing.append(existing)
        existing = existing.parent
    files.make_directories(path)  # also if it exists: it may be a file
    for made in reversed(missing):
        files.sync_directory(made.parent)


def read_file(files: Files, path: Path) -> bytes | None:
    """The content of a small file; None if there is none."""
    facts = files.facts(path)
    if facts is None:
        return None
    fd = files.open(path, writable=False)
    try:
        return files.pread(fd, facts.size, 0)
    finally:
        files.close(fd)


@cache
def _find_syncfs() -> Callable[[int], int] | None:
    """The call of Linux 5.8 and later; before, it kept quiet about writes that had failed."""
    if sys.platform != "linux":
        return None
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version is None or (int(version[1]), int(version[2])) < (5, 8):
        return None
    function: Callable[[int], int] | None
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return function


# There is something at the path, or files without a name cannot be given one here.
_NO_LINK = (errno.EEXIST, errno.ENOENT, errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)


def _open_nameless(directory: Path) -> int | None:
    """A file that has no name yet; None where there is no such thing."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None:
        return None
    try:
        return os.open(directory, os.O_RDWR | os.O_CLOEXEC | flag, 0o644)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


def _facts_of(status: os.stat_result) -> FileFacts:
    return FileFacts(status.st_size, status.st_mtime_ns // 1_000_000, stat.S_ISDIR(status.st_mode))


# A POSIX lock belongs to the process and goes with any descriptor of the file, so a second opener
# in this process is refused before it opens the file.
_locked: Final[dict[Path, int]] = {}
_locking: Final = threading.Lock()


def lock_holder(fd: int) -> int | None:
    """The process that has the lock of a file (0 if it cannot be named), None if it is free."""
    # Asking for a shared lock needs no write permission; an exclusive holder shows up.
    question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
    return None if answer[0] == fcntl.F_UNLCK else max(int(answer[4]), 0)


class SystemFiles:
    """The real file system."""

    __slots__ = ()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o644)

    def create(self, path: Path, size: int) -> int:
        fd = _open_nameless(path.parent)
        if fd is not None:
            try:
                os.ftruncate(fd, size)
                # Without a directory's descriptor Python calls what does not follow symlinks.
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
            except OSError as error:
                os.close(fd)
                if error.errno not in _NO_LINK:
                    raise
            else:
                return fd
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def is_cached(self, fd: int, position: int) -> bool:
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        try:
            os.preadv(fd, [bytearray(1)], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # the file system does not offer it
        return True

    def will_need(self, fd: int, position: int, size: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        written = os.pwrite(fd, data, position)
        size = len(data)
        while written < size:
            count = os.pwrite(fd, memoryview(data)[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "write made no progress")
            written += count

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, position, size)
            return
        blank = bytes(1 << 20)  # macOS has no such call
        for start in range(position, position + size, len(blank)):
            self.pwrite(fd, blank[: position + size - start], start)

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        return mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)

    def sync(self, fd: int) -> None:
        getattr(os, "fdatasync", os.fsync)(fd)

    def open_syncs(self) -> Syncs | None:
        return open_kernel_syncs()

    def sync_path(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_file_system(self, fd: int) -> bool:
        syncfs = _find_syncfs()
        if syncfs is None:
            return False
        if syncfs(fd) != 0:
            code = ctypes.get_errno()
            if code in _NOT_OFFERED:
                return False
            raise OSError(code, os.strerror(code))
        return True

    def make_directories(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def names(self, path: Path) -> list[str]:
        try:
            with os.scandir(path) as entries:  # Path.iterdir makes a path of every name
                return sorted(entry.name for entry in entries)
        except FileNotFoundError:
            return []

    def contents(self, path: Path) -> list[tuple[str, FileFacts]]:
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    try:
                        found.append((entry.name, _facts_of(entry.stat())))
                    except FileNotFoundError:
                        continue  # gone since, or a link to nowhere
        except FileNotFoundError:
            return []
        return sorted(found)

    def facts(self, path: Path) -> FileFacts | None:
        try:
            return _facts_of(path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def data_start(self, fd: int, position: int, end: int) -> int:
        try:
            return min(os.lseek(fd, position, os.SEEK_DATA), end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return end
            return position  # the file system does not know holes

    def usage(self, path: Path) -> DiskUsage:
        usage = shutil.disk_usage(path)
        return DiskUsage(usage.total, usage.used, usage.free)

    def lock(self, path: Path) -> int:
        path = path.resolve()
        with _locking:
            if path in _locked:
                raise BlockingIOError(errno.EAGAIN, "open in this process already")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            except OSError as error:
                holder = lock_holder(fd)
                os.close(fd)
                process = f" (process {holder})" if holder else ""
                text = f"in use by another broker{process}: its lock is taken"
                raise BlockingIOError(errno.EAGAIN, text) from error
            _locked[path] = fd
            return fd

    def unlock(self, fd: int) -> None:
        with _locking:
            for path in [path for path, held in _locked.items() if held == fd]:
                del _locked[path]
            os.close(fd)
