"""Concurrent consuming: batches of messages in any order, on as many workers as there are.

A message stays in its process queue until it was consumed, or a broker took it back; what is
committed never passes it. A call of the listener that takes longer than ``timeout_ms`` is given up:
its messages go back to the broker, and whatever the call returns later is ignored.

What one pull brought is handed over as one load of calls. Workers share it; a plain success costs
an append to the load's list, and the loop sees to all that gathered there together.

Everything but the calls of the listener belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from operator import length_hint
from typing import Any, Final, TypeVar

from goddard.client.consume.offsets import Offsets
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.rates import ConsumeRates
from goddard.client.listeners.listener import ConsumeContext, ConsumeResult, is_async, result_of
from goddard.client.listeners.redelivery import FIRST_RETRY_LEVEL, Retries
from goddard.client.message import ReceivedMessage
from goddard.client.workers import Coroutines, Threads, Worker, Workers
from goddard.clock import Clock
from goddard.protocol.bodies import ConsumeResult as DirectResult
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.transport.tasks import Tasks

# When neither the listener nor a broker takes a message, the listener is tried again.
_LOCAL_RETRY_SECONDS: Final = 5.0
_MOST_BETWEEN_CHECKS_SECONDS: Final = 60.0
_SETTLE_POLL_SECONDS: Final = 0.01
# A coroutine that never waits gives the loop a turn after so many calls.
_CALLS_PER_TURN: Final = 32

_FAILED: Final = "the listener of the group %s failed with %s"

# Looking up a member of an enumeration takes longer than many a listener.
_SUCCESS: Final = ConsumeResult.SUCCESS

_T = TypeVar("_T")

_logger: Final = logging.getLogger("goddard.client")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumptionOptions:
    """What concurrent and orderly consuming have in common."""

    group: str
    batch_size: int
    workers: int
    is_broadcast: bool
    # Below 0: for ever.
    max_reconsume_times: int
    timeout_ms: int
    suspend_ms: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of a call that was not simply a success."""

    messages: list[ReceivedMessage]
    result: ConsumeResult
    context: ConsumeContext
    # What it raised.
    failure: str | None = None


class _Load:
    """Calls of the listener with messages of one queue.

    Workers take from ``rest``, and add to the lists, which only the loop takes from.
    """

    __slots__ = ("answer", "held", "is_told", "outcomes", "rest", "spent_ms", "successes")

    def __init__(self, held: ProcessQueue, batches: list[list[ReceivedMessage]]) -> None:
        self.held = held
        # Of a list: each batch is taken once, whoever else takes.
        self.rest = iter(batches)
        self.successes: list[list[ReceivedMessage]] = []
        self.outcomes: list[_Outcome] = []
        # What it took each of the workers.
        self.spent_ms: list[int] = []
        # The loop is to look at it already.
        self.is_told = False
        # Somebody waits for this call alone.
        self.answer: asyncio.Future[_Outcome | None] | None = None

    def __length_hint__(self) -> int:
        return length_hint(self.rest)


