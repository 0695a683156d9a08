"""Producers at real brokers: all ways of sending, and the messages that arrive."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from goddard.client.errors import (
    BrokerError,
    ClientCode,
    ClientError,
    InvalidMessageError,
    NoRouteError,
    NotRunningError,
)
from goddard.client.message import Message
from goddard.client.produce.hooks import ForbiddenContext, MessageType, SendContext
from goddard.client.produce.options import BackPressureOptions
from goddard.client.produce.producer import EncodedProducer, Producer
from goddard.client.produce.selectors import by_hash, by_sharding_key
from goddard.client.produce.targets import by_random
from goddard.client.values import MessageQueue, SendMode, SendStatus, ServiceState
from goddard.errors import ConfigError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.compression import CompressionKind
from goddard.protocol.hashing import java_hash
from goddard.protocol.ids import parse_offset_message_id, parse_unique_id
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.testing.site import Site
from tests.support.members import session_of
from tests.support.topic_reader import TopicReader


def producer_of(site: Site, label: str = "senders") -> Producer:
    return Producer(site.new_group(label), name_servers=site.namesrv)


async def test_all_parts_of_a_message_arrive(site: Site) -> None:
    topic = site.create_topic("whole")
    message = Message(
        topic,
        "größe".encode(),
        tags="TagA",
        keys=["order-1", "order-2"],
        flag=7,
        sharding_key="s1",
        properties={"colour": "grün", "a b": "x=y"},
    )
    async with producer_of(site) as producer, TopicReader(site.namesrv, topic) as reader:
        result = await producer.send(message)
        (received,) = await reader.until(1)

    assert result.status is SendStatus.SEND_OK
    assert result.queue.topic == topic
    assert received.queue == result.queue
    assert received.queue_offset == result.queue_offset == 0
    assert received.message_id == result.message_id == message.message_id
    assert received.offset_message_id == result.offset_message_id
    assert str(parse_offset_message_id(result.offset_message_id)[0]) == site.broker.address
    assert received.body == "größe".encode()
    assert (received.flag, received.tags, received.keys) == (7, "TagA", ["order-1", "order-2"])
    assert received.get("colour") == "grün"
    assert received.get("a b") == "x=y"
    assert received.get("__SHARDINGKEY") == "s1"
    assert result.region_id == "DefaultRegion"
    assert result.trace_on


TIMEOUTS: tuple[object, ...] = (0, -1, "5", 1.5, True)


async def test_arguments_of_sends_are_checked(site: Site) -> None:
    topic = site.create_topic("checked")
    async with producer_of(site) as producer, TopicReader(site.namesrv, topic) as reader:
        queue = MessageQueue(topic, "broker", 0)

        def ways(**arguments: Any) -> list[Callable[[], Awaitable[object]]]:
            message = Message(topic, b"refused")
            return [
                lambda: producer.send(message, **arguments),
                lambda: producer.send_soon(message, **arguments),
                lambda: producer.send_oneway(message, **arguments),
                lambda: producer.send_batch([message], **arguments),
                lambda: producer.request(message, **arguments),
                lambda: producer.reply(message, b"x", **arguments),
            ]

        for wrong in TIMEOUTS:
            send, soon, _, *others = ways(timeout_ms=wrong)
            for way in (send, soon, *others[:2]):
                with pytest.raises(ConfigError, match=f"timeout_ms is {wrong!r}; it must be"):
                    await way()
        for send in ways(queue=queue, key="k")[:3]:
            with pytest.raises(ConfigError, match="queue and key are given"):
                await send()
        for send in ways(selector="by_hash")[:3]:
            with pytest.raises(ConfigError, match="selector is 'by_hash'"):
                await send()
        for send in ways(queue=queue._replace(queue_id=-1))[:4]:
            with pytest.raises(ConfigError, match="queue_id is -1"):
                await send()
        changed = Message(topic, b"flag")
        changed.flag = 2**31
        with pytest.raises(InvalidMessageError, match="the flag of a message is"):
            await producer.send(changed)
        with pytest.raises(TypeError, match="the request is 'x'"):
            await producer.reply(cast("Any", "x"), b"")
        result = await producer.send(Message(topic, b"sent"), timeout_ms=3_000)
        (received,) = await reader.until(1)
    assert (received.body, received.message_id) == (b"sent", result.message_id)


async def test_a_delay_level_above_the_default_ones_is_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.create_topic("level")
    async with producer_of(site) as producer:
        for level in (18, 99, 99, 100):
            result = await producer.send(Message(topic, b"late", delay_level=level))
            assert result.status is SendStatus.SEND_OK
    logged = [record.getMessage() for record in caplog.records]
    assert [text[:15] for text in logged if "is higher than 18" in text] == [
        "Delay level 99 ",
        "Delay level 100",
    ]


async def test_text_of_a_result_is_rocketmqs(site: Site) -> None:
    topic = site.create_topic("text")
    async with producer_of(site) as producer:
        result = await producer.send(Message(topic, b"x"))
    assert re.fullmatch(
        r"SendResult \[sendStatus=SEND_OK, msgId=[0-9A-F]{32}, offsetMsgId=[0-9A-F]{32}, "
        rf"messageQueue=MessageQueue \[topic={topic}, brokerName=[\w-]+, queueId=\d\], "
        r"queueOffset=0\]",
        str(result),
    )


async def test_queues_are_used_in_turn(site: Site) -> None:
    topic = site.create_topic("round", queues=8)
    async with producer_of(site) as producer:
        sent = [await producer.send(Message(topic, b"x")) for _ in range(16)]
        queues = await producer.publish_queues(topic)
    assert sorted(result.queue for result in sent) == sorted(queues * 2)
    assert [result.queue for result in sent[:8]] == [result.queue for result in sent[8:]]


async def test_many_concurrent_sends(site: Site) -> None:
    topic = site.create_topic("pipeline")
    async with producer_of(site) as producer, TopicReader(site.namesrv, topic) as reader:
        # Also the first message, when there is neither a route nor a connection.
        futures = [
            producer.send_soon(Message(topic, b"%d" % number), key=number % 3)
            for number in range(1000)
        ]
        results = await asyncio.gather(*futures)
        received = await reader.until(1000)

    assert len({result.message_id for result in results}) == 1000
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len(received) == 1000
    # Equal keys go to one queue. The threads of RocketMQ's broker may store concurrent messages in
    # any order.
    assert {(int(m.body) % 3, m.queue) for m in received} == {
        (number % 3, result.queue) for number, result in enumerate(results)
    }
    assert len({result.queue for result in results}) == 3
    ids = {result.message_id: (result.queue, result.queue_offset) for result in results}
    assert {m.message_id: (m.queue, m.queue_offset) for m in received} == ids


async def test_one_way_sends_arrive(site: Site) -> None:
    topic = site.create_topic("oneway")
    async with producer_of(site) as producer, TopicReader(site.namesrv, topic) as reader:
        messages = [Message(topic, b"%d" % number) for number in range(20)]
        for message in messages:
            await producer.send_oneway(message, key="one queue")
        received = await reader.until(20)
    assert {message.body for message in received} == {b"%d" % number for number in range(20)}
    assert {message.message_id for message in received} == {each.message_id for each in messages}


async def test_queue_is_chosen_by_queue_selector_and_key(site: Site) -> None:
    topic = site.create_topic("chosen", queues=4)
    number: Any = 7
    async with producer_of(site) as producer:
        queues = await producer.publish_queues(topic)
        third = await producer.send(Message(topic, b"x"), queue=queues[2])
        hashed = await producer.send(Message(topic, b"x"), selector=by_hash, key="order-17")
        by_key = await producer.send(Message(topic, b"x"), key="order-17")
        sharded = Message(topic, b"x", sharding_key="order-17")
        by_shard = await producer.send_soon(sharded, selector=by_sharding_key)
        anywhere = await producer.send(Message(topic, b"x"), selector=by_random)
        own = await producer.send(
            Message(topic, b"x"), selector=lambda all_queues, message, key: all_queues[key], key=3
        )
        with pytest.raises(ClientError, match=r"select message queue threw exception\."):
            await producer.send(Message(topic, b"x"), selector=lambda q, m, k: q[k], key=99)
        with pytest.raises(ClientError, match="Not a MessageQueue: 7"):
            await producer.send(Message(topic, b"x"), selector=lambda q, m, k: number, key=1)
        with pytest.raises(TypeError, match="a Message is required, not 7"):
            await producer.send(number)
        with pytest.raises(ClientError, match="topic not equal mq's topic"):
            await producer.send(Message(topic, b"x"), queue=MessageQueue("other", "b", 0))

    assert third.queue == queues[2]
    assert hashed.queue == queues[abs(java_hash("order-17")) % 4]
    assert by_key.queue == by_shard.queue == hashed.queue
    assert anywhere.queue in queues
    assert own.queue == queues[3]


@pytest.mark.parametrize("kind", list(CompressionKind))
async def test_large_bodies_are_compressed(site: Site, kind: CompressionKind) -> None:
    topic = site.create_topic("compressed")
    bodies = [b"0123456789abcdef" * 256, b"x" * 4095, bytes(range(256)) * 1000]
    group = site.new_group("compressors")
    async with (
        Producer(group, name_servers=site.namesrv, compression=kind) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        for body in bodies:
            message = Message(topic, body)
            await producer.send(message, key="one queue")
            assert message.body is body
        await producer.send_soon(Message(topic, bodies[2]), key="one queue")
        received = await reader.until(4)
    assert [message.body for message in received] == [*bodies, bodies[2]]
    shorter = [message.stored_body_bytes < len(message.body) for message in received]
    assert shorter == [True, False, True, True]


async def test_batch_is_stored_in_order(site: Site) -> None:
    topic = site.create_topic("batch")
    async with producer_of(site) as producer, TopicReader(site.namesrv, topic) as reader:
        messages = [
            Message(topic, b"%d" % number, tags=f"T{number}", properties={"n": str(number)})
            for number in range(10)
        ]
        results = await producer.send_batch(messages)
        received = await reader.until(10)
    assert [message.body for message in received] == [message.body for message in messages]
    assert [message.message_id for message in received] == [each.message_id for each in results]
    assert [each.queue_offset for each in results] == list(range(10))
    assert [m.offset_message_id for m in received] == [r.offset_message_id for r in results]
    assert [(m.tags, m.get("n")) for m in received] == [(f"T{n}", str(n)) for n in range(10)]


async def test_large_batches_are_split(site: Site) -> None:
    topic = site.create_topic("split")
    group = site.new_group("splitters")
    async with (
        Producer(group, name_servers=site.namesrv, max_message_bytes=10_000) as producer,
        TopicReader(site.namesrv, topic) as reader,
    ):
        bodies = [bytes([65 + number]) * 3000 for number in range(20)] + [b"z" * 10_000]
        queue = (await producer.publish_queues(topic))[1]
        results = await producer.send_batch([Message(topic, b) for b in bodies], queue=queue)
        received = await reader.until(21)
    assert [message.body for message in received] == bodies
    assert [result.queue_offset for result in results] == list(range(21))
    assert {result.queue for result in results} == {queue}


async def test_invalid_batches_are_refused(site: Site) -> None:
    topic = site.create_topic("nobatch")
    one, started, prepared = (Message(topic, b"x") for _ in range(3))
    started.properties["__STARTDELIVERTIME"] = "60000"
    prepared.properties["TRAN_MSG"] = "true"
    async with producer_of(site) as producer:
        for batch, text in (
            ([], "it is empty"),
            ([one, Message("other", b"x")], "topic of the messages in one batch should be the"),
            ([one, Message(topic, b"x", delay_level=1)], "TimeDelayLevel is not supported"),
            ([one, Message(topic, b"x", delay_seconds=60)], "TimeDelayLevel is not supported"),
            ([one, Message(topic, b"x", delay_ms=60_000)], "TimeDelayLevel is not supported"),
            ([one, Message(topic, b"x", deliver_at_ms=2**40)], "TimeDelayLevel is not supported"),
            ([one, started], "TimeDelayLevel is not supported"),
            ([one, prepared], "transaction messages are not supported"),
            ([prepared], "transaction messages are not supported"),
            ([one, Message(topic, b"x", wait_store_ok=False)], "waitStoreMsgOK of the messages"),
            ([Message("%RETRY%g", b"x")], "Retry Group is not supported for batching"),
        ):
            with pytest.raises(InvalidMessageError, match=text):
                await producer.send_batch(batch)


async def test_encoded_batches_are_sent(site: Site) -> None:
    name = f"encoded-{site.new_group('n')}"
    recorder = Recorder()
    bodies = [b"1", b"2", b"3"]
    entries = [BatchEntry(body, b"n\x01%b\x02" % body, 7) for body in bodies]
    group = site.new_group("encoders")
    async with EncodedProducer(
        group, name_servers=site.namesrv, namespace="space", send_hooks=[recorder]
    ) as producer:
        await producer.send(Message(name, b"0"))
        queue = (await producer.publish_queues(name))[1]
        result = await producer.send_encoded(name, encode_batch(entries), queue=queue)
        async with TopicReader(site.namesrv, f"space%{name}") as reader:
            received = await reader.until(4)
        with pytest.raises(InvalidMessageError, match="Retry Group"):
            await producer.send_encoded("%RETRY%g", encode_batch(entries))
        with pytest.raises(InvalidMessageError, match="length is zero"):
            await producer.send_encoded(name, b"")
    assert (result.status, result.queue) == (SendStatus.SEND_OK, queue)
    batch = [message for message in received if message.body != b"0"]
    assert [(m.body, m.get("n"), m.flag) for m in batch] == [(b, b.decode(), 7) for b in bodies]
    _, context = recorder.calls[-1]
    assert [(m.body, m.get("n")) for m in context.messages] == [(b, b.decode()) for b in bodies]


async def test_delayed_messages_arrive_later(site: Site) -> None:
    topic = site.create_topic("delay")
    async with producer_of(site) as producer, TopicReader(site.namesrv, topic) as reader:
        delayed = await producer.send(Message(topic, b"later", delay_level=1))
        at_once = await producer.send(Message(topic, b"now"))
        received = await reader.until(2)
    assert delayed.status is SendStatus.SEND_OK
    ages = {m.body: m.store_timestamp_ms - m.born_timestamp_ms for m in received}
    assert {m.message_id for m in received} == {delayed.message_id, at_once.message_id}
    assert ages[b"later"] >= 1000
    assert ages[b"now"] < 1000


async def test_first_send_creates_a_new_topic(site: Site) -> None:
    topic = f"made-{site.new_group('by-send')}"
    async with producer_of(site) as producer:
        assert len(await producer.publish_queues(topic)) == 4
        assert (await producer.send(Message(topic, b"x"))).status is SendStatus.SEND_OK
        async with TopicReader(site.namesrv, topic) as reader:
            (received,) = await reader.until(1)
    assert received.body == b"x"


async def test_namespaces_separate_topics(site: Site) -> None:
    name = f"ns-topic-{site.new_group('n')}"
    group = site.new_group("ns-senders")
    for namespace in ("space-a", "space-b"):
        async with Producer(group, name_servers=site.namesrv, namespace=namespace) as producer:
            message = Message(name, namespace.encode())
            result = await producer.send(message)
            hashed = await producer.send_soon(Message(name, b"second"), key="k")
            batch = await producer.send_batch([Message(name, b"3"), Message(name, b"4")])
            queues = await producer.publish_queues(name)
            assert await producer.send(Message(name, b"5"), queue=queues[0])
        assert message.topic == name
        assert result.queue.topic == hashed.queue.topic == batch[1].queue.topic == name
        assert {queue.topic for queue in queues} == {name}
        async with TopicReader(site.namesrv, f"{namespace}%{name}") as reader:
            received = await reader.until(5)
        bodies = [b"3", b"4", b"5", b"second", namespace.encode()]
        assert sorted(m.body for m in received) == bodies
        assert {m.get("INSTANCE_ID") for m in received} == {namespace}


class Recorder:
    """A hook that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, SendContext]] = []
        self.checks: list[ForbiddenContext] = []

    def before_send(self, context: SendContext) -> None:
        self.calls.append(("before", context))
        raise ValueError("a hook's own trouble stays its own")

    def after_send(self, context: SendContext) -> None:
        self.calls.append(("after", context))

    def check(self, context: ForbiddenContext) -> None:
        self.checks.append(context)
        if context.message.body == b"forbidden":
            raise PermissionError("not this one")


