"""Streams that write each row exactly once, with RocketMQ's transactional (half) messages.

Tasks send their rows as half messages, which no consumer receives. When all tasks are complete,
Spark calls ``commit`` on the driver. It writes a decision to the transaction topic, which names all
half messages of the batch, and then commits each of them. So a batch is undecided or decided:

- Undecided, when a task or the driver is killed: the repeated batch sends new half messages. Nobody
  commits the old ones; brokers discard them after ``transactionCheckMax`` checks.
- Decided: the tasks of the repeated batch send nothing, and ``commit`` commits the half messages of
  the decision that are not in their topics yet.

The transaction topic belongs to one query and has one queue, so the order of decisions is the same
for every reader. If two drivers run one query, the first decision about a batch counts; the other
driver fails. A decision has the number of rows and a checksum of their content, because a restored
checkpoint may repeat a batch with other rows: these are refused, never skipped.
"""

import asyncio
import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from typing_extensions import override

from goddard.client import broker_api
from goddard.client.message import Message
from goddard.client.produce.producer import EncodedProducer
from goddard.client.session import Session
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.errors import ConfigError, GoddardError
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers.message import EndTransactionRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    TransactionType,
    encode_properties,
)
from goddard.spark.options import OffsetMode, OffsetSpec, SinkOptions, SourceOptions
from goddard.spark.reading.cluster import ClusterClient, with_retries
from goddard.spark.reading.offsets import QueueRange
from goddard.spark.reading.reader import QueueRangePartition, read_ranges
from goddard.spark.reading.sessions import worker_session
from goddard.spark.rows import ROW_PROPERTY, messages
from goddard.spark.writing.batching import slices
from goddard.spark.writing.writer import RowSender, Target, key_prefix, open_producer
from goddard.transport.loop import new_event_loop

# A half is a request of its own, so more of them are sent concurrently than batches.
_HALVES_PER_PERMIT: Final = 16
_HALVES_PER_PART: Final = 5_000
_COMMITS_IN_FLIGHT: Final = 64
_POLL_SECONDS: Final = 0.01
_MAX_CHECKSUM: Final = 2**64 - 1
# An index finds messages of any time.
_END_OF_TIME_MS: Final = 2**63 - 1
_SAME_HASH: Final = 64
_VERSION: Final = 1


class Half(NamedTuple):
    """A half message that is stored, and what its broker needs to commit it."""

    topic: str
    broker_name: str
    message_id: str
    transaction_id: str | None
    table_offset: int
    log_offset: int


class _Entry(msgspec.Struct, frozen=True):
    """A message of the transaction topic: ``part`` counts from 0; the last part is the decision."""

    version: int
    query: str
    batch: int
    attempt: str
    part: int
    parts: int
    rows: int
    checksum: int
    halves: list[Half]

    @property
    def is_decision(self) -> bool:
        return self.part == self.parts - 1


@dataclass
class TransactionCommit(WriterCommitMessage):
    """The result of a task; ``halves`` is None if the batch was decided before it ran."""

    query: str
    rows: int
    checksum: int
    halves: list[Half] | None


class TransactionStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream`` with ``deliveryGuarantee=exactly-once``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> TransactionCommit:
        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId") if task is not None else None
        batch = task.getLocalProperty("streaming.sql.batchId") if task is not None else None
        if query is None or batch is None:
            raise GoddardError("deliveryGuarantee=exactly-once is for streams")
        return write_halves(iterator, self._options, query, int(batch), key_prefix(query))

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit_batch(self._options, _commits(messages), batchId)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        roll_back(self._options, _commits(messages), batchId)


def _commits(given: Iterable[WriterCommitMessage | None]) -> list[TransactionCommit]:
    return [each for each in given if isinstance(each, TransactionCommit)]


# Tasks


