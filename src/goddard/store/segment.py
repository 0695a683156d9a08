"""Fixed-size files named by the offset of their first byte, as the commit log is made of.

Writing goes through ``pwrite``, never through a mapping: on a sparse file a full disk then is an
error code and not a SIGBUS that ends the process. Reading goes through a read-only shared mapping,
which sees every write at once and hands out slices without copying; its pages belong to the page
cache, not to this process's private memory.

A file never shrinks while mapped. Deleting one unlinks the name; whoever still holds a slice keeps
the mapping, and with it the bytes, alive until the slice is dropped.
"""

import mmap
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from goddard.errors import StoreError
from goddard.store.errors import StoreLayoutError
from goddard.store.files import Data, Files, disk_error, disk_errors
from goddard.store.worker import Worker

NAME_DIGITS: Final = 20
_ZERO_CHUNK: Final = 1 << 20


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
        """Make a range read as zeros, leaving what already does (holes stay holes)."""
        view = self.view
        blank = bytes(_ZERO_CHUNK)
        while start < end:
            start = self.data_start(start, end)
            stop = min(start + _ZERO_CHUNK, end)
            if view[start:stop] != blank[: stop - start]:
                self.write(start, blank[: stop - start])
            start = stop

    def data_start(self, start: int, end: int) -> int:
        return self._files.data_start(self._open(), start, end)

    def sync(self) -> None:
        with disk_errors("sync", self.path):
            self._files.sync(self._open())

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


def create_segment(
    files: Files,
    directory: Path,
    base_offset: int,
    size: int,
    *,
    prezero: Callable[[], bool] = lambda: False,
) -> Segment:
    """Make a file of full size that survives a power cut; on any error no file is left behind.

    While ``prezero`` says so its blocks are written: syncs of later appends then change no metadata
    of the file, which about halves their time. A file that is not written to its end is sparse.
    """
    path = directory / segment_name(base_offset)
    with disk_errors("create", path):
        fd = files.open(path, create=True)
        try:
            files.truncate(fd, size)
            blank = bytes(min(_ZERO_CHUNK, size))
            for start in range(0, size, len(blank)):
                if not prezero():
                    break
                files.pwrite(fd, blank[: size - start], start)
            files.sync(fd)
            files.sync_directory(directory)
        except OSError:
            files.close(fd)
            files.unlink(path)
            raise
        files.close(fd)
    return Segment(files, path, base_offset, size)


def load_offsets(files: Files, directory: Path, size: int) -> list[int]:
    """The base offsets of the files in a directory, ascending, once all have been checked.

    An empty last file is what a crash between creation and sizing leaves; it is deleted. Anything
    else that is not a file of the right name and size is an error, as it is for Java: guessing
    would risk the data. Directories are passed over.
    """
    offsets: list[int] = []
    with disk_errors("list", directory):
        names = files.names(directory)
        for name in names:
            path = directory / name
            facts = files.facts(path)
            if facts is None or facts.is_directory:
                continue
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                raise StoreLayoutError(f"{path} does not belong into a store directory", path)
            if facts.size == 0 and name == names[-1]:
                files.unlink(path)
                continue
            if facts.size != size:
                raise StoreLayoutError(
                    f"{path} has {facts.size} bytes, the configuration says {size}", path
                )
            if int(name) % size:
                raise StoreLayoutError(f"{path} is not named by a multiple of {size}", path)
            offsets.append(int(name))
    return offsets


class SegmentAllocator:
    """Makes the next file ahead of need in a worker, so that rolling does not wait for the disk.

    Owned by the appender, except for the file creation itself.
    """

    def __init__(
        self, files: Files, directory: Path, size: int, *, prezero: bool, worker: Worker
    ) -> None:
        self._files = files
        self._directory = directory
        self._size = size
        self._is_prezeroing = prezero
        self._worker = worker
        self._next: tuple[int, Future[Segment]] | None = None

    def stop_prezeroing(self) -> None:
        """Let the worker finish soon: the file that it makes is not written to its end."""
        self._is_prezeroing = False

    def prepare(self, base_offset: int, *, is_urgent: bool = False) -> None:
        """Start making the file at ``base_offset`` if nothing is being made.

        An urgent one, which the next append will want, is not written beforehand.
        """
        if self._next is not None:
            return
        future: Future[Segment] = Future()
        self._next = base_offset, future

        def create() -> None:
            _complete(
                future,
                lambda: create_segment(
                    self._files,
                    self._directory,
                    base_offset,
                    self._size,
                    prezero=lambda: self._is_prezeroing and not is_urgent,
                ),
            )

        self._worker.submit(create)

    def take(self, base_offset: int) -> Segment:
        """The file at ``base_offset``: the prepared one, or else one made now."""
        if self._next is not None:
            prepared_offset, future = self._next
            self._next = None
            segment = future.result()  # raises what the creation raised; the next call tries again
            if prepared_offset == base_offset:
                return segment
            segment.delete()
        return create_segment(self._files, self._directory, base_offset, self._size)

    def give_back(self, segment: Segment) -> None:
        """Keep a file that was taken but not used after all."""
        self.discard()
        future: Future[Segment] = Future()
        future.set_result(segment)
        self._next = segment.base_offset, future

    def discard(self, *, delete: bool = True) -> None:
        """Drop the prepared file, if any: a clean stop leaves no empty file behind."""
        if self._next is None:
            return
        future = self._next[1]
        self._next = None
        if future.exception() is None:
            if delete:
                future.result().delete()
            else:
                future.result().close()


def _complete(future: Future[Segment], make: Callable[[], Segment]) -> None:
    try:
        segment = make()
    except StoreError as error:
        future.set_exception(error)
    else:
        future.set_result(segment)
