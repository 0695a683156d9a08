"""The identity of a client: address, instance name, message ids, process and event loop.

A client belongs to the process and the event loop that it was created on; the guards check that.
"""

import asyncio
import ipaddress
import os
import secrets
import socket
import time
from typing import Final, NoReturn

from goddard.client.errors import ForkedError, NotRunningError
from goddard.protocol.ids import UniqueIds

# An address reserved for documentation. Connecting a UDP socket to it sends nothing, but selects
# the local address for packets to other networks.
_REMOTE: Final = ("192.0.2.1", 9)


def local_ip() -> str:
    """This machine's address for connections to others; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_REMOTE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def process_instance() -> str:
    """An instance name that is unique on this machine."""
    return f"{os.getpid()}#{time.monotonic_ns()}"


def unique_ids(client_ip: str) -> UniqueIds:
    """The generator of unique message ids for this process."""
    try:
        packed = ipaddress.ip_address(client_ip).packed
    except ValueError:
        # ``client_ip`` can be any text, but message ids contain an address.
        packed = ipaddress.ip_address(local_ip()).packed
    process_hash = int.from_bytes(secrets.token_bytes(4), signed=True)
    return UniqueIds(packed, os.getpid() & 0xFFFF, process_hash)


class ProcessGuard:
    """Checks that a client is used in the process that created it."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __reduce__(self) -> NoReturn:
        """TypeError: multiprocessing and Spark cannot pickle an object that has a guard."""
        raise TypeError(
            "a client cannot be pickled: its connections belong to this process; create one in "
            "each process"
        )

    def check(self) -> None:
        """ForkedError in any other process."""
        if os.getpid() != self._pid:
            raise ForkedError


class LoopGuard(ProcessGuard):
    """Also checks the event loop."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def check_loop(self) -> None:
        """As ``check``; and NotRunningError on another loop, where an await would never return."""
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop, or a forked process
            loop = None
        if loop is not self._loop:
            self.check()
            raise NotRunningError(
                "this client belongs to another event loop",
                advice="use it on the loop that it was started on: in the same asyncio.run",
            )
