"""Output of commands: tables and progress bars for people, JSON for programs.

rich is imported on first use, because its import takes a tenth of a second.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

Progress = Callable[[int, int], None]

_PIPE_COLUMNS = 200
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_json_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are right-aligned, wide content is wrapped."""
    content = list(rows)
    table = _load("rich.table").Table(
        title=title, title_justify="left", box=_load("rich.box").SIMPLE_HEAD, pad_edge=False
    )
    for number, name in enumerate(columns):
        is_number = bool(content) and all(isinstance(row[number], int) for row in content)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    text = _load("rich.text").Text
    for row in content:
        table.add_row(*(text(str(cell)) for cell in row))
    # In a pipe or a file, lines may be long.
    width = None if sys.stdout.isatty() else _PIPE_COLUMNS
    _load("rich.console").Console(file=sys.stdout, highlight=False, width=width).print(table)


@contextmanager
def progress_bar(label: str, *, shown: bool, is_bytes: bool = True) -> Iterator[Progress]:
    """A progress bar on standard error, if ``shown`` and if that is a terminal; of bytes, or of a
    number of things.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda _done, _total: None
        return
    progress = _load("rich.progress")
    console = _load("rich.console").Console(stderr=True)
    sizes = (progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn())
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *(sizes if is_bytes else (progress.MofNCompleteColumn(),)),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _load(module: str) -> Any:
    return importlib.import_module(module)


def bytes_text(count: int) -> str:
    """A size for people, such as 1.5 GiB."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 message", "2 messages"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def time_text(time_ms: int) -> str:
    """UTC in milliseconds; "-" for no time, the number if it is out of range."""
    if time_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d}Z"
