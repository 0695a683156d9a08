"""The sink: each task sends its rows in batches, several concurrently, and waits for all of them.

Delivery is at least once: Spark repeats a failed task, and its rows are sent again with the same
idempotence keys (see ``rows``). A task also fails if a broker could not flush or replicate rows as
it is configured to. Rows of one task that name a queue or a sharding key are stored in order within
their queue; other rows go to any queue. After the first row that cannot be sent, the task fails and
sends nothing more.

While a write runs, an unreachable server is waited for, up to ``maxOutage``. When a write begins,
it is an error at once: for a batch the driver checks this before the tasks run, for a stream the
tasks of the first batch do. A broker name in a row that no name server knows is an error too.
"""

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from goddard.client.message import Message
from goddard.client.produce.encoding import MAX_BATCH_MESSAGES
from goddard.client.produce.producer import EncodedProducer
from goddard.client.produce.selectors import queue_of_hash
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.errors import GoddardError
from goddard.spark.arrays import Positions
from goddard.spark.options import SinkOptions
from goddard.spark.reading.cluster import ClusterClient, with_retries
from goddard.spark.rows import WriteContext, messages
from goddard.spark.writing.batching import destinations, requests, slices
from goddard.spark.writing.encode import MessageIds, bounds_of, encode
from goddard.transport.loop import new_event_loop

Target: TypeAlias = tuple[str, MessageQueue | None]
"""A topic, and a queue unless the producer chooses one."""

T = TypeVar("T")


@dataclass
class TaskCommit(WriterCommitMessage):
    """The result of a task."""

    rows: int


class NotDurableError(GoddardError):
    """A broker stored rows, but did not flush or replicate them as it is configured to."""

    def __init__(self, result: SendResult) -> None:
        super().__init__(
            f"broker {result.queue.broker_name} answered {result.status.name}: the messages are "
            "stored, but not yet on disk or on a slave as configured. The task fails so that Spark "
            "retries it; check the disk and the slaves of the broker"
        )


class BatchWriter(DataSourceArrowWriter):
    """``df.write``."""

    def __init__(self, options: SinkOptions) -> None:
        """Runs on the driver; raises an error if the cluster is unreachable."""
        self._options = options
        # Shared by all tasks of this write, including retried ones.
        self._write_id = uuid.uuid4().hex
        with ClusterClient(options.connection) as cluster:
            cluster.check_writable(options.topic)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        return TaskCommit(write_batches(iterator, self._options, key_prefix(self._write_id)))


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        prefix = key_prefix("stream")
        is_first = _batch_id() == "0"
        if is_first:
            with ClusterClient(self._options.connection) as cluster:
                cluster.check_writable(self._options.topic)
        return TaskCommit(
            write_batches(iterator, self._options, prefix, tolerates_outages=not is_first)
        )


