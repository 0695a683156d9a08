"""TCP ports for daemons that must know their port before they start.

A port that was free a moment ago is lost easily: to another test run looking at the same time, or
to any outgoing connection, above all while a killed daemon's port waits for its successor. So ports
come from below the kernel's ephemeral range, which no outgoing connection is given, and each is
leased: a locked file in the temporary folder keeps other test processes off it until this process
ends, however it ends.
"""

import fcntl
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

from goddard.errors import GoddardError

_LOWEST = 15_000
_HIGHEST = 32_000
"""Below Linux's default ephemeral range (32768 up) and that of macOS (49152 up)."""

_leases: dict[int, IO[bytes]] = {}


def lease_port(*neighbours: int) -> int:
    """A port of this process alone, such that port + n is ours too for each n of `neighbours`."""
    candidates = range(_LOWEST, min(_HIGHEST, _ephemeral_start()))
    for port in random.sample(candidates, k=min(500, len(candidates))):
        wanted = [port, *(port + n for n in neighbours)]
        taken: list[int] = []
        for number in wanted:
            if not try_lease(number):
                break
            taken.append(number)
        else:
            return port
        for number in taken:
            release_port(number)
    raise GoddardError(f"no free port between {candidates.start} and {candidates.stop}")


def release_port(port: int) -> None:
    _leases.pop(port).close()


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def try_lease(port: int) -> bool:
    """Lease this very port; False when anybody has it, by lease or by listening."""
    if port in _leases:
        return False
    folder = Path(tempfile.gettempdir()) / "goddard-ports"
    folder.mkdir(exist_ok=True)
    file = (folder / str(port)).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Not bound to loopback: Java listens on every interface, and would meet any listener.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        file.close()
        return False
    _leases[port] = file
    return True


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST
