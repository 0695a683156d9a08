"""CONSUMER_SEND_MSG_BACK (36): a consumer could not handle a message and wants it again later.

The message goes to ``%RETRY%group`` through a delay level that rises with each try, and after the
last try to ``%DLQ%group``, where it waits for a person. Checks, remarks and stored properties are
RocketMQ's; its order of checks, too. Belongs to the loop.
"""

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from goddard.broker.sending.message_rules import MessageWriter, NewMessage, put_status
from goddard.broker.sending.stored import find_stored, message_of
from goddard.broker.settings import Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.environment import Environment
from goddard.errors import StoreError
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import SendBackRequest
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
    with_failure,
)
from goddard.protocol.names import dlq_topic, retry_topic
from goddard.protocol.record import Record
from goddard.protocol.responses import GroupNotExistError, NoPermissionError, SystemFailedError
from goddard.store.log.records import LogEntry
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_logger: Final = logging.getLogger(__name__)

_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_DLQ_QUEUES: Final = 1
_UNIT_SUBSCRIPTION: Final = 0x2  # TopicSysFlag: subscribed to by a unit
# Clients before this version do not say how often a message may be tried again.
_VERSION_3_4_9: Final = 121
# The level of the first retry, when the consumer leaves it to the broker: 10 seconds.
_FIRST_LEVEL: Final = 3
_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class SendBackStats(Protocol):
    """Who counts what comes back."""

    def put(self, topic: str, count: int, size: int) -> None: ...

    def sendback(self, topic: str, group: str) -> None: ...

    def dead(self, topic: str, group: str) -> None: ...


class SendBacks:
    """The handler of 36."""

    def __init__(
        self,
        *,
        store: MessageStore,
        writer: MessageWriter,
        topics: Topics,
        groups: Groups,
        settings: Settings,
        environment: Environment | None = None,
        stats: SendBackStats | None = None,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._random = (environment or Environment()).random
        self._stats = stats

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.handle}

    def handle(self, request: RemotingCommand, connection: Connection) -> RemotingCommand | None:
        """Submit in this very call, so that order is kept and a lost peer loses nothing."""
        header = SendBackRequest.decode(request.fields)
        group = self._groups.find(header.group)
        if group is None:
            raise GroupNotExistError(f"subscription group not exist, {header.group} {_FAQ}")
        config = self._settings.current
        if not config.is_writable:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        if group.retry_queue_nums <= 0:  # the group wants no retries
            return request.reply()
        self._ensure_retry_topic(header, group)
        record = find_stored(self._store, header.offset)
        if record is None:
            raise SystemFailedError(f"look message by offset failed, {header.offset}")
        is_dead = header.delay_level < 0 or record.reconsume_times >= _most_tries(
            request, header, group
        )
        if is_dead:
            message = self._dead(record, header.group)
        else:
            level = header.delay_level or _FIRST_LEVEL + record.reconsume_times
            message = _again(
                record,
                topic=retry_topic(header.group),
                queue_id=self._random.randrange(group.retry_queue_nums),
                delay_level=level,
            )
        with_failure(message.properties, header.consume_failure)

        def stored(entry: LogEntry | None, error: StoreError | None) -> None:
            if entry is None or error is not None:  # also when the disk did not confirm it
                answer = _failure(request, error)
            else:
                self._count(header, message, entry, is_dead=is_dead)
                answer = request.reply()
            if not request.is_oneway:
                connection.respond(answer)

        try:
            # Java stores it with WAIT=false and does not wait for the disk either; but with the
            # answer its consumer goes on, and nobody else would have the message.
            self._writer.submit(message, stored, wait_durable=True)
        except StoreError as error:
            return _failure(request, error)
        return None

    def _ensure_retry_topic(self, header: SendBackRequest, group: SubscriptionGroupConfig) -> None:
        topic = self._topics.ensure_topic(
            retry_topic(header.group),
            group.retry_queue_nums,
            _READ_WRITE,
            _UNIT_SUBSCRIPTION if header.unit_mode else 0,
        )
        if not topic.perm & Permission.WRITE:
            raise NoPermissionError(f"the topic[{topic.topic_name}] sending message is forbidden")

    def _dead(self, record: Record, group: str) -> NewMessage:
        topic = self._topics.ensure_topic(dlq_topic(group), _DLQ_QUEUES, _READ_WRITE)
        return _again(
            record,
            topic=topic.topic_name,
            queue_id=self._random.randrange(_DLQ_QUEUES),
            delay_level=0,
        )

    def _count(
        self, header: SendBackRequest, message: NewMessage, entry: LogEntry, *, is_dead: bool
    ) -> None:
        origin = message.properties[PROPERTY_RETRY_TOPIC]
        if is_dead:
            _logger.info(
                "send msg to DLQ %s, originalTopic=%s, consumerId=%s, msgUniqKey=%s, "
                "storeTimestamp=%d",
                message.topic,
                origin,
                header.group,
                message.properties.get(PROPERTY_UNIQUE_ID),
                entry.store_timestamp_ms,
            )
        if self._stats is not None:
            self._stats.put(entry.topic, 1, entry.size)
            self._stats.sendback(origin, header.group)
            if is_dead:
                self._stats.dead(origin, header.group)


def _most_tries(
    request: RemotingCommand, header: SendBackRequest, group: SubscriptionGroupConfig
) -> int:
    if request.version >= _VERSION_3_4_9 and header.max_reconsume_times is not None:
        return header.max_reconsume_times
    return group.retry_max_times


def _again(record: Record, *, topic: str, queue_id: int, delay_level: int) -> NewMessage:
    """The message of a record for another try."""
    message = message_of(record)
    properties = message.properties
    properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
    properties[PROPERTY_WAIT] = "false"
    properties[PROPERTY_DELAY] = str(delay_level)
    if not properties.get(PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
        properties[PROPERTY_ORIGIN_MESSAGE_ID] = offset_message_id(
            record.store_host, record.physical_offset
        )
    return replace(
        message, topic=topic, queue_id=queue_id, reconsume_times=record.reconsume_times + 1
    )


def _failure(request: RemotingCommand, error: StoreError | None) -> RemotingCommand:
    status = put_status(error)
    _logger.warning("a message that came back was not stored: %s: %s", status.name, error)
    return request.reply(ResponseCode.SYSTEM_ERROR, status.name)
