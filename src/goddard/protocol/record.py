"""The stored message record, the format of the commit log and of pull and query answers.

Layout, all integers big-endian; a host is ip (4 bytes, or 16 when the system flag says so) + i32
port, and 91 bytes are fixed with IPv4 hosts and a V1 magic::

    total_size:i32 magic:i32 body_crc:i32 queue_id:i32 flag:i32 queue_offset:i64
    physical_offset:i64 sys_flag:i32 born_timestamp:i64 born_host store_timestamp:i64 store_host
    reconsume_times:i32 prepared_transaction_offset:i64 body_length:i32 body
    topic_length:i8 (V2: i16) topic  properties_length:i16 properties

Every length is checked against the buffer before it is used, and the total must be the exact sum of
the parts. Malformed bytes raise ProtocolError and nothing else.
"""

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple, Self, TypeAlias

from goddard.errors import ProtocolError
from goddard.protocol.hashing import body_crc

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # topics over 127 bytes; RocketMQ before 5.0 cannot read it
MAGIC_BLANK: Final = 0xCBD43194  # the rest of this commit-log file is unused
BLANK_BYTES: Final = 8

MAX_TOPIC_BYTES_V1: Final = 127
MAX_TOPIC_BYTES: Final = 32767
MAX_PROPERTIES_BYTES: Final = 32767
# A body cannot be longer than the frame that carried it.
MAX_BODY_BYTES: Final = 16 * 1024 * 1024

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6

Buffer: TypeAlias = bytes | bytearray | memoryview

# From total_size to body_length, by the two host bits of the system flag.
_HEADS: Final = tuple(
    Struct(f">iIiiiqqiq{born}siq{store}siiqi") for store in (4, 16) for born in (4, 16)
)
_START: Final = Struct(">iI")
_SYS_FLAG_POSITION: Final = 36
_I32: Final = Struct(">i")
_I16: Final = Struct(">h")
_MIN_BYTES: Final = _HEADS[0].size + 3
_BODY_LENGTH: Final = 16  # its index among the values of a head


class Host(NamedTuple):
    """An address in records and message ids: 4 or 16 address bytes and a port."""

    ip: bytes
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``1.2.3.4:10911`` or ``[::1]:10911``."""
        ip, colon, port = text.strip().rpartition(":")
        try:
            packed = ipaddress.ip_address(ip.removeprefix("[").removesuffix("]")).packed
        except ValueError as error:
            raise ProtocolError(f"{text[:80]!r} is not an address: {error}") from error
        if not (colon and port.isascii() and port.isdigit() and len(port) <= 5):
            raise ProtocolError(f"{text[:80]!r} has no port")
        if int(port) > 0xFFFF:
            raise ProtocolError(f"port {port} of {text[:80]!r} is above 65535")
        return cls(packed, int(port))

    @property
    def is_v6(self) -> bool:
        return len(self.ip) == 16

    @property
    def address(self) -> str:
        """The address without the port."""
        return str(ipaddress.ip_address(self.ip))

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.is_v6 else f"{self.address}:{self.port}"


@dataclass(slots=True)
class Record:
    """One stored message. ``body`` and ``properties`` are as stored: compressed, undecoded.

    Encoding a record sets the host bits of ``sys_flag`` from its hosts, and computes a ``body_crc``
    that is None.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    store_host: Host
    born_timestamp_ms: int
    born_host: Host
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int | None = None


class RecordSummary(NamedTuple):
    """The parts of a record that dispatch and scans need.

    The topic is text, ``properties`` are raw bytes (see message.find_property). The body is not
    copied: ``body_position`` is its position in the buffer.
    """

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    reconsume_times: int
    prepared_transaction_offset: int
    topic: str
    properties: bytes
    body_crc: int
    body_position: int
    body_length: int


def record_size(
    body_length: int,
    topic_length: int,
    properties_length: int,
    *,
    is_born_v6: bool = False,
    is_store_v6: bool = False,
) -> int:
    """The total size of a record whose parts have these lengths in bytes."""
    head = _HEADS[is_born_v6 | is_store_v6 << 1].size
    topic_word = 1 if topic_length <= MAX_TOPIC_BYTES_V1 else 2
    return head + body_length + topic_word + topic_length + 2 + properties_length


