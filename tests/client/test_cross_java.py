"""Goddard's and RocketMQ's Java clients on the same topics: each consumes what the other sends.

Runs on Goddard's broker and on RocketMQ's, with Goddard's blocking clients.
"""

import queue
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from goddard import (
    CompressionKind,
    ConsumeFrom,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Sql,
    TransactionProducer,
    TransactionState,
)
from goddard.client.consume.offsets import read_offsets
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.java import JavaPeers, JavaProgram
from tests.support.java_clients import JavaClients, Outgoing, Queue, Received, Sent

pytestmark = pytest.mark.java

TIMEOUT_SECONDS = 30
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
COMPRESSION_KINDS = {
    "LZ4": CompressionKind.LZ4,
    "ZSTD": CompressionKind.ZSTD,
    "ZLIB": CompressionKind.ZLIB,
}
SHORT_INTERVALS: dict[str, Any] = {
    "rebalance_interval_ms": 100,
    "poll_name_server_interval_ms": 200,
    "persist_offsets_interval_ms": 100,
    "consume_from": ConsumeFrom.FIRST_OFFSET,
}


@pytest.fixture(scope="module")
def java_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("java-clients")


@pytest.fixture(scope="module")
def jvm(java_folder: Path) -> Iterator[JavaProgram]:
    with JavaPeers("5.4.0", java_folder) as java:
        yield java.client_suite()


@pytest.fixture
def java(site: Site, jvm: JavaProgram) -> Iterator[JavaClients]:
    clients = JavaClients(jvm, site.namesrv)
    yield clients
    clients.close_all()


class GoddardConsumer:
    """A consumer of Goddard that keeps the received messages."""

    def __init__(self, site: Site, kind: str, group: str, topic: str, **options: Any) -> None:
        self.messages: list[ReceivedMessage] = []
        self._delivered: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
        expression = options.pop("expression", "*")
        settings: dict[str, Any] = {"name_servers": site.namesrv, **SHORT_INTERVALS, **options}
        self._lite: LitePullConsumer | None = None
        self.client: PushConsumer | LitePullConsumer
        if kind == "lite":
            self.client = self._lite = LitePullConsumer(group, **settings)
        else:
            self.client = PushConsumer(group, listener=self._listen, **settings)
        self.client.subscribe(topic, expression)

    def _listen(self, messages: list[ReceivedMessage], _: object) -> None:
        for message in messages:
            self._delivered.put(message)

    def receive(self, count: int) -> list[ReceivedMessage]:
        """All messages received so far, when there are at least ``count``."""

        def enough() -> bool | None:
            if self._lite is not None:
                self.messages += self._lite.poll(200)
            while not self._delivered.empty():
                self.messages.append(self._delivered.get())
            return len(self.messages) >= count or None

        wait_until(enough, TIMEOUT_SECONDS, f"{count} messages")
        return self.messages

    def __enter__(self) -> Self:
        self.client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop()


MakeConsumer = Callable[..., GoddardConsumer]


@pytest.fixture(params=["push", "lite"])
def goddard_consumer(request: pytest.FixtureRequest, site: Site) -> MakeConsumer:
    """Creates a push or a lite pull consumer of Goddard."""
    kind = request.param

    def make(topic: str, **options: Any) -> GoddardConsumer:
        return GoddardConsumer(site, kind, site.new_group("GoddardReaders"), topic, **options)

    return make


@pytest.fixture
def producer(site: Site) -> Iterator[Producer]:
    with Producer(site.new_group("GoddardSenders"), name_servers=site.namesrv) as made:
        yield made


def place(message: ReceivedMessage) -> tuple[str, str, int, int]:
    return message.message_id, message.broker_name, message.queue_id, message.queue_offset


def places(sent: list[Sent]) -> set[tuple[str, str, int, int]]:
    return {(each.id, each.broker, each.queue, each.offset) for each in sent}


def numbered(topic: str, count: int, **fields: Any) -> list[Outgoing]:
    return [
        Outgoing(topic, f"body {number}".encode(), tag="T", keys=f"key{number} all", **fields)
        for number in range(count)
    ]


