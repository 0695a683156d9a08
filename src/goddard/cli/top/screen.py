"""The screen of ``goddard top``: what the user chose, how keys change it, and how it is drawn."""

import time
from dataclasses import dataclass, replace
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from goddard.cli.terminal.output import cell_text
from goddard.cli.top.tables import Change, Listing, Row, arranged

VIEWS: Final = ("brokers", "topics", "groups")
_KEYS: Final = (
    ("b t g", "view"),
    ("up down", "select"),
    ("enter", "open"),
    ("esc", "back"),
    ("s S", "sort"),
    ("r", "reverse"),
    ("/", "filter"),
    ("q", "quit"),
)
# Title, keys, and the header of the table.
_FIXED_LINES: Final = 5
_MIN_ROWS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown. ``opened`` is the row whose details are shown; ``sort`` None: the default."""

    name: str = "topics"
    opened: str | None = None
    selected: int = 0
    sort: int | None = None
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    is_ended: bool = False


def listing(view: View, change: Change) -> Listing:
    """The table that a view shows."""
    if view.opened is None:
        tables = {"brokers": change.brokers, "topics": change.topics, "groups": change.groups}
        return tables[view.name]()
    details = {"brokers": change.broker, "topics": change.topic, "groups": change.group}
    return details[view.name](view.opened)


def rows_of(view: View, shown: Listing) -> list[Row]:
    """The rows in the order of the screen."""
    sort = shown.sort if view.sort is None else view.sort % len(shown.columns)
    is_descending = (shown.is_descending if view.sort is None else sort != 0) != view.is_reversed
    return arranged(shown.rows, sort, view.filter, is_descending=is_descending)


def after_key(view: View, key: str, shown: Listing) -> View:
    """The view after a key: a character, or ``up``, ``down``, ``enter``, ``esc``, ``back``."""
    if view.is_typing:
        return _after_typing(view, key)
    names = {name[0]: name for name in VIEWS}
    if key in names:
        return View(name=names[key])
    if key in ("up", "down"):
        last = max(0, len(rows_of(view, shown)) - 1)
        step = -1 if key == "up" else 1
        return replace(view, selected=min(last, max(0, view.selected + step)))
    if key in ("s", "S"):
        current = shown.sort if view.sort is None else view.sort
        return replace(view, sort=(current + (1 if key == "s" else -1)) % len(shown.columns))
    if key == "r":
        return replace(view, is_reversed=not view.is_reversed)
    if key == "/":
        return replace(view, is_typing=True)
    if key == "q":
        return replace(view, is_ended=True)
    if key == "enter" and view.opened is None:
        rows = rows_of(view, shown)
        if view.selected < len(rows):
            return View(name=view.name, opened=str(rows[view.selected][0]))
    if key == "esc":
        return replace(view, filter="") if view.filter else View(name=view.name)
    return view


def _after_typing(view: View, key: str) -> View:
    if key in ("enter", "esc"):
        return replace(view, is_typing=False, filter=view.filter if key == "enter" else "")
    if key == "back":
        return replace(view, filter=view.filter[:-1], selected=0)
    if len(key) == 1 and key.isprintable():
        return replace(view, filter=view.filter + key, selected=0)
    return view


def drawn(view: View, change: Change, unread: list[str], height: int) -> Group:
    """The screen: a title, the table around the selected row, and the keys."""
    shown = listing(view, change)
    rows = rows_of(view, shown)
    room = max(_MIN_ROWS, height - _FIXED_LINES)
    selected = min(view.selected, max(0, len(rows) - 1))
    first = max(0, min(selected - room // 2, len(rows) - room))
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold")
    sort = shown.sort if view.sort is None else view.sort % len(shown.columns)
    for index, name in enumerate(shown.columns):
        is_number = index > 0 and all(
            row[index] is None or isinstance(row[index], (int, float)) for row in rows
        )
        mark = " *" if index == sort else ""
        table.add_column(
            f"{name.upper()}{mark}", justify="right" if is_number else "left", no_wrap=True
        )
    for index, row in enumerate(rows[first : first + room], first):
        style = "reverse" if index == selected else ""
        table.add_row(*(Text(_cell(value)) for value in row), style=style)
    return Group(_title(view, shown, unread, len(rows)), "", table, "", _footer(view))


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else cell_text(value)


def _title(view: View, shown: Listing, unread: list[str], count: int) -> Text:
    title = Text("goddard top", style="bold")
    title.append(f"   {shown.title}: {count}", style="cyan")
    title.append(f"   {time.strftime('%H:%M:%S')}", style="dim")
    if view.filter or view.is_typing:
        title.append(f"   filter: {view.filter}{'_' if view.is_typing else ''}", style="yellow")
    if unread:
        title.append(f"   not read: {', '.join(sorted(unread)[:3])}", style="bold red")
    return title


def _footer(view: View) -> Text:
    if view.is_typing:
        return Text("type a part of a name; enter keeps it, esc clears it", style="dim")
    footer = Text()
    for key, meaning in _KEYS:
        footer.append(key, style="bold")
        footer.append(f" {meaning}  ", style="dim")
    return footer
