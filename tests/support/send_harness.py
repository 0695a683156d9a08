"""The broker's sending side without a broker process: a real store, real tables, no sockets.

``SendHarness`` connects all parts between a connection and the store. Requests arrive over a memory
transport, with or without the compiled lane.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Any, Self

from goddard.broker.gate import BrokerGate
from goddard.broker.lane.sends import SendLane, binary_parts, json_parts
from goddard.broker.rules import register
from goddard.broker.sending.appender import Appender
from goddard.broker.sending.message_rules import MessageWriter
from goddard.broker.sending.new_topics import SaveTopics
from goddard.broker.sending.overload import Overload
from goddard.broker.sending.property_meanings import SPECIAL_PREFIX, SPECIAL_PROPERTIES
from goddard.broker.sending.send import AsHalf, Sends
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.clock import Clock
from goddard.core import IS_COMPILED
from goddard.environment import Environment
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.ids import UniqueIds
from goddard.protocol.record import Record, decode_record
from goddard.store.tables import SubscriptionGroupTable, TopicTable
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer, join_raw
from tests.support.store import SmallStore

if IS_COMPILED:
    from goddard.core.sends import PlainSends


class CountedPuts:
    """Records the statistics that the broker reports."""

    def __init__(self) -> None:
        self.puts: dict[str, tuple[int, int]] = {}

    def put(self, topic: str, count: int, size: int, requests: int = 1) -> None:
        counted, bytes_ = self.puts.get(topic, (0, 0))
        self.puts[topic] = (counted + count, bytes_ + size)


class SendHarness:
    """Create it inside a running loop; use it as a context manager."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock | None = None,
        as_half: AsHalf | None = None,
        has_live_locks: Any = None,
        save_topics: SaveTopics | None = None,
        properties: dict[str, str] | None = None,
        **store_settings: Any,
    ) -> None:
        self.clock: Clock = clock or ManualClock()
        manual = self.clock if isinstance(self.clock, ManualClock) else None
        store_settings = {"segment_bytes": 1 << 20, "queue_file_bytes": 4000} | store_settings
        small = SmallStore(root / "store", clock=manual, **store_settings)
        self.flush_worker = small.flush_worker
        store = self.store = small.store
        self.settings = Settings(
            BrokerConfig.from_properties(
                {"brokerIP1": "127.0.0.1", "listenPort": "10911", "brokerName": "broker-a"}
                | (properties or {})
            )
        )
        config_directory = root / "config"
        self.topics = Topics(
            TopicTable(config_directory, self.clock), self.settings, clock=self.clock
        )
        self.topics.add_system_topics()
        self.groups = Groups(SubscriptionGroupTable(config_directory, self.clock), self.settings)
        self.stats = CountedPuts()
        loop = asyncio.get_running_loop()
        self.appender = Appender(store, loop, clock=self.clock)
        overload = Overload(self.appender, self.settings)
        self.gate = BrokerGate(overload, self.settings)
        self.writer = MessageWriter(self.appender, self.settings)
        self.sends = Sends(
            store=store,
            appender=self.appender,
            writer=self.writer,
            overload=overload,
            topics=self.topics,
            groups=self.groups,
            settings=self.settings,
            environment=Environment(clock=self.clock),
            stats=self.stats,
            as_half=as_half,
            has_live_locks=has_live_locks,
            save_topics=save_topics,
            unique_ids=UniqueIds(bytes((127, 0, 0, 1)), 4711, 42),
        )
        self.lane: SendLane | None = None
        if IS_COMPILED:
            self.lane = SendLane(
                store=store,
                appender=self.appender,
                gate=self.gate,
                overload=overload,
                sends=self.sends,
                topics=self.topics,
                settings=self.settings,
                clock=self.clock,
                stats=self.stats,
            )
        self.handlers = Handlers(self.gate)
        register(self.handlers, self.sends.handlers())

    def __enter__(self) -> Self:
        self.store.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def add_topic(self, name: str, queues: int = 4, **fields: Any) -> None:
        self.topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **fields)
        )

    def connect(self, *, lane: bool = False) -> tuple[RawPeer, Connection]:
        """With ``lane``, plain sends take the compiled lane, if there is one."""
        on_bytes = self.lane.on_bytes if lane and self.lane is not None else None
        return join_raw(self.handlers, on_bytes=on_bytes)

    async def ask(self, *requests: RemotingCommand, lane: bool = False) -> list[RemotingCommand]:
        """Send requests in one chunk; returns the responses (none for one-way), by opaque."""
        peer, connection = self.connect(lane=lane)
        peer.transport.write(b"".join(map(encode_frame, requests)))
        answered = [request for request in requests if not request.is_oneway]
        answers = await peer.receive(len(answered))
        connection.close()
        return sorted(answers, key=lambda answer: answer.opaque)

    def records(self) -> list[Record]:
        """All records in the log."""
        return [
            decode_record(view)[0]
            for entry in self.store.log.scan(0)
            if (view := self.store.log.read(entry.physical_offset, entry.size)) is not None
        ]


_opaques = itertools.count(1)


def send_request(
    topic: str = "TopicTest",
    body: bytes = b"hello",
    *,
    properties: str = "UNIQ_KEY\x017F0000014E9F5FFD2B274A0404820001\x02WAIT\x01true\x02",
    code: int = RequestCode.SEND_MESSAGE_V2,
    **changes: Any,
) -> RemotingCommand:
    """A send request as Java's client encodes it.

    ``changes`` replace fields (None removes one) or attributes of the command (``oneway``,
    ``opaque``, ``serialize_type``, ``version``).
    """
    is_oneway = changes.pop("oneway", False)
    command: dict[str, Any] = {
        name: changes.pop(name)
        for name in ("opaque", "serialize_type", "version", "language")
        if name in changes
    }
    fields: dict[str, str | None] = {
        "a": "Producers",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1794732977282",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
        "n": "broker-a",
    }
    if code == RequestCode.SEND_MESSAGE:
        fields = {_LONG_NAMES[name]: value for name, value in fields.items()}
    fields |= changes
    return RemotingCommand(
        code,
        {name: value for name, value in fields.items() if value is not None},
        body,
        flag=2 if is_oneway else 0,
        **{"opaque": next(_opaques), **command},
    )


_LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "m": "batch",
    "n": "bname",
}


# What the broker adds to each message that is no batch, with its default configuration.
ADDED_PROPERTIES = (
    b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
)


def plain_sends(**changes: Any) -> "PlainSends":
    """The compiled lane alone, configured as a broker does it. ``changes`` replace settings."""
    lane = PlainSends()
    settings: dict[str, Any] = {
        "store_host": bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F)),
        "added_properties": ADDED_PROPERTIES,
        "max_body_bytes": 4 << 20,
        "max_record_bytes": 5 << 20,
        "max_batch_bytes": 1 << 30,
        "waits_durable": False,
        "special_names": frozenset(name.encode() for name in SPECIAL_PROPERTIES),
        "special_prefix": SPECIAL_PREFIX.encode(),
        "json_parts": json_parts("true", "DefaultRegion"),
        "binary_parts": binary_parts("true", "DefaultRegion"),
    }
    lane.configure(**settings | changes)
    return lane
