"""The broker's consuming side without a broker process: a real store, real tables, no sockets.

``ConsumerHarness`` connects the parts for heartbeats, pulls, offsets and locks. Requests arrive
over a memory transport, and the test controls the clock.
"""

import itertools
from pathlib import Path
from typing import Any, Self

from goddard.broker.consuming.clients import Clients
from goddard.broker.consuming.filters import ConsumerFilters
from goddard.broker.consuming.locks import QueueLockRequests
from goddard.broker.consuming.longpoll import ParkedPulls
from goddard.broker.consuming.offsets import Offsets
from goddard.broker.consuming.pull import Pulls
from goddard.broker.rules import register
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.core import IS_COMPILED
from goddard.protocol.bodies import TopicConfig, encode_body
from goddard.protocol.bodies_client import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from goddard.protocol.codes import RequestCode, SerializeType
from goddard.protocol.filters.expression import parse_tags
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.record import Record, iter_records
from goddard.store.tables import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    SubscriptionGroupTable,
    TopicTable,
)
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions
from goddard.transport.rules import OpenGate
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer, join
from tests.support.store import SmallStore, prepared

if IS_COMPILED:
    from goddard.broker.lane.pulls import PullLane


class CountedGets:
    """Records the statistics that the broker reports."""

    def __init__(self) -> None:
        self.gets: dict[tuple[str, str], tuple[int, int]] = {}
        self.misses = 0

    def get(self, topic: str, group: str, count: int, size: int) -> None:
        counted, bytes_ = self.gets.get((topic, group), (0, 0))
        self.gets[topic, group] = (counted + count, bytes_ + size)

    def get_took(self, queue_id: int, topic: str, group: str, took_ms: int) -> None:
        assert took_ms >= 0

    def miss(self) -> None:
        self.misses += 1


