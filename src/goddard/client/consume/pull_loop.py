"""Keeps process queues filled: one task and one outstanding pull per queue.

Pulling does not wait for consuming, nor for the messages of the last pull to be read: when an
answer comes, and there will be room, the next pull leaves first. It pauses while a queue holds too
much (messages, bytes or a stretch of offsets) and goes on as soon as there is room; while the
consumer is suspended; and, for an orderly consumer, while the queue is not locked. What fails is
tried again after a while, for as long as the queue is ours. Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from goddard.client.consume.locks import QueueLocks
from goddard.client.consume.offsets import Offsets, start_offset
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.pull import (
    PullAnswer,
    Puller,
    PullKeywords,
    PullResult,
    PullStatus,
    PullUnderWay,
)
from goddard.client.consume.rates import ConsumeRates
from goddard.client.errors import BrokerError
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.errors import GoddardError, RemotingError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import ResponseCode
from goddard.transport.tasks import Tasks

_FLOW_CONTROL_SECONDS: Final = 0.02
_MIB: Final = 1024 * 1024

_logger: Final = logging.getLogger("goddard.client")


@dataclass(slots=True, kw_only=True)
class FeedingOptions:
    """How much is pulled and held. The thresholds change with the number of queues."""

    pull_batch_size: int
    pull_batch_bytes: int
    pull_interval_ms: int
    pull_error_delay_ms: int
    max_count: int
    max_mib: int
    max_span: int
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    is_orderly: bool
    is_broadcast: bool


class Consumer(Protocol):
    """What becomes of the messages."""

    def accept(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None: ...


class Feeder:
    """Pulls for the process queues of one consumer.

    ``prepare`` readies messages for their listener. ``lost`` is told of a queue that cannot go on:
    because it does not have the offset that was asked for, with one that it has; or, with None,
    because its lock is somebody else's. Without ``locks`` none is needed.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        options: FeedingOptions,
        *,
        offsets: Offsets,
        rates: ConsumeRates,
        subscription_of: Callable[[str], SubscriptionData | None],
        prepare: Callable[[MessageQueue, list[ReceivedMessage]], None],
        lost: Callable[[ProcessQueue, int | None], None],
        locks: QueueLocks | None,
    ) -> None:
        self.options = options
        self._session = session
        self._clock = session.clock
        self._puller = Puller(session, group)
        self._offsets = offsets
        self._rates = rates
        self._subscription_of = subscription_of
        self._prepare = prepare
        self._lost = lost
        self._locks = locks
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._feeding: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._waiting: dict[ProcessQueue, asyncio.Future[None]] = {}
        self._ahead: dict[ProcessQueue, PullUnderWay] = {}
        self._beginning: dict[ProcessQueue, asyncio.Future[None]] = {}
        self._is_running = asyncio.Event()
        self._is_running.set()

    @property
    def is_paused(self) -> bool:
        return not self._is_running.is_set()

    def pause(self) -> None:
        """Pull no more until ``go_on``; what is held is consumed."""
        self._is_running.clear()

    def go_on(self) -> None:
        self._is_running.set()

    def start(self, held: ProcessQueue, consumer: Consumer, delay_ms: int = 0) -> None:
        """Begin to pull for a queue."""
        task = self._tasks.spawn(self._feed(held, consumer, delay_ms), f"pull {held.queue}")
        self._feeding[held] = task
        if held.next_offset is None and not delay_ms:
            self._beginning[held] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda ended: self._ended(held, ended))

    def _ended(self, held: ProcessQueue, task: asyncio.Task[None]) -> None:
        if self._feeding.get(held) is task:
            del self._feeding[held]
        self._begun(held)

    def _begun(self, held: ProcessQueue) -> None:
        beginning = self._beginning.pop(held, None)
        if beginning is not None:
            beginning.set_result(None)

    async def wait_for_beginnings(self, timeout_ms: int) -> None:
        """Wait until queues know where they begin: they miss nothing that is sent after that.

        Those that were taken from others, and wait a while first, are not waited for.
        """
        beginnings = list(self._beginning.values())
        if beginnings:
            await asyncio.wait(beginnings, timeout=timeout_ms / 1000)

    def pull_anew(self, topics: Collection[str], consumer: Consumer) -> None:
        """Pull from topics by their new subscriptions: a broker that holds a pull goes by the old
        one, and passes over what it does not want."""
        for held, task in list(self._feeding.items()):
            if held.queue.topic in topics and held.next_offset is not None:
                task.cancel()
                self.start(held, consumer)

    def is_feeding(self, held: ProcessQueue) -> bool:
        return held in self._feeding

    async def stop(self, held: ProcessQueue) -> None:
        """Pull no more for a queue; a pull under way is left unanswered."""
        self._puller.forget(held.queue)
        task = self._feeding.get(held)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def close(self) -> None:
        await self._tasks.stop()

    def released(self, held: ProcessQueue) -> None:
        """Go on with a queue that waits for room, if it has got some."""
        waiting = self._waiting.get(held)
        if waiting is not None and not waiting.done() and self._has_room(held):
            waiting.set_result(None)

    def _has_room(self, held: ProcessQueue) -> bool:
        options = self.options
        return (
            len(held) <= options.max_count
            and held.size_bytes <= options.max_mib * _MIB
            and (options.is_orderly or held.span <= options.max_span)
        )

    async def _feed(self, held: ProcessQueue, consumer: Consumer, delay_ms: int) -> None:
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        if held.next_offset is None:
            held.next_offset = await self._first_offset(held)
            self._begun(held)
        failures = 0
        try:
            while not held.is_dropped:
                if held not in self._ahead and not await self._may_pull(held):
                    self._lost(held, None)
                    return
                subscription = self._subscription_of(held.queue.topic)
                if subscription is None:
                    return
                try:
                    result = await self._pull(held, held.next_offset, subscription)
                except GoddardError as error:
                    failures += 1
                    self._give_up(held)
                    if isinstance(error, RemotingError):
                        # A broker that starts anew knows no locks, and may give ours to others.
                        held.locked_at_ms = None
                    await asyncio.sleep(self._pause_after(held, error, failures))
                    continue
                if failures:
                    _logger.info("%s can be pulled from again", held.queue)
                    failures = 0
                if result.status is PullStatus.OFFSET_ILLEGAL:
                    # Told once. A rebalance that gets to the queue first is to write this down,
                    # and not where calls of the listener that still run have got to.
                    self._offsets.freeze(held.queue, result.next_offset)
                    self._lost(held, result.next_offset)
                    return
                held.next_offset = result.next_offset
                self._take(held, consumer, result)
                if self.options.pull_interval_ms:
                    await asyncio.sleep(self.options.pull_interval_ms / 1000)
        finally:
            self._give_up(held)

    async def _pull(
        self, held: ProcessQueue, offset: int, subscription: SubscriptionData
    ) -> PullResult:
        """The result of the pull that is under way, or of one that is made now."""
        ahead = self._ahead.pop(held, None)
        if ahead is not None:
            answer = await ahead.answer()
        else:
            held.last_pull_ms = self._clock.monotonic_ms()
            answer = await self._puller.ask(
                held.queue,
                offset,
                subscription,
                commit_offset=self._commit_offset(held),
                **self._how(),
            )
        if not answer.size_bytes:
            return answer.result()
        now_ms = self._clock.monotonic_ms()
        spent_ms = now_ms - (held.last_pull_ms or now_ms)
        if self._may_ask_ahead(held, offset, answer, now_ms):
            held.last_pull_ms = now_ms
            self._ask_ahead(held, answer.next_offset, subscription)
            # It leaves now: the broker is at work while the messages are read here.
            await asyncio.sleep(0)
        result = answer.result()
        count = len(result.messages)
        if count:
            self._rates.pulled(held.queue.topic, count, spent_ms, now_ms)
        return result

    def _give_up(self, held: ProcessQueue) -> None:
        """Leave a pull unanswered that was sent ahead."""
        ahead = self._ahead.pop(held, None)
        if ahead is not None:
            ahead.give_up()

    def _may_ask_ahead(
        self, held: ProcessQueue, offset: int, answer: PullAnswer, now_ms: int
    ) -> bool:
        """Whether the pull that follows an answer to one at ``offset`` has nothing to wait for."""
        options = self.options
        return not (
            options.pull_interval_ms
            or self.is_paused
            or held.is_dropped
            or (self._locks is not None and not held.is_locked(now_ms))
            # As if all that the answer can hold were there already.
            or len(held) + options.pull_batch_size > options.max_count
            or held.size_bytes + answer.size_bytes > options.max_mib * _MIB
            or (
                not options.is_orderly
                and held.span + answer.next_offset - offset > options.max_span
            )
        )

    def _ask_ahead(self, held: ProcessQueue, offset: int, subscription: SubscriptionData) -> None:
        # Without a connection it is asked when its turn comes, which waits for one.
        with suppress(RemotingError):
            ahead = self._puller.ask_soon(
                held.queue,
                offset,
                subscription,
                commit_offset=self._commit_offset(held),
                **self._how(),
            )
            if ahead is not None:
                self._ahead[held] = ahead

    def _commit_offset(self, held: ProcessQueue) -> int | None:
        return None if self.options.is_broadcast else self._offsets.cached(held.queue) or None

    def _how(self) -> PullKeywords:
        return {
            "max_messages": self.options.pull_batch_size,
            "max_bytes": self.options.pull_batch_bytes,
        }

    async def _may_pull(self, held: ProcessQueue) -> bool:
        """Wait until a queue may be pulled from; False if it is somebody else's."""
        if not self._has_room(held):
            await self._wait_for_room(held)
        if self.is_paused:
            await self._is_running.wait()
        locks = self._locks
        while locks is not None and not held.is_locked(self._clock.monotonic_ms()):
            if held in await locks.lock([held]):
                return False
            if held.locked_at_ms is None:
                await asyncio.sleep(self.options.pull_error_delay_ms / 1000)
        return True

    def _take(self, held: ProcessQueue, consumer: Consumer, result: PullResult) -> None:
        messages = held.add(result.messages)
        if messages:
            self._prepare(held.queue, messages)
            consumer.accept(held, messages)
        elif not len(held):
            # Nothing before it is ours to consume.
            self._offsets.update(held.queue, result.next_offset, increase_only=True)

    async def _first_offset(self, held: ProcessQueue) -> int:
        failures = 0
        while True:
            try:
                return await start_offset(
                    self._session,
                    self._offsets,
                    held.queue,
                    self.options.consume_from,
                    self.options.consume_timestamp_ms,
                )
            except GoddardError as error:
                failures += 1
                await asyncio.sleep(self._pause_after(held, error, failures))

    def _pause_after(self, held: ProcessQueue, error: GoddardError, failures: int) -> float:
        """Seconds until the next try."""
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            return _FLOW_CONTROL_SECONDS
        # Once, not every second for as long as a broker is away.
        level = logging.WARNING if failures == 1 else logging.DEBUG
        _logger.log(level, "pulling from %s fails, and is tried again: %s", held.queue, error)
        return self.options.pull_error_delay_ms / 1000

    async def _wait_for_room(self, held: ProcessQueue) -> None:
        waiting = self._waiting[held] = asyncio.get_running_loop().create_future()
        try:
            await waiting
        finally:
            if self._waiting.get(held) is waiting:
                del self._waiting[held]
