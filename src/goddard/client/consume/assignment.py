"""Which queues a consumer owns: it takes those of its share and releases the others.

Consumers do not coordinate a handover directly. The one that releases a queue stops pulling, lets
running calls of the listener end, writes the offset and only then unlocks the queue; the one that
takes it waits a moment before it reads the offset. Belongs to the event loop.

``Assignment`` is the base of ``PushQueues`` and ``LiteQueues``, which say how a queue is taken and
released.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Generic, TypeVar

from goddard.client import broker_api
from goddard.client.consume.allocation import AllocationStrategy
from goddard.client.consume.queue_buffer import QueueBuffer
from goddard.client.errors import NoRouteError
from goddard.client.routes import MASTER_ID
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError

# RocketMQ's: how long the former owner has to release a queue before the next one reads it.
HANDOVER_MS: Final = 500

B = TypeVar("B", bound=QueueBuffer)

_logger: Final = logging.getLogger("goddard.client")


async def member_ids(session: Session, group: str, topic: str) -> list[str] | None:
    """The client ids of a group, from any broker of the topic that answers; None if none does."""
    route = session.route(topic)
    if route is None:
        return None
    brokers = list(route.broker_datas)
    session.random.shuffle(brokers)
    for broker in brokers:
        addresses = broker.broker_addrs
        if not addresses:
            continue
        address = addresses.get(MASTER_ID) or session.random.choice(list(addresses.values()))
        try:
            return await broker_api.consumer_ids(
                session, address, group, timeout_ms=session.options.api_timeout_ms
            )
        except GoddardError as error:
            _logger.info("broker %s does not list the members of %s: %s", address, group, error)
    return None


def compute_share(
    strategy: AllocationStrategy,
    group: str,
    client_id: str,
    queues: Collection[MessageQueue],
    members: Collection[str] | None,
) -> set[MessageQueue] | None:
    """The queues of one topic that are ours; None if that is not known.

    It is not known if no broker named the members, if the one that did does not know us yet (it was
    restarted after our last heartbeat), or if the strategy, which may be the user's, fails.
    """
    if members is None or client_id not in members:
        return None
    try:
        return set(strategy.allocate(group, client_id, sorted(queues), sorted(members)))
    except Exception:
        _logger.exception("the allocation strategy %s failed", strategy.name)
        return None


def to_release(
    owned: Mapping[MessageQueue, B],
    share: Collection[MessageQueue],
    is_pulling: Callable[[B], bool],
) -> list[B]:
    """Which of the queues owned in a topic to release.

    Those that are not in the share. And those that cannot go on: that were dropped and not
    released yet, or that nothing pulls from; they are taken again if they are in the share.
    """
    return [
        each
        for queue, each in owned.items()
        if queue not in share or each.is_dropped or not is_pulling(each)
    ]


class Assignment(ABC, Generic[B]):
    """The queues of one consumer. ``strategy`` None: every member has all queues."""

    def __init__(self, session: Session, group: str, strategy: AllocationStrategy | None) -> None:
        self._session = session
        self._group = group
        self._strategy = strategy
        self._members: list[str] = []
        # Includes those that are being released.
        self.owned: dict[MessageQueue, B] = {}
        # One change at a time: rebalances, resets of offsets, the end.
        self._changing = asyncio.Lock()
        self._is_closed = False

    # --- What kinds of consumers do ---------------------------------------------------------------

    @abstractmethod
    async def _acquire(self, queues: list[MessageQueue]) -> list[B]:
        """Take queues, as far as they are free; they are added to ``owned``."""

    @abstractmethod
    async def _release(self, buffer: B) -> bool:
        """Release a queue, which leaves ``owned``; False if that must be tried again."""

    @abstractmethod
    async def _changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        """Our queues of a topic changed; ``queues`` are all of them."""

    @abstractmethod
    def _is_pulling(self, buffer: B) -> bool: ...

    @abstractmethod
    def _start(self, buffer: B, delay_ms: int) -> None:
        """Begin to pull from a queue, after a delay."""

    # --- Rebalancing ------------------------------------------------------------------------------

    async def rebalance(self, topics: Collection[str]) -> bool:
        """Take and release queues; True if nothing is left to do.

        ``topics`` may change meanwhile.
        """
        async with self._changing:
            if self._is_closed:
                return True
            unsubscribed = [each for each in self.owned.values() if each.queue.topic not in topics]
            is_balanced = await self._release_all(unsubscribed)
            for topic in sorted(topics):
                try:
                    is_balanced &= await self._rebalance_topic(topic, topics)
                except NoRouteError as error:
                    # Queues stay as they are. A retry topic is created with the first heartbeat,
                    # others at any time; then the route changes and there is another rebalance.
                    _logger.info(
                        "doRebalance, %s, but the topic[%s] not exist: %s",
                        self._group,
                        topic,
                        error,
                    )
                except GoddardError as error:
                    _logger.warning("rebalancing %s for %s failed: %s", topic, self._group, error)
                    is_balanced = False
            return is_balanced

    async def _rebalance_topic(self, topic: str, topics: Collection[str]) -> bool:
        queues = sorted(await self._session.subscribe_queues(topic))
        share: set[MessageQueue] | None
        if self._strategy is None:
            share = set(queues)
        else:
            client_id = self._session.client_id
            members = await member_ids(self._session, self._group, topic)
            share = compute_share(self._strategy, self._group, client_id, queues, members)
            if share is None:
                # Queues stay as they are.
                return False
            self._members = members or []
        if topic not in topics or self._is_closed:
            return True
        return await self._apply_share(topic, queues, share)

    async def _apply_share(
        self, topic: str, queues: list[MessageQueue], share: set[MessageQueue]
    ) -> bool:
        owned = {queue: each for queue, each in self.owned.items() if queue.topic == topic}
        released = to_release(owned, share, self._is_pulling)
        are_released = await self._release_all(released)
        # A queue that could not be released is not taken again.
        added = await self._acquire(sorted(share - self.owned.keys()))
        if released or added:
            ours = sorted(share & self.owned.keys())
            _logger.info(
                "the queues of %s for the group %s are now %s",
                topic,
                self._group,
                [(queue.broker_name, queue.queue_id) for queue in ours],
            )
            await self._changed(topic, queues, ours)
        # A member that is alone in its group does not have to wait for others.
        delay_ms = HANDOVER_MS if len(self._members) > 1 else 0
        for buffer in added:
            if not self._is_closed and not buffer.is_dropped:
                self._start(buffer, delay_ms)
        return are_released and share <= self.owned.keys()

    async def _release_all(self, buffers: Iterable[B]) -> bool:
        return all(await asyncio.gather(*(self._release(each) for each in buffers)))

    async def _close(self) -> None:
        """Start no more changes, and wait for the one that runs."""
        self._is_closed = True
        async with self._changing:
            pass