def write_halves(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, query: str, batch: int, prefix: str
) -> TransactionCommit:
    """Send all rows as half messages, unless the batch is decided. Runs in a task."""
    last = DecisionLog(options).last(query)
    if last is not None and last.batch > batch:
        raise GoddardError(
            f"batch {batch} of query {query} cannot be written exactly once: the transaction topic "
            f"has a decision about batch {last.batch}, so the checkpoint is older than the topic. "
            "Use another transactionTopic to write the rows of the batch again"
        )
    is_decided = last is not None and last.batch == batch
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sender = runner.run(_write(batches, options, prefix, is_decided=is_decided, batch=batch))
    halves = None if is_decided else sender.halves
    return TransactionCommit(query, sender.rows, sender.checksum, halves)


async def _write(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    prefix: str,
    *,
    is_decided: bool,
    batch: int,
) -> "HalfSender":
    producer = await open_producer(options)
    sender = HalfSender(
        producer, options, prefix, is_decided=is_decided, tolerates_outages=batch > 0
    )
    try:
        while (each := await asyncio.to_thread(next, batches, None)) is not None:
            await sender.send(each, sender.rows)
        await sender.finish()
    finally:
        await sender.close()
    return sender


class HalfSender(RowSender):
    """Sends each row as a half message; only counts the rows of a batch that is decided."""

    def __init__(
        self,
        producer: EncodedProducer,
        options: SinkOptions,
        prefix: str,
        *,
        is_decided: bool,
        tolerates_outages: bool,
    ) -> None:
        in_flight = options.requests_in_flight * _HALVES_PER_PERMIT
        super().__init__(
            producer,
            options,
            prefix,
            tolerates_outages=tolerates_outages,
            requests_in_flight=in_flight,
        )
        self._is_decided = is_decided
        self.halves: list[Half] = []
        self.rows = 0
        self.checksum = 0

    @override
    async def send(self, batch: pa.RecordBatch, first_row: int) -> None:
        for part, rows in slices(batch, first_row):
            payloads = messages(part, rows, self._context)
            self.rows += len(payloads)
            self.checksum = (self.checksum + sum(map(_checksum, payloads))) & _MAX_CHECKSUM
            if not self._is_decided:
                await self._send_individually(part, rows, payloads)

    @override
    async def _send_once(self, payload: Message | bytes, target: Target) -> SendResult:
        assert isinstance(payload, Message)
        payload.properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        payload.properties[PROPERTY_PRODUCER_GROUP] = self._options.producer_group
        sent = await super()._send_once(payload, target)
        if sent.status is SendStatus.SEND_OK:
            _, log_offset = parse_offset_message_id(sent.offset_message_id)
            topic, queue = target[0], sent.queue
            self.halves.append(
                Half(
                    topic,
                    queue.broker_name,
                    sent.message_id,
                    sent.transaction_id,
                    sent.queue_offset,
                    log_offset,
                )
            )
        return sent


def _checksum(message: Message) -> int:
    """A checksum of a row's content that does not depend on its position."""
    properties = {name: value for name, value in message.properties.items() if name != ROW_PROPERTY}
    content = hashlib.blake2b(encode_properties(properties), digest_size=8)
    content.update(message.body)
    return int.from_bytes(content.digest(), "big")


# The transaction topic


