"""What commands print: tables and records, as text, JSON, YAML or CSV.

A table has columns and rows; a record has named fields. The names of columns are words in lower
case; in JSON, YAML and CSV they are in camel case. None is "-" in text and null elsewhere. Text for
a terminal has no control characters, because keys and bodies of messages come from anyone.
"""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import click

from goddard.cli.render import time_text

_UNKNOWN: Final = "-"
_GAP: Final = "  "


class Format(StrEnum):
    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


class TimeMs(int):
    """A time in milliseconds since 1970, printed as UTC; 0 and less are no time."""

    def __str__(self) -> str:
        return time_text(int(self))


@dataclass(frozen=True, slots=True)
class Wide:
    """A column that text shows only with ``--format wide``."""

    name: str


@dataclass(frozen=True, slots=True)
class Table:
    """``empty`` is printed as text if there are no rows."""

    columns: Sequence[str | Wide]
    rows: Sequence[Sequence[Any]]
    empty: str = "none"


def camel_case(name: str) -> str:
    first, *others = name.split()
    return first + "".join(word.capitalize() for word in others)


def printable(text: str) -> str:
    """The text with control characters written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def cell_text(value: Any) -> str:
    """A value in a table for people."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(cell_text, value)) or _UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={cell_text(item)}" for key, item in value.items()) or _UNKNOWN
    return printable(str(value)) or _UNKNOWN


def plain(value: Any) -> Any:
    """A value for JSON and YAML."""
    if isinstance(value, TimeMs):
        return None if value <= 0 else str(value).replace(" ", "T")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def text_lines(table: Table, *, is_wide: bool) -> list[str]:
    """The header and the rows of a table, aligned; numbers to the right."""
    shown = [
        (index, column if isinstance(column, str) else column.name)
        for index, column in enumerate(table.columns)
        if is_wide or isinstance(column, str)
    ]
    columns: list[list[str]] = []
    for index, name in shown:
        values = [row[index] for row in table.rows]
        texts = [name.upper(), *map(cell_text, values)]
        width = max(map(len, texts))
        known = [value for value in values if value is not None]
        is_number = bool(known) and all(
            isinstance(value, (int, float)) and not isinstance(value, (bool, TimeMs))
            for value in known
        )
        columns.append([text.rjust(width) if is_number else text.ljust(width) for text in texts])
    return [_GAP.join(cells).rstrip() for cells in zip(*columns, strict=True)]


def yaml_lines(value: Any, indent: str = "") -> list[str]:
    """Block YAML; scalars are written as in JSON, which is YAML too."""
    if isinstance(value, Mapping) and value:
        lines = []
        for key, item in value.items():
            name = json.dumps(key, ensure_ascii=False) if _needs_quotes(key) else key
            if isinstance(item, (Mapping, list)) and item:
                lines += [f"{indent}{name}:", *yaml_lines(item, indent + "  ")]
            else:
                lines.append(f"{indent}{name}: {json.dumps(item, ensure_ascii=False)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            first, *others = yaml_lines(item, indent + "  ")
            lines += [f"{indent}- {first.lstrip()}", *others]
        return lines
    return [indent + json.dumps(value, ensure_ascii=False)]


def _needs_quotes(key: str) -> bool:
    return not (key.isascii() and key.replace("_", "").isalnum() and key[0].isalpha())


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            "" if value is None else value if isinstance(value, str) else _csv_cell(value)
            for value in map(plain, row)
        )
    return buffer.getvalue()


def _csv_cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Output:
    """Prints in the chosen format; headers are bold at a terminal."""

    def __init__(self, format_: Format) -> None:
        self.format = format_

    @property
    def is_text(self) -> bool:
        """Whether the output is for people."""
        return self.format in (Format.TEXT, Format.WIDE)

    def table(self, table: Table) -> None:
        names = [
            camel_case(column if isinstance(column, str) else column.name)
            for column in table.columns
        ]
        if self.format is Format.CSV:
            click.echo(csv_text(names, table.rows), nl=False)
        elif not self.is_text:
            self._structure([dict(zip(names, plain(row), strict=True)) for row in table.rows])
        elif not table.rows:
            click.echo(table.empty, err=True)
        else:
            header, *lines = text_lines(table, is_wide=self.format is Format.WIDE)
            click.echo("\n".join([click.style(header, bold=True), *lines]))

    def record(self, fields: Mapping[str, Any]) -> None:
        """Named values; a value that is a Table is printed below them."""
        if self.format is Format.CSV:
            flat = {key: value for key, value in fields.items() if not isinstance(value, Table)}
            rows = [(camel_case(key), value) for key, value in flat.items()]
            click.echo(csv_text(("field", "value"), rows), nl=False)
        elif not self.is_text:
            self._structure(
                {
                    camel_case(key): _table_values(value)
                    if isinstance(value, Table)
                    else plain(value)
                    for key, value in fields.items()
                }
            )
        else:
            self._record_text(fields)

    def _record_text(self, fields: Mapping[str, Any]) -> None:
        simple = {key: value for key, value in fields.items() if not isinstance(value, Table)}
        width = max(map(len, simple), default=0)
        for key, value in simple.items():
            click.echo(f"{click.style(key.ljust(width), bold=True)}{_GAP}{cell_text(value)}")
        for key, value in fields.items():
            if isinstance(value, Table):
                click.echo(f"\n{click.style(key, bold=True)}")
                if value.rows:
                    click.echo("\n".join(text_lines(value, is_wide=self.format is Format.WIDE)))
                else:
                    click.echo(value.empty)

    def next_row(
        self,
        columns: Sequence[str],
        values: Sequence[Any],
        *,
        is_first: bool,
        first_width: int = 24,
    ) -> None:
        """One more row of a table that grows; JSON is one object a line."""
        if self.format is Format.CSV:
            header, line = csv_text([camel_case(name) for name in columns], [values]).splitlines()
            lines = [header, line] if is_first else [line]
        elif not self.is_text:
            fields = dict(zip(map(camel_case, columns), plain(values), strict=True))
            lines = [json.dumps(fields, ensure_ascii=False)]
        else:
            texts = [cell_text(value) for value in values]
            widths = [max(len(name), 10 if n else first_width) for n, name in enumerate(columns)]
            line = _GAP.join(map(str.ljust, texts, widths)).rstrip()
            header = _GAP.join(map(str.ljust, map(str.upper, columns), widths)).rstrip()
            lines = [click.style(header, bold=True), line] if is_first else [line]
        for one in lines:
            click.echo(one)

    def done(self, text: str) -> None:
        """Say what was done; on standard error, so that a program reads only results."""
        click.echo(text, err=True)

    def _structure(self, value: Any) -> None:
        if self.format is Format.YAML:
            click.echo("\n".join(yaml_lines(value)))
        else:
            click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _table_values(table: Table) -> list[dict[str, Any]]:
    names = [
        camel_case(column if isinstance(column, str) else column.name) for column in table.columns
    ]
    return [dict(zip(names, plain(row), strict=True)) for row in table.rows]


def is_terminal() -> bool:
    """Whether the user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()
