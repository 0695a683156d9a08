"""Pulling ahead for a lite consumer: a task per queue, which pulls while there is room.

A task that has nothing to do (its queue is paused, or enough waits already) sleeps until it is
woken; nothing is polled. Moving to another offset ends the task of a queue, with the pull it may
have under way, and starts another. Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from goddard.client.consume.offsets import Offsets, start_offset
from goddard.client.consume.prefetch_queue import AssignedQueue, Batch, Limits, Prefetch
from goddard.client.consume.pull import Puller, PullResult, PullStatus
from goddard.client.errors import BrokerError
from goddard.client.options import check_range
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import ResponseCode
from goddard.transport.tasks import Tasks

_logger: Final = logging.getLogger("goddard.client")

# RocketMQ's pause after a refusal for load. It is also made after an answer that leads nowhere: a
# broker that does not hold pulls, though asked to, would be asked without end.
_FLOW_CONTROL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How to pull, and how much; the names are those of LitePullConsumer's options."""

    pull_batch_size: int
    broker_suspend_ms: int
    pull_timeout_ms: int
    pull_error_delay_ms: int
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    pull_threshold_for_all: int
    pull_threshold_for_queue: int
    pull_threshold_mib_for_queue: int
    max_span: int

    def __post_init__(self) -> None:
        check_range("pull_batch_size", self.pull_batch_size, 1, 1024)
        check_range("broker_suspend_ms", self.broker_suspend_ms, 1)
        check_range("pull_timeout_ms", self.pull_timeout_ms, 1)
        check_range("pull_error_delay_ms", self.pull_error_delay_ms, 1)
        check_range("consume_timestamp_ms", self.consume_timestamp_ms, 0, 2**62)
        check_range("pull_threshold_for_all", self.pull_threshold_for_all, 1)
        check_range("pull_threshold_for_queue", self.pull_threshold_for_queue, 1, 65_535)
        check_range("pull_threshold_mib_for_queue", self.pull_threshold_mib_for_queue, 1, 1024)
        check_range("max_span", self.max_span, 1, 65_535)
        if self.pull_timeout_ms < self.broker_suspend_ms:
            raise ConfigError(
                f"pull_timeout_ms is {self.pull_timeout_ms}; it must be at least "
                f"broker_suspend_ms, {self.broker_suspend_ms}"
            )

    @property
    def limits(self) -> Limits:
        return Limits(
            self.pull_threshold_for_all,
            self.pull_threshold_for_queue,
            self.pull_threshold_mib_for_queue,
            self.max_span,
        )


