"""Plain sends from request bytes to response bytes, without a command object on the way.

``on_frames`` sits before the decoding of commands. It takes the requests 10, 310 and 320 that need
nothing special: a known topic, a queue in range, no property that changes what happens to the
message. Everything else it returns untouched; ``send`` then does the same thing the long way and is
what this module is tested against, byte by byte.

Order is kept: the frames of a chunk are submitted as they came, and from the first send that is
not plain on, the rest of the chunk goes the long way. Everything is checked before it is submitted,
so that an append never meets a record that does not fit.

What peers repeat is remembered: topics, tags, the names of properties (``sendproperties``), whole
headers but for their values (``sendforms``). Each memory is bounded. Belongs to the loop.
"""

import logging
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from goddard.broker.lane.sendanswers import Asked, Mark, SendAnswers, mark_of
from goddard.broker.lane.sendbatches import read_batch, tags_codes_of
from goddard.broker.lane.sendforms import KEY_END, KEY_START, Form, Property, make_form
from goddard.broker.lane.sendproperties import TAGS, UNIQUE_ID, WAIT, PropertyReader, Shape
from goddard.broker.lane.sendwire import (
    BINARY_CODES,
    JSON_READERS,
    JSON_START_BYTES,
    BinarySends,
    SendHeader,
    SendReader,
)
from goddard.broker.rules import RULES
from goddard.broker.sending.appender import Appender, Group
from goddard.broker.sending.overload import Overload
from goddard.broker.sending.send import MAX_BATCH_MESSAGES, PutStats, Sends, born_host
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Topics
from goddard.clock import Clock, SystemClock
from goddard.protocol import message, names
from goddard.protocol.codes import CommandFlag, RequestCode, SerializeType
from goddard.protocol.frame import MAX_HEADER_BYTES
from goddard.protocol.record import BLANK_BYTES, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES_V1
from goddard.store.config import FlushMode
from goddard.store.log.records import (
    MAX_QUEUE_ID,
    encode_joint,
    pack_host,
    plain_size,
)
from goddard.store.runs import Appendable, RecordRun, count_messages
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection
from goddard.transport.rules import Gate

_send_log: Final = logging.getLogger("goddard.broker.sending.send")

_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_PACKED_HOST: Final = "packed_born_host"
_JSON: Final = int(SerializeType.JSON)
_BINARY: Final = int(SerializeType.ROCKETMQ)

_START: Final = Struct(f">i{JSON_START_BYTES}s")  # the word before the header, and its beginning

# Compression and many tags; transactions, inner batches and IPv6 hosts go the long way.
_SPECIAL_SYS_FLAGS: Final = ~0x703
_SEND_RULE: Final = RULES[RequestCode.SEND_MESSAGE]
_MAX_MEMORIES: Final = 4096
_USES_BEFORE_PATTERN: Final = 8
_MAX_QUEUE_DIGITS: Final = 5
_MAX_FORMS_OF_KEY: Final = 4
# Longer frames are not copied, and their headers always read.
_MAX_COPIED_BYTES: Final = 65_536

_FormKey: TypeAlias = tuple[int, bytes]


class _OpenTopic:
    """A topic that plain sends may go to. ``shape`` is that of the last message, and so probably of
    the next."""

    __slots__ = ("by_text", "encoded", "name", "queue_count", "queue_keys", "shape")

    def __init__(self, name: str, queue_count: int) -> None:
        self.name = name
        self.encoded = name.encode()
        self.queue_count = queue_count
        self.queue_keys = tuple((name, queue_id) for queue_id in range(queue_count))
        self.shape: Shape | None = None
        self.by_text: dict[bytes, tuple[str, int]] = {}

    def find_queue(self, text: bytes) -> tuple[str, int] | None:
        """The key of a queue by its number as text, without leading zeros; None without such.

        ``by_text`` has those that were found.
        """
        if text.isdigit() and len(text) <= _MAX_QUEUE_DIGITS:
            queue_id = int(text)
            if queue_id < self.queue_count and text == b"%d" % queue_id:
                key = self.by_text[text] = self.queue_keys[queue_id]
                return key
        return None


