"""What a test changes in a running broker: a clock that jumps, syncs that fail, a full disk.

The broker runs with an ``Environment`` that obeys a small file, which the test writes; both map it
into memory. Nothing of this is in the broker's own code.
"""

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import Final

from goddard.clock import SystemClock
from goddard.environment.files import Data, DiskUsage, SystemFiles
from goddard.environment.syncs import Syncs

_SKEW: Final = 0  # the place of each number
_FAILING_SYNCS: Final = 8
_FULL_DISK: Final = 16
_BYTES: Final = 24
_NUMBER: Final = struct.Struct("<q")


class Control:
    """The numbers in the file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b" if path.exists() else "w+b") as file:
            if os.fstat(file.fileno()).st_size < _BYTES:
                file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)

    def _get(self, place: int) -> int:
        (value,) = _NUMBER.unpack_from(self._map, place)
        return int(value)

    @property
    def skew_ms(self) -> int:
        """How far the wall clock is ahead of the machine's."""
        return self._get(_SKEW)

    @skew_ms.setter
    def skew_ms(self, value: int) -> None:
        _NUMBER.pack_into(self._map, _SKEW, value)

    @property
    def has_failing_syncs(self) -> bool:
        return bool(self._get(_FAILING_SYNCS))

    @has_failing_syncs.setter
    def has_failing_syncs(self, value: bool) -> None:
        _NUMBER.pack_into(self._map, _FAILING_SYNCS, value)

    @property
    def has_full_disk(self) -> bool:
        return bool(self._get(_FULL_DISK))

    @has_full_disk.setter
    def has_full_disk(self, value: bool) -> None:
        _NUMBER.pack_into(self._map, _FULL_DISK, value)


class ControlledClock(SystemClock):
    """The system's clock, with jumps."""

    __slots__ = ("_control",)

    def __init__(self, control: Control) -> None:
        self._control = control

    def now_ms(self) -> int:
        return super().now_ms() + self._control.skew_ms


class _ControlledSyncs:
    """The kernel's syncs, of which some fail after all."""

    def __init__(self, syncs: Syncs, control: Control) -> None:
        self._syncs = syncs
        self._control = control

    def fileno(self) -> int:
        return self._syncs.fileno()

    def clear(self) -> None:
        self._syncs.clear()

    def start(self, fd: int) -> bool:
        return self._syncs.start(fd)

    def result(self, *, wait: bool) -> int | None:
        code = self._syncs.result(wait=wait)
        return errno.EIO if code == 0 and self._control.has_failing_syncs else code

    def close(self) -> None:
        self._syncs.close()


class ControlledFiles(SystemFiles):
    """The system's files, with failing syncs and a full disk."""

    __slots__ = ("_control",)

    def __init__(self, control: Control) -> None:
        self._control = control

    def _sync(self) -> None:
        if self._control.has_failing_syncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _need_space(self) -> None:
        if self._control.has_full_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, fd: int) -> None:
        self._sync()
        super().sync(fd)

    def open_syncs(self) -> Syncs | None:
        syncs = super().open_syncs()
        return None if syncs is None else _ControlledSyncs(syncs, self._control)

    def sync_path(self, path: Path) -> None:
        self._sync()
        super().sync_path(path)

    def sync_directory(self, path: Path) -> None:
        self._sync()
        super().sync_directory(path)

    def sync_file_system(self, fd: int) -> bool:
        self._sync()
        return super().sync_file_system(fd)

    def create(self, path: Path, size: int) -> int:
        self._need_space()
        return super().create(path, size)

    def allocate(self, fd: int, position: int, size: int) -> None:
        self._need_space()
        super().allocate(fd, position, size)

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        # What is reserved can be written.
        if position + len(data) > os.fstat(fd).st_size:
            self._need_space()
        super().pwrite(fd, data, position)

    def usage(self, path: Path) -> DiskUsage:
        usage = super().usage(path)
        if not self._control.has_full_disk:
            return usage
        return DiskUsage(usage.total_bytes, usage.total_bytes, 0)