def tags(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    """A tag subscription as Java clients send it."""
    parsed = parse_tags(expression)
    return SubscriptionData(
        topic=topic,
        sub_string=parsed.expression,
        tags_set=list(parsed.tags),
        code_set=list(parsed.codes),
        sub_version=version,
    )


def sql(topic: str, expression: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version
    )


class Consumer:
    """A client connected to a ``ConsumerHarness``."""

    def __init__(self, harness: "ConsumerHarness", *, lane: bool) -> None:
        self.peer = RawPeer()
        self.connection = Connection(
            ConnectionOptions(),
            harness.handlers,
            on_close=harness.connection_closed,
            on_frames=harness.take_pulls if lane else None,
        )
        join(self.peer, self.connection)
        # Requests from the broker, and responses that no call has waited for yet.
        self.pushed: list[RemotingCommand] = []
        self._answers: dict[int, RemotingCommand] = {}
        self._opaques = itertools.count(1)

    def send(
        self,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        serialize_type: SerializeType = SerializeType.JSON,
        flag: int = 0,
    ) -> int:
        """Write a request; returns its opaque."""
        opaque = next(self._opaques)
        texts = {name: str(value) for name, value in (fields or {}).items() if value is not None}
        command = RemotingCommand(
            code, texts, body, opaque=opaque, flag=flag, serialize_type=serialize_type
        )
        self.peer.transport.write(encode_frame(command))
        return opaque

    async def answer(self, opaque: int, timeout_seconds: float = 5.0) -> RemotingCommand:
        while opaque not in self._answers:
            (command,) = await self.peer.receive(1, timeout_seconds)
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.pushed.append(command)
        return self._answers.pop(opaque)

    async def ask(
        self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **options: Any
    ) -> RemotingCommand:
        return await self.answer(self.send(code, fields, body, **options))

    async def next_push(self) -> RemotingCommand:
        """The next request from the broker."""
        while not self.pushed:
            (command,) = await self.peer.receive(1)
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.pushed.append(command)
        return self.pushed.pop(0)

    async def heartbeat(
        self,
        group: str | None = None,
        *subscriptions: SubscriptionData,
        client_id: str = "127.0.0.1@1",
        producer: str | None = None,
        fingerprint: int = 0,
        without_sub: bool = False,
        **consumer: Any,
    ) -> RemotingCommand:
        data = HeartbeatData(
            client_id=client_id, heartbeat_fingerprint=fingerprint, without_sub=without_sub
        )
        if group is not None:
            data.consumer_data_set.append(
                ConsumerData(
                    group_name=group, subscription_data_set=list(subscriptions), **consumer
                )
            )
        if producer is not None:
            data.producer_data_set.append(ProducerData(group_name=producer))
        return await self.ask(RequestCode.HEART_BEAT, {}, encode_body(data))


class ConsumerHarness:
    """Create it inside a running loop; use it as a context manager."""

    def __init__(
        self, root: Path, *, properties: dict[str, str] | None = None, **store_settings: Any
    ) -> None:
        self.clock = ManualClock()
        small = SmallStore(
            root / "store",
            clock=self.clock,
            **({"segment_bytes": 1 << 20, "queue_file_bytes": 4000} | store_settings),
        )
        self.store = small.store
        self.flush_worker = small.flush_worker
        self.settings = Settings(
            BrokerConfig.from_properties({"brokerIP1": "127.0.0.1"} | (properties or {}))
        )
        directory = root / "config"
        self.topics = Topics(TopicTable(directory, self.clock), self.settings, clock=self.clock)
        self.topics.add_system_topics()
        self.groups = Groups(SubscriptionGroupTable(directory, self.clock), self.settings)
        self.filters = ConsumerFilters(
            ConsumerFilterTable(directory, self.clock), self.settings, clock=self.clock
        )
        self.clients = Clients(
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            filters=self.filters,
            clock=self.clock,
        )
        self.offsets = Offsets(
            ConsumerOffsetTable(directory, self.clock),
            store=self.store,
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
        )
        self.locks = QueueLockRequests(clock=self.clock)
        self.locks.on_released = self.clients.notify
        self.parked_pulls = ParkedPulls(
            settings=self.settings, max_offset=self.store.max_offset, clock=self.clock
        )
        self.store.add_listener(self.parked_pulls.on_arrival)
        self.stats = CountedGets()
        self.pulls = Pulls(
            store=self.store,
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            filters=self.filters,
            offsets=self.offsets,
            parked_pulls=self.parked_pulls,
            stats=self.stats,
        )
        gate = OpenGate()
        self.handlers = Handlers(gate)
        self.lane: PullLane | None = None
        if IS_COMPILED:
            self.lane = PullLane(
                self.pulls,
                gate,
                store=self.store,
                settings=self.settings,
                topics=self.topics,
                groups=self.groups,
                clients=self.clients,
                offsets=self.offsets,
                stats=self.stats,
                clock=self.clock,
            )
        for part in (self.clients, self.offsets, self.locks, self.pulls):
            register(self.handlers, part.handlers())

    def __enter__(self) -> Self:
        self.store.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.stop()
        self.parked_pulls.stop()
        self.store.close()

    def take_pulls(self, connection: Connection, frames: list[memoryview]) -> list[memoryview]:
        """What a broker does with the frames of a chunk; the lane exists only when compiled."""
        return frames if self.lane is None else frames[self.lane.take(connection, frames, 0) :]

    def connection_closed(self, connection: Connection) -> None:
        self.clients.connection_closed(connection)
        self.parked_pulls.connection_closed(connection)

    def connect(self, *, lane: bool = False) -> Consumer:
        return Consumer(self, lane=lane)

    def add_topic(self, name: str, queues: int = 4, **fields: Any) -> None:
        self.topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **fields)
        )

    def put(self, topic: str, *bodies: bytes, queue_id: int = 0, **fields: Any) -> None:
        self.store.put_many([prepared(topic, queue_id, body, **fields) for body in bodies])


def pull_fields(topic: str, queue_offset: int = 0, **fields: Any) -> dict[str, Any]:
    """The fields of a pull with a subscription that does not wait for messages."""
    return {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": 0,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    } | fields


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    return [record.body for record in records_of(answer)]


def records_of(answer: RemotingCommand) -> list[Record]:
    return list(iter_records(answer.body))
