"""A RocketMQ broker and one of ours with one of our name servers, and topics on both."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.site import Site
from tests.support.java import JavaPeers, JavaProgram, start_java_broker
from tests.support.java_clients import JavaClients, Outgoing, Queue, Sent

pytestmark = pytest.mark.java

JAVA, GODDARD = "broker-java", "broker-goddard"


@pytest.fixture(scope="module")
def mixed(directory: Path, java540: JavaPeers) -> Iterator[Site]:
    with Cluster(directory / "mixed") as cluster:
        site = Site(cluster.start_name_server())
        start_java_broker(site, java540, JAVA)
        site.start_goddard_broker(cluster, GODDARD)
        yield site


@pytest.fixture
def clients(mixed: Site, client_jvm: JavaProgram) -> Iterator[JavaClients]:
    clients = JavaClients(client_jvm, mixed.namesrv)
    yield clients
    clients.close_all()


def numbers(topic: str, wanted: range) -> list[Outgoing]:
    return [Outgoing(topic, str(i).encode(), tag=f"t{i % 2}") for i in wanted]


def test_sends_and_queues_are_balanced_over_both(mixed: Site, clients: JavaClients) -> None:
    topic = mixed.create_topic("mixed")
    group = mixed.new_group("readers")
    consumers = [clients.push(group, topic) for _ in range(2)]

    def shares() -> list[set[Queue]] | None:
        found = [{each for each in one.queues() if each.topic == topic} for one in consumers]
        return found if [len(queues) for queues in found] == [4, 4] else None

    one, other = wait_until(shares, 30, "four queues for each consumer")
    everything = {Queue(topic, broker, queue) for broker in (JAVA, GODDARD) for queue in range(4)}
    assert one | other == everything

    sent = clients.producer("senders").send(*numbers(topic, range(80)))
    assert {each.status for each in sent} == {"SEND_OK"}
    assert Counter(each.broker for each in sent) == {JAVA: 40, GODDARD: 40}
    assert Counter((each.broker, each.queue) for each in sent) == {
        (queue.broker, queue.queue): 10 for queue in everything
    }
    wait_until(
        lambda: sum(len(each.receive(0)) for each in consumers) >= 80, 30, "all messages arrived"
    )
    received = [*consumers[0].receive(0), *consumers[1].receive(0)]
    assert sorted(each.id for each in received) == sorted(each.id for each in sent)


def test_filters_and_delays_work_on_both(mixed: Site, clients: JavaClients) -> None:
    topic = mixed.create_topic("alike")
    producer = clients.producer("senders")
    messages = numbers(topic, range(32))
    for message in messages[16:]:
        message.delay_level = 1
    sent = producer.send(*messages)
    assert Counter(each.broker for each in sent) == {JAVA: 16, GODDARD: 16}
    tagged = clients.push(mixed.new_group("tagged"), topic, tags="t1")
    received = tagged.receive(16)
    assert sorted(int(each.content) for each in received) == list(range(1, 32, 2))
    for each in received:
        waited_ms = each.stored_ms - each.born_ms
        assert waited_ms >= 950 if int(each.content) >= 16 else waited_ms < 900


def test_message_ids_identify_the_broker(mixed: Site, clients: JavaClients) -> None:
    topic = mixed.create_topic("ids")
    producer = clients.producer("senders")
    sent = producer.send(*numbers(topic, range(8)))
    for i, each in enumerate(sent):
        assert each.offset_id is not None
        found = producer.view(topic, each.offset_id)
        assert (found.content, found.queue, found.offset) == (b"%d" % i, each.queue, each.offset)


def test_sends_continue_while_one_broker_is_down(mixed: Site, clients: JavaClients) -> None:
    """The client retries at the other broker; the messages of the stopped one are read later."""
    topic = mixed.create_topic("away")
    producer = clients.producer("senders", timeoutMs=3000, retries=3)
    consumer = clients.push(mixed.new_group("readers"), topic)
    before = producer.send(*numbers(topic, range(16)))
    assert len(consumer.receive(16)) == 16
    mixed.brokers[GODDARD].kill()
    try:
        during = producer.send(*numbers(topic, range(16, 32)))
        assert {each.broker for each in during} == {JAVA}
    finally:
        mixed.brokers[GODDARD].start()
    ours, looker = Queue(topic, GODDARD, 0), clients.pull("lookers")
    wait_until(lambda: ours in looker.queues(topic), 40, "our broker's queues are back")

    def send_again() -> bool:
        # A client avoids a failed broker for a while.
        after.extend(producer.send(*numbers(topic, range(32, 40))))
        return GODDARD in {each.broker for each in after}

    after: list[Sent] = []
    wait_until(send_again, 40, "sends to our broker again")
    wanted = {each.id for each in (*before, *during, *after)}
    received = consumer.receive_until(lambda found: {each.id for each in found} >= wanted, 40)
    assert {each.id for each in received} == wanted
