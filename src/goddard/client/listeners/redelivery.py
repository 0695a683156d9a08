"""Messages that a consumer could not handle: back to the broker, to be delivered again later.

The broker that stored a message is asked to put it into the group's retry topic after a delay, or
into its dead-letter topic after too many tries. If it cannot, the message is sent to the retry
topic as any other is, to whichever broker takes it. Belongs to the event loop.
"""

import logging
import random
from typing import Final

from goddard.client import broker_api
from goddard.client.errors import BrokerNotFoundError
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import GoddardError
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers_message import SendRequestV2
from goddard.protocol.message import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    format_properties,
)
from goddard.protocol.names import AUTO_CREATE_TOPIC, retry_topic

# The group under which RocketMQ's consumers send.
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
# The first retry has delay level 3 (10 s), the second level 4, and so on.
FIRST_RETRY_LEVEL: Final = 3
_SEND_TIMEOUT_MS: Final = 3_000
_SEND_TRIES: Final = 3
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)
# What was added on the way here, and what must not happen twice.
_LEFT_OUT: Final = (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_TRANSACTION_PREPARED,
)

_logger: Final = logging.getLogger("goddard.client")


class Retries:
    """Gives messages of one group back."""

    def __init__(self, session: Session, group: str, max_reconsume_times: int) -> None:
        self._session = session
        self._group = group
        self._retry_topic = retry_topic(group)
        self._max_reconsume_times = max_reconsume_times

    async def give_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Have a message delivered again; False if no broker took it.

        Level 0 leaves the delay to the broker, a negative one means the dead-letter topic.
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
            )
        except GoddardError as error:
            _logger.warning(
                "%s takes the message %s not back (%s); it is sent to %s instead",
                message.broker_name,
                message.message_id,
                error,
                self._retry_topic,
            )
            return await self.send_again(message)
        return True

    async def send_again(self, message: ReceivedMessage) -> bool:
        """Send a copy to the retry topic; a broker puts what was tried too often among the dead."""
        reason: GoddardError | None = None
        try:
            route = await self._session.publish_route(self._retry_topic)
            queues = list(route.queues)
        except GoddardError as error:
            queues = []
            reason = error
        random.shuffle(queues)
        for queue in queues[:_SEND_TRIES]:
            try:
                await self._send(message, queue)
            except GoddardError as error:
                reason = error
            else:
                return True
        _logger.error("the message %s could not be sent again: %s", message.message_id, reason)
        return False

    async def _send(self, message: ReceivedMessage, queue: MessageQueue) -> None:
        address = self._session.broker_address(queue.broker_name)
        if address is None:
            raise BrokerNotFoundError(queue.broker_name)
        tries = message.reconsume_times
        properties = dict(message.properties)
        for name in _LEFT_OUT:
            properties.pop(name, None)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        if queue.topic != message.queue.topic:
            properties[PROPERTY_RETRY_TOPIC] = message.queue.topic
        properties[PROPERTY_DELAY] = str(FIRST_RETRY_LEVEL + tries)
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
            reconsume_times=tries + 1,
            max_reconsume_times=self._max_reconsume_times,
            unit_mode=self._session.options.unit_mode,
            bname=queue.broker_name,
        )
        request = broker_api.command(RequestCode.SEND_MESSAGE_V2, header, message.body)
        response = await self._session.request(address, request, _SEND_TIMEOUT_MS)
        if response.code not in _STORED:
            raise broker_api.refusal(response, address)
