"""Concurrent consuming: several workers consume batches of messages in any order.

A message stays in its process queue until it is consumed or a broker has accepted its send-back;
the committed offset never passes it. A call of the listener that takes longer than
``consume_timeout_ms`` is abandoned: its messages are sent back to the broker, and its result is
ignored.

The messages of one pull are submitted as one job of many calls, which workers share. A success
costs one append to a list of the job; the loop handles all results that have collected since its
last turn together.

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
from goddard.client.consume.options import PushOptions
from goddard.client.consume.queue_buffer import ProcessQueue
from goddard.client.consume.status import ConsumeRates
from goddard.client.listeners.direct import DirectCalls
from goddard.client.listeners.listener import (
    ConsumeContext,
    ConsumeResult,
    await_listener,
    call_listener,
    describe,
    is_async,
    is_consumed,
)
from goddard.client.listeners.redelivery import FIRST_RETRY_LEVEL, Redelivery
from goddard.client.listeners.workers import Coroutines, Threads, Worker, Workers
from goddard.client.message import ReceivedMessage
from goddard.environment import Environment
from goddard.protocol.bodies import ConsumeResult as DirectResult
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.transport.tasks import Tasks

# When the listener failed and no broker accepts the send-back, the listener is called again.
_LOCAL_RETRY_SECONDS: Final = 5.0
_MOST_BETWEEN_CHECKS_SECONDS: Final = 60.0
_SETTLE_POLL_SECONDS: Final = 0.01
# A task whose coroutines never wait gives the loop a turn after so many calls.
_CALLS_PER_TURN: Final = 32

# Looking up a member of an enumeration takes longer than many listeners do.
_SUCCESS: Final = ConsumeResult.SUCCESS

_T = TypeVar("_T")

_logger: Final = logging.getLogger("goddard.client")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of a call that is not a plain success."""

    messages: list[ReceivedMessage]
    result: ConsumeResult
    context: ConsumeContext
    # What it raised.
    failure: str | None = None


class _Job:
    """Calls of the listener with messages of one queue.

    Workers take batches from ``rest`` and append to the lists; only the loop removes from those.
    """

    __slots__ = ("answer", "buffer", "is_noticed", "outcomes", "rest", "spent_ms", "successes")

    def __init__(self, buffer: ProcessQueue, batches: list[list[ReceivedMessage]]) -> None:
        self.buffer = buffer
        # An iterator over a list: several threads may take from it, each batch once.
        self.rest = iter(batches)
        self.successes: list[list[ReceivedMessage]] = []
        self.outcomes: list[_Outcome] = []
        # The time that each worker took.
        self.spent_ms: list[int] = []
        # The loop will handle its results soon.
        self.is_noticed = False
        # A single call whose result is awaited.
        self.answer: asyncio.Future[_Outcome | None] | None = None

    def __length_hint__(self) -> int:
        return length_hint(self.rest)


