"""What brokers and tools ask of a push consumer, and members that want different things."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from goddard.client.message import ReceivedMessage
from goddard.protocol.bodies import ConsumeResult, decode_body
from goddard.protocol.bodies_client import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    GroupOffsets,
)
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


@pytest.fixture
async def legacy_sender(legacy_site: Site) -> AsyncIterator[BrokerClient]:
    client = Client()
    yield BrokerClient(client, legacy_site.broker.address)
    await client.close()


@pytest.fixture(autouse=True)
def no_listener_thread_is_left() -> Iterator[None]:
    yield
    assert listener_threads() == []


async def reset_to_begin(broker: BrokerClient, topic: str, group: str) -> None:
    """Reset a group's offsets, as soon as the broker knows of some."""
    fields = {"topic": topic, "group": group, "timestamp": 0, "isForce": "true"}
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            answer = await broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            if "not exist" not in (answer.remark or ""):
                break
            await asyncio.sleep(0.05)
    check(answer)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_offsets_that_the_broker_resets(
    site: Site, sender: BrokerClient, orderly: bool
) -> None:
    """A broker of 5.x keeps the new offset, and answers the next pull with it."""
    topic, group = site.create_topic("PushReset", queues=2), site.new_group("reset")
    await fill(sender, topic, texts(10), queues=2)
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox, orderly=orderly)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(10)
        await reset_to_begin(sender, topic, group)
        # Ends the pulls that the broker holds.
        await fill(sender, topic, texts(2, 10), queues=2)
        assert sorted((await inbox.until(22))[-12:]) == sorted(texts(12))


async def test_a_reset_is_not_lost_to_a_rebalance(site: Site, sender: BrokerClient) -> None:
    """The broker says it once; a rebalance may find the queue before the consumer has moved it."""
    topic, group = site.create_topic("PushReset", queues=2), site.new_group("reset")
    await fill(sender, topic, texts(10), queues=2)
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox)
    consumer.subscribe(topic)

    async def rebalance() -> None:
        while True:
            await member_of(consumer).rebalance()

    async with consumer:
        await inbox.until(10)
        rebalancing = asyncio.create_task(rebalance())
        try:
            for count in (22, 36):
                await reset_to_begin(sender, topic, group)
                await fill(sender, topic, texts(2, 10), queues=2)
                await inbox.until(count)
        finally:
            rebalancing.cancel()
            await asyncio.wait((rebalancing,))


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_offsets_that_the_consumer_is_told_to_reset(
    legacy_site: Site, legacy_sender: BrokerClient, orderly: bool
) -> None:
    """A broker of 4.x tells the consumer, which goes on from there by itself."""
    topic, group = legacy_site.create_topic("PushReset", queues=2), legacy_site.new_group("reset")
    inbox = Inbox()
    consumer = push(legacy_site.namesrv, group, inbox, orderly=orderly)
    consumer.subscribe(topic)
    await fill(legacy_sender, topic, texts(10), queues=2)
    async with consumer:
        await inbox.until(10)
        await reset_to_begin(legacy_sender, topic, group)
        assert sorted(await inbox.until(20)) == sorted(texts(10) * 2)
        await fill(legacy_sender, topic, ["more"], queues=2)
        assert (await inbox.until(21))[20] == "more"