# --- Java sends, Goddard receives -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_java_sends(
    site: Site, java: JavaClients, goddard_consumer: MakeConsumer, mode: str
) -> None:
    topic = site.create_topic("FromJava")
    messages = numbered(topic, 20, properties={"colour": "grün", "empty ": "x y"})
    sent = java.producer("senders").send(*messages, mode=mode)
    with goddard_consumer(topic) as consumer:
        received = consumer.receive(20)
    assert {place(message) for message in received} == places(sent)
    by_body = {message.body: message for message in received}
    for number, message in enumerate(messages):
        arrived = by_body[message.body]
        assert (arrived.topic, arrived.tags) == (topic, "T")
        assert arrived.keys == [f"key{number}", "all"]
        assert message.properties.items() <= arrived.properties.items()
        assert arrived.reconsume_times == 0
    ids = {message.offset_message_id for message in received}
    assert ids == {each.offset_id for each in sent}


def test_java_oneway_sends(site: Site, java: JavaClients, goddard_consumer: MakeConsumer) -> None:
    topic = site.create_topic("FromJavaOneway")
    messages = numbered(topic, 10)
    java.producer("senders").send(*messages, mode="oneway")
    with goddard_consumer(topic) as consumer:
        received = consumer.receive(10)
    assert sorted(m.body for m in received) == sorted(m.body for m in messages)


def test_java_batch(site: Site, java: JavaClients, goddard_consumer: MakeConsumer) -> None:
    topic = site.create_topic("FromJavaBatch", queues=1)
    messages = numbered(topic, 10)
    (sent,) = java.producer("senders").send(*messages, mode="batch")
    with goddard_consumer(topic) as consumer:
        received = sorted(consumer.receive(10), key=lambda message: message.queue_offset)
    assert [message.body for message in received] == [message.body for message in messages]
    assert [message.message_id for message in received] == sent.id.split(",")
    assert {message.tags for message in received} == {"T"}


@pytest.mark.parametrize("kind", sorted(COMPRESSION_KINDS))
def test_java_compressed_body(
    site: Site, java: JavaClients, goddard_consumer: MakeConsumer, kind: str
) -> None:
    topic = site.create_topic("FromJavaCompressed")
    body = b"compress me " * 10_000
    sender = java.producer("senders", compressOverBytes=1024, compression=kind)
    sender.send(Outgoing(topic, body))
    with goddard_consumer(topic) as consumer:
        (message,) = consumer.receive(1)
    assert message.body == body
    assert message.stored_body_bytes < len(body) / 10
    assert message.sys_flag == int(COMPRESSION_KINDS[kind]) << 8


def test_java_large_message(site: Site, java: JavaClients, goddard_consumer: MakeConsumer) -> None:
    topic = site.create_topic("FromJavaLarge")
    body = random.Random(1).randbytes(3 << 20)
    java.producer("senders", compressOverBytes=8 << 20).send(Outgoing(topic, body))
    with goddard_consumer(topic) as consumer:
        (message,) = consumer.receive(1)
    assert message.body == body


@pytest.mark.parametrize(
    "expression", ["T || Other", Sql("number > 1 AND TAGS IS NOT NULL")], ids=["tags", "sql"]
)
def test_filters_on_java_messages(
    site: Site, java: JavaClients, goddard_consumer: MakeConsumer, expression: Any
) -> None:
    topic = site.create_topic("FromJavaFilter", queues=1)
    java.producer("senders").send(
        Outgoing(topic, b"unwanted", tag="Not", properties={"number": "1"}),
        Outgoing(topic, b"wanted", tag="T", properties={"number": "2"}),
        Outgoing(topic, b"no tag", properties={"number": "3"}),
        Outgoing(topic, b"wanted too", tag="Other", properties={"number": "4"}),
    )
    with goddard_consumer(topic, expression=expression) as consumer:
        received = consumer.receive(2)
    assert sorted(message.body for message in received) == [b"wanted", b"wanted too"]


def test_java_ordered_messages(site: Site, java: JavaClients) -> None:
    topic = site.create_topic("FromJavaOrder", queues=3)
    messages = [
        Outgoing(topic, f"{number % 3}:{number}".encode(), shard=number % 3) for number in range(60)
    ]
    java.producer("senders").send(*messages)
    group = site.new_group("GoddardReaders")
    with GoddardConsumer(site, "push", group, topic, orderly=True) as consumer:
        received = consumer.receive(60)
    for shard in range(3):
        of_shard = [m.body for m in received if m.body.startswith(b"%d:" % shard)]
        assert of_shard == [m.body for m in messages if m.shard == shard]


