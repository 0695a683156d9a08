"""Fixed-size files named by the offset of their first byte, as the commit log is made of.

Writing goes through ``pwrite``, never through a mapping: on a sparse file a full disk then is an
error code and not a SIGBUS that ends the process. Reading goes through a read-only shared mapping,
which sees every write at once and hands out slices without copying; its pages belong to the page
cache, not to this process's private memory.

A file never shrinks while mapped. Deleting one unlinks the name; a slice keeps the mapping, and
with it the bytes, alive until it is dropped.
"""

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from goddard.environment.files import Data, Files
from goddard.environment.syncs import Syncs
from goddard.environment.threads import Worker
from goddard.errors import StoreError
from goddard.store.errors import StoreDiskError, StoreLayoutError, disk_error, disk_errors

NAME_DIGITS: Final = 20
_MAX_OFFSET: Final = 1 << 62  # leaves room to add a size
_ZERO_CHUNK: Final = 1 << 20
# Zeros go to the disk in small steps with pauses: a file system may have a sync of the log wait
# for whatever was written before it. Not to the end: ``zeroing`` goes on when the file is in use.
_PREZERO_BYTES: Final = 32 << 20
_ZERO_SYNC: Final = 8 << 20
_ZERO_PAUSE_SECONDS: Final = 0.008


def segment_name(base_offset: int) -> str:
    return f"{base_offset:0{NAME_DIGITS}d}"


class Segment:
    """One file; ``base_offset`` is the offset of its first byte in the whole log."""

    __slots__ = ("_fd", "_files", "_map", "_view", "base_offset", "path", "size")

    def __init__(self, files: Files, path: Path, base_offset: int, size: int) -> None:
        self._files = files
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self.path = path
        self.base_offset = base_offset
        self.size = size

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size

    @property
    def view(self) -> memoryview:
        """The whole file, read-only. Mapped when first asked for."""
        if self._view is None:
            self._view = memoryview(self.map)
        return self._view

    @property
    def map(self) -> mmap.mmap:
        if self._map is None:
            with disk_errors("map", self.path):
                self._map = self._files.map(self._open(), self.size)
        return self._map

    def write(self, position: int, data: Data) -> None:
        try:
            self._files.pwrite(self._open(), data, position)
        except OSError as error:
            raise disk_error("write", self.path, error) from error

    def zero(self, start: int, end: int) -> None:
        """Make a range read as zeros, leaving what already does (holes stay holes).

        Not looked at through the mapping: on a tmpfs that is full, touching a hole is a SIGBUS.
        """
        blank = bytes(_ZERO_CHUNK)
        while start < end:
            start = self.data_start(start, end)
            stop = min(start + _ZERO_CHUNK, end)
            with disk_errors("read", self.path):
                data = self._files.pread(self._open(), stop - start, start)
            if data != blank[: stop - start]:
                self.write(start, blank[: stop - start])
            start = stop

    def is_cached(self, position: int) -> bool:
        try:
            return self._files.is_cached(self._open(), position)
        except OSError as error:
            raise disk_error("read", self.path, error) from error

    def data_start(self, start: int, end: int) -> int:
        return self._files.data_start(self._open(), start, end)

    def sync(self) -> None:
        with disk_errors("sync", self.path):
            self._files.sync(self._open())

    def start_sync(self, syncs: Syncs) -> bool:
        return syncs.start(self._open())

    def close(self) -> None:
        """Let go of the file. Slices that readers hold stay valid."""
        self._view = self._map = None
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def delete(self) -> None:
        self.close()
        with disk_errors("delete", self.path):
            self._files.unlink(self.path)

    def _open(self) -> int:
        if self._fd < 0:
            with disk_errors("open", self.path):
                self._fd = self._files.open(self.path)
        return self._fd


def create_segment(files: Files, directory: Path, base_offset: int, size: int) -> Segment:
    """Make a sparse file of full size that survives a power cut; on an error none is left."""
    path = directory / segment_name(base_offset)
    with disk_errors("create", path):
        fd = files.create(path, size)
        try:
            files.sync(fd)
            files.sync_directory(directory)
        except OSError:
            files.close(fd)
            files.unlink(path)
            raise
        files.close(fd)
    return Segment(files, path, base_offset, size)


