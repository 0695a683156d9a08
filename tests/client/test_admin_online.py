"""Admin and running consumers, with Goddard's and RocketMQ's brokers."""

from collections.abc import AsyncIterator

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.admin.values import TrackKind
from goddard.protocol.bodies import ConsumeResult, ConsumeType
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.idle_consumer import eventually
from tests.support.push_consumers import Inbox, fill, push, texts


@pytest.fixture
async def admin(site: Site) -> AsyncIterator[Admin]:
    async with Admin(site.namesrv, timeout_ms=15_000) as admin:
        yield admin


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[BrokerClient]:
    async with Client() as client:
        yield BrokerClient(client, site.broker.address)


async def test_one_queue_of_a_consumer_that_runs_is_reset(
    site: Site, admin: Admin, sender: BrokerClient
) -> None:
    topic, group = site.create_topic("OnlineReset", queues=2), site.new_group("OnlineReset")
    await fill(sender, topic, texts(10), queues=2)
    first, _ = await admin.topic_queues(topic)
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(10)
        await admin.reset_offset(group, first, 2)
        # A pending pull learns of the reset when a message arrives.
        await fill(sender, topic, ["more"], queues=1)
        again = (await inbox.until(14))[10:]
        assert sorted(again) == ["m4", "m6", "m8", "more"]


async def test_running_consumer_is_inspected(
    site: Site, admin: Admin, sender: BrokerClient
) -> None:
    topic, group = site.create_topic("OnlineLook", queues=1), site.new_group("OnlineLook")
    await fill(sender, topic, texts(3), queues=1)
    (queue,) = await admin.topic_queues(topic)
    inbox = Inbox()
    consumer = push(site.namesrv, group, inbox, persist_offsets_interval_ms=100)
    consumer.subscribe(topic)
    async with consumer:
        await inbox.until(3)
        online = await admin.consumer_connections(group)
        assert [one.client_id for one in online.connection_set] == [consumer.client_id]
        assert online.connection_set[0].language == "PYTHON"
        assert online.consume_type is ConsumeType.PASSIVELY

        info = await admin.running_info(group, consumer.client_id, with_stacks=True)
        assert topic in {key.topic for key in info.mq_table}
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"

        async def holds_all() -> bool:
            held = await admin.consumer_status(group, topic)
            return held[consumer.client_id][queue] == 3

        await eventually(holds_all)

        async def is_consumed() -> bool:
            progress = await admin.group_progress(group, topic=topic)
            return progress.lag == 0

        await eventually(is_consumed)
        one = await admin.message_by_offset(queue, 1)
        (track,) = await admin.message_track(one)
        assert (track.group, track.kind) == (group, TrackKind.CONSUMED)
        result = await admin.consume_directly(
            group, consumer.client_id, topic, one.offset_message_id
        )
        assert result.consume_result is ConsumeResult.SUCCESS
        assert (await inbox.until(4))[3] == one.body.decode()
