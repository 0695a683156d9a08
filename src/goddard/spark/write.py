"""Writing: each task sends its rows in batches, several under way at once, and waits for them all.

At least once: a task that fails is repeated by Spark, and what it had sent is sent again, with the
same idempotence keys (see ``rows``). A task fails as well when a broker has stored rows less safely
than it is configured to: not on its disk yet, not at its slaves. Order holds within a queue for
rows of one task that name their queue or sharding key; other rows go to any queue. When rows cannot
be sent, nothing more is.

A server that goes away is waited for, but not when a write begins: then it is an error at once. Of
a batch the driver finds out before there are tasks, of a stream the tasks of its first batch do. So
is a broker that a row names and no name server knows.
"""

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
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
from goddard.client.produce.producer import Producer
from goddard.client.produce.selectors import queue_of_hash
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.errors import GoddardError
from goddard.spark.arrays import Positions
from goddard.spark.cluster import Cluster, tried
from goddard.spark.entries import Ids, bounds_of, encode
from goddard.spark.options import SinkOptions
from goddard.spark.rows import Writing, messages
from goddard.spark.sharing import destinations, pieces, shares
from goddard.transport.loop import new_event_loop

_Target: TypeAlias = tuple[str, MessageQueue | None]
"""A topic, and the queue if it is not for the producer to choose."""

T = TypeVar("T")


@dataclass
class Sent(WriterCommitMessage):
    """What a task says when it is done."""

    rows: int


class UnsafeError(GoddardError):
    """A broker has the rows, but not yet where it is configured to have them."""

    def __init__(self, result: SendResult) -> None:
        super().__init__(
            f"{result.queue.broker_name} has stored them less safely than it is configured to: "
            f"{result.status.name}; what became of its slaves, or of its disk?"
        )


class BatchWriter(DataSourceArrowWriter):
    """``df.write``."""

    def __init__(self, options: SinkOptions) -> None:
        """On the driver; an error if there is nobody to write to."""
        self._options = options
        # The tasks of this write have it in common, also when repeated.
        self._job = uuid.uuid4().hex
        with Cluster(options.connecting) as cluster:
            cluster.check_writing(options.topic)

    def write(self, iterator: Iterator[Any]) -> Sent:
        return Sent(write_batches(iterator, self._options, _identity(self._job)))


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Sent:
        identity = _identity("stream")
        is_first = _batch_id() == "0"
        if is_first:
            with Cluster(self._options.connecting) as cluster:
                cluster.check_writing(self._options.topic)
        return Sent(write_batches(iterator, self._options, identity, is_going_on=not is_first))


