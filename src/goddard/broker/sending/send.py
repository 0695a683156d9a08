"""SEND_MESSAGE in all its forms (10, 310, 320), for any request: checks, storing, answering.

A handler here checks and submits in the same call, so that the messages of one connection are
stored in the order in which they came; the answer follows when they are stored. Checks, codes,
remarks and answer fields are RocketMQ's, in its order. The compiled lane (``lane.sends``) does the
same for plain requests only; what it leaves comes here, and this is what it is tested against.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from goddard.broker.sending.appender import Appender, LateError
from goddard.broker.sending.message_rules import (
    MessageWriter,
    NewMessage,
    PutRefusedError,
    PutStatus,
    put_status,
)
from goddard.broker.sending.new_topics import NewTopics, SaveTopics
from goddard.broker.sending.overload import Overload, late_remark
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Groups, Topics, topic_text
from goddard.clock import format_local_time
from goddard.environment import Environment
from goddard.errors import ProtocolError, StoreError
from goddard.protocol import names
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import SendRequest, decode_send
from goddard.protocol.ids import UniqueIds, offset_message_id
from goddard.protocol.message import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_POP_CK,
    PROPERTY_REGION,
    PROPERTY_TRACE,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_ID,
    TRANSACTION_MASK,
    SysFlag,
    decode_properties,
    iter_batch,
)
from goddard.protocol.record import Host
from goddard.protocol.templates import ResponseTemplate
from goddard.store.log.records import LogEntry, PreparedRecord, RequestFields
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handler

_log = logging.getLogger(__name__)

_READ_WRITE: Final = int(Permission.READ | Permission.WRITE)
_MAX_BATCH_TOPIC_LENGTH: Final = 127
# A batch is checked and stored in one turn of the loop, which it must not hold up for long. Java
# has no such limit, but with an id for each and 60 bytes of body 4 MiB hold no more than this.
MAX_BATCH_MESSAGES: Final = 32_768
_DLQ_QUEUES: Final = 1
# TopicSysFlag: a topic of a unit, and one subscribed to by a unit.
_UNIT: Final = 0x1
_UNIT_SUBSCRIPTION: Final = 0x2
# Clients before this version do not say how often a message may be tried again.
_VERSION_3_4_9: Final = 121
_LOG_INTERVAL_MS: Final = 1_000
_MULTI_TAGS: Final = int(SysFlag.MULTI_TAGS)
_NOWHERE: Final = Host(bytes(4), 0)
_BORN_HOST: Final = "born_host"
_FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

# What clients are told of a message that is in the log, but not confirmed.
_STORED_CODES: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}

AsHalf: TypeAlias = Callable[[NewMessage], NewMessage]


class PutStats(Protocol):
    """Who counts what is stored."""

    def put(self, topic: str, count: int, size: int, requests: int = 1) -> None: ...


def born_host(connection: Connection) -> Host:
    """The peer's address as records hold it."""
    host: Host | None = connection.attachments.get(_BORN_HOST)
    if host is None:
        try:
            host = Host.parse(connection.remote)
        except ProtocolError:
            host = _NOWHERE
        connection.attachments[_BORN_HOST] = host
    return host


def message_text(message: NewMessage, store_host: Host) -> str:
    """As RocketMQ's logs show a message on its way to the store; the body is left out."""
    properties = ", ".join(f"{name}={value}" for name, value in message.properties.items())
    return (
        f"MessageExt [queueId={message.queue_id}, storeSize=0, queueOffset=0, "
        f"sysFlag={message.sys_flag}, bornTimestamp={message.born_timestamp_ms}, "
        f"bornHost=/{message.born_host}, storeTimestamp=0, storeHost=/{store_host}, msgId=null, "
        f"commitLogOffset=0, bodyCRC=0, reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={{{properties}}}, body={len(message.body)} bytes}}]"
    )


