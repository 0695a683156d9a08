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
from goddard.client.produce.encoding import Outgoing, SendSettings, properties_text
from goddard.client.produce.hooks import SendHooks
from goddard.client.produce.options import ProducerOptions
from goddard.client.produce.sender import Sender
from goddard.client.produce.targets import Targets
from goddard.client.session import Session
from goddard.errors import GoddardError
from goddard.protocol.codes import RequestCode
from goddard.protocol.message import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    with_failure,
)
from goddard.protocol.names import retry_topic

# The group under which RocketMQ's consumers send.
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
# The first retry has delay level 3 (10 s), the second level 4, and so on.
FIRST_RETRY_LEVEL: Final = 3
_MAX_TIMEOUT_PER_TRY_MS: Final = 3_000
_SEND_TIMEOUT_MS: Final = 9_000
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
        settings = SendSettings(group=INNER_PRODUCER_GROUP, is_unit_mode=session.options.unit_mode)
        self._sender = Sender(
            session,
            settings,
            ProducerOptions(max_timeout_per_try_ms=_MAX_TIMEOUT_PER_TRY_MS),
            Targets(session, settings, None, detects=False),
            SendHooks(session, settings, (), ()),
        )

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
        try:
            out = self._copy(message, failure)
            await self._sender.send_prepared(out, (), _SEND_TIMEOUT_MS, None)
        except GoddardError as error:
            reason = error
        else:
            return True
        _logger.error(
            "message %s could not be sent to %s: %s", message.message_id, self._retry_topic, reason
        )
        return False

    def _copy(self, message: ReceivedMessage, failure: str | None) -> Outgoing:
        attempts = message.reconsume_times
        properties = dict(message.properties)
        for name in _LEFT_OUT:
            properties.pop(name, None)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.message_id)
        if self._retry_topic != message.queue.topic:
            properties[PROPERTY_RETRY_TOPIC] = message.queue.topic
        properties[PROPERTY_DELAY] = str(FIRST_RETRY_LEVEL + attempts)
        with_failure(properties, failure)
        return Outgoing(
            code=RequestCode.SEND_MESSAGE_V2,
            topic=self._retry_topic,
            body=message.body,
            properties=properties_text(properties),
            sys_flag=0,
            flag=message.flag,
            message_id=message.message_id,
            user_topic=self._retry_topic,
            reconsume_times=attempts + 1,
            max_reconsume_times=self._max_reconsume_times,
        )