def test_java_delayed_message(
    site: Site, java: JavaClients, goddard_consumer: MakeConsumer
) -> None:
    topic = site.create_topic("FromJavaDelay")
    with goddard_consumer(topic) as consumer:
        (sent,) = java.producer("senders").send(Outgoing(topic, b"late", delay_level=1))
        (message,) = consumer.receive(1)
    assert (message.body, message.message_id) == (b"late", sent.id)
    assert message.store_timestamp_ms - message.born_timestamp_ms >= 900


def test_java_transactions(site: Site, java: JavaClients, goddard_consumer: MakeConsumer) -> None:
    topic = site.create_topic("FromJavaTransactions")

    def half(body: bytes, local: str, checked: str = UNKNOWN) -> Outgoing:
        return Outgoing(topic, body, properties={"local": local, "checked": checked})

    sender = java.producer(site.new_group("senders"), transactional=True)
    sent = sender.send(
        half(b"dropped", ROLLBACK),
        half(b"kept", COMMIT),
        half(b"checked", UNKNOWN, COMMIT),
        mode="transaction",
    )
    with goddard_consumer(topic) as consumer:
        received = {message.body: message for message in consumer.receive(2)}
    assert set(received) == {b"kept", b"checked"}
    assert received[b"kept"].message_id == sent[1].id
    assert received[b"kept"].transaction_id == sent[1].id


# --- Goddard sends, Java receives -----------------------------------------------------------------


def java_read(
    java: JavaClients, site: Site, topic: str, count: int, **options: Any
) -> list[Received]:
    return java.push(site.new_group("JavaReaders"), topic, **options).receive(
        count, TIMEOUT_SECONDS
    )


def test_goddard_sends(site: Site, java: JavaClients, producer: Producer) -> None:
    topic = site.create_topic("ToJava")
    sent = [
        producer.send(
            Message(
                topic,
                f"body {number}".encode(),
                tags="T",
                keys=[f"key{number}", "all"],
                properties={"colour": "grün", "spaced": "x y"},
                flag=7,
            )
        )
        for number in range(10)
    ]
    futures = [
        producer.send_async(Message(topic, f"body {number}".encode(), tags="T"))
        for number in range(10, 20)
    ]
    sent += [future.result(TIMEOUT_SECONDS) for future in futures]
    producer.send_oneway(Message(topic, b"body 20", tags="T"))
    received = java_read(java, site, topic, 21)
    assert {(r.id, r.broker, r.queue, r.offset) for r in received if r.content != b"body 20"} == {
        (s.message_id, s.queue.broker_name, s.queue.queue_id, s.queue_offset) for s in sent
    }
    by_id = {each.id: each for each in received}
    first = by_id[sent[0].message_id]
    assert (first.tag, first.keys, first.offset_id) == ("T", "key0 all", sent[0].offset_message_id)
    assert first.properties.items() >= {"colour": "grün", "spaced": "x y"}.items()
    assert len(received) == 21


def test_goddard_batch(site: Site, java: JavaClients, producer: Producer) -> None:
    topic = site.create_topic("ToJavaBatch", queues=1)
    messages = [Message(topic, f"body {number}".encode(), tags="T") for number in range(10)]
    results = producer.send_batch(messages)
    received = java_read(java, site, topic, 10)
    ordered = sorted(received, key=lambda each: each.offset)
    assert [each.content for each in ordered] == [message.body for message in messages]
    ids = ",".join(result.message_id for result in results).split(",")
    assert [each.id for each in ordered] == ids


@pytest.mark.parametrize("kind", sorted(COMPRESSION_KINDS))
def test_goddard_compressed_body(site: Site, java: JavaClients, kind: str) -> None:
    topic = site.create_topic("ToJavaCompressed")
    body = b"compress me " * 10_000
    compression = COMPRESSION_KINDS[kind]
    with Producer("compressors", name_servers=site.namesrv, compression=compression) as sender:
        sender.send(Message(topic, body))
    (message,) = java_read(java, site, topic, 1)
    assert message.content == body
    assert message.sys_flag & 0x700 == int(compression) << 8


