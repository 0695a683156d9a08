"""Calls of the file system that not every machine has."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from goddard.environment import files
from goddard.environment.files import SystemFiles


def failing(code: int) -> Callable[[int], int]:
    def syncfs(fd: int) -> int:
        ctypes.set_errno(code)
        return -1

    return syncfs


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_files_are_synced_one_by_one_without_syncfs(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:

    monkeypatch.setattr(files, "_find_syncfs", lambda: failing(code))
    assert SystemFiles().sync_file_system(0) is False


def test_a_failed_write_is_reported_by_syncfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_find_syncfs", lambda: failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        SystemFiles().sync_file_system(0)


def test_a_system_without_syncfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_find_syncfs", lambda: None)
    assert SystemFiles().sync_file_system(0) is False


@pytest.fixture
def sizings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each file that got its size: whether it already had its name."""
    seen: list[bool] = []
    true_call = os.ftruncate

    def watched(fd: int, size: int) -> None:
        seen.append((tmp_path / "file").exists())
        true_call(fd, size)

    monkeypatch.setattr(os, "ftruncate", watched)
    return seen


def test_a_file_has_its_size_before_it_has_its_name(tmp_path: Path, sizings: list[bool]) -> None:
    fd = SystemFiles().create(tmp_path / "file", 5000)
    os.pwrite(fd, b"x", 4999)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(4999) + b"x"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    # A system without unnamed files, such as macOS, creates the name first.
    assert sizings == [not hasattr(os, "O_TMPFILE")]


@pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP, errno.EISDIR])
def test_a_file_system_without_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizings: list[bool], code: int | None
) -> None:
    if code is None:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    else:
        refuse(monkeypatch, code, lambda flags: bool(flags & os.O_DIRECTORY))
    os.close(SystemFiles().create(tmp_path / "file", 5000))
    assert (tmp_path / "file").stat().st_size == 5000
    assert sizings == [True]


def test_an_existing_file_gets_its_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    os.close(SystemFiles().create(tmp_path / "file", 10))
    assert (tmp_path / "file").read_bytes() == b"old" + bytes(7)


@pytest.mark.parametrize("is_nameless", [True, False])
def test_no_file_is_left_when_creation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_nameless: bool
) -> None:
    def full(fd: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    if not is_nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError, match="full"):
        SystemFiles().create(tmp_path / "file", 5000)
    assert list(tmp_path.iterdir()) == []


def refuse(monkeypatch: pytest.MonkeyPatch, code: int, which: Callable[[int], bool]) -> None:
    true_call = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if which(flags):
            raise OSError(code, os.strerror(code))
        return true_call(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