class SendRefusedError(Exception):
    """A check failed; the answer says why and carries the fields of every send's answer."""

    def __init__(self, code: int, remark: str | None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class Sends:
    """The handlers of sends.

    ``as_half`` makes a half message of one; without it transactions are refused.
    ``has_live_locks`` tells whether a group consumes in order right now. ``save_topics`` returns
    when the topics that sends created are on the disk.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        appender: Appender,
        writer: MessageWriter,
        overload: Overload,
        topics: Topics,
        groups: Groups,
        settings: Settings,
        environment: Environment | None = None,
        stats: PutStats | None = None,
        as_half: AsHalf | None = None,
        has_live_locks: Callable[[str], bool] | None = None,
        unique_ids: UniqueIds | None = None,
        save_topics: SaveTopics | None = None,
    ) -> None:
        self._store = store
        self._appender = appender
        self._writer = writer
        self._overload = overload
        self._topics = topics
        self._groups = groups
        self._settings = settings
        environment = environment or Environment()
        self._clock = environment.clock
        self._random = environment.random
        self._stats = stats
        self._as_half = as_half
        self._has_live_locks = has_live_locks
        self._new_topics = None if save_topics is None else NewTopics(topics, save_topics)
        self._failures = 0
        self._next_log_ms = 0
        self._unique_ids = unique_ids or UniqueIds(
            settings.current.store_host.ip,
            environment.process_id(),
            self._random.getrandbits(31),
        )
        self._configure(settings.current)
        settings.add_listener(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._config = config
        self._store_host = config.store_host
        # A message id is this and the physical offset in 16 hexadecimal digits.
        self._id_prefix = offset_message_id(config.store_host, 0)[:-16]
        # Every answer but that of an overloaded broker has these, in Java's order.
        self.common_fields = {
            PROPERTY_TRACE: "true" if config.trace_on else "false",
            PROPERTY_REGION: config.region_id,
        }
        # Of one message that has a unique id; the fields are those of ``success``.
        self._stored = ResponseTemplate(
            ResponseCode.SUCCESS,
            None,
            {
                "queueId": None,
                "transactionId": None,
                "msgId": None,
                **self.common_fields,
                "queueOffset": None,
            },
        )

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.handle,
            RequestCode.SEND_MESSAGE_V2: self.handle,
            RequestCode.SEND_BATCH_MESSAGE: self.handle,
        }

    def handle(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None] | None:
        """Submit what the request holds; the answer is sent later, refusals are returned."""
        _log.debug("receive SendMessage request command, %s", request)
        header = decode_send(request.fields)
        try:
            topic = self.checked_topic(header, connection)
        except SendRefusedError as refused:
            return self.refusal(request, refused.code, refused.remark)
        if self._new_topics is not None and header.topic in self._new_topics:
            saved = self._new_topics.send_when_saved(
                header.topic, lambda: self._send(request, connection, header, topic)
            )
            return self._await_saved(request, saved)
        return self._send(request, connection, header, topic)

    async def _await_saved(
        self, request: RemotingCommand, saved: asyncio.Future[RemotingCommand | None]
    ) -> RemotingCommand | None:
        try:
            return await saved
        except StoreError as error:
            return self.failure(request, error)

    def _send(
        self,
        request: RemotingCommand,
        connection: Connection,
        header: SendRequest,
        topic: TopicConfig,
    ) -> RemotingCommand | None:
        try:
            if header.batch:
                self._send_batch(request, connection, header, topic)
            else:
                self._send_one(request, connection, header, topic)
        except SendRefusedError as refused:
            return self.refusal(request, refused.code, refused.remark)
        except StoreError as error:
            return self.failure(request, error)
        return None

    # Checks

    def checked_topic(self, header: SendRequest, connection: Connection) -> TopicConfig:
        config = self._config
        name = header.topic
        if self._clock.now_ms() < config.accept_sends_from_ms:
            until = _human_time(config.accept_sends_from_ms)
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {until}"
            )
        if not config.is_writable and self._topics.is_ordered(name):
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] sending message is forbidden",
            )
        problem = names.topic_problem(name)
        if problem is not None:
            raise SendRefusedError(ResponseCode.INVALID_PARAMETER, problem)
        if name in names.UNSENDABLE_TOPICS:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
            )
        topic = self._topics.get(name) or self._created_topic(header, connection)
        if topic is None:
            raise SendRefusedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please!{_FAQ}",
            )
        queues = max(topic.write_queue_nums, topic.read_queue_nums)
        if header.queue_id >= queues or (header.queue_id < 0 and topic.write_queue_nums < 1):
            remark = (
                f"request queueId[{header.queue_id}] is illegal, {topic_text(topic)} "
                f"Producer: {connection.remote}"
            )
            _log.warning("%s", remark)
            raise SendRefusedError(ResponseCode.INVALID_PARAMETER, remark)
        return topic

    def _created_topic(self, header: SendRequest, connection: Connection) -> TopicConfig | None:
        is_retry = names.is_retry_topic(header.topic)
        sys_flag = 0
        if header.unit_mode:
            sys_flag = _UNIT_SUBSCRIPTION if is_retry else _UNIT
        topic = self._topics.create_on_send(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            connection.remote,
            sys_flag,
        )
        if topic is None and is_retry:
            topic = self._topics.ensure_topic(header.topic, 1, _READ_WRITE, sys_flag)
        return topic

    # One message

    def _send_one(
        self,
        request: RemotingCommand,
        connection: Connection,
        header: SendRequest,
        topic: TopicConfig,
    ) -> None:
        message = self._message(request, connection, header, topic)
        queue_id, properties = message.queue_id, message.properties
        unique_id = properties[PROPERTY_UNIQUE_ID]
        if _is_true(properties.get(PROPERTY_TRANSACTION_PREPARED)) and not (
            # Clients before 4.6.1 send a half message back with this property still set.
            message.reconsume_times > 0 and message.delay_level > 0
        ):
            if self._as_half is None or self._config.reject_transactions:
                raise SendRefusedError(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{self._config.broker_ip1}] sending transaction message is "
                    "forbidden",
                )
            message = self._as_half(message)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("the msgInner's content is:%s", message_text(message, self._store_host))
        self._appender.submit(
            [self._writer.prepare(message)],
            partial(self._answer, request, connection, queue_id, unique_id),
            wait_durable=message.waits_durable,
            max_wait_ms=self._overload.max_wait_ms,
        )

    def _message(
        self,
        request: RemotingCommand,
        connection: Connection,
        header: SendRequest,
        topic: TopicConfig,
    ) -> NewMessage:
        """The message with every property that a broker adds."""
        config = self._config
        properties = decode_properties(header.properties or "")
        properties[PROPERTY_REGION] = config.region_id
        properties[PROPERTY_TRACE] = self.common_fields[PROPERTY_TRACE]
        properties.pop(PROPERTY_POP_CK, None)
        name, queue_id = header.topic, self._queue_id(header, topic)
        if names.is_retry_topic(name):
            group = name.removeprefix(names.RETRY_PREFIX)
            if self._is_dead(group, request, header):
                properties[PROPERTY_DELAY] = "-1"
                name = names.dlq_topic(group)
                queue_id = self._random.randrange(_DLQ_QUEUES)
                topic = self._topics.ensure_topic(name, _DLQ_QUEUES, _READ_WRITE)
        if PROPERTY_UNIQUE_ID not in properties:
            properties[PROPERTY_UNIQUE_ID] = self._unique_ids.next(self._clock.now_ms())
        if (
            topic.attributes.get("cleanup.policy") == "COMPACTION"
            and not properties.get(PROPERTY_KEYS, "").strip()
        ):
            raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
        properties[PROPERTY_CLUSTER] = config.cluster_name
        return NewMessage(
            topic=name,
            queue_id=queue_id,
            body=request.body,
            born_timestamp_ms=header.born_timestamp,
            born_host=born_host(connection),
            properties=properties,
            flag=header.flag,
            sys_flag=_sys_flag(header, topic),
            reconsume_times=header.reconsume_times or 0,
        )

    def _is_dead(self, group: str, request: RemotingCommand, header: SendRequest) -> bool:
        """Whether a message that comes back for another try has had its last one."""
        config = self._groups.find(group)
        if config is None:
            raise SendRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {_FAQ}",
            )
        most = config.retry_max_times
        if request.version >= _VERSION_3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        times = header.reconsume_times or 0
        if self._has_live_locks is not None and self._has_live_locks(group):
            _log.info(
                "Group has unexpired lock record, which show it is ordered message, send it to DLQ "
                "right now group=%s, topic=%s, reconsumeTimes=%d, maxReconsumeTimes=%d.",
                group,
                header.topic,
                times,
                most,
            )
            return True
        return times > most

    # A batch

    def _send_batch(
        self,
        request: RemotingCommand,
        connection: Connection,
        header: SendRequest,
        topic: TopicConfig,
    ) -> None:
        name = header.topic
        if len(name) > _MAX_BATCH_TOPIC_LENGTH:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(name)}"
            )
        if names.is_retry_topic(name):
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {name}"
            )
        queue_id = self._queue_id(header, topic)
        properties = decode_properties(header.properties or "")
        batch = NewMessage(
            topic=name,
            queue_id=queue_id,
            body=request.body,
            born_timestamp_ms=header.born_timestamp,
            born_host=born_host(connection),
            properties=properties,
            sys_flag=_sys_flag(header, topic),
            reconsume_times=header.reconsume_times or 0,
        )
        staged = self._writer.with_delay_applied(batch)
        if staged is not batch or batch.sys_flag & TRANSACTION_MASK:
            raise PutRefusedError(
                PutStatus.MESSAGE_ILLEGAL, "a batch is neither delayed nor part of a transaction"
            )
        messages = list(islice(iter_batch(request.body), MAX_BATCH_MESSAGES + 1))
        if len(messages) > MAX_BATCH_MESSAGES:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch has {MAX_BATCH_MESSAGES} messages at most; send the others in another",
            )
        fields = RequestFields(
            name,
            queue_id,
            batch.born_timestamp_ms,
            batch.born_host,
            self._store_host,
            batch.sys_flag,
            batch.reconsume_times,
        )
        records = [PreparedRecord(fields, *message) for message in messages]
        unique_id = properties.get(PROPERTY_UNIQUE_ID)
        self._appender.submit(
            records,
            partial(self._answer, request, connection, queue_id, unique_id),
            whole=True,
            wait_durable=batch.waits_durable,
            max_wait_ms=self._overload.max_wait_ms,
        )

    # Answers

    def _answer(
        self,
        request: RemotingCommand,
        connection: Connection,
        queue_id: int,
        unique_id: str | None,
        entries: Sequence[LogEntry] | None,
        error: StoreError | None,
    ) -> None:
        """Answer a send whose records lie side by side in the log, or are not stored."""
        if entries is None:
            if not request.is_oneway:
                connection.respond(self.failure(request, error))
            return
        first, last = entries[0], entries[-1]
        count = len(entries)
        if self._stats is not None:
            self._stats.put(first.topic, count, last.end_offset - first.physical_offset)
        if request.is_oneway:
            return
        if count > 1 or error is not None or unique_id is None:
            connection.respond(self.success(request, entries, queue_id, unique_id, error))
        elif not connection.is_closed:
            message_id = f"{self._id_prefix}{first.physical_offset:016X}"
            values = (str(queue_id), unique_id, message_id, str(first.queue_offset))
            connection.send_encoded(
                self._stored.head(request.serialize_type, request.opaque, values)
            )

    def success(
        self,
        request: RemotingCommand,
        entries: Sequence[LogEntry],
        queue_id: int,
        unique_id: str | None,
        error: StoreError | None = None,
    ) -> RemotingCommand:
        """The answer if the records are in the log; ``error`` says what did not confirm them."""
        prefix = self._id_prefix
        ids = ",".join([f"{prefix}{entry.physical_offset:016X}" for entry in entries])
        fields = {"queueId": str(queue_id)}
        if unique_id is not None:
            fields["transactionId"] = unique_id
        fields["msgId"] = ids
        fields |= self.common_fields
        fields["queueOffset"] = str(entries[0].queue_offset)
        code = _STORED_CODES.get(put_status(error), ResponseCode.SUCCESS)
        return request.reply(code, None, fields)

    def failure(self, request: RemotingCommand, error: StoreError | None) -> RemotingCommand:
        """The answer if the records are not in the log."""
        if isinstance(error, LateError):
            return request.reply(ResponseCode.SYSTEM_BUSY, late_remark(error))
        status = put_status(error)
        self._log_failure(status, error)
        return self.refusal(request, *self._put_remark(status))

    def _log_failure(self, status: PutStatus, error: StoreError | None) -> None:
        """One line per interval: a broken disk refuses every message of every client."""
        self._failures += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_log_ms:
            _log.warning(
                "messages not stored so far: %d, the last: %s: %s",
                self._failures,
                status.name,
                error,
            )
            self._next_log_ms = now_ms + _LOG_INTERVAL_MS

    def _put_remark(self, status: PutStatus) -> tuple[int, str]:
        match status:
            case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
                return (
                    ResponseCode.MESSAGE_ILLEGAL,
                    "the message is illegal, maybe msg body or properties length not matched. msg "
                    f"body length limit {self._config.max_message_bytes}B, msg properties length "
                    "limit 32KB.",
                )
            case PutStatus.SERVICE_NOT_AVAILABLE:
                return (
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "service not available now. It may be caused by one of the following reasons: "
                    f"the broker's disk is full [{self._disk_text()}], messages are put to the "
                    "slave, message store has been shut down, etc.",
                )
            case PutStatus.CREATE_MAPPED_FILE_FAILED:
                return (
                    ResponseCode.SYSTEM_ERROR,
                    "create mapped file failed, server is busy or broken.",
                )
            case PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
                return ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"
            case PutStatus.WHEEL_TIMER_NOT_ENABLE:
                return (
                    ResponseCode.SYSTEM_ERROR,
                    "accurate timer message is not enabled, this broker has no timer wheel",
                )
            case _:
                return ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"

    def _queue_id(self, header: SendRequest, topic: TopicConfig) -> int:
        if header.queue_id >= 0:
            return header.queue_id
        return self._random.randrange(topic.write_queue_nums)

    def _disk_text(self) -> str:
        """How full the disks are; here log, queues and index share one."""
        ratio = self._store.last_disk_ratio
        return f"CL: {ratio:5.2f} CQ: {ratio:5.2f} INDEX: {ratio:5.2f}"

    def refusal(self, request: RemotingCommand, code: int, remark: str | None) -> RemotingCommand:
        return request.reply(code, remark, dict(self.common_fields))


def _sys_flag(header: SendRequest, topic: TopicConfig) -> int:
    if topic.topic_filter_type == "MULTI_TAG":
        return header.sys_flag | _MULTI_TAGS
    return header.sys_flag


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() == "true"


def _human_time(timestamp_ms: int) -> str:
    return f"{format_local_time('%Y-%m-%d %H:%M:%S', timestamp_ms)},{timestamp_ms % 1000:03d}"