def write_batches(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    identity: str,
    *,
    is_going_on: bool = False,
) -> int:
    """Send all rows; what a task does. How many there were."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_write(batches, options, identity, is_going_on=is_going_on))


async def _write(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, identity: str, *, is_going_on: bool
) -> int:
    sender = await _open(options, identity, is_going_on=is_going_on)
    try:
        rows = 0
        # Rows may be long in coming: a thread waits for them, and requests under way go on.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            await sender.send(batch, rows)
            rows += batch.num_rows
        await sender.finish()
    finally:
        await sender.close()
    return rows


def _identity(job: str) -> str:
    """Query, batch and partition of this task: the same when Spark repeats it."""
    task = TaskContext.get()
    if task is None:
        return f"{job}-0-0"
    query = task.getLocalProperty("sql.streaming.queryId") or job
    return f"{query}-{_batch_id()}-{task.partitionId()}"


def _batch_id() -> str:
    task = TaskContext.get()
    return (None if task is None else task.getLocalProperty("streaming.sql.batchId")) or "0"


async def _open(options: SinkOptions, identity: str, *, is_going_on: bool) -> "Sender":
    reach = options.connecting
    producer = Producer(
        options.producer_group,
        name_servers=reach.name_servers,
        send_timeout_ms=reach.request_timeout_ms,
        retry_when_not_stored=True,
        **reach.keywords,
    )
    await producer.start()
    return Sender(producer, options, identity, is_going_on=is_going_on)


class Sender:
    """Sends rows in batches, a bounded number of them at once.

    ``is_going_on``: a stream that wrote before, so that brokers may be away for a while.
    """

    def __init__(
        self, producer: Producer, options: SinkOptions, identity: str, *, is_going_on: bool = False
    ) -> None:
        self._producer = producer
        self._options = options
        self._writing = Writing(
            options.topic,
            identity,
            producer.session.options.namespace,
            producer.options.max_message_bytes,
        )
        self._is_going_on = is_going_on
        self._room = asyncio.Semaphore(options.requests_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: GoddardError | None = None
        self._queues: dict[str, list[MessageQueue]] = {}
        # Requests of one queue follow each other, so that its messages stay in order.
        self._turns: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def send(self, batch: pa.RecordBatch, first_row: int) -> None:
        """Take rows over; some may still be under way when this returns."""
        for piece, rows in pieces(batch, first_row):
            if "delayLevel" not in batch.schema.names:
                await self._send_together(piece, rows)
                continue
            levels = pc.coalesce(piece.column("delayLevel"), pa.scalar(0))
            is_delayed = pc.not_equal(levels, pa.scalar(0))
            chosen = is_delayed.to_numpy(zero_copy_only=False)
            # What is delayed is stored elsewhere first, and not in batches.
            await self._send_singly(piece.filter(is_delayed), rows[chosen])
            await self._send_together(piece.filter(pc.invert(is_delayed)), rows[~chosen])

    async def _send_singly(self, piece: pa.RecordBatch, rows: Positions) -> None:
        if not len(rows):
            return
        parcels = list(messages(piece, rows, self._writing))
        targets, which = await self._targets(piece, rows)
        for number, target, message in zip(rows.tolist(), which.tolist(), parcels, strict=True):
            await self._room.acquire()
            self._launch(message, targets[target], number, number)

    async def _send_together(self, piece: pa.RecordBatch, rows: Positions) -> None:
        if not len(rows):
            return
        ids = Ids(*self._producer.session.reserve_ids(len(rows)))
        entries = encode(piece, rows, self._writing, ids)
        targets, which = await self._targets(piece, rows)
        order = np.arange(len(rows))
        if len(targets) > 1:
            order = np.argsort(which, kind="stable")
            entries = entries.take(pa.array(order))
            rows, which = rows[order], which[order]
        bounds, data = bounds_of(entries), entries.buffers()[2]
        max_bytes = min(self._options.batch_bytes, self._producer.options.max_message_bytes)
        for share in shares(bounds, which, max_bytes, MAX_BATCH_MESSAGES):
            await self._room.acquire()
            parcel: Message | bytes
            if share.stop - share.start == 1:
                # Alone it is no batch, and may be compressed.
                alone = piece.slice(int(order[share.start]), 1)
                (parcel,) = messages(alone, rows[share.start : share.stop], self._writing)
            else:
                start, stop = int(bounds[share.start]), int(bounds[share.stop])
                parcel = data.slice(start, stop - start).to_pybytes()
            first, last = int(rows[share.start]), int(rows[share.stop - 1])
            self._launch(parcel, targets[share.target], first, last)

    async def finish(self) -> None:
        """Wait until every message is stored, or one cannot be."""
        self._check()
        while self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self._check()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.stop()

    async def _targets(
        self, piece: pa.RecordBatch, rows: Positions
    ) -> tuple[list[_Target], Positions]:
        """Topics and queues that the rows go to, and for each row the number of its one."""
        found, which = destinations(piece, self._options.topic or "")
        numbers: dict[_Target, int] = {}
        of_destination = []
        for number, (topic, broker_name, queue_id, sharding_key) in enumerate(found):
            queue = None
            if broker_name is not None and queue_id is not None:
                queue = MessageQueue(topic, broker_name, queue_id)
            elif sharding_key is not None:
                try:
                    queue = queue_of_hash(await self._queues_of(topic), sharding_key)
                except GoddardError as error:
                    its_rows = rows[which == number]
                    self._fail(int(its_rows[0]), int(its_rows[-1]), error)
                    self._check()
            of_destination.append(numbers.setdefault((topic, queue), len(numbers)))
        return list(numbers), np.array(of_destination, np.int64)[which]

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic when it was first written to."""
        queues = self._queues.get(topic)
        if queues is None:
            patience_ms = self._options.connecting.max_outage_ms if self._is_going_on else 0
            found = await self._tried(lambda: self._producer.publish_queues(topic), patience_ms)
            queues = self._queues[topic] = sorted(found)
        return queues

    def _launch(self, parcel: Message | bytes, target: _Target, first: int, last: int) -> None:
        """Send what there is room for."""
        self._check()
        task = asyncio.ensure_future(self._carry(parcel, target, first, last))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled():
            # It is noted already; asyncio only wants to see that somebody has asked.
            task.exception()

    async def _carry(self, parcel: Message | bytes, target: _Target, first: int, last: int) -> None:
        _, queue = target
        async with contextlib.nullcontext() if queue is None else self._turns[queue]:
            try:
                await self._deliver(parcel, target)
            except Exception as error:
                # Whatever it is: no row may get lost without a word. And noted before the turn is
                # the next one's, or rows would be stored that come after those.
                self._fail(first, last, error)
                raise

    def _fail(self, first: int, last: int, error: Exception) -> None:
        """Note that these rows cannot be sent, unless others could not before them."""
        if self._failure is None:
            identity = self._writing.identity
            rows = f"row {identity}-{first}"
            if first != last:
                rows = f"rows {identity}-{first} to {identity}-{last}"
            self._failure = GoddardError(f"{rows} could not be sent: {error}")
            self._failure.__cause__ = error

    async def _tried(self, ask: Callable[[], Awaitable[T]], patience_ms: int) -> T:
        """As ``tried``, but for nothing when the write has failed already."""

        async def once() -> T:
            self._check()
            return await ask()

        return await tried(self._options.connecting, once, patience_ms=patience_ms)

    async def _deliver(self, parcel: Message | bytes, target: _Target) -> None:
        topic, queue = target

        async def once() -> None:
            if isinstance(parcel, Message):
                result = await self._producer.send(parcel, queue=queue)
            else:
                result = await self._producer.send_encoded(topic, parcel, queue=queue)
            if result.status is not SendStatus.SEND_OK:
                # Not tried again here: each try leaves a copy.
                raise UnsafeError(result)

        is_known = queue is None or self._is_going_on or await self._is_known(queue)
        await self._tried(once, self._options.connecting.max_outage_ms if is_known else 0)

    async def _is_known(self, queue: MessageQueue) -> bool:
        """Whether there was a broker of that name; one that never was does not come back."""
        try:
            queues = await self._queues_of(queue.topic)
        except GoddardError:
            # Sending meets with the same, and says it of its rows.
            return True
        return any(each.broker_name == queue.broker_name for each in queues)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
