"""Transactions: half messages, and their end.

A producer sends a half message, does its own work, and then says commit or roll back (37). A half
is stored in RMQ_SYS_TRANS_HALF_TOPIC, where nobody consumes it; a commit stores it again, in its
own topic; both are noted in the op queue (see ``transaction_log``). ``transaction_checks`` asks the
producers of halves that nobody ends.

The note of a decision follows the decision by a moment, so that many share one op. RocketMQ takes
up to 3 s for that; what was decided since the last op is asked about again after a crash, so here
it is a fraction of a second. The log is one sequence: a note never survives without its commit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from goddard.broker.sending.appender import Appender
from goddard.broker.sending.escape import Escape
from goddard.broker.sending.message_rules import MessageWriter, NewMessage, PutStatus, put_status
from goddard.broker.sending.send import PutStats
from goddard.broker.sending.stored import (
    find_stored,
    happens_within,
    message_of,
    number,
    real_place,
)
from goddard.broker.sending.transaction_checks import FindProducer, TransactionChecks
from goddard.broker.sending.transaction_log import REMOVE_TAG, OpBatch, immunity_ms
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Topics
from goddard.clock import Clock, SystemClock
from goddard.errors import ProtocolError, StoreError
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import ResumeCheckHalfMessageRequest
from goddard.protocol.headers.message import EndTransactionRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import (
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_DELAY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
    TransactionType,
    decode_properties,
    with_transaction_type,
)
from goddard.protocol.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from goddard.protocol.record import Record
from goddard.protocol.responses import SystemFailedError
from goddard.store.log.records import LogEntry
from goddard.store.store import MessageStore
from goddard.store.tables import ConsumerOffsetTable
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_logger: Final = logging.getLogger(__name__)

_RESUME_FAILED: Final = (
    "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."
)
_GATHER_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 1.0


def as_half(message: NewMessage) -> NewMessage:
    """A message of a transaction as it is stored until its producer decides."""
    properties = dict(message.properties)
    unique_id = properties.get(PROPERTY_UNIQUE_ID)
    if unique_id:
        properties[PROPERTY_TRANSACTION_ID] = unique_id
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    # A delayed half would never come back from its level. Java's clients drop the delay, too.
    properties.pop(PROPERTY_DELAY, None)
    return replace(
        message,
        topic=TRANS_HALF_TOPIC,
        queue_id=0,
        properties=properties,
        sys_flag=with_transaction_type(message.sys_flag, TransactionType.NONE),
    )


def as_committed(half: Record) -> NewMessage:
    """The message that consumers get; SystemFailedError when the half does not say where."""
    message = message_of(half)
    place = real_place(message.properties)
    if place is None:
        raise SystemFailedError("the half message does not say its topic and queue")
    for name in (PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID):
        del message.properties[name]
    return replace(
        message,
        topic=place[0],
        queue_id=place[1],
        sys_flag=with_transaction_type(half.sys_flag, TransactionType.COMMIT),
        prepared_transaction_offset=half.physical_offset,
    )


def _check_half(header: EndTransactionRequest, half: Record) -> None:
    properties = decode_properties(half.properties)
    if properties.get(PROPERTY_PRODUCER_GROUP) != header.producer_group:
        raise SystemFailedError("The producer group wrong")
    if half.queue_offset != header.tran_state_table_offset:
        raise SystemFailedError("The transaction state table offset wrong")
    if half.physical_offset != header.commit_log_offset:
        raise SystemFailedError("The commit log offset wrong")


class Transactions:
    """Handlers 37 and 323, the op queue, and the checks from ``start`` to ``stop``."""

    def __init__(
        self,
        *,
        store: MessageStore,
        appender: Appender,
        writer: MessageWriter,
        topics: Topics,
        offsets: ConsumerOffsetTable,
        settings: Settings,
        find_producer: FindProducer,
        save_offsets: Callable[[], Awaitable[None]] | None = None,
        clock: Clock | None = None,
        stats: PutStats | None = None,
    ) -> None:
        self._store = store
        self._appender = appender
        self._writer = writer
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._stats = stats
        self._committing: set[tuple[int, int]] = set()
        self._pending: dict[int, OpBatch] = {}
        self._op_timer: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checks = TransactionChecks(
            store=store,
            appender=appender,
            writer=writer,
            topics=topics,
            offsets=offsets,
            settings=settings,
            is_pending=self._is_pending,
            is_committing=self._is_committing,
            find_producer=find_producer,
            save_offsets=save_offsets,
            clock=self._clock,
        )

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self.handle_end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.handle_resume_check,
        }

    def start(self, escape: Escape | None = None) -> None:
        """With ``escape``, halves that nobody ended go to another broker, which asks about them."""
        self._stopping.clear()
        self._checks.is_stopping = False
        self._checks.escape = escape
        self._task = asyncio.get_running_loop().create_task(self._run(), name="transaction check")

    async def stop(self) -> None:
        """End the checks and note the last decisions."""
        self._checks.is_stopping = True
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None
        await self._appender.drain()  # commits under way are decisions, too
        self.note_decisions()
        await self._appender.drain()
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None

    async def check(self) -> None:
        """Ask about the halves that are due now, without waiting for the next round."""
        await self._checks.check()

    async def _run(self) -> None:
        _logger.info("TransactionalMessageCheckService service started")
        # The interval is read each time, so that a change takes effect.
        while not await happens_within(
            self._stopping, self._settings.current.transaction_check_interval_ms / 1000
        ):
            try:
                await self._checks.check()
            except Exception:
                _logger.exception("checking transactions failed once and goes on")
        _logger.info("TransactionalMessageCheckService service end")

    # The end of a transaction

    def handle_end(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | None:
        """Store what is committed in this very call: the peer may be gone in the next."""
        header = EndTransactionRequest.decode(request.fields)
        decision = header.commit_or_rollback
        if decision not in (TransactionType.COMMIT, TransactionType.ROLLBACK):
            # The producer does not know either. It is not answered, and asked later.
            _logger.info(
                "producer %s leaves a transaction pending, msgId=%s, remark: %s",
                connection.remote,
                header.msg_id[:80],
                request.remark,
            )
            return None
        half = self._find_half(header)
        if self._is_late(header, half):
            return request.reply(ResponseCode.ILLEGAL_OPERATION)
        _check_half(header, half)
        if decision == TransactionType.ROLLBACK:
            _logger.info("producer %s rolls back, msgId=%s", connection.remote, header.msg_id[:80])
            self._note(half)
            return request.reply()
        message = as_committed(half)

        place = (half.queue_id, half.queue_offset)

        def stored(entry: LogEntry | None, error: StoreError | None) -> None:
            self._committing.discard(place)
            if entry is not None:
                self._note(half)
                if self._stats is not None:
                    self._stats.put(entry.topic, 1, entry.size)
                answer = request.reply()
            else:
                answer = self._failure(request, error)
            if not request.is_oneway:
                connection.respond(answer)

        try:
            self._writer.submit(message, stored)
        except StoreError as error:
            return self._failure(request, error)
        self._committing.add(place)
        return None

    def _find_half(self, header: EndTransactionRequest) -> Record:
        half = find_stored(self._store, header.commit_log_offset)
        if half is None or half.topic != TRANS_HALF_TOPIC:
            raise SystemFailedError("Find prepared transaction message failed")
        return half

    def _is_late(self, header: EndTransactionRequest, half: Record) -> bool:
        """Whether a producer that asked not to be asked for a while ends after that while."""
        immunity = decode_properties(half.properties).get(PROPERTY_CHECK_IMMUNITY_SECONDS)
        if not immunity or header.from_transaction_check:
            return False
        timeout_ms = self._settings.current.transaction_timeout_ms
        waits_ms = immunity_ms(number(immunity) or 0, timeout_ms)
        return self._clock.now_ms() - half.born_timestamp_ms > waits_ms

    def _failure(self, request: RemotingCommand, error: StoreError | None) -> RemotingCommand:
        status = put_status(error)
        _logger.warning("a commit was not stored: %s: %s", status.name, error)
        match status:
            case PutStatus.CREATE_MAPPED_FILE_FAILED:
                code, remark = ResponseCode.SYSTEM_ERROR, "Create mapped file failed."
            case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
                code = ResponseCode.MESSAGE_ILLEGAL
                remark = (
                    "The message is illegal, maybe msg body or properties length not matched. msg "
                    f"body length limit {self._settings.current.max_message_bytes}B, msg "
                    "properties length limit 32KB."
                )
            case PutStatus.SERVICE_NOT_AVAILABLE:
                code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, "Service not available now."
            case PutStatus.WHEEL_TIMER_NOT_ENABLE:
                code = ResponseCode.SYSTEM_ERROR
                remark = "accurate timer message is not enabled, this broker has no timer wheel"
            case _:
                code, remark = ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"
        return request.reply(code, remark)

    # The op queue

    def _is_pending(self, queue_id: int, half_offset: int) -> bool:
        return half_offset in self._pending.get(queue_id, ())

    def _is_committing(self, queue_id: int, half_offset: int) -> bool:
        return (queue_id, half_offset) in self._committing

    def _note(self, half: Record) -> None:
        self._pending.setdefault(half.queue_id, OpBatch()).add(half.queue_offset)
        if self._op_timer is None:
            interval_ms = self._settings.current.transaction_op_interval_ms
            self._write_ops_after(min(_GATHER_SECONDS, interval_ms / 1000))

    def _write_ops_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._op_timer = loop.call_later(seconds, self.note_decisions)

    def note_decisions(self) -> None:
        """Write what was decided since the last op to the op queue, with the end of this tick."""
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None
        for queue_id, batch in self._pending.items():
            for half_offsets, body in batch.bodies(self._settings.current.transaction_op_bytes):
                self._write_op(queue_id, batch, half_offsets, body)

    def _write_op(
        self, queue_id: int, batch: OpBatch, half_offsets: Sequence[int], body: bytes
    ) -> None:
        def written(entries: Sequence[LogEntry] | None, error: StoreError | None) -> None:
            if entries is not None:
                batch.discard(half_offsets)
                return
            _logger.error(
                "%d decisions not written to the op queue; retry in %d s: %s",
                len(half_offsets),
                _RETRY_SECONDS,
                error,
            )
            if self._op_timer is None:
                self._write_ops_after(_RETRY_SECONDS)

        store_host = self._settings.current.store_host
        op = NewMessage(
            topic=TRANS_OP_HALF_TOPIC,
            queue_id=queue_id,
            body=body,
            born_timestamp_ms=self._clock.now_ms(),
            born_host=store_host,
            properties={PROPERTY_WAIT: "true", PROPERTY_TAGS: REMOVE_TAG},
        )
        self._appender.submit([self._writer.encode(op)], written, wait_durable=False)

    # Administration

    async def handle_resume_check(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        """Check a half again that was put aside, with the count of its checks reset."""
        header = ResumeCheckHalfMessageRequest.decode(request.fields)
        try:
            _, physical_offset = parse_offset_message_id(header.msg_id or "")
        except ProtocolError as error:
            raise SystemFailedError(_RESUME_FAILED) from error
        half = find_stored(self._store, physical_offset)
        message = None if half is None else message_of(half)
        if (
            message is None
            or real_place(message.properties) is None
            or PROPERTY_PRODUCER_GROUP not in message.properties
        ):
            raise SystemFailedError(_RESUME_FAILED)
        message.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = "0"
        resumed = replace(message, topic=TRANS_HALF_TOPIC, queue_id=0)
        try:
            await self._appender.put([self._writer.encode(resumed)], wait_durable=False)
        except StoreError as error:
            _logger.warning("Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: %s", error)
            raise SystemFailedError(
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
            ) from error
        return request.reply()
