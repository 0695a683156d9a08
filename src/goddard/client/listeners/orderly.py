"""Orderly consuming: the batches of a queue one after the other, several queues at a time.

At most one call per queue runs at a time, and only while this consumer has the broker's lock of the
queue. A failed batch is consumed again before anything that follows it; until then the queue is
suspended.

A worker takes a turn with one queue: it calls the listener with one batch after the other until a
batch fails or some milliseconds have passed; then the loop handles the results. So a fast listener
does not wake the loop for each message, and a slow one has its offset committed after each call.
Everything but the calls of the listener belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from goddard.client.consume.offsets import Offsets
from goddard.client.consume.options import PushOptions
from goddard.client.consume.queue_buffer import ProcessQueue
from goddard.client.consume.status import ConsumeRates
from goddard.client.listeners.direct import DirectCalls
from goddard.client.listeners.listener import (
    ConsumeResult,
    OrderlyContext,
    await_listener,
    call_listener,
    is_async,
    is_consumed,
)
from goddard.client.listeners.locks import FIRST_RENEW_SECONDS, RENEW_SECONDS, QueueLocks
from goddard.client.listeners.redelivery import Redelivery
from goddard.client.listeners.workers import Coroutines, Threads, Worker, Workers
from goddard.client.message import ReceivedMessage
from goddard.environment import Environment
from goddard.protocol.bodies import ConsumeResult as DirectResult
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.transport.tasks import Tasks

# The batches that a worker takes for a turn at most, and how long the turn lasts.
_BATCHES_PER_TURN: Final = 64
_TURN_MS: Final = 20
# The pause after a lock was refused.
_LOCK_RETRY_SECONDS: Final = 3.0
_LEAST_SUSPEND_MS: Final = 10
_MOST_SUSPEND_MS: Final = 30_000
_SETTLE_POLL_SECONDS: Final = 0.01

_MANUAL_RESULTS: Final = (ConsumeResult.COMMIT, ConsumeResult.ROLLBACK)
_DIRECT_RESULTS: Final = {
    ConsumeResult.SUCCESS: DirectResult.SUCCESS,
    ConsumeResult.RECONSUME_LATER: DirectResult.LATER,
    ConsumeResult.COMMIT: DirectResult.COMMIT,
    ConsumeResult.ROLLBACK: DirectResult.ROLLBACK,
}

_logger: Final = logging.getLogger("goddard.client")


class ListenerCall(NamedTuple):
    """A call of an orderly listener that has ended."""

    messages: list[ReceivedMessage]
    result: ConsumeResult
    context: OrderlyContext


def last_committed(calls: Iterable[ListenerCall]) -> ReceivedMessage | None:
    """The message up to which the calls of a turn commit; None if they commit nothing."""
    done = None
    for call in calls:
        if call.result is ConsumeResult.COMMIT or (
            call.context.auto_commit and is_consumed(call.result, call.context)
        ):
            done = call.messages[-1]
    return done


class _Turn:
    """A worker's turn with one queue."""

    __slots__ = ("answer", "buffer", "calls", "failure", "messages", "start")

    def __init__(self, buffer: ProcessQueue, messages: list[ReceivedMessage], start: int) -> None:
        self.buffer = buffer
        self.messages = messages
        self.start = start
        self.calls: list[ListenerCall] = []
        # What the listener raised.
        self.failure: str | None = None
        # A turn of a single call whose result is awaited.
        self.answer: asyncio.Future[None] | None = None


