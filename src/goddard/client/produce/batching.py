"""Many callers' sends in one request: messages wait a little for others of their kind.

Messages of one topic, queue (if chosen), tag and durability share a batch. It leaves when it has
``max_batch_bytes`` or is ``max_delay_ms`` old, and each message gets its own result. A failure is
that of every message in the batch. What is for a chosen queue leaves in the order of coming, each
batch when the one before it has its result, because a broker may handle two at a time.

What cannot or should not wait for others goes alone: delayed messages, retries, halves of
transactions, replies, bodies large enough to be compressed (a batch never is), and anything while
``max_held_bytes`` are held already.

``HeldBatches`` decides and is pure; ``Accumulator`` has the timer and the tasks, and belongs to a
loop. A message is encoded once, when it comes; there is no task and no timer per message.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, Final, TypeAlias

from goddard.client.errors import InvalidMessageError
from goddard.client.message import Message
from goddard.client.values import MessageQueue, SendResult
from goddard.clock import Clock
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.protocol.message import (
    DELAY_PROPERTIES,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
    encode_properties,
)
from goddard.protocol.names import RETRY_PREFIX
from goddard.transport.tasks import Tasks

_logger: Final = logging.getLogger(__name__)

_UNFORESEEN: Final = "a send to %s failed in an unforeseen way"
_MAX_DELAY_MS: Final = 30_000
_MAX_BATCH_BYTES: Final = 2 * 1024 * 1024
# A message with one of these goes alone.
_ALONE: Final = DELAY_PROPERTIES | {
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_MESSAGE_TYPE,
}
_UNIQUE_ID: Final = PROPERTY_UNIQUE_ID.encode() + b"\x01"
_PAIR_END: Final = b"\x02"
# total_size, magic, body_crc, flag, body_length; then body, properties_length, properties.
_ENTRY_HEAD: Final = Struct(">iiiii")
_PROPERTIES_LENGTH: Final = Struct(">h")
_ENTRY_BYTES: Final = _ENTRY_HEAD.size + _PROPERTIES_LENGTH.size

_Delivery: TypeAlias = Callable[[], Coroutine[Any, Any, None]]

BatchKey: TypeAlias = tuple[str, MessageQueue | None, str | None, str | None]
"""Topic, queue, WAIT and TAGS of the messages that share a batch."""


def encoded_properties(properties: Mapping[str, str]) -> bytes:
    """Properties as a batch body holds them."""
    try:
        return encode_properties(properties)
    except (ProtocolError, TypeError) as error:
        raise InvalidMessageError(f"the message properties cannot be sent: {error}") from error


def batch_key(message: Message, queue: MessageQueue | None) -> BatchKey:
    properties = message.properties
    return message.topic, queue, properties.get(PROPERTY_WAIT), properties.get(PROPERTY_TAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorOptions:
    """How long and how much is held. The defaults are those of RocketMQ's ``autoBatch``."""

    max_delay_ms: int = 10
    max_batch_bytes: int = 32 * 1024
    # Of all batches together, until their results are there. Beyond it messages go alone.
    max_held_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, greatest in (
            ("max_delay_ms", _MAX_DELAY_MS),
            ("max_batch_bytes", _MAX_BATCH_BYTES),
            ("max_held_bytes", None),
        ):
            value = getattr(self, name)
            if value < 1 or (greatest is not None and value > greatest):
                most = "" if greatest is None else f" and at most {greatest}"
                raise ConfigError(f"{name} of the accumulator is {value}; at least 1{most}")