class _Pattern:
    """What is the same for all messages whose headers are of one form."""

    __slots__ = (
        "fixed_bytes",
        "flag",
        "form",
        "is_oneway",
        "joint",
        "max_body_bytes",
        "properties",
        "sys_flag",
        "tags_at",
        "topic",
        "unique_id_at",
    )

    def __init__(
        self, form: Form, topic: _OpenTopic, request: SendHeader, properties: bytes, length: int
    ) -> None:
        """``properties`` is a template, ``length`` that of what it makes. ``max_body_bytes`` is for
        the maker to set."""
        fields = request.fields
        self.form = form
        self.topic = topic
        self.is_oneway = bool(request.flag & _ONEWAY)
        self.flag = fields.flag
        self.sys_flag = fields.sys_flag
        self.properties = properties
        self.joint = encode_joint(topic.encoded, length)
        self.fixed_bytes = plain_size(0, len(self.joint), length)
        self.max_body_bytes = 0
        # Places among the values of the form; -1 for nowhere.
        self.tags_at = form.places.get(TAGS, -1)
        self.unique_id_at = form.places[UNIQUE_ID]


class HotPath:
    """Give ``on_frames`` to the server. Requests that hooks must see have no place here."""

    def __init__(
        self,
        *,
        store: MessageStore,
        appender: Appender,
        gate: Gate,
        overload: Overload,
        sends: Sends,
        topics: Topics,
        settings: Settings,
        clock: Clock | None = None,
        stats: PutStats | None = None,
    ) -> None:
        self._store = store
        self._appender = appender
        self._gate = gate
        self._overload = overload
        self._answers = SendAnswers(sends, stats)
        self._topics = topics
        self._clock: Clock = clock or SystemClock()
        self._open_topics: dict[str, _OpenTopic] = {}
        self._properties = PropertyReader(waits=store.config.flush_mode is FlushMode.SYNC)
        self._tag_codes = self._properties.tag_codes
        self._binary = BinarySends()
        # By what headers of one form have in common; and how often such were read without one.
        self._patterns: dict[_FormKey, tuple[_Pattern, ...]] = {}
        self._sightings: dict[_FormKey, int] = {}
        self._last_born_text = b""
        self._last_born_ms = 0
        # What this tick has gathered, as long as nobody else has submitted anything.
        self._group: Group | None = None
        self._records: list[Appendable] = []
        self._asked: list[Asked] = []
        self._configure(settings.current)
        settings.add_listener(self._configure)
        topics.add_listener(self._forget)

    def _configure(self, config: BrokerConfig) -> None:
        self._is_open = config.is_writable and not config.store_host.is_v6
        self._accepts_from_ms = config.accept_sends_from_ms
        self._max_body_bytes = config.max_message_bytes
        self._max_record_bytes = self._store.config.max_record_bytes
        self._max_batch_bytes = self._store.config.segment_bytes - BLANK_BYTES
        self._store_host = pack_host(config.store_host) if self._is_open else b""
        trace = "true" if config.trace_on else "false"
        self._added_properties = message.encode_properties(
            {
                message.PROPERTY_REGION: config.region_id,
                message.PROPERTY_TRACE: trace,
                message.PROPERTY_CLUSTER: config.cluster_name,
            }
        )
        self._answers.configure(self._store_host, trace, config.region_id)
        self._patterns.clear()
        self._sightings.clear()

    def _forget(self, topics: list[str]) -> None:
        known = [topic for topic in topics if self._open_topics.pop(topic, None) is not None]
        if known:
            self._patterns.clear()
            self._sightings.clear()

    @property
    def remembered(self) -> int:
        """How many shapes, tags and forms of headers are remembered."""
        return self._properties.remembered + len(self._patterns) + len(self._sightings)

    @property
    def known_forms(self) -> int:
        """How many forms of headers are read by their layout."""
        return sum(map(len, self._patterns.values()))

    def on_frames(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        """Take the plain sends among the frames of a chunk; returns the others, in order."""
        born = connection.attachments.get(_PACKED_HOST) or _packed_host(connection)
        if (
            not self._is_open
            or not born
            or _send_log.isEnabledFor(logging.DEBUG)  # each send is to be in the log
            or self._gate.room(_SEND_RULE) < len(frames)
            or (self._accepts_from_ms and self._clock.now_ms() < self._accepts_from_ms)
        ):
            return frames
        others: list[memoryview] = []
        records: list[Appendable] = []
        marks: list[Mark] = []
        find_patterns, take_known = self._patterns.get, self._take_known
        for position, frame in enumerate(frames):
            size = len(frame)
            if size < _START.size:
                others.append(frame)  # too short for a send
                continue
            word, start = _START.unpack_from(frame)
            data = bytes(frame) if size <= _MAX_COPIED_BYTES else b""
            for pattern in find_patterns((word, data[KEY_START:KEY_END]), ()):
                if take_known(pattern, data, born, records, marks):
                    break
            else:
                read = self._reader_of(word >> 24, start)
                if read is None:
                    others.append(frame)  # no send: it may be overtaken
                elif not self._take(read, word, data or frame, born, records, marks):
                    if records:
                        self._submit(connection, records, marks)
                    return others + frames[position:]
        if records:
            self._submit(connection, records, marks)
        return others

    # Reading

    def _reader_of(self, encoding: int, start: bytes) -> SendReader | None:
        if encoding == _JSON:
            return JSON_READERS.get(start)
        if encoding == _BINARY and start[:2] in BINARY_CODES:
            return self._binary.read
        return None

    def _take_known(
        self,
        pattern: _Pattern,
        frame: bytes,
        born: bytes,
        records: list[Appendable],
        marks: list[Mark],
    ) -> bool:
        """Add the record of a message with a header of a known form; False when it is not."""
        form = pattern.form
        body = frame[form.body_at :]
        body_bytes = len(body)
        if not 0 < body_bytes <= pattern.max_body_bytes:
            return False
        values = form.fit(frame)
        if values is None:
            return False
        opaque, queue_text, born_text, texts = values
        topic = pattern.topic
        queue_key = topic.by_text.get(queue_text) or topic.find_queue(queue_text)
        unique_id = texts[pattern.unique_id_at]
        if queue_key is None:
            return False
        if born_text != self._last_born_text:
            self._last_born_text = born_text
            self._last_born_ms = int(born_text)
        if pattern.tags_at < 0:
            tags_code = 0
        else:
            tags = texts[pattern.tags_at]
            tags_code = self._tag_codes.get(tags) or self._properties.learn_tag(tags)
        records.append(
            (
                queue_key,
                pattern.fixed_bytes + body_bytes,
                body,
                pattern.joint,
                pattern.properties % texts,
                tags_code,
                pattern.flag,
                pattern.sys_flag,
                self._last_born_ms,
                born,
                self._store_host,
            )
        )
        marks.append((b"" if pattern.is_oneway else opaque, queue_text, unique_id, form.is_binary))
        return True

    def _take(
        self,
        read: SendReader,
        word: int,
        frame: bytes | memoryview,
        born: bytes,
        records: list[Appendable],
        marks: list[Mark],
    ) -> bool:
        """Add what any send brings; False when it is not plain."""
        header_bytes = word & 0xFFFFFF
        if header_bytes > MAX_HEADER_BYTES:
            return False  # field by field it would take seconds
        body_at = 4 + header_bytes
        request = read(memoryview(frame)[4:body_at])
        if request is None:
            return False
        body = frame[body_at:]
        batch = request.fields.batch
        if batch and batch != "false":
            return self._take_batch(request, body, born, word >> 24, records, marks)
        if not self._take_one(request, body, born, word >> 24, records, marks):
            return False
        if isinstance(frame, bytes):
            self._learn(word, frame, body_at, request, read)
        return True

    def _take_one(
        self,
        request: SendHeader,
        body: bytes | memoryview,
        born: bytes,
        encoding: int,
        records: list[Appendable],
        marks: list[Mark],
    ) -> bool:
        """Add the record of one message; False when it is not plain."""
        topic = self._topic_of(request, body)
        if topic is None:
            return False
        fields = request.fields
        found = self._properties.read(fields.properties, topic.shape)
        if found is None:
            return False
        raw, unique_id, tags, topic.shape = found
        if unique_id is None or not unique_id.isalnum():
            return False
        properties = raw + self._added_properties
        if len(properties) > MAX_PROPERTIES_BYTES:
            return False
        joint = encode_joint(topic.encoded, len(properties))
        size = plain_size(len(body), len(joint), len(properties))
        if size > self._max_record_bytes:
            return False
        records.append(
            (
                topic.queue_keys[fields.queue_id],
                size,
                body,
                joint,
                properties,
                0
                if tags is None
                else self._tag_codes.get(tags) or self._properties.learn_tag(tags),
                fields.flag,
                fields.sys_flag,
                fields.born_timestamp,
                born,
                self._store_host,
            )
        )
        marks.append(mark_of(request, unique_id, encoding))
        return True

    def _topic_of(self, request: SendHeader, body: bytes | memoryview) -> _OpenTopic | None:
        """Where a request's messages go; None when something about it is special."""
        fields = request.fields
        topic = self._open_topics.get(fields.topic) or self._opened(fields.topic)
        if (
            topic is None
            or not 0 <= fields.queue_id < topic.queue_count
            or fields.sys_flag & _SPECIAL_SYS_FLAGS
            or fields.reconsume_times
            or not 0 < len(body) <= self._max_body_bytes
            or request.flag & _RESPONSE
        ):
            return None
        return topic

    def _learn(
        self, word: int, frame: bytes, body_at: int, request: SendHeader, read: SendReader
    ) -> None:
        """After a header was read: if that happens often to such headers, find their form."""
        key = word, frame[KEY_START:KEY_END]
        sightings = self._sightings.get(key, 0) + 1
        if len(self._sightings) >= _MAX_MEMORIES:
            self._sightings.clear()
        self._sightings[key] = sightings
        # The eighth, the sixteenth and so on: where forms do not last, fewer and fewer are made.
        if sightings < _USES_BEFORE_PATTERN or sightings & (sightings - 1):
            return
        topic = self._open_topics[request.fields.topic]
        raw = request.fields.properties.encode()
        pairs = [pair.split(b"\x01") for pair in raw.split(b"\x02") if pair]
        properties = [Property(name, value, is_fixed=name == WAIT) for name, value in pairs]
        form = make_form(frame[4:body_at], word >> 24, request, properties, read)
        if form is None or UNIQUE_ID not in form.places:
            return
        if (TAGS in form.places) != any(name == TAGS for name, _ in pairs):
            return  # tags of other characters than usual
        if len(self._patterns) >= _MAX_MEMORIES:
            self._patterns.clear()
        added = self._added_properties
        length = sum(len(name) + len(value) + 2 for name, value in pairs) + len(added)
        template = form.properties + added.replace(b"%", b"%%")
        pattern = _Pattern(form, topic, request, template, length)
        max_body_bytes = self._max_record_bytes - pattern.fixed_bytes
        pattern.max_body_bytes = min(self._max_body_bytes, max_body_bytes)
        self._patterns[key] = (pattern, *self._patterns.get(key, ()))[:_MAX_FORMS_OF_KEY]

    def _take_batch(
        self,
        request: SendHeader,
        body: bytes | memoryview,
        born: bytes,
        encoding: int,
        records: list[Appendable],
        marks: list[Mark],
    ) -> bool:
        """Add the records of a batch; False when it is not plain."""
        topic = self._topic_of(request, body)
        if topic is None or request.fields.batch != "true":
            return False
        found = self._properties.read(request.fields.properties, topic.shape)
        if found is None:
            return False
        unique_id = found[1]
        if unique_id is not None and not unique_id.isalnum():
            return False
        fields = request.fields
        messages = read_batch(bytes(body), MAX_BATCH_MESSAGES)
        if messages is None:
            return False
        run = RecordRun(
            topic.queue_keys[fields.queue_id],
            topic.encoded,
            bodies=messages.bodies,
            properties=messages.properties,
            tags_codes=tags_codes_of(messages.properties),
            flags=messages.flags,
            is_even=messages.is_even,
            sys_flag=fields.sys_flag,
            born_timestamp_ms=fields.born_timestamp,
            born_host=born,
            store_host=self._store_host,
        )
        if max(run.sizes) > self._max_record_bytes or run.size > self._max_batch_bytes:
            return False
        records.append(run)
        marks.append(mark_of(request, unique_id, encoding))
        return True

    def _opened(self, name: str) -> _OpenTopic | None:
        """The topic if it exists and nothing about it is special."""
        config = self._topics.get(name)
        if (
            config is None
            or name in self._topics.unsaved
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

    # Storing

    def _submit(self, connection: Connection, records: list[Appendable], marks: list[Mark]) -> None:
        """Have records stored with all others of this tick, in the order of their coming."""
        appender = self._appender
        messages = count_messages(records)
        group = self._group
        if group is not None and appender.is_last(group):
            self._records += records
            self._asked.append((connection, marks))
            appender.added(group, len(records), messages)
            return
        self._records = records
        self._asked = asked = [(connection, marks)]
        self._group = appender.submit_open(
            records, messages, partial(self._answers.tell, asked), self._overload.max_wait_ms
        )


def _packed_host(connection: Connection) -> bytes:
    """The peer's address as records hold it; empty for IPv6, whose records are longer."""
    host = born_host(connection)
    packed = b"" if host.is_v6 else pack_host(host)
    connection.attachments[_PACKED_HOST] = packed
    return packed
