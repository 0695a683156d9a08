"""Checks and encodes messages to send, and reads the broker's answers. Pure.

Messages are sent as SEND_MESSAGE_V2 (310), batches as SEND_BATCH_MESSAGE (320), replies as
SEND_REPLY_MESSAGE_V2 (325); all have the same header with names of one letter. ``frames`` encodes
plain sends faster.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from goddard.client.errors import BrokerError, InvalidMessageError
from goddard.client.message import Message, body_type_problem, check_flag, check_property
from goddard.client.values import MessageQueue, SendResult, SendStatus
from goddard.errors import ProtocolError
from goddard.protocol.codes import LanguageCode, RequestCode, ResponseCode
from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import SendRequestV2
from goddard.protocol.message import (
    BATCH_ENTRY_BYTES,
    DELAY_PROPERTIES,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
    BatchEntry,
    TransactionType,
    decode_properties,
    format_properties,
    iter_batch,
)
from goddard.protocol.names import UNSENDABLE_TOPICS, is_retry_topic, topic_problem
from goddard.protocol.record import MAX_PROPERTIES_BYTES

SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_SEND_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)
_PREPARED: Final = int(TransactionType.PREPARED)
# Goddard's brokers refuse more in one request.
MAX_BATCH_MESSAGES: Final = 32_768
_BATCH_FAILED: Final = "Failed to initiate the MessageBatch"
_MAX_NUMBER_CHARS: Final = 19
DEFAULT_REGION: Final = "DefaultRegion"

_STATUSES: Final[dict[int, SendStatus]] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """What a producer writes into every header."""

    group: str
    namespace: str = ""
    default_topic: str = "TBW102"
    default_queues: int = 4
    is_unit_mode: bool = False
    max_message_bytes: int = 4 * 1024 * 1024
    compress_from_bytes: int = 4096
    compression: CompressionKind = CompressionKind.ZLIB
    compression_level: int = 5


class Outgoing(NamedTuple):
    """A message ready for the wire; ``topic`` is the broker's name of it."""

    code: int
    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    message_id: str
    user_topic: str
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


# --- Checking -------------------------------------------------------------------------------------


def check_topic(topic: object) -> str:
    """Check that a topic may be sent to; the InvalidMessageError has RocketMQ's text."""
    if not isinstance(topic, str):
        raise InvalidMessageError(f"The specified topic is {topic!r}; it must be a str")
    problem = topic_problem(topic)
    if problem is not None:
        raise InvalidMessageError(problem)
    if topic in UNSENDABLE_TOPICS:
        raise InvalidMessageError(f"Sending message to topic[{topic}] is forbidden.")
    return topic


def check_body(body: object, max_bytes: int) -> None:
    if type(body) is not bytes:
        if body is None:
            raise InvalidMessageError("the message body is null")
        raise TypeError(body_type_problem(body))
    if not body:
        raise InvalidMessageError("the message body length is zero")
    if len(body) > max_bytes:
        raise InvalidMessageError(
            f"the message body size over max value, MAX: {max_bytes}",
            advice=f"it has {len(body)} bytes; send less at a time, or raise max_message_bytes "
            "of the producer and maxMessageSize of the brokers",
        )


# --- Preparing ------------------------------------------------------------------------------------


def properties_text(properties: Mapping[str, str]) -> str:
    """Properties as a header has them.

    TypeError if one is not text, InvalidMessageError if they cannot be sent for another reason.
    """
    for name, value in properties.items():
        check_property(name, value)
    try:
        text = format_properties(properties)
    except ProtocolError as error:
        raise InvalidMessageError(str(error)) from error
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidMessageError(f"the message properties are not text: {error}") from error
    if size > MAX_PROPERTIES_BYTES:
        raise InvalidMessageError(
            f"the message properties of {size} bytes are longer than {MAX_PROPERTIES_BYTES}"
        )
    return text


