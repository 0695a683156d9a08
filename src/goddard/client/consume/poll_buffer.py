"""What a lite pull consumer has pulled, and its delivery to the user: batches or single messages.

Batches are delivered in the order of their pulls, whatever queue they are of. Batches of a queue
that moved to another offset or was released are skipped.

Delivered messages count as consumed when the user asks for more (``mark_delivered_consumed``). One
task at a time may ask; others wait for it. Belongs to the event loop, except ``ThreadBatch``: a
thread takes its messages one by one without the loop, which looks later how many were taken
(``catch_up``).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from goddard.client.consume.queue_buffer import Batch, PrefetchQueue
from goddard.client.message import ReceivedMessage
from goddard.clock import Clock

# A thread returns to the loop at least this often, to commit offsets.
_THREAD_BATCH_MS: Final = 200


class ThreadBatch:
    """Messages of one batch for a thread to take; the loop may close it at any time."""

    __slots__ = ("_clock", "_guard", "_is_closed", "_until_ms", "batch", "messages", "taken")

    def __init__(self, batch: Batch, messages: list[ReceivedMessage], clock: Clock) -> None:
        self.batch = batch
        self.messages = messages
        # The loop reads it.
        self.taken = 0
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + _THREAD_BATCH_MS
        self._is_closed = False
        self._guard = threading.Lock()

    def next(self) -> ReceivedMessage | None:
        """The next message; None if the loop must be asked for another batch."""
        with self._guard:
            at = self.taken
            if (
                self._is_closed
                or at == len(self.messages)
                or self.batch.is_stale
                or self._clock.monotonic_ms() >= self._until_ms
            ):
                return None
            self.taken = at + 1
            return self.messages[at]

    def close(self) -> None:
        """Have no more messages taken."""
        with self._guard:
            self._is_closed = True


class PollBuffer:
    """``prepare`` readies the messages of a batch for the user; ``taken`` is called when a batch
    leaves the buffer, so that there is room for others."""

    def __init__(
        self,
        prepare: Callable[[list[ReceivedMessage]], None],
        taken: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._prepare = prepare
        self._taken = taken
        self._clock = clock
        self._batches: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._asking = asyncio.Lock()
        # A batch that is delivered message by message, and what is left of it.
        self._current: Batch | None = None
        self._rest: deque[ReceivedMessage] = deque()
        # The same, while a thread takes it, and how many the loop knows to be taken.
        self._thread_batch: ThreadBatch | None = None
        self._seen = 0
        # The queues of messages that were delivered since the user last asked.
        self._delivered: dict[PrefetchQueue, None] = {}

    # --- Filling ----------------------------------------------------------------------------------

    def add(self, buffer: PrefetchQueue, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Hold what a pull brought; offsets up to ``next_offset`` are done with it."""
        batch = buffer.add(messages, next_offset)
        if batch is not None:
            self._batches.append(batch)
            self._arrived.set()

    def forget(self, buffer: PrefetchQueue) -> None:
        """A queue is released or moves: its delivered messages will not be marked consumed."""
        if self._thread_batch is not None and self._thread_batch.batch.buffer is buffer:
            self.put_back()
        self._delivered.pop(buffer, None)

    def close(self) -> None:
        """No more messages will come: end every wait for them."""
        self._is_closed = True
        self._arrived.set()

    # --- How far ----------------------------------------------------------------------------------

    def mark_delivered_consumed(self) -> None:
        """The user is done with what it got."""
        self.catch_up()
        for buffer in self._delivered:
            buffer.mark_consumed()
        self._delivered.clear()

    def catch_up(self) -> None:
        """Note which messages a thread has taken; all of them but the last are consumed.

        Called before offsets are used.
        """
        thread_batch = self._thread_batch
        if thread_batch is None:
            return
        taken = thread_batch.taken
        for count in range(max(self._seen + 1, taken - 1), taken + 1):
            for buffer in self._delivered:
                buffer.mark_consumed()
            self._delivered.clear()
            self._deliver(thread_batch.batch, _offset_after(thread_batch, count))
        self._seen = taken

    def put_back(self) -> None:
        """Close the batch of a thread, if there is one; its other messages are delivered next."""
        thread_batch = self._thread_batch
        if thread_batch is None:
            return
        thread_batch.close()
        self.catch_up()
        self._thread_batch = None
        self._seen = 0
        self._rest = deque(thread_batch.messages[thread_batch.taken :])
        self._current = thread_batch.batch if self._rest else None

    # --- Delivery ---------------------------------------------------------------------------------

    async def next_batch(self, timeout_ms: int) -> list[ReceivedMessage]:
        """The oldest batch, or the rest of the current one; empty if none came in time."""
        async with self._asking:
            self.put_back()
            self.mark_delivered_consumed()
            batch, rest = self._current, self._rest
            self._current, self._rest = None, deque()
            if batch is not None and not batch.is_stale:
                self._deliver(batch, batch.next_offset)
                return list(rest)
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    taken = await self._take()
            except TimeoutError:
                return []
            if taken is None:
                return []
            self._deliver(taken, taken.next_offset)
            return taken.messages

    async def next_message(self) -> ReceivedMessage | None:
        """The next message, however long it takes; None when no more will come."""
        async with self._asking:
            batch = await self._next_current()
            if batch is None:
                return None
            message = self._rest.popleft()
            if self._rest:
                self._deliver(batch, message.queue_offset + 1)
            else:
                self._current = None
                self._deliver(batch, batch.next_offset)
            return message

    async def next_thread_batch(self) -> ThreadBatch | None:
        """The next messages for a thread, however long it takes; None when no more will come."""
        async with self._asking:
            batch = await self._next_current()
            if batch is None:
                return None
            self._thread_batch = ThreadBatch(batch, list(self._rest), self._clock)
            self._current, self._rest = None, deque()
            batch.buffer.is_partly_delivered = True
            return self._thread_batch

    async def _next_current(self) -> Batch | None:
        """The batch to deliver from; what is left of it is in ``_rest``."""
        self.put_back()
        self.mark_delivered_consumed()
        batch = self._current
        if batch is None or batch.is_stale:
            batch = self._current = await self._take()
            if batch is not None:
                self._rest = deque(batch.messages)
        return batch

    async def _take(self) -> Batch | None:
        """The oldest batch, however long it takes; None when no more will come."""
        while True:
            while self._batches:
                batch = self._batches.popleft()
                if batch.is_stale:
                    continue
                batch.buffer.take()
                self._taken()
                self._prepare(batch.messages)
                return batch
            if self._is_closed:
                return None
            self._arrived.clear()
            await self._arrived.wait()

    def _deliver(self, batch: Batch, offset: int) -> None:
        buffer = batch.buffer
        buffer.is_partly_delivered = offset != batch.next_offset
        buffer.delivered_offset = offset
        self._delivered[buffer] = None


def _offset_after(thread_batch: ThreadBatch, count: int) -> int:
    """The offset after the first ``count`` messages."""
    if count == len(thread_batch.messages):
        return thread_batch.batch.next_offset
    return thread_batch.messages[count - 1].queue_offset + 1
