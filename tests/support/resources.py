"""What processes hold: memory and descriptors of any, as Linux tells them; sockets of this one."""

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path


def private_bytes(pid: int) -> int:
    """Memory that belongs to the process alone (RssAnon); mapped files are not among it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def open_tcp_sockets() -> dict[int, str]:
    """This process's TCP sockets by inode, each with its two ends."""
    found: dict[int, str] = {}
    for path in Path("/dev/fd").iterdir():
        # The listing's own descriptor is gone by now, and others may go any moment.
        with contextlib.suppress(OSError):
            status = os.fstat(int(path.name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    found[status.st_ino] = f"{_end(copy.getsockname)} -> {_end(copy.getpeername)}"
    return found


def _end(ask: Callable[[], object]) -> str:
    try:
        return str(ask())
    except OSError:
        return "nothing"