def prepare(
    message: Message,
    topic: str,
    message_id: str,
    settings: SendSettings,
    compressed: bytes | None = None,
    text_of: Callable[[Mapping[str, str]], str] = properties_text,
) -> Outgoing:
    """``topic`` is the broker's name; ``compressed`` the body, if it was compressed.

    ``text_of`` does the same as ``properties_text``.
    """
    properties = message.properties
    code = SEND
    sys_flag = 0
    reconsume_times = 0
    max_reconsume_times = None
    body = message.body
    if compressed is not None:
        body = compressed
        sys_flag = with_compression(0, settings.compression)
    if PROPERTY_TRANSACTION_PREPARED in properties:
        if properties[PROPERTY_TRANSACTION_PREPARED].lower() == "true":
            sys_flag |= _PREPARED
    elif properties.get(PROPERTY_MESSAGE_TYPE) == "reply":
        code = _SEND_REPLY
    if message.flag:
        check_flag(message.flag)
    if settings.namespace:
        properties = {**properties, PROPERTY_INSTANCE_ID: settings.namespace}
    if is_retry_topic(topic):
        properties = dict(properties)
        reconsume_times = _count_of(properties.pop(PROPERTY_RECONSUME_TIME, None)) or 0
        max_reconsume_times = _count_of(properties.pop(PROPERTY_MAX_RECONSUME_TIMES, None))
    out = (
        code,
        topic,
        body,
        text_of(properties),
        sys_flag,
        message.flag,
        message_id,
        message.topic,
        reconsume_times,
        max_reconsume_times,
    )
    return tuple.__new__(Outgoing, out)  # faster than Outgoing(...)


def compress_body(body: bytes, settings: SendSettings) -> bytes | None:
    """The compressed body; None if it is not smaller. Slow for large bodies: use a thread."""
    compressed = compress(body, settings.compression, settings.compression_level)
    return compressed if len(compressed) < len(body) else None


def encoded_properties(properties: Mapping[str, str]) -> bytes:
    """Properties as a batch body holds them."""
    return properties_text(properties).encode()


