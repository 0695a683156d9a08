"""One run of a verb: its options, the connection, its output, and the brokers that it names."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

from goddard.cli.mqadmin.options import Options
from goddard.cli.terminal.mistakes import WrongUsageError
from goddard.cli.terminal.output import printable
from goddard.cli.terminal.target import Target
from goddard.client.admin.requests import broker_address, broker_addresses
from goddard.client.errors import PartialFailureError
from goddard.client.queries import each

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

S = TypeVar("S")
R = TypeVar("R")


_PARALLEL: Final = 256


async def in_parallel(items: Iterable[S], work: Callable[[S], Awaitable[R]]) -> list[R]:
    """The results for many items, in their order; a bounded number is in progress."""
    slots = asyncio.Semaphore(_PARALLEL)

    async def of_one(item: S) -> R:
        async with slots:
            return await work(item)

    return await asyncio.gather(*map(of_one, items))


class Place(TypedDict, total=False):
    """Where to change something."""

    cluster: str
    broker: str


class Call:
    """What the function of a verb gets."""

    def __init__(self, options: Options, admin: "Admin", target: Target) -> None:
        self.options = options
        self.admin = admin
        self.target = target
        self._is_terminal = sys.stdout.isatty()

    def line(self, text: str = "") -> None:
        """Print a line."""
        self.text(f"{text}\n")

    def row(self, layout: str, *values: Any) -> None:
        """Print a line with columns; ``layout`` is a format as in Java's printf."""
        self.line(layout % values)

    def text(self, text: str) -> None:
        """Print without a line break at the end; at a terminal, without control characters."""
        if self._is_terminal and not text.isprintable():
            parts = text.replace("\t", "        ").split("\n")
            text = "\n".join(map(printable, parts))
        sys.stdout.write(text)

    async def broker(self, name: str = "b") -> str:
        """The address of the broker that an option names, by address or by name."""
        return await broker_address(self.admin, self.options.text(name))

    async def masters(self, broker: str = "b", cluster: str = "c") -> list[str]:
        """The broker of one option, or the masters of the cluster of another."""
        return await self._brokers(broker, cluster, with_replicas=False)

    async def all_brokers(self, broker: str = "b", cluster: str = "c") -> list[str]:
        """The broker of one option, or all brokers of the cluster of another, slaves too."""
        return await self._brokers(broker, cluster, with_replicas=True)

    def place(self, broker: str = "b", cluster: str = "c") -> Place:
        """The broker or the cluster of the options, for methods that take one of them."""
        if broker in self.options:
            return {"broker": self.options.text(broker)}
        if cluster not in self.options:
            raise WrongUsageError(f"-{broker} or -{cluster} must be given")
        return {"cluster": self.options.text(cluster)}

    def any_place(self, broker: str = "b", cluster: str = "c") -> Place:
        """Like ``place``; nothing, which means all brokers, if neither option is given."""
        return self.place(broker, cluster) if {broker, cluster} & self.options.given else {}

    async def _brokers(self, broker: str, cluster: str, *, with_replicas: bool) -> list[str]:
        if broker in self.options:
            return [await self.broker(broker)]
        if cluster not in self.options:
            raise WrongUsageError(f"-{broker} or -{cluster} must be given")
        name = self.options.text(cluster)
        return list(await broker_addresses(self.admin, cluster=name, with_replicas=with_replicas))

    async def changed(
        self, change: Awaitable[Iterable[str]], done: Callable[[str], str]
    ) -> list[str]:
        """Make a change at brokers; prints a line for each that has it, also if others failed."""
        try:
            addresses = list(await change)
        except PartialFailureError as error:
            for address in error.results:
                self.line(done(address))
            raise
        for address in addresses:
            self.line(done(address))
        return addresses

    async def on_each(
        self,
        addresses: Iterable[str],
        work: Callable[[str], Awaitable[object]],
        done: Callable[[str], str],
    ) -> list[str]:
        """Like ``changed``, for a change that is made at one broker at a time."""
        return await self.changed(each(addresses, work), done)

    async def repeat(self, work: Callable[[], Awaitable[None]], default_seconds: int = 3) -> None:
        """Do something once, or for ever at the interval of the option ``-i``."""
        await work()
        seconds = self.options.number("i", default_seconds, least=1)
        while "i" in self.options:
            sys.stdout.flush()
            await asyncio.sleep(seconds)
            await work()
