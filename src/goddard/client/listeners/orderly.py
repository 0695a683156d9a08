"""Orderly consuming: the messages of a queue one batch after the other, queues beside each other.

At most one call per queue runs at a time, and only while the broker's lock of the queue is ours. A
batch that fails is consumed again before anything that follows it; the queue rests meanwhile.

A worker is given the messages that wait in a queue and calls the listener for one batch after the
other, until one fails or a moment has passed; then the loop sees to the results. So that a quick
listener costs no wake-up of the loop per message, and a slow one has its offset committed after
each. Everything but the calls of the listener belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from goddard.client.consume.locks import FIRST_RENEW_SECONDS, RENEW_SECONDS, QueueLocks
from goddard.client.consume.offsets import Offsets
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.rates import ConsumeRates
from goddard.client.listeners.concurrent import ConsumptionOptions
from goddard.client.listeners.listener import ConsumeResult, OrderlyContext, is_async, result_of
from goddard.client.listeners.redelivery import Retries
from goddard.client.message import ReceivedMessage
from goddard.client.workers import Coroutines, Threads, Worker, Workers
from goddard.clock import Clock
from goddard.protocol.bodies import ConsumeResult as DirectResult
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.transport.tasks import Tasks

# A worker is given so many batches, and goes on for so long.
_BATCHES_PER_TURN: Final = 64
_TURN_MS: Final = 20
# Until a lock that was refused is asked for again.
_LOCK_AGAIN_SECONDS: Final = 3.0
_LEAST_SUSPEND_MS: Final = 10
_MOST_SUSPEND_MS: Final = 30_000
_SETTLE_POLL_SECONDS: Final = 0.01

_DIRECT_RESULTS: Final = {
    ConsumeResult.SUCCESS: DirectResult.SUCCESS,
    ConsumeResult.RECONSUME_LATER: DirectResult.LATER,
    ConsumeResult.COMMIT: DirectResult.COMMIT,
    ConsumeResult.ROLLBACK: DirectResult.ROLLBACK,
}

_logger: Final = logging.getLogger("goddard.client")


class _Call(NamedTuple):
    messages: list[ReceivedMessage]
    result: ConsumeResult
    context: OrderlyContext


class _Turn:
    """A worker's turn with one queue."""

    __slots__ = ("answer", "calls", "error", "held", "messages", "start")

    def __init__(self, held: ProcessQueue, messages: list[ReceivedMessage], start: int) -> None:
        self.held = held
        self.messages = messages
        self.start = start
        self.calls: list[_Call] = []
        self.error: BaseException | None = None
        # Somebody waits for this turn alone.
        self.answer: asyncio.Future[None] | None = None