class ConcurrentConsumption:
    """Calls a listener for the messages of any number of queues.

    ``released`` is told which process queues have got smaller.
    """

    def __init__(
        self,
        listener: Callable[..., Any],
        options: ConsumptionOptions,
        *,
        offsets: Offsets,
        retries: Retries,
        rates: ConsumeRates,
        clock: Clock,
        released: Callable[[ProcessQueue], None],
    ) -> None:
        self._listener = listener
        self._options = options
        self._offsets = offsets
        self._retries = retries
        self._rates = rates
        self._clock = clock
        self._released = released
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._giving_back: dict[asyncio.Task[None], ProcessQueue] = {}
        # Messages of the calls that were given up and have not ended, by identity.
        self._given_up: dict[int, list[ReceivedMessage]] = {}
        self._loop = asyncio.get_running_loop()
        name = f"consume-{options.group}"
        self._workers: Workers[_Load] = (
            Coroutines(
                name, self._await_all, self._finished, max_tasks=options.workers, shares=True
            )
            if is_async(listener)
            else Threads(
                name,
                self._call_all,
                self._finished,
                max_threads=options.workers,
                clock=clock,
                shares=True,
            )
        )

    def start(self, owned: Callable[[], list[ProcessQueue]]) -> None:
        """Begin to look for calls that take too long."""
        seconds = min(self._options.timeout_ms / 4000, _MOST_BETWEEN_CHECKS_SECONDS)
        self._tasks.periodic("consume time-outs", seconds, self._give_up_slow)

    @property
    def worker_count(self) -> int:
        return self._workers.size

    def accept(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Have messages consumed that ``held`` holds."""
        size = self._options.batch_size
        if size == 1:
            batches = [[message] for message in messages]
        else:
            batches = [messages[at : at + size] for at in range(0, len(messages), size)]
        self._workers.submit((_Load(held, batches),))

    async def settle(self, held: ProcessQueue, timeout_ms: int) -> bool:
        """Wait for the calls for a dropped queue to end; False if some have not."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self._is_busy(held):
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
        return True

    def _is_busy(self, held: ProcessQueue) -> bool:
        return held in self._giving_back.values() or any(
            worker.job is not None
            and worker.job.held is held
            and id(worker.call) not in self._given_up
            for worker in self._workers.busy()
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the listener for one message, whatever became of it before."""
        started_ms = self._clock.monotonic_ms()
        load = _Load(ProcessQueue(message.queue, started_ms), [[message]])
        load.answer = self._loop.create_future()
        self._workers.submit((load,))
        outcome = await load.answer
        result = ConsumeDirectlyResult(order=False, auto_commit=True)
        if outcome is None or outcome.result is ConsumeResult.SUCCESS:
            result.consume_result = DirectResult.SUCCESS
        elif outcome.failure is not None:
            result.consume_result = DirectResult.THROW_EXCEPTION
            result.remark = outcome.failure
        else:
            result.consume_result = DirectResult.LATER
        result.spent_time_mills = self._clock.monotonic_ms() - started_ms
        return result

    async def close(self, wait_ms: int) -> None:
        """Call the listener no more; wait so long for the calls that run."""
        try:
            await self._workers.close(wait_ms)
            if self._giving_back:
                await asyncio.wait(self._giving_back, timeout=max(wait_ms, 1000) / 1000)
        finally:
            await self._tasks.stop()

    # --- In the worker ----------------------------------------------------------------------------

    def _call_all(self, load: _Load, worker: Worker[_Load]) -> None:
        held, succeeded = load.held, load.successes.append
        listener, queue, now_ms = self._listener, held.queue, self._clock.monotonic_ms
        began_ms = None
        for messages in load.rest:
            if held.is_dropped or worker.is_closed:
                break
            worker.start_ms = start_ms = now_ms()
            worker.call = messages
            if began_ms is None:
                began_ms = start_ms
            context = ConsumeContext(queue)
            try:
                returned = listener(messages.copy(), context)
                if (returned is None or returned is _SUCCESS) and context.ack_index is None:
                    succeeded(messages)
                else:
                    load.outcomes.append(_Outcome(messages, result_of(returned), context))
            except BaseException as error:
                # Whatever it is, not even SystemExit may end the worker.
                load.outcomes.append(_failure(messages, context, error))
                _logger.warning(_FAILED, self._options.group, _text(held, messages), exc_info=True)
            worker.calls += 1
        if began_ms is not None:
            load.spent_ms.append(now_ms() - began_ms)

    async def _await_all(self, load: _Load, worker: Worker[_Load]) -> None:
        held, listener = load.held, self._listener
        for messages in load.rest:
            if held.is_dropped or worker.is_closed:
                break
            worker.start_ms = self._clock.monotonic_ms()
            worker.call = messages
            context = ConsumeContext(held.queue)
            try:
                returned = await listener(messages.copy(), context)
                if (returned is None or returned is _SUCCESS) and context.ack_index is None:
                    load.successes.append(messages)
                else:
                    load.outcomes.append(_Outcome(messages, result_of(returned), context))
            except asyncio.CancelledError as error:
                # Ours, at the end; or the listener's own, which is a failure as any other.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                load.outcomes.append(_failure(messages, context, error))
                _logger.warning(_FAILED, self._options.group, _text(held, messages), exc_info=True)
            except Exception as error:
                load.outcomes.append(_failure(messages, context, error))
                _logger.warning(_FAILED, self._options.group, _text(held, messages), exc_info=True)
            worker.calls += 1
            load.spent_ms.append(self._clock.monotonic_ms() - worker.start_ms)
            if not load.is_told:
                load.is_told = True
                self._loop.call_soon(self._finished, (load,))
            if worker.calls % _CALLS_PER_TURN == 0:
                await asyncio.sleep(0)

    # --- On the loop ------------------------------------------------------------------------------

    def _finished(self, loads: Iterable[_Load]) -> None:
        """See to the calls of loads that have ended, all those of a queue together."""
        done: dict[ProcessQueue, list[ReceivedMessage]] = {}
        spent_ms: dict[ProcessQueue, int] = {}
        now_ms = self._clock.monotonic_ms()
        for load in loads:
            load.is_told = False
            held = load.held
            if load.answer is not None:
                self._answer(load, load.answer)
                continue
            if load.spent_ms:
                spent_ms[held] = spent_ms.get(held, 0) + sum(_drain(load.spent_ms))
            if load.successes:
                calls = _drain(load.successes)
                if self._given_up:
                    calls = [messages for messages in calls if not self._was_given_up(messages)]
                done.setdefault(held, []).extend(chain.from_iterable(calls))
            for outcome in _drain(load.outcomes):
                if self._was_given_up(outcome.messages):
                    continue
                succeeded, failed = _split(outcome)
                if succeeded:
                    done.setdefault(held, []).extend(succeeded)
                if failed:
                    self._rates.consumed(held.queue.topic, len(failed), len(failed), 0, now_ms)
                    self._retry(held, failed, outcome.context.delay_level)
        for held, messages in done.items():
            held.last_consume_ms = now_ms
            count = len(messages)
            self._rates.consumed(held.queue.topic, count, 0, spent_ms.get(held, 0), now_ms)
            self._complete(held, messages)

    def _answer(self, load: _Load, answer: "asyncio.Future[_Outcome | None]") -> None:
        if not answer.done() and (load.successes or load.outcomes):
            answer.set_result(load.outcomes[0] if load.outcomes else None)

    def _was_given_up(self, messages: list[ReceivedMessage]) -> bool:
        return self._given_up.pop(id(messages), None) is not None

    def _complete(self, held: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        offset = held.remove(messages)
        if offset is not None:
            self._offsets.update(held.queue, offset, increase_only=True)
            self._released(held)

    def _retry(self, held: ProcessQueue, failed: list[ReceivedMessage], level: int) -> None:
        if self._options.is_broadcast:
            for message in failed:
                _logger.warning(
                    "BROADCASTING, the message consume failed, drop it, %s", message.message_id
                )
            self._complete(held, failed)
            return
        task = self._tasks.spawn(self._return(held, failed, level), f"give back {held.queue}")
        self._giving_back[task] = held
        task.add_done_callback(lambda ended: self._giving_back.pop(ended, None))

    async def _return(
        self, held: ProcessQueue, failed: list[ReceivedMessage], delay_level: int
    ) -> None:
        """Give messages back to the broker; those that it does not take are consumed again here."""
        kept = []
        for message in failed:
            if message not in held:
                continue
            if await self._retries.give_back(message, delay_level):
                self._complete(held, [message])
            else:
                message.count_try()
                kept.append(message)
        if kept:
            self._loop.call_later(
                _LOCAL_RETRY_SECONDS, self._workers.submit, (_Load(held, [kept]),)
            )

    def _give_up_slow(self) -> None:
        """Give up the calls that take too long."""
        now_ms = self._clock.monotonic_ms()
        for worker in self._workers.busy():
            load, messages = worker.job, worker.call
            # What is read now is of the call itself or, if that has just ended, of a later one.
            spent_ms = now_ms - worker.start_ms
            if (
                load is None
                or not isinstance(messages, list)
                or spent_ms <= self._options.timeout_ms
                or id(messages) in self._given_up
                or load.answer is not None
                # It ended, and its result was seen to.
                or messages[0] not in load.held
            ):
                continue
            # For good: a result that comes later would race with the retry.
            self._given_up[id(messages)] = messages
            _logger.warning(
                "the listener of the group %s has not returned for %d ms; %s are given back",
                self._options.group,
                spent_ms,
                _text(load.held, messages),
            )
            self._retry(load.held, messages, FIRST_RETRY_LEVEL)


def _drain(gathered: list[_T]) -> list[_T]:
    """What has gathered by now; more may be appended meanwhile."""
    found = gathered[:]
    del gathered[: len(found)]
    return found


def _text(held: ProcessQueue, messages: list[ReceivedMessage]) -> str:
    return f"{len(messages)} messages of {held.queue} from {messages[0].queue_offset} on"


def _failure(
    messages: list[ReceivedMessage], context: ConsumeContext, error: BaseException
) -> _Outcome:
    return _Outcome(messages, ConsumeResult.RECONSUME_LATER, context, repr(error)[:1000])


def _split(outcome: _Outcome) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
    """The messages of a call that succeeded, and those that failed."""
    messages, last = outcome.messages, outcome.context.ack_index
    if outcome.result is not ConsumeResult.SUCCESS:
        return [], messages
    count = len(messages) if last is None else max(0, last + 1)
    return messages[:count], messages[count:]
