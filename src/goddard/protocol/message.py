"""Messages as producers create them: properties, system flags, batch bodies.

Properties are encoded as ``name 0x01 value 0x02 ...`` in UTF-8. The last separator is optional when
reading (clients 4.9.1 to 5.1.4 omit it) and always written. A pair with an empty name or value is
ignored; the last of duplicate names is used. As in Java, malformed UTF-8 is decoded as U+FFFD.

A batch body is a sequence of messages::

    total_size:i32 magic:i32=0 body_crc:i32=0 flag:i32 body_length:i32 body
    properties_length:i16 properties
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, NamedTuple

from goddard.errors import ProtocolError
from goddard.protocol.record import BORN_HOST_V6, MAX_PROPERTIES_BYTES, STORE_HOST_V6, Buffer

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_MIN_OFFSET: Final = "MIN_OFFSET"
PROPERTY_MAX_OFFSET: Final = "MAX_OFFSET"
PROPERTY_BUYER_ID: Final = "BUYER_ID"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSFER_FLAG: Final = "TRANSFER_FLAG"
PROPERTY_CORRECTION_FLAG: Final = "CORRECTION_FLAG"
PROPERTY_MQ2_FLAG: Final = "MQ2_FLAG"
PROPERTY_RECONSUME_TIME: Final = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
PROPERTY_REGION: Final = "MSG_REGION"
PROPERTY_TRACE: Final = "TRACE_ON"
PROPERTY_UNIQUE_ID: Final = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
PROPERTY_CONSUME_START_TIME: Final = "CONSUME_START_TIME"
PROPERTY_INNER_NUM: Final = "INNER_NUM"
PROPERTY_INNER_BASE: Final = "INNER_BASE"
PROPERTY_DUP_INFO: Final = "DUP_INFO"
PROPERTY_CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_INSTANCE_ID: Final = "INSTANCE_ID"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_TTL: Final = "TTL"
PROPERTY_ARRIVE_TIME: Final = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_MESSAGE_TYPE: Final = "MSG_TYPE"
PROPERTY_POP_CK: Final = "POP_CK"
PROPERTY_POP_CK_OFFSET: Final = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME: Final = "1ST_POP_TIME"
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"
PROPERTY_FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
PROPERTY_REDIRECT: Final = "REDIRECT"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_TRACE_CONTEXT: Final = "TRACE_CONTEXT"
PROPERTY_TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
PROPERTY_TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
PROPERTY_BORN_HOST: Final = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
PROPERTY_CRC32: Final = "__CRC32#"
PROPERTY_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
# Goddard's own: why the last consumer of a retried message or of a dead letter failed.
CONSUME_FAILURE: Final = "CONSUME_FAILURE"
MAX_FAILURE_CHARS: Final = 500
# So much room for other properties is left.
_RESERVED_BYTES: Final = 1_024
# A property with this prefix is never stored.
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."

RESERVED_PROPERTIES: Final = frozenset(
    value for name, value in dict(globals()).items() if name.startswith("PROPERTY_")
) - {
    # Names that a user may set: they are not in RocketMQ's own list (MessageConst).
    PROPERTY_INNER_NUM,
    PROPERTY_INNER_BASE,
    PROPERTY_CHECK_IMMUNITY_SECONDS,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_SHARDING_KEY,
    PROPERTY_FORWARD_QUEUE_ID,
    PROPERTY_REDIRECT,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_TRACE_CONTEXT,
}
"""Names that a user's property may not have."""

DELAY_PROPERTIES: Final = frozenset(
    {
        PROPERTY_DELAY,
        PROPERTY_TIMER_DELAY_SEC,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELIVER_MS,
        "__STARTDELIVERTIME",
    }
)
"""A message with one of these is delivered later; RocketMQ does not reserve the last name."""

KEY_SEPARATOR: Final = " "
NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
_PAIR_END_BYTE: Final = 2

_BATCH_HEAD: Final = Struct(">iiiii")
_I16: Final = Struct(">h")
BATCH_ENTRY_BYTES: Final = _BATCH_HEAD.size + _I16.size
"""The bytes of a batch entry besides its body and properties."""


class SysFlag(IntFlag):
    """Bits of a message's system flag. Bits 2-3 hold the TransactionType, bits 8-10 the
    CompressionKind."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    BORN_HOST_V6 = BORN_HOST_V6
    STORE_HOST_V6 = STORE_HOST_V6
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


class TransactionType(IntEnum):
    """The part of a system flag under TRANSACTION_MASK."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


TRANSACTION_MASK: Final = 0xC


def transaction_type(sys_flag: int) -> TransactionType:
    return TransactionType(sys_flag & TRANSACTION_MASK)


def with_transaction_type(sys_flag: int, kind: TransactionType) -> int:
    return sys_flag & ~TRANSACTION_MASK | kind


@dataclass(slots=True)
class Message:
    """A message as a producer receives it: uncompressed, not in a queue yet."""

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(PROPERTY_KEYS, "").split()

    @property
    def unique_id(self) -> str | None:
        return self.properties.get(PROPERTY_UNIQUE_ID)


