"""Verbs about clusters."""

from collections.abc import Mapping
from typing import Final

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import boolean
from goddard.cli.terminal.mistakes import FailedError, one_line
from goddard.client.admin.values import BrokerPlace
from goddard.errors import GoddardError

_MORE: Final = "%-16s  %-32s %14s %14s %14s %14s"
_HEADER: Final = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s"
_ROW: Final = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
_HOUR_MS: Final = 3_600_000

Figures = Mapping[str, str]


async def cluster_list(call: Call) -> None:
    async def once() -> None:
        places = await call.admin.brokers(cluster=call.options.get("c"))
        failures: dict[str, GoddardError] = {}

        async def figures_of(place: BrokerPlace) -> Figures:
            try:
                return await call.admin.broker_runtime(place.address)
            except GoddardError as error:
                failures[place.address] = error
                return {}

        figures = await in_parallel(places, figures_of)
        if "m" in call.options:
            _print_more(call, places, figures)
        else:
            _print_base(call, places, figures)
        if failures:
            reasons = "; ".join(f"{address}: {error}" for address, error in failures.items())
            raise FailedError(one_line(reasons))

    await call.repeat(once, default_seconds=1)


def _print_more(call: Call, places: list[BrokerPlace], figures: list[Figures]) -> None:
    columns = ("#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    call.row(_MORE, "#Cluster Name", "#Broker Name", *columns)
    for place, known in zip(places, figures, strict=True):
        counts = [
            _number(known, f"{name}{end}") - _number(known, f"{name}{begin}")
            for begin, end in (
                ("TotalYesterdayMorning", "TotalTodayMorning"),
                ("TotalTodayMorning", "TotalTodayNow"),
            )
            for name in ("msgPut", "msgGet")
        ]
        call.row(_MORE, place.cluster, place.name, *counts)


def _print_base(call: Call, places: list[BrokerPlace], figures: list[Figures]) -> None:
    columns = ("#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)", "#Timer(Progress)")
    more = ("#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED")
    call.row(_HEADER, "#Cluster Name", "#Broker Name", "#BID", *columns, *more)
    now_ms = call.admin.clock.now_ms()
    for place, known in zip(places, figures, strict=True):
        earliest = known.get("earliestMessageTimeStamp")
        hours = (now_ms - int(earliest)) / _HOUR_MS if earliest else 0.0
        call.row(
            _ROW,
            place.cluster,
            place.name,
            place.broker_id,
            place.address,
            known.get("brokerVersionDesc", ""),
            f"{_first(known, 'putTps'):9.2f}({_load(known, 'send')})",
            f"{_first(known, 'getTransferredTps'):9.2f}"
            f"({_load(known, 'pull')}|{_load(known, 'ack', 'N')})",
            _timer(known),
            known.get("pageCacheLockTimeMills", ""),
            f"{hours:2.2f}",
            f"{_first(known, 'commitLogDiskRatio'):.4f}",
            boolean(known.get("brokerActive") == "true"),
        )


def _load(figures: Figures, name: str, default: str = "") -> str:
    """How many requests wait, and for how long the first one has."""
    size = figures.get(f"{name}ThreadPoolQueueSize", default)
    return f"{size},{figures.get(f'{name}ThreadPoolQueueHeadWaitTimeMills', default)}ms"


def _timer(figures: Figures) -> str:
    congested = _number(figures, "timerCongestNum") / 10_000
    rates = f"{_first(figures, 'timerEnqueueTps'):.1f}, {_first(figures, 'timerDequeueTps'):.1f}"
    behind = f"{_number(figures, 'timerReadBehind')}-{_number(figures, 'timerOffsetBehind')}"
    return f"{behind}({congested:.1f}w, {rates})"


def _number(figures: Figures, name: str) -> int:
    try:
        return int(figures.get(name, "0"))
    except ValueError:
        return 0


def _first(figures: Figures, name: str) -> float:
    """The first of the numbers of a figure, such as the rate of the last ten seconds."""
    try:
        return float(figures.get(name, "0").split(" ")[0])
    except ValueError:
        return 0.0
