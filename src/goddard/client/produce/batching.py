"""Sends messages of many callers in one request: messages wait a short time for others.

Messages of one topic, queue (if chosen), tag and durability share a batch. It is sent when it has
``max_batch_bytes`` or is ``max_delay_ms`` old, and each message gets its own result; a failure is
that of every message. Batches for a chosen queue are sent one at a time, in order, because a broker
may handle two requests at once.

Messages that cannot or should not wait are sent alone: delayed messages, retries, halves of
transactions, replies, bodies large enough to be compressed (a batch never is), and any message
while ``max_held_bytes`` have no result.

``OpenBatches`` decides and is pure; ``Accumulator`` has the timer and the tasks, and belongs to an
event loop. A message is encoded once, when it is added; there is no task and no timer per message.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from goddard.client.errors import NotRunningError
from goddard.client.message import Message
from goddard.client.produce.encoding import split_result
from goddard.client.produce.frames import batch_entry
from goddard.client.produce.options import AccumulatorOptions
from goddard.client.values import MessageQueue, SendResult
from goddard.clock import Clock
from goddard.errors import GoddardError
from goddard.protocol.message import (
    DELAY_PROPERTIES,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
)
from goddard.protocol.names import RETRY_PREFIX
from goddard.transport.ordering import Lines, Place
from goddard.transport.tasks import Tasks

_logger: Final = logging.getLogger(__name__)

# A message with one of these is sent alone.
_ALONE: Final = DELAY_PROPERTIES | {
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_MESSAGE_TYPE,
}

BatchKey: TypeAlias = tuple[str, MessageQueue | None, str | None, str | None]
"""Topic, queue, WAIT and TAGS of the messages that share a batch."""


def batch_key(message: Message, queue: MessageQueue | None) -> BatchKey:
    properties = message.properties
    return message.topic, queue, properties.get(PROPERTY_WAIT), properties.get(PROPERTY_TAGS)


class Batch:
    """Messages that are sent in one request."""

    __slots__ = (
        "futures",
        "ids",
        "key",
        "messages",
        "opened_ms",
        "parts",
        "size_bytes",
    )

    def __init__(self, key: BatchKey, opened_ms: int) -> None:
        self.key = key
        self.opened_ms = opened_ms
        self.size_bytes = 0
        self.parts: list[bytes] = []
        self.ids: list[str] = []
        # For hooks; ``parts`` are what is sent.
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future[SendResult]] = []

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def topic(self) -> str:
        return self.key[0]

    @property
    def queue(self) -> MessageQueue | None:
        """The queue that the callers chose; None leaves it to the producer."""
        return self.key[1]

    @property
    def waits_for_store(self) -> bool:
        return self.key[2] != "false"

    @property
    def tags(self) -> str | None:
        return self.key[3]

    def body(self) -> bytes:
        return b"".join(self.parts)

    def succeed(self, result: SendResult) -> None:
        """Give each caller its part of the answer."""
        for future, own in zip(self.futures, split_result(result, self.ids), strict=True):
            if not future.done():
                future.set_result(own)


class OpenBatches:
    """The batches that take messages, in the order in which they were opened."""

    __slots__ = ("_max_entry_bytes", "_of_queue", "_open", "_options", "_pending_bytes")

    def __init__(self, options: AccumulatorOptions, *, alone_from_bytes: int) -> None:
        """``alone_from_bytes``: bodies of this size and more are sent alone."""
        self._options = options
        self._max_entry_bytes = min(alone_from_bytes, options.max_batch_bytes)
        self._open: dict[BatchKey, Batch] = {}
        # A chosen queue has at most one open batch, so that messages of another kind follow it.
        self._of_queue: dict[MessageQueue, Batch] = {}
        # Of messages that have no result yet.
        self._pending_bytes = 0

    @property
    def next_due_ms(self) -> int | None:
        for batch in self._open.values():
            return batch.opened_ms + self._options.max_delay_ms
        return None

    def accepts(self, message: Message) -> bool:
        """Whether a message may wait for others."""
        return (
            len(message.body) < self._max_entry_bytes
            and self._pending_bytes < self._options.max_held_bytes
            and _ALONE.isdisjoint(message.properties)
            and not message.topic.startswith(RETRY_PREFIX)
        )

    def find(self, key: BatchKey) -> Batch | None:
        return self._open.get(key)

    def open(self, key: BatchKey, now_ms: int) -> Batch:
        batch = self._open[key] = Batch(key, now_ms)
        if batch.queue is not None:
            self._of_queue[batch.queue] = batch
        return batch

    def add(
        self,
        batch: Batch,
        message: Message,
        message_id: str,
        entry: bytes,
        future: "asyncio.Future[SendResult]",
    ) -> bool:
        """Add an encoded message to an open batch; true if the batch is full and was closed."""
        size = len(entry)
        batch.parts.append(entry)
        batch.messages.append(message)
        batch.ids.append(message_id)
        batch.futures.append(future)
        batch.size_bytes += size
        self._pending_bytes += size
        if batch.size_bytes < self._options.max_batch_bytes:
            return False
        self._close(batch)
        return True

    def close_other(self, queue: MessageQueue, key: BatchKey | None) -> Batch | None:
        """Close and return the open batch of a queue if it has another key: it is sent before the
        next message of the queue."""
        batch = self._of_queue.get(queue)
        if batch is None or batch.key == key:
            return None
        self._close(batch)
        return batch

    def _close(self, batch: Batch) -> None:
        del self._open[batch.key]
        if batch.queue is not None:
            del self._of_queue[batch.queue]

    def due(self, now_ms: int) -> list[Batch]:
        """Close and return the batches that are old enough."""
        opened_until_ms = now_ms - self._options.max_delay_ms
        ready: list[Batch] = []
        for batch in self._open.values():
            if batch.opened_ms > opened_until_ms:
                break
            ready.append(batch)
        for batch in ready:
            self._close(batch)
        return ready

    def close(self) -> list[Batch]:
        """Close and return all batches."""
        ready = list(self._open.values())
        self._open.clear()
        self._of_queue.clear()
        return ready

    def finished(self, batch: Batch) -> None:
        """Stop counting the bytes of a batch that has its result."""
        self._pending_bytes -= batch.size_bytes


class Accumulator:
    """Collects messages and sends them in batches through ``send``.

    ``send_alone`` is for messages that must follow a batch and cannot be in one.
    """

    __slots__ = (
        "_batches",
        "_clock",
        "_lines",
        "_loop",
        "_namespace",
        "_send",
        "_send_alone",
        "_sending",
        "_tasks",
        "_timer",
        "_unique_id",
    )

    def __init__(
        self,
        options: AccumulatorOptions,
        send: Callable[[Batch], Awaitable[SendResult]],
        send_alone: Callable[[Message, MessageQueue], Awaitable[SendResult]],
        *,
        clock: Clock,
        unique_id: Callable[[], str],
        alone_from_bytes: int,
        namespace: str = "",
    ) -> None:
        self._batches = OpenBatches(options, alone_from_bytes=alone_from_bytes)
        self._send = send
        self._send_alone = send_alone
        self._clock = clock
        self._unique_id = unique_id
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._sending: set[asyncio.Task[None]] = set()
        # Of chosen queues: what is sent to each, in order.
        self._lines = Lines()
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, message: Message, queue: MessageQueue | None = None
    ) -> "asyncio.Future[SendResult] | None":
        """Add a message to a batch. None: the caller must send it alone.

        The message must be valid; changes after this call do not change what is sent.
        """
        batches = self._batches
        key = batch_key(message, queue)
        is_accepted = batches.accepts(message)
        # Only a chosen queue has an order to keep.
        if queue is not None:
            before = batches.close_other(queue, key if is_accepted else None)
            if before is not None:
                self._dispatch(before)
            if not is_accepted and queue in self._lines:
                return self._send_in_line(message, queue)
        if not is_accepted:
            return None
        properties = message.properties
        message_id = properties.get(PROPERTY_UNIQUE_ID)
        if message_id is None:
            message_id = properties[PROPERTY_UNIQUE_ID] = self._unique_id()
        if self._namespace:
            properties = {**properties, PROPERTY_INSTANCE_ID: self._namespace}
        entry = batch_entry(message.body, properties, message.flag)
        batch = batches.find(key)
        if batch is None:
            batch = batches.open(key, self._clock.monotonic_ms())
            if self._timer is None:
                self._set_timer()
        future: asyncio.Future[SendResult] = self._loop.create_future()
        is_full = batches.add(batch, message, message_id, entry, future)
        if is_full:
            self._dispatch(batch)
        return future

    async def flush(self) -> None:
        """Send all batches and wait for the results; cancelled, fail those that are missing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for batch in self._batches.close():
            self._dispatch(batch)
        try:
            while self._sending:
                await asyncio.wait(self._sending)
        finally:
            await self._tasks.stop()

    def _set_timer(self) -> None:
        due_ms = self._batches.next_due_ms
        if due_ms is not None:
            delay_ms = max(1, due_ms - self._clock.monotonic_ms())
            self._timer = self._loop.call_later(delay_ms / 1000, self._flush_due)

    def _flush_due(self) -> None:
        self._timer = None
        for batch in self._batches.due(self._clock.monotonic_ms()):
            self._dispatch(batch)
        self._set_timer()

    def _dispatch(self, batch: Batch) -> None:
        """Send a closed batch."""
        send = partial(self._send_batch, batch)
        self._begin(send, batch.topic, batch.queue, batch.futures)

    def _send_in_line(self, message: Message, queue: MessageQueue) -> "asyncio.Future[SendResult]":
        future: asyncio.Future[SendResult] = self._loop.create_future()

        async def send() -> None:
            result = await self._send_alone(message, queue)
            if not future.done():
                future.set_result(result)

        self._begin(send, message.topic, queue, (future,))
        return future

    async def _send_batch(self, batch: Batch) -> None:
        try:
            batch.succeed(await self._send(batch))
        finally:
            self._batches.finished(batch)

    def _begin(
        self,
        work: Callable[[], Awaitable[None]],
        topic: str,
        queue: MessageQueue | None,
        futures: "Iterable[asyncio.Future[SendResult]]",
    ) -> None:
        place = None if queue is None else self._lines.join(queue)
        task = self._tasks.spawn(self._run(work, place, topic, futures), f"batch to {topic}")
        self._sending.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._sending.discard(task)
            if task.cancelled():
                text = "the producer was stopped before the answer came"
                _fail(futures, NotRunningError(text))

        task.add_done_callback(ended)

    async def _run(
        self,
        work: Callable[[], Awaitable[None]],
        place: Place | None,
        topic: str,
        futures: "Iterable[asyncio.Future[SendResult]]",
    ) -> None:
        try:
            if place is not None:
                await place.turn()
            await work()
        except GoddardError as error:
            _fail(futures, error)
        except Exception as error:
            _logger.exception("unexpected failure of a send to %s", topic)
            _fail(futures, error)
        finally:
            if place is not None:
                place.leave()


def _fail(futures: "Iterable[asyncio.Future[SendResult]]", error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
