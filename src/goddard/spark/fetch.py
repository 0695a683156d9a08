"""What an executor does: read a range of a queue from its broker, in order, several pulls at once.

The range is read in windows. Some are under way at the same time, each asking for its messages with
one pull after the other, because a broker gives few messages for a pull (32 by default). Windows
are handed on in order. Their size follows that of the messages, and a window that grows too large
is handed on in parts, so that memory stays bounded whatever the messages are like.

Reading [start, end) again gives the same messages, unless they were deleted meanwhile: that is a
DataLossError, or with ``fails_on_data_loss`` off a warning.
"""

import asyncio
import bisect
import logging
import struct
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from goddard.client import broker_api
from goddard.client.consume.pull import pull_command
from goddard.client.consume.subscriptions import Sql, subscription
from goddard.client.errors import BrokerError, BrokerNotFoundError
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import ProtocolError, RequestTimeoutError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.headers_message import PullResponse
from goddard.spark.arrays import Positions
from goddard.spark.cluster import READERS_GROUP, BehindError, tried
from goddard.spark.columns import RecordColumns, record_starts
from goddard.spark.offsets import DataLossError, QueueRange
from goddard.spark.options import SQL92, SourceOptions
from goddard.spark.wrapped import WRAPPED, unwrapped

_logger: Final = logging.getLogger("goddard.spark")

_FIRST_WINDOW_MESSAGES: Final = 128
_MAX_WINDOW_MESSAGES: Final = 8_192
_WINDOW_BYTES: Final = 2 * 1024 * 1024
_MAX_WINDOW_BYTES: Final = 8 * 1024 * 1024
_MAX_PULL_BYTES: Final = 4 * 1024 * 1024

_NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        _NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)

# Of a record: queue offset, physical offset, system flag.
_OFFSET_AND_FLAG: Final = struct.Struct(">q8xi")
_QUEUE_OFFSET_AT: Final = 20


@dataclass(slots=True)
class Pulled:
    """Stored records in order, as pulls brought them, and where each begins in its answer."""

    answers: list[bytes] = field(default_factory=list)
    starts: list[list[int]] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0

    def add(self, other: "Pulled") -> None:
        self.answers += other.answers
        self.starts += other.starts
        self.count += other.count
        self.size_bytes += other.size_bytes

    def columns(self, queue: MessageQueue) -> RecordColumns:
        """The records with names as the user knows them."""
        bases = np.cumsum([0, *(len(answer) for answer in self.answers)])
        places: list[Positions] = [
            np.array(some, dtype=np.int64) + base
            for base, some in zip(bases, self.starts, strict=False)
        ]
        data, starts = unwrapped(b"".join(self.answers), np.concatenate(places))
        return RecordColumns(
            data,
            starts,
            broker_name=queue.broker_name,
            topic=queue.topic,
        )


@dataclass(slots=True)
class _Window:
    """What a window brought, and where it stopped."""

    reached: int
    end: int
    pulled: Pulled = field(default_factory=Pulled)