async def test_consumer_status(site: Site, sender: BrokerClient) -> None:
    topic, group = site.create_topic("PushStatus", queues=2), site.new_group("status")
    await fill(sender, topic, texts(6), queues=2)
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(6)
        await until(lambda: sum(member_of(consumer).offsets_of(topic).values()) == 6, "offsets")
        fields = {"topic": topic, "group": group, "clientAddr": ""}
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = check(await sender.ask(code, fields))
        table = decode_body(answer.body, GroupOffsets).consumer_table[consumer.client_id]
    assert sorted((queue.queue_id, offset) for queue, offset in table.items()) == [(0, 3), (1, 3)]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_running_info(site: Site, sender: BrokerClient, orderly: bool) -> None:
    topic, group = site.create_topic("PushInfo", queues=2), site.new_group("info")
    await fill(sender, topic, texts(4), queues=2)
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox, orderly=orderly)
    consumer.subscribe(topic, "*")
    async with consumer:
        await inbox.until(4)
        await until(lambda: sum(member_of(consumer).offsets_of(topic).values()) == 4, "offsets")
        fields = {"consumerGroup": group, "clientId": consumer.client_id, "jstackEnable": "true"}
        answer = check(await sender.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields))
        info = decode_body(answer.body, ConsumerRunningInfo)
    assert info.properties["PROP_CONSUMEORDERLY"] == str(orderly).lower()
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert {one.topic for one in info.subscription_set} == {topic, f"%RETRY%{group}"}
    queues = {queue.queue_id: one for queue, one in info.mq_table.items() if queue.topic == topic}
    assert {number: one.commit_offset for number, one in queues.items()} == {0: 2, 1: 2}
    assert {one.locked for one in queues.values()} == {orderly}
    assert info.status_table[topic].consume_ok_tps > 0
    assert info.jstack is not None
    assert "workers.py" in info.jstack


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("fine", ConsumeResult.SUCCESS),
        ("no", ConsumeResult.LATER),
        ("bad", ConsumeResult.THROW_EXCEPTION),
    ],
)
async def test_consuming_directly(
    site: Site, sender: BrokerClient, body: str, result: ConsumeResult, orderly: bool
) -> None:
    topic, group = site.create_topic("PushDirect", queues=1), site.new_group("direct")
    sent = await sender.send(topic, body.encode())
    inbox = Inbox()
    are_wanted = False

    def listener(messages: list[ReceivedMessage], context: object) -> bool:
        inbox(messages, context)
        if are_wanted and messages[0].body == b"bad":
            raise ValueError("a bad one")
        return not are_wanted or messages[0].body != b"no"

    consumer = push(site.namesrv, group, listener, orderly=orderly)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(1)
        are_wanted = True
        (broker_name,) = site.brokers
        fields = {
            "consumerGroup": group,
            "clientId": consumer.client_id,
            "msgId": sent.msg_id,
            "brokerName": broker_name,
            "topic": topic,
        }
        answer = check(await sender.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields))
        found = decode_body(answer.body, ConsumeDirectlyResult)
    assert (found.consume_result, found.order) == (result, orderly)
    assert ("a bad one" in (found.remark or "")) is (result is ConsumeResult.THROW_EXCEPTION)
    assert inbox.bodies == [body, body]


async def test_different_subscriptions_in_a_group_are_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = site.create_topic("PushDiffer"), site.new_group("differ")
    consumers = [push(site.namesrv, group, Inbox()) for _ in range(2)]
    consumers[0].subscribe(topic, "TagA")
    consumers[1].subscribe(topic, "TagB")
    with caplog.at_level(logging.WARNING, "goddard.client"):
        for consumer in consumers:
            await consumer.start()
        await until(lambda: "different subscriptions" in caplog.text, "a warning")
    for consumer in consumers:
        await consumer.stop()
    (warning,) = {
        record.getMessage() for record in caplog.records if "different" in record.getMessage()
    }
    assert "'TagA'" in warning
    assert "'TagB'" in warning


async def test_equal_subscriptions_in_a_group_are_not_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = site.create_topic("PushSame"), site.new_group("same")
    consumers = [push(site.namesrv, group, Inbox()) for _ in range(2)]
    consumers[0].subscribe(topic, "TagA || TagB")
    consumers[1].subscribe(topic, "TagB||TagA")
    with caplog.at_level(logging.WARNING, "goddard.client"):
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        await until(lambda: all(each.assigned_queues() for each in consumers), "shared")
        await asyncio.gather(*(member_of(consumer).rebalance() for consumer in consumers))
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    assert "different subscriptions" not in caplog.text
