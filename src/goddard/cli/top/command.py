"""``goddard top``: show brokers, topics and groups with their rates, until a key ends it."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.live import Live

from goddard.cli.terminal.mistakes import WrongUsageError, explained
from goddard.cli.terminal.output import Table
from goddard.cli.terminal.reads import check_complete
from goddard.cli.terminal.seconds import Seconds
from goddard.cli.terminal.target import Target, cluster_options
from goddard.cli.top.reading import Reading, read
from goddard.cli.top.screen import VIEWS, View, after_key, drawn, listing, rows_of
from goddard.cli.top.tables import Change
from goddard.errors import GoddardError

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin

_ESCAPES: Final = {"[A": "up", "[B": "down", "OA": "up", "OB": "down"}
_NAMES: Final = {"\r": "enter", "\n": "enter", "\x7f": "back", "\b": "back", "\x03": "q"}
_READ_BYTES: Final = 1024


@click.command()
@cluster_options
@click.option(
    "-i",
    "--interval",
    type=Seconds(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings; rates are averages over it.",
)
@click.option(
    "--view", type=click.Choice(VIEWS), default="topics", show_default=True, help="Begin with this."
)
@click.option("--filter", "filter_", default="", metavar="TEXT", help="Only names with this.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, allow_dash=True),
    metavar="FILE",
    help="Write one snapshot to a file, or to standard output (-), and stop.",
)
def top(target: Target, interval: float, view: str, filter_: str, output: str | None) -> None:
    """Show brokers, topics and groups, with rates and lag, as they change.

    Keys: b, t and g choose brokers, topics or groups; the arrows and Enter open a row, Esc closes
    it; s and S sort by another column, r reverses; / filters; q ends.
    """
    chosen = View(name=view, filter=filter_)
    if output is not None:
        if output != "-" and not Path(output).parent.is_dir():
            raise WrongUsageError(f"-o: there is no folder {Path(output).parent}")
        _snapshot(target, interval, chosen, output)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsageError(
            "standard input and output must be a terminal; -o - prints one snapshot"
        )

    async def work(admin: "Admin") -> None:
        first = await read(admin)
        with _keys() as keys:
            await _Session(admin, interval, chosen, first, keys).run()

    target.run(work)


def _snapshot(target: Target, interval: float, view: View, output: str) -> None:
    async def work(admin: "Admin") -> tuple[Reading, Reading]:
        first = await read(admin)
        await asyncio.sleep(interval)
        return first, await read(admin)

    before, now = target.run(work)
    shown = listing(view, Change(before, now))
    table = Table(shown.columns, rows_of(view, shown), empty=f"no {view.name}")
    if output == "-":
        target.output.table(table)
    else:
        try:
            with Path(output).open("w") as file, contextlib.redirect_stdout(file):
                target.output.table(table)
        except OSError as error:
            raise explained(error) from error
    check_complete(now.unread)


class _Session:
    """Reads and draws until the user ends it."""

    def __init__(
        self,
        admin: "Admin",
        interval: float,
        view: View,
        first: Reading,
        keys: "asyncio.Queue[str]",
    ) -> None:
        self._admin = admin
        self._interval = interval
        self._view = view
        self._before: Reading | None = None
        self._now = first
        self._keys = keys
        self._problem: str | None = None

    async def run(self) -> None:
        reader = asyncio.create_task(self._read())
        try:
            with Live(console=Console(), screen=True, auto_refresh=False) as live:
                while not self._view.is_ended:
                    self._draw(live)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._interval):
                            self._press(await self._keys.get())
                    while not self._keys.empty():
                        self._press(self._keys.get_nowait())
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                now = await read(self._admin)
            except GoddardError as error:
                self._problem = str(error)
            else:
                self._problem = None
                self._before, self._now = self._now, now

    def _press(self, key: str) -> None:
        shown = listing(self._view, Change(self._before, self._now))
        self._view = after_key(self._view, key, shown)

    def _draw(self, live: Live) -> None:
        unread = [*self._now.unread, *([self._problem] if self._problem else [])]
        change = Change(self._before, self._now)
        height = live.console.size.height
        live.update(drawn(self._view, change, unread, height), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator["asyncio.Queue[str]"]:
    """The keys that are pressed. The terminal passes them on at once and does not show them."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    number = sys.stdin.fileno()
    settings = termios.tcgetattr(number)
    tty.setcbreak(number)
    loop.add_reader(number, lambda: _take(number, keys))
    try:
        yield keys
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, settings)


def _take(number: int, keys: "asyncio.Queue[str]") -> None:
    text = os.read(number, _READ_BYTES).decode(errors="ignore")
    if not text:
        # The terminal is gone.
        keys.put_nowait("q")
    for key in parsed_keys(text):
        keys.put_nowait(key)


def parsed_keys(text: str) -> list[str]:
    """The keys in what a terminal sent; unknown escape sequences are left out."""
    found: list[str] = []
    rest = text
    while rest:
        first, rest = rest[0], rest[1:]
        if first != "\x1b":
            found.append(_NAMES.get(first, first))
        elif rest[:1] in ("[", "O"):
            end = next((n for n, char in enumerate(rest[1:], 1) if "@" <= char <= "~"), len(rest))
            name = _ESCAPES.get(rest[: end + 1])
            rest = rest[end + 1 :]
            if name is not None:
                found.append(name)
        else:
            found.append("esc")
    return found
