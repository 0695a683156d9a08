"""Admin: create, change, find and delete topics, with Goddard's and RocketMQ's brokers."""

from collections.abc import AsyncIterator

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClusterNotFoundError,
    NoRouteError,
)
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.bodies import BrokerData, QueueData, TopicConfig, TopicRoute
from goddard.protocol.codes import Permission, ResponseCode
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient

CLUSTER = "DefaultCluster"


@pytest.fixture
async def admin(site: Site) -> AsyncIterator[Admin]:
    async with Admin(site.namesrv, timeout_ms=15_000) as admin:
        yield admin


def broker_name(site: Site) -> str:
    (name,) = site.brokers
    return name


async def test_a_topic_is_made_on_a_cluster_and_deleted(site: Site, admin: Admin) -> None:
    topic = site.new_group("AdminTopic")
    done = await admin.create_topic(
        topic, cluster=CLUSTER, queues=3, attributes={"message.type": "NORMAL"}
    )
    assert done == [site.broker.address]
    assert topic in await admin.topics()
    assert topic in await admin.topics(cluster=CLUSTER)
    route = await admin.topic_route(topic)
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums) == (broker_name(site), 3)
    assert await admin.topic_clusters(topic) == [CLUSTER]
    assert await admin.topic_queues(topic) == [
        MessageQueue(topic, broker_name(site), queue_id) for queue_id in range(3)
    ]

    await admin.delete_topic(topic, cluster=CLUSTER)
    assert topic not in await admin.topics()
    with pytest.raises(NoRouteError) as failure:
        await admin.topic_route(topic)
    assert failure.value.topic == topic
    with pytest.raises(NoRouteError, match=topic):
        await admin.delete_topic(topic, cluster=CLUSTER)


async def test_a_topic_is_made_on_a_broker_by_name_and_by_address(site: Site, admin: Admin) -> None:
    name, address = broker_name(site), site.broker.address
    topic = site.new_group("AdminTopicOfBroker")
    await admin.create_topic(topic, broker=name, read_queues=2, write_queues=1)
    config = await admin.topic_config(topic, broker=address)
    assert (config.topic_name, config.read_queue_nums, config.write_queue_nums) == (topic, 2, 1)
    await admin.create_topic(
        topic, broker=address, queues=5, permission=Permission.READ, unit=True, unit_subscribed=True
    )
    config = await admin.topic_config(topic, broker=name)
    assert (config.read_queue_nums, config.perm, config.topic_sys_flag) == (5, 4, 3)
    configs = (await admin.topic_configs(name)).topic_config_table
    assert configs[topic].write_queue_nums == 5
    assert topic in await admin.unit_topics()
    assert topic in await admin.unit_subscribed_topics()
    assert topic not in await admin.unit_subscribed_topics(without_unit=True)
    await admin.delete_topic_in_broker(topic, name)
    with pytest.raises(BrokerError) as failure:
        await admin.topic_config(topic, broker=name)
    assert failure.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert failure.value.address == address
    assert "create the topic" in str(failure.value)


async def test_attributes_are_set_and_removed(site: Site, admin: Admin) -> None:
    topic = site.new_group("AdminAttributes")
    name = broker_name(site)
    await admin.create_topic(topic, broker=name, attributes={"cleanup.policy": "DELETE"})
    assert (await admin.topic_config(topic, broker=name)).attributes == {"cleanup.policy": "DELETE"}
    await admin.create_topic(topic, broker=name, attributes={"reserve.time": "-1"})
    config = await admin.topic_config(topic, broker=name)
    assert config.attributes == {"cleanup.policy": "DELETE", "reserve.time": "-1"}
    await admin.create_topic(topic, broker=name, attributes={"reserve.time": None})
    config = await admin.topic_config(topic, broker=name)
    assert config.attributes == {"cleanup.policy": "DELETE"}


async def test_several_topics_are_made_at_once(site: Site, admin: Admin) -> None:
    topics = [site.new_group("AdminMany") for _ in range(2)]
    configs = [TopicConfig(topic_name=topic, read_queue_nums=1) for topic in topics]
    assert await admin.create_topics(configs, cluster=CLUSTER) == [site.broker.address]
    assert set(topics) <= set(await admin.topics())


