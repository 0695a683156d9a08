"""The identity of a client: address, instance name, message ids, process and event loop.

A client belongs to the process and the event loop that it was created on; the guards check that.
"""

import asyncio
import ipaddress
import os
from typing import NoReturn

from goddard.client.errors import ForkedError, NotRunningError
from goddard.environment import Environment
from goddard.protocol.ids import UniqueIds
from goddard.transport.sockets import local_ip


def process_instance(environment: Environment) -> str:
    """An instance name that is unique on this machine."""
    return f"{environment.process_id()}#{environment.random.getrandbits(63)}"


def unique_ids(client_ip: str, environment: Environment) -> UniqueIds:
    """The generator of unique message ids for this process."""
    try:
        packed = ipaddress.ip_address(client_ip).packed
    except ValueError:
        # ``client_ip`` can be any text, but message ids contain an address.
        packed = ipaddress.ip_address(local_ip()).packed
    process_hash = environment.random.getrandbits(32) - (1 << 31)
    return UniqueIds(packed, environment.process_id() & 0xFFFF, process_hash)


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
