"""Plain sends from request bytes to response bytes, without a command object on the way.

``on_frames`` sits before the decoding of commands. It takes the requests 10, 310 and 320 that need
nothing special: a known topic, a queue in range, no property that changes what happens to the
message. Everything else it returns untouched; ``send`` then does the same thing the long way and is
what this module is tested against, byte by byte.

Order is kept: the frames of a chunk are submitted as they came, and from the first send that is
not plain on, the rest of the chunk goes the long way. Everything is checked before it is submitted,
so that an append never meets a record that does not fit.

What peers repeat is remembered: topics, tags, and the names of a message's properties in their
order (its *shape*). A shape that comes often gets a pattern, which reads such properties at a
stroke. Each memory is bounded. Belongs to the loop.
"""

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from goddard.broker.admission import Admission
from goddard.broker.appender import Appender
from goddard.broker.send import MAX_BATCH_MESSAGES, PutStats, Sends, born_host
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
    PLAIN_FIXED_BYTES,
    AppendableRecord,
    LogEntry,
    PlainRecord,
    pack_host,
    tags_code_of,
)
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection

_send_log: Final = logging.getLogger("goddard.broker.send")

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_PACKED_HOST: Final = "packed_born_host"
_JSON: Final = int(SerializeType.JSON)
_BINARY: Final = int(SerializeType.ROCKETMQ)

_START: Final = Struct(f">i{JSON_START_BYTES}s")  # the word before the header, and its beginning
_U16: Final = Struct(">H")
_BATCH_HEAD: Final = Struct(">iiiii")  # size, magic, CRC (both 0), flag, length of the body
_BATCH_HEAD_BYTES: Final = _BATCH_HEAD.size
_MIN_BATCH_BYTES: Final = _BATCH_HEAD_BYTES + 2

# Compression and many tags; transactions, inner batches and IPv6 hosts go the long way.
_SPECIAL_SYS_FLAGS: Final = ~0x703
_MAX_MEMORIES: Final = 4096
_MAX_MEMORY_BYTES: Final = 512
_USES_BEFORE_PATTERN: Final = 8

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


class _Shape:
    """Properties of certain names in a certain order, none of them special.

    ``unique_id``, ``tags`` and ``wait`` say where these values stand in ``name value name value``
    (0: nowhere), and among the groups of the pattern.
    """

    __slots__ = ("_names", "_uses", "groups", "match", "tags", "unique_id", "wait")

    def __init__(self, names_: tuple[bytes, ...]) -> None:
        def value_of(name: bytes) -> int:
            return 2 * names_.index(name) + 1 if name in names_ else 0

        self.unique_id = value_of(_UNIQUE_ID)
        self.tags = value_of(_TAGS)
        self.wait = value_of(_WAIT)
        # Places of the same three among the groups of the pattern, -1 for nowhere.
        self.groups = (-1, -1, -1)
        self.match: Callable[[bytes], re.Match[bytes] | None] | None = None
        self._names = names_
        self._uses = 0

    def count(self) -> None:
        """Another use; the pattern, dear to make, comes with the eighth."""
        self._uses += 1
        if self._uses != _USES_BEFORE_PATTERN:
            return
        wanted = [name for name in self._names if name in (_UNIQUE_ID, _TAGS, _WAIT)]
        self.match = re.compile(
            b"".join(
                re.escape(name)
                + (b"\x01([^\x01\x02]+)\x02" if name in wanted else b"\x01[^\x01\x02]+\x02")
                for name in self._names
            )
        ).fullmatch
        unique_id, tags, wait = (
            wanted.index(name) if name in wanted else -1 for name in (_UNIQUE_ID, _TAGS, _WAIT)
        )
        self.groups = (unique_id, tags, wait)