async def test_permission_change_keeps_other_settings(site: Site, admin: Admin) -> None:
    topic = site.new_group("AdminPermission")
    name = broker_name(site)
    await admin.create_topic(
        topic, broker=name, queues=2, attributes={"message.type": "FIFO"}, unit=True
    )
    for places in ({"broker": name}, {"cluster": CLUSTER}, {}):
        permission = Permission.READ if "broker" in places else Permission.READ | Permission.WRITE
        done = await admin.set_topic_permission(topic, permission, **places)
        assert done == [site.broker.address]
        config = await admin.topic_config(topic, broker=name)
        assert config.perm == permission
        assert (config.read_queue_nums, config.topic_sys_flag) == (2, 1)
        assert config.attributes == {"message.type": "FIFO"}


async def test_queues_of_an_ordered_topic_are_written_to_name_servers(
    site: Site, admin: Admin
) -> None:
    topic = site.new_group("AdminOrder")
    name = broker_name(site)
    await admin.create_topic(topic, cluster=CLUSTER, queues=3, order=True)
    assert await admin.order_conf(topic) == f"{name}:3"
    await admin.set_order_conf(topic, "elsewhere:1")
    await admin.create_topic(topic, broker=site.broker.address, queues=2, order=True)
    assert await admin.order_conf(topic) == f"elsewhere:1;{name}:2"
    await admin.delete_order_conf(topic)
    assert await admin.order_conf(topic) is None


async def test_the_stats_of_a_topic_show_its_messages(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminStats", queues=2)
    name = broker_name(site)
    async with Client() as client:
        dialogue = BrokerClient(client, site.broker.address)
        for number in range(3):
            await dialogue.send(topic, b"%d" % number, {"TAGS": "a"}, queue_id=1)
    stats = await admin.topic_stats(topic)
    first, second = (MessageQueue(topic, name, queue_id) for queue_id in range(2))
    assert list(stats.queues) == [first, second]
    assert stats.queues[first].max_offset == 0
    assert (stats.queues[second].min_offset, stats.queues[second].max_offset) == (0, 3)
    assert stats.queues[second].last_update_timestamp > 0
    assert stats.message_count == 3
    assert await admin.topic_stats(topic, broker=name) == stats

    entries = await admin.consume_queue(second, index=1, count=5)
    assert (entries.min_queue_index, entries.max_queue_index) == (0, 3)
    assert [entry.physic_offset for entry in entries.queue_data] == sorted(
        entry.physic_offset for entry in entries.queue_data
    )
    assert len(entries.queue_data) == 2


async def test_system_topics_are_listed(admin: Admin) -> None:
    topics = await admin.system_topics()
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", CLUSTER} <= set(topics)
    assert topics == sorted(topics)


async def test_a_topic_can_be_registered_by_hand(site: Site, admin: Admin) -> None:
    topic = site.new_group("AdminByHand")
    name = broker_name(site)
    route = TopicRoute(
        queue_datas=[QueueData(broker_name=name, perm=6, read_queue_nums=1, write_queue_nums=1)],
        broker_datas=[
            BrokerData(cluster=CLUSTER, broker_name=name, broker_addrs={0: site.broker.address})
        ],
    )
    await admin.register_topic(topic, route)
    assert topic in await admin.topics()
    await admin.delete_topic_in_name_servers(topic)
    assert topic not in await admin.topics()


async def test_missing_topics_brokers_and_clusters_are_named(site: Site, admin: Admin) -> None:
    with pytest.raises(ClusterNotFoundError, match=r"Nowhere.*DefaultCluster"):
        await admin.create_topic("T", cluster="Nowhere")
    with pytest.raises(BrokerNotFoundError, match="nobody"):
        await admin.create_topic("T", broker="nobody")
    with pytest.raises(ConfigError, match="a broker or a cluster, not both"):
        await admin.create_topic("T", broker="a", cluster="b")
    with pytest.raises(ConfigError, match="neither cluster nor broker is given"):
        await admin.create_topic("T")
    with pytest.raises(NoRouteError, match="NoSuchTopic"):
        await admin.topic_stats("NoSuchTopic")
    with pytest.raises(BrokerError) as failure:
        await admin.topic_stats("NoSuchTopic", broker=broker_name(site))
    assert failure.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_invalid_topic_name_is_refused(site: Site, admin: Admin) -> None:
    with pytest.raises(ConfigError, match="contains illegal characters"):
        await admin.create_topic("no spaces, please", broker=broker_name(site))
    # Only a broker can refuse this.
    with pytest.raises(BrokerError, match="is conflict with system topic") as failure:
        await admin.create_topic("SELF_TEST_TOPIC", broker=broker_name(site))
    assert failure.value.code == ResponseCode.INVALID_PARAMETER
    assert failure.value.address == site.broker.address
