"""Records on their way into the log, and as dispatch sees them.

A ``PreparedRecord`` has been checked against every limit of the format, and all of it is encoded
but the three fields that only the append knows: queue offset, physical offset and store time. A
``LogEntry`` is where a record went and what queues, index and listeners need of it; the append
makes it, and ``scan`` reads the same from the log.

Byte layout: see ``goddard.protocol.record``; here a host is one field of 8 or 20 bytes.
"""

import re
import struct
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from goddard.errors import ProtocolError
from goddard.protocol.hashing import crc32, tag_code
from goddard.protocol.message import find_property
from goddard.protocol.names import LMQ_PREFIX, REPLY_TOPIC_SUFFIX, SYSTEM_TOPIC_PREFIX
from goddard.protocol.record import (
    BLANK_BYTES,
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES_V1,
    STORE_HOST_V6,
    Host,
    read_summary,
)
from goddard.store.errors import MessageIllegalError

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
MAX_TOPIC_BYTES_V2: Final = 255
MAX_QUEUE_ID: Final = 0xFFFF
TRANSACTION_MASK: Final = 0xC
PREPARED: Final = 0x4
ROLLBACK: Final = 0xC

# A record up to its body, in the order of its bytes: size, magic, CRC, queue id, flag; its place
# (queue offset and physical offset); system flag, born time, born host; store time, store host;
# retries, offset of the half message, length of the body. By the hosts: bit 0 for a born host with
# an IPv6 address, bit 1 for a store host.
_HEADS: Final = tuple(
    Struct(f">iIIiiqqiq{born}sq{store}siqi") for store in (8, 20) for born in (8, 20)
)
# Those of them that come from a request, to check that they fit: queue id, system flag, born time,
# retries, offset of the half message.
_CHECKED: Final = Struct(">iiqiq")
_U16: Final = Struct(">H")
_HOST: Final = (Struct(">4si"), Struct(">16si"))
# With a plus sign between group and topic: what pop consumers retry.
_is_topic_text: Final = re.compile(r"(%RETRY%[%|a-zA-Z0-9_-]+\+)?[%|a-zA-Z0-9_-]+").fullmatch
_START: Final = Struct(">iI")
_I64: Final = Struct(">q")
_I32: Final = Struct(">i")
_V6_BYTES: Final = 20
_PLACE: Final = Struct(">qq")  # queue offset, physical offset
_PLACE_AT: Final = 20
_SYS_FLAG_AT: Final = 36
_SEPARATOR: Final = 2
_STORE_TIME_AT: Final = 56
_STORE_TIME_AT_V6: Final = 68  # after a born host of 20 bytes


# The pieces of one write to a segment.
Chunk: TypeAlias = list[bytes | memoryview]


