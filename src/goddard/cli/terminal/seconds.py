"""Options that are a number of seconds: finite, and within bounds."""

import math
from typing import Any, Final

import click

_DAY: Final = 86_400


class Seconds(click.FloatRange):
    """``nan`` and ``inf`` are numbers to Python, but nobody can wait for them."""

    name = "seconds"

    def __init__(self, least: float, most: float = _DAY) -> None:
        super().__init__(least, most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            self.fail(f"{str(value)!r} is not a number of seconds", param, ctx)
        return float(super().convert(seconds, param, ctx))
