"""Sends trace records to the trace topic, in the background.

Records are collected in a queue of limited length. Records beyond it are dropped and counted; no
caller waits. They are sent when a batch is full, or after five seconds, by a producer of the
tracer's own. ``append`` may be called from any thread; everything else belongs to the event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

from goddard.client.checks import check_range
from goddard.client.message import Message
from goddard.client.trace.records import TraceRecord, encode_trace, trace_keys
from goddard.client.values import SendResult
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.names import TRACE_TOPIC, topic_problem
from goddard.transport.tasks import Tasks, finish

_logger: Final = logging.getLogger("goddard.client")

# RocketMQ's values: group of a tracer's producer, size of a trace message, length of the queue.
GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
SEND_TIMEOUT_MS: Final = 5_000
MAX_TRACE_BYTES: Final = 128_000
_MAX_QUEUED: Final = 2048
_MAX_BATCH: Final = 20
_FLUSH_SECONDS: Final = 5.0
# The properties of a message are limited to 32 KiB; in a trace message most of them are keys.
_MAX_KEYS_CHARS: Final = 16_384
# While so many sends have no result, no other batch is taken from the queue.
_MAX_SENDING: Final = 32

_numbers: Final = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Where traces go, and how many records share a message."""

    topic: str = TRACE_TOPIC
    batch_size: int = 10

    def __post_init__(self) -> None:
        if (problem := topic_problem(self.topic)) is not None:
            raise ConfigError(f"the topic for traces is {self.topic!r}: {problem}")
        check_range("batch_size of the trace", self.batch_size, 1, _MAX_BATCH)


class TraceProducer(Protocol):
    """The producer that sends the traces."""

    async def start(self) -> Any: ...

    async def stop(self) -> None: ...

    def send_soon(self, message: Message) -> Awaitable[SendResult]: ...


def trace_group(group: str, kind: str) -> str:
    """The group of a tracer's own producer; ``kind`` is PRODUCE or CONSUME."""
    return f"{GROUP_PREFIX}-{group}-{kind}-{next(_numbers)}"


class Tracer:
    """Takes trace records and sends them."""

    def __init__(
        self,
        options: TraceOptions,
        producer: TraceProducer,
        *,
        flush_seconds: float = _FLUSH_SECONDS,
    ) -> None:
        self._options = options
        self._producer = producer
        self._flush_seconds = flush_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        # Whether the producer runs, even if the task that sends has failed.
        self._is_started = False
        self._tasks = Tasks(_logger, logging.DEBUG)
        self._queue: deque[TraceRecord] = deque()
        self._wake = asyncio.Event()
        self._is_woken = False
        self._sends = Tasks(_logger, logging.DEBUG)
        # Those of the sends that have no result yet.
        self._sending: set[asyncio.Task[None]] = set()
        self.dropped = 0

    @property
    def topic(self) -> str:
        return self._options.topic

    async def start(self) -> None:
        """Start sending. If the producer cannot start, the client works without traces."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._producer.start()
        except GoddardError as error:
            _logger.warning("the trace dispatcher does not start: %s", error)
            return
        self._is_started = True
        self._tasks.spawn(self._run(), "Trace")

    async def stop(self) -> None:
        """Send the queued records, and stop."""
        self._loop = None
        if self._is_started:
            self._is_started = False
            await finish(self._tasks.stop, self._send_rest, self._producer.stop)

    async def _send_rest(self) -> None:
        try:
            await self._send_batches(min_records=1)
            while self._sending:
                await asyncio.wait(self._sending)
        finally:
            await self._sends.stop()

    def append(self, record: TraceRecord) -> bool:
        """Add a record to the queue; false if the queue is full and the record is dropped."""
        queue, loop = self._queue, self._loop
        if loop is None or len(queue) >= _MAX_QUEUED:
            self.dropped += 1
            return False
        queue.append(record)
        # Cleared before the records are taken, so that each later record wakes the task again.
        if len(queue) >= self._options.batch_size and not self._is_woken:
            self._is_woken = True
            loop.call_soon_threadsafe(self._wake.set)
        return True

    async def _run(self) -> None:
        while True:
            min_records = self._options.batch_size
            try:
                async with asyncio.timeout(self._flush_seconds):
                    await self._wake.wait()
            except TimeoutError:
                min_records = 1
            self._wake.clear()
            self._is_woken = False
            await self._send_batches(min_records=min_records)

    async def _send_batches(self, *, min_records: int) -> None:
        queue = self._queue
        while len(queue) >= min_records:
            # Before records are taken: if this task is cancelled here, none is lost.
            while len(self._sending) >= _MAX_SENDING:
                await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
            records = [queue.popleft() for _ in range(min(len(queue), self._options.batch_size))]
            for message, record_count in trace_messages(self._options.topic, records):
                task = self._sends.spawn(self._send(message, record_count), "send traces")
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, message: Message, record_count: int) -> None:
        try:
            await self._producer.send_soon(message)
        except GoddardError as error:
            self.dropped += record_count
            _logger.warning("send trace data failed: %s", error)


def trace_messages(topic: str, records: Iterable[TraceRecord]) -> Iterator[tuple[Message, int]]:
    """Pack records into messages within the limits for size and keys; with each message, its number
    of records."""
    lines: list[str] = []
    keys: dict[str, None] = {}
    size = keys_chars = 0
    for record in records:
        line = encode_trace([record])
        line_bytes = len(line.encode("utf-8", "replace"))
        new_keys = [key for key in trace_keys(record) if key not in keys]
        new_chars = sum(map(len, new_keys)) + len(new_keys)
        if lines and (
            size + line_bytes > MAX_TRACE_BYTES or keys_chars + new_chars > _MAX_KEYS_CHARS
        ):
            yield _message(topic, lines, keys), len(lines)
            lines, keys, size, keys_chars = [], {}, 0, 0
        lines.append(line)
        keys.update(dict.fromkeys(new_keys))
        size += line_bytes
        keys_chars += new_chars
    if lines:
        yield _message(topic, lines, keys), len(lines)


def _message(topic: str, lines: list[str], keys: dict[str, None]) -> Message:
    return Message(topic, "".join(lines).encode("utf-8", "replace"), keys=keys)