class LogEntry(NamedTuple):
    """A record's place in the log and in its queue. ``tags_code`` is that of the queue entry."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    sys_flag: int
    properties: bytes

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.size

    @property
    def has_queue_entry(self) -> bool:
        return not self.sys_flag & PREPARED


class RequestFields:
    """The fields that all records of one request have in common, checked."""

    __slots__ = (
        "before_store_time",
        "body_at",
        "has_queue_entry",
        "magic",
        "pack_head",
        "queue_key",
        "store_fields",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        born_timestamp_ms: int,
        born_host: Host,
        store_host: Host,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        if not 0 <= queue_id <= MAX_QUEUE_ID:
            raise MessageIllegalError(f"queue id {queue_id} is outside 0..{MAX_QUEUE_ID}")
        self.magic, self.topic = _encode_topic(topic)
        born = _encode_host(born_host)
        store = _encode_host(store_host)
        hosts = (len(born) == _V6_BYTES) | (len(store) == _V6_BYTES) << 1
        self.sys_flag = sys_flag = sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6) | hosts << 4
        try:
            _CHECKED.pack(
                queue_id,
                sys_flag,
                born_timestamp_ms,
                reconsume_times,
                prepared_transaction_offset,
            )
        except struct.error as error:
            raise MessageIllegalError(f"a number does not fit the record: {error}") from error
        head = _HEADS[hosts]
        self.pack_head = head.pack
        self.body_at = head.size
        self.before_store_time = (sys_flag, born_timestamp_ms, born)
        self.store_fields = (store, reconsume_times, prepared_transaction_offset)
        self.queue_key = (topic, queue_id)
        # Of the transaction kinds only commit (and none) goes to a queue.
        self.has_queue_entry = not sys_flag & PREPARED


class PreparedRecord:
    """A valid record; its place in the log gives it the three fields that are still open."""

    __slots__ = (
        "_body_crc",
        "_body_length",
        "_flag",
        "_rest",
        "delay_level",
        "properties",
        "request",
        "size",
        "tags_code",
    )

    def __init__(
        self, request: RequestFields, body: bytes, properties: bytes, flag: int = 0
    ) -> None:
        properties_length = len(properties)
        if properties_length > MAX_PROPERTIES_BYTES:
            raise MessageIllegalError(
                f"properties of {properties_length} bytes are longer than {MAX_PROPERTIES_BYTES}"
            )
        if not -0x80000000 <= flag <= 0x7FFFFFFF:
            raise MessageIllegalError(f"the flag {flag} does not fit the record")
        self.request = request
        self._flag = flag
        self._body_length = len(body)
        self._body_crc = crc32(body) & 0x7FFFFFFF
        self._rest = rest = b"".join(
            (body, request.topic, _U16.pack(properties_length), properties)
        )
        self.size = request.body_at + len(rest)
        self.properties = properties
        self.tags_code = tags_code_of(properties)
        is_delayed = request.queue_key[0] == SCHEDULE_TOPIC
        self.delay_level = _delay_level(properties) if is_delayed else 0

    def place(
        self, chunk: Chunk, queue_offset: int, physical_offset: int, store_timestamp_ms: int
    ) -> None:
        """Add the record, with its place filled in, to the bytes of a write."""
        request = self.request
        head = request.pack_head(
            self.size,
            request.magic,
            self._body_crc,
            request.queue_key[1],
            self._flag,
            queue_offset,
            physical_offset,
            *request.before_store_time,
            store_timestamp_ms,
            *request.store_fields,
            self._body_length,
        )
        chunk += head, self._rest


def prepare_record(
    *,
    topic: str,
    queue_id: int,
    body: bytes,
    properties: bytes,
    born_timestamp_ms: int,
    born_host: Host,
    store_host: Host,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> PreparedRecord:
    """The record of a request with one message; MessageIllegalError if it breaks a limit."""
    request = RequestFields(
        topic,
        queue_id,
        born_timestamp_ms,
        born_host,
        store_host,
        sys_flag,
        reconsume_times,
        prepared_transaction_offset,
    )
    return PreparedRecord(request, body, properties, flag)


def pack_host(host: Host) -> bytes:
    """An IPv4 host as a record holds it."""
    return _HOST[0].pack(*host)


class ScanStop(Enum):
    """Why a scan of a segment ended."""

    FULL = "the end of the segment"
    BLANK = "end-of-file filler"
    INVALID = "bytes that are no record"


class Scan:
    """Walks the records of one segment; iterate, then look at ``position`` and ``stop``.

    ``position`` is where the walk stands: after the last good record, or for a filler after it.
    """

    __slots__ = ("_check_crc", "_delays_ms", "_view", "base_offset", "position", "reason", "stop")

    def __init__(
        self,
        view: memoryview,
        base_offset: int,
        *,
        position: int = 0,
        check_crc: bool = True,
        delay_times_ms: tuple[int, ...] = (),
    ) -> None:
        self._view = view
        self._check_crc = check_crc
        self._delays_ms = delay_times_ms
        self.base_offset = base_offset
        self.position = position
        self.stop = ScanStop.FULL
        self.reason = ""

    def __iter__(self) -> Iterator[LogEntry]:
        view = self._view
        base_offset = self.base_offset
        end = len(view)
        position = self.position
        while position + BLANK_BYTES <= end:
            space, magic = _START.unpack_from(view, position)
            if magic == MAGIC_BLANK and space == end - position:
                self.stop = ScanStop.BLANK
                return
            try:
                entry = read_entry(
                    view,
                    position,
                    base_offset + position,
                    check_crc=self._check_crc,
                    delay_times_ms=self._delays_ms,
                )
            except ProtocolError as error:
                self.stop = ScanStop.INVALID
                self.reason = str(error)
                return
            position += entry.size
            self.position = position
            yield entry
        if position != end:  # a record may end at the last byte only through foreign writers
            self.stop = ScanStop.INVALID
            self.reason = f"{end - position} bytes are left after the last record"


def read_entry(
    view: memoryview,
    position: int,
    physical_offset: int,
    *,
    check_crc: bool = True,
    delay_times_ms: tuple[int, ...] = (),
) -> LogEntry:
    """The record at a position, checked whole; ProtocolError says what is wrong with it."""
    record = read_summary(view, position)
    if record.physical_offset != physical_offset:
        raise ProtocolError(f"a record at {physical_offset} says it is at {record.physical_offset}")
    if record.queue_offset < 0 or not 0 <= record.queue_id <= MAX_QUEUE_ID:
        raise ProtocolError(
            f"queue {record.queue_id} or offset {record.queue_offset} is out of range"
        )
    if not is_topic_name(record.topic):
        raise ProtocolError(f"illegal topic name {record.topic!r}")
    if check_crc and record.body_length:
        at = record.body_position
        crc = crc32(view[at : at + record.body_length]) & 0x7FFFFFFF
        if crc != record.body_crc:
            raise ProtocolError(f"the body has CRC {crc:#x}, the record says {record.body_crc:#x}")
    entry = LogEntry(
        record.topic,
        record.queue_id,
        record.queue_offset,
        physical_offset,
        record.size,
        tags_code_of(record.properties),
        record.store_timestamp_ms,
        record.sys_flag,
        record.properties,
    )
    return with_due_time(entry, delay_times_ms)


def is_head(view: memoryview, position: int, physical_offset: int, size: int) -> bool:
    """Whether a record of this size and place begins here, by the head alone."""
    if position + _SYS_FLAG_AT > len(view):
        return False
    found_size, magic = _START.unpack_from(view, position)
    _, found_offset = _PLACE.unpack_from(view, position + _PLACE_AT)
    return bool(
        found_size == size and magic in (MAGIC_V1, MAGIC_V2) and found_offset == physical_offset
    )


def with_due_time(entry: LogEntry, delay_times_ms: tuple[int, ...]) -> LogEntry:
    """As given, but for the queues of delayed messages: there the code is when one is due."""
    if entry.topic == SCHEDULE_TOPIC and delay_times_ms:
        level = _delay_level(entry.properties)
        if level > 0:
            due_ms = deliver_time_ms(level, entry.store_timestamp_ms, delay_times_ms)
            return entry._replace(tags_code=due_ms)
    return entry


def deliver_time_ms(level: int, store_timestamp_ms: int, delay_times_ms: tuple[int, ...]) -> int:
    """When a message of a delay level is due; levels above the last count as the last."""
    return store_timestamp_ms + delay_times_ms[min(level, len(delay_times_ms)) - 1]


def store_time_of(view: memoryview) -> int:
    """The store timestamp of a record, given its bytes."""
    (sys_flag,) = _I32.unpack_from(view, _SYS_FLAG_AT)
    at = _STORE_TIME_AT_V6 if sys_flag & BORN_HOST_V6 else _STORE_TIME_AT
    timestamp_ms: int = _I64.unpack_from(view, at)[0]
    return timestamp_ms


@lru_cache(maxsize=4096)
def is_topic_name(topic: str) -> bool:
    """Whether a record can be of this topic: one of RocketMQ's characters, or of a broker's own.

    Names that a broker makes for itself contain that of its cluster, which may be any, and light
    queues are named by their applications.
    """
    if _is_topic_text(topic):
        return True
    is_own = topic.startswith((SYSTEM_TOPIC_PREFIX, LMQ_PREFIX)) or topic.endswith(
        REPLY_TOPIC_SUFFIX
    )
    return is_own and "/" not in topic and topic.isprintable()


def tags_code_of(properties: bytes) -> int:
    """The hash of the tag, 0 without one: what a queue entry holds for consumers to filter by."""
    at = properties.rfind(b"TAGS\x01")
    if at < 0:
        return 0
    if at == 0 or properties[at - 1] == _SEPARATOR:  # else the end of another name
        end = properties.find(b"\x02", at)
        tags = properties[at + 5 :] if end < 0 else properties[at + 5 : end]
        if tags:
            return _code_of(tags)
    return _code_of(find_property(properties, b"TAGS") or b"")


@lru_cache(maxsize=4096)
def _encode_topic(topic: str) -> tuple[int, bytes]:
    """The magic that a topic's length asks for, and its length and bytes."""
    data = topic.encode()
    if not 0 < len(data) <= MAX_TOPIC_BYTES_V2:
        raise MessageIllegalError(f"a topic has 1 to {MAX_TOPIC_BYTES_V2} bytes: {topic[:300]!r}")
    if not is_topic_name(topic):
        raise MessageIllegalError(f"illegal topic name {topic!r}")
    if len(data) <= MAX_TOPIC_BYTES_V1:
        return MAGIC_V1, len(data).to_bytes(1, "big") + data
    return MAGIC_V2, len(data).to_bytes(2, "big") + data


@lru_cache(maxsize=4096)
def _encode_host(host: Host) -> bytes:
    return _HOST[len(host.ip) == 16].pack(*host)


@lru_cache(maxsize=4096)
def _code_of(tags: bytes) -> int:
    return tag_code(tags.decode("utf-8", "replace"))


def _delay_level(properties: bytes) -> int:
    text = find_property(properties, b"DELAY") or b"0"
    return int(text) if text.isdigit() and len(text) < 10 else 0
