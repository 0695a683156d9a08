"""The queues of a push consumer: how they are taken, pulled from, consumed and released.

Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from goddard.client.consume.assignment import HANDOVER_MS, Assignment
from goddard.client.consume.offsets import Offsets
from goddard.client.consume.options import MIB, PushOptions
from goddard.client.consume.pull import PullAnswer, PullResult
from goddard.client.consume.pull_loop import PullLoop
from goddard.client.consume.queue_buffer import ProcessQueue, PullLimits
from goddard.client.consume.status import ConsumeRates
from goddard.client.listeners.concurrent import ConcurrentConsumption
from goddard.client.listeners.locks import QueueLocks
from goddard.client.listeners.orderly import OrderlyConsumption
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError, RemotingError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.transport.tasks import Tasks

# The broker's lease of a lock: when it has expired, another member may have the queue.
_LOCK_LEASE_MS: Final = 60_000

_logger: Final = logging.getLogger("goddard.client")


def limits_of(options: PushOptions, queue_count: int) -> PullLimits:
    """The limits of each of ``queue_count`` queues: thresholds for a topic are divided."""
    queues = max(1, queue_count)
    count, mib = options.pull_threshold_for_queue, options.pull_threshold_mib_for_queue
    if options.pull_threshold_for_topic > 0:
        count = max(1, options.pull_threshold_for_topic // queues)
    if options.pull_threshold_mib_for_topic > 0:
        mib = max(1, options.pull_threshold_mib_for_topic // queues)
    return PullLimits(count, mib * MIB, None if options.orderly else options.max_span)


def may_unlock(is_settled: bool, locked_at_ms: int | None, now_ms: int) -> bool:
    """Whether a queue may be unlocked: no call of the listener runs for it, or the lease of the
    lock has expired, so that another member may have it in any case."""
    return is_settled or locked_at_ms is None or now_ms - locked_at_ms >= _LOCK_LEASE_MS


class PushQueues(Assignment[ProcessQueue]):
    """``prepare`` readies messages for the listener; ``changed`` is awaited when the queues of a
    topic have changed, before new ones are pulled from. ``consumption`` and ``pulls`` are set by
    the owner. Without ``locks`` none are needed."""

    consumption: ConcurrentConsumption | OrderlyConsumption
    pulls: PullLoop[ProcessQueue]

    def __init__(
        self,
        session: Session,
        group: str,
        options: PushOptions,
        *,
        offsets: Offsets,
        rates: ConsumeRates,
        locks: QueueLocks | None,
        subscription_of: Callable[[str], SubscriptionData | None],
        prepare: Callable[[MessageQueue, list[ReceivedMessage]], None],
        changed: Callable[[str, list[MessageQueue], list[MessageQueue]], Awaitable[None]],
    ) -> None:
        super().__init__(session, group, options.strategy)
        self._clock = session.clock
        self._options = options
        self._offsets = offsets
        self._rates = rates
        self._locks = locks
        self._prepare = prepare
        self._tell_changed = changed
        self.subscription_of = subscription_of
        self.limits = limits_of(options, 1)
        self._is_paused = False
        self._tasks = Tasks(_logger, logging.DEBUG)

    # --- For the user -----------------------------------------------------------------------------

    def assigned(self) -> set[MessageQueue]:
        """The queues that are consumed now."""
        return {queue for queue, buffer in self.owned.items() if not buffer.is_dropped}

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def pause(self) -> None:
        """Pull nothing until ``resume``; what was pulled is consumed."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.pulls.wake_all()

    # --- Pulling (PullHandler) --------------------------------------------------------------------

    def may_pull(self, buffer: ProcessQueue) -> bool:
        return not self._is_paused and self.limits.has_room(buffer)

    async def lock(self, buffer: ProcessQueue) -> bool:
        locks = self._locks
        while locks is not None and not buffer.is_locked(self._clock.monotonic_ms()):
            if buffer in await locks.lock([buffer]):
                return False
            if not buffer.is_locked(self._clock.monotonic_ms()):
                await asyncio.sleep(self._options.pull_error_delay_ms / 1000)
        return True

    def may_prefetch(self, buffer: ProcessQueue, answer: PullAnswer, offset: int) -> bool:
        return (
            not self._is_paused
            and (self._locks is None or buffer.is_locked(self._clock.monotonic_ms()))
            # As if all that the answer can hold were there already.
            and self.limits.has_room(
                buffer,
                more_count=self._options.pull_batch_size,
                more_bytes=answer.size_bytes,
                more_span=answer.next_offset - offset,
            )
        )

    def commit_offset(self, queue: MessageQueue) -> int | None:
        return None if self._options.is_broadcast else self._offsets.cached(queue) or None

    def take(self, buffer: ProcessQueue, result: PullResult, spent_ms: int) -> None:
        count = len(result.messages)
        if count:
            now_ms = self._clock.monotonic_ms()
            self._rates.pulled(buffer.queue.topic, count, spent_ms, now_ms)
        messages = buffer.add(result.messages)
        if messages:
            self._prepare(buffer.queue, messages)
            self.consumption.accept(buffer, messages)
        elif not len(buffer):
            # No message before this offset is left to consume.
            self._offsets.update(buffer.queue, result.next_offset, increase_only=True)

    def offset_is_illegal(self, buffer: ProcessQueue, result: PullResult) -> bool:
        # If a rebalance releases the queue first, it writes this offset, and not that of calls of
        # the listener that still run.
        self._offsets.freeze(buffer.queue, result.next_offset)
        self._restart_soon(buffer, result.next_offset)
        return False

    def failed(self, buffer: ProcessQueue, error: GoddardError) -> None:
        if isinstance(error, RemotingError):
            # A broker that was restarted knows no locks, and may give ours to other members.
            buffer.locked_at_ms = None

    def lost(self, buffer: ProcessQueue) -> None:
        self._restart_soon(buffer, None)

    def _restart_soon(self, buffer: ProcessQueue, offset: int | None) -> None:
        self._tasks.spawn(self.restart(buffer, offset), f"restart {buffer.queue}")

    # --- Taking and releasing (Assignment) --------------------------------------------------------

    async def _acquire(self, queues: list[MessageQueue]) -> list[ProcessQueue]:
        now_ms = self._clock.monotonic_ms()
        added = [ProcessQueue(queue, now_ms) for queue in queues]
        if self._locks is not None and added:
            await self._locks.lock(added)
            added = [buffer for buffer in added if buffer.locked_at_ms is not None]
        for buffer in added:
            self._offsets.forget(buffer.queue)
            self.owned[buffer.queue] = buffer
        return added

    async def _release(self, buffer: ProcessQueue) -> bool:
        is_settled = await self._stop(buffer, HANDOVER_MS)
        if self._locks is not None:
            if not is_settled:
                buffer.unlock_attempts += 1
            now_ms = self._clock.monotonic_ms()
            if not may_unlock(is_settled, buffer.locked_at_ms, now_ms):
                return False
        await self._offsets.persist(buffer.queue)
        self._forget(buffer)
        if self._locks is not None:
            await self._locks.unlock([buffer.queue])
        return True

    async def _changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        self.limits = limits_of(self._options, len(self.assigned()))
        await self._tell_changed(topic, queues, ours)

    def _is_pulling(self, buffer: ProcessQueue) -> bool:
        return self.pulls.is_pulling(buffer)

    def _start(self, buffer: ProcessQueue, delay_ms: int) -> None:
        self.pulls.start(buffer, delay_ms)

    async def _stop(self, buffer: ProcessQueue, wait_ms: int) -> bool:
        """Stop pulling and consuming; False if calls of the listener still run then."""
        buffer.drop()
        await self.pulls.stop(buffer)
        return await self.consumption.settle(buffer, wait_ms)

    def _forget(self, buffer: ProcessQueue) -> None:
        buffer.clear()
        if self.owned.get(buffer.queue) is buffer:
            del self.owned[buffer.queue]
            self._offsets.forget(buffer.queue)

    # --- Moving to other offsets ------------------------------------------------------------------

    async def restart(self, buffer: ProcessQueue, offset: int | None) -> None:
        """Go on with a queue from another offset; or (None) from the group's, when the queue is
        ours again."""
        async with self._changing:
            if self.owned.get(buffer.queue) is not buffer:
                return
            await self._stop(buffer, HANDOVER_MS)
            self._forget(buffer)
            if offset is None:
                self._session.wake_rebalance()
                return
            await self._start_at(buffer, offset)

    async def reset(self, offsets: Mapping[MessageQueue, int], wait_ms: int) -> None:
        """Go on from other offsets; running calls of the listener are waited for."""
        async with self._changing:
            moved = [
                (buffer, offset)
                for queue, offset in offsets.items()
                if (buffer := self.owned.get(queue)) is not None and not buffer.is_dropped
            ]
            for buffer, _ in moved:
                buffer.drop()
                await self.pulls.stop(buffer)
            for buffer, offset in moved:
                await self.consumption.settle(buffer, wait_ms)
                self._forget(buffer)
                await self._start_at(buffer, offset)

    async def _start_at(self, old: ProcessQueue, offset: int) -> None:
        buffer = ProcessQueue(old.queue, self._clock.monotonic_ms())
        buffer.locked_at_ms = old.locked_at_ms
        _logger.info("%s goes on from offset %d for the group %s", old.queue, offset, self._group)
        self._offsets.update(old.queue, offset)
        await self._offsets.persist(old.queue)
        self.owned[old.queue] = buffer
        if not self._is_closed:
            self._start(buffer, 0)

    # --- The end ----------------------------------------------------------------------------------

    def locked_queues(self) -> list[ProcessQueue]:
        """The queues whose locks are to be renewed."""
        return [buffer for buffer in self.owned.values() if not buffer.is_dropped]

    async def close(self) -> None:
        """Pull no more. The queues are owned until ``unlock_all``."""
        try:
            await self._tasks.stop()
            await self._close()
        finally:
            for buffer in self.owned.values():
                buffer.drop()
            await self.pulls.close()

    async def unlock_all(self) -> None:
        """Release all queues, whose offsets have been written."""
        async with self._changing:
            if self._locks is not None:
                await self._locks.unlock(self.owned)
            for buffer in self.owned.values():
                buffer.clear()
            self.owned.clear()
