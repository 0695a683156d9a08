"""A message on its way into the store, and what happens to it there.

``MessageWriter`` applies the rules that RocketMQ's put hooks apply to every message, from clients
and from the broker itself: limits, inner batches, timer properties, delay levels. It belongs to the
loop thread.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from goddard.broker.sending.appender import Appender, FlushTimeoutError
from goddard.broker.sending.property_meanings import DELAY_PROPERTIES, TIMER_PROPERTIES
from goddard.broker.settings import BrokerConfig, Settings
from goddard.errors import ProtocolError, StoreError
from goddard.protocol.message import (
    PROPERTY_DELAY,
    PROPERTY_INNER_NUM,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_WAIT,
    SysFlag,
    encode_properties,
)
from goddard.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_retry_topic
from goddard.protocol.record import MAX_TOPIC_BYTES_V1, Host
from goddard.replication.acknowledgements import (
    NoSlaveError,
    NotEnoughReplicasError,
    SlaveTimeoutError,
)
from goddard.store.errors import (
    MessageIllegalError,
    StoreDiskError,
    StoreFullError,
    StoreUnavailableError,
)
from goddard.store.log.records import LogEntry, PreparedRecord, RequestFields

_MAX_TOPIC_BYTES: Final = 255
_PREPARED: Final = 0x4
_INNER_BATCH: Final = int(SysFlag.INNER_BATCH)


class PutStatus(Enum):
    """How storing a message went; the names are RocketMQ's and travel as remarks."""

    PUT_OK = "stored"
    FLUSH_DISK_TIMEOUT = "stored, but the disk did not confirm it in time"
    FLUSH_SLAVE_TIMEOUT = "stored, but the slaves did not confirm it in time"
    SLAVE_NOT_AVAILABLE = "stored, but no slave is connected that is close enough"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "fewer replicas are in sync than are needed"
    SERVICE_NOT_AVAILABLE = "the store takes no messages"
    CREATE_MAPPED_FILE_FAILED = "the disk refused to write"
    MESSAGE_ILLEGAL = "the message breaks a limit"
    PROPERTIES_SIZE_EXCEEDED = "the properties are too long"
    WHEEL_TIMER_NOT_ENABLE = "there is no timer wheel"
    UNKNOWN_ERROR = "something else"


class PutRefusedError(StoreError):
    """A rule for messages forbids this one; nothing was written."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def put_status(error: StoreError | None) -> PutStatus:
    """What RocketMQ calls an outcome of storing a message."""
    match error:
        case None:
            return PutStatus.PUT_OK
        case PutRefusedError():
            return error.status
        case FlushTimeoutError():
            return PutStatus.FLUSH_DISK_TIMEOUT
        case NoSlaveError():
            return PutStatus.SLAVE_NOT_AVAILABLE
        case SlaveTimeoutError():
            return PutStatus.FLUSH_SLAVE_TIMEOUT
        case NotEnoughReplicasError():
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        case MessageIllegalError():
            return PutStatus.MESSAGE_ILLEGAL
        case StoreUnavailableError() | StoreFullError():
            return PutStatus.SERVICE_NOT_AVAILABLE
        case StoreDiskError():
            return PutStatus.CREATE_MAPPED_FILE_FAILED
        case _:
            return PutStatus.UNKNOWN_ERROR


class NewMessage(msgspec.Struct, kw_only=True):
    """A message to store. The body is as the client sent it, which may be compressed."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    born_timestamp_ms: int
    born_host: Host
    properties: dict[str, str] = {}
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @property
    def delay_level(self) -> int:
        """0 if it is not delayed; ProtocolError if the property is not a number."""
        text = self.properties.get(PROPERTY_DELAY)
        if text is None:
            return 0
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
            raise ProtocolError(f"the property DELAY is not a number: {text[:80]!r}")
        return int(text)

    @property
    def waits_durable(self) -> bool:
        """Whether its sender waits for the disk if the broker syncs (waitStoreMsgOK)."""
        wait = self.properties.get(PROPERTY_WAIT)
        return not wait or wait.lower() == "true"


WriteDone: TypeAlias = Callable[[LogEntry | None, StoreError | None], None]