class DecisionLog:
    """The decisions in the transaction topic of a query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._topic = options.transaction_topic or ""
        self._source = SourceOptions(
            connection=options.connection,
            topics=(self._topic,),
            start=OffsetSpec(OffsetMode.EARLIEST),
            end=OffsetSpec(OffsetMode.LATEST),
        )

    def last(self, query: str) -> _Entry | None:
        """The last decision; an error if another query wrote it."""
        with ClusterClient(self._options.connection) as cluster:
            queue = self._queue(cluster)
            bounds = cluster.bounds([queue])
        begin, end = bounds.earliest[queue], bounds.latest[queue]
        while end > begin:
            (entry,) = self._read(queue, end - 1, end)
            if entry.query != query:
                raise ConfigError(
                    f"the transactionTopic {self._topic} has decisions of query {entry.query}; "
                    "give each query its own"
                )
            if entry.is_decision:
                return entry
            # The driver was killed before it wrote the last part.
            end -= 1
        return None

    def halves(self, decision: _Entry) -> list[Half]:
        """The half messages of the last decision."""
        with ClusterClient(self._options.connection) as cluster:
            queue = self._queue(cluster)
            bounds = cluster.bounds([queue])
        begin, end = bounds.earliest[queue], bounds.latest[queue]
        found: list[_Entry] = []
        # Another driver may have written between the parts.
        while end > begin and len(found) < decision.parts:
            start = max(begin, end - decision.parts)
            found += [
                each for each in self._read(queue, start, end) if each.attempt == decision.attempt
            ]
            end = start
        if len(found) != decision.parts:
            raise GoddardError(
                f"the decision about batch {decision.batch} of query {decision.query} is not "
                f"complete in {self._topic}: {len(found)} of {decision.parts} parts are left"
            )
        return [half for each in found for half in each.halves]

    def decide(self, query: str, batch: int, commits: Sequence[TransactionCommit]) -> list[Half]:
        """Write the decision to commit all half messages of a batch. Returns them.

        An error if another driver decided about the batch first.
        """
        halves = [half for each in commits for half in each.halves or ()]
        groups = [
            halves[begin : begin + _HALVES_PER_PART]
            for begin in range(0, len(halves), _HALVES_PER_PART)
        ]
        attempt = uuid.uuid4().hex
        entries = [
            _Entry(
                version=_VERSION,
                query=query,
                batch=batch,
                attempt=attempt,
                part=number,
                parts=len(groups),
                rows=len(halves),
                checksum=sum(each.checksum for each in commits) & _MAX_CHECKSUM,
                halves=group,
            )
            for number, group in enumerate(groups)
        ]
        with ClusterClient(self._options.connection) as cluster:
            queue = self._queue(cluster)
            begin = cluster.bounds([queue]).latest[queue]
            last = self.last(query)
            if last is not None and last.batch >= batch:
                raise _other_driver(last)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                end = runner.run(self._append(queue, entries)) + 1
            # RocketMQ shows a message some milliseconds after it has stored it.
            deadline = time.monotonic() + self._options.connection.request_timeout_ms / 1000
            while cluster.bounds([queue]).latest[queue] < end and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        first = next(
            each
            for each in self._read(queue, begin, end)
            if each.is_decision and each.query == query
        )
        if first.attempt != attempt:
            raise _other_driver(first)
        return halves

    def _queue(self, cluster: ClusterClient) -> MessageQueue:
        queues = cluster.queues(self._source)
        if len(queues) != 1:
            raise ConfigError(
                f"the transactionTopic {self._topic} has {len(queues)} queues; create it with one "
                "queue on one broker"
            )
        return queues[0]

    def _read(self, queue: MessageQueue, begin: int, end: int) -> list[_Entry]:
        partition = QueueRangePartition([QueueRange(queue, begin, end)], 1)
        bodies = [
            row["body"]
            for batch in read_ranges(partition, self._source, ["body"])
            for row in batch.to_pylist()
        ]
        try:
            return [msgspec.json.decode(body, type=_Entry) for body in bodies]
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"the transactionTopic {self._topic} has other messages than decisions: {error}"
            ) from error

    async def _append(self, queue: MessageQueue, entries: Sequence[_Entry]) -> int:
        """Write entries in order; the offset of the last one."""
        producer = await open_producer(self._options)
        offset = -1
        try:
            for entry in entries:
                message = Message(self._topic, msgspec.json.encode(entry))
                sent = await producer.send(message, queue=queue)
                if sent.status is not SendStatus.SEND_OK:
                    raise GoddardError(f"the decision was not stored safely: {sent.status.name}")
                offset = sent.queue_offset
        finally:
            await producer.stop()
        return offset


def _other_driver(decision: _Entry) -> GoddardError:
    return GoddardError(
        f"another driver of query {decision.query} has decided about batch {decision.batch}; stop "
        "one of them"
    )


# The driver


def commit_batch(options: SinkOptions, commits: Sequence[TransactionCommit], batch: int) -> None:
    """Decide about a batch whose tasks are complete, and commit its half messages."""
    if not commits:
        return
    query = commits[0].query
    log = DecisionLog(options)
    is_decided = [each.halves is None for each in commits]
    if not any(is_decided):
        if any(each.rows for each in commits):
            halves = log.decide(query, batch, commits)
            end_all(options, halves, TransactionType.COMMIT, is_repeated=False)
        return
    decision = log.last(query)
    if decision is None or decision.batch != batch or not all(is_decided):
        raise GoddardError(
            f"batch {batch} of query {query} was decided while its tasks ran; is another driver of "
            "the query running? The batch must be repeated"
        )
    rows = sum(each.rows for each in commits)
    checksum = sum(each.checksum for each in commits) & _MAX_CHECKSUM
    if (rows, checksum) != (decision.rows, decision.checksum):
        raise GoddardError(
            f"batch {batch} of query {query} has other rows than before ({rows}, before "
            f"{decision.rows}): was the checkpoint restored, or is a column not deterministic? "
            "Use another transactionTopic to write all rows of the batch"
        )
    end_all(options, log.halves(decision), TransactionType.COMMIT, is_repeated=True)


def roll_back(options: SinkOptions, commits: Sequence[TransactionCommit], batch: int) -> None:
    """Roll back the half messages of a batch that failed, unless it is decided."""
    halves = [half for each in commits for half in each.halves or ()]
    if not halves:
        return
    last = DecisionLog(options).last(commits[0].query)
    if last is None or last.batch < batch:
        end_all(options, halves, TransactionType.ROLLBACK, is_repeated=False)


def end_all(
    options: SinkOptions, halves: Sequence[Half], decision: TransactionType, *, is_repeated: bool
) -> None:
    with worker_session(options.connection) as worker:
        ending = _Ending(options, worker.session, decision, is_repeated=is_repeated)
        worker.runner.run(ending.run(halves))


class _Ending:
    """Ends transactions, a bounded number concurrently."""

    def __init__(
        self,
        options: SinkOptions,
        session: Session,
        decision: TransactionType,
        *,
        is_repeated: bool,
    ) -> None:
        self._options = options
        self._session = session
        self._decision = decision
        # Some half messages may be committed already.
        self._is_repeated = is_repeated

    async def run(self, halves: Sequence[Half]) -> None:
        left = iter(halves)
        workers = [asyncio.ensure_future(self._work(left)) for _ in range(_COMMITS_IN_FLIGHT)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, left: Iterator[Half]) -> None:
        for half in left:
            await self._end(half)

    async def _end(self, half: Half) -> None:
        connection = self._options.connection
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            # A broker that commits a half message twice delivers it twice.
            may_be_done = self._is_repeated or attempts > 1
            if may_be_done and await self._is_delivered(half):
                return
            await self._end_once(half)

        await with_retries(connection, attempt, retry_for_ms=connection.max_outage_ms)

    async def _end_once(self, half: Half) -> None:
        address = await self._address(half)
        header = EndTransactionRequest(
            topic=self._session.with_namespace(half.topic),
            producer_group=self._options.producer_group,
            tran_state_table_offset=half.table_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=self._decision,
            msg_id=half.message_id,
            transaction_id=half.transaction_id,
            bname=half.broker_name,
        )
        await self._session.call(
            address,
            broker_api.command(RequestCode.END_TRANSACTION, header),
            self._options.connection.request_timeout_ms,
        )

    async def _is_delivered(self, half: Half) -> bool:
        """Whether the message of a half is in its topic, by the broker's key index."""
        found = await broker_api.query_messages(
            self._session,
            await self._address(half),
            self._session.with_namespace(half.topic),
            half.message_id,
            max_count=_SAME_HASH,
            begin_ms=0,
            end_ms=_END_OF_TIME_MS,
            by_unique_key=True,
            timeout_ms=self._options.connection.request_timeout_ms,
        )
        # Other records may have the same hash.
        return half.message_id.encode() in found.records

    async def _address(self, half: Half) -> str:
        queue = MessageQueue(self._session.with_namespace(half.topic), half.broker_name, 0)
        address, _ = await self._session.locate(queue, only_this=True)
        return address
