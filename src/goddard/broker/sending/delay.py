"""Delayed messages: each waits in the queue of its level, and is stored again when it is due.

Level n is queue n-1 of SCHEDULE_TOPIC_XXXX; the tags code of an entry is the time at which it is
due. A queue is a line: its head is due first, unless someone set the clock. The new record goes to
the topic and queue in REAL_TOPIC and REAL_QID; its properties are those of the old, as in RocketMQ.

How far each level has been delivered stands in ``delayOffset.json``. An offset moves there only
once the delivered messages are on disk, so a crash may deliver twice, but never loses. A slave that
acts for its master has them stored by another broker (see ``escape``). One task on
the loop serves all levels and sleeps until the next message is due.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from goddard.broker.sending.appender import Appender
from goddard.broker.sending.escape import Escape, as_due
from goddard.broker.sending.stored import (
    happens_within,
    message_of,
    read_stored,
    real_place,
    wait_durable,
)
from goddard.clock import Clock, SystemClock
from goddard.errors import StoreError
from goddard.protocol.message import decode_properties
from goddard.protocol.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from goddard.store.errors import MessageIllegalError
from goddard.store.log.reading import GetResult, GetStatus
from goddard.store.log.records import LogEntry, PreparedRecord, prepare_record
from goddard.store.store import MessageStore
from goddard.store.tables import DelayOffsetTable

_logger: Final = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 1.0
# Below this, waking up costs more than the messages of one turn; Java looks every 100 ms.
_LEAST_WAIT_MS: Final = 20
# A clock that was set is noticed after this time.
_MOST_WAIT_MS: Final = 1_000
_RETRY_MS: Final = 100
_BATCH_MESSAGES: Final = 32
# So many batches of one level before the others have their turn.
_BATCHES_PER_TURN: Final = 8
_FAILED_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 1.0
# The group under which RocketMQ counts what it reads of delayed messages.
_GROUP: Final = "SCHEDULE_CONSUMER"

_EMPTY: Final = frozenset(
    {
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
    }
)


class DeliveryStats(Protocol):
    """Who counts what is stored and read."""

    def put(self, topic: str, count: int, size: int) -> None: ...

    def get(self, topic: str, group: str, count: int, size: int) -> None: ...


class _Due:
    """A filter that takes entries from the head of a level for as long as they are due."""

    def __init__(self, now_ms: int, delay_ms: int) -> None:
        self._now_ms = now_ms
        self._latest_ms = now_ms + delay_ms
        self.next_due_ms: int | None = None

    def matches_code(self, tags_code: int) -> bool:
        if self.next_due_ms is not None:
            return False
        # Later than any message of this level could be: the clock was set back since.
        if tags_code <= self._now_ms or tags_code > self._latest_ms:
            return True
        self.next_due_ms = tags_code
        return False

    def matches_record(self, record: memoryview) -> bool:
        return True


class _Level:
    """Where the delivery of one level stands."""

    __slots__ = ("delay_ms", "level", "next_due_ms", "queue_offset")

    def __init__(self, level: int, delay_ms: int, queue_offset: int) -> None:
        self.level = level
        self.delay_ms = delay_ms
        self.queue_offset = queue_offset
        # None: to be looked up. Until then there is nothing to do for the level.
        self.next_due_ms: int | None = None

    @property
    def queue_id(self) -> int:
        return self.level - 1

    def is_waiting(self, now_ms: int) -> bool:
        due_ms = self.next_due_ms
        return due_ms is not None and now_ms < due_ms <= now_ms + self.delay_ms


class _Delivered(NamedTuple):
    """Progress of a level that counts once the log is on disk up to ``end_offset``."""

    end_offset: int
    level: int
    queue_offset: int


class DelayDelivery:
    """Delivers delayed messages from ``start`` to ``stop``. The table is loaded by then."""

    def __init__(
        self,
        *,
        store: MessageStore,
        table: DelayOffsetTable,
        appender: Appender,
        clock: Clock | None = None,
        stats: DeliveryStats | None = None,
    ) -> None:
        self._store = store
        self._table = table
        self._appender = appender
        self._clock: Clock = clock or SystemClock()
        self._stats = stats
        self._levels = self._read_levels()
        self._delivered: deque[_Delivered] = deque()
        self._end_offset = 0
        self._escape: Escape | None = None
        self._has_escaped = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def _read_levels(self) -> list[_Level]:
        return [
            _Level(level, delay_ms, max(0, self._table.offsets.get(level, 0)))
            for level, delay_ms in enumerate(self._store.config.delay_times_ms(), 1)
        ]

    def start(self, escape: Escape | None = None) -> None:
        """With ``escape``, the log here is not written."""
        self._escape, self._has_escaped = escape, False
        self._stopping.clear()
        self._levels = self._read_levels()  # a slave copied the table since
        self._task = asyncio.get_running_loop().create_task(self._run(), name="delay delivery")

    async def stop(self) -> None:
        """Finish the batch under way, and note what was delivered once it is on disk."""
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None
        if self._delivered:
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await wait_durable(self._store, self._end_offset)
            except (StoreError, TimeoutError) as error:
                _logger.warning("delayed messages may be delivered twice: %r", error)
        self._note_durable()

    async def _run(self) -> None:
        _logger.info("DelayDelivery service started")
        wait_seconds = _FIRST_SECONDS
        while not await happens_within(self._stopping, wait_seconds):
            try:
                wait_seconds = await self.deliver() / 1000
            except Exception:
                _logger.exception("delivering delayed messages failed once and goes on")
                wait_seconds = _FAILED_SECONDS
        _logger.info("DelayDelivery service end")

    async def deliver(self) -> int:
        """Deliver what is due; answers in how many milliseconds to look again."""
        wait_ms = _MOST_WAIT_MS
        is_behind = False
        for level in self._levels:
            if not level.is_waiting(self._clock.now_ms()):
                level.next_due_ms = None
                is_behind |= not await self._deliver_level(level)
            if level.next_due_ms is not None:
                wait_ms = min(wait_ms, level.next_due_ms - self._clock.now_ms())
            else:  # whatever comes next has its whole time before it
                wait_ms = min(wait_ms, level.delay_ms)
        self._note_durable()
        return 0 if is_behind else max(wait_ms, _LEAST_WAIT_MS)

    async def _deliver_level(self, level: _Level) -> bool:
        """Deliver what is due of one level; False when some of it is left for the next turn."""
        for _ in range(_BATCHES_PER_TURN):
            now_ms = self._clock.now_ms()
            due = _Due(now_ms, level.delay_ms)
            found = self._store.get(
                SCHEDULE_TOPIC,
                level.queue_id,
                level.queue_offset,
                _BATCH_MESSAGES,
                message_filter=due,
            )
            if not found.records:
                level.next_due_ms = due.next_due_ms
                if due.next_due_ms is None and found.status not in _EMPTY:
                    self._correct(level, found)
                    continue
                if due.next_due_ms is not None and level.level not in self._table.offsets:
                    # As in Java, a level stands in the table from its first message on.
                    self._table.commit(level.level, level.queue_offset)
                return True
            if self._escape is not None:
                is_delivered = await self._escape_batch(self._escape, level, found)
            else:
                is_delivered = await self._deliver_batch(level, found)
            if not is_delivered:
                level.next_due_ms = now_ms + _RETRY_MS
                return True
            if self._stopping.is_set():
                break
        return False

    def _correct(self, level: _Level, found: GetResult) -> None:
        """Go on where the queue does, when it is not where the table says."""
        _logger.error(
            "delay level %d: offset %d, but the queue has %d to %d (%s): going on at %d",
            level.level,
            level.queue_offset,
            found.min_offset,
            found.max_offset,
            found.status.value,
            found.next_offset,
        )
        level.queue_offset = found.next_offset
        self._advance(level)

    async def _deliver_batch(self, level: _Level, found: GetResult) -> bool:
        """Store the messages of a batch; False when the store did not take them all."""
        due = [self._due_record(view) for view in found.records]
        records = [record for record in due if record is not None]
        try:
            entries = await self._put(records)
        except StoreError as error:
            _logger.warning(
                "delay level %d: %d messages from offset %d could not be delivered: %s",
                level.level,
                len(records),
                level.queue_offset,
                error,
            )
            return False
        self._count(entries, found)
        if entries:
            self._end_offset = max(self._end_offset, entries[-1].end_offset)
        level.queue_offset = found.queue_offsets[-1] + 1
        self._advance(level)
        return True

    async def _escape_batch(self, escape: Escape, level: _Level, found: GetResult) -> bool:
        """Have another broker store the messages of a batch; False when one is left."""
        for queue_offset, view in zip(found.queue_offsets, found.records, strict=True):
            record = read_stored(self._store, view)
            message = None if record is None else as_due(message_of(record))
            if message is None:
                _logger.error("a delayed message names no topic to be delivered to and is dropped")
            else:
                try:
                    await escape.send(message)
                except StoreError:  # it is in the log
                    return False
            if not self._has_escaped:
                # The master, when it is back, takes the newer table.
                self._table.next_version()
                self._has_escaped = True
            level.queue_offset = queue_offset + 1
            self._advance(level)
            if self._stopping.is_set():
                return False
        return True

    async def _put(self, records: list[PreparedRecord]) -> list[LogEntry]:
        """Append a batch; messages that the store will never take are left out."""
        if not records:
            return []
        try:
            return list(await self._appender.put(records, wait_durable=False))
        except MessageIllegalError as error:
            if len(records) == 1:
                _logger.warning("a delayed message cannot be delivered and is dropped: %s", error)
                return []
        entries: list[LogEntry] = []
        for record in records:
            entries += await self._put([record])
        return entries

    def _due_record(self, view: memoryview) -> PreparedRecord | None:
        """The record to store for one that is due; None, and a line in the log, if it has none."""
        record = read_stored(self._store, view)
        if record is None:
            return None
        place = real_place(decode_properties(record.properties))
        if place is None or place[0] in (TRANS_HALF_TOPIC, SCHEDULE_TOPIC):
            _logger.error(
                "the delayed message at %d names no topic to be delivered to and is dropped: %s",
                record.physical_offset,
                place,
            )
            return None
        topic, queue_id = place
        try:
            return prepare_record(
                topic=topic,
                queue_id=queue_id,
                body=record.body,
                properties=record.properties,
                born_timestamp_ms=record.born_timestamp_ms,
                born_host=record.born_host,
                store_host=record.store_host,
                flag=record.flag,
                sys_flag=record.sys_flag,
                reconsume_times=record.reconsume_times,
                # A committed transaction that was delayed no longer says so, as in Java.
            )
        except MessageIllegalError as error:
            _logger.warning("a delayed message cannot be delivered and is dropped: %s", error)
            return None

    # Progress

    def _advance(self, level: _Level) -> None:
        self._delivered.append(_Delivered(self._end_offset, level.level, level.queue_offset))

    def _note_durable(self) -> None:
        """Move the table to what is on disk."""
        flushed_offset = self._store.flushed_offset
        while self._delivered and self._delivered[0].end_offset <= flushed_offset:
            _, level, queue_offset = self._delivered.popleft()
            self._table.commit(level, queue_offset)

    def _count(self, entries: Iterable[LogEntry], found: GetResult) -> None:
        if self._stats is None:
            return
        for entry in entries:
            self._stats.put(entry.topic, 1, entry.size)
        self._stats.get(SCHEDULE_TOPIC, _GROUP, len(found.records), found.total_bytes)
