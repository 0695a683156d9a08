"""The pull loop of push and lite pull consumers: one task and one outstanding pull per queue.

A task finds the offset to start at, and then pulls for as long as its buffer is not dropped. It
pauses while the consumer may not pull (too much is held, the queue is paused, its lock is not ours)
and is woken when it may. After a failure it waits and pulls again.

Pulling does not wait for decoding and consuming: when an answer has come and there will be room for
the next one too, the next pull is sent before the messages of this one are decoded.

What push and lite pull consumers do differently is in their ``PullHandler``. Belongs to the event
loop.
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

from goddard.client.consume.offsets import Offsets, start_offset
from goddard.client.consume.pull import (
    PendingPull,
    PullAnswer,
    Puller,
    PullKeywords,
    PullResult,
    PullStatus,
)
from goddard.client.consume.queue_buffer import QueueBuffer
from goddard.client.errors import BrokerError
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.errors import GoddardError, RemotingError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import ResponseCode
from goddard.transport.tasks import Tasks

# RocketMQ's pause after a refusal for load. It is also made after an answer that does not advance
# the offset: a broker that does not hold pulls would otherwise be asked without pause.
_SHORT_PAUSE_MS: Final = 20

B = TypeVar("B", bound=QueueBuffer)
B_contra = TypeVar("B_contra", bound=QueueBuffer, contravariant=True)

_logger: Final = logging.getLogger("goddard.client")


class PullHandler(Protocol[B_contra]):
    """What a kind of consumer decides about pulling, and does with the messages."""

    def may_pull(self, buffer: B_contra) -> bool:
        """Whether a queue may be pulled from now; the loop waits for ``wake`` until it may."""

    async def lock(self, buffer: B_contra) -> bool:
        """Wait until the lock of a queue is ours, if one is needed; False if another member has
        it."""

    def may_prefetch(self, buffer: B_contra, answer: PullAnswer, offset: int) -> bool:
        """Whether the next pull may be sent before the answer to one at ``offset`` is decoded."""

    def subscription_of(self, topic: str) -> SubscriptionData | None:
        """What brokers know of the subscription; None ends the pulling of the topic."""

    def commit_offset(self, queue: MessageQueue) -> int | None:
        """The offset that a pull commits on its way; None commits nothing."""

    def take(self, buffer: B_contra, result: PullResult, spent_ms: int) -> None:
        """Take the messages of a pull, which lasted ``spent_ms``."""

    def offset_is_illegal(self, buffer: B_contra, result: PullResult) -> bool:
        """The queue does not have the offset asked for, but ``result.next_offset``. Whether to go
        on there; otherwise the loop ends."""

    def failed(self, buffer: B_contra, error: GoddardError) -> None:
        """A pull failed; the loop pulls again."""

    def lost(self, buffer: B_contra) -> None:
        """Another member has the lock of a queue; the loop ends."""


def is_flow_control(error: GoddardError) -> bool:
    """Whether a broker refused a pull for load: it is pulled from again very soon."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL


