"""Admin: requests to all brokers of a cluster, also while some are down."""

from collections.abc import Iterator

import pytest

from goddard import Admin as BlockingAdmin
from goddard.client.admin.admin import Admin
from goddard.client.errors import BrokerNotFoundError, NoRouteError, PartialFailureError
from goddard.client.values import MessageQueue
from goddard.errors import ConnectFailedError
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.idle_consumer import IdleConsumer, eventually

NAMES = ("broker-a", "broker-b")
CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A name server and two brokers of one cluster."""
    with Cluster(tmp_path_factory.mktemp("pair")) as cluster:
        site = Site(cluster.start_name_server())
        for name in NAMES:
            site.start_goddard_broker(cluster, name)
        yield site


async def send(site: Site, topic: str, counts: dict[str, int]) -> None:
    async with Client() as client:
        for name, count in counts.items():
            for number in range(count):
                dialogue = BrokerClient(client, site.brokers[name].address)
                await dialogue.send(topic, b"%d" % number, {"KEYS": "key"})


async def known_at(admin: Admin, broker_name: str, topic: str) -> None:
    """Wait until the name server knows that a broker has a topic."""

    async def is_known() -> bool:
        if topic not in await admin.topics():
            return False
        route = await admin.topic_route(topic)
        return broker_name in [data.broker_name for data in route.broker_datas]

    await eventually(is_known)


async def test_cluster_of_two_brokers_is_administered_as_one(pair: Site) -> None:
    topic, group = pair.new_group("Pair"), pair.new_group("Pair")
    addresses = [pair.brokers[name].address for name in NAMES]
    async with Admin(pair.namesrv, timeout_ms=15_000) as admin:
        assert await admin.create_topic(topic, cluster=CLUSTER, queues=1, order=True) == addresses
        assert await admin.order_conf(topic) == "broker-a:1;broker-b:1"
        first, second = await admin.topic_queues(topic)
        assert [first, second] == [MessageQueue(topic, name, 0) for name in NAMES]
        await send(pair, topic, {"broker-a": 2, "broker-b": 3})
        stats = await admin.topic_stats(topic)
        assert [stats.queues[queue].max_offset for queue in (first, second)] == [2, 3]

        async def both_found() -> bool:
            return len((await admin.messages_by_key(topic, "key")).messages) == 5

        await eventually(both_found)
        assert await admin.create_group(group, cluster=CLUSTER) == addresses
        assert await admin.skip_accumulated(group, topic) == {first: 2, second: 3}
        progress = await admin.group_progress(group, topic=topic)
        assert (progress.lag, set(progress.queues)) == (0, {first, second})
        assert await admin.reset_offsets_by_time(group, topic, 0) == {first: 0, second: 0}
        assert (await admin.group_progress(group, topic=topic)).lag == 5

        for number, name in enumerate(NAMES):
            client_id = f"127.0.0.1@{number}"
            address = pair.brokers[name].address
            async with IdleConsumer(address, group, topic, client_id=client_id):
                await known_at(admin, name, f"%RETRY%{group}")
                # It is enough that one of the brokers knows the consumer.
                online = await admin.consumer_connections(group)
                assert client_id in [one.client_id for one in online.connection_set]

        await admin.delete_group(group, cluster=CLUSTER)
        assert group not in await admin.groups()
        await admin.delete_topic(topic, cluster=CLUSTER)
        with pytest.raises(NoRouteError):
            await admin.topic_stats(topic)


async def test_a_broker_that_is_down_is_named_and_the_others_answer(pair: Site) -> None:
    topic = pair.create_topic("PairDown", queues=1)
    lost, left = (pair.brokers[name] for name in NAMES)
    lost.pause()
    try:
        async with Admin(pair.namesrv, timeout_ms=2_500) as admin:
            with pytest.raises(PartialFailureError, match="1 of 2 failed") as failure:
                await admin.topic_stats(topic)
            assert list(failure.value.failures) == [lost.address]
            assert list(failure.value.results) == [left.address]
            with pytest.raises(PartialFailureError, match=lost.address):
                await admin.create_topic(f"{topic}-2", cluster=CLUSTER)
            assert (await admin.topic_config(f"{topic}-2", broker="broker-b")).perm == 6
    finally:
        lost.resume()


def test_blocking_admin_does_the_same(pair: Site) -> None:
    topic = pair.create_topic("PairBlocking", queues=2)
    with BlockingAdmin(pair.namesrv, timeout_ms=15_000) as admin:
        assert len(admin.topic_queues(topic)) == 4
        assert [place.name for place in admin.brokers()] == list(NAMES)
        with pytest.raises(BrokerNotFoundError):
            admin.broker_config("nobody")
        with pytest.raises(ConnectFailedError):
            admin.broker_config("127.0.0.1:1")
