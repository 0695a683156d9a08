"""The list of name servers: where it comes from, and which server is used.

A list is ``host:port`` separated by ``;``. It is given as an option, taken from the environment
variable NAMESRV_ADDR, or fetched from an HTTP address. One server, chosen at random, is used until
it fails; then the next one in the list.
"""

import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from goddard.client.errors import ClientError, NameServerError, NoNameServerError
from goddard.clock import Clock
from goddard.errors import ArgumentTypeError, ConfigError, RemotingError
from goddard.protocol.frame import RemotingCommand
from goddard.transport.client import split_address

ENVIRONMENT_VARIABLE: Final = "NAMESRV_ADDR"
_MAX_LIST_BYTES: Final = 64 * 1024

# Sends a request to an address, with a timeout in milliseconds; returns the response.
Request: TypeAlias = Callable[[str, RemotingCommand, int], Awaitable[RemotingCommand]]

_logger: Final = logging.getLogger("goddard.client")


def parse_name_servers(text: str | None, *, use_environment: bool = True) -> tuple[str, ...]:
    """The addresses of a list; if it is None, of the list in the environment."""
    if text is None and use_environment:
        text = os.environ.get(ENVIRONMENT_VARIABLE)
    return _addresses(text or "")


def _addresses(text: object) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise ArgumentTypeError(f"name_servers is {text!r}; write it as 'host:port;host:port'")
    addresses: dict[str, None] = {}
    for part in text.replace(",", ";").split(";"):
        # As in RocketMQ's clients: cloud consoles show addresses with a scheme.
        address = part.strip().removeprefix("http://").rstrip("/")
        if address:
            split_address(address)
            addresses[address] = None
    return tuple(addresses)


def fetch_name_servers(endpoint: str, timeout_ms: int) -> tuple[str, ...]:
    """Fetch the list from an HTTP address. Blocks: not to be called on an event loop."""
    # Imported when needed: few clients need it, and it is slow to import.
    http: Any = importlib.import_module("urllib.request")
    try:
        with http.urlopen(endpoint, timeout=timeout_ms / 1000) as answer:
            text: bytes = answer.read(_MAX_LIST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ClientError(
            f"the list of name servers cannot be fetched from {endpoint}: {error}", address=endpoint
        ) from error
    if len(text) > _MAX_LIST_BYTES:
        raise ClientError(
            f"the list of name servers from {endpoint} is longer than {_MAX_LIST_BYTES} bytes"
        )
    try:
        return _addresses(text.decode("utf-8", "replace").strip())
    except ConfigError as error:
        raise ClientError(f"{endpoint} did not return a list of name servers: {error}") from error


class NameServers:
    """The addresses of the name servers, and the one in use."""

    __slots__ = ("_addresses", "_choose", "_failed", "_position")

    def __init__(self, addresses: Sequence[str], choose: Callable[[int], int]) -> None:
        """``choose`` returns a random number below its argument."""
        self._addresses: tuple[str, ...] = ()
        self._position = 0
        self._choose = choose
        self._failed: set[str] = set()
        self.replace(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def replace(self, addresses: Sequence[str]) -> bool:
        """Use a new list; True if it differs. The server in use stays in use if the list has it."""
        new = tuple(addresses)
        if set(new) == set(self._addresses):
            return False
        chosen = self._addresses[self._position] if self._addresses else None
        self._addresses = new
        if chosen in new:
            self._position = new.index(chosen)
        else:
            self._position = self._choose(len(new)) if new else 0
        return True

    def chosen(self) -> str:
        if not self._addresses:
            raise NoNameServerError
        return self._addresses[self._position]

    async def request(
        self, command: RemotingCommand, timeout_ms: int, send: Request, clock: Clock
    ) -> RemotingCommand:
        """Send a request to the server in use, and to the next ones if it fails.

        The timeout is divided among the servers.
        """
        started_ms = clock.monotonic_ms()
        failure: RemotingError | None = None
        for attempt in range(max(1, len(self._addresses))):
            address = self.chosen()
            left_ms = timeout_ms - (clock.monotonic_ms() - started_ms)
            share_ms = left_ms // max(1, len(self._addresses) - attempt)
            try:
                # A copy, because ``send`` changes the command.
                answer = await send(address, replace(command), max(1, share_ms))
            except RemotingError as error:
                # A warning for the first failure only, not for every request until it answers.
                level = logging.WARNING if self.failed(address) else logging.DEBUG
                _logger.log(level, "name server %s does not answer: %s", address, error)
                failure = error.with_traceback(None)
            else:
                self.answered(address)
                return answer
        raise NameServerError(self._addresses, failure) from failure

    def answered(self, address: str) -> None:
        self._failed.discard(address)

    def failed(self, address: str) -> bool:
        """Use the next server, unless it is in use already. True for the first failure since the
        server last answered.
        """
        is_first = address not in self._failed
        self._failed.add(address)
        if self._addresses and self._addresses[self._position] == address:
            self._position = (self._position + 1) % len(self._addresses)
        return is_first
