"""Admin with RocketMQ 4.9 brokers, which know fewer requests."""

import time

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.errors import BrokerError
from goddard.protocol.codes import Permission, ResponseCode
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient

CLUSTER = "DefaultCluster"


async def test_topics_and_groups_of_a_legacy_broker(legacy_site: Site) -> None:
    topic, group = legacy_site.create_topic("LegacyAdmin", queues=2), "LegacyAdminGroup"
    address = legacy_site.broker.address
    async with Admin(legacy_site.namesrv, timeout_ms=15_000) as admin:
        config = await admin.topic_config(topic, broker=address)
        assert (config.read_queue_nums, config.perm) == (2, 6)
        await admin.set_topic_permission(topic, Permission.READ)
        assert (await admin.topic_config(topic, broker=address)).perm == Permission.READ
        await admin.set_topic_permission(topic, Permission.READ | Permission.WRITE)
        with pytest.raises(BrokerError) as failure:
            await admin.topic_config("NoSuchTopic", broker=address)
        assert failure.value.code == ResponseCode.TOPIC_NOT_EXIST

        await admin.create_group(group, cluster=CLUSTER, max_retries=2)
        assert (await admin.group_config(group, broker=address)).retry_max_times == 2
        assert group in await admin.groups()
        with pytest.raises(BrokerError) as failure:
            await admin.group_config("NoSuchGroup", broker=address)
        assert failure.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

        with pytest.raises(BrokerError, match="version does not support") as failure:
            await admin.ha_status(address)
        assert failure.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await admin.delete_group(group, cluster=CLUSTER)
        assert group not in await admin.groups()


async def test_resetting_one_queue_of_a_legacy_broker_leaves_the_others(
    legacy_site: Site,
) -> None:
    topic, group = legacy_site.create_topic("LegacyReset", queues=2), "LegacyResetGroup"
    address = legacy_site.broker.address
    async with Client() as client:
        dialogue = BrokerClient(client, address)
        for queue_id in (0, 0, 0, 1, 1, 1):
            await dialogue.send(topic, b"m", queue_id=queue_id)
    async with Admin(legacy_site.namesrv, timeout_ms=15_000) as admin:
        first, second = await admin.topic_queues(topic)
        await admin.create_group(group, cluster=CLUSTER)
        await admin.update_consumer_offset(group, first, 3)
        await admin.update_consumer_offset(group, second, 3)
        await admin.reset_offset(group, first, 1)
        assert await admin.consumer_offset(group, first) == 1
        assert await admin.consumer_offset(group, second) == 3

        # This broker leaves the reset to its consumers. There is none, so the offsets are set.
        earlier_ms = time.time_ns() // 1_000_000 - 3_600_000
        assert await admin.reset_offsets_by_time(group, topic, earlier_ms) == {first: 0, second: 0}
        assert await admin.consumer_offset(group, second) == 0
        assert await admin.skip_accumulated(group, topic) == {first: 3, second: 3}