class PullAhead:
    """The queues that a lite consumer reads, and what was pulled of them."""

    def __init__(
        self,
        session: Session,
        group: str,
        offsets: Offsets,
        settings: PullSettings,
        subscription_of: Callable[[str], SubscriptionData],
    ) -> None:
        self._session = session
        self._offsets = offsets
        self._settings = settings
        self._subscription_of = subscription_of
        self._puller = Puller(session, group)
        self._prefetch = Prefetch(settings.limits)
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._running: dict[MessageQueue, asyncio.Task[None]] = {}
        # Of the tasks that sleep.
        self._wakes: dict[MessageQueue, asyncio.Event] = {}
        self._arrived = asyncio.Event()
        self._is_stopped = False
        # Brokers before 5.0, which do not know the request of lite consumers.
        self._without_lite: set[str] = set()

    @property
    def queues(self) -> dict[MessageQueue, AssignedQueue]:
        return self._prefetch.queues

    # --- Queues -----------------------------------------------------------------------------------

    def assign(self, queue: MessageQueue, *, delay_ms: int = 0) -> None:
        """Begin to read a queue, after a while, if it is not read already."""
        if queue not in self.queues:
            self._run(self._prefetch.assign(queue), delay_ms)

    def drop(self, queue: MessageQueue) -> AssignedQueue | None:
        """Give a queue up, and what was pulled of it; None if it was not read."""
        assigned = self._prefetch.drop(queue)
        self._puller.forget(queue)
        task = self._running.pop(queue, None)
        if task is not None:
            task.cancel()
        return assigned

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from here on; what was pulled of it is thrown away."""
        assigned = self.queues[queue]
        task = self._running.pop(queue, None)
        if task is not None:
            task.cancel()
        assigned.clear()
        assigned.start(offset)
        self._run(assigned)

    def pause(self, queue: MessageQueue) -> None:
        """Pull nothing more of a queue; what was pulled is handed out."""
        if (assigned := self.queues.get(queue)) is not None:
            assigned.is_paused = True

    def resume(self, queue: MessageQueue) -> None:
        if (assigned := self.queues.get(queue)) is not None:
            assigned.is_paused = False
            self._wake_all()

    async def stop(self) -> None:
        """End every task, and every wait for messages."""
        self._is_stopped = True
        self._arrived.set()
        await self._tasks.stop()
        self._running.clear()

    # --- Messages ---------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The batch that waits longest, if any does."""
        batch = self._prefetch.take()
        if batch is not None and self._wakes:
            self._wake_all()
        return batch

    async def wait(self) -> bool:
        """Wait until something was pulled, perhaps; False when nothing more will be."""
        if not self._is_stopped:
            self._arrived.clear()
            await self._arrived.wait()
        return not self._is_stopped

    # --- Tasks ------------------------------------------------------------------------------------

    def _run(self, assigned: AssignedQueue, delay_ms: int = 0) -> None:
        queue = assigned.queue
        pulling = self._pull_on(assigned, delay_ms)
        self._running[queue] = self._tasks.spawn(pulling, f"pull of {queue}")

    def _wake_all(self) -> None:
        for wake in self._wakes.values():
            wake.set()

    async def _pull_on(self, assigned: AssignedQueue, delay_ms: int) -> None:
        generation = assigned.generation
        failures = 0
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        while not assigned.is_dropped and assigned.generation == generation:
            if assigned.is_paused or not self._prefetch.has_room(assigned):
                await self._sleep(assigned)
                continue
            try:
                delay_seconds = await self._pull_once(assigned, generation)
                if failures:
                    _logger.info("%s can be pulled from again", assigned.queue)
                    failures = 0
            except GoddardError as error:
                delay_seconds = self._settings.pull_error_delay_ms / 1000
                if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
                    delay_seconds = _FLOW_CONTROL_SECONDS
                # Once is enough for a broker that is away for hours.
                level = logging.DEBUG if failures else logging.WARNING
                _logger.log(level, "a pull of %s failed: %s", assigned.queue, error)
                failures += 1
            if delay_seconds:
                await asyncio.sleep(delay_seconds)

    async def _sleep(self, assigned: AssignedQueue) -> None:
        """Until somebody wakes all who sleep."""
        wake = asyncio.Event()
        self._wakes[assigned.queue] = wake
        try:
            await wake.wait()
        finally:
            # After a seek the next task of the queue may be asleep already.
            if self._wakes.get(assigned.queue) is wake:
                del self._wakes[assigned.queue]

    async def _pull_once(self, assigned: AssignedQueue, generation: int) -> float:
        """One pull; gives the seconds to rest before the next."""
        queue = assigned.queue
        if assigned.pull_offset is None:
            settings = self._settings
            offset = await start_offset(
                self._session,
                self._offsets,
                queue,
                settings.consume_from,
                settings.consume_timestamp_ms,
            )
            assigned.start(offset)
        else:
            offset = assigned.pull_offset
        result = await self._pull(queue, offset)
        if assigned.is_dropped or assigned.generation != generation:
            return 0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _logger.warning(
                "%s has no offset %d; reading goes on at %d",
                queue,
                offset,
                result.next_offset,
            )
        if self._prefetch.add(assigned, result.messages, result.next_offset):
            self._arrived.set()
        return 0 if result.next_offset != offset else _FLOW_CONTROL_SECONDS

    async def _pull(self, queue: MessageQueue, offset: int) -> PullResult:
        settings = self._settings
        subscription = self._subscription_of(queue.topic)
        is_lite = queue.broker_name not in self._without_lite
        try:
            return await self._puller.pull(
                queue,
                offset,
                subscription,
                max_messages=settings.pull_batch_size,
                suspend_ms=settings.broker_suspend_ms,
                timeout_ms=settings.pull_timeout_ms,
                carries_subscription=True,
                is_lite=is_lite,
            )
        except BrokerError as error:
            if not is_lite or error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            self._without_lite.add(queue.broker_name)
            return await self._pull(queue, offset)
