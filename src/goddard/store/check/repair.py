"""Mends a stopped store: cuts a torn tail and makes queues and index from the log.

The log is verified first, since damage in its middle is not to be cut unasked. Nothing is touched
before a full copy of the directory exists and has been compared with it byte by byte. The lock is
held from before the copy until the store itself takes it. Queues none of whose records are left in
the log are kept: only they remember the next offset of their topic.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from goddard.environment.files import SystemFiles
from goddard.errors import StoreError
from goddard.store.check.damage import Kind, Report
from goddard.store.check.inspect import IndexView, StoreFile, StoreView, numbered_files
from goddard.store.check.verify import verify
from goddard.store.config import StoreConfig
from goddard.store.errors import StoreCorruptError, StoreLayoutError, StoreLockedError
from goddard.store.recovery.checkpoint import DirectoryLock
from goddard.store.recovery.decide import RecoveryReport
from goddard.store.store import MessageStore

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_BLOCK_BYTES: Final = 512
_UNMENDABLE: Final = frozenset({Kind.FILE_SIZE, Kind.MISSING_FILE, Kind.FOREIGN_FILE})

Progress = Callable[[int, int], None]


class CopyError(StoreError):
    """The copy that must precede a repair cannot be made; nothing was changed."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    copy: Path
    copied_bytes: int
    queues_removed: int
    index_files_removed: int
    recovery: RecoveryReport
    # The last file of the log, when it was too short, and the size that it has now.
    grown: StoreFile | None = None


def repair(
    view: StoreView,
    copy_to: Path,
    *,
    cut_corrupt: bool = False,
    segment_bytes: int | None = None,
    on_progress: Progress | None = None,
) -> RepairReport:
    """Copy the directory, then mend the original.

    ``segment_bytes`` is the size of the log's files, for a lone one that has been cut short.

    Damage in the middle of the log is a StoreCorruptError unless it may be cut there; the part
    that is cut stays in ``commitlog.cut``.
    """
    root = view.directory
    lock = DirectoryLock(root / "lock", SystemFiles())
    try:
        lock.acquire()
    except StoreLockedError as error:
        raise StoreLockedError(f"{error}; stop the broker before a repair") from error
    try:
        config = guess_config(view, segment_bytes)
        short = _short_file(view, config.segment_bytes)
        refused = refusal(view, verify(view), cut_corrupt=cut_corrupt, segment_bytes=segment_bytes)
        if refused is not None:
            raise refused
        copied_bytes = copy_store(root, copy_to, on_progress)
        # As after a crash and without a checkpoint, everything is read and dispatched again; first
        # of all, so that a broker started after a repair that broke off does the same.
        (root / "abort").touch()
        (root / "checkpoint").unlink(missing_ok=True)
        queues_removed = _remove_queues(view)
        index_files = view.index_files()
        for file in index_files:
            file.path.unlink()
        if short is not None:
            _grow(short.path, config.segment_bytes)
    finally:
        lock.release()
    store = MessageStore(config)
    recovery = store.open(cut_corrupt=cut_corrupt)
    store.close()
    return RepairReport(
        copy_to,
        copied_bytes,
        queues_removed,
        len(index_files),
        recovery,
        None if short is None else replace(short, size_bytes=config.segment_bytes),
    )


def _short_file(view: StoreView, segment_bytes: int) -> StoreFile | None:
    """The last file of the log, if it has lost its end."""
    files = [file for file in view.log_files() if file.size_bytes]
    return files[-1] if files and files[-1].size_bytes < segment_bytes else None


def _grow(path: Path, size_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size_bytes)
        os.fsync(file.fileno())


def refusal(
    view: StoreView, report: Report, *, cut_corrupt: bool, segment_bytes: int | None = None
) -> StoreError | None:
    """Why a repair is refused: what it cannot mend, or may only cut when told to."""
    short = _short_file(view, guess_config(view, segment_bytes).segment_bytes)
    for damage in report.damages:
        if damage.path.parent != view.log_directory or damage.is_notice:
            continue
        if short is not None and damage.path == short.path and damage.kind is Kind.FILE_SIZE:
            continue
        where = f"{damage.path} at byte {damage.position}: {damage.detail}"
        if damage.kind in _UNMENDABLE:
            return StoreLayoutError(f"{where}; {damage.remedy}", damage.path)
        if damage.kind is not Kind.TORN_TAIL and not cut_corrupt:
            offset = damage.physical_offset or 0
            return StoreCorruptError(f"{where}; {damage.remedy}", damage.path, offset)
    return None