def _count_of(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return int(text)


# --- Batches --------------------------------------------------------------------------------------


def check_batch_topic(topic: str) -> None:
    if is_retry_topic(topic):
        raise InvalidMessageError(f"{_BATCH_FAILED}: Retry Group is not supported for batching")


def check_batch(messages: Sequence[Message]) -> None:
    """Check that messages may share a request; each is checked on its own as well."""
    if not messages:
        raise InvalidMessageError(f"{_BATCH_FAILED}: it is empty")
    first = messages[0]
    for message in messages:
        if not DELAY_PROPERTIES.isdisjoint(message.properties):
            raise InvalidMessageError(
                f"{_BATCH_FAILED}: TimeDelayLevel is not supported for batching"
            )
        if PROPERTY_TRANSACTION_PREPARED in message.properties:
            raise InvalidMessageError(
                f"{_BATCH_FAILED}: transaction messages are not supported for batching"
            )
        check_batch_topic(message.topic)
        if message.topic != first.topic:
            raise InvalidMessageError(
                f"{_BATCH_FAILED}: The topic of the messages in one batch should be the same"
            )
        if message.wait_store_ok != first.wait_store_ok:
            raise InvalidMessageError(
                f"{_BATCH_FAILED}: The waitStoreMsgOK of the messages in one batch should the same"
            )


def split_batch(
    messages: Iterable[Message], namespace: str, max_bytes: int
) -> Iterator[tuple[list[Message], list[BatchEntry]]]:
    """Split messages, in order, into requests of at most ``max_bytes``, or one larger message."""
    chunk: list[Message] = []
    entries: list[BatchEntry] = []
    size = 0
    for message in messages:
        properties = message.properties
        if namespace:
            properties = {**properties, PROPERTY_INSTANCE_ID: namespace}
        try:
            encoded = encoded_properties(properties)
        except InvalidMessageError as error:
            raise InvalidMessageError(f"{_BATCH_FAILED}: {error.message}") from error
        entry = BatchEntry(message.body, encoded, message.flag)
        entry_bytes = BATCH_ENTRY_BYTES + len(message.body) + len(encoded)
        if chunk and (size + entry_bytes > max_bytes or len(chunk) == MAX_BATCH_MESSAGES):
            yield chunk, entries
            chunk, entries, size = [], [], 0
        chunk.append(message)
        entries.append(entry)
        size += entry_bytes
    if chunk:
        yield chunk, entries


def prepare_batch(
    topic: str, user_topic: str, body: bytes, message_ids: Sequence[str], *, wait: bool
) -> Outgoing:
    """A batch whose body is encoded already."""
    text = format_properties({PROPERTY_WAIT: "true" if wait else "false"})
    return Outgoing(_SEND_BATCH, topic, body, text, 0, 0, ",".join(message_ids), user_topic)


def decoded_batch(topic: str, body: bytes) -> list[Message]:
    """The messages of an encoded batch, for hooks."""
    messages = []
    for entry in iter_batch(body):
        message = Message(topic, entry.body, flag=entry.flag)
        message.properties = decode_properties(entry.properties)
        messages.append(message)
    return messages


def split_result(result: SendResult, message_ids: Sequence[str]) -> list[SendResult]:
    """The result of a batch, for each of its messages."""
    status, _, stored_ids, queue, queue_offset, transaction, region, trace_on, handle = result
    offset_ids = stored_ids.split(",")
    if len(offset_ids) != len(message_ids):
        # A topic that stores batches whole (queue.type BatchCQ) has one id for all.
        offset_ids = [stored_ids] * len(message_ids)
    offsets = range(queue_offset, queue_offset + len(message_ids))
    of_all = transaction, region, trace_on, handle
    return [
        # Faster than SendResult(...).
        tuple.__new__(SendResult, (status, message_id, offset_id, queue, offset, *of_all))
        for message_id, offset_id, offset in zip(message_ids, offset_ids, offsets, strict=True)
    ]


# --- Encoding -------------------------------------------------------------------------------------


def send_command(
    out: Outgoing, queue: MessageQueue, born_timestamp_ms: int, settings: SendSettings
) -> RemotingCommand:
    header = SendRequestV2(
        producer_group=settings.group,
        topic=out.topic,
        default_topic=settings.default_topic,
        default_topic_queue_nums=settings.default_queues,
        queue_id=queue.queue_id,
        sys_flag=out.sys_flag,
        born_timestamp=born_timestamp_ms,
        flag=out.flag,
        properties=out.properties,
        reconsume_times=out.reconsume_times,
        unit_mode=settings.is_unit_mode,
        max_reconsume_times=out.max_reconsume_times,
        batch=out.code == _SEND_BATCH,
        bname=queue.broker_name,
    )
    return RemotingCommand(out.code, header.encode(), out.body, language=LanguageCode.PYTHON)


# --- The answer -----------------------------------------------------------------------------------


def read_result(
    out: Outgoing, queue: MessageQueue, response: RemotingCommand, address: str
) -> SendResult:
    """The result of a send. BrokerError if the broker refused it; ProtocolError if the answer
    cannot be read."""
    status = _STATUSES.get(response.code)
    if status is None:
        raise BrokerError(response.code, response.remark, address)
    fields = response.ext_fields or {}
    offset_message_id = fields.get("msgId")
    if offset_message_id is None:
        raise ProtocolError(f"{address} answered a send without a message id")
    queue_id = _number(fields.get("queueId"), address)
    if queue_id != queue.queue_id or out.user_topic != out.topic:
        queue = MessageQueue(out.user_topic, queue.broker_name, queue_id)
    result = (
        status,
        fields.get("batchUniqId") or out.message_id,
        offset_message_id,
        queue,
        _number(fields.get("queueOffset"), address),
        fields.get("transactionId"),
        fields.get("MSG_REGION") or DEFAULT_REGION,
        fields.get("TRACE_ON") != "false",
        fields.get("recallHandle"),
    )
    return tuple.__new__(SendResult, result)  # faster than SendResult(...)


def _number(text: str | None, address: str) -> int:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _MAX_NUMBER_CHARS:
        raise ProtocolError(f"{address} answered a send with {text!r} instead of a number")
    return int(text)
