"""Atomic replacement of a small file: after a crash it has either the old or the new content.

The order: write and sync the new content as ``<name>.tmp``; rename it to ``<name>``; rename the old
file to ``<name>.bak`` (RocketMQ's backup); sync the folder. The backup is replaced last, so that a
damaged file never replaces a good backup before the new file is in place. These functions block:
run them in an executor thread.
"""

import contextlib
from pathlib import Path

from goddard.environment.files import Files, make_durable_directories


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replace the content of the file with ``data``, which is on the disk on return."""
    make_durable_directories(files, path.parent)
    temporary = path.with_name(path.name + ".tmp")
    descriptor = files.open(temporary, create=True)
    try:
        files.truncate(descriptor, 0)
        files.pwrite(descriptor, data, 0)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    # A hard link, so that the file never disappears. A file system without links gets no backup.
    old = path.with_name(path.name + ".bak.tmp")
    with contextlib.suppress(FileNotFoundError):
        files.unlink(old)
    with contextlib.suppress(OSError):
        files.link(path, old)
    files.rename(temporary, path)
    with contextlib.suppress(OSError):
        files.rename(old, path.with_name(path.name + ".bak"))
    files.sync_directory(path.parent)