class MessageWriter:
    """Stores messages; applies the rules that hold for every message."""

    def __init__(self, appender: Appender, settings: Settings) -> None:
        self._appender = appender
        # As in the store, a change of the levels takes effect at the next start.
        self._delay_level_count = len(settings.current.delay_levels.split())
        self._configure(settings.current)
        settings.add_listener(self._configure)

    def _configure(self, config: BrokerConfig) -> None:
        self._store_host = config.store_host
        self._max_message_bytes = config.max_message_bytes

    async def write(self, message: NewMessage, *, wait_durable: bool | None = None) -> LogEntry:
        """Store one message; raises a StoreError (see ``put_status``) or ProtocolError.

        With SYNC_FLUSH it returns once the message is on disk, unless its property WAIT, or the
        argument, says not to wait; with SYNC_MASTER also once its slaves have it. After a
        FlushTimeoutError or an UnreplicatedError the message is stored nevertheless.
        """
        entries = await self._appender.put(
            [self.prepare(message)],
            wait_durable=message.waits_durable if wait_durable is None else wait_durable,
        )
        return entries[0]

    def submit(
        self,
        message: NewMessage,
        done: WriteDone,
        *,
        max_wait_ms: int | None = None,
        wait_durable: bool | None = None,
    ) -> None:
        """Store one message at the end of this tick, in the order of submission.

        An illegal message raises here. ``done(entry, error)`` receives the outcome of the append; a
        FlushTimeoutError or UnreplicatedError comes with the entry. ``wait_durable`` overrides the
        property WAIT.
        """

        def appended(entries: Sequence[LogEntry] | None, error: StoreError | None) -> None:
            done(None if entries is None else entries[0], error)

        self._appender.submit(
            [self.prepare(message)],
            appended,
            wait_durable=message.waits_durable if wait_durable is None else wait_durable,
            max_wait_ms=max_wait_ms,
        )

    def prepare(self, message: NewMessage) -> PreparedRecord:
        """The record to append for a message; StoreError or ProtocolError if it is illegal."""
        return self.encode(self.with_delay_applied(message))

    def with_delay_applied(self, message: NewMessage) -> NewMessage:
        """The message to store: checked, and if it is delayed, one for the queue of its level."""
        self._check(message)
        properties = message.properties
        # Half messages and rollbacks are never delayed.
        if DELAY_PROPERTIES.isdisjoint(properties) or message.sys_flag & _PREPARED:
            return message
        level = message.delay_level
        if level <= 0:
            if (
                message.topic != TIMER_TOPIC
                and PROPERTY_TIMER_OUT_MS not in properties
                and not TIMER_PROPERTIES.isdisjoint(properties)
            ):
                raise PutRefusedError(
                    PutStatus.WHEEL_TIMER_NOT_ENABLE, "messages for a time of day are not supported"
                )
            return message
        level = min(level, self._delay_level_count)
        delayed = {
            name: value for name, value in properties.items() if name not in TIMER_PROPERTIES
        }
        delayed[PROPERTY_DELAY] = str(level)
        delayed[PROPERTY_REAL_TOPIC] = message.topic
        delayed[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
        return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=delayed)

    def _check(self, message: NewMessage) -> None:
        if not _is_short_topic(message.topic):
            raise PutRefusedError(
                PutStatus.MESSAGE_ILLEGAL, f"the topic {message.topic[:300]!r} is too long"
            )
        if not message.body:
            raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "the body is empty")
        if PROPERTY_INNER_NUM in message.properties or message.sys_flag & _INNER_BATCH:
            # They need queues of the type BatchCQ, which is not supported.
            raise PutRefusedError(PutStatus.MESSAGE_ILLEGAL, "inner batches are not supported")
        if len(message.body) > self._max_message_bytes:
            raise PutRefusedError(
                PutStatus.MESSAGE_ILLEGAL,
                f"a body of {len(message.body)} bytes is longer than {self._max_message_bytes}",
            )

    def encode(self, message: NewMessage) -> PreparedRecord:
        try:
            properties = encode_properties(message.properties)
        except ProtocolError as error:
            raise PutRefusedError(PutStatus.PROPERTIES_SIZE_EXCEEDED, str(error)) from error
        request = RequestFields(
            message.topic,
            message.queue_id,
            message.born_timestamp_ms,
            message.born_host,
            self._store_host,
            message.sys_flag,
            message.reconsume_times,
            message.prepared_transaction_offset,
        )
        return PreparedRecord(request, bytes(message.body), properties, message.flag)


@lru_cache(maxsize=4096)
def _is_short_topic(topic: str) -> bool:
    limit = _MAX_TOPIC_BYTES if is_retry_topic(topic) else MAX_TOPIC_BYTES_V1
    return len(topic.encode()) <= limit
