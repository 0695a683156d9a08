"""Resources of processes: memory and descriptors (Linux), and this process's TCP sockets."""

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path


def private_bytes(pid: int) -> int:
    """Private memory of a process (RssAnon), without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/status has no RssAnon")


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def open_tcp_sockets() -> dict[int, str]:
    """This process's TCP sockets: inode to local and remote address."""
    found: dict[int, str] = {}
    for path in Path("/dev/fd").iterdir():
        # The descriptor of the listing is closed by now, and others may be closed at any time.
        with contextlib.suppress(OSError):
            status = os.fstat(int(path.name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    found[status.st_ino] = (
                        f"{_address(copy.getsockname)} -> {_address(copy.getpeername)}"
                    )
    return found


def _address(query: Callable[[], object]) -> str:
    try:
        return str(query())
    except OSError:
        return "none"
