"""Read messages of a topic without a group: nothing is committed, and no consumer is disturbed.

``scan`` yields the messages of a range in the order of their store times, all queues merged, and
then, with ``follow``, new ones as they arrive. A broker that fails does not end the scan of the
others; ``Scan.failures`` says what is missing.
"""

import asyncio
import contextlib
import heapq
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Final

from goddard.cli.render import progress_bar
from goddard.cli.terminal.times import END, START, Bound, Position, Range
from goddard.client.consume.pull import Puller, PullStatus
from goddard.client.consume.subscriptions import Expression, subscription
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.bodies_client import SubscriptionData

if TYPE_CHECKING:
    from goddard.client.admin.admin import Admin
    from goddard.protocol.bodies_admin import TopicOffset

_GROUP: Final = "TOOLS_CONSUMER"
_PAGE: Final = 32
_HOLD_MS: Final = 5_000
_RETRY_SECONDS: Final = 1.0
_MAX_WAITING: Final = 1_000


class Scan:
    """One reading of a topic. ``queues`` are the chosen ones; all if None."""

    def __init__(
        self,
        admin: "Admin",
        topic: str,
        wanted: Range,
        expression: Expression = None,
        *,
        queue: MessageQueue | None = None,
    ) -> None:
        self.failures: dict[str, GoddardError] = {}
        self._admin = admin
        self._topic = topic
        self._wanted = wanted
        self._queue = queue
        self._subscription: SubscriptionData = subscription(topic, expression, version_ms=0)
        self._puller = Puller(admin.session, _GROUP)
        self._read_count = 0
        self._show_progress: Callable[[int], None] = lambda _: None

    async def messages(self, *, follow: bool = False) -> AsyncGenerator[ReceivedMessage, None]:
        """The messages of the range; with ``follow``, also new ones, without end."""
        stats = await self._admin.topic_stats(self._topic)
        queues = [one for one in stats.queues if self._queue in (None, one)]
        begins = await asyncio.gather(
            *(self._offset(one, stats.queues[one], self._wanted.begin) for one in queues)
        )
        end = self._wanted.end or END
        ends = await asyncio.gather(*(self._offset(one, stats.queues[one], end) for one in queues))
        ranges = {
            one: (begin, max(begin, last))
            for one, begin, last in zip(queues, begins, ends, strict=True)
        }
        async for message in self._bounded(ranges):
            yield message
        if follow:
            async for message in self._following({one: last for one, (_, last) in ranges.items()}):
                yield message

    async def _offset(self, queue: MessageQueue, ends: "TopicOffset", position: Position) -> int:
        value = position.value
        if position == START:
            value = ends.min_offset
        elif position == END:
            value = ends.max_offset
        elif position.bound is Bound.BEFORE_END:
            value = ends.max_offset - value
        elif position.bound is Bound.TIME:
            try:
                value = await self._admin.search_offset(queue, value)
            except GoddardError as error:
                self.failures[queue.broker_name] = error
                value = ends.max_offset
        return min(max(value, ends.min_offset), ends.max_offset)

    async def _bounded(
        self, ranges: Mapping[MessageQueue, tuple[int, int]]
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """All messages of the ranges, oldest first."""
        total = sum(end - begin for begin, end in ranges.values())
        # With the output at the same terminal, the bar would be between the messages.
        with progress_bar("reading", shown=not sys.stdout.isatty(), is_bytes=False) as show:
            self._show_progress = lambda done: show(done, total)
            async for message in self._merged(ranges):
                yield message

    async def _merged(
        self, ranges: Mapping[MessageQueue, tuple[int, int]]
    ) -> AsyncGenerator[ReceivedMessage, None]:
        readers = [self._read(queue, begin, end) for queue, (begin, end) in ranges.items()]
        firsts = await asyncio.gather(*(anext(reader, None) for reader in readers))
        heap = [
            (message.store_timestamp_ms, number, message)
            for number, message in enumerate(firsts)
            if message is not None
        ]
        heapq.heapify(heap)
        while heap:
            _, number, message = heap[0]
            following = await anext(readers[number], None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.store_timestamp_ms, number, following))
            yield message

    async def _read(
        self, queue: MessageQueue, offset: int, end: int
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """The messages of one queue; a failure of its broker ends it."""
        while offset < end:
            try:
                result = await self._puller.pull(
                    queue,
                    offset,
                    self._subscription,
                    max_messages=_PAGE,
                    suspend_ms=0,
                    timeout_ms=self._admin.timeout_ms,
                    carries_subscription=True,
                )
            except GoddardError as error:
                self.failures[queue.broker_name] = error
                return
            self._read_count += max(0, min(result.next_offset, end) - offset)
            self._show_progress(self._read_count)
            for message in result.messages:
                if message.queue_offset < end and self._is_in_time(message):
                    yield message
            if result.next_offset <= offset:
                return
            offset = result.next_offset

    def _is_in_time(self, message: ReceivedMessage) -> bool:
        """Brokers before 5.0 find the offset of a time one message too early."""
        begin, end = self._wanted.begin, self._wanted.end
        stored = message.store_timestamp_ms
        if begin.bound is Bound.TIME and stored < begin.value:
            return False
        return end is None or end.bound is not Bound.TIME or stored < end.value

    async def _following(
        self, offsets: Mapping[MessageQueue, int]
    ) -> AsyncGenerator[ReceivedMessage, None]:
        arrived: asyncio.Queue[ReceivedMessage] = asyncio.Queue(_MAX_WAITING)
        tasks = [
            asyncio.create_task(self._follow(queue, offset, arrived))
            for queue, offset in offsets.items()
        ]
        try:
            while True:
                yield await arrived.get()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _follow(
        self, queue: MessageQueue, offset: int, arrived: "asyncio.Queue[ReceivedMessage]"
    ) -> None:
        """Pull a queue for ever; while its broker fails, try again every second."""
        while True:
            try:
                result = await self._puller.pull(
                    queue,
                    offset,
                    self._subscription,
                    max_messages=_PAGE,
                    suspend_ms=_HOLD_MS,
                    timeout_ms=_HOLD_MS + self._admin.timeout_ms,
                    carries_subscription=True,
                )
            except GoddardError as error:
                self.failures[queue.broker_name] = error
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self.failures.pop(queue.broker_name, None)
            for message in result.messages:
                await arrived.put(message)
            if result.status is PullStatus.NO_NEW_MESSAGES and result.next_offset < offset:
                await asyncio.sleep(_RETRY_SECONDS)  # the queue was truncated
            offset = result.next_offset

    def failure_text(self) -> str | None:
        """What is missing; None if nothing failed."""
        if not self.failures:
            return None
        reasons = "; ".join(f"{name}: {error}" for name, error in sorted(self.failures.items()))
        return f"incomplete, some messages could not be read: {reasons}"