def load_offsets(files: Files, directory: Path, size: int, remedy: str = "") -> list[int]:
    """The base offsets of the files in a directory, ascending, once all have been checked.

    An empty last file is what a crash between creation and sizing leaves; it is deleted. Anything
    else that is not a file of the right name and size is an error, as it is for Java: guessing
    would risk the data; ``remedy`` ends the text about a size. Directories are passed over.
    """
    offsets: list[int] = []
    with disk_errors("list", directory):
        contents = files.contents(directory)
        for name, facts in contents:
            if facts.is_directory:
                continue
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                path = directory / name
                raise StoreLayoutError(f"{path} does not belong into a store directory", path)
            if facts.size == 0 and name == contents[-1][0]:
                files.unlink(directory / name)
                continue
            if facts.size != size:
                path = directory / name
                raise StoreLayoutError(
                    f"{path} has {facts.size} bytes, the configuration says {size}{remedy}", path
                )
            if int(name) % size or int(name) > _MAX_OFFSET:
                path = directory / name
                raise StoreLayoutError(f"{path} is not named by a multiple of {size}", path)
            offsets.append(int(name))
    return offsets


class SegmentAllocator:
    """Makes the next file ahead of need in a worker, so that rolling does not wait for the disk.

    With ``prezero`` the worker then writes the file's first blocks: syncs of later appends change
    no metadata of it, which about halves their time. It stops where it is when the file is taken;
    from there on it is for ``zeroing``. Owned by the appender, but for what the worker does.
    """

    def __init__(
        self, files: Files, directory: Path, size: int, *, prezero: bool, worker: Worker
    ) -> None:
        self._files = files
        self._directory = directory
        self._size = size
        self._is_prezeroing = prezero
        self._worker = worker
        # Held while zeros are written, so that none follow once a file was taken.
        self._zeroing = threading.Lock()
        self._next: tuple[int, Future[Segment]] | None = None
        # Called in the worker when a file was created, or could not be.
        self.on_prepared: Callable[[], None] = lambda: None

    def stop_prezeroing(self) -> None:
        """Let the worker finish soon: the file that it makes is not written to its end."""
        self._is_prezeroing = False

    def prepare(self, base_offset: int) -> None:
        """Start making the file at ``base_offset`` if nothing is being made."""
        if self._next is not None:
            return
        prepared: tuple[int, Future[Segment]] = base_offset, Future()
        self._next = prepared

        def create() -> None:
            try:
                segment = create_segment(self._files, self._directory, base_offset, self._size)
            except StoreError as error:
                prepared[1].set_exception(error)
                self.on_prepared()
            else:
                prepared[1].set_result(segment)
                self.on_prepared()
                self._prezero(segment, prepared)

        self._worker.submit(create)

    def _prezero(self, segment: Segment, prepared: tuple[int, Future[Segment]]) -> None:
        blank = bytes(min(_ZERO_CHUNK, self._size))
        size = min(self._size, _PREZERO_BYTES)
        try:
            for start in range(0, size, len(blank)):
                with self._zeroing:
                    if self._next is not prepared or not self._is_prezeroing:
                        return
                    segment.write(start, blank[: size - start])
                end = start + len(blank)
                if end % _ZERO_SYNC == 0 or end >= size:
                    # The first sync of an append would have to wait for all of it.
                    self._files.sync_path(segment.path)
                if end < size:
                    self._worker.pause(_ZERO_PAUSE_SECONDS)
        except (StoreDiskError, OSError):
            return  # an append that needs the space will say so

    def is_prepared(self, base_offset: int) -> bool:
        """Whether ``take`` would not wait for the file to be created; if it would, prepare it."""
        if self._next is None:
            self.prepare(base_offset)
        return self._next is None or self._next[1].done()

    def take(self, base_offset: int) -> Segment:
        """The file at ``base_offset``: the prepared one, or else one made now."""
        prepared = self._take_prepared()
        if prepared is not None:
            # Raises what the creation raised; the next call tries again.
            segment = prepared[1].result()
            if prepared[0] == base_offset:
                return segment
            segment.delete()
        return create_segment(self._files, self._directory, base_offset, self._size)

    def _take_prepared(self) -> tuple[int, Future[Segment]] | None:
        prepared, self._next = self._next, None
        with self._zeroing:  # what is being written now is the last
            return prepared

    def give_back(self, segment: Segment) -> None:
        """Keep a file that was taken but not used after all."""
        self.discard()
        future: Future[Segment] = Future()
        future.set_result(segment)
        self._next = segment.base_offset, future

    def discard(self, *, delete: bool = True) -> None:
        """Drop the prepared file, if any: a clean stop leaves no empty file behind."""
        prepared = self._take_prepared()
        if prepared is None or prepared[1].exception() is not None:
            return
        segment = prepared[1].result()
        if delete:
            segment.delete()
        else:
            segment.close()
