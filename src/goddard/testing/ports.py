"""TCP ports for daemons that must know their port before they start.

A free port can be taken before the daemon listens, or while it restarts: by another test run, or by
an outgoing connection. So ports come from below the kernel's ephemeral range, which outgoing
connections do not use, and each port is leased: a locked file in the temporary folder reserves it
for this process until the process ends, also when it is killed. Each user of the machine has an own
folder for these files; a port that a process of another user listens on is not free either.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from goddard.errors import GoddardError

_LOWEST = 15_000
# Below the default ephemeral ranges of Linux (from 32768) and macOS (from 49152).
_HIGHEST = 32_000

# Descriptors of the locked files by port. The kernel closes them at the end of the process.
_leases: dict[int, int] = {}


def lease_port(*neighbours: int) -> int:
    """Lease a free port; also lease port + n for each n of ``neighbours``."""
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
    os.close(_leases.pop(port))


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def try_lease(port: int) -> bool:
    """Lease this port; False if it is leased already or a process listens there."""
    if port in _leases:
        return False
    folder = Path(tempfile.gettempdir()) / f"goddard-ports-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / str(port), os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise GoddardError(f"cannot lease a port: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # On every interface, as Java listens: a listener on any of them would be in its way.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        os.close(descriptor)
        return False
    _leases[port] = descriptor
    return True


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST
