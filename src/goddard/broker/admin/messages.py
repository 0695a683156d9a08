"""Looking messages up: 12 by key, 33 by where they are in the log, 321 what a queue holds.

Belongs to the loop. What an answer may carry is bounded whatever the request asks. A query by key
may read millions of entries of the index; it runs in a thread, and ends when its connection does.
"""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Final

import msgspec

from goddard.broker.admin.topics import UNSET_REMARK
from goddard.broker.consuming.clients import Clients
from goddard.broker.consuming.filters import ConsumerFilters
from goddard.broker.settings import Settings
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import ConsumeQueueAnswer, ConsumeQueueData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import MAX_FRAME_BYTES, RemotingCommand
from goddard.protocol.headers.admin import QueryConsumeQueueRequest
from goddard.protocol.headers.message import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from goddard.protocol.responses import SystemBusyError, SystemFailedError
from goddard.store.log.reading import QueryResult
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

# No client takes a larger frame; some of it is the header.
_MAX_BODY_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
_MAX_RESULTS: Final = 64
_MAX_ENTRIES: Final = 10_000
_TAG_INDEX: Final = "T"
# Of the executor's threads, so many answer queries at a time; the others read for pulls.
_CONCURRENT_QUERIES: Final = 2
# The clients of RocketMQ wait 20 seconds at most.
_QUERY_SECONDS: Final = 30
_OVERLOADED: Final = "[OVERLOAD]system busy, start flow control for a while"


class Queries:
    """The handlers of queries for messages."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: MessageStore,
        clients: Clients,
        filters: ConsumerFilters,
        executor: Executor | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._clients = clients
        self._filters = filters
        self._executor = executor
        self._turns = asyncio.Semaphore(_CONCURRENT_QUERIES)
        self._waiting_queries = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.QUERY_MESSAGE: self.handle_query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.handle_view,
            RequestCode.QUERY_CONSUME_QUEUE: self.handle_queue,
        }

    async def handle_query(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand:
        header = QueryMessageRequest.decode(request.fields)
        if self._waiting_queries >= self._settings.current.query_queue_capacity:
            raise SystemBusyError(_OVERLOADED)
        is_cancelled = threading.Event()
        self._waiting_queries += 1
        try:
            async with asyncio.timeout(_QUERY_SECONDS), self._turns:
                loop = asyncio.get_running_loop()
                found, body = await loop.run_in_executor(
                    self._executor, self._find, header, is_cancelled
                )
        except TimeoutError:
            raise SystemFailedError(
                f"the query took longer than {_QUERY_SECONDS} s: ask for a later begin time"
            ) from None
        finally:
            self._waiting_queries -= 1
            is_cancelled.set()
        answer = QueryMessageResponse(
            index_last_update_timestamp=found.index_time_ms,
            index_last_update_phyoffset=found.index_physical_offset,
        )
        if not found.records:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                answer.encode(),
            )
        return request.reply(ext_fields=answer.encode(), body=body)

    def _find(
        self, header: QueryMessageRequest, is_cancelled: threading.Event
    ) -> tuple[QueryResult, bytes]:
        """What a query finds, and as much of it as fits into an answer. Runs in the executor."""
        most = self._settings.current.query_max if header.by_unique_key else header.max_num
        # Tags are in the index under a key of their own; keys and unique keys share one kind.
        key = f"{_TAG_INDEX}#{header.key}" if header.index_type == _TAG_INDEX else header.key
        found = self._store.query(
            header.topic,
            key,
            max(0, min(most, _MAX_RESULTS)),
            header.begin_timestamp,
            header.end_timestamp,
            is_cancelled=is_cancelled.is_set,
        )
        records: list[memoryview] = []
        total = 0
        for record in found.records:
            total += len(record)
            if records and total > _MAX_BODY_BYTES:
                break
            records.append(record)
        return found, b"".join(records)

    def handle_view(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        physical_offset = ViewMessageRequest.decode(request.fields).offset
        record = self._store.lookup(physical_offset) if physical_offset >= 0 else None
        if record is None:
            raise SystemFailedError(f"can not find message by the offset, {physical_offset}")
        return request.reply(body=record)

    def handle_queue(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Entries of a queue as they are, for those who wonder why nobody gets a message."""
        header = QueryConsumeQueueRequest.decode(request.fields)
        topic, queue_id, index = header.topic or "", header.queue_id, header.index
        count = max(0, min(header.count, _MAX_ENTRIES))
        entries = self._store.queue_entries(topic, queue_id, index, count)
        if entries is None:
            raise SystemFailedError(f"{queue_id}@{topic[:255]} is not exist!")
        answer = ConsumeQueueAnswer(
            max_queue_index=self._store.max_offset(topic, queue_id),
            min_queue_index=self._store.min_offset(topic, queue_id),
        )
        if not answer.min_queue_index <= index < answer.max_queue_index:
            remark = f"Index {index} of {queue_id}@{topic} is not exist!"
            return request.reply(remark=remark)
        if header.consumer_group is not None:
            self._describe_filter(answer, header.consumer_group, topic)
        answer.queue_data = [
            ConsumeQueueData(
                physic_offset=entry.physical_offset,
                physic_size=entry.size,
                tags_code=entry.tags_code,
            )
            for entry in entries
        ]
        return request.reply(remark=UNSET_REMARK, body=encode_body(answer))

    def _describe_filter(self, answer: ConsumeQueueAnswer, group: str, topic: str) -> None:
        answer.subscription_data = self._clients.subscription(group, topic)
        if answer.subscription_data is None:
            answer.filter_data = f"{group[:255]}@{topic} is not online!"
            return
        found = self._filters.table.get(topic, group)
        answer.filter_data = msgspec.json.format(msgspec.json.encode(found), indent=4).decode()
