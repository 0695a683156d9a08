"""Replacing a small file so that a crash at any moment leaves the old content or the new, whole.

The order: the new content goes to ``<name>.tmp`` and is synced; the old file becomes
``<name>.bak``, as RocketMQ keeps it; the rename puts the new one in place; the folder is synced.
These functions block and belong to an executor thread.
"""

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Make ``data`` the content of the file; when this returns it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _keep_backup(path)
    temporary.replace(path)
    _sync_folder(path.parent)


def _keep_backup(path: Path) -> None:
    # A hard link, so that the file itself never disappears; a file system without links does
    # without the backup.
    link = path.with_name(path.name + ".bak.tmp")
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.hardlink_to(path)
        link.replace(path.with_name(path.name + ".bak"))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
