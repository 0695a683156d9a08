"""The producers and consumers of a session, and the requests of brokers to them.

Brokers send requests to clients: check a transaction, rebalance, reset offsets, report a consumer's
state. They are passed to the member that they are for. Runs on the loop of its session.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from goddard.client.errors import ClientError
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import decode_body, encode_body
from goddard.protocol.bodies_client import (
    ClientOffsets,
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ProducerData,
    ResetOffsetBody,
)
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.admin import (
    ConsumeDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    ResetOffsetRequest,
)
from goddard.protocol.headers.message import (
    CheckTransactionRequest,
    NotifyConsumerIdsRequest,
    ReplyRequest,
)
from goddard.protocol.message import (
    PROPERTY_PRODUCER_GROUP,
    decode_properties,
    encode_properties,
)
from goddard.protocol.record import Host, Record, decode_record
from goddard.protocol.responses import ResponseError
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.rules import FROM_SERVER

_logger: Final = logging.getLogger("goddard.client")


class ProducerMember(Protocol):
    """The methods of a producer that its session calls."""

    @property
    def group(self) -> str: ...

    def published_topics(self) -> Iterable[str]:
        """The topics whose routes are refreshed periodically."""

    def check_transaction(
        self, message: ReceivedMessage, header: CheckTransactionRequest, address: str
    ) -> None:
        """Check the state of a transaction, and send it to the broker at ``address``."""


class ConsumerMember(Protocol):
    """The methods of a consumer that its session calls."""

    @property
    def group(self) -> str: ...

    def consumer_data(self) -> ConsumerData:
        """Its part of heartbeats."""

    def subscribed_topics(self) -> Iterable[str]: ...

    def route_changed(self) -> None:
        """The route of one of its topics changed."""

    async def rebalance(self) -> bool:
        """Take and release queues; True if nothing is left to do."""

    async def persist_offsets(self) -> None: ...

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None: ...

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """The offset of each of its queues of the topic."""

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo: ...

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeDirectlyResult:
        """Consume one message now, whether it was consumed before or not."""


ReplyListener: TypeAlias = Callable[[ReceivedMessage], bool]
"""Called with a reply that a broker pushed; returns whether a request waits for it."""


class Members:
    """The members of a session, by group."""

    def __init__(self, client_id: str, wake_rebalance: Callable[[], None]) -> None:
        self._client_id = client_id
        self._wake_rebalance = wake_rebalance
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self.reply_listeners: list[ReplyListener] = []

    def __bool__(self) -> bool:
        return bool(self.producers or self.consumers)

    def add_producer(self, group: str, producer: ProducerMember) -> None:
        if group in self.producers:
            raise _created_before("producer", group)
        self.producers[group] = producer

    def add_consumer(self, group: str, consumer: ConsumerMember) -> None:
        if group in self.consumers:
            raise _created_before("consumer", group)
        self.consumers[group] = consumer

    def topics(self) -> set[str]:
        """All topics that a member publishes or subscribes to."""
        topics: set[str] = set()
        for producer in self.producers.values():
            topics.update(producer.published_topics())
        for consumer in self.consumers.values():
            topics.update(consumer.subscribed_topics())
        return topics

    def producer_data(self) -> list[ProducerData]:
        return [ProducerData(group_name=group) for group in self.producers]

    def consumer_data(self) -> list[ConsumerData]:
        return [consumer.consumer_data() for consumer in self.consumers.values()]

    # Requests of brokers

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.CHECK_TRANSACTION_STATE, self._check_transaction, FROM_SERVER)
        handlers.register(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notify_consumer_ids, FROM_SERVER
        )
        handlers.register(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset_offsets, FROM_SERVER
        )
        handlers.register(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._consumer_status, FROM_SERVER
        )
        handlers.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info, FROM_SERVER)
        handlers.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume_directly, FROM_SERVER)
        handlers.register(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply_message, FROM_SERVER
        )

    def _check_transaction(self, request: RemotingCommand, connection: Connection) -> None:
        header = CheckTransactionRequest.decode(request.fields)
        record, _ = decode_record(request.body)
        group = decode_properties(record.properties).get(PROPERTY_PRODUCER_GROUP, "")
        producer = self.producers.get(group)
        if producer is None:
            _logger.warning("checkTransactionState, pick producer by group[%s] failed", group)
            return
        message = ReceivedMessage.from_record(record, header.bname or "")
        producer.check_transaction(message, header, connection.remote)

    def _notify_consumer_ids(self, request: RemotingCommand, connection: Connection) -> None:
        header = NotifyConsumerIdsRequest.decode(request.fields)
        _logger.info(
            "receive broker's notification[%s], the consumer group: %s changed, rebalance "
            "immediately",
            connection.remote,
            header.consumer_group,
        )
        self._wake_rebalance()

    async def _reset_offsets(self, request: RemotingCommand, connection: Connection) -> None:
        header = ResetOffsetRequest.decode(request.fields)
        table = decode_body(request.body, ResetOffsetBody).offset_table if request.body else {}
        offsets = {MessageQueue.from_body(queue): offset for queue, offset in table.items()}
        _logger.info(
            "invoke reset offset operation from broker. brokerAddr=%s, topic=%s, group=%s, "
            "timestamp=%s",
            connection.remote,
            header.topic,
            header.group,
            header.timestamp,
        )
        if (consumer := self.consumers.get(header.group)) is not None:
            await consumer.reset_offsets(header.topic, offsets)

    def _consumer_status(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = GetConsumerStatusRequest.decode(request.fields)
        consumer = self.consumers.get(header.group)
        offsets = {} if consumer is None else consumer.offsets_of(header.topic)
        table = {queue.to_body(): offset for queue, offset in offsets.items()}
        return request.reply(body=encode_body(ClientOffsets(message_queue_table=table)))

    def _running_info(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = GetConsumerRunningInfoRequest.decode(request.fields)
        consumer = self.consumers.get(header.consumer_group)
        if consumer is None:
            raise no_consumer(header.consumer_group)
        info = consumer.running_info(with_stacks=header.jstack_enable)
        return request.reply(body=encode_body(info))

    async def _consume_directly(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        header = ConsumeDirectlyRequest.decode(request.fields)
        consumer = self.consumers.get(header.consumer_group)
        if consumer is None:
            raise no_consumer(header.consumer_group)
        broker_name = header.broker_name or header.bname or ""
        record, _end = decode_record(request.body)
        message = ReceivedMessage.from_record(record, broker_name)
        result = await consumer.consume_directly(message)
        return request.reply(body=encode_body(result))

    def _reply_message(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        message = reply_message(request)
        if not any(listener(message) for listener in self.reply_listeners):
            _logger.warning(
                "dropped a reply from %s that no request waits for: %s",
                connection.remote,
                message.message_id,
            )
        return request.reply()


def no_consumer(group: str) -> ResponseError:
    """The response to a tool that asks for a consumer that is not here. The text is RocketMQ's."""
    return ResponseError.of(
        ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer"
    )


def _created_before(kind: str, group: str) -> ClientError:
    return ClientError(
        f"The {kind} group[{group}] has been created before, specify another name please.",
        advice="a group can be used only once per instance_name: share the client, or give each "
        "client its own instance_name",
    )


def reply_message(request: RemotingCommand) -> ReceivedMessage:
    """The message in a PUSH_REPLY_MESSAGE_TO_CLIENT request."""
    header = ReplyRequest.decode(request.fields)
    record = Record(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=header.store_timestamp,
        store_host=Host.parse(header.store_host),
        born_timestamp_ms=header.born_timestamp,
        born_host=Host.parse(header.born_host),
        body=bytes(request.body),
        properties=encode_properties(decode_properties(header.properties or "")),
        flag=header.flag,
        sys_flag=header.sys_flag,
        reconsume_times=header.reconsume_times or 0,
    )
    return ReceivedMessage.from_record(record, header.bname or "")
