"""The administrative methods of producers, at Goddard's broker and at RocketMQ's."""

import time
from typing import Any

import pytest

from goddard.client.broker_api import Boundary
from goddard.client.errors import ClientError, NoRouteError, NotRunningError
from goddard.client.message import Message, ReceivedMessage
from goddard.client.produce.producer import Producer
from goddard.client.values import MessageQueue, ServiceState
from goddard.errors import ConfigError
from goddard.protocol.bodies import BrokerData, TopicRoute, encode_body
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.site import Site
from tests.support.fake_cluster import FakeCluster
from tests.support.idle_consumer import eventually
from tests.support.members import session_of


@pytest.mark.parametrize("namespace", ["", "space"])
async def test_offsets_of_queues(site: Site, namespace: str) -> None:
    topic = f"ProducerOffsets{namespace}-{site.new_group('n')}"
    async with Producer(
        site.new_group("senders"), name_servers=site.namesrv, namespace=namespace
    ) as producer:
        await producer.create_topic(topic, queues=1)
        (queue,) = await _queues(producer, topic)
        assert queue.topic == topic
        assert await producer.max_offset(queue) == 0
        assert await producer.earliest_store_time_ms(queue) == -1
        before_ms = time.time_ns() // 1_000_000 - 60_000
        for body in (b"1", b"2", b"3"):
            await producer.send(Message(topic, body))

        async def all_are_queued() -> bool:
            # RocketMQ's broker writes the queue after it has answered.
            return await producer.max_offset(queue) == 3

        await eventually(all_are_queued)
        assert await producer.min_offset(queue) == 0
        first_ms = await producer.earliest_store_time_ms(queue)
        assert first_ms > before_ms
        assert await producer.search_offset(queue, before_ms) == 0
        assert await producer.search_offset(queue, first_ms + 3_600_000) == 3
        assert await producer.search_offset(queue, before_ms, boundary=Boundary.UPPER) == 0
        with pytest.raises(NoRouteError):
            await producer.max_offset(queue._replace(topic="NoSuchTopic"))
        number: Any = 7
        with pytest.raises(TypeError, match="MessageQueue"):
            await producer.min_offset(number)


async def _queues(producer: Producer, topic: str) -> list[MessageQueue]:
    """The queues of a new topic, when the name server knows it."""

    async def queues() -> list[MessageQueue] | None:
        await session_of(producer).refresh_route(session_of(producer).with_namespace(topic))
        return await producer.publish_queues(topic)

    found = await eventually(queues)
    assert found is not None
    return found


async def test_topics_are_created_like_others(site: Site) -> None:
    like = site.create_topic("like", queues=1)
    topic = f"ProducerTopic-{site.new_group('n')}"
    async with Producer(site.new_group("senders"), name_servers=site.namesrv) as producer:
        (address,) = await producer.create_topic(topic, queues=3, like=like)
        assert address == site.broker.address

        async def has_three() -> bool:
            await session_of(producer).refresh_route(topic)
            route = session_of(producer).route(topic)
            return route is not None and route.queue_datas[0].write_queue_nums == 3

        await eventually(has_three)
        assert len(await producer.publish_queues(topic)) == 3
        # Once more changes it.
        await producer.create_topic(topic, queues=5, like=like)

        async def has_five() -> bool:
            await session_of(producer).refresh_route(topic)
            return len(await producer.publish_queues(topic)) == 5

        await eventually(has_five)
        with pytest.raises(NoRouteError, match="NoSuchTopic"):
            await producer.create_topic(topic, like="NoSuchTopic")
        with pytest.raises(ConfigError, match="illegal characters"):
            await producer.create_topic("no topic")
        with pytest.raises(ConfigError, match="queues is 0"):
            await producer.create_topic(topic, queues=0)
        with pytest.raises(ConfigError, match="attribute"):
            await producer.create_topic(topic, like=like, attributes={"": "x"})


async def test_topic_is_not_created_where_no_master_is_registered() -> None:
    async with FakeCluster("a") as cluster:

        def only_replica(request: RemotingCommand) -> RemotingCommand:
            broker = BrokerData(broker_name="a", broker_addrs={1: cluster.broker("a").address})
            return request.reply(body=encode_body(TopicRoute(broker_datas=[broker])))

        cluster.answer_route = only_replica
        async with Producer("senders", name_servers=cluster.namesrv) as producer:
            with pytest.raises(ClientError, match="New cannot be created: no master") as failed:
                await producer.create_topic("New", like="T")
        assert "check that a master is running" in str(failed.value)
        codes = [request.code for request in cluster.broker("a").requests]
        assert RequestCode.UPDATE_AND_CREATE_TOPIC not in codes


@pytest.mark.parametrize("namespace", ["", "space"])
async def test_messages_are_found_by_ids_and_keys(site: Site, namespace: str) -> None:
    topic = f"ProducerFound{namespace}-{site.new_group('n')}"
    async with Producer(
        site.new_group("senders"), name_servers=site.namesrv, namespace=namespace
    ) as producer:
        sent = await producer.send(Message(topic, b"hello", keys=["k1", "k2"], tags="t"))
        await producer.send(Message(topic, b"other", keys="k1"))

        async def both() -> list[ReceivedMessage] | None:
            # The index is written after the log.
            found = (await producer.messages_by_key(topic, "k1")).messages
            return found if len(found) == 2 else None

        found = await eventually(both)
        assert found is not None
        assert {each.body for each in found} == {b"hello", b"other"}
        assert {each.topic for each in found} == {topic}
        assert len((await producer.messages_by_key(topic, "k2")).messages) == 1
        assert (await producer.messages_by_key(topic, "k3")).messages == []
        assert (await producer.messages_by_key(topic, "k1", end_ms=1)).messages == []
        assert len((await producer.messages_by_key(topic, "k1", max_count=1)).messages) == 1
        for message_id in (sent.message_id, sent.offset_message_id):
            message = await producer.message(topic, message_id)
            assert (message.topic, message.body, message.tags) == (topic, b"hello", "t")
            assert (message.message_id, message.queue_offset) == (
                sent.message_id,
                sent.queue_offset,
            )
        with pytest.raises(ClientError, match="no message") as missing:
            await producer.message(topic, "no id at all")
        assert missing.value.code == ResponseCode.NO_MESSAGE


async def test_administrative_methods_require_a_running_producer() -> None:
    producer = Producer("senders", name_servers="127.0.0.1:1")
    queue = MessageQueue("T", "a", 0)
    assert producer.state is ServiceState.CREATED
    for asking in (
        producer.create_topic("T"),
        producer.max_offset(queue),
        producer.min_offset(queue),
        producer.search_offset(queue, 0),
        producer.earliest_store_time_ms(queue),
        producer.message("T", "id"),
        producer.messages_by_key("T", "k"),
    ):
        with pytest.raises(NotRunningError):
            await asking
