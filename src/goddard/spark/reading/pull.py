"""Read ranges of queues from their brokers, in order, with concurrent pulls. Runs on executors.

A range is divided into chunks. Several chunks are read concurrently, each with sequential pulls,
because RocketMQ's brokers return few messages per pull (32 by default; Goddard's return as many as
are asked for). Chunks are returned in order. Their length depends on the size of the messages, and
a chunk that becomes too large is returned in parts, so that memory is bounded. While one range is
read, the first chunks of the ranges that follow are read too.

Reading [start, end) again gives the same messages, unless they were deleted in the meantime. That
is a DataLossError, or a warning with ``fails_on_data_loss`` off.
"""

import asyncio
import bisect
import contextlib
import logging
import struct
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from goddard.client import broker_api
from goddard.client.consume.pull import pull_command
from goddard.client.consume.subscriptions import Sql, subscription
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import GoddardError, ProtocolError, RemotingError, RequestTimeoutError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import PullResponse
from goddard.spark import compiled
from goddard.spark.columns import RecordColumns, record_starts, tag_mask
from goddard.spark.inner_batches import INNER_BATCH_FLAGS, unwrap
from goddard.spark.options import SQL92, SourceOptions
from goddard.spark.reading.cluster import DEFAULT_GROUP, ReplicaBehindError, with_retries
from goddard.spark.reading.offsets import DataLossError, QueueRange

if IS_COMPILED or TYPE_CHECKING:
    from goddard.core import columns as core_columns

_logger: Final = logging.getLogger("goddard.spark")

_MIN_CHUNK_MESSAGES: Final = 128
_MAX_CHUNK_MESSAGES: Final = 8_192
_CHUNK_BYTES: Final = 2 * 1024 * 1024
_MAX_CHUNK_BYTES: Final = 8 * 1024 * 1024
_MAX_PULL_BYTES: Final = 4 * 1024 * 1024

_NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
_KNOWN_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        _NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

# Two fields of a record: queue offset and, after the physical offset, the system flag.
_OFFSET_AND_FLAG: Final = struct.Struct(">q8xi")
_QUEUE_OFFSET_AT: Final = 20


