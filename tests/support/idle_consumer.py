"""An idle consumer: it sends heartbeats and answers the broker's requests, but never pulls.

For tests of requests about consumers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from goddard.protocol.bodies import ConsumeResult, ConsumeType, MessageModel, encode_body
from goddard.protocol.bodies import MessageQueue as QueueKey
from goddard.protocol.bodies_client import (
    ClientOffsets,
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    HeartbeatData,
    ProcessQueueInfo,
    SubscriptionData,
)
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.hashing import java_hash
from goddard.protocol.names import retry_topic
from goddard.protocol.record import Record, iter_records
from goddard.protocol.responses import check
from goddard.transport.client import Client
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.rules import ANY_RULE

_TIMEOUT_MS = 10_000
_POLL_SECONDS = 0.02

T = TypeVar("T")


async def eventually(query: Callable[[], Awaitable[T]], timeout_seconds: float = 30.0) -> T:
    """Repeat a query until its result is true, and return the result."""
    async with asyncio.timeout(timeout_seconds):
        while True:
            result = await query()
            if result:
                return result
            await asyncio.sleep(_POLL_SECONDS)


class IdleConsumer:
    """Use as a context manager; the consumer is registered inside the block."""

    def __init__(
        self,
        address: str,
        group: str,
        topic: str,
        *,
        client_id: str = "127.0.0.1@online",
        tags: tuple[str, ...] = (),
        consume_type: ConsumeType = ConsumeType.PASSIVELY,
        message_model: MessageModel = MessageModel.CLUSTERING,
    ) -> None:
        self.group = group
        self.topic = topic
        self.client_id = client_id
        self.consumed: list[Record] = []
        self._address = address
        self._tags = tags
        self._consume_type = consume_type
        self._message_model = message_model
        handlers = Handlers()
        handlers.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._ignore, ANY_RULE)
        handlers.register(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._ignore, ANY_RULE)
        handlers.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info, ANY_RULE)
        handlers.register(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._consumer_status, ANY_RULE
        )
        handlers.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume, ANY_RULE)
        self._client = Client(handlers=handlers)

    async def __aenter__(self) -> Self:
        subscription = SubscriptionData(
            topic=self.topic,
            sub_string=" || ".join(self._tags) or "*",
            tags_set=list(self._tags),
            code_set=[java_hash(tag) for tag in self._tags],
            sub_version=1,
        )
        retry = SubscriptionData(topic=retry_topic(self.group), sub_version=1)
        consumer = ConsumerData(
            group_name=self.group,
            consume_type=self._consume_type,
            message_model=self._message_model,
            subscription_data_set=[subscription, retry],
        )
        data = HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer])
        command = RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(data))
        check(await self._client.request(self._address, command, _TIMEOUT_MS))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def _queue(self) -> QueueKey:
        return QueueKey(broker_name="anywhere", queue_id=1, topic=self.topic)

    def _ignore(self, request: RemotingCommand, connection: Connection) -> None:
        """One-way requests need no response."""

    def _running_info(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        info = ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": self._consume_type.value},
            mq_table={self._queue(): ProcessQueueInfo(commit_offset=7)},
            jstack="stacks" if request.fields.get("jstackEnable") == "true" else None,
        )
        return request.reply(body=encode_body(info))

    def _consumer_status(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        return request.reply(
            body=encode_body(ClientOffsets(message_queue_table={self._queue(): 9}))
        )

    def _consume(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.consumed += iter_records(request.body)
        result = ConsumeDirectlyResult(
            consume_result=ConsumeResult.SUCCESS, remark="well done", spent_time_mills=3
        )
        return request.reply(body=encode_body(result))