def test_goddard_large_message(site: Site, java: JavaClients) -> None:
    topic = site.create_topic("ToJavaLarge")
    body = random.Random(2).randbytes(3 << 20)
    with Producer("large", name_servers=site.namesrv, compress_from_bytes=8 << 20) as sender:
        sender.send(Message(topic, body), timeout_ms=TIMEOUT_SECONDS * 1000)
    (message,) = java_read(java, site, topic, 1)
    assert message.content == body


def test_java_filters_on_goddard_messages(
    site: Site, java: JavaClients, producer: Producer
) -> None:
    topic = site.create_topic("ToJavaFilter", queues=1)
    for body, tags, number in (
        (b"unwanted", "Not", "1"),
        (b"wanted", "T", "2"),
        (b"no tag", None, "3"),
        (b"wanted too", "Other", "4"),
    ):
        producer.send(Message(topic, body, tags=tags, properties={"number": number}))
    for filters in ({"tags": "T || Other"}, {"sql": "number > 1 AND TAGS IS NOT NULL"}):
        received = java_read(java, site, topic, 2, **filters)
        assert sorted(each.content for each in received) == [b"wanted", b"wanted too"]


def test_goddard_ordered_messages(site: Site, java: JavaClients, producer: Producer) -> None:
    topic = site.create_topic("ToJavaOrder", queues=3)
    expected: dict[str, list[bytes]] = {}
    for number in range(60):
        key = f"order-{number % 7}"
        body = f"{key}:{number}".encode()
        producer.send(Message(topic, body, sharding_key=key), key=key)
        expected.setdefault(key, []).append(body)
    received = java_read(java, site, topic, 60, orderly=True)
    for key, bodies in expected.items():
        of_key = [each for each in received if each.content.startswith(key.encode() + b":")]
        assert [each.content for each in of_key] == bodies
        assert len({each.queue for each in of_key}) == 1


def test_goddard_delayed_message(site: Site, java: JavaClients, producer: Producer) -> None:
    topic = site.create_topic("ToJavaDelay")
    consumer = java.push(site.new_group("JavaReaders"), topic)
    sent = producer.send(Message(topic, b"late", delay_level=1))
    (message,) = consumer.receive(1, TIMEOUT_SECONDS)
    assert (message.content, message.id) == (b"late", sent.message_id)
    assert message.stored_ms - message.born_ms >= 900


class TransactionListener:
    """Decides by the body of the message."""

    def execute(self, message: Message, argument: object) -> TransactionState:
        return {
            b"kept": TransactionState.COMMIT,
            b"dropped": TransactionState.ROLLBACK,
        }.get(message.body, TransactionState.UNKNOWN)

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


def test_goddard_transactions(site: Site, java: JavaClients) -> None:
    topic = site.create_topic("ToJavaTransactions")
    consumer = java.push(site.new_group("JavaReaders"), topic)
    group = site.new_group("GoddardSenders")
    with TransactionProducer(group, TransactionListener(), name_servers=site.namesrv) as sender:
        results = {
            body: sender.send_in_transaction(Message(topic, body))
            for body in (b"dropped", b"kept", b"checked")
        }
        received = {each.content: each for each in consumer.receive(2, TIMEOUT_SECONDS)}
    assert set(received) == {b"kept", b"checked"}
    for body, message in received.items():
        assert message.id == results[body].message_id


# --- Request and reply, shared groups -------------------------------------------------------------


def test_goddard_replies_to_java(site: Site, java: JavaClients, producer: Producer) -> None:
    topic = site.create_topic("JavaAsks")

    def answer(messages: list[ReceivedMessage], _: object) -> None:
        for message in messages:
            producer.reply(message, b"re: " + message.body)

    consumer = PushConsumer(
        site.new_group("GoddardRepliers"),
        name_servers=site.namesrv,
        listener=answer,
        **SHORT_INTERVALS,
    )
    consumer.subscribe(topic)
    with consumer:
        asker = java.producer(site.new_group("askers"))
        reply = asker.request(Outgoing(topic, b"question"), timeout_ms=TIMEOUT_SECONDS * 1000)
    assert reply.content == b"re: question"


