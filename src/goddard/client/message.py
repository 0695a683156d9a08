"""Messages to send and received messages.

Consumers create many thousands of ReceivedMessage objects per second. To be cheap, one keeps the
encoded record and decodes a field when the field is first read.
Neither class may be used by other threads while one thread changes it.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self, TypeAlias

import msgspec

from goddard.client.errors import InvalidMessageError
from goddard.client.values import MessageQueue
from goddard.protocol.compression import decompress, without_compression
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import (
    KEY_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
    RESERVED_PROPERTIES,
    SysFlag,
    decode_properties,
    encode_properties,
    find_property,
    join_properties,
)
from goddard.protocol.record import MAGIC_V1, MAX_BODY_BYTES, Host, Record, record_size

_UNIQUE_ID: Final = PROPERTY_UNIQUE_ID.encode()
_TAGS: Final = PROPERTY_TAGS.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
# The properties of the four kinds of delay, and the attributes that set them.
_DELAYS: Final = {
    PROPERTY_DELAY: "delay_level",
    PROPERTY_TIMER_DELAY_SEC: "delay_seconds",
    PROPERTY_TIMER_DELAY_MS: "delay_ms",
    PROPERTY_TIMER_DELIVER_MS: "deliver_at_ms",
}
# A compressed body can be longer than a frame once it is decompressed. A body that would be longer
# than this is rejected.
MAX_DECOMPRESSED_BYTES: Final = 4 * MAX_BODY_BYTES


def _int_of(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    return None if text is None else int(text)


def check_property(name: object, value: object) -> None:
    """TypeError unless the name and the value of a property are text."""
    for text in (name, value):
        if not isinstance(text, str):
            raise TypeError(
                f"the name and value of the property {name!r} must be str, not {text!r}"
            )


def _tag(tags: object) -> str:
    if not isinstance(tags, str):
        raise TypeError(f"tags must be one str, not {tags!r}")
    return tags


def _mapping(properties: object) -> Mapping[str, str]:
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties must be a dict of str to str, not {properties!r}")
    return properties


def _wait_text(wait: object) -> str:
    if not isinstance(wait, bool):
        raise TypeError(f"wait_store_ok must be True or False, not {wait!r}")
    return "true" if wait else "false"


def _integer(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"a delay, level or time must be a whole number, not {number!r}")
    return number


def check_flag(flag: object) -> None:
    """The flag of a message is a signed number of 32 bits."""
    if not isinstance(flag, int) or isinstance(flag, bool):
        raise TypeError(f"the flag of a message must be a whole number, not {flag!r:.200}")
    if not -(2**31) <= flag < 2**31:
        raise InvalidMessageError(
            f"the flag of a message is {flag}; it must be {-(2**31)} to {2**31 - 1}"
        )


def body_type_problem(body: object) -> str:
    """Why a body that is not bytes cannot be sent."""
    if isinstance(body, str):
        return "the message body is a str; give bytes: body.encode()"
    return f"the message body is of type {type(body).__name__}; give bytes"


class Message:
    """A message to send.

    ``body`` is bytes; encode text first (``"text".encode()``). ``properties`` are the user's own:
    RocketMQ's reserved names are not allowed there; their values are arguments and attributes of
    this class. ``delay_level`` is one of the broker's delay levels (1 to 18 unless configured
    otherwise); ``deliver_at_ms``, ``delay_ms`` and ``delay_seconds`` are arbitrary times, which
    need RocketMQ 5.0 or newer. A message has at most one of these four. A message with
    ``wait_store_ok=False`` is acknowledged before it is flushed to disk, whatever the broker's
    setting.

    Sending a message sets its ``message_id``, unless it has one.
    """

    __slots__ = ("body", "flag", "properties", "topic", "transaction_id")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        delay_seconds: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        wait_store_ok: bool = True,
        sharding_key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if type(body) is not bytes:
            raise TypeError(body_type_problem(body))
        if not isinstance(topic, str):
            raise TypeError(f"the topic of a message must be a str, not {topic!r:.200}")
        if flag:
            check_flag(flag)
        self.topic = topic
        self.body = body
        self.flag = flag or 0
        self.transaction_id: str | None = None
        own: dict[str, str] = {}
        self.properties = own
        if keys is not None:
            self.keys = keys
        own[PROPERTY_WAIT] = "true" if wait_store_ok is True else _wait_text(wait_store_ok)
        if tags:
            own[PROPERTY_TAGS] = _tag(tags)
        if delay_level:
            self.delay_level = delay_level
        if delay_seconds is not None:
            self.delay_seconds = delay_seconds
        if delay_ms is not None:
            self.delay_ms = delay_ms
        if deliver_at_ms is not None:
            self.deliver_at_ms = deliver_at_ms
        if sharding_key:
            self.sharding_key = sharding_key
        if properties:
            for name, value in _mapping(properties).items():
                self.put(name, value)

    def put(self, name: str, value: str) -> None:
        """Set a user property."""
        if name in RESERVED_PROPERTIES:
            raise InvalidMessageError(
                f"The Property<{name}> is used by system, input another please"
            )
        check_property(name, value)
        if not name.strip() or not value.strip():
            raise InvalidMessageError(
                "The name or value of property can not be null or blank string!"
            )
        self.properties[name] = value

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a user or system property."""
        return self.properties.get(name, default)

    @property
    def message_id(self) -> str | None:
        """The unique id (UNIQ_KEY); None before the message is sent."""
        return self.properties.get(PROPERTY_UNIQUE_ID)

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @tags.setter
    def tags(self, tags: str | None) -> None:
        self._set(PROPERTY_TAGS, _tag(tags) if tags else None)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(PROPERTY_KEYS, "").split()

    @keys.setter
    def keys(self, keys: str | Iterable[str]) -> None:
        if not isinstance(keys, str):
            try:
                keys = KEY_SEPARATOR.join(keys)
            except TypeError:
                raise TypeError(f"keys must be one str or a list of str, not {keys!r}") from None
        self._set(PROPERTY_KEYS, keys.strip() or None)

    @property
    def wait_store_ok(self) -> bool:
        return self.properties.get(PROPERTY_WAIT, "true").lower() == "true"

    @wait_store_ok.setter
    def wait_store_ok(self, wait: bool) -> None:
        self.properties[PROPERTY_WAIT] = _wait_text(wait)

    @property
    def delay_level(self) -> int:
        return _int_of(self.properties, PROPERTY_DELAY) or 0

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        if _integer(level) < 0:
            raise InvalidMessageError(f"a delay level must be 0 (no delay) or more, not {level}")
        self._set_delay(PROPERTY_DELAY, str(level) if level else None)

    @property
    def delay_seconds(self) -> int | None:
        return _int_of(self.properties, PROPERTY_TIMER_DELAY_SEC)

    @delay_seconds.setter
    def delay_seconds(self, seconds: int | None) -> None:
        self._set_time(PROPERTY_TIMER_DELAY_SEC, seconds)

    @property
    def delay_ms(self) -> int | None:
        return _int_of(self.properties, PROPERTY_TIMER_DELAY_MS)

    @delay_ms.setter
    def delay_ms(self, milliseconds: int | None) -> None:
        self._set_time(PROPERTY_TIMER_DELAY_MS, milliseconds)

    @property
    def deliver_at_ms(self) -> int | None:
        """The delivery time in milliseconds since 1970."""
        return _int_of(self.properties, PROPERTY_TIMER_DELIVER_MS)

    @deliver_at_ms.setter
    def deliver_at_ms(self, timestamp_ms: int | None) -> None:
        self._set_time(PROPERTY_TIMER_DELIVER_MS, timestamp_ms)

    @property
    def sharding_key(self) -> str | None:
        """Messages with the same key go to the same queue; see ``selectors.by_sharding_key``."""
        return self.properties.get(PROPERTY_SHARDING_KEY)

    @sharding_key.setter
    def sharding_key(self, key: str | None) -> None:
        if key is not None and not isinstance(key, str):
            raise TypeError(f"the sharding key must be a str, not {key!r:.200}")
        self._set(PROPERTY_SHARDING_KEY, key or None)

    def _set(self, name: str, value: str | None) -> None:
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    def _set_time(self, name: str, value: int | None) -> None:
        if value is None:
            self._set(name, None)
            return
        if _integer(value) < 0:
            raise InvalidMessageError(f"a time or delay must be 0 or more, not {value}")
        self._set_delay(name, str(value))

    def _set_delay(self, name: str, value: str | None) -> None:
        if value is not None:
            for other in _DELAYS.keys() & self.properties.keys() - {name}:
                raise InvalidMessageError(
                    f"the message has {_DELAYS[other]} {self.properties[other]} already; a message "
                    f"has one delay, so {_DELAYS[name]} cannot be set, too"
                )
        self._set(name, value)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, flag={self.flag}, properties={self.properties!r}, "
            f"body of {len(self.body)} bytes)"
        )


