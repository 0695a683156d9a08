"""Offsets of a query, their JSON form, and the ranges that each batch reads. Pure.

An offset is the number of the next message of a queue. Checkpoints keep offsets as JSON, in a form
that every later version must read::

    {"version": 1, "queues": {"TopicTest": {"broker-a": {"0": 12, "1": 7}}}, "first": {...},
     "stored": {"TopicTest": {"broker-a": {"0": 1767225600000}}}, "started": 1767225600000}

``queues`` has the end offsets of a batch. ``first``, of the same form, has the start offsets of
queues that no earlier batch read. With it, a batch that is repeated after a restart starts at the
same offsets, even if "latest" is a different offset by then or old messages were deleted.
``stored`` has the store time of the last message before the end offset, for queues where it is
known: if another message is there later, the messages that were read have vanished. ``started`` is
the time when the query was started first.

Options give offsets in the same form, without the version around it; -2 stands for the earliest
and -1 for the latest offset, as in Spark's Kafka source.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError, GoddardError

EARLIEST: Final = -2
LATEST: Final = -1

# Spark cannot plan more tasks in reasonable time and memory.
MAX_PARTITIONS: Final = 100_000

# Up to this number of ranges, each one is a task. More are combined, down to this number.
MIN_COMBINED_TASKS: Final = 32
# Tasks with this number of messages are not combined further.
MESSAGES_PER_TASK: Final = 100_000
# A request for a range costs a task as much as this number of messages.
_RANGE_COST: Final = 100

_VERSION: Final = 1
_MAX_OFFSET: Final = 2**63 - 1

Offsets = dict[MessageQueue, int]


class OffsetsError(GoddardError):
    """Offsets of a checkpoint that cannot be read."""


class DataLossError(GoddardError):
    """Messages were deleted or damaged before they were read."""

    def __init__(self, losses: Iterable[str]) -> None:
        super().__init__(
            "messages were lost before they were read: "
            + "; ".join(losses)
            + " (set failOnDataLoss=false to continue with the messages that are left)"
        )


class SourceOffset(NamedTuple):
    """The end of a batch, as checkpoints keep it; see the module docstring."""

    queues: Offsets
    first: Offsets
    stored_ms: Offsets
    started_ms: int | None


class QueueRange(NamedTuple):
    """Messages of one queue from ``start`` to before ``end``."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


# JSON


def to_json(
    offsets: Mapping[MessageQueue, int],
    first: Mapping[MessageQueue, int] | None = None,
    stored_ms: Mapping[MessageQueue, int] | None = None,
    started_ms: int | None = None,
) -> dict[str, Any]:
    """Offsets in the form of a checkpoint; equal offsets give equal JSON."""
    value: dict[str, Any] = {"version": _VERSION, "queues": _nested(offsets)}
    if first is not None:
        value["first"] = _nested(first)
    if stored_ms:
        value["stored"] = _nested(stored_ms)
    if started_ms is not None:
        value["started"] = started_ms
    return value