def guess_config(view: StoreView, segment_bytes: int | None = None) -> StoreConfig:
    """The sizes that the directory was made with, from its files; defaults where it has none."""
    config = StoreConfig(root=view.directory)
    segment_bytes = segment_bytes or view.segment_bytes()
    if segment_bytes is not None:
        config = replace(config, segment_bytes=segment_bytes)
    queue_sizes = {file.size_bytes for queue in view.queues() for file in queue.files}
    if queue_sizes - {0}:
        config = replace(config, queue_file_bytes=max(queue_sizes))
    for file in view.index_files():
        index = IndexView(file)
        slots = index.slot_count
        if slots is not None:
            return replace(config, index_slots=slots, index_entries=index.capacity(slots))
    return config


def copy_store(source: Path, target: Path, on_progress: Progress | None = None) -> int:
    """A full copy, compared with its source; holes stay holes. Answers how many bytes it has."""
    progress = on_progress or (lambda _done, _total: None)
    source, target = source.resolve(), target.resolve()
    if target == source or source in target.parents:
        raise CopyError(f"{target} is inside the store itself")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CopyError(f"{target} exists already; name a new or empty directory")
    files = sorted(path for path in source.rglob("*") if path.is_file())
    needed = sum(path.stat().st_blocks * _BLOCK_BYTES for path in files)
    try:
        target.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target).free
        if free < needed:
            raise CopyError(f"{target} has {free} bytes free, the copy needs {needed}")
        # Each file is read twice: to copy it, and to compare.
        total, done = 2 * max(needed, 1), 0
        for step in (_copy_file, _compare_file):
            for path in files:
                other = target / path.relative_to(source)
                for count in step(path, other):
                    done += count
                    progress(min(done, total), total)
        progress(total, total)
    except OSError as error:
        raise CopyError(f"the copy to {target} failed: {error}") from error
    return sum(path.stat().st_size for path in files)


def _copy_file(source: Path, target: Path) -> Iterator[int]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, target.open("xb") as writer:
        writer.truncate(os.fstat(reader.fileno()).st_size)
        for start, end in _data_ranges(reader.fileno()):
            for position in range(start, end, _CHUNK_BYTES):
                chunk = os.pread(reader.fileno(), min(_CHUNK_BYTES, end - position), position)
                if os.pwrite(writer.fileno(), chunk, position) != len(chunk):
                    raise OSError(f"{target}: written only in part")
                yield len(chunk)
        os.fsync(writer.fileno())
    shutil.copystat(source, target)


def _compare_file(source: Path, target: Path) -> Iterator[int]:
    with source.open("rb") as one, target.open("rb") as other:
        if os.fstat(one.fileno()).st_size != os.fstat(other.fileno()).st_size:
            raise CopyError(f"{target} is not as long as {source}")
        for start, end in _data_ranges(one.fileno()):
            for position in range(start, end, _CHUNK_BYTES):
                count = min(_CHUNK_BYTES, end - position)
                if os.pread(one.fileno(), count, position) != os.pread(
                    other.fileno(), count, position
                ):
                    raise CopyError(f"{target} differs from {source} after copying")
                yield count


def _data_ranges(descriptor: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes."""
    size, position = os.fstat(descriptor).st_size, 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError:
            return  # a hole to the end
        yield start, end
        position = end


def _remove_queues(view: StoreView) -> int:
    """Remove the queues that the log can give back."""
    log_files = view.log_files()
    log_min = log_files[0].start if log_files else 0
    removed = 0
    for queue in view.queues():
        first, end = queue.bounds(log_min)
        if first == end and end > 0:
            continue
        for file in numbered_files(queue.directory)[0]:
            file.path.unlink()
        with suppress(OSError):  # foreign files stay, and their directory with them
            queue.directory.rmdir()
            queue.directory.parent.rmdir()
        removed += 1
    return removed