class OrderlyConsumption:
    """Calls a listener with the messages of each queue in their order.

    ``released`` is called with a buffer that holds fewer messages than before. ``owned`` returns
    the queues whose locks are renewed.
    """

    def __init__(
        self,
        listener: Callable[..., Any],
        group: str,
        options: PushOptions,
        *,
        offsets: Offsets,
        redelivery: Redelivery,
        locks: QueueLocks,
        owned: Callable[[], list[ProcessQueue]],
        rates: ConsumeRates,
        environment: Environment,
        released: Callable[[ProcessQueue], None],
    ) -> None:
        self._listener = listener
        self._group = group
        self._options = options
        self._offsets = offsets
        self._redelivery = redelivery
        self._locks = locks
        self._owned = owned
        self._rates = rates
        self._clock = environment.clock
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._direct_calls = DirectCalls(group)
        # Queues that a worker is busy with, or that are suspended: their next turn is scheduled.
        self._active: set[ProcessQueue] = set()
        self._busy: set[ProcessQueue] = set()
        self._timers: dict[ProcessQueue, asyncio.TimerHandle] = {}
        self._is_closed = False
        name = f"consume-{group}"
        self._workers: Workers[_Turn] = (
            Coroutines(name, self._await_turn, self._finished, max_tasks=options.consume_threads)
            if is_async(listener)
            else Threads(
                name,
                self._take_turn,
                self._finished,
                max_threads=options.consume_threads,
                environment=environment,
            )
        )

    def start(self) -> None:
        """Begin to renew the locks."""
        if not self._options.is_broadcast:
            self._tasks.periodic(
                "queue locks", RENEW_SECONDS, self._renew_locks, first_seconds=FIRST_RENEW_SECONDS
            )

    async def _renew_locks(self) -> None:
        await self._locks.lock(self._owned())

    @property
    def worker_count(self) -> int:
        return self._workers.size

    def accept(self, buffer: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Consume messages that ``buffer`` holds."""
        if buffer not in self._active:
            self._active.add(buffer)
            self._go_on(buffer)

    async def settle(self, buffer: ProcessQueue, timeout_ms: int) -> bool:
        """Wait for the call for a dropped queue to end; False if it has not."""
        self._cancel_rest(buffer)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while buffer in self._busy:
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
        self._active.discard(buffer)
        return True

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the listener with one message, whether it was consumed before or not.

        ResponseError if the consumer stops before the call ends.
        """
        started_ms = self._clock.monotonic_ms()
        buffer = ProcessQueue(message.queue, started_ms)
        buffer.locked_at_ms = started_ms
        turn = _Turn(buffer, [message], started_ms)
        turn.answer = self._loop.create_future()
        self._workers.submit([turn])
        await self._direct_calls.wait(turn.answer)
        result = ConsumeDirectlyResult(order=True)
        if turn.failure is not None:
            result.consume_result = DirectResult.THROW_EXCEPTION
            result.remark = turn.failure
        elif turn.calls:
            result.consume_result = _DIRECT_RESULTS[turn.calls[0].result]
            result.auto_commit = turn.calls[0].context.auto_commit
        result.spent_time_mills = self._clock.monotonic_ms() - started_ms
        return result

    async def close(self, wait_ms: int) -> None:
        """Make no more calls of the listener; wait up to ``wait_ms`` for those that run."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        try:
            await self._workers.close(wait_ms)
        finally:
            self._direct_calls.close()
            await self._tasks.stop()

    # --- In the worker ----------------------------------------------------------------------------

    def _take_turn(self, turn: _Turn, worker: Worker[_Turn]) -> None:
        for messages in self._batches(turn):
            context = OrderlyContext(turn.buffer.queue)
            result, turn.failure = call_listener(self._listener, self._group, messages, context)
            turn.calls.append(ListenerCall(messages, result, context))

    async def _await_turn(self, turn: _Turn, worker: Worker[_Turn]) -> None:
        for messages in self._batches(turn):
            context = OrderlyContext(turn.buffer.queue)
            result, turn.failure = await await_listener(
                self._listener, self._group, messages, context
            )
            turn.calls.append(ListenerCall(messages, result, context))

    def _batches(self, turn: _Turn) -> Iterator[list[ReceivedMessage]]:
        """The batches of a turn, until it must end."""
        buffer, size = turn.buffer, self._options.consume_batch_size
        turn.start = self._clock.monotonic_ms()
        needs_lock = not self._options.is_broadcast
        for at in range(0, len(turn.messages), size):
            now_ms = self._clock.monotonic_ms()
            if (
                buffer.is_dropped
                or (needs_lock and not buffer.is_locked(now_ms))
                or (at and now_ms - turn.start > _TURN_MS)
            ):
                return
            yield turn.messages[at : at + size]
            last = turn.calls[-1]
            if not is_consumed(last.result, last.context):
                return

    # --- On the loop ------------------------------------------------------------------------------

    def _go_on(self, buffer: ProcessQueue) -> None:
        """Start the next turn of a queue, if there are messages and its lock is ours."""
        self._timers.pop(buffer, None)
        if buffer.is_dropped or self._is_closed or not buffer.has_waiting:
            self._active.discard(buffer)
            return
        now_ms = self._clock.monotonic_ms()
        if not self._options.is_broadcast and not buffer.is_locked(now_ms):
            self._tasks.spawn(self._retry_lock(buffer), f"lock {buffer.queue}")
            return
        messages = buffer.take(self._options.consume_batch_size * _BATCHES_PER_TURN)
        self._busy.add(buffer)
        self._workers.submit([_Turn(buffer, messages, now_ms)])

    async def _retry_lock(self, buffer: ProcessQueue) -> None:
        await self._locks.lock([buffer])
        if buffer.is_locked(self._clock.monotonic_ms()):
            self._go_on(buffer)
        else:
            self._rest(buffer, _LOCK_RETRY_SECONDS)

    def _rest(self, buffer: ProcessQueue, seconds: float) -> None:
        if not self._is_closed:
            self._timers[buffer] = self._loop.call_later(seconds, self._go_on, buffer)

    def _cancel_rest(self, buffer: ProcessQueue) -> None:
        timer = self._timers.pop(buffer, None)
        if timer is not None:
            timer.cancel()
            self._active.discard(buffer)

    def _finished(self, turns: list[_Turn]) -> None:
        for turn in turns:
            if turn.answer is not None:
                if not turn.answer.done():
                    turn.answer.set_result(None)
                continue
            consumed = sum(len(call.messages) for call in turn.calls)
            turn.buffer.put_back(turn.messages[consumed:])
            self._settle_turn(turn, consumed)

    def _settle_turn(self, turn: _Turn, consumed: int) -> None:
        """Handle the results of a turn; only the last of them can be a failure."""
        buffer = turn.buffer
        now_ms = self._clock.monotonic_ms()
        buffer.last_consume_ms = now_ms
        last = turn.calls[-1] if turn.calls else None
        failed = (
            len(last.messages)
            if last is not None and last.result is ConsumeResult.RECONSUME_LATER
            else 0
        )
        self._rates.consumed(buffer.queue.topic, consumed, failed, now_ms - turn.start, now_ms)
        self._warn_of_results(turn.calls)
        done = last_committed(turn.calls)
        if done is not None:
            self._commit(buffer, done)
        if last is None or is_consumed(last.result, last.context):
            self._end_turn(buffer)
        elif last.result is ConsumeResult.ROLLBACK:
            buffer.rollback()
            self._suspend(buffer, last.context)
        elif self._are_exhausted(last.messages):
            failure = turn.failure or "the listener returned RECONSUME_LATER"
            self._tasks.spawn(
                self._to_dead_letters(buffer, last, failure), f"dead letters of {buffer.queue}"
            )
        else:
            self._consume_again(buffer, last)

    def _warn_of_results(self, calls: list[ListenerCall]) -> None:
        for call in calls:
            if call.context.auto_commit and call.result in _MANUAL_RESULTS:
                _logger.warning(
                    "the listener of the group %s returned %s with auto_commit on; it counts "
                    "as SUCCESS",
                    self._group,
                    call.result.name,
                )

    def _commit(self, buffer: ProcessQueue, through: ReceivedMessage) -> None:
        offset = buffer.commit(through)
        if offset is not None:
            self._offsets.update(buffer.queue, offset)
            self._released(buffer)

    def _end_turn(self, buffer: ProcessQueue) -> None:
        self._busy.discard(buffer)
        self._go_on(buffer)

    def _consume_again(self, buffer: ProcessQueue, call: ListenerCall) -> None:
        for message in call.messages:
            message.increment_reconsume_times()
        buffer.put_back(call.messages)
        self._suspend(buffer, call.context)

    def _suspend(self, buffer: ProcessQueue, context: OrderlyContext) -> None:
        self._busy.discard(buffer)
        wanted_ms = context.suspend_ms
        if wanted_ms is None:
            wanted_ms = self._options.suspend_queue_ms
        self._rest(buffer, max(_LEAST_SUSPEND_MS, min(wanted_ms, _MOST_SUSPEND_MS)) / 1000)

    def _are_exhausted(self, messages: list[ReceivedMessage]) -> bool:
        most = self._options.reconsume_limit
        return most >= 0 and any(message.reconsume_times >= most for message in messages)

    async def _to_dead_letters(
        self, buffer: ProcessQueue, call: ListenerCall, failure: str
    ) -> None:
        """Send messages that failed too often to the retry topic; from there the broker moves them
        to the dead-letter topic."""
        most = self._options.reconsume_limit
        is_gone = True
        for message in call.messages:
            is_exhausted = message.reconsume_times >= most
            if not is_exhausted or not await self._redelivery.send_to_retry_topic(message, failure):
                is_gone = False
        if not is_gone:
            self._consume_again(buffer, call)
            return
        if call.context.auto_commit:
            self._commit(buffer, call.messages[-1])
        self._end_turn(buffer)
