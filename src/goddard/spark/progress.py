"""How far a streaming query is behind its topics, read from what Spark reports of each batch."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from goddard.client.values import MessageQueue
from goddard.spark.offsets import Offsets, OffsetsError, from_json


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages that were there and not read yet when a batch was planned, by queue."""

    queues: Mapping[MessageQueue, int]

    @property
    def total(self) -> int:
        return sum(self.queues.values())

    @property
    def least(self) -> int:
        """That of the queue that is the least behind."""
        return min(self.queues.values(), default=0)

    @property
    def most(self) -> int:
        return max(self.queues.values(), default=0)

    @property
    def average(self) -> float:
        return self.total / len(self.queues) if self.queues else 0.0


def lag(progress: Mapping[str, Any]) -> Lag:
    """How far a query is behind.

    From ``query.lastProgress``, a listener's ``event.progress``, or either read from its JSON.
    Sources of other kinds are passed over; of a queue that is read twice the longer lag counts.
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
    """Offsets of ours; None if it is something else."""
    try:
        offsets, _ = from_json(json.loads(text) if isinstance(text, str) else text)
    except (OffsetsError, ValueError):
        return None
    return offsets
