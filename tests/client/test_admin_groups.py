"""Admin: consumer groups, their offsets and progress, with Goddard's and RocketMQ's brokers."""

import time
from collections.abc import AsyncIterator

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.broker_api import Boundary
from goddard.client.errors import BrokerError, NoRouteError
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.bodies import RequestMode
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import ResponseCode
from goddard.protocol.names import retry_topic
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.idle_consumer import IdleConsumer, eventually

CLUSTER = "DefaultCluster"


@pytest.fixture
async def admin(site: Site) -> AsyncIterator[Admin]:
    async with Admin(site.namesrv, timeout_ms=15_000) as admin:
        yield admin


def broker_name(site: Site) -> str:
    (name,) = site.brokers
    return name


async def send(site: Site, topic: str, count: int, queue_id: int = 0) -> None:
    async with Client() as client:
        dialogue = BrokerClient(client, site.broker.address)
        for number in range(count):
            await dialogue.send(topic, b"%d" % number, queue_id=queue_id)


async def known(admin: Admin, group: str) -> None:
    """Wait until the name server knows the brokers of a group, soon after its first heartbeat."""

    async def is_known() -> bool:
        return f"%RETRY%{group}" in await admin.topics()

    await eventually(is_known)


async def test_a_group_is_made_changed_and_deleted(site: Site, admin: Admin) -> None:
    group = site.new_group("AdminGroup")
    name = broker_name(site)
    done = await admin.create_group(
        group, cluster=CLUSTER, max_retries=3, orderly=True, consume_timeout_minutes=4
    )
    assert done == [site.broker.address]
    config = await admin.group_config(group, broker=name)
    assert (config.group_name, config.retry_max_times) == (group, 3)
    assert (config.consume_message_orderly, config.consume_timeout_minute) == (True, 4)
    assert group in await admin.groups()
    assert group in await admin.groups(cluster=CLUSTER)
    await admin.create_group(group, broker=name, consume_enabled=False)
    table = (await admin.group_configs(name)).subscription_group_table
    assert not table[group].consume_enable
    assert table[group].retry_max_times == 16

    await admin.delete_group(group, cluster=CLUSTER, remove_offsets=True)
    assert group not in await admin.groups()
    with pytest.raises(ConfigError, match="neither cluster nor broker is given"):
        await admin.create_group(group)


async def test_several_groups_are_made_at_once(site: Site, admin: Admin) -> None:
    groups = [site.new_group("AdminGroups") for _ in range(2)]
    configs = [SubscriptionGroupConfig(group_name=group, retry_max_times=2) for group in groups]
    await admin.create_groups(configs, broker=site.broker.address)
    assert set(groups) <= set(await admin.groups(broker=broker_name(site)))


async def test_deleting_a_group_of_a_cluster_deletes_its_retry_topic(
    site: Site, admin: Admin
) -> None:
    topic, group = site.create_topic("AdminGroupGone"), site.new_group("AdminGroupGone")
    async with IdleConsumer(site.broker.address, group, topic):
        await known(admin, group)
        await admin.update_consumer_offset(group, MessageQueue(topic, broker_name(site), 0), 0)
        assert await admin.group_topics(group) == [topic]
    await admin.delete_group(group, cluster=CLUSTER)
    with pytest.raises(NoRouteError, match="no consumer of"):
        await admin.group_topics(group)


