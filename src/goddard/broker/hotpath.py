"""Plain sends from request bytes to response bytes, without a command object on the way.

``on_frames`` sits before the decoding of commands. It takes the requests 10, 310 and 320 that need
nothing special: a known topic, a queue in range, no property that changes what happens to the
message. Everything else it returns untouched; ``send`` then does the same thing the long way and is
what this module is tested against, byte by byte.

Order is kept: the frames of a chunk are submitted as they came, and from the first send that is
not plain on, the rest of the chunk goes the long way. Everything is checked before it is submitted,
so that an append never meets a record that does not fit.

What peers repeat is remembered: topics, tags, and the names of a message's properties in their
order (its *shape*). Each memory is bounded. Belongs to the loop.
"""

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from goddard.broker.admission import Admission
from goddard.broker.appender import Appender
from goddard.broker.send import PutStats, Sends, born_host
from goddard.broker.sendwire import (
    BINARY_CODES,
    JSON_READERS,
    JSON_START_BYTES,
    AnswerEncoder,
    BinarySends,
    LongFields,
    SendHeader,
    ShortFields,
)
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.topics import Topics
from goddard.clock import Clock, SystemClock
from goddard.errors import StoreError
from goddard.protocol import message, names
from goddard.protocol.codes import CommandFlag, RequestCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.hashing import tag_code
from goddard.protocol.record import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES_V1
from goddard.store.config import FlushMode
from goddard.store.records import (
    MAX_QUEUE_ID,
    LogEntry,
    PlainRecord,
    find_property,
    pack_host,
)
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_JSON: Final = int(SerializeType.JSON)
_BINARY: Final = int(SerializeType.ROCKETMQ)

_WORD: Final = Struct(">i")
_U16: Final = Struct(">H")
_BATCH_HEAD: Final = Struct(">iiiii")  # size, magic, CRC (both 0), flag, length of the body
_BATCH_HEAD_BYTES: Final = _BATCH_HEAD.size
_MIN_BATCH_BYTES: Final = _BATCH_HEAD_BYTES + 2

# Compression and many tags; transactions, inner batches and IPv6 hosts go the long way.
_SPECIAL_SYS_FLAGS: Final = ~0x703
_MAX_MEMORIES: Final = 4096
_MAX_MEMORY_BYTES: Final = 512

_PAIR_END: Final = 2
_SEPARATORS: Final = b"\x01\x02"
_NOT_SEPARATORS: Final = bytes(byte for byte in range(256) if byte not in _SEPARATORS)
_MAX_PAIRS: Final = 32
_PAIRS: Final = frozenset(_SEPARATORS * count for count in range(_MAX_PAIRS + 1))

# Properties that change where a message goes, or that a broker sets itself.
_SPECIAL_NAMES: Final = frozenset(
    name.encode()
    for name in (
        message.PROPERTY_DELAY,
        message.PROPERTY_TRANSACTION_PREPARED,
        message.PROPERTY_POP_CK,
        message.PROPERTY_INNER_NUM,
        message.PROPERTY_REGION,
        message.PROPERTY_TRACE,
        message.PROPERTY_CLUSTER,
    )
)
_SPECIAL_PREFIX: Final = b"TIMER_"
_UNIQUE_ID: Final = message.PROPERTY_UNIQUE_ID.encode()
_TAGS: Final = message.PROPERTY_TAGS.encode()
_WAIT: Final = message.PROPERTY_WAIT.encode()

# What the answer to a request needs besides where its message went: opaque, queue id, unique id,
# header encoding.
_Mark: TypeAlias = tuple[int, int, bytes | None, int]


class _OpenTopic(NamedTuple):
    """A topic that plain sends may go to. ``part`` is its name as records hold it."""

    part: bytes
    queue_count: int
    queue_keys: tuple[tuple[str, int], ...]


class _Shape(NamedTuple):
    """Where the properties that matter stand, as places in ``name value name value ...``."""

    unique_id: int
    tags: int
    wait: int


