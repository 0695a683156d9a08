"""Atomic replacement of a small file: after a crash it has either the old or the new content.

The order: write and sync the new content as ``<name>.tmp``; rename it to ``<name>``; rename the old
file to ``<name>.bak`` (RocketMQ's backup); sync the folder. The backup is replaced last, so that a
damaged file never replaces a good backup before the new file is in place. These functions block:
run them in an executor thread.
"""

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of the file with ``data``, which is on the disk on return."""
    _make_folder(path.parent)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # A hard link, so that the file never disappears. A file system without links gets no backup.
    old = path.with_name(path.name + ".bak.tmp")
    with contextlib.suppress(OSError):
        old.unlink(missing_ok=True)
        old.hardlink_to(path)
    temporary.replace(path)
    with contextlib.suppress(OSError):
        old.replace(path.with_name(path.name + ".bak"))
    _sync_folder(path.parent)


def _make_folder(folder: Path) -> None:
    """Create the folder and its missing parents; sync the parent of each new folder."""
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for created in missing:
        _sync_folder(created.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
