"""Asking producers for the state of the transactions of their half messages.

Every ``transactionCheckInterval`` a round passes through the half queue from where the last one
stopped: decided halves are passed by, one that is old enough is written again at the end of the
queue and a producer of its group is asked about it (39), one that was asked about too often goes to
TRANS_CHECK_MAX_TIME_TOPIC, and at the first that is too young the round stops. ``transaction_log``
decides; here it is done. Progress is the offset of CID_RMQ_SYS_TRANS in both queues, and moves only
once what was written again is on disk.

Belongs to the loop, and lets it go on after every few halves.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from goddard.broker.sending.appender import Appender
from goddard.broker.sending.escape import Escape, as_new_half
from goddard.broker.sending.message_rules import MessageWriter, NewMessage, PutRefusedError
from goddard.broker.sending.stored import message_of, number, read_stored, real_place, wait_durable
from goddard.broker.sending.transaction_log import (
    REMOVE_TAG,
    CheckRules,
    DecidedHalves,
    Half,
    Verdict,
    decode_op,
    judge,
)
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Topics
from goddard.clock import Clock, SystemClock
from goddard.errors import ProtocolError, RemotingError, StoreError
from goddard.protocol.codes import Permission, RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import CheckTransactionRequest
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import (
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
    decode_properties,
    encode_properties,
)
from goddard.protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from goddard.protocol.record import Record, encode_record
from goddard.store.errors import MessageIllegalError
from goddard.store.log.reading import GetResult, GetStatus
from goddard.store.log.records import LogEntry
from goddard.store.store import MessageStore
from goddard.store.tables import ConsumerOffsetTable
from goddard.transport.connection import Connection

_logger: Final = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
_HOUR_MS: Final = 3_600_000
_ROUND_MS: Final = 60_000
# Ops at a time: one may hold some hundred decisions.
_READ_OPS: Final = 16
# A round that knows of more decisions than this ends, and the next one goes on from there.
_MAX_DECIDED: Final = 500_000
_DURABLE_SECONDS: Final = 5.0
# Halves between two turns of the loop.
_HALVES_PER_TURN: Final = 32
_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)

FindProducer = Callable[[str], Connection | None]


class TransactionChecks:
    """The rounds of checks.

    ``is_pending(queue_id, half_offset)``: whether a half is decided, but that not noted yet.
    ``is_committing``, likewise: whether its commit is being stored, which may still fail.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        appender: Appender,
        writer: MessageWriter,
        topics: Topics,
        offsets: ConsumerOffsetTable,
        settings: Settings,
        is_pending: Callable[[int, int], bool],
        is_committing: Callable[[int, int], bool],
        find_producer: FindProducer,
        save_offsets: Callable[[], Awaitable[None]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._appender = appender
        self._writer = writer
        self._topics = topics
        self._offsets = offsets
        self._settings = settings
        self.is_pending = is_pending
        self.is_committing = is_committing
        self._find_producer = find_producer
        self._save_offsets = save_offsets
        self._clock: Clock = clock or SystemClock()
        self.is_stopping = False
        # Of a slave that acts for its master: halves go to another broker, which asks.
        self.escape: Escape | None = None

    async def check(self) -> None:
        """One round through every half queue; it ends early, but in order, when stopping."""
        if self.escape is None:
            topic = self._topics.ensure_topic(TRANS_HALF_TOPIC, 1, _READ_WRITE)
            count = topic.read_queue_nums
        else:  # a slave creates no topics
            known = self._topics.get(TRANS_HALF_TOPIC)
            count = 1 if known is None else known.read_queue_nums
        for queue_id in range(count):
            await _Round(self, queue_id).run()

    # What a round needs of its surroundings

    def rules(self) -> CheckRules:
        config = self._settings.current
        return CheckRules(
            timeout_ms=config.transaction_timeout_ms,
            check_max=config.transaction_check_max,
            reserved_ms=self._store.config.reserved_hours * _HOUR_MS,
        )

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def offset(self, topic: str, queue_id: int) -> int:
        queue_offset = self._offsets.query(GROUP, topic, queue_id)
        return self._store.min_offset(topic, queue_id) if queue_offset < 0 else queue_offset

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> GetResult:
        return self._store.get(topic, queue_id, queue_offset, count)

    def decode(self, view: memoryview) -> Record | None:
        return read_stored(self._store, view)

    async def put(self, message: NewMessage) -> LogEntry:
        """Store a message as it is: the rules for new ones, delays above all, are not for it."""
        (entry,) = await self._appender.put([self._writer.encode(message)], wait_durable=False)
        return entry

    async def put_aside(self, message: NewMessage) -> LogEntry:
        topic = self._topics.ensure_topic(TRANS_CHECK_MAX_TIME_TOPIC, 1, _READ_WRITE)
        return await self.put(msgspec.structs.replace(message, topic=topic.topic_name, queue_id=0))

    async def commit(
        self, queue_id: int, half_offset: int, op_offset: int, end_offset: int
    ) -> None:
        """Note how far both queues are settled; first what was written again must be on disk."""
        if end_offset:
            async with asyncio.timeout(_DURABLE_SECONDS):
                await wait_durable(self._store, end_offset)
        is_changed = False
        for topic, queue_offset in (
            (TRANS_HALF_TOPIC, half_offset),
            (TRANS_OP_HALF_TOPIC, op_offset),
        ):
            if self.offset(topic, queue_id) != queue_offset:
                self._offsets.commit(GROUP, topic, queue_id, queue_offset)
                is_changed = True
        if is_changed and self.escape is not None:
            # The master, when it is back, takes the newer table.
            self._offsets.next_version()
        if end_offset and is_changed and self._save_offsets is not None:
            # A crash before the next save would have the same halves written once more.
            await self._save_offsets()

    def ask_when_visible(self, half: Record, renewed: NewMessage, entry: LogEntry) -> None:
        """As ``ask``, once the producer's decision can find the renewed half.

        With SYNC_FLUSH that is when it is on disk; a producer may answer faster than a sync.
        """
        if self._store.lookup(entry.physical_offset) is not None:
            self.ask(half, renewed, entry)
            return
        loop = asyncio.get_running_loop()

        def durable(error: StoreError | None) -> None:
            # Without the sync the half is checked again, as is one whose check is lost.
            if error is None:
                with contextlib.suppress(RuntimeError):  # the loop ends before this thread
                    loop.call_soon_threadsafe(self.ask, half, renewed, entry)

        self._store.wait_durable(entry.end_offset, durable)

    def ask(self, half: Record, renewed: NewMessage, entry: LogEntry) -> None:
        """Ask a producer of the half's group for the state of the transaction."""
        properties = renewed.properties
        group = properties.get(PROPERTY_PRODUCER_GROUP, "")
        place = real_place(properties)
        if place is None:
            _logger.error("the half message at %d does not say its topic", entry.physical_offset)
            return
        connection = self._find_producer(group)
        if connection is None:
            _logger.warning("Check transaction failed, channel is null. groupId=%s", group)
            return
        config = self._settings.current
        unique_id = properties.get(PROPERTY_UNIQUE_ID)
        header = CheckTransactionRequest(
            topic=TRANS_HALF_TOPIC,
            tran_state_table_offset=entry.queue_offset,
            commit_log_offset=entry.physical_offset,
            msg_id=unique_id,
            transaction_id=unique_id,
            offset_msg_id=offset_message_id(config.store_host, entry.physical_offset),
            bname=config.broker_name,
        )
        try:
            record = dataclasses.replace(
                half,
                topic=place[0],
                queue_id=place[1],
                queue_offset=entry.queue_offset,
                physical_offset=entry.physical_offset,
                properties=encode_properties({**properties, PROPERTY_WAIT: "false"}),
            )
            command = RemotingCommand(
                RequestCode.CHECK_TRANSACTION_STATE, header.encode(), encode_record(record)
            )
            connection.oneway(command)
        except (RemotingError, ProtocolError) as error:
            _logger.warning(
                "Check transaction failed, group=%s, msgId=%s: %s", group, unique_id, error
            )


class _Round:
    """One pass through one half queue."""

    def __init__(self, checks: TransactionChecks, queue_id: int) -> None:
        self._checks = checks
        self._queue_id = queue_id
        self._started_ms = checks.now_ms()
        self._deadline_ms = checks.monotonic_ms() + _ROUND_MS
        self._rules = checks.rules()
        self._first_half_offset = checks.offset(TRANS_HALF_TOPIC, queue_id)
        self._first_op_offset = checks.offset(TRANS_OP_HALF_TOPIC, queue_id)
        self._decided = DecidedHalves(self._first_half_offset, self._first_op_offset)
        self._half_offset = self._first_half_offset
        self._end_offset = 0
        self._asked = 0

    async def run(self) -> None:
        stop_timestamp_ms = None
        try:
            stop_timestamp_ms = await self._pass_halves()
        except StoreError as error:
            # The half it happened to, and what came after it, are for the next round.
            _logger.warning("checking transactions stopped: %s", error)
            stop_timestamp_ms = 0
        op_offset = self._decided.settled_op_offset(stop_timestamp_ms)
        try:
            await self._checks.commit(
                self._queue_id, self._half_offset, op_offset, self._end_offset
            )
        except (StoreError, TimeoutError) as error:
            _logger.warning(
                "transaction check progress not saved; halves will be checked again: %r", error
            )
        if (self._half_offset, op_offset) != (self._first_half_offset, self._first_op_offset):
            _logger.info(
                "After check, queueId=%d opOffset=%d msgOffset=%d putInQueueCount=%d",
                self._queue_id,
                op_offset,
                self._half_offset,
                self._asked,
            )

    async def _pass_halves(self) -> int | None:
        """Pass as many halves as can be; the store time of the one where it stopped."""
        passed = 0
        while not self._checks.is_stopping:
            passed += 1
            if passed % _HALVES_PER_TURN == 0:
                await asyncio.sleep(0)
                if self._checks.monotonic_ms() > self._deadline_ms:
                    _logger.info("Queue=%d process time reach max=%d", self._queue_id, _ROUND_MS)
                    return 0
            if await self._is_decided():
                self._half_offset += 1
                continue
            if len(self._decided) >= _MAX_DECIDED and self._half_offset > self._first_half_offset:
                return 0
            found = self._checks.read(TRANS_HALF_TOPIC, self._queue_id, self._half_offset, 1)
            if not found.records:
                if not self._skip(found):
                    return None
                continue
            if found.queue_offsets[0] != self._half_offset:
                # Records before it are gone; whether it is decided is to be asked first.
                self._half_offset = found.queue_offsets[0]
                continue
            half = self._checks.decode(found.records[0])
            if half is not None and not await self._pass(half):
                return half.store_timestamp_ms
            self._half_offset += 1
        return 0

    async def _is_decided(self) -> bool:
        """Whether the half that comes next is decided; reads as many ops as that takes."""
        while not self._decided.take(self._half_offset):
            if len(self._decided) >= _MAX_DECIDED or not self._read_ops():
                return self._checks.is_pending(self._queue_id, self._half_offset)
            await asyncio.sleep(0)
        return True

    def _read_ops(self) -> bool:
        """Read some more ops; False when there are none."""
        decided = self._decided
        found = self._checks.read(
            TRANS_OP_HALF_TOPIC, self._queue_id, decided.next_op_offset, _READ_OPS
        )
        for queue_offset, view in zip(found.queue_offsets, found.records, strict=True):
            op = self._checks.decode(view)
            offsets: list[int] = []
            if op is not None:
                if decode_properties(op.properties).get(PROPERTY_TAGS) == REMOVE_TAG:
                    offsets = decode_op(op.body)
                else:
                    _logger.error("the op at %d has no tag %s", queue_offset, REMOVE_TAG)
            decided.add_op(queue_offset, 0 if op is None else op.store_timestamp_ms, offsets)
        if found.records:
            return True
        moved = _moved(found, decided.next_op_offset)
        if moved is None:
            return False
        _logger.warning("op queue %d: offsets before %d are gone", self._queue_id, moved)
        decided.next_op_offset = moved
        return True

    def _skip(self, found: GetResult) -> bool:
        """Go on where the half queue does; False at its end."""
        moved = _moved(found, self._half_offset)
        if moved is None:
            return False
        _logger.warning("half queue %d: offsets before %d are gone", self._queue_id, moved)
        self._half_offset = moved
        return True

    async def _handle(self, half: Record) -> bool:
        """Do what is to be done with an undecided half; False when the round stops at it."""
        message = message_of(half)
        if self._checks.escape is not None:
            new_half = as_new_half(message)
            if new_half is not None:
                await self._checks.escape.send(new_half)
            return True
        properties = message.properties
        check_times = properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)
        immunity = properties.get(PROPERTY_CHECK_IMMUNITY_SECONDS)
        first_offset = number(properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET))
        if self._is_committing(half.queue_offset) or self._is_committing(first_offset):
            return False  # passed now, it would never be asked about if that fails
        if first_offset is not None and self._is_decided_first(first_offset):
            return True
        verdict = judge(
            Half(
                born_timestamp_ms=half.born_timestamp_ms,
                store_timestamp_ms=half.store_timestamp_ms,
                check_times=None if check_times is None else (number(check_times) or 0),
                immunity_seconds=None if immunity is None else (number(immunity) or 0),
            ),
            self._rules,
            now_ms=self._checks.now_ms(),
            round_start_ms=self._started_ms,
        )
        if verdict is Verdict.LATER:
            return False
        if verdict is Verdict.DISCARD:
            _logger.error(
                "the half message %s of %s has been checked too many times, so discard it by "
                "moving it to system topic TRANS_CHECK_MAXTIME_TOPIC",
                properties.get(PROPERTY_UNIQUE_ID),
                properties.get(PROPERTY_PRODUCER_GROUP),
            )
            entry = await self._checks.put_aside(message)
        elif verdict is Verdict.KEEP:
            if first_offset is None:
                properties[PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET] = str(half.queue_offset)
            entry = await self._checks.put(message)
        else:
            times = 0 if check_times is None else number(check_times) or 0
            properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(times + 1)
            entry = await self._checks.put(message)
            self._checks.ask_when_visible(half, message, entry)
            self._asked += 1
        self._end_offset = entry.end_offset
        return True

    async def _pass(self, half: Record) -> bool:
        """Handle a half; one that cannot be written again must not hold up those behind it."""
        try:
            return await self._handle(half)
        except (PutRefusedError, MessageIllegalError) as error:
            _logger.warning("the half message at %d is put aside: %s", half.physical_offset, error)
        entry = await self._checks.put_aside(message_of(half))
        self._end_offset = entry.end_offset
        return True

    def _is_committing(self, half_offset: int | None) -> bool:
        return half_offset is not None and self._checks.is_committing(self._queue_id, half_offset)

    def _is_decided_first(self, first_offset: int) -> bool:
        return self._decided.has(first_offset) or self._checks.is_pending(
            self._queue_id, first_offset
        )


def _moved(found: GetResult, queue_offset: int) -> int | None:
    """Where to go on when nothing was found at an offset; None when it is the end of the queue."""
    if found.status in (
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
    ):
        return None
    return None if found.next_offset == queue_offset else found.next_offset