class RangeReader:
    """Reads one range. Used by one task on one event loop."""

    def __init__(self, wanted: QueueRange, options: SourceOptions, session: Session) -> None:
        self._range = wanted
        self._options = options
        self._session = session
        topic = session.with_namespace(wanted.queue.topic)
        self._queue = wanted.queue._replace(topic=topic)
        is_sql = options.expression_type == SQL92
        expression = Sql(options.expression) if is_sql else options.expression
        self._subscription = subscription(topic, expression, 0)
        self._is_filtered = options.expression != "*"
        self._group = session.with_namespace(options.group or READERS_GROUP)
        self._suggested_id = 0
        self._message_bytes = 0
        self._pauses = 0

    def paused(self) -> None:
        """To be said after the loop stood still, as it does while Spark is at work on rows."""
        self._pauses += 1

    async def records(self) -> AsyncGenerator[Pulled, None]:
        """Stored records, some thousand at a time, in order."""
        begin, end = self._range.start, self._range.end
        pending: deque[asyncio.Task[_Window]] = deque()
        try:
            while begin < end or pending:
                while begin < end and len(pending) < self._options.requests_in_flight:
                    until = min(end, begin + self._window_messages(end - begin))
                    pending.append(asyncio.ensure_future(self._window(begin, until)))
                    begin = until
                    if not self._message_bytes:
                        break  # the first tells how large the others may be
                window = await pending.popleft()
                while True:
                    self._learn(window)
                    if window.pulled.count:
                        yield window.pulled
                    if window.reached >= window.end:
                        break
                    window = await self._window(window.reached, window.end)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _window_messages(self, left: int) -> int:
        """How many messages the next window has: a share of what is left, within the limits."""
        if not self._message_bytes:
            return _FIRST_WINDOW_MESSAGES
        share = max(_FIRST_WINDOW_MESSAGES, left // self._options.requests_in_flight)
        return max(1, min(share, _MAX_WINDOW_MESSAGES, _WINDOW_BYTES // self._message_bytes))

    def _learn(self, window: _Window) -> None:
        pulled = window.pulled
        if pulled.count:
            self._message_bytes = max(1, pulled.size_bytes // pulled.count)
        elif not self._message_bytes:
            self._message_bytes = _WINDOW_BYTES // _MAX_WINDOW_MESSAGES

    async def _window(self, begin: int, end: int) -> _Window:
        window = _Window(begin, end)
        while window.reached < end and window.pulled.size_bytes < _MAX_WINDOW_BYTES:
            await tried(
                self._options.connecting,
                lambda: self._pull_patiently(window),
                patience_ms=self._options.connecting.max_outage_ms,
            )
        return window

    async def _pull_patiently(self, window: _Window) -> None:
        """One pull, again if its answer may have come when nobody was there to take it."""
        while True:
            pauses = self._pauses
            try:
                return await self._pull(window)
            except RequestTimeoutError:
                if pauses == self._pauses:
                    raise

    async def _pull(self, window: _Window) -> None:
        """One pull; what it brings is added to the window, which reaches further then."""
        found = await self._find()
        if found is None:
            self._lost("its topic is deleted")
            window.reached = window.end
            return
        address, is_slave = found
        command = pull_command(
            self._group,
            self._queue,
            window.reached,
            self._subscription,
            max_messages=min(window.end - window.reached, self._options.messages_per_request),
            max_bytes=_MAX_PULL_BYTES,
            suspend_ms=0,
            carries_subscription=True,
        )
        response = await self._session.request(
            address, command, self._options.connecting.request_timeout_ms
        )
        if response.code == ResponseCode.TOPIC_NOT_EXIST and not is_slave:
            self._lost("its topic is deleted")
            window.reached = window.end
            return
        if response.code not in _ANSWERS:
            raise BrokerError(response.code, response.remark, address)
        header = PullResponse.decode(response.fields)
        reached = min(header.next_begin_offset, window.end)
        is_moved = response.code == ResponseCode.PULL_OFFSET_MOVED
        if is_slave and (
            reached <= window.reached
            or response.code == _NOT_FOUND
            or (is_moved and self._suggested_id)
        ):
            # It has not got so far yet, or has deleted what the master may still have: as long as
            # there is a master it has no say in what is lost. That one is asked next.
            self._suggested_id = 0
            raise BehindError(f"{address} does not have {self._queue} from {window.reached} on yet")
        self._suggested_id = header.suggest_which_broker_id
        if response.code == _NOT_FOUND:
            self._lost(f"it ends at {header.max_offset}, {window.end} was its end before")
            reached = window.end
        elif is_moved and reached < window.reached:
            self._lost(f"it ends at {header.max_offset}, {window.reached} was wanted")
            reached = window.end
        elif reached <= window.reached:
            raise ProtocolError(
                f"{address} answered the pull of {self._queue} from {window.reached} with "
                f"{header.next_begin_offset} as the next offset"
            )
        elif is_moved:
            self._lost(f"it begins at {header.min_offset}, {window.reached} was wanted")
        if response.code == ResponseCode.SUCCESS:
            self._take(bytes(response.body), window, reached)
        window.reached = reached

    def _take(self, body: bytes, window: _Window, reached: int) -> None:
        """Add the records of an answer that leads up to ``reached``."""
        starts = record_starts(body)
        if self._is_filtered or not _are_all(body, starts, window.reached, reached):
            # A filter may have taken the broker beyond the end; a batch that is stored as one
            # record may begin before the window and end behind it.
            body, starts = unwrapped(body, starts)
            body, starts = _between(body, starts, window.reached, window.end)
            missing = 0 if self._is_filtered else reached - window.reached - len(starts)
            if missing:
                self._lost(f"{missing} messages from {window.reached} to {reached} are deleted")
        if starts:
            window.pulled.add(Pulled([body], [starts], len(starts), len(body)))

    async def _find(self) -> tuple[str, bool] | None:
        """Whom to ask, and whether it is a slave; None if the broker is there without the topic."""
        session, queue = self._session, self._queue
        found = session.find_broker(queue.broker_name, self._suggested_id)
        if found is None:
            await session.refresh_route(queue.topic)
            found = session.find_broker(queue.broker_name, self._suggested_id)
        if found is None:
            known = await broker_api.cluster_info(session)
            if queue.broker_name not in known.broker_addr_table:
                raise BrokerNotFoundError(queue.broker_name)
        return found

    def _lost(self, what: str) -> None:
        text = f"{self._range.queue}: {what}"
        if self._options.fails_on_data_loss:
            raise DataLossError([text])
        _logger.warning("messages were lost before they were read: %s", text)


def _are_all(records: bytes, starts: list[int], begin: int, end: int) -> bool:
    """Whether there is one record for each offset; looks at the first and the last only."""
    if len(starts) != end - begin:
        return False
    first, _ = _OFFSET_AND_FLAG.unpack_from(records, starts[0] + _QUEUE_OFFSET_AT)
    last, sys_flag = _OFFSET_AND_FLAG.unpack_from(records, starts[-1] + _QUEUE_OFFSET_AT)
    return bool(first == begin and last == end - 1 and sys_flag & WRAPPED != WRAPPED)


def _between(records: bytes, starts: list[int], begin: int, end: int) -> tuple[bytes, list[int]]:
    """The records from ``begin`` up to ``end``; they are in order."""
    places = [
        _OFFSET_AND_FLAG.unpack_from(records, start + _QUEUE_OFFSET_AT)[0] for start in starts
    ]
    first, last = bisect.bisect_left(places, begin), bisect.bisect_left(places, end)
    bounds = [*starts, len(records)]
    base = bounds[first]
    return records[base : bounds[last]], [start - base for start in starts[first:last]]


async def open_session(options: SourceOptions) -> Session:
    """A started session of this task's own."""
    connecting = options.connecting
    session = Session.shared(
        session_options(connecting.name_servers, connecting.keywords).for_process()
    )
    await session.start()
    return session