async def test_hooks_are_called_for_all_ways_of_sending(site: Site) -> None:
    topic = site.create_topic("hooks")
    recorder = Recorder()
    group = site.new_group("hooked")
    async with Producer(
        group, name_servers=site.namesrv, send_hooks=[recorder], forbidden_hooks=[recorder]
    ) as producer:
        result = await producer.send(Message(topic, b"1"))
        await producer.send_soon(Message(topic, b"2", delay_level=1))
        await producer.send_oneway(Message(topic, b"3"))
        await producer.send_batch([Message(topic, b"4"), Message(topic, b"5")])
        for sending in (producer.send, producer.send_oneway):
            with pytest.raises(PermissionError, match="not this one"):
                await sending(Message(topic, b"forbidden"))
        with pytest.raises(PermissionError, match="not this one"):
            await producer.send_soon(Message(topic, b"forbidden"))

    assert [name for name, _ in recorder.calls] == ["before", "after"] * 4
    contexts = [context for name, context in recorder.calls if name == "after"]
    assert [context.mode for context in contexts] == [
        SendMode.SYNC,
        SendMode.ASYNC,
        SendMode.ONEWAY,
        SendMode.SYNC,
    ]
    assert contexts[0].result == result
    assert contexts[1].message_type is MessageType.DELAY
    assert contexts[2].result is None
    assert [message.body for message in contexts[3].messages] == [b"4", b"5"]
    assert {context.broker_address for context in contexts} == {site.broker.address}
    checked = recorder.checks[0]
    assert (checked.group, checked.mode, checked.queue) == (group, SendMode.SYNC, result.queue)
    assert checked.name_servers == (site.namesrv,)
    assert not checked.is_unit_mode


