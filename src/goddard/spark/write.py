"""Writing: each task sends its rows in batches, several under way at once, and waits for them all.

At least once: a task that fails is repeated by Spark, and what it had sent is sent again, with the
same idempotence keys (see ``rows``). Order holds within a queue for rows of one task that name
their queue or sharding key; other rows go to any queue.

A server that goes away is waited for, but not when a write begins: then it is an error at once. Of
a batch the driver finds out before there are tasks, of a stream the tasks of its first batch do. So
is a broker that a row names and no name server knows.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from goddard.client.message import Message
from goddard.client.producer import Producer
from goddard.client.selectors import by_hash
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.spark.cluster import Cluster, tried
from goddard.spark.options import SinkOptions
from goddard.spark.rows import ROW_PROPERTY, Outgoing, messages
from goddard.transport.loop import new_event_loop

# What a message takes beside body and properties, more or less.
_MESSAGE_BYTES: Final = 100


@dataclass
class Sent(WriterCommitMessage):
    """What a task says when it is done."""

    rows: int


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
        sender = runner.run(_open(options, is_going_on=is_going_on))
        try:
            rows = 0
            for batch in batches:
                runner.run(
                    sender.send(
                        messages(batch, topic=options.topic, identity=identity, first_row=rows)
                    )
                )
                rows += batch.num_rows
            runner.run(sender.finish())
        finally:
            runner.run(sender.close())
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


async def _open(options: SinkOptions, *, is_going_on: bool) -> "Sender":
    reach = options.connecting
    producer = Producer(
        options.producer_group,
        name_servers=reach.name_servers,
        send_timeout_ms=reach.request_timeout_ms,
        **reach.keywords,
    )
    await producer.start()
    return Sender(producer, options, is_going_on=is_going_on)


class Sender:
    """Sends messages in batches, a bounded number of them at once.

    ``is_going_on``: a stream that wrote before, so that brokers may be away for a while.
    """

    def __init__(
        self, producer: Producer, options: SinkOptions, *, is_going_on: bool = False
    ) -> None:
        self._producer = producer
        self._options = options
        self._is_going_on = is_going_on
        self._room = asyncio.Semaphore(options.requests_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: GoddardError | None = None
        self._queues: dict[str, list[MessageQueue]] = {}
        # Requests of one queue follow each other, so that its messages stay in order.
        self._turns: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def send(self, outgoing: Iterable[Outgoing]) -> None:
        """Take messages over; some may still be under way when this returns."""
        held: dict[tuple[str, MessageQueue | None], list[Message]] = defaultdict(list)
        sizes: dict[tuple[str, MessageQueue | None], int] = defaultdict(int)
        for each in outgoing:
            message = each.message
            queue = each.queue
            if queue is None and each.sharding_key is not None:
                queue = await self._queue_of(message, each.sharding_key)
            place = message.topic, queue
            if message.delay_level:
                # What is delayed is stored elsewhere first, and not in batches.
                await self._launch([message], queue)
                continue
            held[place].append(message)
            sizes[place] += _size(message)
            if sizes[place] >= self._options.batch_bytes:
                await self._launch(held.pop(place), queue)
                del sizes[place]
        for (_, queue), rest in held.items():
            await self._launch(rest, queue)

    async def finish(self) -> None:
        """Wait until every message is stored."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._check()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.stop()

    async def _queue_of(self, message: Message, key: str) -> MessageQueue:
        return by_hash(await self._queues_of(message.topic), message, key)

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic when it was first written to."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = sorted(await self._producer.publish_queues(topic))
            self._queues[topic] = queues
        return queues

    async def _launch(self, batch: list[Message], queue: MessageQueue | None) -> None:
        await self._room.acquire()
        self._check()
        task = asyncio.ensure_future(self._carry(batch, queue))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, batch))

    def _done(self, batch: list[Message], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()
        error = None if task.cancelled() else task.exception()
        # Whatever it is: no row may get lost without a word.
        if error is not None and self._failure is None:
            first, last = (each.properties[ROW_PROPERTY] for each in (batch[0], batch[-1]))
            rows = f"row {first}" if first == last else f"rows {first} to {last}"
            self._failure = GoddardError(f"{rows} could not be sent: {error}")
            self._failure.__cause__ = error

    async def _carry(self, batch: list[Message], queue: MessageQueue | None) -> None:
        if queue is None:
            await self._deliver(batch, None)
        else:
            async with self._turns[queue]:
                await self._deliver(batch, queue)

    async def _deliver(self, batch: list[Message], queue: MessageQueue | None) -> None:
        async def once() -> None:
            if len(batch) == 1:
                await self._producer.send(batch[0], queue=queue)
            else:
                await self._producer.send_batch(batch, queue=queue)

        reach = self._options.connecting
        is_known = queue is None or self._is_going_on or await self._is_known(queue)
        await tried(reach, once, patience_ms=reach.max_outage_ms if is_known else 0)

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


def _size(message: Message) -> int:
    properties = sum(len(name) + len(value) + 2 for name, value in message.properties.items())
    return len(message.body) + properties + _MESSAGE_BYTES
