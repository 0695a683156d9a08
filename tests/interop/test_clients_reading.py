"""Official Java pull and lite pull consumers, and queries by key, id and time."""

import contextlib
import time

import pytest

from goddard.testing.process import ProcessError, wait_until
from goddard.testing.site import Site
from tests.support.java_clients import JavaClients, Outgoing, Producer, Queue, Received

pytestmark = pytest.mark.java


def numbers(topic: str, wanted: range) -> list[Outgoing]:
    return [Outgoing(topic, str(i).encode(), tag=f"t{i % 2}") for i in wanted]


def now_ms() -> int:
    return int(time.time() * 1000)


def pause_between_messages() -> int:
    """A time between the messages sent before and after it."""
    moment = now_ms() + 20
    wait_until(lambda: now_ms() > moment + 20, 60, "the clock moves on")
    return moment


def test_pull(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("pull", queues=1)
    clients.producer("senders").send(*numbers(topic, range(40)))
    consumer = clients.pull(site.new_group("readers"))
    (queue,) = consumer.queues(topic)
    assert (queue.topic, queue.queue) == (topic, 0)
    assert consumer.offsets(queue) == (0, 40)

    first = consumer.pull(queue, 0)
    assert (first.status, first.next_offset) == ("FOUND", 32)
    assert (first.min_offset, first.max_offset) == (0, 40)
    assert [each.offset for each in first.messages] == list(range(32))
    assert [int(each.content) for each in first.messages] == list(range(32))
    last = consumer.pull(queue, 39)
    assert [int(each.content) for each in last.messages] == [39]

    tagged = consumer.pull(queue, 0, tags="t1", wanted=5)
    assert [int(each.content) for each in tagged.messages] == [1, 3, 5, 7, 9]
    assert tagged.next_offset == 10
    nothing = consumer.pull(queue, 0, tags="absent")
    assert (nothing.status, nothing.messages) == ("NO_MATCHED_MSG", [])
    assert nothing.next_offset == 40

    end = consumer.pull(queue, 40)
    assert (end.status, end.next_offset) == ("NO_NEW_MSG", 40)
    beyond = consumer.pull(queue, 1000)
    assert (beyond.status, beyond.next_offset) == ("OFFSET_ILLEGAL", 40)


def test_pull_waits_for_a_message(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("waiting", queues=1)
    producer = clients.producer("senders")
    producer.send(*numbers(topic, range(1)))
    consumer = clients.pull(site.new_group("readers"))
    (queue,) = consumer.queues(topic)
    consumer.begin_waiting(queue, 1)
    with pytest.raises(ProcessError, match="TimeoutException"):
        consumer.finish_waiting(timeout=1)
    started = time.monotonic()
    (sent,) = producer.send(*numbers(topic, range(1, 2)))
    pulled = consumer.finish_waiting()
    assert time.monotonic() - started < 4.5  # a pull that is not woken checks after 5 s
    assert (pulled.status, pulled.next_offset) == ("FOUND", 2)
    assert [each.id for each in pulled.messages] == [sent.id]


def test_committed_offset_of_a_pull_consumer(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("committed", queues=1)
    clients.producer("senders").send(*numbers(topic, range(10)))
    group = site.new_group("readers")
    with clients.pull(group) as consumer:
        (queue,) = consumer.queues(topic)
        consumer.pull(queue, 0)  # A broker accepts offsets only for a group that it knows.
        consumer.commit(queue, 7)
    again = clients.pull(group)
    wait_until(lambda: again.committed(queue) == 7, 60, "the offset at the broker")


def test_lite_pull_subscribed(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("lite")
    producer = clients.producer("senders")
    producer.send(*numbers(topic, range(40)))
    group = site.new_group("readers")
    with clients.lite_pull(group, topic=topic) as consumer:
        messages = consumer.poll(40)
        assert sorted(int(each.content) for each in messages) == list(range(40))
        consumer.commit()
        queues = consumer.queues(topic)
        wait_until(
            lambda: [consumer.committed(queue) for queue in queues] == [10] * 4,
            60,
            "all offsets committed",
        )
    producer.send(*numbers(topic, range(40, 44)))
    resumed = clients.lite_pull(group, topic=topic)
    assert sorted(int(each.content) for each in resumed.poll(4)) == [40, 41, 42, 43]


def test_lite_pull_filters(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("lite-filter")
    clients.producer("senders").send(
        *(Outgoing(topic, b"%d" % i, properties={"a": str(i)}) for i in range(20))
    )
    consumer = clients.lite_pull(site.new_group("readers"), topic=topic, sql="a >= 17")
    assert sorted(int(each.content) for each in consumer.poll(3)) == [17, 18, 19]


def test_lite_pull_assigned_and_seek(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("assigned", queues=2)
    producer = clients.producer("senders")
    producer.send(*(Outgoing(topic, b"%d" % i, shard=0) for i in range(5)))
    moment = pause_between_messages()
    producer.send(*(Outgoing(topic, b"%d" % i, shard=0) for i in range(5, 10)))
    producer.send(Outgoing(topic, b"elsewhere", shard=1))
    consumer = clients.lite_pull(site.new_group("readers"))
    queue = consumer.queues(topic)[0]
    consumer.assign([queue])
    assert [int(each.content) for each in consumer.poll(10)] == list(range(10))
    consumer.seek(queue, 8)
    assert [int(each.content) for each in consumer.poll(2)] == [8, 9]
    offset = consumer.search(queue, moment)
    assert offset == 5
    consumer.seek(queue, offset)
    assert [int(each.content) for each in consumer.poll(5)] == [5, 6, 7, 8, 9]


def test_search_offset_by_time(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("time", queues=1)
    producer = clients.producer("senders")
    consumer = clients.pull(site.new_group("readers"))
    (queue,) = consumer.queues(topic)
    assert consumer.search(queue, now_ms()) == 0
    producer.send(*numbers(topic, range(3)))
    moment = pause_between_messages()
    producer.send(*numbers(topic, range(3, 6)))
    assert consumer.search(queue, moment) == 3
    assert consumer.search(queue, moment - 3_600_000) == 0
    stored = [each.stored_ms for each in consumer.pull(queue, 0).messages]
    assert consumer.search(queue, stored[3]) == 3
    assert consumer.search(queue, stored[5] + 3_600_000) == 6


def test_query_by_key(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("keys")
    producer = clients.producer("senders")
    sent = producer.send(
        Outgoing(topic, b"first", keys="order-1 customer-7", tag="T"),
        Outgoing(topic, b"second", keys="order-2 customer-7"),
        Outgoing(topic, b"third", keys="order-3"),
    )
    # The index is written after the log, message by message.
    (third,) = wait_until(lambda: _query(producer, topic, "order-3"), 60, "all in the index")
    found = producer.query(topic, "customer-7")
    assert {each.content for each in found} == {b"first", b"second"}
    assert {each.id for each in found} == {sent[0].id, sent[1].id}
    assert {each.keys for each in found} == {"order-1 customer-7", "order-2 customer-7"}
    assert (third.content, third.queue, third.offset) == (b"third", sent[2].queue, sent[2].offset)
    with pytest.raises(ProcessError, match=r"no message|CODE: 208"):
        producer.query(topic, "order-4")


def test_view_by_id(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("ids")
    producer = clients.producer("senders")
    (sent,) = producer.send(Outgoing(topic, b"look me up", keys="k", properties={"p": "q"}))
    assert sent.offset_id is not None
    by_offset = producer.view(topic, sent.offset_id)
    assert (by_offset.content, by_offset.topic, by_offset.keys) == (b"look me up", topic, "k")
    assert by_offset.properties["p"] == "q"
    assert (by_offset.queue, by_offset.offset) == (sent.queue, sent.offset)

    def by_unique_id() -> bytes | None:
        try:
            return producer.view(topic, sent.id).content
        except ProcessError:
            return None

    assert wait_until(by_unique_id, 60, "the id in the index") == b"look me up"


def test_pull_of_unknown_queue_fails(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("unknown-queue", queues=1)
    consumer = clients.pull(site.new_group("readers"))
    (queue,) = consumer.queues(topic)
    with pytest.raises(ProcessError, match=r"CODE: 29 .*queueId\[9\] is illegal"):
        consumer.pull(Queue(topic, queue.broker, 9), 0)


def _query(producer: Producer, topic: str, key: str) -> list[Received]:
    with contextlib.suppress(ProcessError):  # how the client reports that there is none
        return producer.query(topic, key)
    return []
