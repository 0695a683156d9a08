"""Official Java push consumers: filters, groups that share or copy, order, retries, resumption."""

from collections import defaultdict
from datetime import datetime, timedelta

import pytest

from goddard.testing.process import ProcessError, wait_until
from goddard.testing.site import Site
from tests.support.java_clients import JavaClients, Outgoing, PushConsumer, Queue, Received

pytestmark = pytest.mark.java


def numbers(topic: str, wanted: range) -> list[Outgoing]:
    return [Outgoing(topic, str(i).encode()) for i in wanted]


def ids(messages: list[Received]) -> list[str]:
    return [each.id for each in messages]


def wait_for_queues(consumer: PushConsumer, topic: str, wanted: int) -> set[Queue]:
    """The consumer's queues of this topic, once it has so many."""

    def queues() -> set[Queue] | None:
        found = {queue for queue in consumer.queues() if queue.topic == topic}
        return found if len(found) == wanted else None

    # A 4.9 client releases an ordered queue 20 s later if it is processing its messages.
    return wait_until(queues, 45, f"{consumer.name} has {wanted} queues")


def test_tag_filter(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("tags")
    # "Aa" and "BB" have the same hash code: the broker passes both, the client filters them.
    tags = ["red", "green", "blue", "Aa", "BB", ""]
    messages = [Outgoing(topic, tag.encode() or b"-", tag=tag) for tag in tags * 5]
    clients.producer("senders").send(*messages)
    some = clients.push(site.new_group("some"), topic, tags="red || blue || Aa")
    everything = clients.push(site.new_group("everything"), topic, tags="*")
    assert len(everything.receive(30)) == 30
    received = some.receive(15)
    assert sorted(each.tag or "" for each in received) == ["Aa"] * 5 + ["blue"] * 5 + ["red"] * 5


def test_sql_filter(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("sql")
    messages = [
        Outgoing(topic, str(i).encode(), tag=f"t{i % 2}", properties={"a": str(i), "name": "x'y"})
        for i in range(20)
    ]
    messages.append(Outgoing(topic, b"without properties"))
    clients.producer("senders").send(*messages)
    between = clients.push(
        site.new_group("between"), topic, sql="a BETWEEN 5 AND 12 AND TAGS = 't1'"
    )
    listed = clients.push(
        site.new_group("listed"), topic, sql="(a IN ('3', '19') OR a < 2) AND name = 'x''y'"
    )
    absent = clients.push(site.new_group("absent"), topic, sql="a IS NULL")
    assert sorted(int(each.content) for each in between.receive(4)) == [5, 7, 9, 11]
    assert sorted(int(each.content) for each in listed.receive(4)) == [0, 1, 3, 19]
    assert [each.content for each in absent.receive(1)] == [b"without properties"]


def test_sql_that_does_not_parse_is_refused(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("bad-sql")
    with pytest.raises(ProcessError, match=r"CODE: 23 "):
        clients.push(site.new_group("readers"), topic, sql="a BETWEEN 5 AND")


def test_clustering_shares_messages(site: Site, clients: JavaClients) -> None:
    """Each message goes to one member of the group."""
    topic = site.create_topic("clustering")
    group = site.new_group("readers")
    first, second = clients.push(group, topic), clients.push(group, topic)
    wait_for_queues(first, topic, 2)
    wait_for_queues(second, topic, 2)
    sent = clients.producer("senders").send(*numbers(topic, range(80)))

    def split() -> tuple[list[Received], list[Received]] | None:
        both = first.receive(0), second.receive(0)
        return both if len(both[0]) + len(both[1]) >= 80 else None

    one, other = wait_until(split, 60, "all messages arrived")
    assert len(one) == len(other) == 40
    assert sorted(ids(one) + ids(other)) == sorted(each.id for each in sent)
    assert {each.queue for each in one} & {each.queue for each in other} == set()


def test_broadcasting_delivers_to_every_member(site: Site, clients: JavaClients) -> None:
    """Each message goes to every member of the group, and a retry to none."""
    topic = site.create_topic("broadcasting")
    group = site.new_group("readers")
    both = [clients.push(group, topic, broadcast=True) for _ in range(2)]
    for consumer in both:
        wait_for_queues(consumer, topic, 4)
    sent = clients.producer("senders").send(*numbers(topic, range(40)))
    for consumer in both:
        assert sorted(ids(consumer.receive(40))) == sorted(each.id for each in sent)


def test_rebalance_on_join_and_leave(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("rebalance")
    group = site.new_group("readers")
    producer = clients.producer("senders")
    first = clients.push(group, topic)
    everything = wait_for_queues(first, topic, 4)
    second = clients.push(group, topic)
    theirs = wait_for_queues(second, topic, 2)
    ours = wait_for_queues(first, topic, 2)
    assert ours | theirs == everything

    producer.send(*numbers(topic, range(40)))
    wait_until(
        lambda: len(first.receive(0)) + len(second.receive(0)) >= 40, 60, "both groups' messages"
    )
    taken = second.receive(0)
    assert {each.queue for each in taken} == {queue.queue for queue in theirs}
    second.close()
    assert wait_for_queues(first, topic, 4) == everything
    producer.send(*numbers(topic, range(40, 80)))
    kept = first.receive(80 - len(taken))
    assert sorted(int(each.content) for each in (*kept, *taken)) == list(range(80))


def test_orderly_consumption(site: Site, clients: JavaClients) -> None:
    """Every key in order, each message consumed once, while another consumer joins and leaves."""
    topic = site.create_topic("orderly")
    group = site.new_group("readers")
    producer = clients.producer("senders")
    first = clients.push(group, topic, orderly=True)
    wait_for_queues(first, topic, 4)
    sequence = iter(range(1_000))

    def send(count: int) -> None:
        steps = [next(sequence) for _ in range(count)]
        producer.send(*(Outgoing(topic, b"%d" % i, keys=f"k{i % 8}", shard=i % 8) for i in steps))

    send(80)
    assert len(first.receive(80)) == 80
    second = clients.push(group, topic, orderly=True)
    send(80)
    wait_for_queues(second, topic, 2)
    send(80)

    def union() -> list[Received]:
        return [*first.receive(0), *second.receive(0)]

    wait_until(lambda: len({each.id for each in union()}) == 240, 30, "all messages arrived")
    moved = second.receive(0)
    second.close()
    wait_for_queues(first, topic, 4)
    send(40)
    wait_until(
        lambda: len({each.id for each in (*first.receive(0), *moved)}) == 280, 30, "the rest"
    )
    assert moved
    for deliveries in (first.receive(0), moved):
        by_key: dict[str, list[int]] = defaultdict(list)
        for each in deliveries:
            assert each.keys is not None
            by_key[each.keys].append(int(each.content))
        for values in by_key.values():
            assert values == sorted(values)


def test_orderly_consumption_waits_for_a_failed_message(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("suspended", queues=1)
    clients.producer("senders").send(*numbers(topic, range(5)))
    consumer = clients.push(site.new_group("readers"), topic, orderly=True, answer="refuse-first")
    received = consumer.receive(10)
    assert [int(each.content) for each in received] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [each.accepted for each in received] == [False, True] * 5


def test_failed_message_is_redelivered(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("retry")
    group = site.new_group("readers")
    consumer = clients.push(group, topic, answer="refuse-first")
    (sent,) = clients.producer("senders").send(
        Outgoing(topic, b"again", tag="T", keys="k", properties={"p": "q"})
    )
    first, second = consumer.receive(2)
    assert (first.attempt, second.attempt) == (0, 1)
    assert (first.id, second.id) == (sent.id, sent.id)
    assert (second.topic, second.tag, second.keys) == (topic, "T", "k")
    assert second.content == b"again"
    assert second.properties["p"] == "q"
    assert second.properties["RETRY_TOPIC"] == topic
    assert second.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id
    assert second.stored_ms - first.stored_ms >= 950


def test_retry_to_dead_letter_queue(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("dead")
    group = site.new_group("readers")
    consumer = clients.push(group, topic, answer="refuse", maxReconsumeTimes=1)
    (sent,) = clients.producer("senders").send(Outgoing(topic, b"never", tag="T", keys="k"))
    assert [each.attempt for each in consumer.receive(2)] == [0, 1]
    undertaker = clients.pull(site.new_group("undertakers"))

    def dead() -> list[Received]:
        try:
            (queue,) = undertaker.queues(f"%DLQ%{group}")
        except ProcessError:
            return []
        return undertaker.pull(queue, 0).messages

    (buried,) = wait_until(dead, 60, "the message in the dead letter queue")
    assert buried.topic == f"%DLQ%{group}"
    assert (buried.id, buried.content) == (sent.id, b"never")
    assert (buried.tag, buried.keys) == ("T", "k")
    assert buried.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id
    assert buried.properties["RETRY_TOPIC"] == topic
    assert len(consumer.receive(0)) == 2


def test_offset_resume(site: Site, clients: JavaClients) -> None:
    """A group continues where it stopped; no message is lost or repeated."""
    topic = site.create_topic("resume")
    group = site.new_group("readers")
    producer = clients.producer("senders")
    producer.send(*numbers(topic, range(40)))
    # If several concurrent requests commit the first offsets of a group, RocketMQ's broker may lose
    # some of them: these are not the first.
    with clients.pull(group) as first:
        queue = first.queues(topic)[0]
        first.pull(queue, 0)
        first.commit(queue, 0)
    with clients.push(group, topic) as before:
        assert len(before.receive(40)) == 40
    producer.send(*numbers(topic, range(40, 60)))
    after = clients.push(group, topic)
    received = after.receive(20)
    producer.send(*numbers(topic, range(60, 64)))
    received = after.receive(24)
    assert sorted(int(each.content) for each in received) == list(range(40, 64))


def test_new_group_reads_a_young_topic_from_its_start(site: Site, clients: JavaClients) -> None:
    """Whatever its start position: while nothing is deleted, a broker answers 0 as its offset."""
    topic = site.create_topic("young")
    producer = clients.producer("senders")
    producer.send(*numbers(topic, range(16)))
    tomorrow = (datetime.now().astimezone() + timedelta(days=1)).strftime("%Y%m%d%H%M%S")
    consumer = clients.push(site.new_group("readers"), topic, fromTime=tomorrow)
    received = consumer.receive(16)
    assert sorted(int(each.content) for each in received) == list(range(16))
