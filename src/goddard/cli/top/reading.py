"""What ``goddard top`` reads from the cluster: the state of all brokers at one time."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from goddard.client.admin.admin import Admin
from goddard.client.admin.values import BrokerPlace, BrokerProgress
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.names import is_system_topic

_CONCURRENT: Final = 64
# Each topic is a request to each of its brokers: no more than so many for one reading.
MAX_TOPICS: Final = 2_000

T = TypeVar("T")


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
    unread: list[str] = []
    seconds = asyncio.get_running_loop().time()
    places, names, system = await asyncio.gather(
        admin.brokers(), admin.topics(), admin.system_topics()
    )
    masters = [place for place in places if place.is_master]
    hidden = frozenset(system)
    shown = [name for name in names if name not in hidden and not is_system_topic(name)]
    if len(shown) > MAX_TOPICS:
        unread.append(f"{len(shown) - MAX_TOPICS} of {len(shown)} topics")
    slots = asyncio.Semaphore(_CONCURRENT)

    async def answer(what: str, asked: Awaitable[T]) -> T | None:
        async with slots:
            try:
                return await asked
            except GoddardError:
                unread.append(what)
                return None

    runtimes, topics, progress = await asyncio.gather(
        asyncio.gather(
            *(
                answer(f"{one.name} ({one.address})", admin.broker_runtime(one.address))
                for one in places
            )
        ),
        asyncio.gather(
            *(answer(f"topic {name}", admin.topic_stats(name)) for name in shown[:MAX_TOPICS])
        ),
        asyncio.gather(
            *(answer(f"lags on {one.name}", admin.broker_progress(one.address)) for one in masters)
        ),
    )
    return Reading(
        seconds=seconds,
        brokers=[
            BrokerReading(place, runtime) for place, runtime in zip(places, runtimes, strict=True)
        ],
        topics={
            name: {
                queue: QueueRange(ends.min_offset, ends.max_offset)
                for queue, ends in stats.queues.items()
            }
            for name, stats in zip(shown, topics, strict=False)
            if stats is not None
        },
        groups=_committed(progress),
        unread=unread,
    )


def _committed(answers: list[BrokerProgress | None]) -> dict[str, dict[MessageQueue, Committed]]:
    found: dict[str, dict[MessageQueue, Committed]] = {}
    for answer in answers:
        if answer is None:
            continue
        for group, parts in answer.groups.items():
            queues = found.setdefault(group, {})
            for part in parts:
                for queue, at in part.queues.items():
                    queues[queue] = Committed(at.consumer_offset, at.broker_offset)
    return found