class PullLoop(Generic[B]):
    """Pulls from the queues of one consumer. ``how`` is for every pull."""

    def __init__(
        self,
        session: Session,
        group: str,
        handler: PullHandler[B],
        offsets: Offsets,
        *,
        how: PullKeywords,
        consume_from: ConsumeFrom,
        timestamp_ms: int,
        error_delay_ms: int,
        interval_ms: int = 0,
    ) -> None:
        self._session = session
        self._clock = session.clock
        self._group = group
        self._handler = handler
        self._offsets = offsets
        self._puller = Puller(session, group)
        self._how = how
        self._consume_from = consume_from
        self._timestamp_ms = timestamp_ms
        self._error_delay_ms = error_delay_ms
        self._interval_ms = interval_ms
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._running: dict[B, asyncio.Task[None]] = {}
        # Of the tasks that wait until they may pull.
        self._waiting: dict[B, asyncio.Future[None]] = {}
        # Of the tasks that find out where to start.
        self._starting: dict[B, asyncio.Future[None]] = {}

    def start(self, buffer: B, delay_ms: int = 0) -> None:
        """Begin to pull from a queue, after a delay."""
        task = self._tasks.spawn(self._run(buffer, delay_ms), f"pull {buffer.queue}")
        self._running[buffer] = task
        if buffer.next_offset is None and not delay_ms:
            self._starting[buffer] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda ended: self._ended(buffer, ended))

    def cancel(self, buffer: B) -> asyncio.Task[None] | None:
        """Stop pulling from a queue; an outstanding pull is abandoned. Returns the task."""
        self._puller.forget(buffer.queue)
        task = self._running.pop(buffer, None)
        if task is not None:
            task.cancel()
        return task

    async def stop(self, buffer: B) -> None:
        """As ``cancel``, and wait until the task has ended."""
        task = self.cancel(buffer)
        if task is not None:
            await asyncio.wait((task,))

    async def close(self) -> None:
        """Stop pulling from all queues."""
        await self._tasks.stop()

    def restart(self, topics: Collection[str]) -> None:
        """Pull from topics by their new subscriptions: a broker that holds a pull would still use
        the old one and skip messages that are wanted now."""
        for buffer, task in list(self._running.items()):
            if buffer.queue.topic in topics and buffer.next_offset is not None:
                task.cancel()
                self.start(buffer)

    def is_pulling(self, buffer: B) -> bool:
        return buffer in self._running

    def wake(self, buffer: B) -> None:
        """Look again whether a queue may be pulled from."""
        waiting = self._waiting.get(buffer)
        if waiting is not None and not waiting.done() and self._handler.may_pull(buffer):
            waiting.set_result(None)

    def wake_all(self) -> None:
        for buffer in list(self._waiting):
            self.wake(buffer)

    async def wait_for_start_offsets(self, timeout_ms: int) -> None:
        """Wait until the start offsets of queues are known: messages that are sent after that are
        not missed.

        Queues that start after a delay, because others release them first, are not waited for.
        """
        starting = list(self._starting.values())
        if starting:
            await asyncio.wait(starting, timeout=timeout_ms / 1000)

    def _ended(self, buffer: B, task: asyncio.Task[None]) -> None:
        if self._running.get(buffer) is task:
            del self._running[buffer]
        self._started(buffer)

    def _started(self, buffer: B) -> None:
        starting = self._starting.pop(buffer, None)
        if starting is not None:
            starting.set_result(None)

    # --- The task of a queue ----------------------------------------------------------------------

    async def _run(self, buffer: B, delay_ms: int) -> None:
        handler = self._handler
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        failures = _Failures(buffer.queue, self._error_delay_ms)
        offset = buffer.next_offset
        if offset is None:
            offset = await self._start_offset(buffer, failures)
            buffer.start(offset)
            self._started(buffer)
        pulls = _QueuePulls(self, buffer)
        try:
            while not buffer.is_dropped:
                if not pulls.is_pending and not await self._may_pull(buffer):
                    handler.lost(buffer)
                    return
                subscription = handler.subscription_of(buffer.queue.topic)
                if subscription is None or not self._has_consumer(buffer):
                    return
                try:
                    result = await pulls.next(offset, subscription)
                except GoddardError as error:
                    pulls.abandon()
                    handler.failed(buffer, error)
                    await failures.wait_after(error)
                    continue
                failures.clear()
                if result.status is PullStatus.OFFSET_ILLEGAL and not handler.offset_is_illegal(
                    buffer, result
                ):
                    return
                rest_ms = self._interval_ms
                if result.next_offset == offset:
                    rest_ms = max(_SHORT_PAUSE_MS, rest_ms)
                buffer.next_offset = offset = result.next_offset
                handler.take(buffer, result, pulls.spent_ms)
                if rest_ms:
                    await asyncio.sleep(rest_ms / 1000)
        finally:
            pulls.abandon()

    async def _may_pull(self, buffer: B) -> bool:
        """Wait until a queue may be pulled from; False if another member has its lock."""
        while not self._handler.may_pull(buffer):
            waiting = self._waiting[buffer] = asyncio.get_running_loop().create_future()
            try:
                await waiting
            finally:
                # Unless a task that was started since then waits.
                if self._waiting.get(buffer) is waiting:
                    del self._waiting[buffer]
        return await self._handler.lock(buffer)

    def _has_consumer(self, buffer: B) -> bool:
        if self._session.has_consumer(self._group):
            return True
        _logger.warning(
            "No matched consumer for the PullRequest [consumerGroup=%s, messageQueue=%s, "
            "nextOffset=%s], drop it",
            self._group,
            buffer.queue,
            buffer.next_offset,
        )
        return False

    async def _start_offset(self, buffer: B, failures: "_Failures") -> int:
        while True:
            try:
                offset = await start_offset(
                    self._session,
                    self._offsets,
                    buffer.queue,
                    self._consume_from,
                    self._timestamp_ms,
                )
            except GoddardError as error:
                await failures.wait_after(error)
            else:
                failures.clear()
                return offset

    # --- Pulls, for _QueuePulls -------------------------------------------------------------------

    async def request(self, buffer: B, offset: int, subscription: SubscriptionData) -> PullAnswer:
        buffer.last_pull_ms = self._clock.monotonic_ms()
        return await self._puller.request(
            buffer.queue,
            offset,
            subscription,
            commit_offset=self._handler.commit_offset(buffer.queue),
            **self._how,
        )

    def prefetch(
        self, buffer: B, offset: int, answer: PullAnswer, subscription: SubscriptionData
    ) -> PendingPull | None:
        """Send the pull that follows an answer to one at ``offset``, if nothing is against it."""
        if (
            not answer.size_bytes
            or self._interval_ms
            or buffer.is_dropped
            or not self._handler.may_prefetch(buffer, answer, offset)
        ):
            return None
        # Without a connection, the pull waits for its turn and then for a connection.
        with suppress(RemotingError):
            pending = self._puller.request_soon(
                buffer.queue,
                answer.next_offset,
                subscription,
                commit_offset=self._handler.commit_offset(buffer.queue),
                **self._how,
            )
            if pending is not None:
                buffer.last_pull_ms = self._clock.monotonic_ms()
            return pending
        return None

    def elapsed_ms(self, since_ms: int | None) -> int:
        now_ms = self._clock.monotonic_ms()
        return now_ms - (now_ms if since_ms is None else since_ms)