class OrderlyConsumption:
    """Calls a listener for the messages of each queue in their order.

    ``released`` is told which process queues have got smaller.
    """

    def __init__(
        self,
        listener: Callable[..., Any],
        options: ConsumptionOptions,
        *,
        offsets: Offsets,
        retries: Retries,
        locks: QueueLocks,
        rates: ConsumeRates,
        clock: Clock,
        released: Callable[[ProcessQueue], None],
    ) -> None:
        self._listener = listener
        self._options = options
        self._offsets = offsets
        self._retries = retries
        self._locks = locks
        self._rates = rates
        self._clock = clock
        self._released = released
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        # Queues whose turn it is, or that wait for their next: with nothing else to start them.
        self._active: set[ProcessQueue] = set()
        self._busy: set[ProcessQueue] = set()
        self._timers: dict[ProcessQueue, asyncio.TimerHandle] = {}
        self._is_closed = False
        name = f"consume-{options.group}"
        self._workers: Workers[_Turn] = (
            Coroutines(name, self._await_turn, self._finished, max_tasks=options.workers)
            if is_async(listener)
            else Threads(
                name, self._take_turn, self._finished, max_threads=options.workers, clock=clock
            )
        )

    def start(self, owned: Callable[[], list[ProcessQueue]]) -> None:
        """Begin to renew the locks of the queues that ``owned`` gives."""

        async def renew() -> None:
            await self._locks.lock(owned())

        if not self._options.is_broadcast:
            self._tasks.periodic(
                "queue locks", RENEW_SECONDS, renew, first_seconds=FIRST_RENEW_SECONDS
            )

    @property
    def worker_count(self) -> int:
        return self._workers.size

    def accept(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Have messages consumed that ``held`` holds."""
        if held not in self._active:
            self._active.add(held)
            self._go_on(held)

    async def settle(self, held: ProcessQueue, timeout_ms: int) -> bool:
        """Wait for the call for a dropped queue to end; False if it has not."""
        self._rest_no_more(held)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while held in self._busy:
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
        self._active.discard(held)
        return True

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the listener for one message, whatever became of it before."""
        started_ms = self._clock.monotonic_ms()
        held = ProcessQueue(message.queue, started_ms)
        held.locked_at_ms = started_ms
        turn = _Turn(held, [message], started_ms)
        turn.answer = self._loop.create_future()
        self._workers.submit([turn])
        await turn.answer
        result = ConsumeDirectlyResult(order=True)
        if turn.error is not None:
            result.consume_result = DirectResult.THROW_EXCEPTION
            result.remark = repr(turn.error)[:1000]
        elif turn.calls:
            result.consume_result = _DIRECT_RESULTS[turn.calls[0].result]
            result.auto_commit = turn.calls[0].context.auto_commit
        result.spent_time_mills = self._clock.monotonic_ms() - started_ms
        return result

    async def close(self, wait_ms: int) -> None:
        """Call the listener no more; wait so long for the calls that run."""
        self._is_closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        try:
            await self._workers.close(wait_ms)
        finally:
            await self._tasks.stop()

    # --- In the worker ----------------------------------------------------------------------------

    def _take_turn(self, turn: _Turn, worker: Worker[_Turn]) -> None:
        for messages in self._batches(turn):
            context = OrderlyContext(turn.held.queue)
            try:
                result = result_of(self._listener(messages.copy(), context))
            except BaseException as error:
                # Whatever it is, not even SystemExit may end the worker.
                turn.error = error
                result = ConsumeResult.RECONSUME_LATER
                _logger.warning(
                    "the listener of the group %s failed", self._options.group, exc_info=True
                )
            turn.calls.append(_Call(messages, result, context))

    async def _await_turn(self, turn: _Turn, worker: Worker[_Turn]) -> None:
        for messages in self._batches(turn):
            context = OrderlyContext(turn.held.queue)
            try:
                result = result_of(await self._listener(messages.copy(), context))
            except asyncio.CancelledError as error:
                # Ours, at the end; or the listener's own, which is a failure as any other.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                turn.error = error
                result = ConsumeResult.RECONSUME_LATER
                _logger.warning(
                    "the listener of the group %s failed", self._options.group, exc_info=True
                )
            except Exception as error:
                turn.error = error
                result = ConsumeResult.RECONSUME_LATER
                _logger.warning(
                    "the listener of the group %s failed", self._options.group, exc_info=True
                )
            turn.calls.append(_Call(messages, result, context))

    def _batches(self, turn: _Turn) -> Iterator[list[ReceivedMessage]]:
        """The batches of a turn, for as long as it may go on."""
        held, size = turn.held, self._options.batch_size
        turn.start = self._clock.monotonic_ms()
        needs_lock = not self._options.is_broadcast
        for at in range(0, len(turn.messages), size):
            now_ms = self._clock.monotonic_ms()
            if (
                held.is_dropped
                or (needs_lock and not held.is_locked(now_ms))
                or (at and now_ms - turn.start > _TURN_MS)
            ):
                return
            yield turn.messages[at : at + size]
            last = turn.calls[-1]
            if last.result is ConsumeResult.RECONSUME_LATER or (
                last.result is ConsumeResult.ROLLBACK and not last.context.auto_commit
            ):
                return

    # --- On the loop ------------------------------------------------------------------------------

    def _go_on(self, held: ProcessQueue) -> None:
        """Give a queue its next turn, or let it be until something comes."""
        self._timers.pop(held, None)
        if held.is_dropped or self._is_closed or not held.has_waiting:
            self._active.discard(held)
            return
        now_ms = self._clock.monotonic_ms()
        if not self._options.is_broadcast and not held.is_locked(now_ms):
            self._tasks.spawn(self._lock_again(held), f"lock {held.queue}")
            return
        messages = held.take(self._options.batch_size * _BATCHES_PER_TURN)
        self._busy.add(held)
        self._workers.submit([_Turn(held, messages, now_ms)])

    async def _lock_again(self, held: ProcessQueue) -> None:
        await self._locks.lock([held])
        if held.is_locked(self._clock.monotonic_ms()):
            self._go_on(held)
        else:
            self._rest(held, _LOCK_AGAIN_SECONDS)

    def _rest(self, held: ProcessQueue, seconds: float) -> None:
        if not self._is_closed:
            self._timers[held] = self._loop.call_later(seconds, self._go_on, held)

    def _rest_no_more(self, held: ProcessQueue) -> None:
        timer = self._timers.pop(held, None)
        if timer is not None:
            timer.cancel()
            self._active.discard(held)

    def _finished(self, turns: list[_Turn]) -> None:
        for turn in turns:
            if turn.answer is not None:
                if not turn.answer.done():
                    turn.answer.set_result(None)
                continue
            consumed = sum(len(call.messages) for call in turn.calls)
            turn.held.put_back(turn.messages[consumed:])
            self._settle_turn(turn, consumed)

    def _settle_turn(self, turn: _Turn, consumed: int) -> None:
        """See to the results of a turn; only the last of them can be a failure."""
        held = turn.held
        now_ms = self._clock.monotonic_ms()
        held.last_consume_ms = now_ms
        last = turn.calls[-1] if turn.calls else None
        failed = (
            len(last.messages)
            if last is not None and last.result is ConsumeResult.RECONSUME_LATER
            else 0
        )
        self._rates.consumed(held.queue.topic, consumed, failed, now_ms - turn.start, now_ms)
        done: ReceivedMessage | None = None
        for call in turn.calls:
            if call.result is ConsumeResult.COMMIT or (
                call.context.auto_commit and call.result is not ConsumeResult.RECONSUME_LATER
            ):
                done = call.messages[-1]
                if call.context.auto_commit and call.result is not ConsumeResult.SUCCESS:
                    _logger.warning(
                        "%s is taken for success: auto_commit is on, group %s",
                        call.result.name,
                        self._options.group,
                    )
        if done is not None:
            self._commit(held, done)
        if last is None or last.result in (ConsumeResult.SUCCESS, ConsumeResult.COMMIT):
            self._end_turn(held)
        elif last.result is ConsumeResult.ROLLBACK:
            if last.context.auto_commit:
                self._end_turn(held)
            else:
                held.rollback()
                self._suspend(held, last.context)
        elif self._are_exhausted(last.messages):
            self._tasks.spawn(self._give_away(held, last), f"give away {held.queue}")
        else:
            self._again(held, last)

    def _commit(self, held: ProcessQueue, through: ReceivedMessage) -> None:
        offset = held.commit(through)
        if offset is not None:
            self._offsets.update(held.queue, offset)
            self._released(held)

    def _end_turn(self, held: ProcessQueue) -> None:
        self._busy.discard(held)
        self._go_on(held)

    def _again(self, held: ProcessQueue, call: _Call) -> None:
        for message in call.messages:
            message.count_try()
        held.put_back(call.messages)
        self._suspend(held, call.context)

    def _suspend(self, held: ProcessQueue, context: OrderlyContext) -> None:
        self._busy.discard(held)
        wanted_ms = context.suspend_ms
        if wanted_ms is None:
            wanted_ms = self._options.suspend_ms
        self._rest(held, max(_LEAST_SUSPEND_MS, min(wanted_ms, _MOST_SUSPEND_MS)) / 1000)

    def _are_exhausted(self, messages: list[ReceivedMessage]) -> bool:
        most = self._options.max_reconsume_times
        return most >= 0 and any(message.reconsume_times >= most for message in messages)

    async def _give_away(self, held: ProcessQueue, call: _Call) -> None:
        """Send what was tried too often to the retry topic, from where it goes among the dead."""
        most = self._options.max_reconsume_times
        is_gone = True
        for message in call.messages:
            if message.reconsume_times < most or not await self._retries.send_again(message):
                is_gone = False
        if not is_gone:
            self._again(held, call)
            return
        if call.context.auto_commit:
            self._commit(held, call.messages[-1])
        self._end_turn(held)
