"""Servers that run on this machine: their open files and limits, from Linux' ``/proc``.

Processes of other users cannot be looked into, unless we are root; they are left out.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from goddard.cli.doctor.facts import LocalProcess
from goddard.transport.client import split_address

_PROC: Final = Path("/proc")
_LISTEN: Final = "0A"
_LIMIT: Final = re.compile(r"^Max open files\s+(\d+)", re.MULTILINE)


def local_processes(addresses: Iterable[str], proc: Path = _PROC) -> list[LocalProcess]:
    """The processes that listen at those of the addresses that are on this machine."""
    inodes = {}
    for address in addresses:
        host, port = split_address(address)
        for inode in _listening(proc, host, port):
            inodes[inode] = address
    found = []
    if inodes:
        for folder in proc.iterdir():
            if folder.name.isdecimal():
                found += _process(folder, inodes)
    return found


def _listening(proc: Path, host: str, port: int) -> Iterator[str]:
    """The socket inodes that listen at a port, if the host is an address of this machine."""
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            local, local_port = fields[1].rsplit(":", 1)
            if fields[3] != _LISTEN or int(local_port, 16) != port:
                continue
            bound = _address(local)
            if bound in (wanted, None) or (bound.is_unspecified and wanted.is_loopback):
                yield fields[9]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address of /proc/net/tcp: words of 32 bits in the order of this machine's bytes."""
    words = [int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _process(folder: Path, inodes: dict[str, str]) -> list[LocalProcess]:
    try:
        links = [str(link.readlink()) for link in (folder / "fd").iterdir()]
        limit = _LIMIT.search((folder / "limits").read_text())
    except OSError:
        return []  # another user's, or it has ended
    held = {link[8:-1] for link in links if link.startswith("socket:[")} & inodes.keys()
    if not held or limit is None:
        return []
    address = inodes[min(held)]
    return [
        LocalProcess(
            address=address,
            pid=int(folder.name),
            open_files=len(links),
            max_open_files=int(limit[1]),
        )
    ]