class Batch:
    """Messages that leave in one request."""

    __slots__ = (
        "futures",
        "ids",
        "key",
        "messages",
        "opened_ms",
        "parts",
        "plain_properties",
        "size_bytes",
    )

    def __init__(self, key: BatchKey, opened_ms: int) -> None:
        self.key = key
        self.opened_ms = opened_ms
        self.size_bytes = 0
        self.parts: list[bytes] = []
        self.ids: list[str] = []
        # For hooks; ``parts`` is what is sent.
        self.messages: list[Message] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        # Those of a message that has none but what the key says, up to the unique id.
        shared = {PROPERTY_WAIT: key[2] or "", PROPERTY_TAGS: key[3] or ""}
        self.plain_properties = encoded_properties(shared) + _UNIQUE_ID

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
        status, _, stored, queue, first, _, region, trace_on, _ = result
        stored_ids = stored.split(",")
        if len(stored_ids) != len(self.ids):
            # A topic that stores batches whole answers with one id for all.
            stored_ids = [stored] * len(self.ids)
        queue_offset = first
        for future, message_id, stored_id in zip(self.futures, self.ids, stored_ids, strict=True):
            if not future.done():
                future.set_result(
                    SendResult(
                        status, message_id, stored_id, queue, queue_offset, None, region, trace_on
                    )
                )
            queue_offset += 1