def encode_record(record: Record) -> bytes:
    """Encode a record: V1, or V2 if the topic is too long for V1."""
    topic = record.topic.encode("utf-8", "replace")
    body = record.body
    properties = record.properties
    born_ip, born_port = record.born_host
    store_ip, store_port = record.store_host
    if len(born_ip) not in (4, 16) or len(store_ip) not in (4, 16):
        raise ProtocolError("a host of a record has 4 or 16 address bytes")
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise ProtocolError(
            f"properties of {len(properties)} bytes are longer than {MAX_PROPERTIES_BYTES}"
        )
    topic_length = len(topic)
    if topic_length <= MAX_TOPIC_BYTES_V1:
        magic = MAGIC_V1
        topic_word = topic_length.to_bytes(1, "big")
    elif topic_length <= MAX_TOPIC_BYTES:
        magic = MAGIC_V2
        topic_word = topic_length.to_bytes(2, "big")
    else:
        raise ProtocolError(f"a topic of {topic_length} bytes is longer than {MAX_TOPIC_BYTES}")
    hosts = (BORN_HOST_V6 if len(born_ip) == 16 else 0) | (
        STORE_HOST_V6 if len(store_ip) == 16 else 0
    )
    head = _HEADS[hosts >> 4]
    size = head.size + len(body) + len(topic_word) + topic_length + 2 + len(properties)
    crc = record.body_crc
    try:
        packed = head.pack(
            size,
            magic,
            body_crc(body) if crc is None else crc,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag & ~_HOSTS_V6 | hosts,
            record.born_timestamp_ms,
            born_ip,
            born_port,
            record.store_timestamp_ms,
            store_ip,
            store_port,
            record.reconsume_times,
            record.prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise ProtocolError(f"a number does not fit its field of a record: {error}") from error
    return b"".join(
        (packed, body, topic_word, topic, len(properties).to_bytes(2, "big"), properties)
    )


def _check_start(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read the size and the magic of a record; check that it lies within the buffer."""
    available = len(buffer) - position
    if position < 0 or available < _MIN_BYTES:
        raise ProtocolError(f"a record has at least {_MIN_BYTES} bytes, not {available}")
    size, magic = _START.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ProtocolError(f"{magic:#010x} is not the magic of a record")
    if not _MIN_BYTES <= size <= available:
        raise ProtocolError(f"a record of {size} bytes does not fit the {available} given")
    return size, magic


def _check(
    buffer: Buffer, position: int, max_body_bytes: int
) -> tuple[tuple[Any, ...], int, int, int]:
    """Check all lengths; return the head's values and the positions of body, topic, properties."""
    size, magic = _check_start(buffer, position)
    end = position + size
    (sys_flag,) = _I32.unpack_from(buffer, position + _SYS_FLAG_POSITION)
    head = _HEADS[(sys_flag & _HOSTS_V6) >> 4]
    topic_word = 1 if magic == MAGIC_V1 else 2
    body_at = position + head.size
    # The bytes left for body, topic and properties.
    room = end - body_at - topic_word - 2
    if room < 0:
        raise ProtocolError(f"a record of {size} bytes is too short for its hosts")
    values = head.unpack_from(buffer, position)
    body_length = values[_BODY_LENGTH]
    if not 0 <= body_length <= min(room, max_body_bytes):
        raise ProtocolError(f"a body of {body_length} bytes does not fit its record of {size}")
    topic_at = body_at + body_length + topic_word
    if topic_word == 1:
        topic_length = buffer[topic_at - 1]
        is_topic_valid = topic_length <= min(room - body_length, MAX_TOPIC_BYTES_V1)
    else:
        (topic_length,) = _I16.unpack_from(buffer, topic_at - 2)
        is_topic_valid = 0 <= topic_length <= room - body_length
    if not is_topic_valid:
        raise ProtocolError(f"a topic of {topic_length} bytes does not fit its record of {size}")
    properties_at = topic_at + topic_length + 2
    (properties_length,) = _I16.unpack_from(buffer, properties_at - 2)
    if properties_length < 0 or properties_at + properties_length != end:
        raise ProtocolError(
            f"a record of {size} bytes cannot end with {properties_length} bytes of properties"
        )
    return values, body_at, topic_at, properties_at


def _topic(buffer: Buffer, start: int, end: int) -> str:
    try:
        return str(buffer[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the topic of a record is not UTF-8: {error}") from error


def _host(ip: bytes, port: int) -> Host:
    if not 0 <= port <= 0xFFFF:
        raise ProtocolError(f"port {port} in a record is outside 0..65535")
    return Host(ip, port)


def decode_record(
    buffer: Buffer,
    position: int = 0,
    *,
    check_crc: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> tuple[Record, int]:
    """The record at ``position``, and the position after it."""
    values, body_at, topic_at, properties_at = _check(buffer, position, max_body_bytes)
    (
        size,
        _magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_ip,
        born_port,
        store_timestamp_ms,
        store_ip,
        store_port,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = values
    body = bytes(buffer[body_at : body_at + body_length])
    # As in Java, the CRC of an empty body is ignored.
    if check_crc and body and body_crc(body) != crc:
        raise ProtocolError(f"the body of a record has CRC {body_crc(body):#x}, not {crc:#x}")
    end = position + size
    record = Record(
        topic=_topic(buffer, topic_at, properties_at - 2),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        store_host=_host(store_ip, store_port),
        born_timestamp_ms=born_timestamp_ms,
        born_host=_host(born_ip, born_port),
        body=body,
        properties=bytes(buffer[properties_at:end]),
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=crc,
    )
    return record, end


def read_summary(
    buffer: Buffer, position: int = 0, *, max_body_bytes: int = MAX_BODY_BYTES
) -> RecordSummary:
    """The record at ``position`` without its body. Checks what ``decode_record`` checks, except the
    CRC and the hosts' ports."""
    values, body_at, topic_at, properties_at = _check(buffer, position, max_body_bytes)
    return RecordSummary(
        values[0],
        values[3],
        values[5],
        values[6],
        values[7],
        values[8],
        values[11],
        values[14],
        values[15],
        _topic(buffer, topic_at, properties_at - 2),
        bytes(buffer[properties_at : position + values[0]]),
        values[2],
        body_at,
        values[_BODY_LENGTH],
    )


def iter_records(buffer: Buffer, *, check_crc: bool = True) -> Iterator[Record]:
    """The records of a pull or query body, one after another to the end of the buffer."""
    position = 0
    while position < len(buffer):
        record, position = decode_record(buffer, position, check_crc=check_crc)
        yield record


def encode_blank(space_bytes: int) -> bytes:
    """The marker before the unused last ``space_bytes`` of a commit-log file, which it covers."""
    return _START.pack(space_bytes, MAGIC_BLANK)
