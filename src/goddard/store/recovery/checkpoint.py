"""The small files beside the data: ``checkpoint``, ``abort`` and ``lock``.

``checkpoint`` (4096 bytes, i64 each): store time up to which the log is synced, up to which the
queues are, up to which the index is, then two offsets of replication. It may lag, never lead.
``abort`` exists while a broker runs, so finding it means the last one did not stop cleanly. Only
that counts for RocketMQ; here its text may also say that it was an opening that did not end.
``lock`` has a POSIX lock on its first byte, which excludes Java as well (flock would not).
"""

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from goddard.environment.files import Files
from goddard.store.errors import StoreLockedError, disk_errors

CHECKPOINT_BYTES: Final = 4096
_VALUES: Final = Struct(">5q")
_REMAKING: Final = b"remaking"
_SAFETY_MS: Final = 3_000  # Java's allowance for records that carry slightly older times


@dataclass(slots=True)
class Checkpoint:
    """Times in ms since the epoch; 0 where nothing is known."""

    log_time_ms: int = 0
    queue_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def safe_time_ms(self) -> int:
        """Every record stored up to this time is on disk and has its queue entry there."""
        return max(min(self.log_time_ms, self.queue_time_ms) - _SAFETY_MS, 0)

    @property
    def safe_log_time_ms(self) -> int:
        """Every record stored up to this time is on disk, whatever the queues know of it."""
        return max(self.log_time_ms - _SAFETY_MS, 0)


def load_checkpoint(files: Files, path: Path) -> Checkpoint:
    """What the file says; nothing is known when it is missing or short."""
    with disk_errors("read", path):
        facts = files.facts(path)
        if facts is None or facts.size < _VALUES.size:
            return Checkpoint()
        fd = files.open(path, writable=False)
        try:
            data = files.pread(fd, _VALUES.size, 0)
        finally:
            files.close(fd)
    return Checkpoint(*(max(value, 0) for value in _VALUES.unpack(data)))


def save_checkpoint(files: Files, path: Path, checkpoint: Checkpoint) -> None:
    """Write in place: 40 bytes of one sector are replaced whole or not at all."""
    values = _VALUES.pack(
        checkpoint.log_time_ms,
        checkpoint.queue_time_ms,
        checkpoint.index_time_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
    )
    with disk_errors("write", path):
        fd = files.open(path, create=True)
        try:
            files.truncate(fd, CHECKPOINT_BYTES)
            files.pwrite(fd, values, 0)
            files.sync(fd)
        finally:
            files.close(fd)


def mark_running(files: Files, path: Path, process_id: int) -> None:
    """Create the abort marker, with our process id in it as RocketMQ 5 has it."""
    _write_marker(files, path, str(process_id).encode())


def mark_remaking(files: Files, path: Path) -> None:
    """Create it for a log that is as a clean stop left it: only queues and index may not be."""
    _write_marker(files, path, _REMAKING)


def _write_marker(files: Files, path: Path, text: bytes) -> None:
    with disk_errors("create", path):
        fd = files.open(path, create=True)
        try:
            files.truncate(fd, 0)
            files.pwrite(fd, text, 0)
            files.sync(fd)
        finally:
            files.close(fd)
        files.sync_directory(path.parent)


def was_remaking(files: Files, path: Path) -> bool:
    """Whether the marker was left by an opening after a clean stop that did not get to its end."""
    with disk_errors("read", path):
        if files.facts(path) is None:
            return False
        fd = files.open(path, writable=False)
        try:
            return files.pread(fd, len(_REMAKING) + 1, 0) == _REMAKING
        finally:
            files.close(fd)


def mark_stopped(files: Files, path: Path) -> None:
    with disk_errors("delete", path):
        if files.facts(path) is not None:
            files.unlink(path)
        files.sync_directory(path.parent)


class DirectoryLock:
    """Holds a store directory for one opener, in this process and among others."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._fd = -1

    def acquire(self) -> None:
        with disk_errors("open", self._path):
            try:
                self._fd = self._files.lock(self._path)
            except BlockingIOError as error:
                raise StoreLockedError(f"{self._path.parent} is {error.strerror}") from error
            try:
                self._files.pwrite(self._fd, b"lock", 0)
            except OSError:
                self.release()
                raise

    def release(self) -> None:
        if self._fd >= 0:
            self._files.unlock(self._fd)
            self._fd = -1