class HeldBatches:
    """The batches that wait, in the order in which they were opened."""

    __slots__ = ("_max_entry_bytes", "_of_queue", "_open", "_options", "_unsettled_bytes")

    def __init__(self, options: AccumulatorOptions, *, alone_from_bytes: int) -> None:
        """``alone_from_bytes``: bodies of this size and more are better sent alone."""
        self._options = options
        self._max_entry_bytes = min(alone_from_bytes, options.max_batch_bytes)
        self._open: dict[BatchKey, Batch] = {}
        # Of a chosen queue one batch is open at most: what is of another kind comes after it.
        self._of_queue: dict[MessageQueue, Batch] = {}
        self._unsettled_bytes = 0

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of messages that wait, or whose batch has no result yet."""
        return self._unsettled_bytes

    @property
    def next_due_ms(self) -> int | None:
        for batch in self._open.values():
            return batch.opened_ms + self._options.max_delay_ms
        return None

    def admits(self, message: Message) -> bool:
        """Whether a message may wait for others."""
        return (
            len(message.body) < self._max_entry_bytes
            and self._unsettled_bytes < self._options.max_held_bytes
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
        properties: bytes,
        future: "asyncio.Future[SendResult]",
    ) -> bool:
        """Put a message into an open batch; true if the batch is full now, and closed."""
        body = message.body
        size = _ENTRY_BYTES + len(body) + len(properties)
        batch.parts += (
            _ENTRY_HEAD.pack(size, 0, 0, message.flag, len(body)),
            body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
        batch.messages.append(message)
        batch.ids.append(message_id)
        batch.futures.append(future)
        batch.size_bytes += size
        self._unsettled_bytes += size
        if batch.size_bytes < self._options.max_batch_bytes:
            return False
        self._close(batch)
        return True

    def take_before(self, queue: MessageQueue, key: BatchKey | None) -> Batch | None:
        """The open batch of a queue, closed now, unless it is of this kind: what comes next for the
        queue stays behind it."""
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
        """Close the batches that are old enough."""
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
        """Close all batches."""
        ready = list(self._open.values())
        self._open.clear()
        self._of_queue.clear()
        return ready

    def settled(self, batch: Batch) -> None:
        """A batch has its result: its bytes count no longer."""
        self._unsettled_bytes -= batch.size_bytes


class Accumulator:
    """Holds messages and sends them in batches through ``send``.

    ``send_alone`` is for those that have to follow a batch, but not in another.
    """

    __slots__ = (
        "_clock",
        "_held",
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
        self._held = HeldBatches(options, alone_from_bytes=alone_from_bytes)
        self._send = send
        self._send_alone = send_alone
        self._clock = clock
        self._unique_id = unique_id
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._sending: set[asyncio.Task[None]] = set()
        # Of a chosen queue that something is on its way to: what comes after it.
        self._lines: dict[MessageQueue, deque[_Delivery]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, message: Message, queue: MessageQueue | None = None
    ) -> "asyncio.Future[SendResult] | None":
        """Hold a message for its batch. None: it has to be sent alone, which is up to the caller.

        The message must be valid; what comes after this call does not change what is sent.
        """
        held = self._held
        key = batch_key(message, queue)
        admits = held.admits(message)
        # Only in a chosen queue is there an order to keep.
        if queue is not None:
            before = held.take_before(queue, key if admits else None)
            if before is not None:
                self._dispatch(before)
            if not admits and queue in self._lines:
                alone: asyncio.Future[SendResult] = self._loop.create_future()
                self._in_line(queue, partial(self._deliver_alone, message, queue, alone))
                return alone
        if not admits:
            return None
        properties = message.properties
        message_id = properties.get(PROPERTY_UNIQUE_ID)
        has_id, others = message_id is not None, len(properties)
        if message_id is None:
            message_id = properties[PROPERTY_UNIQUE_ID] = self._unique_id()
        _, _, wait, tags = key
        encoded = None
        if has_id or self._namespace or others != (wait is not None) + (tags is not None):
            own = {**properties, PROPERTY_INSTANCE_ID: self._namespace}
            encoded = encoded_properties(own)
        batch = held.find(key)
        if batch is None:
            batch = held.open(key, self._clock.monotonic_ms())
            if self._timer is None:
                self._set_timer()
        if encoded is None:
            encoded = batch.plain_properties + message_id.encode() + _PAIR_END
        future: asyncio.Future[SendResult] = self._loop.create_future()
        if held.add(batch, message, message_id, encoded, future):
            self._dispatch(batch)
        return future

    async def flush(self) -> None:
        """Send what is held, and wait until nothing is without a result; cancelled, give it up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for batch in self._held.close():
            self._dispatch(batch)
        try:
            while self._sending:
                await asyncio.wait(self._sending)
        finally:
            await self._tasks.stop()

    def _set_timer(self) -> None:
        due_ms = self._held.next_due_ms
        if due_ms is not None:
            delay_ms = max(1, due_ms - self._clock.monotonic_ms())
            self._timer = self._loop.call_later(delay_ms / 1000, self._flush_due)

    def _flush_due(self) -> None:
        self._timer = None
        for batch in self._held.due(self._clock.monotonic_ms()):
            self._dispatch(batch)
        self._set_timer()

    def _dispatch(self, batch: Batch) -> None:
        delivery = partial(self._deliver, batch)
        if batch.queue is None:
            self._begin(delivery(), batch.topic)
        else:
            self._in_line(batch.queue, delivery)

    def _in_line(self, queue: MessageQueue, delivery: _Delivery) -> None:
        line = self._lines.get(queue)
        if line is not None:
            line.append(delivery)
            return
        self._lines[queue] = deque()
        self._begin(self._deliver_line(queue, delivery), queue.topic)

    def _begin(self, delivering: Coroutine[Any, Any, None], topic: str) -> None:
        task = self._tasks.spawn(delivering, f"batch to {topic}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver_line(self, queue: MessageQueue, delivery: _Delivery) -> None:
        """One after the other, as long as there are others."""
        line = self._lines[queue]
        try:
            await delivery()
        finally:
            if line:
                self._begin(self._deliver_line(queue, line.popleft()), queue.topic)
            else:
                del self._lines[queue]

    async def _deliver(self, batch: Batch) -> None:
        try:
            batch.succeed(await self._send(batch))
        except GoddardError as error:
            _fail(batch.futures, error)
        except Exception as error:
            _logger.exception(_UNFORESEEN, batch.topic)
            _fail(batch.futures, error)
        except asyncio.CancelledError:
            for future in batch.futures:
                future.cancel()
            raise
        finally:
            self._held.settled(batch)

    async def _deliver_alone(
        self, message: Message, queue: MessageQueue, future: "asyncio.Future[SendResult]"
    ) -> None:
        try:
            result = await self._send_alone(message, queue)
            if not future.done():
                future.set_result(result)
        except GoddardError as error:
            _fail((future,), error)
        except Exception as error:
            _logger.exception(_UNFORESEEN, message.topic)
            _fail((future,), error)
        except asyncio.CancelledError:
            future.cancel()
            raise


def _fail(futures: "Iterable[asyncio.Future[SendResult]]", error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