class ConcurrentConsumption:
    """Calls a listener for the messages of any number of queues.

    ``released`` is called with a buffer that holds fewer messages than before.
    """

    def __init__(
        self,
        listener: Callable[..., Any],
        group: str,
        options: PushOptions,
        *,
        offsets: Offsets,
        redelivery: Redelivery,
        rates: ConsumeRates,
        environment: Environment,
        released: Callable[[ProcessQueue], None],
    ) -> None:
        self._listener = listener
        self._group = group
        self._options = options
        self._offsets = offsets
        self._redelivery = redelivery
        self._rates = rates
        self._clock = environment.clock
        self._released = released
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._direct_calls = DirectCalls(group)
        self._sending_back: dict[asyncio.Task[None], ProcessQueue] = {}
        # Messages of calls that were abandoned and have not ended, by identity.
        self._abandoned: dict[int, list[ReceivedMessage]] = {}
        self._loop = asyncio.get_running_loop()
        name = f"consume-{group}"
        self._workers: Workers[_Job] = (
            Coroutines(
                name,
                self._await_all,
                self._finished,
                max_tasks=options.consume_threads,
                shares=True,
            )
            if is_async(listener)
            else Threads(
                name,
                self._call_all,
                self._finished,
                max_threads=options.consume_threads,
                environment=environment,
                shares=True,
            )
        )

    def start(self) -> None:
        """Begin to look for calls that take too long."""
        seconds = min(self._options.consume_timeout_ms / 4000, _MOST_BETWEEN_CHECKS_SECONDS)
        self._tasks.periodic("consume timeouts", seconds, self._abandon_slow)

    @property
    def worker_count(self) -> int:
        return self._workers.size

    def accept(self, buffer: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Consume messages that ``buffer`` holds."""
        size = self._options.consume_batch_size
        if size == 1:
            batches = [[message] for message in messages]
        else:
            batches = [messages[at : at + size] for at in range(0, len(messages), size)]
        self._workers.submit((_Job(buffer, batches),))

    async def settle(self, buffer: ProcessQueue, timeout_ms: int) -> bool:
        """Wait for the calls for a dropped queue to end; False if some have not."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self._is_busy(buffer):
            if self._clock.monotonic_ms() >= deadline_ms:
                return False
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
        return True

    def _is_busy(self, buffer: ProcessQueue) -> bool:
        return buffer in self._sending_back.values() or any(
            worker.job is not None
            and worker.job.buffer is buffer
            and id(worker.call) not in self._abandoned
            for worker in self._workers.busy()
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the listener with one message, whether it was consumed before or not.

        ResponseError if the consumer stops before the call ends.
        """
        started_ms = self._clock.monotonic_ms()
        job = _Job(ProcessQueue(message.queue, started_ms), [[message]])
        job.answer = self._loop.create_future()
        self._workers.submit((job,))
        outcome = await self._direct_calls.wait(job.answer)
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
        """Make no more calls of the listener; wait up to ``wait_ms`` for those that run."""
        try:
            await self._workers.close(wait_ms)
            if self._sending_back:
                await asyncio.wait(self._sending_back, timeout=max(wait_ms, 1000) / 1000)
        finally:
            self._direct_calls.close()
            await self._tasks.stop()

    # --- In the worker ----------------------------------------------------------------------------

    def _call_all(self, job: _Job, worker: Worker[_Job]) -> None:
        buffer, succeeded, group = job.buffer, job.successes.append, self._group
        listener, queue, now_ms = self._listener, buffer.queue, self._clock.monotonic_ms
        began_ms = None
        for messages in job.rest:
            if buffer.is_dropped or worker.is_closed:
                break
            worker.start_ms = start_ms = now_ms()
            worker.call = messages
            if began_ms is None:
                began_ms = start_ms
            context = ConsumeContext(queue)
            result, failure = call_listener(listener, group, messages, context)
            if result is _SUCCESS and context.ack_index is None:
                succeeded(messages)
            else:
                job.outcomes.append(_Outcome(messages, result, context, failure))
            worker.calls += 1
        if began_ms is not None:
            job.spent_ms.append(now_ms() - began_ms)

    async def _await_all(self, job: _Job, worker: Worker[_Job]) -> None:
        buffer, listener = job.buffer, self._listener
        for messages in job.rest:
            if buffer.is_dropped or worker.is_closed:
                break
            worker.start_ms = self._clock.monotonic_ms()
            worker.call = messages
            context = ConsumeContext(buffer.queue)
            result, failure = await await_listener(listener, self._group, messages, context)
            if result is _SUCCESS and context.ack_index is None:
                job.successes.append(messages)
            else:
                job.outcomes.append(_Outcome(messages, result, context, failure))
            worker.calls += 1
            job.spent_ms.append(self._clock.monotonic_ms() - worker.start_ms)
            if not job.is_noticed:
                job.is_noticed = True
                self._loop.call_soon(self._finished, (job,))
            if worker.calls % _CALLS_PER_TURN == 0:
                await asyncio.sleep(0)

    # --- On the loop ------------------------------------------------------------------------------

    def _finished(self, jobs: Iterable[_Job]) -> None:
        """Handle the results of calls that have ended, all those of a queue together."""
        done: dict[ProcessQueue, list[ReceivedMessage]] = {}
        spent_ms: dict[ProcessQueue, int] = {}
        now_ms = self._clock.monotonic_ms()
        for job in jobs:
            job.is_noticed = False
            buffer = job.buffer
            if job.answer is not None:
                self._answer(job, job.answer)
                continue
            if job.spent_ms:
                spent_ms[buffer] = spent_ms.get(buffer, 0) + sum(_drain(job.spent_ms))
            if job.successes:
                calls = _drain(job.successes)
                if self._abandoned:
                    calls = [messages for messages in calls if not self._was_abandoned(messages)]
                done.setdefault(buffer, []).extend(chain.from_iterable(calls))
            for outcome in _drain(job.outcomes):
                if self._was_abandoned(outcome.messages):
                    continue
                succeeded, failed = _split(outcome)
                if succeeded:
                    done.setdefault(buffer, []).extend(succeeded)
                if failed:
                    self._rates.consumed(buffer.queue.topic, len(failed), len(failed), 0, now_ms)
                    failure = outcome.failure or f"the listener returned {outcome.result.name}"
                    self._retry(buffer, failed, outcome.context.delay_level, failure)
        for buffer, messages in done.items():
            buffer.last_consume_ms = now_ms
            count = len(messages)
            self._rates.consumed(buffer.queue.topic, count, 0, spent_ms.get(buffer, 0), now_ms)
            self._complete(buffer, messages)

    def _answer(self, job: _Job, answer: "asyncio.Future[_Outcome | None]") -> None:
        if not answer.done() and (job.successes or job.outcomes):
            answer.set_result(job.outcomes[0] if job.outcomes else None)

    def _was_abandoned(self, messages: list[ReceivedMessage]) -> bool:
        return self._abandoned.pop(id(messages), None) is not None

    def _complete(self, buffer: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        offset = buffer.remove(messages)
        if offset is not None:
            self._offsets.update(buffer.queue, offset, increase_only=True)
            self._released(buffer)

    def _retry(
        self, buffer: ProcessQueue, failed: list[ReceivedMessage], level: int, failure: str
    ) -> None:
        if self._options.is_broadcast:
            for message in failed:
                _logger.warning(
                    "BROADCASTING, the message consume failed, drop it, %s", message.message_id
                )
            self._complete(buffer, failed)
            return
        task = self._tasks.spawn(
            self._send_back(buffer, failed, level, failure), f"send back {buffer.queue}"
        )
        self._sending_back[task] = buffer
        task.add_done_callback(lambda ended: self._sending_back.pop(ended, None))

    async def _send_back(
        self, buffer: ProcessQueue, failed: list[ReceivedMessage], delay_level: int, failure: str
    ) -> None:
        """Send messages back to a broker; those that none accepts are consumed again here."""
        kept = []
        for message in failed:
            if message not in buffer:
                continue
            if await self._redelivery.send_back(message, delay_level, failure):
                self._complete(buffer, [message])
            else:
                message.increment_reconsume_times()
                kept.append(message)
        if kept:
            self._loop.call_later(
                _LOCAL_RETRY_SECONDS, self._workers.submit, (_Job(buffer, [kept]),)
            )

    def _abandon_slow(self) -> None:
        """Abandon the calls that take too long."""
        now_ms = self._clock.monotonic_ms()
        for worker in self._workers.busy():
            job, messages = worker.job, worker.call
            # If the call has just ended, this is the start of a later call, and not too long ago.
            spent_ms = now_ms - worker.start_ms
            if (
                job is None
                or not isinstance(messages, list)
                or spent_ms <= self._options.consume_timeout_ms
                or id(messages) in self._abandoned
                or job.answer is not None
                # It has ended, and its result has been handled.
                or messages[0] not in job.buffer
            ):
                continue
            # A result that comes later is ignored: the messages are redelivered already.
            self._abandoned[id(messages)] = messages
            _logger.warning(
                "the listener of the group %s has not returned for %d ms; sending back %s",
                self._group,
                spent_ms,
                describe(messages),
            )
            failure = f"the listener did not return within {self._options.consume_timeout_ms} ms"
            self._retry(job.buffer, messages, FIRST_RETRY_LEVEL, failure)


def _drain(gathered: list[_T]) -> list[_T]:
    """Take all items of a list; threads may append more meanwhile."""
    found = gathered[:]
    del gathered[: len(found)]
    return found


def _split(outcome: _Outcome) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
    """The messages of a call that are consumed, and those that failed."""
    messages, last = outcome.messages, outcome.context.ack_index
    if not is_consumed(outcome.result, outcome.context):
        return [], messages
    count = len(messages) if last is None else max(0, last + 1)
    return messages[:count], messages[count:]