def write_batches(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    key_prefix: str,
    *,
    tolerates_outages: bool = False,
) -> int:
    """Send all rows and return their number. Runs in a task."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_write(batches, options, key_prefix, tolerates_outages=tolerates_outages))


async def _write(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    key_prefix: str,
    *,
    tolerates_outages: bool,
) -> int:
    producer = await open_producer(options)
    sender = RowSender(producer, options, key_prefix, tolerates_outages=tolerates_outages)
    try:
        rows = 0
        # Spark may take long to produce rows: a thread waits, so that pending requests continue.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            await sender.send(batch, rows)
            rows += batch.num_rows
        await sender.finish()
    finally:
        await sender.close()
    return rows


def key_prefix(write_id: str) -> str:
    """Query, batch and partition of this task; the same when Spark retries it."""
    task = TaskContext.get()
    if task is None:
        return f"{write_id}-0-0"
    query = task.getLocalProperty("sql.streaming.queryId") or write_id
    return f"{query}-{_batch_id()}-{task.partitionId()}"


def _batch_id() -> str:
    task = TaskContext.get()
    return (None if task is None else task.getLocalProperty("streaming.sql.batchId")) or "0"


async def open_producer(options: SinkOptions) -> EncodedProducer:
    connection = options.connection
    producer = EncodedProducer(
        options.producer_group,
        name_servers=connection.name_servers,
        send_timeout_ms=connection.request_timeout_ms,
        retry_when_not_stored=True,
        **connection.keywords,
    )
    await producer.start()
    return producer


class RowSender:
    """Sends rows in batches, a bounded number of requests concurrently.

    ``tolerates_outages``: the stream has written before, so unreachable brokers are waited for.
    """

    def __init__(
        self,
        producer: EncodedProducer,
        options: SinkOptions,
        key_prefix: str,
        *,
        tolerates_outages: bool = False,
        requests_in_flight: int | None = None,
    ) -> None:
        self._producer = producer
        self._options = options
        self._context = WriteContext(
            options.topic,
            key_prefix,
            producer.session.options.namespace,
            producer.options.max_message_bytes,
        )
        self._tolerates_outages = tolerates_outages
        self._permits = asyncio.Semaphore(requests_in_flight or options.requests_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: GoddardError | None = None
        self._queues: dict[str, list[MessageQueue]] = {}
        # Requests to one queue are sent one after the other, so that its messages stay in order.
        self._queue_locks: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def send(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Start sending rows; requests may still be pending when this returns."""
        for part, rows in slices(batch, first_row):
            if "delayLevel" not in batch.schema.names:
                await self._send_in_batches(part, rows)
                continue
            levels = pc.coalesce(part.column("delayLevel"), pa.scalar(0))
            is_delayed = pc.not_equal(levels, pa.scalar(0))
            mask = is_delayed.to_numpy(zero_copy_only=False)
            # Batches cannot contain delayed messages.
            delayed, delayed_rows = part.filter(is_delayed), rows[mask]
            payloads = messages(delayed, delayed_rows, self._context) if mask.any() else []
            await self._send_individually(delayed, delayed_rows, payloads)
            await self._send_in_batches(part.filter(pc.invert(is_delayed)), rows[~mask])

    async def _send_individually(
        self, part: pa.RecordBatch, rows: Positions, payloads: Sequence[Message]
    ) -> None:
        if not len(rows):
            return
        targets, indices = await self._targets(part, rows)
        for row, index, message in zip(rows.tolist(), indices.tolist(), payloads, strict=True):
            await self._permits.acquire()
            self._start_send(message, targets[index], row, row)

    async def _send_in_batches(self, part: pa.RecordBatch, rows: Positions) -> None:
        if not len(rows):
            return
        ids = MessageIds(*self._producer.session.reserve_ids(len(rows)))
        entries = encode(part, rows, self._context, ids)
        targets, indices = await self._targets(part, rows)
        order = np.arange(len(rows))
        if len(targets) > 1:
            order = np.argsort(indices, kind="stable")
            entries = entries.take(pa.array(order))
            rows, indices = rows[order], indices[order]
        bounds, data = bounds_of(entries), entries.buffers()[2]
        max_bytes = min(self._options.batch_bytes, self._producer.options.max_message_bytes)
        for request in requests(bounds, indices, max_bytes, MAX_BATCH_MESSAGES):
            await self._permits.acquire()
            payload: Message | bytes
            if request.stop - request.start == 1:
                # A single message is not sent as a batch; it may be compressed.
                row = part.slice(int(order[request.start]), 1)
                (payload,) = messages(row, rows[request.start : request.stop], self._context)
            else:
                start, stop = int(bounds[request.start]), int(bounds[request.stop])
                payload = data.slice(start, stop - start).to_pybytes()
            first, last = int(rows[request.start]), int(rows[request.stop - 1])
            self._start_send(payload, targets[request.target], first, last)

    async def finish(self) -> None:
        """Wait until every message is stored; raise the first failure."""
        self._raise_failure()
        while self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failure()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.stop()

    async def _targets(
        self, part: pa.RecordBatch, rows: Positions
    ) -> tuple[list[Target], Positions]:
        """The distinct targets of rows, and for each row the index of its target."""
        found, indices = destinations(part, self._options.topic or "")
        target_indices: dict[Target, int] = {}
        of_destination = []
        for number, (topic, broker_name, queue_id, sharding_key) in enumerate(found):
            queue = None
            if broker_name is not None and queue_id is not None:
                queue = MessageQueue(topic, broker_name, queue_id)
            elif sharding_key is not None:
                try:
                    queue = queue_of_hash(await self._queues_of(topic), sharding_key)
                except GoddardError as error:
                    its_rows = rows[indices == number]
                    self._record_failure(int(its_rows[0]), int(its_rows[-1]), error)
                    self._raise_failure()
            target = (topic, queue)
            of_destination.append(target_indices.setdefault(target, len(target_indices)))
        return list(target_indices), np.array(of_destination, np.int64)[indices]

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic; queried once, so that a sharding key keeps its queue."""
        queues = self._queues.get(topic)
        if queues is None:
            retry_for_ms = self._options.connection.max_outage_ms if self._tolerates_outages else 0
            found = await self._with_retries(
                lambda: self._producer.publish_queues(topic), retry_for_ms
            )
            queues = self._queues[topic] = sorted(found)
        return queues

    def _start_send(self, payload: Message | bytes, target: Target, first: int, last: int) -> None:
        """Send in a task; the caller has acquired a permit."""
        self._raise_failure()
        task = asyncio.ensure_future(self._send_in_order(payload, target, first, last))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._permits.release()
        if not task.cancelled():
            # The failure is recorded already; this only marks the exception as retrieved.
            task.exception()

    async def _send_in_order(
        self, payload: Message | bytes, target: Target, first: int, last: int
    ) -> None:
        _, queue = target
        async with contextlib.nullcontext() if queue is None else self._queue_locks[queue]:
            try:
                await self._send_payload(payload, target)
            except Exception as error:
                # Recorded before the lock is released, so that no later rows of the queue are
                # stored. Any exception counts: no row may be lost silently.
                self._record_failure(first, last, error)
                raise

    def _record_failure(self, first: int, last: int, error: Exception) -> None:
        """Record the first failure."""
        if self._failure is None:
            prefix = self._context.key_prefix
            rows = f"row {prefix}-{first}"
            if first != last:
                rows = f"rows {prefix}-{first} to {prefix}-{last}"
            self._failure = GoddardError(f"{rows} could not be sent: {error}")
            self._failure.__cause__ = error

    async def _with_retries(self, request: Callable[[], Awaitable[T]], retry_for_ms: int) -> T:
        """Like ``with_retries``, but stops when the write has failed."""

        async def attempt() -> T:
            self._raise_failure()
            return await request()

        return await with_retries(self._options.connection, attempt, retry_for_ms=retry_for_ms)

    async def _send_payload(self, payload: Message | bytes, target: Target) -> None:
        _, queue = target

        async def attempt() -> None:
            result = await self._send_once(payload, target)
            if result.status is not SendStatus.SEND_OK:
                # Not retried here, because each attempt stores a copy.
                raise NotDurableError(result)

        waits = queue is None or self._tolerates_outages or await self._broker_exists(queue)
        await self._with_retries(attempt, self._options.connection.max_outage_ms if waits else 0)

    async def _send_once(self, payload: Message | bytes, target: Target) -> SendResult:
        topic, queue = target
        if isinstance(payload, Message):
            return await self._producer.send(payload, queue=queue)
        return await self._producer.send_encoded(topic, payload, queue=queue)

    async def _broker_exists(self, queue: MessageQueue) -> bool:
        """Whether the topic has a broker of that name; waiting for an unknown name is useless."""
        try:
            queues = await self._queues_of(queue.topic)
        except GoddardError:
            # The send fails for the same reason, and its error names the rows.
            return True
        return any(each.broker_name == queue.broker_name for each in queues)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
