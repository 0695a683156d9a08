"""What ``goddard top`` reads from the cluster: the state of all brokers at one time."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from goddard.cli.terminal.reads import Reads
from goddard.client.admin.admin import Admin
from goddard.client.admin.values import BrokerPlace, BrokerProgress
from goddard.client.values import MessageQueue
from goddard.protocol.names import is_system_topic

# Each topic is a request to each of its brokers: no more than so many for one reading.
MAX_TOPICS: Final = 2_000


@dataclass(frozen=True, slots=True)
class BrokerReading:
    """A broker and its runtime figures; None if it does not answer."""

    place: BrokerPlace
    runtime: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offset of the first message of a queue, and of the next one."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The offset of a group in a queue, and the end of the queue."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A cluster at a time (``seconds``, of a monotonic clock). ``unread`` says what is missing."""

    seconds: float
    brokers: list[BrokerReading]
    topics: Mapping[str, Mapping[MessageQueue, QueueRange]]
    groups: Mapping[str, Mapping[MessageQueue, Committed]]
    unread: list[str]


async def read(admin: Admin) -> Reading:
    """Read the state of the cluster. A server that fails is noted; the others are read."""
    reads = Reads()
    seconds = asyncio.get_running_loop().time()
    places, names, system = await asyncio.gather(
        admin.brokers(),
        admin.topics(),
        reads.answer("system topics", admin.system_topics()),
    )
    masters = [place for place in places if place.is_master]
    hidden = frozenset(system or ())
    shown = [name for name in names if name not in hidden and not is_system_topic(name)]
    left_out = len(shown) - MAX_TOPICS
    runtimes, topics, progress = await asyncio.gather(
        reads.each(
            places,
            lambda one: admin.broker_runtime(one.address),
            lambda one: f"{one.name} ({one.address})",
        ),
        reads.each(shown[:MAX_TOPICS], admin.topic_stats, lambda name: f"topic {name}"),
        reads.each(
            masters,
            lambda one: admin.broker_progress(one.address),
            lambda one: f"lags on {one.name}",
        ),
    )
    return Reading(
        seconds=seconds,
        brokers=[BrokerReading(place, runtimes.get(place)) for place in places],
        topics={
            name: {
                queue: QueueRange(ends.min_offset, ends.max_offset)
                for queue, ends in stats.queues.items()
            }
            for name, stats in topics.items()
        },
        groups=_committed(progress.values()),
        unread=[*([f"{left_out} of {len(shown)} topics"] if left_out > 0 else ()), *reads.unread],
    )


def _committed(answers: Iterable[BrokerProgress]) -> dict[str, dict[MessageQueue, Committed]]:
    found: dict[str, dict[MessageQueue, Committed]] = {}
    for answer in answers:
        for group, parts in answer.groups.items():
            queues = found.setdefault(group, {})
            for part in parts:
                for queue, at in part.queues.items():
                    queues[queue] = Committed(at.consumer_offset, at.broker_offset)
    return found
