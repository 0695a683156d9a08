"""The real file system's calls that a machine may not have."""

import ctypes
import errno
from collections.abc import Callable

import pytest

from goddard.store import files
from goddard.store.files import SystemFiles


def failing(code: int) -> Callable[[int], int]:
    def syncfs(fd: int) -> int:
        ctypes.set_errno(code)
        return -1

    return syncfs


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_sandbox_without_syncfs_has_files_synced_one_by_one(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:

    monkeypatch.setattr(files, "_find_syncfs", lambda: failing(code))
    assert SystemFiles().sync_file_system(0) is False


def test_a_write_that_failed_is_told_by_syncfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_find_syncfs", lambda: failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        SystemFiles().sync_file_system(0)


def test_syncfs_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_find_syncfs", lambda: None)
    assert SystemFiles().sync_file_system(0) is False
