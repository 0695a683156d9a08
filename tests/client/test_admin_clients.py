"""Admin: online clients and messages, with Goddard's and RocketMQ's brokers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.admin.values import TrackKind
from goddard.client.errors import BrokerError, ClientError, NoRouteError
from goddard.client.queries import FoundMessages
from goddard.client.trace.records import (
    MessageKind,
    SendTrace,
    TraceRecord,
    decode_trace,
    encode_trace,
)
from goddard.client.values import MessageQueue
from goddard.errors import ConnectFailedError, ProtocolError
from goddard.protocol.bodies import ConsumeResult, ConsumeType, MessageModel
from goddard.protocol.codes import ResponseCode
from goddard.protocol.ids import offset_message_id
from goddard.protocol.record import Host
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.idle_consumer import IdleConsumer, eventually


@pytest.fixture
async def admin(site: Site) -> AsyncIterator[Admin]:
    async with Admin(site.namesrv, timeout_ms=15_000) as admin:
        yield admin


@pytest.fixture
async def dialogue(site: Site) -> AsyncIterator[BrokerClient]:
    async with Client() as client:
        yield BrokerClient(client, site.broker.address)


def broker_name(site: Site) -> str:
    (name,) = site.brokers
    return name


@asynccontextmanager
async def online(admin: Admin, consumer: IdleConsumer) -> AsyncIterator[IdleConsumer]:
    """An online consumer of a group whose brokers the name server knows."""

    async def is_known() -> bool:
        return f"%RETRY%{consumer.group}" in await admin.topics()

    async with consumer:
        await eventually(is_known)
        yield consumer


# --- Clients --------------------------------------------------------------------------------------


async def test_consumers_that_are_online(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminOnline"), site.new_group("AdminOnline")
    consumer = IdleConsumer(site.broker.address, group, topic, tags=("a", "b"))
    async with online(admin, consumer):
        found = await admin.consumer_connections(group)
        (connection,) = found.connection_set
        assert connection.client_id == consumer.client_id
        assert connection.client_addr.startswith("127.0.0.1:")
        assert (found.consume_type, found.message_model) == (
            ConsumeType.PASSIVELY,
            MessageModel.CLUSTERING,
        )
        assert sorted(found.subscription_table[topic].tags_set) == ["a", "b"]
        one = await admin.consumer_connections(group, broker=broker_name(site))
        assert one.connection_set == found.connection_set

        infos = await admin.running_infos(group, with_stacks=True)
        info = infos[consumer.client_id]
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert [at.commit_offset for at in info.mq_table.values()] == [7]
        assert info.jstack == "stacks"
        assert (await admin.running_info(group, consumer.client_id)).jstack is None

        offsets = await admin.consumer_status(group, topic)
        assert offsets == {consumer.client_id: {MessageQueue(topic, "anywhere", 1): 9}}

        with pytest.raises(BrokerError) as failure:
            await admin.running_info(group, "127.0.0.1@somebody-else")
        assert failure.value.address == site.broker.address


async def test_a_group_that_is_not_online(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminOffline"), site.new_group("AdminOffline")
    async with online(admin, IdleConsumer(site.broker.address, group, topic)):
        pass

    async def refused() -> int:
        try:
            await admin.consumer_connections(group)
        except BrokerError as error:
            return error.code
        return 0

    # A broker notices a closed connection only after a moment.
    assert await eventually(refused) == ResponseCode.CONSUMER_NOT_ONLINE
    with pytest.raises(NoRouteError):
        await admin.consumer_connections(site.new_group("AdminNever"))


async def test_producers_that_are_online(site: Site, admin: Admin, dialogue: BrokerClient) -> None:
    topic, group = site.create_topic("AdminProducers"), site.new_group("AdminProducers")
    await dialogue.heartbeat(group, client_id="127.0.0.1@producer")
    (connection,) = await admin.producer_connections(group, topic)
    assert connection.client_id == "127.0.0.1@producer"
    (info,) = (await admin.producers(broker_name(site)))[group]
    assert (info.client_id, info.remote_ip) == (
        "127.0.0.1@producer",
        f"/{connection.client_addr}",
    )
    with pytest.raises(BrokerError) as failure:
        await admin.producer_connections(site.new_group("AdminNoProducers"), topic)
    assert failure.value.code == ResponseCode.SYSTEM_ERROR


# --- Messages -------------------------------------------------------------------------------------


async def test_messages_are_found_by_ids_keys_and_offsets(
    site: Site, admin: Admin, dialogue: BrokerClient
) -> None:
    topic = site.create_topic("AdminFound", queues=1)
    name = broker_name(site)
    unique = "7F000001" + "1234" + "0000ABCD" + "00000001" + f"{id(topic) & 0xFFFF:04X}"
    sent = await dialogue.send(topic, b"hello", {"KEYS": "k1 k2", "UNIQ_KEY": unique, "TAGS": "t"})
    await dialogue.send(topic, b"other", {"KEYS": "k1"})

    async def both() -> FoundMessages | None:
        found = await admin.messages_by_key(topic, "k1")
        return found if len(found.messages) == 2 else None

    found = await eventually(both)  # the index is written after the log
    assert found is not None
    assert [one.body for one in found.messages] == [b"hello", b"other"]
    assert found.index_last_update_ms > 0
    (one,) = (await admin.messages_by_key(topic, "k2")).messages
    assert (one.body, one.keys, one.tags) == (b"hello", ["k1", "k2"], "t")
    assert one.queue == MessageQueue(topic, name, 0)
    assert (one.message_id, one.offset_message_id) == (unique, sent.msg_id)
    assert (await admin.messages_by_key(topic, "k3")).messages == []
    assert (await admin.messages_by_key(topic, "k1", end_ms=1)).messages == []

    same = [
        await admin.message(topic, unique),
        await admin.message(topic, sent.msg_id),
        await admin.message_by_offset_id(topic, sent.msg_id),
        await admin.message_by_offset(one.queue, 0),
        *(await admin.messages_by_unique_key(topic, unique)).messages,
    ]
    assert {(each.message_id, each.body, each.queue_offset) for each in same} == {
        (unique, b"hello", 0)
    }
    assert len(same) == 5
    assert [each.body for each in await admin.messages_by_queue(one.queue, 0)] == [
        b"hello",
        b"other",
    ]
    assert [each.body for each in await admin.messages_by_queue(one.queue, 0, tags="t")] == [
        b"hello"
    ]


async def test_missing_messages_are_reported(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminLost", queues=1)
    unique = "7F000001" + "1234" + "0000ABCD" + "00000001" + "FFFF"
    with pytest.raises(ClientError, match="no message") as failure:
        await admin.message(topic, unique)
    assert failure.value.code == ResponseCode.NO_MESSAGE
    with pytest.raises(ClientError, match="no message"):
        await admin.message(topic, "no id at all")
    with pytest.raises(ClientError, match="no message at offset 5"):
        await admin.message_by_offset(MessageQueue(topic, broker_name(site), 0), 5)
    with pytest.raises(ProtocolError):
        await admin.message_by_offset_id(topic, "no id at all")
    with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:1"):
        await admin.message_by_offset_id(topic, "7F000001" + "00000001" + "0" * 16)
    nowhere = offset_message_id(Host.parse(site.broker.address), 2**40)
    with pytest.raises(BrokerError):
        await admin.message_by_offset_id(topic, nowhere)
    with pytest.raises(ClientError, match="no message"):
        await admin.message(topic, nowhere)
    with pytest.raises(NoRouteError):
        await admin.messages_by_key("NoSuchTopic", "key")


async def test_message_track(site: Site, admin: Admin, dialogue: BrokerClient) -> None:
    topic = site.create_topic("AdminTrack", queues=1)
    (queue,) = await admin.topic_queues(topic)
    sent = await dialogue.send(topic, b"tracked", {"TAGS": "a"})
    one = await admin.message(topic, sent.msg_id)
    address = site.broker.address
    groups = {kind: site.new_group(f"AdminTrack-{kind.name}") for kind in TrackKind}
    consumed = IdleConsumer(address, groups[TrackKind.CONSUMED], topic)
    filtered = IdleConsumer(address, groups[TrackKind.CONSUMED_BUT_FILTERED], topic, tags=("b",))
    waiting = IdleConsumer(address, groups[TrackKind.NOT_CONSUMED_YET], topic, tags=("a",))
    pulling = IdleConsumer(
        address, groups[TrackKind.PULL], topic, consume_type=ConsumeType.ACTIVELY
    )
    async with (
        online(admin, consumed),
        online(admin, filtered),
        online(admin, waiting),
        online(admin, pulling),
    ):
        await admin.update_consumer_offset(consumed.group, queue, 1)
        await admin.update_consumer_offset(filtered.group, queue, 1)
        tracks = await admin.message_track(one)
    kinds = {track.kind: track.group for track in tracks}
    online_kinds = (
        TrackKind.CONSUMED,
        TrackKind.CONSUMED_BUT_FILTERED,
        TrackKind.NOT_CONSUMED_YET,
        TrackKind.PULL,
    )
    assert kinds == {kind: groups[kind] for kind in online_kinds}


async def test_a_consumer_is_made_to_consume(
    site: Site, admin: Admin, dialogue: BrokerClient
) -> None:
    topic, group = site.create_topic("AdminDirect", queues=1), site.new_group("AdminDirect")
    sent = await dialogue.send(topic, b"now")
    async with online(admin, IdleConsumer(site.broker.address, group, topic)) as consumer:
        result = await admin.consume_directly(group, consumer.client_id, topic, sent.msg_id)
        assert (result.consume_result, result.remark) == (ConsumeResult.SUCCESS, "well done")
        assert [record.body for record in consumer.consumed] == [b"now"]
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1@nobody"):
            await admin.consume_directly(group, "127.0.0.1@nobody", topic, sent.msg_id)


async def test_the_trace_of_a_message_is_read(
    site: Site, admin: Admin, dialogue: BrokerClient
) -> None:
    topic = site.create_topic("AdminTrace", queues=1)
    sent = SendTrace(
        timestamp_ms=1,
        region="r",
        group="g",
        topic="T",
        message_id="TRACED",
        tags=None,
        keys="k",
        store_host="127.0.0.1",
        body_bytes=3,
        cost_ms=1,
        kind=MessageKind.NORMAL,
        offset_message_id=None,
        is_success=True,
    )
    other = sent._replace(message_id="OTHER")
    text = encode_trace([sent, other])
    await dialogue.send(topic, text.encode(), {"KEYS": "TRACED OTHER k"})

    async def trace() -> list[TraceRecord]:
        return await admin.message_trace("TRACED", trace_topic=topic)

    assert await eventually(trace) == decode_trace(encode_trace([sent]))


async def test_checks_of_a_transaction_that_is_not_there_are_not_resumed(
    site: Site, admin: Admin
) -> None:
    nowhere = offset_message_id(Host.parse(site.broker.address), 2**40)
    with pytest.raises(BrokerError) as failure:
        await admin.resume_transaction_checks(nowhere)
    assert failure.value.code == ResponseCode.SYSTEM_ERROR
