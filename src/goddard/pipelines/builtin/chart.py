"""The chart of the pipeline ``traffic``: messages and bytes over time, latencies, who is behind.

A topic has one color in all of it. A day of minutes is one outline per topic, not thousands of
bars: the picture is small and soon drawn.
"""

import datetime as dt
import importlib
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_MAX_TOPICS: Final = 8
_MAX_GROUPS: Final = 8
_MAX_NAME: Final = 32
_MAX_MARKED: Final = 40
_MAX_STEPS: Final = 240
_LEAST_STEPS: Final = 8
_COLORS: Final = (
    "#3b6fb6", "#e08a2e", "#4c9f70", "#c2504c", "#8468b0", "#8c6d5a", "#d07bb0", "#7f8790",
)  # fmt: skip
_REST: Final = "#b9bec4"
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclass(frozen=True, slots=True)
class Slot:
    """A topic's traffic in one window of time, a minute unless the job says otherwise; UTC."""

    at: dt.datetime
    length: dt.timedelta
    topic: str
    messages: int
    bytes: int
    p50_ms: int
    p95_ms: int
    p99_ms: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    group: str
    topic: str
    lag: int


def chart(slots: Sequence[Slot], lags: Sequence[GroupLag]) -> str:
    """The traffic as an SVG."""
    slots = merged(slots)
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    axes: Any = figure.subplots(2, 2)
    topics = busiest(slots)
    times = _times(slots)
    length = _length_text(slots[0].length)
    _draw_topics(axes[0][0], times, slots, topics, "messages", f"Messages per {length}")
    _draw_topics(axes[0][1], times, slots, topics, "bytes", f"Bytes per {length}")
    axes[0][1].yaxis.set_major_formatter(lambda value, _: size_text(value))
    _draw_latency(axes[1][0], times, slots)
    _draw_lags(axes[1][1], lags)
    handles, labels = axes[0][0].get_legend_handles_labels()
    # Above both pictures of topics, so that it hides neither.
    columns = len(labels) if sum(map(len, labels)) < 90 else 3
    figure.legend(
        handles,
        labels,
        title=_title(slots, times),
        title_fontsize=13,
        alignment="left",
        loc="outside upper left",
        ncols=columns,
        fontsize=9,
        frameon=False,
    )
    output = io.StringIO()
    # Words as words, not as outlines: smaller, and they can be searched.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "goddard"}):
        figure.savefig(output, format="svg", metadata={"Date": None})
    return output.getvalue()


