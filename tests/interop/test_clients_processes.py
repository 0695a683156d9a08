"""Official Java clients in separate processes: binary headers, kills, heartbeats."""

from collections.abc import Iterator

import pytest

from goddard.testing.process import ProcessError, wait_until
from goddard.testing.site import Site
from tests.support.java import JavaPeers
from tests.support.java_clients import JavaClients, Outgoing, PushConsumer

pytestmark = pytest.mark.java

BINARY_HEADERS = "-Drocketmq.serialize.type=ROCKETMQ"


@pytest.fixture
def separate_clients(site: Site, client_peers: JavaPeers) -> Iterator[JavaClients]:
    """Clients in a separate JVM, whose requests have binary headers."""
    program = client_peers.client_suite(BINARY_HEADERS)
    yield JavaClients(program, site.namesrv)
    program.close()


def numbers(topic: str, wanted: range) -> list[Outgoing]:
    return [
        Outgoing(topic, str(i).encode(), tag=f"t{i % 2}", keys=f"key{i}", properties={"n": str(i)})
        for i in wanted
    ]


def has_queues(consumer: PushConsumer, topic: str, wanted: int) -> bool:
    return len([queue for queue in consumer.queues() if queue.topic == topic]) == wanted


def test_binary_headers(site: Site, clients: JavaClients, separate_clients: JavaClients) -> None:
    topic = site.create_topic("binary")
    producer = separate_clients.producer(site.new_group("senders"))
    sent = producer.send(*numbers(topic, range(20)))
    sent += producer.send(*numbers(topic, range(20, 30)), mode="async")
    (batch,) = producer.send(*numbers(topic, range(30, 40)), mode="batch")
    wanted = {each.id for each in sent} | set(batch.id.split(","))
    for each in (separate_clients, clients):
        everything = each.push(site.new_group("readers"), topic)
        assert {message.id for message in everything.receive(40)} == wanted
    filtered = separate_clients.push(site.new_group("readers"), topic, sql="n < 4 AND TAGS = 't1'")
    assert sorted(int(each.content) for each in filtered.receive(2)) == [1, 3]
    reader = separate_clients.pull(site.new_group("readers"))
    totals = [reader.offsets(queue) for queue in reader.queues(topic)]
    assert (sum(low for low, _ in totals), sum(high for _, high in totals)) == (0, 40)
    (found,) = wait_until(lambda: _query(separate_clients, topic), 60, "the key in the index")
    assert found == sent[7].id


def _query(clients: JavaClients, topic: str) -> list[str]:
    with clients.producer("lookers") as producer:
        try:
            return [each.id for each in producer.query(topic, "key7")]
        except ProcessError:
            return []


def test_kill_of_a_consumer(
    site: Site, clients: JavaClients, separate_clients: JavaClients
) -> None:
    """Its process is killed: the others take over its queues and its remaining messages."""
    topic = site.create_topic("death")
    group = site.new_group("readers")
    survivor = clients.push(group, topic)
    victim = separate_clients.push(group, topic, answer="refuse")
    wait_until(lambda: has_queues(survivor, topic, 2), 60, "half of the queues")
    wait_until(lambda: has_queues(victim, topic, 2), 60, "the other half")
    producer = clients.producer("senders")
    sent = producer.send(*numbers(topic, range(40)))
    wait_until(lambda: len(victim.receive(0)) >= 20, 60, "its share")
    separate_clients.end_process()
    wait_until(lambda: has_queues(survivor, topic, 4), 60, "all queues")
    sent += producer.send(*numbers(topic, range(40, 60)))
    wanted = {each.id for each in sent}
    received = survivor.receive_until(lambda found: {each.id for each in found} >= wanted, 30)
    assert {each.id for each in received} == wanted


def test_heartbeats_by_fingerprint(site: Site, clients: JavaClients, client_version: str) -> None:
    """A 5.x client can send its subscriptions once, and then only their hash."""
    topic = site.create_topic("fingerprint")
    group = site.new_group("readers")
    if client_version.startswith("4."):
        with pytest.raises(ProcessError, match="only one kind of heartbeat"):
            clients.push(group, topic, heartbeatV2=True)
        return
    both = [clients.push(group, topic, heartbeatV2=True) for _ in range(2)]
    wait_until(
        lambda: all(has_queues(each, topic, 2) for each in both), 60, "half of the queues for each"
    )
    sent = clients.producer("senders").send(*numbers(topic, range(20)))
    wait_until(lambda: sum(len(each.receive(0)) for each in both) >= 20, 60, "all messages")
    both.pop().close()
    wait_until(lambda: has_queues(both[0], topic, 4), 60, "all queues")
    more = clients.producer("senders").send(*numbers(topic, range(20, 28)))
    received = both[0].receive_until(
        lambda found: {each.id for each in found} >= {each.id for each in more}
    )
    assert len({each.id for each in received}) == 10 + 8
    assert {each.id for each in received} <= {each.id for each in (*sent, *more)}
