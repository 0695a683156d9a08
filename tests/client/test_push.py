"""The push consumer, with each kind of broker: what listeners get, and when."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from goddard.client.consume.offsets import read_offsets
from goddard.client.consume.subscriptions import Expression, Sql, Tags
from goddard.client.errors import BrokerError, NotRunningError
from goddard.client.message import ReceivedMessage
from goddard.client.values import ConsumeFrom, MessageModel, ServiceState
from goddard.protocol.bodies import decode_body
from goddard.protocol.bodies_admin import ConsumerConnections
from goddard.protocol.codes import RequestCode
from goddard.protocol.responses import check
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.members import member_of
from tests.support.polling import until
from tests.support.push_consumers import (
    TIMEOUT_SECONDS,
    Inbox,
    fill,
    listener_threads,
    push,
    texts,
)


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[BrokerClient]:
    client = Client()
    yield BrokerClient(client, site.broker.address)
    await client.close()


@pytest.fixture(autouse=True)
def no_listener_thread_is_left() -> Iterator[None]:
    yield
    assert listener_threads() == []


async def until_told(sender: BrokerClient, group: str, topic: str, expression: str) -> None:
    """Wait until the broker knows what a group wants of a topic."""
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            answer = check(await sender.ask(code, {"consumerGroup": group}))
            known = decode_body(answer.body, ConsumerConnections).subscription_table
            if known[topic].sub_string == expression:
                return
            await asyncio.sleep(0.02)


async def test_topics_may_be_subscribed_to_after_the_start(
    site: Site, sender: BrokerClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.create_topic("PushLater", queues=2)
    await fill(sender, topic, texts(6), queues=2)
    inbox = Inbox()
    group = site.new_group("PushLater")
    async with push(site.namesrv, group, inbox) as consumer:
        # As RocketMQ's starts; but it does not say why nothing comes.
        assert f"Group {group} has no subscription yet" in caplog.text
        assert consumer.assigned_queues() == set()
        consumer.subscribe(topic)
        assert sorted(await inbox.until(6)) == texts(6)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
async def test_a_group_gets_every_message_once(
    site: Site, sender: BrokerClient, is_async: bool
) -> None:
    topic, group = site.create_topic("Push"), site.new_group("push")
    await fill(sender, topic, texts(50))
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox.later if is_async else inbox)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(50)
        await fill(sender, topic, texts(50, 50))
        assert sorted(await inbox.until(100)) == sorted(texts(100))
    assert set(inbox.batches) == {1}
    assert {message.topic for message in inbox.messages} == {topic}
    # Offsets were written: another member of the group has nothing left to do.
    again = Inbox()
    successor = push(site.namesrv, group, again)
    successor.subscribe(topic)
    async with successor:
        await fill(sender, topic, ["last"])
        assert await again.until(1) == ["last"]


async def test_the_life_of_a_consumer(site: Site) -> None:
    consumer = push(site.namesrv, site.new_group("life"), Inbox())
    consumer.subscribe(site.create_topic("PushLife"))
    states = [consumer.state]
    with pytest.raises(NotRunningError, match="service state not OK, CREATE_JUST"):
        consumer.suspend()
    await consumer.stop()
    await consumer.start()
    states.append(consumer.state)
    with pytest.raises(NotRunningError, match="maybe started once, RUNNING"):
        await consumer.start()
    assert len(consumer.assigned_queues()) >= 4
    await consumer.stop()
    await consumer.stop()
    states.append(consumer.state)
    assert states == [ServiceState.CREATED, ServiceState.RUNNING, ServiceState.STOPPED]


async def test_batches_of_a_queue(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("PushBatch", queues=1)
    await fill(sender, topic, texts(40), queues=1)
    inbox = Inbox()
    consumer = push(
        site.namesrv, site.new_group("batch"), inbox, consume_batch_size=10, consume_threads=1
    )
    consumer.subscribe(topic)
    async with consumer:
        assert await inbox.until(40) == texts(40)
    assert max(inbox.batches) == 10


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("*", ["a", "b", "c", "none"]),
        ("TagA || TagB", ["a", "b"]),
        (Tags("TagC"), ["c"]),
        (Sql("price > 5 AND TAGS IS NOT NULL"), ["b", "c"]),
    ],
    ids=["all", "tags", "tag", "sql"],
)
async def test_subscriptions_choose(
    site: Site, sender: BrokerClient, expression: Expression, wanted: list[str]
) -> None:
    topic = site.create_topic("PushChoice")
    other = site.create_topic("PushOther")
    await fill(sender, topic, ["a"], TAGS="TagA", price="1")
    await fill(sender, topic, ["b"], TAGS="TagB", price="6")
    await fill(sender, topic, ["c"], TAGS="TagC", price="7")
    await fill(sender, topic, ["none"], price="8")
    await fill(sender, other, ["end"])
    inbox = Inbox()
    consumer = push(site.namesrv, site.new_group("choice"), inbox)
    consumer.subscribe(topic, expression)
    consumer.subscribe(other)
    async with consumer:
        assert sorted(await inbox.until(len(wanted) + 1)) == sorted([*wanted, "end"])
        # Wants another from now on; what was passed over stays so.
        consumer.subscribe(topic, "TagD")
        await until_told(sender, consumer.group, topic, "TagD")
        await fill(sender, topic, ["late"], TAGS="TagD")
        assert (await inbox.until(len(wanted) + 2))[-1] == "late"


async def test_a_condition_that_the_broker_refuses_stops_the_start(site: Site) -> None:
    consumer = push(site.namesrv, site.new_group("refused"), Inbox())
    consumer.subscribe(site.create_topic("PushRefused"), Sql("price >"))
    with pytest.raises(BrokerError):
        await consumer.start()
    assert consumer.state is ServiceState.START_FAILED


async def test_a_missing_topic_is_logged(
    site: Site, sender: BrokerClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic, inbox = f"PushMissing{time.time_ns()}", Inbox()
    consumer = push(site.namesrv, site.new_group("missing"), inbox)
    consumer.subscribe(topic)
    async with consumer:
        assert f"the topic {topic} does not exist; it is consumed once it does" in caplog.text
        await fill(sender, topic, ["made"])
        assert await inbox.until(1) == ["made"]


async def test_a_topic_can_be_unsubscribed_and_another_subscribed(
    site: Site, sender: BrokerClient
) -> None:
    first, second = site.create_topic("PushFirst"), site.create_topic("PushSecond")
    inbox = Inbox()
    consumer = push(site.namesrv, site.new_group("change"), inbox)
    consumer.subscribe(first)
    async with consumer:
        await fill(sender, first, ["one"])
        await inbox.until(1)
        consumer.unsubscribe(first)
        consumer.subscribe(second)
        await until(
            lambda: (
                {queue.topic for queue in consumer.assigned_queues()} >= {second}
                and first not in {queue.topic for queue in consumer.assigned_queues()}
            ),
            "the queues changed",
        )
        await fill(sender, first, ["unwanted"])
        await fill(sender, second, ["two"])
        assert await inbox.until(2) == ["one", "two"]


async def test_members_share_queues_and_take_over(site: Site, sender: BrokerClient) -> None:
    topic, group = site.create_topic("PushShare"), site.new_group("share")
    boxes = [Inbox(), Inbox()]
    seen: list[set[int]] = []
    consumers = [
        push(
            site.namesrv,
            group,
            box,
            on_assignment=lambda changed, _, ours: (
                seen.append({q.queue_id for q in ours}) if changed == topic else None
            ),
        )
        for box in boxes
    ]
    for consumer in consumers:
        consumer.subscribe(topic)

    def own(number: int) -> set[int]:
        return {q.queue_id for q in consumers[number].assigned_queues() if q.topic == topic}

    await consumers[0].start()
    assert own(0) == {0, 1, 2, 3}
    await consumers[1].start()
    await until(lambda: len(own(0)) == 2 and own(0) | own(1) == {0, 1, 2, 3}, "shared")
    await fill(sender, topic, texts(40))
    await until(lambda: sum(len(box.messages) for box in boxes) >= 40, "all came")
    assert sorted(boxes[0].bodies + boxes[1].bodies) == sorted(texts(40))
    assert all(box.messages for box in boxes)
    await consumers[0].stop()
    await until(lambda: own(1) == {0, 1, 2, 3}, "taken over")
    await fill(sender, topic, texts(8, 40))
    await until(lambda: len(boxes[1].messages) + len(boxes[0].messages) >= 48, "all came again")
    await consumers[1].stop()
    assert sorted(boxes[0].bodies + boxes[1].bodies) == sorted(texts(48))
    assert {0, 1, 2, 3} in seen


async def test_broadcasting_gives_everything_to_everybody(
    site: Site, sender: BrokerClient, tmp_path: Path
) -> None:
    topic, group = site.create_topic("PushCast"), site.new_group("cast")
    boxes = {"a": Inbox(), "b": Inbox()}
    consumers = [
        push(
            site.namesrv,
            group,
            box,
            message_model=MessageModel.BROADCASTING,
            instance_name=f"cast-{name}",
            offsets_folder=str(tmp_path),
        )
        for name, box in boxes.items()
    ]
    for consumer in consumers:
        consumer.subscribe(topic)
        await consumer.start()
    await fill(sender, topic, texts(20))
    for box in boxes.values():
        assert sorted(await box.until(20)) == sorted(texts(20))
    for consumer in consumers:
        await consumer.stop()
        kept = read_offsets(tmp_path / consumer.client_id / group / "offsets.json")
        assert sorted(kept.values()) == [5, 5, 5, 5]
    # It goes on from its file.
    await fill(sender, topic, ["last"])
    again = Inbox()
    successor = push(
        site.namesrv,
        group,
        again,
        message_model=MessageModel.BROADCASTING,
        instance_name="cast-a",
        offsets_folder=tmp_path,
    )
    successor.subscribe(topic)
    async with successor:
        assert await again.until(1) == ["last"]


@pytest.mark.parametrize(
    ("begin", "first"),
    [
        (ConsumeFrom.FIRST_OFFSET, "m0"),
        (ConsumeFrom.TIMESTAMP, "m3"),
        (ConsumeFrom.LAST_OFFSET, "m5"),
    ],
    ids=["first", "timestamp", "last"],
)
async def test_where_a_new_group_begins(
    site: Site, sender: BrokerClient, tmp_path: Path, begin: ConsumeFrom, first: str
) -> None:
    topic = site.create_topic("PushBegin", queues=1)
    await fill(sender, topic, texts(3), queues=1)
    await asyncio.sleep(0.05)
    between_ms = time.time_ns() // 1_000_000
    await fill(sender, topic, texts(2, 3), queues=1)
    inbox = Inbox()
    # Broadcasting: a broker returns offset 0 for a new queue, for every group.
    consumer = push(
        site.namesrv,
        site.new_group("begin"),
        inbox,
        message_model=MessageModel.BROADCASTING,
        offsets_folder=tmp_path,
        instance_name="begin",
        consume_from=begin,
        consume_timestamp_ms=between_ms,
        consume_threads=1,
    )
    consumer.subscribe(topic)
    async with consumer:
        # Once it has started, it misses nothing.
        await fill(sender, topic, ["m5"], queues=1)
        assert (await inbox.until(1))[0] == first
        await until(lambda: "m5" in inbox.bodies, "the last one")


async def test_pulling_stops_while_too_much_is_held(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("PushFull", queues=1)
    await fill(sender, topic, texts(120), queues=1)
    opened = threading.Event()
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage], context: object) -> None:
        opened.wait(30)
        inbox(messages, context)

    consumer = push(
        site.namesrv,
        site.new_group("full"),
        listener,
        pull_threshold_for_queue=10,
        consume_threads=4,
    )
    consumer.subscribe(topic)

    def held() -> int:
        table = member_of(consumer).running_info(with_stacks=False).mq_table
        return sum(info.cached_msg_count for queue, info in table.items() if queue.topic == topic)

    async with consumer:
        await until(lambda: held() > 10, "full")
        # Longer than the long poll of a pull that was sent before.
        await asyncio.sleep(0.3)
        assert 10 < held() <= 10 + 32
        opened.set()
        assert sorted(await inbox.until(120)) == sorted(texts(120))


async def test_suspending(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("PushSuspend", queues=1)
    inbox = Inbox()
    consumer = push(site.namesrv, site.new_group("suspend"), inbox)
    consumer.subscribe(topic)
    async with consumer:
        await fill(sender, topic, ["before"], queues=1)
        await inbox.until(1)
        consumer.suspend()
        assert consumer.is_suspended
        # The pull that is held at the broker may bring one more.
        await fill(sender, topic, ["held"], queues=1)
        await inbox.until(2)
        await fill(sender, topic, ["meanwhile"], queues=1)
        await asyncio.sleep(0.3)
        assert inbox.bodies == ["before", "held"]
        consumer.resume()
        assert await inbox.until(3) == ["before", "held", "meanwhile"]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
async def test_slow_listeners_run_concurrently_within_the_limit(
    site: Site, sender: BrokerClient, is_async: bool
) -> None:
    topic = site.create_topic("PushSlow")
    await fill(sender, topic, texts(30))
    running = most = 0
    lock = threading.Lock()
    inbox = Inbox()

    def count(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    def plain(messages: list[ReceivedMessage], context: object) -> None:
        count(1)
        time.sleep(0.05)
        count(-1)
        inbox(messages, context)

    async def coroutine(messages: list[ReceivedMessage], context: object) -> None:
        count(1)
        await asyncio.sleep(0.05)
        count(-1)
        inbox(messages, context)

    listener = coroutine if is_async else plain
    consumer = push(site.namesrv, site.new_group("slow"), listener, consume_threads=5)
    consumer.subscribe(topic)
    async with consumer:
        assert sorted(await inbox.until(30)) == sorted(texts(30))
    assert 2 <= most <= 5


async def test_stopping_waits_for_running_calls(site: Site, sender: BrokerClient) -> None:
    topic, group = site.create_topic("PushStop", queues=1), site.new_group("stop")
    await fill(sender, topic, texts(3), queues=1)
    begun, ended = threading.Event(), threading.Event()

    def listener(messages: list[ReceivedMessage], context: object) -> None:
        begun.set()
        time.sleep(0.3)
        ended.set()

    consumer = push(site.namesrv, group, listener, consume_threads=1)
    consumer.subscribe(topic)
    await consumer.start()
    await until(begun.is_set, "begun")
    await consumer.stop()
    assert ended.is_set()
    # What had not begun was not consumed, and what had ended was.
    again = Inbox()
    successor = push(site.namesrv, group, again)
    successor.subscribe(topic)
    async with successor:
        assert await again.until(2) == ["m1", "m2"]


async def test_namespaces_keep_groups_apart(site: Site, sender: BrokerClient) -> None:
    plain = site.create_topic("PushSpace")
    # As brokers know the topic of a namespace.
    await sender.send(f"ns%{plain}", b"theirs")
    await sender.send(plain, b"ours")
    inbox = Inbox()
    consumer = push(site.namesrv, site.new_group("space"), inbox, namespace="ns")
    consumer.subscribe(plain)
    async with consumer:
        assert await inbox.until(1) == ["theirs"]
        assert inbox.messages[0].topic == plain
        assert consumer.group.startswith("ns%")
