"""The lag of a streaming query, computed from the progress that Spark reports for each batch."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from goddard.client.values import MessageQueue
from goddard.spark.reading.offsets import Offsets, OffsetsError, from_json


@dataclass(frozen=True, slots=True)
class Lag:
    """Unread messages of each queue at the time when a batch was planned, without that batch."""

    queues: Mapping[MessageQueue, int]

    @property
    def total(self) -> int:
        return sum(self.queues.values())

    @property
    def min(self) -> int:
        """The smallest lag of a queue."""
        return min(self.queues.values(), default=0)

    @property
    def max(self) -> int:
        """The largest lag of a queue."""
        return max(self.queues.values(), default=0)

    @property
    def avg(self) -> float:
        """The average lag of the queues."""
        return self.total / len(self.queues) if self.queues else 0.0


def lag(progress: Mapping[str, Any]) -> Lag:
    """The lag of a query.

    ``progress`` is ``query.lastProgress``, a listener's ``event.progress``, or either parsed from
    JSON. Sources of other formats are ignored. If two sources read one queue, the larger lag is
    used.
    """
    behind: dict[MessageQueue, int] = {}
    for end, latest in _offsets(progress["sources"]):
        for queue, offset in latest.items():
            ahead = max(0, offset - end.get(queue, 0))
            behind[queue] = max(ahead, behind.get(queue, 0))
    return Lag(behind)


def _offsets(sources: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Offsets, Offsets]]:
    for source in sources:
        end, latest = _parsed(source.get("endOffset")), _parsed(source.get("latestOffset"))
        if end is not None and latest is not None:
            yield end, latest


def _parsed(text: Any) -> Offsets | None:
    """The offsets of a rocketmq source; None for other sources."""
    try:
        return from_json(json.loads(text) if isinstance(text, str) else text).queues
    except (OffsetsError, ValueError):
        return None
