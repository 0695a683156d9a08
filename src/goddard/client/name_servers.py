"""The list of name servers: where it comes from, and which of them is asked.

A list is ``host:port`` parted by ``;``. It is given, or taken from NAMESRV_ADDR, or fetched from an
HTTP address. One server, chosen at random, is asked until it fails; then the next one is.
"""

import importlib
import os
import random
from collections.abc import Sequence
from typing import Any, Final

from goddard.client.errors import ClientError, NoNameServerError
from goddard.errors import ConfigError
from goddard.transport.client import split_address

ENVIRONMENT_VARIABLE: Final = "NAMESRV_ADDR"
_MAX_ANSWER_BYTES: Final = 64 * 1024


def parse_name_servers(text: str | None, *, use_environment: bool = True) -> tuple[str, ...]:
    """The addresses of a list; without one, those of the environment."""
    if text is None and use_environment:
        text = os.environ.get(ENVIRONMENT_VARIABLE)
    return _addresses(text or "")


def _addresses(text: object) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise ConfigError(f"name_servers is {text!r}; write it as 'host:port;host:port'")
    addresses: dict[str, None] = {}
    for part in text.replace(",", ";").split(";"):
        # RocketMQ's clients take the scheme that its cloud consoles show, and drop it.
        address = part.strip().removeprefix("http://").rstrip("/")
        if address:
            split_address(address)
            addresses[address] = None
    return tuple(addresses)


def fetch_name_servers(endpoint: str, timeout_ms: int) -> tuple[str, ...]:
    """Ask an HTTP address for the list. Blocking: not for the loop's thread."""
    # Few need it, and it takes as long to import as most of the client.
    http: Any = importlib.import_module("urllib.request")
    try:
        with http.urlopen(endpoint, timeout=timeout_ms / 1000) as answer:
            text: bytes = answer.read(_MAX_ANSWER_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ClientError(f"no name servers from {endpoint}: {error}", address=endpoint) from error
    if len(text) > _MAX_ANSWER_BYTES:
        raise ClientError(f"the list of name servers from {endpoint} is absurdly long")
    try:
        return _addresses(text.decode("utf-8", "replace").strip())
    except ConfigError as error:
        raise ClientError(f"no list of name servers from {endpoint}: {error}") from error


class NameServers:
    """The addresses, and the one in use."""

    __slots__ = ("_addresses", "_position", "_silent")

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        self._addresses: tuple[str, ...] = ()
        self._position = 0
        self._silent: set[str] = set()
        self.replace(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def replace(self, addresses: Sequence[str]) -> bool:
        """Take a new list; True if it differs. The server in use is kept if it is still there."""
        new = tuple(addresses)
        if set(new) == set(self._addresses):
            return False
        chosen = self._addresses[self._position] if self._addresses else None
        self._addresses = new
        if chosen in new:
            self._position = new.index(chosen)
        else:
            self._position = random.randrange(len(new)) if new else 0
        return True

    def chosen(self) -> str:
        if not self._addresses:
            raise NoNameServerError
        return self._addresses[self._position]

    def answered(self, address: str) -> None:
        self._silent.discard(address)

    def failed(self, address: str) -> bool:
        """Go on to the next, unless somebody else did already. True if it answered so far."""
        is_news = address not in self._silent
        self._silent.add(address)
        if self._addresses and self._addresses[self._position] == address:
            self._position = (self._position + 1) % len(self._addresses)
        return is_news