RecordHead: TypeAlias = tuple[Any, ...]
"""The fixed fields of a record, in the order in which ``struct`` unpacks them:

total_size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag,
born_timestamp_ms, born_ip, born_port, store_timestamp_ms, store_ip, store_port, reconsume_times,
prepared_transaction_offset, body_length
"""

# The fixed part of a record with IPv4 hosts (see goddard.protocol.record).
RECORD_HEAD: Final = struct.Struct(">iIiiiqqiq4siq4siiqi")
_HEAD_BYTES: Final = RECORD_HEAD.size


# gc=False: the garbage collector does not track messages, because scanning thousands of buffered
# ones is slow. It is safe because nothing that a message refers to refers back to it.
class ReceivedMessage(msgspec.Struct, gc=False, eq=False):
    """A message from a broker.

    ``queue`` is the queue that it was read from. ``topic`` is the topic that it was first sent to,
    which differs from the queue's topic for a retry. ``stored_body_bytes`` is the length of the
    body as stored, that is, after compression.
    """

    queue_offset: int
    topic: str
    queue: MessageQueue
    stored_body_bytes: int
    # A whole record in the layout of RECORD_HEAD; or only the stored body, if ``_head`` and
    # ``_raw_properties`` are given.
    _record: bytes
    # Properties from the response to the pull.
    _added_properties: bytes = b""
    # Decoded on first use.
    _head: RecordHead | None = None
    _body: bytes | None = None
    _raw_properties: bytes | None = None
    _properties: dict[str, str] | None = None

    @classmethod
    def from_record(cls, record: Record, broker_name: str) -> Self:
        size = record_size(
            len(record.body),
            len(record.topic.encode()),
            len(record.properties),
            is_born_v6=record.born_host.is_v6,
            is_store_v6=record.store_host.is_v6,
        )
        head = (
            size,
            MAGIC_V1,
            record.body_crc or 0,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.physical_offset,
            record.sys_flag,
            record.born_timestamp_ms,
            *record.born_host,
            record.store_timestamp_ms,
            *record.store_host,
            record.reconsume_times,
            record.prepared_transaction_offset,
            len(record.body),
        )
        return cls(
            record.queue_offset,
            record.topic,
            MessageQueue(record.topic, broker_name, record.queue_id),
            len(record.body),
            record.body,
            _head=head,
            _raw_properties=record.properties,
        )

    def _fixed_fields(self) -> RecordHead:
        head = self._head
        if head is None:
            head = self._head = RECORD_HEAD.unpack_from(self._record)
        return head

    @property
    def body(self) -> bytes:
        """The body, decompressed on first use.

        ProtocolError if it is corrupt or longer than ``MAX_DECOMPRESSED_BYTES``.
        """
        body = self._body
        if body is None:
            body = self._stored_body()
            sys_flag = self._fixed_fields()[7]
            if sys_flag & _COMPRESSED:
                body = decompress(body, sys_flag, MAX_DECOMPRESSED_BYTES)
            self._body = body
        return body

    def _stored_body(self) -> bytes:
        length = self.stored_body_bytes
        # A whole record is longer than its body.
        if len(self._record) == length:
            return self._record
        return self._record[_HEAD_BYTES : _HEAD_BYTES + length]

    @property
    def broker_name(self) -> str:
        return self.queue.broker_name

    @property
    def body_crc(self) -> int:
        return int(self._fixed_fields()[2])

    @property
    def queue_id(self) -> int:
        return int(self._fixed_fields()[3])

    @property
    def flag(self) -> int:
        return int(self._fixed_fields()[4])

    @property
    def physical_offset(self) -> int:
        return int(self._fixed_fields()[6])

    @property
    def sys_flag(self) -> int:
        """The system flags, without the flag of a compressed body, as ``body`` is decompressed."""
        return without_compression(self._fixed_fields()[7])

    @property
    def born_timestamp_ms(self) -> int:
        return int(self._fixed_fields()[8])

    @property
    def born_host(self) -> str:
        """``ip:port`` of the producer."""
        return str(Host(*self._fixed_fields()[9:11]))

    @property
    def store_timestamp_ms(self) -> int:
        return int(self._fixed_fields()[11])

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored the message."""
        return str(Host(*self._fixed_fields()[12:14]))

    @property
    def reconsume_times(self) -> int:
        """How many times the message was sent back before; 0 on the first delivery."""
        return int(self._fixed_fields()[14])

    def increment_reconsume_times(self) -> None:
        """Count one more delivery, for a consumer that consumes the message again locally."""
        head = self._fixed_fields()
        self._head = (*head[:14], head[14] + 1, *head[15:])

    @property
    def prepared_transaction_offset(self) -> int:
        return int(self._fixed_fields()[15])

    @property
    def store_size_bytes(self) -> int:
        """The size of the record in the broker's commit log."""
        return int(self._fixed_fields()[0])

    @property
    def properties(self) -> dict[str, str]:
        """User and system properties. Changes are local; the broker does not see them."""
        properties = self._properties
        if properties is None:
            properties = self._properties = decode_properties(self._stored_properties())
        return properties

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.properties.get(name, default)

    def _property(self, name: bytes) -> str | None:
        """One property, without decoding the others."""
        if self._properties is not None:
            return self._properties.get(name.decode())
        found = find_property(self._stored_properties(), name)
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def message_id(self) -> str:
        """The unique id assigned by the producer, or else the broker's id."""
        return self._property(_UNIQUE_ID) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id assigned by the broker: its address and the physical offset."""
        head = self._fixed_fields()
        return offset_message_id(Host(head[12], head[13]), head[6])

    @property
    def tags(self) -> str | None:
        return self._property(_TAGS)

    @property
    def keys(self) -> list[str]:
        return (self._property(_KEYS) or "").split()

    @property
    def delay_level(self) -> int:
        text = self.get(PROPERTY_DELAY, "")
        return int(text) if text and text.isascii() and text.isdigit() else 0

    @property
    def transaction_id(self) -> str | None:
        return self.get(PROPERTY_TRANSACTION_ID) or self._property(_UNIQUE_ID)

    def to_message(self) -> Message:
        """A new message with the same topic, body, flag and properties, to send again."""
        message = Message(self.topic, self.body, flag=self.flag)
        message.properties = dict(self.properties)
        return message

    def raw_properties(self) -> bytes:
        """The properties as encoded in a record, including changes."""
        if self._properties is None:
            return self._stored_properties()
        return encode_properties(self._properties)

    def _stored_properties(self) -> bytes:
        stored = self._raw_properties
        if stored is None:
            record = self._record
            topic_at = _HEAD_BYTES + self.stored_body_bytes + 1
            stored = record[topic_at + record[topic_at - 1] + 2 :]
            stored = self._raw_properties = join_properties(stored, self._added_properties)
        return stored

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, queue={self.queue}, "
            f"queue_offset={self.queue_offset}, message_id={self.message_id!r}, "
            f"reconsume_times={self.reconsume_times}, properties={self.properties!r}, "
            f"body of {self.stored_body_bytes} bytes)"
        )
