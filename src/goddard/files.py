"""Replacing a small file so that a crash at any moment leaves the old content or the new, whole.

The order: the new content goes to ``<name>.tmp`` and is synced; a rename puts it in place; only
then does the old file become ``<name>.bak``, as RocketMQ keeps it, so that a file which could not
be read never takes the place of a good backup before a good file is there; the folder is synced.
These functions block and belong to an executor thread.
"""

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Make ``data`` the content of the file; when this returns it is on the disk."""
    _make_folder(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # A hard link, so that the file itself never disappears; a file system without links does
    # without the backup.
    old = path.with_name(path.name + ".bak.tmp")
    with contextlib.suppress(OSError):
        old.unlink(missing_ok=True)
        old.hardlink_to(path)
    temporary.replace(path)
    with contextlib.suppress(OSError):
        old.replace(path.with_name(path.name + ".bak"))
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    """A folder is on the disk once the one above it is synced, and so on upwards."""
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