def format_properties(properties: Mapping[str, str]) -> str:
    """Encode properties as the text of a send header, without pairs that have an empty part."""
    pairs = [
        f"{name}{NAME_END}{value}{PAIR_END}" for name, value in properties.items() if name and value
    ]
    text = "".join(pairs)
    # Counting in the whole text is faster than searching each pair.
    if text.count(PAIR_END) != len(pairs) or text.count(NAME_END) != len(pairs):
        for name, value in properties.items():
            if name and value and (NAME_END in name or PAIR_END in name + value):
                raise ProtocolError(f"the property {name[:80]!r} contains a separator (0x01, 0x02)")
    return text


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties as the bytes in records and batches."""
    encoded = format_properties(properties).encode("utf-8", "replace")
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise ProtocolError(
            f"properties of {len(encoded)} bytes are longer than {MAX_PROPERTIES_BYTES}"
        )
    return encoded


def decode_properties(properties: str | Buffer) -> dict[str, str]:
    """Decode properties from the text of a header or the bytes of a record; never fails."""
    text = properties if isinstance(properties, str) else str(properties, "utf-8", "replace")
    decoded: dict[str, str] = {}
    for pair in text.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            decoded[name] = value
    return decoded


def bounded_failure(text: str) -> str:
    """The reason of a failure as one printable line of at most MAX_FAILURE_CHARS."""
    line = " ".join(text[: 4 * MAX_FAILURE_CHARS].split())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= MAX_FAILURE_CHARS else f"{line[: MAX_FAILURE_CHARS - 3]}..."


def with_failure(properties: dict[str, str], failure: str | None) -> None:
    """Add why the message was not consumed, unless the properties would become too long."""
    if not failure:
        return
    properties.pop(CONSUME_FAILURE, None)
    text = bounded_failure(failure)
    # Delayed delivery adds properties, too.
    used = sum(
        len(f"{name}{value}".encode("utf-8", "replace")) + 2 for name, value in properties.items()
    )
    if used + len(text.encode("utf-8", "replace")) <= MAX_PROPERTIES_BYTES - _RESERVED_BYTES:
        properties[CONSUME_FAILURE] = text


def find_property(properties: Buffer, name: bytes) -> bytes | None:
    """Find one property in raw bytes, as ``decode_properties`` would, without decoding them."""
    raw = properties if isinstance(properties, bytes) else bytes(properties)
    wanted = name + b"\x01"
    found = raw.rfind(wanted)
    while found >= 0:
        if found == 0 or raw[found - 1] == _PAIR_END_BYTE:
            start = found + len(wanted)
            end = raw.find(b"\x02", start)
            value = raw[start:] if end < 0 else raw[start:end]
            if value:
                return value
        found = raw.rfind(wanted, 0, found + len(wanted) - 1)
    return None


def join_properties(first: bytes, second: bytes) -> bytes:
    """Concatenate properties; those of ``second`` override those of ``first``."""
    if first and second and first[-1] != _PAIR_END_BYTE:
        return first + b"\x02" + second
    return first + second


class BatchEntry(NamedTuple):
    """One message of a batch body; the batch has the topic, the queue and the system flag."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Encode the body of a batch send."""
    parts: list[bytes] = []
    for body, properties, flag in entries:
        parts.append(encode_batch_entry(body, properties, flag))
    return b"".join(parts)


def encode_batch_entry(body: bytes, properties: bytes, flag: int) -> bytes:
    """Encode one message of a batch body."""
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise ProtocolError(
            f"properties of {len(properties)} bytes are longer than {MAX_PROPERTIES_BYTES}"
        )
    size = BATCH_ENTRY_BYTES + len(body) + len(properties)
    try:
        head = _BATCH_HEAD.pack(size, 0, 0, flag, len(body))
    except struct.error as error:
        raise ProtocolError(f"a number does not fit its field of a batch: {error}") from error
    return b"".join((head, body, _I16.pack(len(properties)), properties))


def iter_batch(body: Buffer) -> Iterator[BatchEntry]:
    """The messages of a batch body one by one; ProtocolError at the first that is malformed."""
    data = bytes(body)
    end = len(data)
    position = 0
    while position < end:
        if end - position < BATCH_ENTRY_BYTES:
            raise ProtocolError(f"{end - position} bytes at the end of a batch are not a message")
        size, _magic, _crc, flag, body_length = _BATCH_HEAD.unpack_from(data, position)
        if not BATCH_ENTRY_BYTES <= size <= end - position:
            raise ProtocolError(f"a message of {size} bytes does not fit the rest of its batch")
        if not 0 <= body_length <= size - BATCH_ENTRY_BYTES:
            raise ProtocolError(f"a body of {body_length} bytes does not fit its message of {size}")
        body_at = position + _BATCH_HEAD.size
        body_end = body_at + body_length
        (properties_length,) = _I16.unpack_from(data, body_end)
        properties_at = body_end + _I16.size
        position += size
        if properties_length < 0 or properties_at + properties_length != position:
            raise ProtocolError(
                f"a message of {size} bytes cannot end with {properties_length} bytes of properties"
            )
        yield BatchEntry(data[body_at:body_end], data[properties_at:position], flag)


def decode_batch(body: Buffer) -> list[BatchEntry]:
    """The messages of a batch body; ProtocolError unless all of it is well formed."""
    return list(iter_batch(body))
