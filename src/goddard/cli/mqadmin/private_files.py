"""Files that verbs write, some of them below ``/tmp`` with names that others can predict."""

import os
import stat
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read; OSError if there is a symbolic link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, _FLAGS, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
