"""SEND_REPLY_MESSAGE (324, 325): the answer to a message that was sent as a question.

The reply names the client that asked (REPLY_TO_CLIENT) and is pushed to it (326) over its own
connection; the replier is answered once the asker has taken it. With ``storeReplyMessageEnable``
the reply is stored as well, in the cluster's reply topic. Belongs to the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from goddard.broker.sending.message_rules import MessageWriter, NewMessage
from goddard.broker.sending.send import PutStats, SendRefusedError, Sends, born_host
from goddard.broker.settings import Settings
from goddard.environment import Environment
from goddard.errors import ProtocolError, RemotingError, StoreError
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import ReplyRequest, SendRequest, decode_send
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import (
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REGION,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TRACE,
    TRANSACTION_MASK,
    decode_properties,
    format_properties,
)
from goddard.store.log.records import LogEntry
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_logger: Final = logging.getLogger(__name__)

_PUSH_TIMEOUT_MS: Final = 10_000

FindClient = Callable[[str], Connection | None]


class Replies:
    """The handlers of 324 and 325."""

    def __init__(
        self,
        *,
        sends: Sends,
        writer: MessageWriter,
        settings: Settings,
        find_client: FindClient,
        environment: Environment | None = None,
        stats: PutStats | None = None,
    ) -> None:
        self._sends = sends
        self._writer = writer
        self._settings = settings
        self._find_client = find_client
        environment = environment or Environment()
        self._clock = environment.clock
        self._random = environment.random
        self._stats = stats

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.handle,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.handle,
        }

    async def handle(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        header = decode_send(request.fields)
        try:
            topic = self._sends.checked_topic(header, connection)
        except SendRefusedError as refused:
            return self._sends.refusal(request, refused.code, refused.remark)
        config = self._settings.current
        message = self._message(request, connection, header, topic)
        message.properties[PROPERTY_REGION] = config.region_id
        message.properties[PROPERTY_TRACE] = self._sends.common_fields[PROPERTY_TRACE]
        storing = self._store(message) if config.store_replies else None
        problem = await self._push(header, message)
        fields = dict(self._sends.common_fields)
        if problem is None:
            # Clients cannot read an answer without these, stored or not.
            fields |= {"msgId": "0", "queueId": str(message.queue_id), "queueOffset": "0"}
        entry = None if storing is None else await storing
        if entry is not None:
            fields["msgId"] = offset_message_id(config.store_host, entry.physical_offset)
            fields["queueId"] = str(message.queue_id)
            fields["queueOffset"] = str(entry.queue_offset)
        if problem is not None:
            return request.reply(ResponseCode.SYSTEM_ERROR, problem, fields)
        return request.reply(ext_fields=fields)

    def _store(self, message: NewMessage) -> asyncio.Future[LogEntry | None]:
        """Store a reply for the record; the asker gets it even if that fails."""
        storing: asyncio.Future[LogEntry | None] = asyncio.get_running_loop().create_future()

        def stored(entry: LogEntry | None, error: StoreError | None) -> None:
            if entry is None:
                _logger.warning("a reply was not stored: %s", error)
            elif self._stats is not None:
                self._stats.put(entry.topic, 1, entry.size)
            if not storing.done():
                storing.set_result(entry)

        try:
            self._writer.submit(message, stored)
        except (StoreError, ProtocolError) as error:
            _logger.warning("a reply was not stored: %s", error)
            storing.set_result(None)
        return storing

    async def _push(self, header: SendRequest, message: NewMessage) -> str | None:
        """Give the reply to the client that asked; why that failed, or None."""
        client_id = message.properties.get(PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            _logger.warning("%s is null, can not reply message", PROPERTY_REPLY_TO_CLIENT)
            return f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
        connection = self._find_client(client_id)
        if connection is None:
            problem = f"push reply message fail, channel of <{client_id}> not found."
            _logger.warning("%s", problem)
            return problem
        now_ms = self._clock.now_ms()
        properties = {**message.properties, PROPERTY_PUSH_REPLY_TIME: str(now_ms)}
        pushed = ReplyRequest(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=format_properties(properties),
            reconsume_times=header.reconsume_times,
            unit_mode=bool(header.unit_mode),
            born_host=str(message.born_host),
            store_host=str(self._settings.current.store_host),
            store_timestamp=now_ms,
        )
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.encode(), bytes(message.body)
        )
        try:
            answer = await connection.request(command, _PUSH_TIMEOUT_MS)
        except RemotingError as error:
            _logger.warning("push reply message to <%s> fail: %s", client_id, error)
            return f"push reply message to {client_id}fail."
        if answer.code != ResponseCode.SUCCESS:
            _logger.warning("push reply message to <%s> return fail: %s", client_id, answer.remark)
            return f"push reply message to {client_id}fail."
        return None

    def _message(
        self,
        request: RemotingCommand,
        connection: Connection,
        header: SendRequest,
        topic: TopicConfig,
    ) -> NewMessage:
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(topic.write_queue_nums)
        return NewMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=bytes(request.body),
            born_timestamp_ms=header.born_timestamp,
            born_host=born_host(connection),
            properties=decode_properties(header.properties or ""),
            flag=header.flag,
            sys_flag=header.sys_flag & ~TRANSACTION_MASK,  # a reply is no half message
            reconsume_times=header.reconsume_times or 0,
        )