def merged(slots: Sequence[Slot]) -> list[Slot]:
    """Several windows as one where there are more of them than a picture can show.

    Counts add up; percentiles do not, so the worst stands for all.
    """
    step = slots[0].length
    first = min(each.at for each in slots)
    count = (max(each.at for each in slots) - first) // step + 1
    factor = -(-count // _MAX_STEPS)
    if factor == 1:
        return list(slots)
    groups: dict[tuple[int, str], list[Slot]] = defaultdict(list)
    for each in slots:
        groups[(each.at - first) // (factor * step), each.topic].append(each)
    return [
        Slot(
            at=first + number * factor * step,
            length=factor * step,
            topic=topic,
            messages=sum(each.messages for each in group),
            bytes=sum(each.bytes for each in group),
            p50_ms=max(each.p50_ms for each in group),
            p95_ms=max(each.p95_ms for each in group),
            p99_ms=max(each.p99_ms for each in group),
        )
        for (number, topic), group in groups.items()
    ]


def size_text(size_bytes: float) -> str:
    """A size as people say it: 1.2 MB."""
    for unit, factor in _UNITS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def busiest(slots: Sequence[Slot]) -> list[str]:
    """The topics that get a color, by their share of messages and of bytes."""
    shares: dict[str, float] = defaultdict(float)
    for field in ("messages", "bytes"):
        whole = sum(getattr(each, field) for each in slots) or 1
        for each in slots:
            shares[each.topic] += getattr(each, field) / whole
    ranked = sorted(shares, key=lambda topic: (-shares[topic], topic))
    return ranked if len(ranked) <= _MAX_TOPICS else ranked[: _MAX_TOPICS - 1]


def stacked(
    slots: Sequence[Slot], topics: Sequence[str], field: str
) -> dict[str, dict[dt.datetime, int]]:
    """The values of some topics, and of all others as one."""
    others = len({each.topic for each in slots} - set(topics))
    rest = "1 other topic" if others == 1 else f"{others} other topics"
    series: dict[str, dict[dt.datetime, int]] = {topic: {} for topic in topics}
    if others:
        series[rest] = {}
    for each in slots:
        values = series.get(each.topic)
        if values is None or each.topic not in topics:
            values = series[rest]
        values[each.at] = values.get(each.at, 0) + int(getattr(each, field))
    return series


def _title(slots: Sequence[Slot], times: Sequence[dt.datetime]) -> str:
    messages = sum(each.messages for each in slots)
    sizes = size_text(sum(each.bytes for each in slots))
    topics = len({each.topic for each in slots})
    begin, end = times[0], times[-1] + slots[0].length
    last = f"{end:%H:%M}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
    return (
        f"{_counted(messages, 'message')}, {sizes}, {_counted(topics, 'topic')}: "
        f"{begin:%Y-%m-%d %H:%M} to {last} UTC"
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _short(name: str) -> str:
    """A name as matplotlib shows it: dollars would be mathematics, and legends hide what begins
    with an underscore."""
    name = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
    return name.replace("$", r"\$").replace("_", " _", 1 if name.startswith("_") else 0)


def _times(slots: Sequence[Slot]) -> list[dt.datetime]:
    """Every window from the first to the last, those without traffic too."""
    first, last = min(each.at for each in slots), max(each.at for each in slots)
    step = slots[0].length
    return [first + number * step for number in range((last - first) // step + 1)]


def _length_text(length: dt.timedelta) -> str:
    seconds = length.total_seconds()
    for unit, unit_seconds in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        if seconds % unit_seconds == 0:
            return unit if seconds == unit_seconds else f"{seconds / unit_seconds:g} {unit}s"
    return f"{seconds:g} seconds"


def _draw_topics(
    axes: Axes,
    times: Sequence[dt.datetime],
    slots: Sequence[Slot],
    topics: Sequence[str],
    field: str,
    title: str,
) -> None:
    below = [0] * len(times)
    # matplotlib takes times where its types say numbers.
    stairs: Any = axes.stairs
    edges = [*times, times[-1] + slots[0].length]
    for number, (topic, values) in enumerate(stacked(slots, topics, field).items()):
        color = _COLORS[number] if topic in topics else _REST
        above = [low + values.get(at, 0) for low, at in zip(below, times, strict=True)]
        stairs(above, edges, baseline=below, fill=True, color=color, label=_short(topic))
        below = above
    axes.set_ylim(0, max(*below, 1) * 1.05)
    _dress(axes, title)
    _dress_times(axes, edges)


def _draw_latency(axes: Axes, times: Sequence[dt.datetime], slots: Sequence[Slot]) -> None:
    # Percentiles of topics do not add up to one of all: the busiest and the worst stand for them.
    by_time: dict[dt.datetime, list[Slot]] = defaultdict(list)
    for each in slots:
        by_time[each.at].append(each)
    lines: Mapping[str, list[float]] = {
        "p99, slowest topic": _line(times, by_time, lambda x: max(m.p99_ms for m in x)),
        "p95, slowest topic": _line(times, by_time, lambda x: max(m.p95_ms for m in x)),
        "p50, busiest topic": _line(times, by_time, lambda x: _most(x).p50_ms),
    }
    half = slots[0].length / 2
    marker = "o" if len(times) <= _MAX_MARKED else ""
    plot: Any = axes.plot
    for color, (label, values) in zip((_COLORS[3], *_COLORS[1::-1]), lines.items(), strict=True):
        middles = [at + half for at in times]
        plot(middles, values, marker=marker, markersize=3, linewidth=1.5, color=color, label=label)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    # Room for the legend above the lines.
    axes.set_ylim(0, max(1, *(each.p99_ms for each in slots)) * 1.35)
    _dress(axes, "Time from sending to being stored")
    _dress_times(axes, [*times, times[-1] + slots[0].length])
    axes.yaxis.set_major_formatter("{x:,.0f} ms")


def _most(some: Sequence[Slot]) -> Slot:
    return max(some, key=lambda each: each.messages)


def _line(
    times: Sequence[dt.datetime],
    by_time: Mapping[dt.datetime, list[Slot]],
    of: Callable[[list[Slot]], int],
) -> list[float]:
    return [float(of(by_time[at])) if at in by_time else float("nan") for at in times]


def _draw_lags(axes: Axes, lags: Sequence[GroupLag]) -> None:
    _dress(axes, "Messages that groups have not consumed yet")
    behind = [each for each in lags if each.lag][:_MAX_GROUPS]
    if not behind:
        groups = len({each.group for each in lags})
        words = f"none: {_counted(groups, 'group')} up to date" if groups else "no consumer groups"
        axes.text(0.5, 0.5, words, ha="center", va="center", color=_COLORS[-1])
        axes.set_axis_off()
        axes.set_title(axes.get_title(loc="left"), fontsize=11, loc="left")
        return
    behind.reverse()
    labels = [f"{_short(each.group)}\n{_short(each.topic)}" for each in behind]
    bars = axes.barh(range(len(behind)), [each.lag for each in behind], color=_COLORS[0])
    axes.set_yticks(range(len(behind)), labels, fontsize=8)
    axes.bar_label(bars, fmt="{:,.0f}", padding=4, fontsize=8)
    axes.set_xlim(0, 1.2 * max(each.lag for each in behind))
    # A single bar is not as high as the picture.
    axes.set_ylim(min(-0.6, len(behind) - 4.6), len(behind) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _dress_times(axes: Any, edges: Sequence[dt.datetime]) -> None:
    # matplotlib takes times where its types say numbers.
    dates: Any = importlib.import_module("matplotlib.dates")
    locator = dates.AutoDateLocator(tz=dt.UTC, minticks=2, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=dt.UTC))
    # A minute or two are not as wide as the picture.
    margin = (edges[1] - edges[0]) * max(0, _LEAST_STEPS - len(edges) + 1) / 2
    axes.set_xlim(edges[0] - margin, edges[-1] + margin)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    axes.set_axisbelow(True)
