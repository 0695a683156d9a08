"""The tables of ``goddard top``, from two readings. Pure.

Rates are differences of offsets between the readings: messages that were stored, and messages that
groups committed. None means unknown: there is only one reading, or a queue was not read twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goddard.cli.top.reading import BrokerReading, Committed, QueueRange, Reading
from goddard.client.values import MessageQueue

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Columns and rows; the first column names the row. ``sort`` is the default column."""

    title: str
    columns: Sequence[str]
    rows: list[Row]
    sort: int
    is_descending: bool = True


class Change:
    """The tables of a reading, with rates since an earlier one (None for the first)."""

    def __init__(self, before: Reading | None, now: Reading) -> None:
        self._before = before
        self._now = now

    def brokers(self) -> Listing:
        columns = ("broker", "id", "address", "version", "in/s", "out/s", "in today", "disk %")
        return Listing("brokers", columns, [_broker(one) for one in self._now.brokers], 4)

    def topics(self) -> Listing:
        columns = ("topic", "in/s", "out/s", "messages", "queues", "groups", "lag")
        rows = []
        readers = self._readers()
        for name, queues in self._now.topics.items():
            groups = readers.get(name, {})
            rows.append(
                (
                    name,
                    self._stored_rate(name, queues),
                    _total([self._read_rate(group, known) for group, known in groups.items()]),
                    sum(one.end - one.first for one in queues.values()),
                    len(queues),
                    len(groups),
                    max((_lag(known) for known in groups.values()), default=None),
                )
            )
        return Listing("topics", columns, rows, 1)

    def groups(self) -> Listing:
        columns = ("group", "out/s", "lag", "lag/s", "topics", "queues")
        rows = []
        for name, queues in self._now.groups.items():
            rows.append(
                (
                    name,
                    self._read_rate(name, queues),
                    _lag(queues),
                    self._lag_rate(name, queues),
                    len({queue.topic for queue in queues}),
                    len(queues),
                )
            )
        return Listing("groups", columns, rows, 2)

    def broker(self, name: str) -> Listing:
        """The runtime figures of the brokers with a name."""
        rows = [
            (key, one.place.broker_id, value)
            for one in self._now.brokers
            if one.place.name == name
            for key, value in (one.runtime or {}).items()
        ]
        return Listing(f"broker {name}", ("figure", "id", "value"), rows, 0, is_descending=False)

    def topic(self, name: str) -> Listing:
        """The queues of a topic."""
        rows = [
            (
                f"{queue.broker_name}:{queue.queue_id}",
                self._stored_rate(name, {queue: ends}),
                ends.first,
                ends.end,
                ends.end - ends.first,
            )
            for queue, ends in self._now.topics.get(name, {}).items()
        ]
        columns = ("queue", "in/s", "first", "next", "messages")
        return Listing(f"topic {name}", columns, rows, 0, is_descending=False)

    def group(self, name: str) -> Listing:
        """The queues of a group."""
        rows = [
            (
                f"{queue.topic} {queue.broker_name}:{queue.queue_id}",
                self._read_rate(name, {queue: at}),
                at.offset,
                at.end,
                at.end - at.offset,
            )
            for queue, at in self._now.groups.get(name, {}).items()
        ]
        columns = ("queue", "out/s", "committed", "end", "lag")
        return Listing(f"group {name}", columns, rows, 4)

    def _readers(self) -> dict[str, dict[str, dict[MessageQueue, Committed]]]:
        """By topic and group: the offsets."""
        found: dict[str, dict[str, dict[MessageQueue, Committed]]] = {}
        for group, queues in self._now.groups.items():
            for queue, at in queues.items():
                found.setdefault(queue.topic, {}).setdefault(group, {})[queue] = at
        return found

    def _stored_rate(self, topic: str, queues: Mapping[MessageQueue, QueueRange]) -> float | None:
        before = {} if self._before is None else self._before.topics.get(topic, {})
        return _not_negative(
            self._rate(
                {queue: ends.end for queue, ends in queues.items()},
                {queue: ends.end for queue, ends in before.items()},
            )
        )

    def _read_rate(self, group: str, queues: Mapping[MessageQueue, Committed]) -> float | None:
        return _not_negative(
            self._rate(
                {queue: at.offset for queue, at in queues.items()},
                {queue: at.offset for queue, at in self._committed_before(group).items()},
            )
        )

    def _lag_rate(self, group: str, queues: Mapping[MessageQueue, Committed]) -> float | None:
        return self._rate(
            {queue: at.end - at.offset for queue, at in queues.items()},
            {queue: at.end - at.offset for queue, at in self._committed_before(group).items()},
        )

    def _committed_before(self, group: str) -> Mapping[MessageQueue, Committed]:
        return {} if self._before is None else self._before.groups.get(group, {})

    def _rate(
        self, now: Mapping[MessageQueue, int], before: Mapping[MessageQueue, int]
    ) -> float | None:
        """The change per second, summed over the queues that were read twice."""
        twice = now.keys() & before.keys()
        if self._before is None or not twice:
            return None
        seconds = max(self._now.seconds - self._before.seconds, 0.001)
        return sum(now[queue] - before[queue] for queue in twice) / seconds


def _not_negative(rate: float | None) -> float | None:
    """A recreated topic or a reset of offsets is no rate."""
    return None if rate is None else max(0.0, rate)


def _lag(queues: Mapping[MessageQueue, Committed]) -> int:
    return sum(at.end - at.offset for at in queues.values())


def _total(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _broker(one: BrokerReading) -> Row:
    place, runtime = one.place, one.runtime
    named = (place.name, place.broker_id, place.address)
    if runtime is None:
        return (*named, "does not answer", None, None, None, None)
    return (
        *named,
        runtime.get("brokerVersionDesc"),
        _first_number(runtime.get("putTps")),
        _first_number(runtime.get("getTransferredTps")),
        _first_number(runtime.get("msgPutTotalTodayNow")),
        _percent(runtime.get("commitLogDiskRatio")),
    )


def _first_number(text: str | None) -> float | int | None:
    """The first of the averages over 10, 60 and 600 seconds."""
    first = (text or "").split(" ")[0]
    try:
        value = float(first)
    except ValueError:
        return None
    return int(value) if first.isdecimal() else value


def _percent(text: str | None) -> float | None:
    ratio = _first_number(text)
    return None if ratio is None else ratio * 100


def arranged(rows: list[Row], sort: int, filter_: str, *, is_descending: bool) -> list[Row]:
    """The rows whose name contains the filter, sorted by a column; unknown values are last."""
    shown = [row for row in rows if filter_.lower() in str(row[0]).lower()]
    shown.sort(key=lambda row: str(row[0]))
    known = [row for row in shown if row[sort] is not None]
    unknown = [row for row in shown if row[sort] is None]
    # A column has either numbers or texts.
    known.sort(key=lambda row: row[sort], reverse=is_descending)
    return known + unknown
