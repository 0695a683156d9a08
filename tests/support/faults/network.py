"""A private network for the processes of one run: each node has a network namespace of its own.

The whole run is a child of ``unshare``, with a network and a mount namespace that nobody else
sees (``enter_private_network``). In it, a bridge joins the nodes; the run itself is at the bridge,
with its clients. A link is cut by a blackhole route in the namespace of the sender, so each
direction can be cut alone. Nothing has to be removed: the kernel drops namespaces, links, routes
and mounts with the last of their processes, however those end.

Linux gives these rights to root, and mostly to everyone inside of a user namespace.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from tests.support.faults.schedule import CLIENTS

_COMMAND_SECONDS: Final = 20
_IS_PRIVATE: Final = "GODDARD_PRIVATE_NETWORK"
_NETWORK: Final = "10.77.0"
_SLOW: Final = ("rate", "400kbit", "burst", "4000", "latency", "2000ms")


class NetworkError(Exception):
    """The private network cannot be made; the text says which command failed and how."""


def _unshare() -> list[str] | None:
    """The command that runs another in namespaces of its own; None where that is not allowed."""
    if sys.platform != "linux" or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return None
    own = ["unshare", "--net", "--mount", "--kill-child"]
    for command in ([*own, "--fork"], [*own, "--fork", "--user", "--map-root-user"]):
        link = ["ip", "link", "add", "probe", "type", "veth", "peer", "name", "other"]
        done = subprocess.run(
            [*command, "--", *link], capture_output=True, timeout=_COMMAND_SECONDS, check=False
        )
        if done.returncode == 0:
            return command
    return None


def is_private() -> bool:
    """Whether this process is in a private network."""
    return bool(os.environ.get(_IS_PRIVATE))


def enter_private_network(arguments: Sequence[str]) -> None:
    """Run this Python again with these arguments in a private network, and end with its result.

    Returns if this process is in one already, or if there cannot be one.
    """
    command = None if is_private() else _unshare()
    if command is not None:
        whole = [*command, "--", sys.executable, *arguments]
        os.execvpe(whole[0], whole, {**os.environ, _IS_PRIVATE: "1"})


def _do(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
    )
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")


class Network(Protocol):
    """What a cluster needs of its network, and of the disks of its nodes."""

    has_disks: bool

    def add(self, name: str, ports: tuple[int, ...]) -> str:
        """A new node that listens on these ports; returns the address for the others."""

    def bind_address(self, name: str) -> str: ...

    def prefix(self, name: str) -> list[str]:
        """The beginning of commands that run at a node."""

    def mount_disk(self, path: Path, size_bytes: int) -> None:
        """A small disk for a node, where that is possible."""

    def unmount_disk(self, path: Path) -> None: ...

    def cut(self, source: str, target: str) -> None:
        """Drop what one node sends to the other."""

    def join(self, source: str, target: str) -> None:
        """Undo ``cut``."""

    def slow(self, name: str) -> None:
        """Let a node send slowly, to all others."""

    def hurry(self, name: str) -> None:
        """Undo ``slow``."""

    def heal(self) -> None:
        """Undo everything."""


class PrivateNetwork:
    """The bridge, and a namespace for each node. Leaving the context manager ends all of them.

    Every port of a node is its own, so it may listen on any.
    """

    has_disks = True

    def __init__(self) -> None:
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses = {CLIENTS: f"{_NETWORK}.1"}
        self._cuts: set[tuple[str, str]] = set()
        self._slow: set[str] = set()

    async def __aenter__(self) -> Self:
        _do("ip", "link", "set", "lo", "up")
        _do("ip", "link", "add", "bridge0", "type", "bridge")
        _do("ip", "address", "add", f"{_NETWORK}.1/24", "dev", "bridge0")
        _do("ip", "link", "set", "bridge0", "up")
        return self

    async def __aexit__(self, *_: object) -> None:
        for name, holder in self._holders.items():
            # The kernel removes a namespace some time after its last process has ended.
            with suppress(NetworkError):  # the node was not completed
                _do("ip", "link", "delete", f"to-{name}")
            holder.kill()
            holder.wait()
        self._holders.clear()
        _do("ip", "link", "delete", "bridge0")

    def add(self, name: str, ports: tuple[int, ...]) -> str:
        address = f"{_NETWORK}.{10 + len(self._holders) + 1}"
        # It prints when it is in its namespace, and ends with its input, also if we are killed.
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; read _"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run
        )
        self._holders[name] = holder
        assert holder.stdout is not None
        holder.stdout.readline()
        place, port = str(holder.pid), f"to-{name}"
        _do("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", place)
        _do("ip", "link", "set", port, "master", "bridge0", "up")
        self._addresses[name] = address
        self._in(name, "ip", "link", "set", "lo", "up")
        self._in(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        self._in(name, "ip", "link", "set", "eth0", "up")
        return address

    def bind_address(self, name: str) -> str:
        return self._addresses[name]

    def prefix(self, name: str) -> list[str]:
        if name == CLIENTS:
            return []
        return ["nsenter", f"--net=/proc/{self._holders[name].pid}/ns/net", "--"]

    def _in(self, name: str, *command: str) -> None:
        _do(*self.prefix(name), *command)

    def cut(self, source: str, target: str) -> None:
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            self._in(source, "ip", "route", "add", "blackhole", f"{self._addresses[target]}/32")

    def join(self, source: str, target: str) -> None:
        if (source, target) in self._cuts:
            self._cuts.discard((source, target))
            self._in(source, "ip", "route", "delete", "blackhole", f"{self._addresses[target]}/32")

    def slow(self, name: str) -> None:
        if name not in self._slow:
            self._slow.add(name)
            self._in(name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *_SLOW)

    def hurry(self, name: str) -> None:
        if name in self._slow:
            self._slow.discard(name)
            self._in(name, "tc", "qdisc", "delete", "dev", "eth0", "root")

    def heal(self) -> None:
        for source, target in list(self._cuts):
            self.join(source, target)
        for name in list(self._slow):
            self.hurry(name)

    def mount_disk(self, path: Path, size_bytes: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        _do("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))

    def unmount_disk(self, path: Path) -> None:
        _do("umount", "--lazy", str(path))
