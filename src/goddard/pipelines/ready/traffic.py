"""What the pipeline ``traffic`` does besides its table: the lag of groups, and a chart.

The lag is sampled when the pipeline ends, into ``<path>_lag``; the chart is ``<path>.svg``.
"""

import datetime as dt
import importlib
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pyspark.sql import SparkSession

from goddard.client.blocking_admin import Admin
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.pipelines.batches import single
from goddard.pipelines.files import Files
from goddard.pipelines.jobs import Job
from goddard.pipelines.parquet import ParquetTable
from goddard.protocol.names import is_dlq_topic, is_retry_topic, is_system_group
from goddard.spark.options import SourceOptions, parse_source

_MAX_LINES: Final = 8
_MAX_SLOTS: Final = 24 * 60
_COLORS: Final = (
    "#3b6fb6", "#e08a2e", "#4c9f70", "#c2504c", "#8468b0", "#8c6d5a", "#d07bb0", "#7f8790",
)  # fmt: skip
_REST: Final = "#b9bec4"


@dataclass(frozen=True, slots=True)
class Slot:
    """A topic's traffic in one window of time, a minute unless the job says otherwise."""

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


def finish(job: Job, spark: SparkSession) -> str:
    """After a run: sample the lag, draw the chart; returns what to tell the user."""
    assert job.sink.path is not None
    lags = sample_lags(parse_source(job.source.options, is_streaming=True))
    now = dt.datetime.now(dt.UTC)
    if lags:
        rows = [(now, each.group, each.topic, each.lag) for each in lags]
        schema = "sampledAt timestamp, consumerGroup string, topic string, lag bigint"
        table = ParquetTable(Files(spark, f"{job.sink.path}_lag"))
        table.write(spark.createDataFrame(rows, schema).coalesce(1), single("lag", now.isoformat()))
    slots = read_slots(spark, job.sink.path)
    if not slots:
        return "there was no traffic yet, so there is no chart"
    picture = f"{job.sink.path}.svg"
    folder, _, name = picture.rpartition("/")
    files = Files(spark, folder or ".")
    files.delete(name)
    files.write_text(name, chart(slots, lags))
    return f"chart: {picture}"


def sample_lags(options: SourceOptions) -> list[GroupLag]:
    """How far every consumer group is behind in every topic that it consumes; the longest first."""
    reach = options.connecting
    lags: dict[tuple[str, str], int] = defaultdict(int)
    latest: dict[MessageQueue, int | None] = {}
    with Admin(name_servers=reach.name_servers, **reach.keywords) as admin:
        masters = [place for place in admin.brokers() if place.is_master]
        for place in masters:
            # By offsets and not by group: groups of Spark and of old clients are declared nowhere.
            for (topic, group), positions in admin.consumer_offsets(place.address).items():
                if is_system_group(group) or is_retry_topic(topic) or is_dlq_topic(topic):
                    continue
                for queue_id, position in positions.items():
                    queue = MessageQueue(topic, place.name, queue_id)
                    if queue not in latest:
                        latest[queue] = _max_offset(admin, queue)
                    if (end := latest[queue]) is not None:
                        lags[group, topic] += max(0, end - position)
    found = [GroupLag(group, topic, lag) for (group, topic), lag in lags.items()]
    return sorted(found, key=lambda each: (-each.lag, each.group, each.topic))


def _max_offset(admin: Admin, queue: MessageQueue) -> int | None:
    try:
        return admin.max_offset(queue)
    except GoddardError:
        return None  # its topic was deleted; offsets stay behind for a while


def read_slots(spark: SparkSession, path: str) -> list[Slot]:
    """The newest windows of the table; of minutes, those of a day."""
    if not Files(spark, path).walk(""):
        return []
    table = spark.read.parquet(path)
    newest = table.selectExpr("max(windowStart) AS newest").collect()[0]["newest"]
    if newest is None:
        return []
    length = table.selectExpr("min(windowEnd - windowStart) AS length").collect()[0]["length"]
    since = newest - _MAX_SLOTS * length
    rows = table.where(table["windowStart"] > since).orderBy("windowStart", "topic").collect()
    return [
        Slot(
            at=row["windowStart"],
            length=row["windowEnd"] - row["windowStart"],
            topic=row["topic"],
            messages=row["messages"],
            bytes=row["bytes"] or 0,
            p50_ms=row["latencyP50Ms"] or 0,
            p95_ms=row["latencyP95Ms"] or 0,
            p99_ms=row["latencyP99Ms"] or 0,
        )
        for row in rows
    ]


# Drawing


def chart(slots: Sequence[Slot], lags: Sequence[GroupLag]) -> str:
    """The traffic as an SVG: messages and bytes over time, latencies, and who is behind."""
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    axes: Any = figure.subplots(2, 2)
    times = _times(slots)
    _draw_topics(axes[0][0], times, slots, "messages", f"Messages per {_length_text(slots)}")
    _draw_topics(axes[0][1], times, slots, "bytes", f"Bytes per {_length_text(slots)}")
    _draw_latency(axes[1][0], times, slots)
    _draw_lags(axes[1][1], lags)
    total = sum(each.messages for each in slots)
    topics = len({each.topic for each in slots})
    figure.suptitle(
        f"{total:,} messages in {topics} topics, {times[0]:%Y-%m-%d %H:%M:%S} to "
        f"{times[-1]:%H:%M:%S} UTC",
        fontsize=13,
    )
    output = io.StringIO()
    # Words as words, not as outlines: smaller, and they can be searched.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "goddard"}):
        figure.savefig(output, format="svg", metadata={"Date": None})
    return output.getvalue()