def test_java_replies_to_goddard(site: Site, java: JavaClients, producer: Producer) -> None:
    topic = site.create_topic("WeAsk")
    replier = java.producer(site.new_group("repliers"))
    java.push(site.new_group("JavaReaders"), topic, answer="reply", replier=replier.name)
    reply = producer.request(Message(topic, b"question"), timeout_ms=TIMEOUT_SECONDS * 1000)
    assert reply.body == b"re: question"


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_group_with_members_of_both(
    site: Site, java: JavaClients, producer: Producer, kind: str
) -> None:
    """Members of both compute the same assignment; every message is received exactly once."""
    topic = site.create_topic("Mixed", queues=4)
    group = site.new_group("Mixed")
    theirs = java.push(group, topic)
    with GoddardConsumer(site, kind, group, topic) as consumer:

        def own() -> set[MessageQueue]:
            client = consumer.client
            if isinstance(client, PushConsumer):
                return {each for each in client.assigned_queues() if each.topic == topic}
            return client.assignment()

        wait_until(
            lambda: len(own()) == 2 or None, TIMEOUT_SECONDS, "the queues assigned to Goddard"
        )
        wait_until(
            lambda: len({each for each in theirs.queues() if each.topic == topic}) == 2 or None,
            TIMEOUT_SECONDS,
            "the queues assigned to Java",
        )
        sent = []
        for number in range(4):
            target = MessageQueue(topic, next(iter(own())).broker_name, number)
            sent += [producer.send(Message(topic, b"%d" % number), queue=target) for _ in range(5)]
        mine = consumer.receive(10)
        others = theirs.receive(10, TIMEOUT_SECONDS)
        assert {message.queue for message in mine} == own()
    got = [message.message_id for message in mine] + [each.id for each in others]
    assert sorted(got) == sorted(result.message_id for result in sent)


def test_committed_offsets_are_used_by_both(
    site: Site, java: JavaClients, producer: Producer
) -> None:
    topic = site.create_topic("Continued", queues=1)
    group = site.new_group("Continued")

    def send(*bodies: bytes) -> None:
        for body in bodies:
            producer.send(Message(topic, body))

    send(b"a", b"b")
    with GoddardConsumer(site, "lite", group, topic) as consumer:
        assert [message.body for message in consumer.receive(2)] == [b"a", b"b"]
        assert isinstance(consumer.client, LitePullConsumer)
        consumer.client.commit()
    send(b"c", b"d")
    with java.lite_pull(group, topic=topic) as theirs:
        assert [each.content for each in theirs.poll(2, TIMEOUT_SECONDS)] == [b"c", b"d"]
        theirs.commit()
        (broker_name,) = site.brokers
        assert theirs.committed(Queue(topic, broker_name, 0)) == 4
    send(b"e")
    with GoddardConsumer(site, "push", group, topic) as consumer:
        assert [message.body for message in consumer.receive(1)] == [b"e"]


def test_local_offset_files_are_used_by_both(
    site: Site, java: JavaClients, producer: Producer, java_folder: Path
) -> None:
    topic = site.create_topic("LocalOffsets", queues=1)
    group = site.new_group("LocalOffsets")
    (broker_name,) = site.brokers
    place = MessageQueue(topic, broker_name, 0)
    producer.send(Message(topic, b"a"))
    theirs = java.push(group, topic, broadcast=True)
    assert [each.content for each in theirs.receive(1, TIMEOUT_SECONDS)] == [b"a"]
    theirs.close()
    (written,) = java_folder.rglob(f".rocketmq_offsets/*/{group}/offsets.json")
    assert read_offsets(written) == {place: 1}

    # A consumer of Goddard with the same client id; the path of the file contains the id.
    folder, client_id = written.parents[2], written.parents[1].name
    address, _, instance = client_id.partition("@")
    producer.send(Message(topic, b"b"))
    consumer = GoddardConsumer(
        site,
        "push",
        group,
        topic,
        message_model=MessageModel.BROADCASTING,
        offsets_folder=folder,
        client_ip=address,
        instance_name=instance,
    )
    with consumer:
        assert [message.body for message in consumer.receive(1)] == [b"b"]
    assert read_offsets(written) == {place: 2}

    # The next Java consumer gets the file of the consumer of Goddard.
    kind, _, number = theirs.name.partition("-")
    successor = folder / f"{address}@{kind}-{int(number) + 1}"
    shutil.copytree(written.parents[1], successor)
    producer.send(Message(topic, b"c"))
    last = java.push(group, topic, broadcast=True)
    assert successor.name.endswith(last.name)
    assert [each.content for each in last.receive(1, TIMEOUT_SECONDS)] == [b"c"]
