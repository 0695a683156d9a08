"""Curves as SVG: one panel for each, values over a size in equal steps."""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_COLORS: Final = {"goddard": "#1a7f5a", "rocketmq": "#d77310"}
_NAMES: Final = {"goddard": "Goddard", "rocketmq": "RocketMQ"}
_WIDTH: Final = 380
_HEIGHT: Final = 240
_LEFT: Final = 62
_TOP: Final = 44
_RIGHT: Final = 16
_BOTTOM: Final = 46
_COLUMNS: Final = 2


class Curve(NamedTuple):
    """``points`` are pairs of size and value."""

    name: str
    points: Sequence[tuple[int, float]]


def plot(panels: Sequence[tuple[str, str, Sequence[Curve]]]) -> str:
    """A picture of panels, each with a title, the name of its sizes, and curves."""
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, axis, curves) in enumerate(panels):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(title, axis, curves)
        parts.append("</g>")
    for number, (key, name) in enumerate(_NAMES.items()):
        x, y = 62 + 110 * number, rows * _HEIGHT + 16
        parts.append(f'<rect x="{x}" y="{y - 9}" width="14" height="4" fill="{_COLORS[key]}"/>')
        parts.append(_text(x + 20, y - 3, name))
    return "\n".join((*parts, "</svg>\n"))


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#222222"{more}>'
        f"{escape(text)}</text>"
    )


def _panel(title: str, axis: str, curves: Sequence[Curve]) -> list[str]:
    sizes = sorted({size for curve in curves for size, _ in curve.points})
    highest = max((value for curve in curves for _, value in curve.points), default=1.0)
    step = _nice(highest / 4)
    top = step * max(1, -int(-highest // step))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x_of(size: int) -> float:
        return _LEFT + inner_width * (sizes.index(size) + 0.5) / len(sizes)

    def y_of(value: float) -> float:
        return _TOP + inner_height * (1 - value / top)

    parts = [_text(_LEFT, 24, title, more=' font-weight="bold"')]
    for line in range(int(top / step) + 1):
        y = y_of(line * step)
        parts.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" '
            'stroke="#dddddd"/>'
        )
        parts.append(_text(_LEFT - 6, y + 4, f"{line * step:,.0f}", "end"))
    parts += [_text(x_of(size), _HEIGHT - _BOTTOM + 18, f"{size:,}", "middle") for size in sizes]
    parts.append(_text(_LEFT + inner_width / 2, _HEIGHT - _BOTTOM + 34, axis, "middle"))
    for curve in curves:
        color = _COLORS[curve.name]
        places = [(x_of(size), y_of(value)) for size, value in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
    return parts


def _nice(value: float) -> float:
    """The next number of 1, 2 or 5 with zeros."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    return next(power * each for each in (1, 2, 5, 10) if power * each >= value)