async def test_refusal_of_a_broker_is_raised(site: Site) -> None:
    async with producer_of(site) as producer:
        queue = MessageQueue(site.create_topic("refusals"), "no-such-broker", 0)
        with pytest.raises(ClientError, match=r"BrokersSent: \[no-such-broker\]") as missing:
            await producer.send(Message(queue.topic, b"x"), queue=queue)
        assert missing.value.code == ClientCode.BROKER_NOT_EXIST
        known = (await producer.publish_queues(queue.topic))[0]
        with pytest.raises(BrokerError) as refused:
            await producer.send(Message(queue.topic, b"x"), queue=known._replace(queue_id=99))
        assert refused.value.address == site.broker.address
        assert refused.value.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
        with pytest.raises(BrokerError):
            await producer.send_soon(Message(queue.topic, b"x"), queue=known._replace(queue_id=99))


async def test_back_pressure_limits_pending_sends(site: Site) -> None:
    topic = site.create_topic("pressure")
    async with Producer(
        site.new_group("pressed"),
        name_servers=site.namesrv,
        back_pressure=BackPressureOptions(max_messages=10),
    ) as producer:
        futures = [producer.send_soon(Message(topic, b"x")) for _ in range(200)]
        results = await asyncio.gather(*futures)
    assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_states_of_a_producer(site: Site) -> None:
    topic = site.create_topic("life")
    producer = producer_of(site)
    states = [producer.state]
    with pytest.raises(NotRunningError, match="The producer service state not OK, CREATE_JUST"):
        await producer.send(Message(topic, b"x"))
    await producer.stop()
    await producer.start()
    states.append(producer.state)
    with pytest.raises(
        NotRunningError, match="The producer service state not OK, maybe started once, RUNNING"
    ):
        await producer.start()
    # Stop waits for the sends in progress.
    futures = [producer.send_soon(Message(topic, b"x")) for _ in range(100)]
    await producer.stop()
    assert all(future.result().status is SendStatus.SEND_OK for future in futures)
    states.append(producer.state)
    assert states == [ServiceState.CREATED, ServiceState.RUNNING, ServiceState.STOPPED]
    await producer.stop()
    for action in (producer.start, lambda: producer.send(Message(topic, b"x"))):
        with pytest.raises(NotRunningError, match=r"SHUTDOWN_ALREADY; .*create a new one"):
            await action()


