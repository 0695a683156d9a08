"""Where a query stands in its queues, and what each batch reads. Pure: no Spark, no network.

An offset is the number of the next message of a queue. Checkpoints keep offsets as JSON, in a form
that every later version must read::

    {"version": 1, "queues": {"TopicTest": {"broker-a": {"0": 12, "1": 7}}}, "first": {...}}

``first``, of the same form as ``queues``, is where the batch that ends here begins in queues that
no batch before it read. It makes a batch that is repeated after a restart begin where it did,
though "latest" means another place by then and old messages may be gone.

Options name offsets in the same way, without the version around it; there -2 stands for the
earliest and -1 for the latest offset, as in Spark's Kafka source.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, GoddardError

EARLIEST: Final = -2
LATEST: Final = -1

# More tasks than Spark plans in reasonable time and memory.
MAX_PARTITIONS: Final = 100_000

_VERSION: Final = 1
_MAX_OFFSET: Final = 2**63 - 1

Offsets = dict[MessageQueue, int]


class OffsetsError(GoddardError):
    """Offsets of a checkpoint that cannot be read."""


class DataLossError(GoddardError):
    """Messages that were to be read are gone."""

    def __init__(self, losses: Iterable[str]) -> None:
        super().__init__(
            "messages were lost before they were read: "
            + "; ".join(losses)
            + ". Set failOnDataLoss=false to go on with what is left"
        )


class QueueRange(NamedTuple):
    """Messages of one queue, from ``start`` up to, but without, ``end``."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


# JSON


def to_json(
    offsets: Mapping[MessageQueue, int], first: Mapping[MessageQueue, int] | None = None
) -> dict[str, Any]:
    """Offsets as a checkpoint keeps them; equal offsets give equal text."""
    value: dict[str, Any] = {"version": _VERSION, "queues": _nested(offsets)}
    if first is not None:
        value["first"] = _nested(first)
    return value


def _nested(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    queues: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        brokers = queues.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return queues


def from_json(value: Any) -> tuple[Offsets, Offsets]:
    """Read a checkpoint's offsets, and where its batch began in queues that were new to it."""
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, int) or version < 1:
        raise OffsetsError(f"these are no offsets of a rocketmq source: {str(value)[:200]}")
    if version > _VERSION:
        raise OffsetsError(
            f"offsets of version {version} were written by a newer Goddard; this one reads up to "
            f"version {_VERSION}: upgrade it, or start from a new checkpoint"
        )
    try:
        return _queues(value.get("queues"), lowest=0), _queues(value.get("first", {}), lowest=0)
    except (TypeError, ValueError) as error:
        raise OffsetsError(f"damaged offsets: {error}") from error


def parse_queue_numbers(option: str, text: str, *, lowest: int) -> Offsets:
    """The value of an option such as ``{"TopicTest": {"broker-a": {"0": 12}}}``."""
    try:
        return _queues(json.loads(text), lowest=lowest)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{option} is {text[:200]!r}: {error}; write it as "
            '{"topic": {"broker": {"queue": number}}}'
        ) from error


def parse_topic_numbers(option: str, text: str) -> dict[str, int | Offsets]:
    """A number for each topic or for each queue: ``{"A": 17, "B": {"broker-a": {"0": 9}}}``."""
    try:
        topics = _mapping(json.loads(text))
        return {
            topic: _queues({topic: value}, lowest=0)
            if isinstance(value, dict)
            else _number(value, lowest=0)
            for topic, value in topics.items()
        }
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{option} is {text[:200]!r}: {error}; write it as "
            '{"topic": number} or {"topic": {"broker": {"queue": number}}}'
        ) from error


def parse_assignment(option: str, text: str) -> set[MessageQueue]:
    """The value of ``assign``: ``{"TopicTest": {"broker-a": [0, 1]}}``."""
    try:
        chosen = set()
        for topic, brokers in _mapping(json.loads(text)).items():
            for broker_name, queue_ids in _mapping(brokers).items():
                if not isinstance(queue_ids, list):
                    raise TypeError(f"{queue_ids!r} is no list of queue numbers")
                for queue_id in queue_ids:
                    chosen.add(MessageQueue(topic, broker_name, _number(queue_id, lowest=0)))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'{option} is {text[:200]!r}: {error}; write it as {{"topic": {{"broker": [0, 1]}}}}'
        ) from error
    if not chosen:
        raise ConfigError(f"{option} names no queue")
    return chosen


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:80]!r} is no JSON object")
    return value