async def test_a_group_may_be_kept_from_a_topic(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminForbidden"), site.new_group("AdminForbidden")
    name = broker_name(site)
    await admin.create_group(group, broker=name)
    seen = await admin.set_group_readable(group, topic, broker=name)
    assert (seen.group, seen.topic, seen.readable) == (group, topic, True)
    changed = await admin.set_group_readable(group, topic, broker=name, readable=False)
    assert changed.readable is False
    assert (await admin.set_group_readable(group, topic, broker=name)).readable is False


async def test_the_progress_of_a_group_counts_what_is_left(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminProgress", queues=2), site.new_group("AdminProgress")
    name = broker_name(site)
    first, second = (MessageQueue(topic, name, queue_id) for queue_id in range(2))
    await send(site, topic, 5)
    async with IdleConsumer(site.broker.address, group, topic):
        await known(admin, group)
        await admin.update_consumer_offset(group, first, 2)
        progress = await admin.group_progress(group, topic=topic)
        assert list(progress.queues) == [first, second]
        assert progress.queues[first].consumer_offset == 2
        assert progress.queues[first].broker_offset == 5
        assert progress.queues[first].last_timestamp > 0
        assert progress.lag == 3
        whole = await admin.group_progress(group)
        assert {queue: at for queue, at in whole.queues.items() if queue.topic == topic} == (
            progress.queues
        )
        assert whole.lag == 3
        assert await admin.group_progress(group, topic=topic, broker=name) == progress
        assert group in await admin.topic_groups(topic)
        wanted = await admin.subscription(group, topic)
        assert wanted is not None
        assert wanted.sub_string == "*"

        spans = await admin.consume_time_spans(group, topic)
        assert len(spans) == 2
        (span,) = (one for one in spans if one.message_queue and one.message_queue.queue_id == 0)
        assert 0 < span.min_time_stamp <= span.consume_time_stamp <= span.max_time_stamp

        everyone = await admin.broker_progress(name)
        (mine,) = (
            progress
            for progress in everyone.groups[group]
            if {queue.topic for queue in progress.queues} == {topic}
        )
        assert mine.lag == 3
        assert everyone.lag >= 3
        assert everyone.broker_address == site.broker.address
        assert await admin.subscription("NobodyAtAll", topic) is None
    offsets = await admin.consumer_offsets(name)
    assert offsets[topic, group] == {0: 2}


async def test_offsets_of_a_queue(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminOffsets", queues=1)
    queue = MessageQueue(topic, broker_name(site), 0)
    assert await admin.max_offset(queue) == 0
    assert await admin.earliest_store_time_ms(queue) == -1
    before_ms = time.time_ns() // 1_000_000 - 60_000
    await send(site, topic, 3)
    assert await admin.max_offset(queue) == 3
    assert await admin.min_offset(queue) == 0
    first_ms = await admin.earliest_store_time_ms(queue)
    assert first_ms > before_ms
    assert await admin.search_offset(queue, before_ms) == 0
    assert await admin.search_offset(queue, first_ms + 3_600_000) == 3
    assert await admin.search_offset(queue, before_ms, boundary=Boundary.UPPER) == 0


async def test_offsets_of_a_group_are_committed(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminNoted"), site.new_group("AdminNoted")
    queue = MessageQueue(topic, broker_name(site), 0)
    await admin.create_group(group, cluster=CLUSTER)
    assert await admin.consumer_offset(group, queue) is None
    await send(site, topic, 3)
    await admin.update_consumer_offset(group, queue, 2)
    assert await admin.consumer_offset(group, queue) == 2


async def test_offsets_are_reset_to_values(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminReset", queues=2), site.new_group("AdminReset")
    await send(site, topic, 4, queue_id=0)
    await send(site, topic, 4, queue_id=1)
    first, second = await admin.topic_queues(topic)
    await admin.create_group(group, cluster=CLUSTER)
    await admin.update_consumer_offset(group, first, 4)
    await admin.update_consumer_offset(group, second, 4)
    await admin.reset_offset(group, first, 1)
    assert await admin.consumer_offset(group, first) == 1
    assert await admin.consumer_offset(group, second) == 4
    await admin.reset_offsets(group, {first: 2, second: 3})
    assert await admin.consumer_offset(group, first) == 2
    assert await admin.consumer_offset(group, second) == 3


async def test_offsets_are_reset_by_time(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminByTime", queues=1), site.new_group("AdminByTime")
    (queue,) = await admin.topic_queues(topic)
    await send(site, topic, 4)
    await admin.create_group(group, cluster=CLUSTER)
    await admin.update_consumer_offset(group, queue, 3)
    earlier_ms = time.time_ns() // 1_000_000 - 3_600_000
    assert await admin.reset_offsets_by_time(group, topic, earlier_ms) == {queue: 0}
    assert await admin.consumer_offset(group, queue) == 0
    assert await admin.skip_accumulated(group, topic) == {queue: 4}
    assert await admin.consumer_offset(group, queue) == 4


async def test_offsets_are_rolled_back_without_asking_consumers(site: Site, admin: Admin) -> None:
    topic, group = site.create_topic("AdminRollback", queues=1), site.new_group("AdminRollback")
    (queue,) = await admin.topic_queues(topic)
    await send(site, topic, 4)
    await admin.create_group(group, cluster=CLUSTER)
    earlier_ms = time.time_ns() // 1_000_000 - 3_600_000
    # A group that never consumed is at the start of every queue.
    (rollback,) = await admin.reset_offsets_by_time_old(group, topic, -1, force=False)
    assert (rollback.queue, rollback.timestamp_offset, rollback.rollback_offset) == (queue, 4, 0)
    (rollback,) = await admin.reset_offsets_by_time_old(group, topic, -1)
    assert (rollback.consumer_offset, rollback.rollback_offset) == (0, 4)
    assert await admin.consumer_offset(group, queue) == 4
    (rollback,) = await admin.reset_offsets_by_time_old(group, topic, earlier_ms, force=False)
    assert (rollback.consumer_offset, rollback.rollback_offset) == (4, 0)
    assert await admin.consumer_offset(group, queue) == 0


async def test_offsets_are_cloned(site: Site, admin: Admin) -> None:
    topic, source = site.create_topic("AdminClone"), site.new_group("AdminClone")
    target = site.new_group("AdminClone")
    queue = MessageQueue(topic, broker_name(site), 0)
    await send(site, topic, 2)
    async with IdleConsumer(site.broker.address, source, topic):
        await known(admin, source)
        await admin.update_consumer_offset(source, queue, 2)
        await admin.create_group(target, cluster=CLUSTER)
        await admin.clone_offsets(source, target, topic, offline=True)
    assert await admin.consumer_offset(target, queue) == 2


async def test_delay_offsets_are_read(site: Site, admin: Admin) -> None:
    offsets = await admin.delay_offsets(broker_name(site))
    assert all(level > 0 and offset >= 0 for level, offset in offsets.items())


async def test_the_smallest_offset_of_several_groups(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminCorrection", queues=1)
    name = broker_name(site)
    (queue,) = await admin.topic_queues(topic)
    groups = [site.new_group("AdminCorrection") for _ in range(2)]
    await send(site, topic, 3)
    for offset, group in enumerate(groups, 1):
        await admin.create_group(group, cluster=CLUSTER)
        await admin.update_consumer_offset(group, queue, offset)
    assert await admin.correction_offsets(topic, groups[1], broker=name) == {0: 1}


async def test_unknown_group_is_named(site: Site, admin: Admin) -> None:
    group = site.new_group("AdminNobody")
    with pytest.raises(NoRouteError, match=f"no consumer of {group} was online yet"):
        await admin.group_progress(group)
    with pytest.raises(NoRouteError, match="neither a consumer of"):
        await admin.group_progress(group, topic="NoSuchTopic")
    known = site.create_topic(retry_topic(group)).removeprefix(retry_topic(""))
    with pytest.raises(NoRouteError, match=f"did you mean '{known}'"):
        await admin.group_progress(f"{known}x")
    with pytest.raises(BrokerError) as failure:
        await admin.group_config("no spaces", broker=broker_name(site))
    assert failure.value.code in (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.SYSTEM_ERROR,
    )


async def test_the_mode_of_a_group_is_set_where_brokers_have_modes(
    site: Site, admin: Admin
) -> None:
    topic, group = site.create_topic("AdminMode"), site.new_group("AdminMode")
    await admin.create_group(group, cluster=CLUSTER)
    asking = admin.set_request_mode(group, topic, RequestMode.POP, cluster=CLUSTER)
    if broker_name(site) == "broker-java":
        assert await asking == [site.broker.address]
        return
    with pytest.raises(BrokerError, match="version does not support") as failure:
        await asking
    assert failure.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
