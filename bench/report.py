"""Print results as tables and save them as JSON in bench/results."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from goddard import __version__

_RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. A ratio above 1 means that Goddard is better.

    ``fallback`` is Goddard without its compiled modules.
    """

    work: str
    unit: str
    ours: float | None
    peer: float | None = None
    more_is_better: bool = True
    fallback: float | None = None

    @property
    def ratio(self) -> float | None:
        if not self.peer or not self.ours:
            return None
        return self.ours / self.peer if self.more_is_better else self.peer / self.ours


@dataclass(slots=True)
class Report:
    title: str
    peer: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(row)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def show(reports: Sequence[Report]) -> None:
    console = Console()
    for report in reports:
        table = Table(title=report.title, title_justify="left", header_style="bold")
        table.add_column("work")
        table.add_column("unit")
        table.add_column("Goddard", justify="right")
        has_fallback = any(row.fallback is not None for row in report.rows)
        if has_fallback:
            table.add_column("not compiled", justify="right")
        table.add_column(report.peer, justify="right")
        table.add_column("ratio (>1: we are better)", justify="right")
        for row in report.rows:
            ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
            fallback = [_number(row.fallback)] if has_fallback else []
            table.add_row(
                row.work, row.unit, _number(row.ours), *fallback, _number(row.peer), ratio
            )
        console.print(table)
        for note in report.notes:
            console.print(f"  {note}", highlight=False)
        console.print()


def save(reports: Sequence[Report]) -> Path:
    """Save the results with a description of the machine."""
    _RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = _RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    content = {
        "time": now.isoformat(timespec="seconds"),
        "goddard": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "reports": [asdict(report) for report in reports],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