async def test_group_is_used_once_in_a_session(site: Site) -> None:
    group = site.new_group("twins")
    name = site.new_group("instance")
    async with Producer(group, name_servers=site.namesrv, instance_name=name) as first:
        second = Producer(group, name_servers=site.namesrv, instance_name=name)
        with pytest.raises(ClientError) as refused:
            await second.start()
        assert refused.value.message == (
            f"The producer group[{group}] has been created before, specify another name please."
        )
        assert second.state is ServiceState.CREATED
        async with Producer(group + "-2", name_servers=site.namesrv, instance_name=name) as third:
            assert session_of(third) is session_of(first)
        topic = site.create_topic("still")
        assert (await first.send(Message(topic, b"x"))).status is SendStatus.SEND_OK


async def test_topic_without_route_is_an_error(site: Site) -> None:
    async with Producer(
        site.new_group("lost"), name_servers=site.namesrv, default_topic="no-such-pattern"
    ) as producer:
        for sending in (
            producer.send(Message("nowhere", b"x")),
            producer.send_soon(Message("nowhere", b"x")),
            producer.send_oneway(Message("nowhere", b"x")),
        ):
            with pytest.raises(NoRouteError, match="No route info of this topic: nowhere") as lost:
                await sending
            assert lost.value.code == ClientCode.NOT_FOUND_TOPIC


async def test_message_ids_are_unique(site: Site) -> None:
    async with producer_of(site) as producer:
        ids = {session_of(producer).unique_id() for _ in range(100_000)}
        assert len(ids) == 100_000
        assert parse_unique_id(ids.pop()).pid == os.getpid() & 0xFFFF


async def test_all_ways_of_sending_work_with_an_old_broker(legacy_site: Site) -> None:
    topic = legacy_site.create_topic("legacy")
    async with (
        producer_of(legacy_site) as producer,
        TopicReader(legacy_site.namesrv, topic) as reader,
    ):
        await producer.send(Message(topic, b"1", tags="A"), key="one")
        await producer.send_soon(Message(topic, b"2" * 5000), key="one")
        batch = [Message(topic, b"3"), Message(topic, b"4")]
        queue = (await producer.send(Message(topic, b"0"), key="one")).queue
        await producer.send_batch(batch, queue=queue)
        received = await reader.until(5)
        await producer.send_oneway(Message(topic, b"5"), key="one")
        received = await reader.until(6)
    assert [message.body for message in received] == [
        b"1",
        b"2" * 5000,
        b"0",
        b"3",
        b"4",
        b"5",
    ]