def _nested(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    queues: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        brokers = queues.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return queues


def from_json(value: Any) -> SourceOffset:
    """Parse the offsets of a checkpoint."""
    version = value.get("version") if isinstance(value, dict) else None
    if not isinstance(version, int) or version < 1:
        raise OffsetsError(f"not offsets of a rocketmq source: {str(value)[:200]}")
    if version > _VERSION:
        raise OffsetsError(
            f"offsets of version {version} were written by a newer Goddard; this one reads up to "
            f"version {_VERSION}: upgrade it, or start from a new checkpoint"
        )
    try:
        started_ms = value.get("started")
        return SourceOffset(
            _queues(value.get("queues"), lowest=0),
            _queues(value.get("first", {}), lowest=0),
            _queues(value.get("stored", {}), lowest=0),
            None if started_ms is None else _number(started_ms, lowest=0),
        )
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
                    raise TypeError(f"{queue_ids!r} is not a list of queue numbers")
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
        raise TypeError(f"{str(value)[:80]!r} is not a JSON object")
    return value


def _number(value: Any, *, lowest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= _MAX_OFFSET:
        raise ValueError(f"{str(value)[:80]!r} is not a number of at least {lowest}")
    return value


def _queues(value: Any, *, lowest: int) -> Offsets:
    offsets: Offsets = {}
    for topic, brokers in _mapping(value).items():
        for broker_name, numbers in _mapping(brokers).items():
            for queue_id, number in _mapping(numbers).items():
                if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10):
                    raise ValueError(f"{queue_id[:80]!r} is not a queue number")
                queue = MessageQueue(topic, broker_name, int(queue_id))
                offsets[queue] = _number(number, lowest=lowest)
    return offsets


# Planning


def ranges_between(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> tuple[list[QueueRange], list[str]]:
    """The ranges from start to end offsets, and descriptions of known data loss.

    Queues that are missing in ``end`` are not part of the batch. A queue whose end is before its
    start was probably recreated.
    """
    ranges = []
    losses = []
    for queue, until in sorted(end.items()):
        begin = start.get(queue, 0)
        if until < begin:
            losses.append(f"{queue} ends at {until}, before {begin}: was the topic recreated?")
        elif until > begin:
            ranges.append(QueueRange(queue, begin, until))
    return ranges, losses


def split(
    ranges: Iterable[QueueRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[QueueRange]:
    """Split ranges into the partitions that Spark reads in parallel.

    First, ranges are split to at most ``max_records_per_partition``. If there are fewer than
    ``min_partitions`` then, large ranges are split further in proportion to their size. Small
    ranges are not split, so the number of partitions is approximate, as in Spark's Kafka source.
    """
    partitions = [each for each in ranges if each.size > 0]
    if max_records_per_partition is not None:
        count = sum(-(-each.size // max_records_per_partition) for each in partitions)
        if count > MAX_PARTITIONS:
            raise ConfigError(
                f"maxRecordsPerPartition={max_records_per_partition:,} gives {count:,} partitions, "
                f"over the limit of {MAX_PARTITIONS:,}; raise it, or limit the batches of a stream "
                "with maxOffsetsPerTrigger"
            )
        partitions = [
            partition
            for each in partitions
            for partition in _split_evenly(each, -(-each.size // max_records_per_partition))
        ]
    if min_partitions is None or not partitions or len(partitions) >= min_partitions:
        return partitions
    total = sum(partition.size for partition in partitions)
    # Small ranges are one partition each; large ranges share the rest.
    is_small = [partition.size * min_partitions <= total for partition in partitions]
    large = [partition for partition, small in zip(partitions, is_small, strict=True) if not small]
    remaining = min_partitions - (len(partitions) - len(large))
    large_total = sum(partition.size for partition in large)
    result = []
    for partition, small in zip(partitions, is_small, strict=True):
        parts = 1 if small else max(1, round(partition.size * remaining / large_total))
        result += _split_evenly(partition, parts)
    return result


def combine(ranges: Sequence[QueueRange], min_tasks: int) -> list[tuple[QueueRange, ...]]:
    """The ranges that each task reads: one, or several short ones if there are many ranges.

    A task costs Spark some ten milliseconds, whatever its size. Equal ranges give equal tasks, and
    neighbours stay together, because they often have one broker.
    """
    if len(ranges) <= min_tasks:
        return [(each,) for each in ranges]
    total = sum(each.size + _RANGE_COST for each in ranges)
    limit = min(MESSAGES_PER_TASK, total // min_tasks)
    tasks: list[tuple[QueueRange, ...]] = []
    first = cost = 0
    for number, each in enumerate(ranges):
        own = each.size + _RANGE_COST
        has_few_left = len(ranges) - number < min_tasks - len(tasks)
        if number > first and (cost + own > limit or has_few_left):
            tasks.append(tuple(ranges[first:number]))
            first, cost = number, 0
        cost += own
    return [*tasks, tuple(ranges[first:])]


def _split_evenly(whole: QueueRange, parts: int) -> list[QueueRange]:
    """Parts of equal size, give or take one message; empty parts are left out."""
    bounds = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [
        QueueRange(whole.queue, begin, end)
        for begin, end in itertools.pairwise(bounds)
        if end > begin
    ]


def count_available(start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int]) -> int:
    """The number of messages between ``start`` and ``latest``."""
    return sum(max(0, offset - start.get(queue, offset)) for queue, offset in latest.items())


def limit_batch(
    start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], max_offsets: int
) -> Offsets:
    """The end offsets of a batch of at most ``max_offsets`` messages.

    Each queue gets a share in proportion to its lag, and at least one message as long as the limit
    allows, so that no queue starves.
    """
    lags = {queue: max(0, end - start.get(queue, end)) for queue, end in latest.items()}
    total = sum(lags.values())
    if total <= max_offsets:
        return dict(latest)
    ends = {}
    left = max_offsets
    # The shortest lags first: longer ones get what their shares leave over.
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