class _OpenTopic:
    """A topic that plain sends may go to. ``part`` is its name as records hold it; ``shape`` is
    that of the last message, and so probably of the next."""

    __slots__ = ("part", "queue_count", "queue_keys", "shape")

    def __init__(self, name: str, queue_count: int) -> None:
        encoded = name.encode()
        self.part = bytes((len(encoded),)) + encoded
        self.queue_count = queue_count
        self.queue_keys = tuple((name, queue_id) for queue_id in range(queue_count))
        self.shape: _Shape | None = None


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
        self._shapes: dict[tuple[bytes, ...], _Shape] = {}
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

    @property
    def remembered(self) -> int:
        """How many shapes and tags are remembered."""
        return len(self._shapes) + len(self._tag_codes)

    def on_frames(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        """Take the plain sends among the frames of a chunk; returns the others, in order."""
        born = connection.attachments.get(_PACKED_HOST) or _packed_host(connection)
        if (
            not self._is_open
            or not born
            or _send_log.isEnabledFor(logging.DEBUG)  # each send is to be in the log
            or self._admission.refusal() is not None
            or (self._accepts_from_ms and self._clock.now_ms() < self._accepts_from_ms)
        ):
            return frames
        others: list[memoryview] = []
        records: list[AppendableRecord] = []
        marks: list[_Mark | None] = []
        for position, frame in enumerate(frames):
            if len(frame) < _START.size:
                others.append(frame)  # too short for a send
                continue
            word, start = _START.unpack_from(frame)
            encoding = word >> 24
            if encoding == _JSON:
                read = JSON_READERS.get(start)
            elif encoding == _BINARY and start[:2] in BINARY_CODES:
                read = self._binary.read
            else:
                read = None
            if read is None:
                others.append(frame)  # no send: it may be overtaken
                continue
            body_at = 4 + (word & 0xFFFFFF)
            request = read(frame[4:body_at])
            if request is not None:
                body = frame[body_at:]
                batch = request.fields.batch
                if not batch or batch == "false":
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
        records: list[AppendableRecord],
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
        found = self._properties(topic, fields.properties)
        if found is None:
            return False
        raw, unique_id, tags = found
        if unique_id is None or not unique_id.isalnum():
            return False
        properties = raw + self._added_properties
        size = PLAIN_FIXED_BYTES + body_bytes + len(topic.part) + len(properties)
        if len(properties) > MAX_PROPERTIES_BYTES or size > self._max_record_bytes:
            return False
        record = PlainRecord(
            topic.queue_keys[queue_id],
            size,
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
        before: list[AppendableRecord],
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
        found = self._properties(topic, fields.properties)
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
    ) -> list[AppendableRecord] | None:
        """The messages of a batch body (see protocol.message); None unless all of it is good."""
        records: list[AppendableRecord] = []
        end = len(body)
        position = 0
        queue_key = topic.queue_keys[fields.queue_id]
        part = topic.part
        fixed_bytes = PLAIN_FIXED_BYTES + len(part)
        sys_flag = fields.sys_flag
        born_timestamp_ms = fields.born_timestamp
        store_host = self._store_host
        max_record_bytes = self._max_record_bytes
        unpack_head = _BATCH_HEAD.unpack_from
        while position < end:
            if end - position < _MIN_BATCH_BYTES or len(records) == MAX_BATCH_MESSAGES:
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
            record_size = fixed_bytes + body_length + len(properties)
            if record_size > max_record_bytes or len(properties) > MAX_PROPERTIES_BYTES:
                return None
            records.append(
                PlainRecord(
                    queue_key,
                    record_size,
                    part,
                    body[body_at : properties_at - 2],
                    properties,
                    tags_code_of(properties),
                    flag,
                    sys_flag,
                    born_timestamp_ms,
                    born,
                    store_host,
                )
            )
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
        topic = _OpenTopic(name, queue_count)
        self._open_topics[name] = topic
        return topic

    def _properties(
        self, topic: _OpenTopic, text: str
    ) -> tuple[bytes, bytes | None, bytes | None] | None:
        """Properties as they are stored, their unique id and tags; None when one is special."""
        raw = text.encode()
        if raw and raw[-1] != _PAIR_END:
            raw += b"\x02"  # clients 4.9.1 to 5.1.4 leave the last one out
        shape = topic.shape
        if shape is not None and shape.match is not None:
            matched = shape.match(raw)
            if matched is not None:
                values = matched.groups()
                unique_id, tags, wait = shape.groups
                if wait >= 0 and self._is_sync and values[wait] != b"true":
                    return None  # this one does not wait for the disk
                return (
                    raw,
                    values[unique_id] if unique_id >= 0 else None,
                    values[tags] if tags >= 0 else None,
                )
        return self._other_properties(topic, raw)

    def _other_properties(
        self, topic: _OpenTopic, raw: bytes
    ) -> tuple[bytes, bytes | None, bytes | None] | None:
        """The same for properties that are not of the expected shape."""
        if raw.translate(None, _NOT_SEPARATORS) not in _PAIRS:
            return None
        parts = raw.replace(b"\x02", b"\x01").split(b"\x01")
        if b"" in parts[:-1]:
            return None  # an empty name or value
        names_ = tuple(parts[:-1:2])
        shape = self._shapes.get(names_)
        if shape is None:
            if _is_special(names_):
                return None
            if len(self._shapes) >= _MAX_MEMORIES:
                self._shapes.clear()
            shape = self._shapes[names_] = _Shape(names_)
        shape.count()
        topic.shape = shape
        if shape.wait and self._is_sync and parts[shape.wait] != b"true":
            return None
        return (
            raw,
            parts[shape.unique_id] if shape.unique_id else None,
            parts[shape.tags] if shape.tags else None,
        )

    def _tag_code(self, tags: bytes) -> int:
        code = tag_code(tags.decode("utf-8", "replace"))
        if len(tags) <= _MAX_MEMORY_BYTES:
            if len(self._tag_codes) >= _MAX_MEMORIES:
                self._tag_codes.clear()
            self._tag_codes[tags] = code
        return code

    # Storing and answering

    def _submit(
        self, connection: Connection, records: list[AppendableRecord], marks: list[_Mark | None]
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
            connection.send_now(b"".join(answers))

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
            connection.send_now(self._answers.batch(*mark, entries[0].queue_offset, offsets))
        else:
            connection.send_now(self._unusual_answer(mark, entries, error))

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


def _is_special(names_: tuple[bytes, ...]) -> bool:
    """Whether properties of these names need the long way (or more memory than they are worth)."""
    return (
        len(set(names_)) != len(names_)
        or not _SPECIAL_NAMES.isdisjoint(names_)
        or any(name.startswith(_SPECIAL_PREFIX) for name in names_)
        or sum(map(len, names_)) > _MAX_MEMORY_BYTES
    )


def _packed_host(connection: Connection) -> bytes:
    """The peer's address as records hold it; empty for IPv6, whose records are longer."""
    host = born_host(connection)
    packed = b"" if host.is_v6 else pack_host(host)
    connection.attachments[_PACKED_HOST] = packed
    return packed