def _times(slots: Sequence[Slot]) -> list[dt.datetime]:
    """Every window from the first to the last, those without traffic too."""
    first, last = min(each.at for each in slots), max(each.at for each in slots)
    step = slots[0].length
    return [first + number * step for number in range((last - first) // step + 1)]


def _length_text(slots: Sequence[Slot]) -> str:
    seconds = slots[0].length.total_seconds()
    known = {1: "second", 60: "minute", 3_600: "hour", 86_400: "day"}
    return known.get(int(seconds), f"{seconds:g} seconds")


def largest(slots: Sequence[Slot], field: str) -> dict[str, dict[dt.datetime, int]]:
    """The values of the busiest topics, and of all others as one."""
    totals: dict[str, int] = defaultdict(int)
    for each in slots:
        totals[each.topic] += getattr(each, field)
    ranked = sorted(totals, key=lambda topic: (-totals[topic], topic))
    own = set(ranked if len(ranked) <= _MAX_LINES else ranked[: _MAX_LINES - 1])
    rest = f"{len(ranked) - len(own)} others"
    series: dict[str, dict[dt.datetime, int]] = {}
    for topic in ranked:
        series.setdefault(topic if topic in own else rest, {})
    for each in slots:
        values = series[each.topic if each.topic in own else rest]
        values[each.at] = values.get(each.at, 0) + int(getattr(each, field))
    return series


def _draw_topics(
    axes: Axes,
    times: Sequence[dt.datetime],
    slots: Sequence[Slot],
    field: str,
    title: str,
) -> None:
    series = largest(slots, field)
    below = [0] * len(times)
    width = 0.9 * slots[0].length
    for number, (topic, values) in enumerate(series.items()):
        color = _REST if topic.endswith(" others") else _COLORS[number % len(_COLORS)]
        heights = [values.get(at, 0) for at in times]
        bar: Any = axes.bar
        bar(times, heights, width, bottom=below, color=color, label=topic)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    # Room for the legend above the bars.
    axes.set_ylim(0, max(*below, 1) * 1.35)
    _dress(axes, title)
    _dress_times(axes, times, slots[0].length)


def _draw_latency(axes: Axes, times: Sequence[dt.datetime], slots: Sequence[Slot]) -> None:
    # Percentiles of topics do not add up to one of all: the busiest and the worst stand for them.
    by_time: dict[dt.datetime, list[Slot]] = defaultdict(list)
    for each in slots:
        by_time[each.at].append(each)
    lines: Mapping[str, list[float]] = {
        "p50, busiest topic": _line(times, by_time, lambda some: _busiest(some).p50_ms),
        "p95, slowest topic": _line(times, by_time, lambda some: max(m.p95_ms for m in some)),
        "p99, slowest topic": _line(times, by_time, lambda some: max(m.p99_ms for m in some)),
    }
    plot: Any = axes.plot
    for color, (label, values) in zip(_COLORS, lines.items(), strict=False):
        plot(times, values, marker="o", markersize=3, linewidth=1.5, color=color, label=label)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    axes.set_ylim(0, max(1, *(each.p99_ms for each in slots)) * 1.35)
    _dress(axes, "Milliseconds from sending to being stored")
    _dress_times(axes, times, slots[0].length)


def _busiest(some: Sequence[Slot]) -> Slot:
    return max(some, key=lambda each: each.messages)


def _line(times: Sequence[dt.datetime], by_time: Mapping[dt.datetime, list[Slot]], of: Any) -> Any:
    return [float(of(by_time[at])) if at in by_time else float("nan") for at in times]


def _draw_lags(axes: Axes, lags: Sequence[GroupLag]) -> None:
    shown = list(reversed(lags[:_MAX_LINES]))
    _dress(axes, "Messages that groups have not consumed yet")
    if not shown:
        axes.text(0.5, 0.5, "no consumer groups", ha="center", va="center", color=_REST)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    labels = [f"{each.group}\n{each.topic}" for each in shown]
    bars = axes.barh(labels, [each.lag for each in shown], color=_COLORS[0], height=0.6)
    axes.bar_label(bars, fmt="{:,.0f}", padding=4, fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xlim(0, max(1.0, 1.2 * max(each.lag for each in shown)))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _dress_times(axes: Any, times: Sequence[dt.datetime], edge: dt.timedelta) -> None:
    # matplotlib takes times where its types say numbers.
    dates: Any = importlib.import_module("matplotlib.dates")
    locator = dates.AutoDateLocator(minticks=2, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_xlim(times[0] - edge, times[-1] + edge)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    axes.set_axisbelow(True)