class _QueuePulls(Generic[B]):
    """The pulls of one task, and the one that was sent ahead."""

    def __init__(self, loop: PullLoop[B], buffer: B) -> None:
        self._loop = loop
        self._buffer = buffer
        self._pending: PendingPull | None = None
        # How long the last pull took.
        self.spent_ms = 0

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    async def next(self, offset: int, subscription: SubscriptionData) -> PullResult:
        """The result of the pull that was sent ahead, or of a new one."""
        pending = self._pending
        if pending is None:
            answer = await self._loop.request(self._buffer, offset, subscription)
        else:
            answer = await pending.answer()
            self._pending = None
        self.spent_ms = self._loop.elapsed_ms(self._buffer.last_pull_ms)
        self._pending = self._loop.prefetch(self._buffer, offset, answer, subscription)
        if self._pending is not None:
            # It is written now: the broker works on it while the messages are decoded.
            await asyncio.sleep(0)
        return answer.result()

    def abandon(self) -> None:
        if self._pending is not None:
            self._pending.abandon()
            self._pending = None


class _Failures:
    """Warns once of a queue that cannot be pulled from, and once when it can again."""

    def __init__(self, queue: MessageQueue, delay_ms: int) -> None:
        self._queue = queue
        self._delay_ms = delay_ms
        self._has_warned = False

    async def wait_after(self, error: GoddardError) -> None:
        if is_flow_control(error):
            await asyncio.sleep(_SHORT_PAUSE_MS / 1000)
            return
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        _logger.log(
            level,
            "pull from %s failed; trying again every %d ms: %s",
            self._queue,
            self._delay_ms,
            error,
        )
        await asyncio.sleep(self._delay_ms / 1000)

    def clear(self) -> None:
        if self._has_warned:
            _logger.info("pulls from %s succeed again", self._queue)
            self._has_warned = False