@dataclass(slots=True)
class PulledRecords:
    """Stored records in order: the bodies of pull responses."""

    bodies: list[bytes] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0

    def add(self, other: "PulledRecords") -> None:
        self.bodies += other.bodies
        self.count += other.count
        self.size_bytes += other.size_bytes

    def batches(
        self, queue: MessageQueue, names: Sequence[str], tags: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The named columns, with the topic's name without namespace.

        With ``tags``, only the messages that have one of them.
        """
        # The broker compares hashes of tags, and different tags may have equal hashes.
        more = ["tags"] if tags and "tags" not in names else []
        batch = compiled.decode_batch(
            self.bodies, [*names, *more], broker_name=queue.broker_name, topic=queue.topic
        )
        if batch is not None:
            if tags:
                batch = batch.filter(tag_mask(batch.column("tags"), tags))
            yield batch.select(names) if more else batch
            return
        data = b"".join(self.bodies)
        columns = RecordColumns(
            *unwrap(data, record_starts(data)), broker_name=queue.broker_name, topic=queue.topic
        )
        yield from (columns.filter(columns.tag_mask(tags)) if tags else columns).batches(names)


@dataclass(slots=True)
class Chunk:
    """The records read from a chunk so far, and the next offset to read."""

    queue: MessageQueue
    next_offset: int
    end: int
    pulled: PulledRecords = field(default_factory=PulledRecords)


class RangesReader:
    """Reads the ranges of one task, on one event loop."""

    def __init__(
        self,
        ranges: Sequence[QueueRange],
        options: SourceOptions,
        session: Session,
        requests_in_flight: int,
    ) -> None:
        permits = asyncio.Semaphore(requests_in_flight)
        self._in_flight = requests_in_flight
        self._readers = [
            RangeReader(each, options, session, permits, requests_in_flight) for each in ranges
        ]

    def note_pause(self) -> None:
        """Call after the event loop was not running, which is the case while Spark uses rows."""
        for reader in self._readers:
            reader.note_pause()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The chunks of all ranges, in order; none is empty."""
        generators = [reader.chunks() for reader in self._readers]
        first: deque[asyncio.Task[Chunk | None]] = deque()
        begun = 0
        try:
            for number, generator in enumerate(generators):
                while begun < min(number + self._in_flight, len(generators)):
                    first.append(asyncio.ensure_future(_first(generators[begun])))
                    begun += 1
                chunk = await first.popleft()
                while chunk is not None:
                    yield chunk
                    chunk = await anext(generator, None)
        finally:
            for task in first:
                task.cancel()
            await asyncio.gather(*first, return_exceptions=True)
            for generator in generators[:begun]:
                await generator.aclose()


async def _first(chunks: AsyncGenerator[Chunk, None]) -> Chunk | None:
    return await anext(chunks, None)


class RangeReader:
    """Reads one range. ``permits`` limits the pulls of the task."""

    def __init__(
        self,
        queue_range: QueueRange,
        options: SourceOptions,
        session: Session,
        permits: asyncio.Semaphore,
        requests_in_flight: int,
    ) -> None:
        self._range = queue_range
        self._options = options
        self._session = session
        self._permits = permits
        self._in_flight = requests_in_flight
        topic = session.with_namespace(queue_range.queue.topic)
        self._queue = queue_range.queue._replace(topic=topic)
        is_sql = options.expression_type == SQL92
        expression = Sql(options.expression) if is_sql else options.expression
        self._subscription = subscription(topic, expression, 0)
        self._is_filtered = options.expression != "*"
        self._group = session.with_namespace(options.group or DEFAULT_GROUP)
        self._suggested_broker_id = 0
        self._message_bytes = 0
        self._pauses = 0
        # Whether the broker could not be reached with the route that is known.
        self._is_route_old = False

    def note_pause(self) -> None:
        """Call after the event loop was not running, which is the case while Spark uses rows."""
        self._pauses += 1

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Chunks of stored records in order, some thousand records at a time; none is empty."""
        begin, end = self._range.start, self._range.end
        pending: deque[asyncio.Task[Chunk]] = deque()
        try:
            while begin < end or pending:
                while begin < end and len(pending) < self._in_flight:
                    until = min(end, begin + self._chunk_messages(end - begin))
                    pending.append(asyncio.ensure_future(self._read_chunk(begin, until)))
                    begin = until
                    if not self._message_bytes:
                        break  # the first chunk shows the size of messages
                chunk = await pending.popleft()
                while True:
                    self._update_message_size(chunk)
                    if chunk.pulled.count:
                        yield chunk
                    if chunk.next_offset >= chunk.end:
                        break
                    chunk = await self._read_chunk(chunk.next_offset, chunk.end)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _chunk_messages(self, left: int) -> int:
        """The number of messages of the next chunk: a share of those left, within the limits."""
        if not self._message_bytes:
            return _MIN_CHUNK_MESSAGES
        share = max(_MIN_CHUNK_MESSAGES, left // self._in_flight)
        return max(1, min(share, _MAX_CHUNK_MESSAGES, _CHUNK_BYTES // self._message_bytes))

    def _update_message_size(self, chunk: Chunk) -> None:
        pulled = chunk.pulled
        if pulled.count:
            self._message_bytes = max(1, pulled.size_bytes // pulled.count)
        elif not self._message_bytes:
            self._message_bytes = _CHUNK_BYTES // _MAX_CHUNK_MESSAGES

    async def _read_chunk(self, begin: int, end: int) -> Chunk:
        chunk = Chunk(self._range.queue, begin, end)
        while chunk.next_offset < end and chunk.pulled.size_bytes < _MAX_CHUNK_BYTES:
            await with_retries(
                self._options.connection,
                lambda: self._pull_once(chunk),
                retry_for_ms=self._options.connection.max_outage_ms,
            )
        return chunk

    async def _pull_once(self, chunk: Chunk) -> None:
        """One pull; repeated after a timeout if the event loop was paused meanwhile."""
        while True:
            pauses = self._pauses
            try:
                return await self._pull(chunk)
            except RequestTimeoutError:
                if pauses == self._pauses:
                    self._is_route_old = True
                    raise
            except RemotingError:
                self._is_route_old = True
                raise

    async def _pull(self, chunk: Chunk) -> None:
        """Pull once and add the records to the chunk."""
        found = await self._locate_broker()
        if found is None:
            self._report_loss("its topic was deleted")
            chunk.next_offset = chunk.end
            return
        address, is_slave = found
        command = pull_command(
            self._group,
            self._queue,
            chunk.next_offset,
            self._subscription,
            max_messages=min(chunk.end - chunk.next_offset, self._options.messages_per_request),
            max_bytes=_MAX_PULL_BYTES,
            suspend_ms=0,
            carries_subscription=True,
        )
        async with self._permits:
            response = await self._session.request(
                address, command, self._options.connection.request_timeout_ms
            )
        if response.code == ResponseCode.TOPIC_NOT_EXIST and not is_slave:
            self._report_loss("its topic was deleted")
            chunk.next_offset = chunk.end
            return
        if response.code not in _KNOWN_CODES:
            raise BrokerError(response.code, response.remark, address)
        next_offset = self._next_offset(response, chunk, address, is_slave=is_slave)
        if response.code == ResponseCode.SUCCESS:
            self._add_records(bytes(response.body), chunk, next_offset)
        chunk.next_offset = next_offset

    def _next_offset(
        self, response: RemotingCommand, chunk: Chunk, address: str, *, is_slave: bool
    ) -> int:
        """The offset up to which a response covers the chunk; missing messages are reported."""
        header = PullResponse.decode(response.fields)
        next_offset = min(header.next_begin_offset, chunk.end)
        is_moved = response.code == ResponseCode.PULL_OFFSET_MOVED
        if is_slave and (
            next_offset <= chunk.next_offset
            or response.code == _NOT_FOUND
            or (is_moved and self._suggested_broker_id)
        ):
            # The slave has not replicated the messages yet, or has deleted messages that the
            # master may still have. Only the master decides what is lost; it is asked next.
            self._suggested_broker_id = 0
            raise ReplicaBehindError(
                f"slave {address} does not have {self._queue} from offset {chunk.next_offset} yet"
            )
        self._suggested_broker_id = header.suggest_which_broker_id
        if response.code == _NOT_FOUND:
            self._report_loss(f"it ends at {header.max_offset}, before at {chunk.end}")
            next_offset = chunk.end
        elif is_moved and next_offset < chunk.next_offset:
            self._report_loss(
                f"it ends at {header.max_offset}, offset {chunk.next_offset} was requested"
            )
            next_offset = chunk.end
        elif next_offset <= chunk.next_offset:
            raise ProtocolError(
                f"{address} answered a pull of {self._queue} from offset {chunk.next_offset} with "
                f"the next offset {header.next_begin_offset}"
            )
        elif is_moved:
            self._report_loss(
                f"it begins at {header.min_offset}, offset {chunk.next_offset} was requested"
            )
        return next_offset

    def _add_records(self, body: bytes, chunk: Chunk, next_offset: int) -> None:
        """Add the records of a response that covers the offsets up to ``next_offset``."""
        count = _count_complete(body, chunk.next_offset, next_offset, is_filtered=self._is_filtered)
        if count is None:
            starts = record_starts(body)
            # With a filter the broker may return messages beyond the end. A batch that is stored
            # as one record may begin before the chunk and end after it.
            body, starts = unwrap(body, starts)
            body, starts = _slice(body, starts, chunk.next_offset, chunk.end)
            missing = 0 if self._is_filtered else next_offset - chunk.next_offset - len(starts)
            if missing:
                self._report_loss(
                    f"{missing} messages from {chunk.next_offset} to {next_offset} were deleted"
                )
            count = len(starts)
        if count:
            chunk.pulled.add(PulledRecords([body], count, len(body)))

    async def _locate_broker(self) -> tuple[str, bool] | None:
        """The address to pull from, and whether it is a slave.

        None if the broker is registered but does not have the topic.
        """
        session, queue = self._session, self._queue
        if self._is_route_old:
            # The broker may have another address now, or a slave may have taken its place.
            with contextlib.suppress(GoddardError):
                await session.refresh_route(queue.topic)
            self._is_route_old = False
        try:
            return await session.locate(queue, self._suggested_broker_id)
        except BrokerNotFoundError:
            known = await broker_api.cluster_info(session)
            if queue.broker_name not in known.broker_addr_table:
                raise
            return None

    def _report_loss(self, loss: str) -> None:
        text = f"{self._range.queue}: {loss}"
        if self._options.fails_on_data_loss:
            raise DataLossError([text])
        _logger.warning("messages were lost before they were read: %s", text)


def _count_complete(records: bytes, begin: int, end: int, *, is_filtered: bool) -> int | None:
    """The number of records, if there is one for each offset; None to look at each record.

    With a filter, offsets may be missing.
    """
    if IS_COMPILED:
        count = core_columns.count_records(records, begin, end, is_filtered)
        return None if count < 0 else count
    starts = record_starts(records)
    if is_filtered or len(starts) != end - begin:
        return None
    first, _ = _OFFSET_AND_FLAG.unpack_from(records, starts[0] + _QUEUE_OFFSET_AT)
    last, sys_flag = _OFFSET_AND_FLAG.unpack_from(records, starts[-1] + _QUEUE_OFFSET_AT)
    is_inner_batch = sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS
    is_complete = first == begin and last == end - 1 and not is_inner_batch
    return len(starts) if is_complete else None


def _slice(records: bytes, starts: list[int], begin: int, end: int) -> tuple[bytes, list[int]]:
    """The records with queue offsets from ``begin`` to before ``end``."""
    queue_offsets = [
        _OFFSET_AND_FLAG.unpack_from(records, start + _QUEUE_OFFSET_AT)[0] for start in starts
    ]
    first = bisect.bisect_left(queue_offsets, begin)
    last = bisect.bisect_left(queue_offsets, end)
    bounds = [*starts, len(records)]
    base = bounds[first]
    return records[base : bounds[last]], [start - base for start in starts[first:last]]
