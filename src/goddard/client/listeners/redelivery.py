"""Redelivery of failed messages: they are sent back to the broker, to be delivered again later.

The broker that stored a message is asked to put it into the group's retry topic after a delay, or
into its dead-letter topic after too many attempts. If it cannot, a copy of the message is sent to
the retry topic, to any broker that accepts it. Belongs to the event loop.
"""

import logging
from typing import Final

from goddard.client import broker_api
from goddard.client.errors import BrokerNotFoundError
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.message import SendRequestV2
from goddard.protocol.message import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    format_properties,
    with_failure,
)
from goddard.protocol.names import AUTO_CREATE_TOPIC, retry_topic

# The group under which RocketMQ's consumers send.
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
# The first retry has delay level 3 (10 s), the second level 4, and so on.
FIRST_RETRY_LEVEL: Final = 3
_SEND_TIMEOUT_MS: Final = 3_000
_SEND_ATTEMPTS: Final = 3
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)
# Properties that were added by brokers and clients on the way, and are not sent again.
_LEFT_OUT: Final = (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_TRANSACTION_PREPARED,
)

_logger: Final = logging.getLogger("goddard.client")


class Redelivery:
    """Redelivers messages of one group."""

    def __init__(self, session: Session, group: str, max_reconsume_times: int) -> None:
        self._session = session
        self._group = group
        self._retry_topic = retry_topic(group)
        self._max_reconsume_times = max_reconsume_times

    async def send_back(
        self, message: ReceivedMessage, delay_level: int, failure: str | None = None
    ) -> bool:
        """Have a message delivered again; False if no broker accepted it.

        Level 0 leaves the delay to the broker; a negative one means the dead-letter topic.
        ``failure`` becomes a property of the message, if the broker is Goddard's.
        """
        try:
            address = self._session.broker_address(message.broker_name)
            if address is None:
                raise BrokerNotFoundError(message.broker_name)
            await broker_api.send_back(
                self._session,
                address,
                self._group,
                message.physical_offset,
                delay_level=delay_level,
                max_reconsume_times=self._max_reconsume_times,
                message_id=message.message_id,
                topic=message.queue.topic,
                broker_name=message.broker_name,
                unit_mode=self._session.options.unit_mode,
                failure=failure,
            )
        except GoddardError as error:
            _logger.warning(
                "Broker %s rejected send-back of message %s; sending it to %s instead: %s",
                message.broker_name,
                message.message_id,
                self._retry_topic,
                error,
            )
            return await self.send_to_retry_topic(message, failure)
        return True

    async def send_to_retry_topic(
        self, message: ReceivedMessage, failure: str | None = None
    ) -> bool:
        """Send a copy to the retry topic; after too many attempts a broker moves it to the
        dead-letter topic. False if no broker accepted it."""
        reason: GoddardError | None = None
        try:
            route = await self._session.publish_route(self._retry_topic)
            queues = list(route.queues)
        except GoddardError as error:
            queues = []
            reason = error
        self._session.random.shuffle(queues)
        for queue in queues[:_SEND_ATTEMPTS]:
            try:
                await self._send(message, queue, failure)
            except GoddardError as error:
                reason = error
            else:
                return True
        _logger.error(
            "message %s could not be sent to %s: %s", message.message_id, self._retry_topic, reason
        )
        return False

    async def _send(
        self, message: ReceivedMessage, queue: MessageQueue, failure: str | None
    ) -> None:
        address = self._session.broker_address(queue.broker_name)
        if address is None:
            raise BrokerNotFoundError(queue.broker_name)
        attempts = message.reconsume_times
        properties = dict(message.properties)
        for name in _LEFT_OUT:
            properties.pop(name, None)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        if queue.topic != message.queue.topic:
            properties[PROPERTY_RETRY_TOPIC] = message.queue.topic
        properties[PROPERTY_DELAY] = str(FIRST_RETRY_LEVEL + attempts)
        with_failure(properties, failure)
        header = SendRequestV2(
            producer_group=INNER_PRODUCER_GROUP,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=self._session.clock.now_ms(),
            flag=message.flag,
            properties=format_properties(properties),
            reconsume_times=attempts + 1,
            max_reconsume_times=self._max_reconsume_times,
            unit_mode=self._session.options.unit_mode,
            bname=queue.broker_name,
        )
        request = broker_api.command(RequestCode.SEND_MESSAGE_V2, header, message.body)
        response = await self._session.request(address, request, _SEND_TIMEOUT_MS)
        if response.code not in _STORED:
            raise broker_api.broker_error(response, address)