class HotPath:
    """Give ``on_frames`` to the server. Requests that hooks must see have no place here."""

    def __init__(
        self,
        *,
        store: MessageStore,
        appender: Appender,
        admission: Admission,
        sends: Sends,
        topics: Topics,
        settings: Settings,
        clock: Clock | None = None,
        stats: PutStats | None = None,
    ) -> None:
        self._store = store
        self._appender = appender
        self._admission = admission
        self._sends = sends
        self._topics = topics
        self._clock: Clock = clock or SystemClock()
        self._stats = stats
        self._is_sync = store.config.flush_mode is FlushMode.SYNC
        self._open_topics: dict[str, _OpenTopic] = {}
        self._shapes: dict[tuple[bytes, ...], _Shape | None] = {}
        self._tag_codes: dict[bytes, int] = {}
        self._binary = BinarySends()
        self._configure(settings.current)
        settings.add_listener(self._configure)
        topics.add_listener(self._forget)

    def _configure(self, config: BrokerConfig) -> None:
        self._is_open = config.is_writable and not config.store_host.is_v6
        self._accepts_from_ms = config.accept_sends_from_ms
        self._max_body_bytes = config.max_message_bytes
        self._max_record_bytes = self._store.config.max_record_bytes
        self._store_host = pack_host(config.store_host) if self._is_open else b""
        trace = "true" if config.trace_on else "false"
        self._added_properties = message.encode_properties(
            {
                message.PROPERTY_REGION: config.region_id,
                message.PROPERTY_TRACE: trace,
                message.PROPERTY_CLUSTER: config.cluster_name,
            }
        )
        host_hex = self._store_host.hex().upper().encode()
        self._answers = AnswerEncoder(host_hex, trace, config.region_id)

    def _forget(self, topics: list[str]) -> None:
        for topic in topics:
            self._open_topics.pop(topic, None)

    def on_frames(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        """Take the plain sends among the frames of a chunk; returns the others, in order."""
        host = born_host(connection)
        if (
            not self._is_open
            or host.is_v6
            or self._admission.refusal() is not None
            or (self._accepts_from_ms and self._clock.now_ms() < self._accepts_from_ms)
        ):
            return frames
        born = pack_host(host)
        others: list[memoryview] = []
        records: list[PlainRecord] = []
        marks: list[_Mark | None] = []
        for position, frame in enumerate(frames):
            (word,) = _WORD.unpack_from(frame)
            encoding = word >> 24
            body_at = 4 + (word & 0xFFFFFF)
            header = bytes(frame[4:body_at])
            if encoding == _JSON:
                read = JSON_READERS.get(header[:JSON_START_BYTES])
            elif encoding == _BINARY:
                read = self._binary.read if header[:2] in BINARY_CODES else None
            else:
                read = None
            if read is None:
                others.append(frame)  # no send: it may be overtaken
                continue
            request = read(header)
            if request is not None:
                body = frame[body_at:]
                if not request.fields.batch or request.fields.batch == "false":
                    if self._take(request, body, born, encoding, records, marks):
                        continue
                elif self._take_batch(request, body, born, encoding, connection, records, marks):
                    records, marks = [], []
                    continue
            if records:
                self._submit(connection, records, marks)
            return others + frames[position:]
        if records:
            self._submit(connection, records, marks)
        return others

    # Reading

    def _take(
        self,
        request: SendHeader,
        body: memoryview,
        born: bytes,
        encoding: int,
        records: list[PlainRecord],
        marks: list[_Mark | None],
    ) -> bool:
        """Add the record of one message; False when it is not plain."""
        fields = request.fields
        topic = self._open_topics.get(fields.topic) or self._opened(fields.topic)
        queue_id = fields.queue_id
        body_bytes = len(body)
        if (
            topic is None
            or not 0 <= queue_id < topic.queue_count
            or fields.sys_flag & _SPECIAL_SYS_FLAGS
            or fields.reconsume_times
            or not 0 < body_bytes <= self._max_body_bytes
            or request.flag & _RESPONSE
        ):
            return False
        found = self._properties(fields.properties)
        if found is None:
            return False
        raw, unique_id, tags = found
        if unique_id is None or not unique_id.isalnum():
            return False
        properties = raw + self._added_properties
        if len(properties) > MAX_PROPERTIES_BYTES:
            return False
        record = PlainRecord(
            topic.queue_keys[queue_id],
            topic.part,
            body,
            properties,
            0 if tags is None else self._tag_codes.get(tags) or self._tag_code(tags),
            fields.flag,
            fields.sys_flag,
            fields.born_timestamp,
            born,
            self._store_host,
        )
        if record.size > self._max_record_bytes:
            return False
        records.append(record)
        marks.append(
            None if request.flag & _ONEWAY else (request.opaque, queue_id, unique_id, encoding)
        )
        return True

    def _take_batch(
        self,
        request: SendHeader,
        body: memoryview,
        born: bytes,
        encoding: int,
        connection: Connection,
        before: list[PlainRecord],
        before_marks: list[_Mark | None],
    ) -> bool:
        """Submit a batch, and ``before`` it what came before it; False when it is not plain."""
        fields = request.fields
        topic = self._open_topics.get(fields.topic) or self._opened(fields.topic)
        queue_id = fields.queue_id
        if (
            topic is None
            or fields.batch != "true"
            or not 0 <= queue_id < topic.queue_count
            or fields.sys_flag & _SPECIAL_SYS_FLAGS
            or fields.reconsume_times
            or not 0 < len(body) <= self._max_body_bytes
            or request.flag & _RESPONSE
        ):
            return False
        found = self._properties(fields.properties)
        if found is None:
            return False
        unique_id = found[1]
        if unique_id is not None and not unique_id.isalnum():
            return False
        records = self._batch_records(topic, fields, body, born)
        if records is None:
            return False
        if before:
            self._submit(connection, before, before_marks)
        mark: _Mark | None = (
            None if request.flag & _ONEWAY else (request.opaque, queue_id, unique_id, encoding)
        )
        self._appender.submit(
            records,
            partial(self._answer_batch, connection, mark),
            whole=True,
            max_wait_ms=self._admission.max_wait_ms,
        )
        return True

    def _batch_records(
        self,
        topic: _OpenTopic,
        fields: ShortFields | LongFields,
        body: memoryview,
        born: bytes,
    ) -> list[PlainRecord] | None:
        """The messages of a batch body (see protocol.message); None unless all of it is good."""
        records: list[PlainRecord] = []
        end = len(body)
        position = 0
        queue_key = topic.queue_keys[fields.queue_id]
        part = topic.part
        sys_flag = fields.sys_flag
        born_timestamp_ms = fields.born_timestamp
        store_host = self._store_host
        max_record_bytes = self._max_record_bytes
        tag_codes = self._tag_codes
        unpack_head = _BATCH_HEAD.unpack_from
        while position < end:
            if end - position < _MIN_BATCH_BYTES:
                return None
            size, _, _, flag, body_length = unpack_head(body, position)
            body_at = position + _BATCH_HEAD_BYTES
            position += size
            properties_at = body_at + body_length + 2
            if body_length < 0 or not properties_at <= position <= end:
                return None
            properties = bytes(body[properties_at:position])
            if len(properties) != _U16.unpack_from(body, properties_at - 2)[0]:
                return None
            tags = find_property(properties, _TAGS)
            record = PlainRecord(
                queue_key,
                part,
                body[body_at : properties_at - 2],
                properties,
                0 if tags is None else tag_codes.get(tags) or self._tag_code(tags),
                flag,
                sys_flag,
                born_timestamp_ms,
                born,
                store_host,
            )
            if record.size > max_record_bytes or len(properties) > MAX_PROPERTIES_BYTES:
                return None
            records.append(record)
        return records

    def _opened(self, name: str) -> _OpenTopic | None:
        """The topic if it exists and nothing about it is special."""
        config = self._topics.get(name)
        if (
            config is None
            or names.topic_problem(name) is not None
            or name in names.UNSENDABLE_TOPICS
            or names.is_retry_topic(name)
            or len(name) > MAX_TOPIC_BYTES_V1
            or config.topic_filter_type != "SINGLE_TAG"
            or config.attributes.get("cleanup.policy", "DELETE") != "DELETE"
        ):
            return None
        queue_count = max(config.write_queue_nums, config.read_queue_nums)
        if not 0 < queue_count <= MAX_QUEUE_ID + 1:
            return None
        encoded = name.encode()
        topic = _OpenTopic(
            bytes((len(encoded),)) + encoded,
            queue_count,
            tuple((name, queue_id) for queue_id in range(queue_count)),
        )
        self._open_topics[name] = topic
        return topic

    def _properties(self, text: str) -> tuple[bytes, bytes | None, bytes | None] | None:
        """Properties as they are stored, their unique id and tags; None when one is special."""
        raw = text.encode()
        if raw and raw[-1] != _PAIR_END:
            raw += b"\x02"  # clients 4.9.1 to 5.1.4 leave the last one out
        if raw.translate(None, _NOT_SEPARATORS) not in _PAIRS:
            return None
        joined = raw.replace(b"\x02", b"\x01")
        if b"\x01\x01" in joined or joined[:1] == b"\x01":
            return None  # an empty name or value
        parts = joined.split(b"\x01")
        key = tuple(parts[:-1:2])
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._new_shape(key)
            if shape is None:
                return None
        unique_id, tags, wait = shape
        if wait and self._is_sync and parts[wait] != b"true":
            return None  # this one does not wait for the disk
        return raw, parts[unique_id] if unique_id else None, parts[tags] if tags else None

    def _new_shape(self, key: tuple[bytes, ...]) -> _Shape | None:
        if (
            len(set(key)) != len(key)
            or not _SPECIAL_NAMES.isdisjoint(key)
            or any(name.startswith(_SPECIAL_PREFIX) for name in key)
            or sum(map(len, key)) > _MAX_MEMORY_BYTES
        ):
            return None

        def value_of(name: bytes) -> int:
            return 2 * key.index(name) + 1 if name in key else 0

        shape = _Shape(value_of(_UNIQUE_ID), value_of(_TAGS), value_of(_WAIT))
        if len(self._shapes) >= _MAX_MEMORIES:
            self._shapes.clear()
        self._shapes[key] = shape
        return shape

    def _tag_code(self, tags: bytes) -> int:
        code = tag_code(tags.decode("utf-8", "replace"))
        if len(tags) <= _MAX_MEMORY_BYTES:
            if len(self._tag_codes) >= _MAX_MEMORIES:
                self._tag_codes.clear()
            self._tag_codes[tags] = code
        return code

    # Storing and answering

    def _submit(
        self, connection: Connection, records: list[PlainRecord], marks: list[_Mark | None]
    ) -> None:
        self._appender.submit(
            records,
            partial(self._answer, connection, marks),
            max_wait_ms=self._admission.max_wait_ms,
        )

    def _answer(
        self,
        connection: Connection,
        marks: list[_Mark | None],
        entries: Sequence[LogEntry] | None,
        error: StoreError | None,
    ) -> None:
        if entries is not None and self._stats is not None:
            self._count(entries)
        if connection.is_closed:
            return
        encode = self._answers.one
        if entries is not None and error is None:
            answers = [
                encode(*mark, entry.queue_offset, entry.physical_offset)
                for mark, entry in zip(marks, entries, strict=True)
                if mark is not None
            ]
        else:
            answers = [
                self._unusual_answer(mark, None if entries is None else entries[at : at + 1], error)
                for at, mark in enumerate(marks)
                if mark is not None
            ]
        if answers:
            connection.send_encoded(b"".join(answers))

    def _answer_batch(
        self,
        connection: Connection,
        mark: _Mark | None,
        entries: Sequence[LogEntry] | None,
        error: StoreError | None,
    ) -> None:
        if entries is not None and self._stats is not None:
            self._count(entries)
        if mark is None or connection.is_closed:
            return
        if entries is not None and error is None:
            offsets = [entry.physical_offset for entry in entries]
            connection.send_encoded(self._answers.batch(*mark, entries[0].queue_offset, offsets))
        else:
            connection.send_encoded(self._unusual_answer(mark, entries, error))

    def _count(self, entries: Sequence[LogEntry]) -> None:
        """Tell the statistics, once per run of messages of one topic."""
        assert self._stats is not None
        topic, count, size = entries[0].topic, 0, 0
        for entry in entries:
            if entry.topic != topic:
                self._stats.put(topic, count, size)
                topic, count, size = entry.topic, 0, 0
            count += 1
            size += entry.size
        self._stats.put(topic, count, size)

    def _unusual_answer(
        self,
        mark: _Mark,
        entries: Sequence[LogEntry] | None,
        error: StoreError | None,
    ) -> bytes:
        opaque, queue_id, unique_id, encoding = mark
        request = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, opaque=opaque, serialize_type=SerializeType(encoding)
        )
        if entries is None:
            return encode_frame(self._sends.failure(request, error))
        text = None if unique_id is None else unique_id.decode()
        return encode_frame(self._sends.success(request, entries, queue_id, text, error))
