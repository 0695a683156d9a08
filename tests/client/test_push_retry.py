"""Failed messages, with each kind of broker: redelivery and the dead-letter topic."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from goddard.client.consume.push import PushConsumer
from goddard.client.listeners.listener import ConsumeContext, ConsumeResult, Returned
from goddard.client.listeners.redelivery import Redelivery
from goddard.client.message import ReceivedMessage
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.client.values import MessageModel, MessageQueue
from goddard.environment import Environment
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.message import decode_send
from goddard.protocol.message import decode_properties
from goddard.protocol.names import dlq_topic
from goddard.protocol.responses import check
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.fake_cluster import FakeCluster
from tests.support.members import member_of
from tests.support.polling import until
from tests.support.push_consumers import Inbox, fill, listener_threads, push, texts
from tests.support.received import received

# One second: the shortest of the broker's delays.
SOON = 1


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[BrokerClient]:
    client = Client()
    yield BrokerClient(client, site.broker.address)
    await client.close()


@pytest.fixture(autouse=True)
def no_listener_thread_is_left() -> Iterator[None]:
    yield
    assert listener_threads() == []


class Failing:
    """Fails on each message the first so many times, in the way it is told to."""

    def __init__(self, how: Returned | BaseException, times: int = 1) -> None:
        self.how = how
        self.times = times
        self.tries: list[tuple[str, int, str]] = []

    def __call__(self, messages: list[ReceivedMessage], context: ConsumeContext) -> Returned:
        context.delay_level = SOON
        for message in messages:
            self.tries.append((message.body.decode(), message.reconsume_times, message.topic))
        if all(message.reconsume_times >= self.times for message in messages):
            return None
        if isinstance(self.how, BaseException):
            raise self.how
        return self.how

    async def later(self, messages: list[ReceivedMessage], context: ConsumeContext) -> Returned:
        return self(messages, context)


async def scheduled(sender: BrokerClient, level: int) -> int:
    """How many messages the broker has been given to deliver later, with a delay level."""
    fields = {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": level - 1}
    answer = check(await sender.ask(RequestCode.GET_MAX_OFFSET, fields))
    return int(answer.fields["offset"])


def committed(consumer: PushConsumer, topic: str) -> int:
    return sum(member_of(consumer).offsets_of(topic).values())


@pytest.mark.parametrize(
    "how",
    [ConsumeResult.RECONSUME_LATER, False, ValueError("bad"), SystemExit(1)],
    ids=["later", "false", "raises", "exits"],
)
async def test_a_failed_message_comes_again(
    site: Site, sender: BrokerClient, how: Returned | BaseException
) -> None:
    topic = site.create_topic("PushAgain")
    await fill(sender, topic, ["one", "two"], KEYS="k")
    listener = Failing(how)
    consumer = push(site.namesrv, site.new_group("again"), listener)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(listener.tries) >= 4, lambda: str(listener.tries))
        # It does not hold up what is behind it.
        assert committed(consumer, topic) == 2
    assert sorted(listener.tries) == [
        ("one", 0, topic),
        ("one", 1, topic),
        ("two", 0, topic),
        ("two", 1, topic),
    ]


async def test_a_coroutine_that_fails(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("PushAgainLater")
    await fill(sender, topic, ["one"])
    listener = Failing(asyncio.CancelledError())
    consumer = push(site.namesrv, site.new_group("again"), listener.later)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(listener.tries) >= 2, lambda: str(listener.tries))
    assert listener.tries == [("one", 0, topic), ("one", 1, topic)]


async def test_messages_after_the_ack_index_are_delivered_again(
    site: Site, sender: BrokerClient
) -> None:
    topic = site.create_topic("PushPart", queues=1)
    await fill(sender, topic, texts(4), queues=1)
    calls: list[list[str]] = []

    def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        calls.append([message.body.decode() for message in messages])
        context.delay_level = SOON
        if len(messages) == 4:
            context.ack_index = 1

    consumer = push(site.namesrv, site.new_group("part"), listener, consume_batch_size=4)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: sum(map(len, calls)) >= 6, lambda: str(calls))
    assert calls[0] == texts(4)
    assert sorted(body for call in calls[1:] for body in call) == ["m2", "m3"]


@pytest.mark.parametrize("reason", ["tries", "level"])
async def test_dead_letters(site: Site, sender: BrokerClient, reason: str) -> None:
    topic, group = site.create_topic("PushDead"), site.new_group("dead")
    await fill(sender, topic, ["hopeless"], KEYS="k1")

    def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> bool:
        context.delay_level = SOON if reason == "tries" else -1
        return False

    most = 1 if reason == "tries" else 16
    consumer = push(site.namesrv, group, listener, max_reconsume_times=most)
    consumer.subscribe(topic)
    async with consumer:
        (dead,) = await sender.receive(dlq_topic(group), 1)
    assert dead.body == b"hopeless"


async def test_broadcasting_does_not_retry(
    site: Site, sender: BrokerClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.create_topic("PushCastFail")
    await fill(sender, topic, ["one"])
    listener = Failing(False)
    consumer = push(
        site.namesrv,
        site.new_group("castfail"),
        listener,
        message_model=MessageModel.BROADCASTING,
        offsets_folder=tmp_path,
        instance_name="castfail",
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: committed(consumer, topic) == 1, "it was passed over")
    assert listener.tries == [("one", 0, topic)]
    assert "drop it" in caplog.text


async def test_messages_of_a_hanging_call_are_sent_back(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("PushHang", queues=1)
    await fill(sender, topic, ["hangs", "goes"], queues=1)
    before = await scheduled(sender, 3)
    released = threading.Event()
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        if messages[0].body == b"hangs":
            released.wait(60)
        inbox(messages, context)

    consumer = push(site.namesrv, site.new_group("hang"), listener, consume_timeout_ms=300)
    consumer.subscribe(topic)
    async with consumer:
        assert await inbox.until(1) == ["goes"]
        await until(lambda: committed(consumer, topic) == 2, "the offset moved on")
        assert await scheduled(sender, 3) > before
        released.set()


async def test_a_message_that_the_broker_does_not_find_is_sent_as_a_copy(
    site: Site, sender: BrokerClient
) -> None:
    topic, group = site.create_topic("PushCopy"), site.new_group("copy")
    await fill(sender, topic, ["kept"], KEYS="k1", UNIQ_KEY="U1", TAGS="TagA")
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(1)
        (record,) = await sender.pull(topic)
        record.physical_offset = 1 << 40
        record.reconsume_times = 2
        (broker_name,) = site.brokers
        session = Session.shared(
            session_options(site.namesrv, {"instance_name": "copy"}), environment=Environment()
        )
        async with session:
            await session.refresh_route(topic)
            # The third attempt is one too many: the copy is not delayed, but dead-lettered.
            redelivery = Redelivery(session, group, 2)
            assert await redelivery.send_back(ReceivedMessage.from_record(record, broker_name), 0)
        (dead,) = await sender.receive(dlq_topic(group), 1)
    properties = decode_properties(dead.properties)
    assert dead.body == b"kept"
    assert dead.reconsume_times == 3
    assert properties["RETRY_TOPIC"] == topic
    assert properties["ORIGIN_MESSAGE_ID"] == "U1"
    assert (properties["KEYS"], properties["TAGS"]) == ("k1", "TagA")


async def test_a_copy_is_sent_to_another_broker_when_one_refuses_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    retry_topic = "%RETRY%copies"
    async with FakeCluster("a", "b", topics=("T", retry_topic)) as cluster:
        for broker in (cluster.broker("a"), cluster.broker("b")):
            broker.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.reply(
                ResponseCode.SYSTEM_ERROR, "no such message"
            )
        cluster.broker("a").answer = lambda request: request.reply(ResponseCode.SYSTEM_BUSY)
        message = received(MessageQueue("T", "a", 0), 7)
        async with Session.shared(session_options(cluster.namesrv, {})) as session:
            await session.refresh_route("T")
            redelivery = Redelivery(session, "copies", 16)
            # The queues take turns: some copies are sent to the refusing broker first.
            assert [await redelivery.send_back(message, 0) for _ in range(8)] == [True] * 8
            headers = [decode_send(sent.fields) for sent in cluster.broker("b").sends]
            assert [header.topic for header in headers] == [retry_topic] * 8
            assert {header.reconsume_times for header in headers} == {1}
            assert cluster.broker("a").sends
            cluster.broker("b").answer = cluster.broker("a").answer
            assert not await redelivery.send_back(message, 0)
    assert f"could not be sent to {retry_topic}" in caplog.text