def _number(value: Any, *, lowest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= _MAX_OFFSET:
        raise ValueError(f"{str(value)[:80]!r} is no number from {lowest} on")
    return value


def _queues(value: Any, *, lowest: int) -> Offsets:
    offsets: Offsets = {}
    for topic, brokers in _mapping(value).items():
        for broker_name, numbers in _mapping(brokers).items():
            for queue_id, number in _mapping(numbers).items():
                if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
                    raise ValueError(f"{queue_id[:80]!r} is no queue number")
                queue = MessageQueue(topic, broker_name, int(queue_id))
                offsets[queue] = _number(number, lowest=lowest)
    return offsets


# Planning


def ranges_between(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> tuple[list[QueueRange], list[str]]:
    """What lies between two offsets, and what of it is known to be lost.

    A queue that ``end`` lacks is none of this batch's. A queue whose end lies before its start was
    created anew.
    """
    ranges = []
    losses = []
    for queue, until in sorted(end.items()):
        begin = start.get(queue, 0)
        if until < begin:
            losses.append(f"{queue} ends at {until}, before {begin}: was the topic created anew?")
        elif until > begin:
            ranges.append(QueueRange(queue, begin, until))
    return ranges, losses


def split(
    ranges: Iterable[QueueRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[QueueRange]:
    """Cut ranges into as many as Spark is to read side by side.

    Ranges are cut to ``max_records_per_partition`` first. If there are still fewer than
    ``min_partitions``, the large ones are cut further, each in proportion to its size; small ones
    stay whole, so that a little more or fewer may come out, as with Spark's Kafka source.
    """
    pieces = [each for each in ranges if each.size > 0]
    if max_records_per_partition is not None:
        count = sum(-(-each.size // max_records_per_partition) for each in pieces)
        if count > MAX_PARTITIONS:
            raise ConfigError(
                f"maxRecordsPerPartition of {max_records_per_partition:,} cuts what is to be read "
                f"into {count:,} partitions, over {MAX_PARTITIONS:,}: raise it, or have a stream "
                "read less at once with maxOffsetsPerTrigger"
            )
        pieces = [
            piece
            for each in pieces
            for piece in _cut(each, -(-each.size // max_records_per_partition))
        ]
    if min_partitions is None or not pieces or len(pieces) >= min_partitions:
        return pieces
    total = sum(piece.size for piece in pieces)
    # Those that stay whole take one each; the others share what remains.
    is_whole = [piece.size * min_partitions <= total for piece in pieces]
    large = [piece for piece, whole in zip(pieces, is_whole, strict=True) if not whole]
    wanted = min_partitions - (len(pieces) - len(large))
    large_total = sum(piece.size for piece in large)
    result = []
    for piece, whole in zip(pieces, is_whole, strict=True):
        parts = 1 if whole else max(1, round(piece.size * wanted / large_total))
        result += _cut(piece, parts)
    return result


def _cut(whole: QueueRange, parts: int) -> list[QueueRange]:
    """Equal parts, none of them empty; the last take what does not divide."""
    bounds = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [
        QueueRange(whole.queue, begin, end)
        for begin, end in itertools.pairwise(bounds)
        if end > begin
    ]


def available(start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]) -> int:
    """How many messages lie ahead."""
    return sum(max(0, offset - start.get(queue, offset)) for queue, offset in latest.items())


def limited(
    start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], max_offsets: int
) -> Offsets:
    """The end of a batch of at most ``max_offsets`` messages, each queue in proportion to its lag.

    Every queue that is behind advances when the limit has room for it, so that none starves.
    """
    lags = {queue: max(0, end - start.get(queue, end)) for queue, end in latest.items()}
    total = sum(lags.values())
    if total <= max_offsets:
        return dict(latest)
    ends = {}
    left = max_offsets
    # The shortest first: what their share leaves over goes to the longer ones.
    for queue, lag in sorted(lags.items(), key=lambda item: (item[1], item[0])):
        share = 0
        if lag and left:
            share = min(lag, left, max(1, lag * max_offsets // total))
        left -= share
        ends[queue] = start.get(queue, latest[queue]) + share
    for queue in sorted(ends):
        extra = min(left, latest[queue] - ends[queue])
        if extra > 0:
            ends[queue] += extra
            left -= extra
    return ends
