"""Who this client is: its address, its process and loop, and whether a fork made it another.

The pid and the address are the process's own and are asked for again after a fork.
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

# Where a packet to this address would leave; nothing is sent. It is reserved for documentation.
_ELSEWHERE: Final = ("192.0.2.1", 9)


def local_ip() -> str:
    """The address that this machine would use to reach others; 127.0.0.1 without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def process_instance() -> str:
    """An instance name that no other client of this machine has."""
    return f"{os.getpid()}#{time.monotonic_ns()}"


def unique_ids(client_ip: str) -> UniqueIds:
    """The generator of unique message ids for this process."""
    try:
        packed = ipaddress.ip_address(client_ip).packed
    except ValueError:
        # A client may be named after anything; ids hold an address.
        packed = ipaddress.ip_address(local_ip()).packed
    process_hash = int.from_bytes(secrets.token_bytes(4), signed=True)
    return UniqueIds(packed, os.getpid() & 0xFFFF, process_hash)


class ProcessGuard:
    """Remembers the process it was made in."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __reduce__(self) -> NoReturn:
        """Whatever has a guard stays where it is; multiprocessing and Spark come here."""
        raise TypeError(
            "a client cannot be pickled: it has connections of this process; make one where it is "
            "used"
        )

    def check(self) -> None:
        """ForkedError in any other process."""
        if os.getpid() != self._pid:
            raise ForkedError


class LoopGuard(ProcessGuard):
    """Remembers the event loop as well."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def check_loop(self) -> None:
        """The same, and NotRunningError on any other loop: who waits there is never woken."""
        self.check()
        if asyncio.get_running_loop() is not self._loop:
            raise NotRunningError(
                "this client belongs to another event loop",
                advice="use it on the loop that started it: inside one asyncio.run, one thread",
            )
