"""Official Java clients: every kind of send, and the content and position of the messages."""

import hashlib
import random
import time

import pytest

from goddard.protocol.ids import parse_offset_message_id
from goddard.testing.process import ProcessError
from goddard.testing.site import Site
from tests.support.java_clients import JavaClients, Outgoing, Received, Sent

pytestmark = pytest.mark.java

MIB = 1 << 20
# The compression flag, which a 5.x client clears after decompressing, and the compression type.
COMPRESSION_FLAGS = 0x701
COMPRESSION_KINDS = {"LZ4": 0x100, "ZSTD": 0x200, "ZLIB": 0x300}


def numbered(topic: str, count: int) -> list[Outgoing]:
    return [Outgoing(topic, f"body {i}".encode(), tag="T", keys=f"key{i}") for i in range(count)]


def bodies(messages: list[Received]) -> list[bytes]:
    return sorted(message.content for message in messages)


def check_same(sent: list[Sent], received: list[Received]) -> None:
    """Each message arrived once, from the queue and offset in its send result."""
    places = {(each.id, each.broker, each.queue, each.offset) for each in received}
    assert {(each.id, each.broker, each.queue, each.offset) for each in sent} == places
    assert len(received) == len(sent)


def test_sync(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("sync")
    messages = numbered(topic, 40)
    messages[0].properties = {"colour": "grün", "empty ": "x y"}
    sent = clients.producer("senders").send(*messages)
    assert {each.status for each in sent} == {"SEND_OK"}
    assert len({each.id for each in sent}) == 40
    assert {each.queue for each in sent} == {0, 1, 2, 3}
    for queue in range(4):
        offsets = [each.offset for each in sent if each.queue == queue]
        assert offsets == list(range(10))
    physical = []
    for each in sent:
        assert each.offset_id is not None
        host, physical_offset = parse_offset_message_id(each.offset_id)
        assert str(host) == site.broker.address
        physical.append(physical_offset)
    assert physical == sorted(set(physical))

    received = clients.push(site.new_group("readers"), topic).receive(40)
    check_same(sent, received)
    by_body = {each.content: each for each in received}
    for message in messages:
        arrived = by_body[message.body]
        assert (arrived.tag, arrived.keys) == ("T", message.keys)
        assert message.properties.items() <= arrived.properties.items()
        assert arrived.stored_ms >= arrived.born_ms > 0
        assert arrived.attempt == 0


def test_async(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("async")
    sent = clients.producer("senders").send(*numbered(topic, 200), mode="async")
    assert {each.status for each in sent} == {"SEND_OK"}
    received = clients.push(site.new_group("readers"), topic).receive(200)
    check_same(sent, received)


def test_one_way(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("oneway")
    messages = numbered(topic, 100)
    assert clients.producer("senders").send(*messages, mode="oneway") == []
    received = clients.push(site.new_group("readers"), topic).receive(100)
    assert bodies(received) == sorted(message.body for message in messages)


def test_batch(site: Site, clients: JavaClients) -> None:
    """One answer for all; the messages are consecutive in one queue, in their order."""
    topic = site.create_topic("batch")
    messages = numbered(topic, 50)
    for i, message in enumerate(messages):
        message.properties = {"number": str(i)}
    producer = clients.producer("senders")
    (first,) = producer.send(*messages, mode="batch")
    assert first.status == "SEND_OK"
    ids = first.id.split(",")
    assert len(set(ids)) == 50
    assert first.offset_id is not None
    assert len(set(first.offset_id.split(","))) == 50

    received = clients.push(site.new_group("readers"), topic).receive(50)
    received.sort(key=lambda each: each.offset)
    assert [each.offset for each in received] == list(range(first.offset, first.offset + 50))
    assert {each.queue for each in received} == {first.queue}
    assert [each.content for each in received] == [message.body for message in messages]
    assert [each.id for each in received] == ids
    assert [each.offset_id for each in received] == first.offset_id.split(",")
    assert [each.properties["number"] for each in received] == [str(i) for i in range(50)]
    assert {(each.tag, each.keys) for each in received} == {("T", m.keys) for m in messages}


def test_ordered_by_queue_selector(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("selector")
    messages = numbered(topic, 40)
    for i, message in enumerate(messages):
        message.shard = i % 8
    sent = clients.producer("senders").send(*messages)
    assert [each.queue for each in sent] == [i % 8 % 4 for i in range(40)]
    assert [each.offset for each in sent] == [i // 4 for i in range(40)]


def test_delayed(site: Site, clients: JavaClients) -> None:
    """Level 1 is 1 s, level 2 is 5 s; until then the message is invisible."""
    topic = site.create_topic("delayed")
    consumer = clients.push(site.new_group("readers"), topic)
    producer = clients.producer("senders")
    messages = [
        Outgoing(topic, b"five", delay_level=2, tag="T", keys="k", properties={"p": "q"}),
        Outgoing(topic, b"one", delay_level=1),
        Outgoing(topic, b"now"),
    ]
    sent = producer.send(*messages)
    assert {each.status for each in sent} == {"SEND_OK"}
    received = sorted(consumer.receive(3, timeout=15), key=lambda each: each.stored_ms)
    assert [each.content for each in received] == [b"now", b"one", b"five"]
    now, one, five = received
    assert now.stored_ms - now.born_ms < 900
    assert 950 <= one.stored_ms - one.born_ms < 3000
    assert 4950 <= five.stored_ms - five.born_ms < 7000
    assert [each.id for each in received] == [each.id for each in reversed(sent)]
    assert {each.topic for each in received} == {topic}
    assert (five.tag, five.keys, five.properties["p"]) == ("T", "k", "q")
    assert (five.queue, one.queue) == (sent[0].queue, sent[1].queue)


@pytest.mark.parametrize("is_compressed", [False, True], ids=["as-it-is", "compressed"])
def test_large_bodies(site: Site, clients: JavaClients, is_compressed: bool) -> None:
    topic = site.create_topic("large")
    noise = random.Random(1).randbytes(MIB)
    text = (b"The quick brown fox jumps over the lazy dog. " * 25_000)[:MIB]
    over = 4096 if is_compressed else 8 * MIB
    producer = clients.producer("senders", compressOverBytes=over)
    producer.send(Outgoing(topic, noise), Outgoing(topic, text), Outgoing(topic, b"x" * 4095))
    received = clients.push(site.new_group("readers"), topic).receive(3, timeout=40)
    digests = {hashlib.sha256(each.content).digest() for each in received}
    assert digests == {hashlib.sha256(body).digest() for body in (noise, text, b"x" * 4095)}
    flags = {len(each.content): bool(each.sys_flag & COMPRESSION_FLAGS) for each in received}
    assert flags == {MIB: is_compressed, 4095: False}


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_compression_kinds(
    site: Site, clients: JavaClients, client_version: str, kind: str
) -> None:
    if kind != "ZLIB" and client_version.startswith("4."):
        with pytest.raises(ProcessError, match="compresses with ZLIB only"):
            clients.producer("senders", compression=kind)
        return
    topic = site.create_topic("compressed")
    producer = clients.producer("senders", compressOverBytes=1024, compression=kind)
    body = b"compress me " * 1000
    (sent,) = producer.send(Outgoing(topic, body))
    (received,) = clients.push(site.new_group("readers"), topic).receive(1)
    assert (received.id, received.content) == (sent.id, body)
    flags = received.sys_flag & COMPRESSION_FLAGS
    assert flags == COMPRESSION_KINDS[kind] | client_version.startswith("4.")


def test_messages_beyond_the_limit_are_refused(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("limit")
    producer = clients.producer("senders", maxMessageBytes=16 * MIB, compressOverBytes=16 * MIB)
    with pytest.raises(ProcessError, match="CODE: 13 "):
        producer.send(Outgoing(topic, bytes(4 * MIB + 1)))
    (sent,) = producer.send(Outgoing(topic, bytes(4 * MIB - 1024)))
    assert (sent.status, sent.offset) == ("SEND_OK", 0)


def test_unknown_topic_is_created_by_a_send(site: Site, clients: JavaClients) -> None:
    topic = site.new_group("created-on-the-way")
    sent = clients.producer("senders").send(*numbered(topic, 8))
    assert {each.status for each in sent} == {"SEND_OK"}
    assert {each.queue for each in sent} == {0, 1, 2, 3}
    received = clients.push(site.new_group("readers"), topic).receive(8)
    check_same(sent, received)


def test_timeout_of_a_silent_broker(site: Site, clients: JavaClients) -> None:
    """The client fails after its timeout, and works again when the broker does."""
    topic = site.create_topic("timeout", queues=1)
    producer = clients.producer("senders", timeoutMs=600, retries=0)
    (before,) = producer.send(Outgoing(topic, b"before"))
    site.broker.pause()
    try:
        started = time.monotonic()
        with pytest.raises(ProcessError, match=r"RemotingTimeoutException|call timeout"):
            producer.send(Outgoing(topic, b"lost or late"))
        assert 0.5 < time.monotonic() - started < 30
    finally:
        site.broker.resume()
    patient = clients.producer("senders")
    (after,) = patient.send(Outgoing(topic, b"after"))
    assert after.status == "SEND_OK"
    assert after.offset - before.offset in {1, 2}
