"""Which queues a push consumer works on: it takes those that are its share, and gives up others.

A queue changes hands without a word between the two consumers. So the one that gives it up stops
pulling, lets running calls of the listener end, writes its offset and only then unlocks; and the
one that takes it waits a moment before it asks for the offset. Belongs to the event loop.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from goddard.client import broker_api
from goddard.client.consume.allocation import AllocationStrategy
from goddard.client.consume.locks import QueueLocks
from goddard.client.consume.offsets import Offsets
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.pull_loop import Feeder
from goddard.client.errors import ClientError
from goddard.client.message import ReceivedMessage
from goddard.client.routes import MASTER_ID
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError

# How long running calls are waited for when a queue is given up.
HANDOVER_MS: Final = 500
# The broker's own time for a lock: after it the queue is somebody else's, whatever we do.
_LOCK_LEASE_MS: Final = 60_000

_logger: Final = logging.getLogger("goddard.client")


class Consumption(Protocol):
    """What consumes the messages of the queues: ConcurrentConsumption or OrderlyConsumption."""

    @property
    def worker_count(self) -> int: ...

    def accept(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None: ...

    async def settle(self, held: ProcessQueue, timeout_ms: int) -> bool: ...


async def member_ids(session: Session, group: str, topic: str) -> list[str] | None:
    """The client ids of a group, from a broker of the topic that answers; None if none does."""
    route = session.route(topic)
    if route is None:
        return None
    brokers = list(route.broker_datas)
    random.shuffle(brokers)
    for broker in brokers:
        addresses = broker.broker_addrs
        if not addresses:
            continue
        address = addresses.get(MASTER_ID) or random.choice(list(addresses.values()))
        try:
            return await broker_api.consumer_ids(
                session, address, group, timeout_ms=session.options.api_timeout_ms
            )
        except GoddardError as error:
            _logger.info("%s tells no members of %s: %s", address, group, error)
    return None


class Assignment:
    """The queues of one consumer.

    ``changed`` is awaited with a topic, all of its queues and ours, before new ones are pulled
    from.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        strategy: AllocationStrategy,
        *,
        is_broadcast: bool,
        offsets: Offsets,
        feeder: Feeder,
        locks: QueueLocks | None,
        consumption: Consumption,
        changed: Callable[[str, list[MessageQueue], list[MessageQueue]], Awaitable[None]],
    ) -> None:
        self._session = session
        self._clock = session.clock
        self._group = group
        self._strategy = strategy
        self._is_broadcast = is_broadcast
        self._offsets = offsets
        self._feeder = feeder
        self._locks = locks
        self._consumption = consumption
        self._changed = changed
        self._owned: dict[MessageQueue, ProcessQueue] = {}
        # One at a time: rebalances, resets of offsets, the end.
        self._changing = asyncio.Lock()
        self._is_closed = False
        self.members: list[str] = []

    @property
    def owned(self) -> dict[MessageQueue, ProcessQueue]:
        """The queues that are ours; those given up and not let go of yet among them."""
        return self._owned

    def locked_queues(self) -> list[ProcessQueue]:
        """Those whose locks are to be renewed."""
        return [held for held in self._owned.values() if not held.is_dropped]

    async def rebalance(self, topics: Iterable[str]) -> bool:
        """Take and give up queues; True if all is as it should be."""
        async with self._changing:
            if self._is_closed:
                return True
            wanted_topics = set(topics)
            strangers = [q for q in self._owned.values() if q.queue.topic not in wanted_topics]
            is_balanced = await self._give_up(strangers)
            for topic in sorted(wanted_topics):
                try:
                    is_balanced &= await self._rebalance_topic(topic)
                except GoddardError as error:
                    _logger.warning("rebalancing %s for %s failed: %s", topic, self._group, error)
                    is_balanced = False
            return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        try:
            queues = sorted(await self._session.subscribe_queues(topic))
        except ClientError as error:
            # A retry topic comes into being with the first heartbeat, others when they are made.
            _logger.info(
                "doRebalance, %s, but the topic[%s] not exist: %s", self._group, topic, error
            )
            return True
        share: Sequence[MessageQueue]
        if self._is_broadcast:
            share = queues
        else:
            members = await member_ids(self._session, self._group, topic)
            if members is None or self._session.client_id not in members:
                # No broker answers, or one that was started anew does not know us yet: the queues
                # stay where they are until the next heartbeat.
                return False
            self.members = sorted(members)
            try:
                share = self._strategy.allocate(
                    self._group, self._session.client_id, queues, self.members
                )
            except Exception:
                # It may be the user's own. Queues stay where they are.
                _logger.exception("the allocation strategy %s failed", self._strategy.name)
                return False
        return await self._become(topic, queues, set(share))

    async def _become(
        self, topic: str, queues: list[MessageQueue], share: set[MessageQueue]
    ) -> bool:
        current = [held for queue, held in self._owned.items() if queue.topic == topic]
        gone = [held for held in current if held.queue not in share or self._is_stuck(held)]
        are_gone = await self._give_up(gone)
        added = await self._take_over(sorted(share - self._owned.keys()))
        if gone or added:
            ours = sorted(share & self._owned.keys())
            _logger.info(
                "the queues of %s for the group %s are now %s",
                topic,
                self._group,
                [(queue.broker_name, queue.queue_id) for queue in ours],
            )
            await self._changed(topic, queues, ours)
        # Alone in a group, nobody has to be waited for.
        delay_ms = HANDOVER_MS if len(self.members) > 1 else 0
        for held in added if not self._is_closed else ():
            self._feeder.start(held, self._consumption, delay_ms)
        return are_gone and share <= self._owned.keys()

    def _is_stuck(self, held: ProcessQueue) -> bool:
        """Given up before and not let go of yet, or without its pulling task."""
        return held.is_dropped or not self._feeder.is_feeding(held)

    async def _give_up(self, gone: Iterable[ProcessQueue]) -> bool:
        """Let go of queues; False if some have to be tried again."""
        return all(await asyncio.gather(*(self._let_go(held) for held in gone)))

    async def _let_go(self, held: ProcessQueue) -> bool:
        held.drop()
        await self._feeder.stop(held)
        is_settled = await self._consumption.settle(held, HANDOVER_MS)
        if not is_settled and self._locks is not None:
            held.unlock_tries += 1
            locked_ms = held.locked_at_ms
            if locked_ms is not None and self._clock.monotonic_ms() - locked_ms < _LOCK_LEASE_MS:
                # Nobody else may have it before the call that runs has ended.
                return False
        await self._offsets.persist(held.queue)
        self._forget(held)
        if self._locks is not None:
            await self._locks.unlock([held.queue])
        return True

    def _forget(self, held: ProcessQueue) -> None:
        held.clear()
        if self._owned.get(held.queue) is held:
            del self._owned[held.queue]
            self._offsets.forget(held.queue)

    async def _take_over(self, queues: Iterable[MessageQueue]) -> list[ProcessQueue]:
        now_ms = self._clock.monotonic_ms()
        fresh = [ProcessQueue(queue, now_ms) for queue in queues]
        if self._locks is not None and fresh:
            await self._locks.lock(fresh)
            fresh = [held for held in fresh if held.locked_at_ms is not None]
        for held in fresh:
            self._offsets.forget(held.queue)
            self._owned[held.queue] = held
        return fresh

    async def restart(self, held: ProcessQueue, offset: int | None) -> None:
        """Begin anew with a queue that cannot go on: from an offset, or (None) from where the group
        stands when it is ours again."""
        async with self._changing:
            if self._owned.get(held.queue) is not held:
                return
            held.drop()
            await self._feeder.stop(held)
            await self._consumption.settle(held, HANDOVER_MS)
            self._forget(held)
            if offset is None:
                self._session.wake_rebalance()
                return
            await self._start_at(held, offset)

    async def reset(self, offsets: dict[MessageQueue, int], wait_ms: int) -> None:
        """Go on from other offsets; running calls of the listener are waited for."""
        async with self._changing:
            moved = [
                (held, offset)
                for queue, offset in offsets.items()
                if (held := self._owned.get(queue)) is not None and not held.is_dropped
            ]
            for held, _ in moved:
                held.drop()
                await self._feeder.stop(held)
            for held, offset in moved:
                await self._consumption.settle(held, wait_ms)
                self._forget(held)
                await self._start_at(held, offset)

    async def _start_at(self, old: ProcessQueue, offset: int) -> None:
        fresh = ProcessQueue(old.queue, self._clock.monotonic_ms())
        fresh.locked_at_ms = old.locked_at_ms
        _logger.info("%s goes on from offset %d for the group %s", old.queue, offset, self._group)
        self._offsets.update(old.queue, offset)
        await self._offsets.persist(old.queue)
        self._owned[old.queue] = fresh
        if not self._is_closed:
            self._feeder.start(fresh, self._consumption)

    async def close(self) -> None:
        """Pull no more. The queues stay known until ``release``."""
        self._is_closed = True
        try:
            async with self._changing:
                pass  # a rebalance that is under way ends first
        finally:
            for held in self._owned.values():
                held.drop()
            await self._feeder.close()

    async def release(self) -> None:
        """Let go of all queues, whose offsets were written."""
        async with self._changing:
            if self._locks is not None:
                await self._locks.unlock(self._owned)
            for held in self._owned.values():
                held.clear()
            self._owned.clear()
