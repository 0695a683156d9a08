"""Replacing a file: the order of syncs and renames."""

import os
from pathlib import Path

import pytest

from goddard.environment.files import SystemFiles
from goddard.files import replace_file


def test_order_of_syncs_and_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_sync, real_replace = os.fsync, Path.replace
    events: list[str] = []

    def sync(descriptor: int) -> None:
        events.append("sync " + Path(f"/proc/self/fd/{descriptor}").resolve().name)
        real_sync(descriptor)

    def replace(source: Path, target: Path) -> Path:
        replaced = real_replace(source, target)
        events.append(f"rename {source.name} {target.name}")
        return replaced

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fdatasync", sync, raising=False)
    monkeypatch.setattr(Path, "replace", replace)
    path = tmp_path / "above" / "folder" / "file"
    replace_file(SystemFiles(), path, b"one")
    assert events == [
        f"sync {tmp_path.name}",
        "sync above",
        "sync file.tmp",
        "rename file.tmp file",
        "sync folder",
    ]
    events.clear()
    replace_file(SystemFiles(), path, b"two")
    assert events == [
        "sync file.tmp",
        "rename file.tmp file",
        "rename file.bak.tmp file.bak",
        "sync folder",
    ]
    assert path.read_bytes() == b"two"
    assert path.with_name("file.bak").read_bytes() == b"one"
