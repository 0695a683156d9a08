"""Concurrent consuming: batches of messages in any order, on as many workers as there are.

A message stays in its process queue until it was consumed, or a broker took it back; what is
committed never passes it. A call of the listener that takes longer than ``timeout_ms`` is given up:
its messages go back to the broker, and whatever the call returns later is ignored.

Everything but the calls of the listener belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from goddard.client.listening import ConsumeContext, ConsumeResult, is_async, result_of
from goddard.client.message import ReceivedMessage
from goddard.client.offsets import Offsets
from goddard.client.processqueue import ProcessQueue
from goddard.client.rates import ConsumeRates
from goddard.client.retrying import FIRST_RETRY_LEVEL, Retries
from goddard.client.workers import Coroutines, Threads, Workers
from goddard.clock import Clock
from goddard.protocol.bodies import ConsumeResult as DirectResult
from goddard.protocol.bodies_client import ConsumeDirectlyResult
from goddard.transport.tasks import Tasks

# When neither the listener nor a broker takes a message, the listener is tried again.
_LOCAL_RETRY_SECONDS: Final = 5.0
_MOST_BETWEEN_CHECKS_SECONDS: Final = 60.0
_SETTLE_POLL_SECONDS: Final = 0.01

_FAILED: Final = "the listener of the group %s failed with %s"

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


# One per message, most often: without the garbage collector's attention, and so without anything
# that could refer back to it, as the traceback of an exception does.
class _Job(msgspec.Struct, gc=False, eq=False):
    """One call of the listener."""

    held: ProcessQueue
    messages: list[ReceivedMessage]
    # In milliseconds; None before the call, which is not made if the queue is gone.
    start: int | None = None
    context: ConsumeContext | None = None
    result: ConsumeResult | None = None
    # What it raised.
    failure: str | None = None
    is_given_up: bool = False
    # Somebody waits for this call alone.
    answer: asyncio.Future[None] | None = None

    def __str__(self) -> str:
        first = self.messages[0]
        return f"{len(self.messages)} messages of {self.held.queue} from {first.queue_offset} on"


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
        name = f"consume-{options.group}"
        self._workers: Workers[_Job] = (
            Coroutines(name, self._await, self._finished, max_tasks=options.workers)
            if is_async(listener)
            else Threads(name, self._call, self._finished, max_threads=options.workers, clock=clock)
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
            self._workers.submit([_Job(held, [message]) for message in messages])
            return
        self._workers.submit(
            [_Job(held, messages[at : at + size]) for at in range(0, len(messages), size)]
        )

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
            job.held is held and not job.is_given_up for job in self._workers.running()
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Call the listener for one message, whatever became of it before."""
        started_ms = self._clock.monotonic_ms()
        job = _Job(ProcessQueue(message.queue, started_ms), [message])
        job.answer = asyncio.get_running_loop().create_future()
        self._workers.submit([job])
        await job.answer
        result = ConsumeDirectlyResult(order=False, auto_commit=True)
        if job.failure is not None:
            result.consume_result = DirectResult.THROW_EXCEPTION
            result.remark = job.failure
        elif job.result is ConsumeResult.SUCCESS:
            result.consume_result = DirectResult.SUCCESS
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

    def _call(self, job: _Job) -> None:
        if job.held.is_dropped:
            return
        job.start = self._clock.monotonic_ms()
        job.context = context = ConsumeContext(job.held.queue)
        try:
            returned = self._listener(job.messages.copy(), context)
            job.result = ConsumeResult.SUCCESS if returned is None else result_of(returned)
        except BaseException as error:
            # Whatever it is, not even SystemExit may end the worker.
            _fail(job, error)
            _logger.warning(_FAILED, self._options.group, job, exc_info=True)

    async def _await(self, job: _Job) -> None:
        if job.held.is_dropped:
            return
        job.start = self._clock.monotonic_ms()
        job.context = context = ConsumeContext(job.held.queue)
        try:
            returned = await self._listener(job.messages.copy(), context)
            job.result = ConsumeResult.SUCCESS if returned is None else result_of(returned)
        except asyncio.CancelledError as error:
            # Ours, at the end; or the listener's own, which is a failure as any other.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _fail(job, error)
            _logger.warning(_FAILED, self._options.group, job, exc_info=True)
        except Exception as error:
            _fail(job, error)
            _logger.warning(_FAILED, self._options.group, job, exc_info=True)

    # --- On the loop ------------------------------------------------------------------------------

    def _finished(self, jobs: list[_Job]) -> None:
        """See to the results of calls, all those of a queue together."""
        done: dict[ProcessQueue, list[ReceivedMessage]] = {}
        spent: dict[ProcessQueue, int] = {}
        now_ms = self._clock.monotonic_ms()
        for job in jobs:
            if job.answer is not None:
                if not job.answer.done():
                    job.answer.set_result(None)
                continue
            if job.start is None or job.is_given_up:
                continue
            held = job.held
            spent[held] = spent.get(held, 0) + now_ms - job.start
            if job.result is ConsumeResult.SUCCESS and (
                job.context is None or job.context.ack_index is None
            ):
                if held in done:
                    done[held] += job.messages
                else:
                    done[held] = job.messages
                continue
            succeeded, failed = _split(job)
            if succeeded:
                done.setdefault(held, []).extend(succeeded)
            if failed:
                level = job.context.delay_level if job.context is not None else 0
                self._rates.consumed(held.queue.topic, len(failed), len(failed), 0, now_ms)
                self._retry(held, failed, level)
        for held, messages in done.items():
            held.last_consume_ms = now_ms
            self._rates.consumed(held.queue.topic, len(messages), 0, spent[held], now_ms)
            self._complete(held, messages)

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
            loop = asyncio.get_running_loop()
            loop.call_later(_LOCAL_RETRY_SECONDS, self._workers.submit, [_Job(held, kept)])

    def _give_up_slow(self) -> None:
        """Give up the calls that take too long."""
        now_ms = self._clock.monotonic_ms()
        for job in self._workers.running():
            start = job.start
            if (
                start is not None
                and not job.is_given_up
                and job.answer is None
                and now_ms - start > self._options.timeout_ms
            ):
                job.is_given_up = True
                _logger.warning(
                    "the listener of the group %s has not returned for %d ms; %s are given back",
                    self._options.group,
                    now_ms - start,
                    job,
                )
                # Given up for good: a result that comes later would race with the retry.
                self._retry(job.held, job.messages, FIRST_RETRY_LEVEL)


def _fail(job: _Job, error: BaseException) -> None:
    job.failure = repr(error)[:1000]
    job.result = ConsumeResult.RECONSUME_LATER


def _split(job: _Job) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
    """The messages of a call that succeeded, and those that failed."""
    if job.result is not ConsumeResult.SUCCESS:
        return [], job.messages
    last = job.context.ack_index if job.context is not None else None
    count = len(job.messages) if last is None else max(0, last + 1)
    return job.messages[:count], job.messages[count:]
