"""The compiled lane of sends: what stands between a connection, ``core.sends`` and the appender.

``on_bytes`` is offered each chunk that a connection receives. It takes the plain sends at its
beginning and leaves the rest, so that everything of a connection is handled in its order; what it
leaves, ``goddard.broker.sending.send`` handles with the same outcome. All sends of a tick of the
loop are one block, which the appender stores with one write.

Without the compiled core there is no lane. Belongs to the loop.
"""

import logging
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from goddard.broker.gate import BrokerGate
from goddard.broker.rules import RULES
from goddard.broker.sending.appender import Appender, Group
from goddard.broker.sending.overload import Overload
from goddard.broker.sending.property_meanings import SPECIAL_PREFIX, SPECIAL_PROPERTIES
from goddard.broker.sending.send import PutStats, Sends, born_host
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Topics
from goddard.clock import Clock, SystemClock
from goddard.core import IS_COMPILED
from goddard.errors import StoreError
from goddard.protocol import message, names
from goddard.protocol.codes import (
    CURRENT_VERSION,
    CommandFlag,
    LanguageCode,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.record import BLANK_BYTES, MAX_TOPIC_BYTES_V1
from goddard.store.config import FlushMode
from goddard.store.log.block import each_entry
from goddard.store.log.records import MAX_QUEUE_ID, pack_host
from goddard.store.store import MessageStore
from goddard.transport.connection import Connection

if TYPE_CHECKING or IS_COMPILED:
    from goddard.core.sends import PlainSends
    from goddard.core.staged_sends import OpenTopic, Peer, StagedSends

_send_log: Final = logging.getLogger("goddard.broker.sending.send")

_SEND_RULE: Final = RULES[RequestCode.SEND_MESSAGE]
_PEER: Final = "plain_sends_peer"
# code, language, version, opaque, flag, length of the remark, length of the fields
_BINARY_HEAD: Final = Struct(">hBhiiii")
_LENGTH: Final = Struct(">h")
_VALUE_LENGTH: Final = Struct(">i")


class SendLane:
    """Give ``on_bytes`` to the server."""

    def __init__(
        self,
        *,
        store: MessageStore,
        appender: Appender,
        gate: BrokerGate,
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
        self._sends = sends
        self._topics = topics
        self._clock: Clock = clock or SystemClock()
        self._stats = stats
        self._plain = PlainSends()
        # The block of this tick, as long as nobody else has submitted anything.
        self._staged: StagedSends | None
        self._group: Group | None
        self._configure(settings.current)
        settings.add_listener(self._configure)
        topics.add_listener(lambda _: self._topics_changed())

    def _topics_changed(self) -> None:
        self._plain.forget_topics()
        self._end_block()

    def _end_block(self) -> None:
        """The next send begins a new block. A block counts queues by the topics that were open
        when it began, and its answers have the settings of that time."""
        self._staged = self._group = None

    def _configure(self, config: BrokerConfig) -> None:
        self._end_block()
        self._is_open = config.is_writable and not config.store_host.is_v6
        self._accepts_from_ms = config.accept_sends_from_ms
        if not self._is_open:
            return
        trace = "true" if config.trace_on else "false"
        added = {
            message.PROPERTY_REGION: config.region_id,
            message.PROPERTY_TRACE: trace,
            message.PROPERTY_CLUSTER: config.cluster_name,
        }
        self._plain.configure(
            store_host=pack_host(config.store_host),
            added_properties=message.encode_properties(added),
            max_body_bytes=config.max_message_bytes,
            max_record_bytes=self._store.config.max_record_bytes,
            max_batch_bytes=self._store.config.segment_bytes - BLANK_BYTES,
            waits_durable=self._store.config.flush_mode is FlushMode.SYNC
            or config.broker_role == "SYNC_MASTER",
            special_names=frozenset(name.encode() for name in SPECIAL_PROPERTIES),
            special_prefix=SPECIAL_PREFIX.encode(),
            json_parts=json_parts(trace, config.region_id),
            binary_parts=binary_parts(trace, config.region_id),
        )

    # Taking

    def on_bytes(self, connection: Connection, data: bytes) -> int:
        """Take the plain sends at the beginning of a chunk; returns how many bytes they are."""
        peer = connection.attachments.get(_PEER) or self._peer_of(connection)
        if (
            peer is None
            or not self._is_open
            or _send_log.isEnabledFor(logging.DEBUG)  # each send is to be in the log
            or (self._accepts_from_ms and self._clock.now_ms() < self._accepts_from_ms)
        ):
            return 0
        room = self._gate.room(_SEND_RULE)
        staged, group = self._staged, self._group
        if staged is None or group is None or not self._appender.is_last(group):
            staged, group = StagedSends(), None
        requests, messages = staged.request_count, staged.message_count
        taken = self._plain.take(staged, data, peer, room)
        while taken < len(data) and self._open_topic(data, taken):
            left = room - staged.request_count + requests
            taken += self._plain.take(staged, data[taken:], peer, left)
        if taken:
            if group is None:
                self._submit(staged)
                group = self._group
            assert group is not None
            self._appender.added(
                group, staged.request_count - requests, staged.message_count - messages
            )
        return taken

    def _peer_of(self, connection: Connection) -> "Peer | None":
        """None for IPv6, whose records are longer."""
        host = born_host(connection)
        if host.is_v6:
            return None
        peer = Peer(pack_host(host), connection)
        connection.attachments[_PEER] = peer
        return peer

    def _open_topic(self, data: bytes, at: int) -> bool:
        """Open the topic of the send at ``at``, if it is for one that is plain and not yet open."""
        name = self._plain.missing_topic(data, at)
        queue_count = 0 if name is None else self._plain_queues(name)
        if name is None or not queue_count:
            return False
        self._plain.add_topic(OpenTopic(name, queue_count))
        return True

    def _plain_queues(self, name: str) -> int:
        """How many queues a topic has; 0 if it does not exist or something about it is special."""
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
            return 0
        count = max(config.write_queue_nums, config.read_queue_nums)
        return count if 0 < count <= MAX_QUEUE_ID + 1 else 0

    # Storing

    def _submit(self, staged: "StagedSends") -> None:
        def stored(is_stored: bool, error: StoreError | None) -> None:
            if self._staged is staged:
                self._end_block()
            if is_stored and self._stats is not None:
                for topic, (messages, size, requests) in staged.topic_totals().items():
                    self._stats.put(topic, messages, size, requests)
            if is_stored and error is None:
                for connection, answers in self._plain.answers(staged):
                    if not connection.is_closed:
                        connection.send_now(answers)
            else:
                self._answer_unusual(staged, is_stored, error)

        self._staged = staged
        self._group = self._appender.submit_block(staged, stored, self._overload.max_wait_ms)

    def _answer_unusual(
        self, staged: "StagedSends", is_stored: bool, error: StoreError | None
    ) -> None:
        """Answer requests that were not stored, or not confirmed by the disk."""
        entries = each_entry(staged) if is_stored else []
        for (
            connection,
            opaque,
            is_binary,
            is_oneway,
            queue_id,
            unique_id,
            first,
            count,
        ) in staged.requests():
            if is_oneway or connection.is_closed:
                continue
            kind = SerializeType.ROCKETMQ if is_binary else SerializeType.JSON
            request = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, opaque=opaque, serialize_type=kind
            )
            if is_stored:
                its_entries = entries[first : first + count]
                answer = self._sends.success(request, its_entries, queue_id, unique_id, error)
            else:
                answer = self._sends.failure(request, error)
            connection.respond(answer)


def json_parts(trace: str, region: str) -> tuple[bytes, ...]:
    """An answer in JSON without queue id, unique id, message ids, queue offset and opaque."""
    texts = (msgspec.json.encode(trace), msgspec.json.encode(region))
    return (
        b'{"code":0,"extFields":{"queueId":"',
        b'","transactionId":"',
        b'","msgId":"',
        b'","TRACE_ON":%b,"MSG_REGION":%b,"queueOffset":"' % texts,
        b'"},"flag":1,"language":"JAVA","opaque":',
        b',"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION,
    )


def binary_parts(trace: str, region: str) -> tuple[bytes, ...]:
    """A binary answer's head, and what comes before the lengths of the same values."""
    head = _BINARY_HEAD.pack(
        ResponseCode.SUCCESS, LanguageCode.JAVA, CURRENT_VERSION, 0, CommandFlag.RESPONSE, 0, 0
    )
    return (
        head,
        _field_name("queueId"),
        _field_name("transactionId"),
        _field_name("msgId"),
        _field(message.PROPERTY_TRACE, trace)
        + _field(message.PROPERTY_REGION, region)
        + _field_name("queueOffset"),
    )


def _field_name(name: str) -> bytes:
    return _LENGTH.pack(len(name)) + name.encode()


def _field(name: str, value: str) -> bytes:
    data = value.encode()
    return _field_name(name) + _VALUE_LENGTH.pack(len(data)) + data
