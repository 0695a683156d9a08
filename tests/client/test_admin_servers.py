"""Admin: Goddard's and RocketMQ's brokers and name servers, and the errors if none answers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.errors import (
    BrokerError,
    BrokerNotFoundError,
    ClientError,
    ClusterNotFoundError,
    NotRunningError,
    PartialFailureError,
)
from goddard.client.values import MessageQueue, ServiceState
from goddard.errors import ConfigError, ConnectFailedError
from goddard.protocol.codes import Permission, ResponseCode
from goddard.testing.ports import lease_port
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


# --- Brokers --------------------------------------------------------------------------------------


async def test_brokers_are_listed(site: Site, admin: Admin) -> None:
    name, address = broker_name(site), site.broker.address
    info = await admin.cluster_info()
    assert info.cluster_addr_table == {CLUSTER: [name]}
    assert info.broker_addr_table[name].broker_addrs == {0: address}
    assert await admin.clusters() == [CLUSTER]
    (place,) = await admin.brokers()
    assert (place.cluster, place.name, place.broker_id) == (CLUSTER, name, 0)
    assert (place.address, place.is_master) == (address, True)
    assert await admin.brokers(cluster=CLUSTER) == [place]
    assert await admin.broker_name(address) == name
    assert (await admin.broker_members(CLUSTER, name)).broker_addrs == {0: address}
    assert (await admin.broker_members(CLUSTER, "nobody")).broker_addrs == {}
    with pytest.raises(ClusterNotFoundError):
        await admin.brokers(cluster="Nowhere")
    with pytest.raises(BrokerNotFoundError):
        await admin.broker_name("10.0.0.1:1")


async def test_a_broker_is_configured(site: Site, admin: Admin) -> None:
    name = broker_name(site)
    config = await admin.broker_config(name)
    assert (config["brokerName"], config["brokerClusterName"]) == (name, CLUSTER)
    before = config["waitTimeMillsInTransactionQueue"]
    change = {"waitTimeMillsInTransactionQueue": str(int(before) + 1)}
    assert await admin.update_broker_config(change, cluster=CLUSTER) == [site.broker.address]
    changed = await admin.broker_config(site.broker.address)
    assert changed["waitTimeMillsInTransactionQueue"] == str(int(before) + 1)
    await admin.update_broker_config({"waitTimeMillsInTransactionQueue": before}, broker=name)
    with pytest.raises(ConfigError, match="neither cluster nor broker is given"):
        await admin.update_broker_config(change)
    with pytest.raises(BrokerError) as failure:
        await admin.update_broker_config({"brokerConfigPath": "/tmp/x"}, broker=name)
    assert failure.value.code == ResponseCode.NO_PERMISSION
    assert "permission" in str(failure.value)
    with pytest.raises(ConfigError, match="no property maxMesageSize; did you mean 'maxMessageS"):
        await admin.update_broker_config({"maxMesageSize": "1"}, broker=name)


async def test_broker_statistics_are_read(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminFigures", queues=1)
    name = broker_name(site)
    async with Client() as client:
        for _ in range(3):
            await BrokerClient(client, site.broker.address).send(topic, b"counted")
    runtime = await admin.broker_runtime(name)
    assert int(runtime["msgPutTotalTodayNow"]) >= 3
    assert {"putTps", "brokerVersionDesc", "commitLogMaxOffset"} <= set(runtime)
    stats = await admin.broker_stats("TOPIC_PUT_NUMS", topic, broker=name)
    assert stats.stats_minute.sum >= 0
    with pytest.raises(BrokerError):
        await admin.broker_stats("TOPIC_PUT_NUMS", "NeverSent", broker=name)


async def test_maintenance_runs_on_all_or_on_given_brokers(site: Site, admin: Admin) -> None:
    everywhere = [site.broker.address]
    assert await admin.clean_expired_consume_queues() == everywhere
    assert await admin.clean_unused_topics(cluster=CLUSTER) == everywhere
    assert await admin.delete_expired_commit_logs(broker=broker_name(site)) == everywhere


async def test_replicas_of_a_broker(site: Site, admin: Admin) -> None:
    status = await admin.ha_status(broker_name(site))
    assert status.master
    assert status.ha_connection_info == []


async def test_requests_for_rocksdb_are_refused_by_other_brokers(site: Site, admin: Admin) -> None:
    name = broker_name(site)
    if name == "broker-java":
        await admin.update_cold_data_flow({"SomeGroup": 1_000_000}, broker=name)
        assert '"SomeGroup":1000000' in await admin.cold_data_flow(name)
        await admin.remove_cold_data_flow("SomeGroup", broker=name)
        assert "SomeGroup" not in await admin.cold_data_flow(name)
        assert await admin.set_read_ahead_mode(1, broker=name) == [site.broker.address]
        assert await admin.set_read_ahead_mode(0, broker=name) == [site.broker.address]
        with pytest.raises(BrokerError) as failure:
            await admin.set_read_ahead_mode(7, broker=name)
        assert failure.value.code == ResponseCode.INVALID_PARAMETER
        assert (await admin.rocksdb_progress(name, "TBW102")).check_status in range(4)
        return
    for asking in (
        admin.cold_data_flow(name),
        admin.set_read_ahead_mode(1, broker=name),
        admin.rocksdb_progress(name, "TBW102"),
        admin.export_rocksdb_config(name, ["topics"]),
        admin.broker_epochs(name),
        admin.access_keys(broker=name),
    ):
        with pytest.raises(BrokerError) as failure:
            await asking
        assert failure.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- Name servers ---------------------------------------------------------------------------------


async def test_values_are_stored_on_name_servers(site: Site, admin: Admin) -> None:
    space = site.new_group("AdminSpace")
    assert await admin.kv(space, "key") is None
    assert await admin.kv_list(space) == {}
    await admin.set_kv(space, "key", "value, with = and ünïcode")
    await admin.set_kv(space, "other", "1")
    assert await admin.kv(space, "key") == "value, with = and ünïcode"
    assert await admin.kv_list(space) == {"key": "value, with = and ünïcode", "other": "1"}
    await admin.delete_kv(space, "key")
    await admin.delete_kv(space, "key")
    assert await admin.kv(space, "key") is None
    assert await admin.kv_list(space) == {"other": "1"}


async def test_name_servers_are_configured(site: Site, admin: Admin) -> None:
    assert admin.name_servers == (site.namesrv,)
    config = (await admin.name_server_config())[site.namesrv]
    assert config["listenPort"] == site.namesrv.rpartition(":")[2]
    assert config["returnOrderTopicConfigToBroker"] in ("true", "false")
    change = {"returnOrderTopicConfigToBroker": config["returnOrderTopicConfigToBroker"]}
    assert await admin.update_name_server_config(change) == [site.namesrv]
    assert await admin.update_name_server_config(change, [site.namesrv]) == [site.namesrv]
    with pytest.raises(BrokerError) as failure:
        await admin.update_name_server_config({"configStorePath": "/tmp/x"})
    assert failure.value.code == ResponseCode.NO_PERMISSION


async def test_write_permission_of_a_broker_is_removed_and_added(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminWipe")
    wiped = await admin.wipe_write_permission(broker_name(site))
    try:
        assert wiped[site.namesrv] > 0
        (queues,) = (await admin.topic_route(topic)).queue_datas
        assert queues.perm == Permission.READ
    finally:
        added = await admin.add_write_permission(broker_name(site))
    assert added == wiped
    (queues,) = (await admin.topic_route(topic)).queue_datas
    assert queues.perm == Permission.READ | Permission.WRITE


# --- Life and failures ----------------------------------------------------------------------------


async def test_nothing_works_before_start_or_after_stop(site: Site) -> None:
    admin = Admin(site.namesrv)
    assert admin.state is ServiceState.CREATED
    with pytest.raises(NotRunningError, match=r"CREATE_JUST.*async with"):
        await admin.topics()
    async with admin:
        assert admin.state.name == "RUNNING"
        assert await admin.topics()
        with pytest.raises(NotRunningError, match="maybe started once"):
            await admin.start()
    assert admin.state.name == "STOPPED"
    with pytest.raises(NotRunningError, match="SHUTDOWN_ALREADY"):
        await admin.topics()
    await admin.stop()
    with pytest.raises(NotRunningError, match="create a new one"):
        await admin.start()


async def test_a_name_server_that_is_not_there_is_named() -> None:
    address = f"127.0.0.1:{lease_port()}"
    async with Admin(address, timeout_ms=2_000) as admin:
        with pytest.raises(ClientError, match=address) as failure:
            await admin.topics()
        assert isinstance(failure.value.__cause__, ConnectFailedError)
        with pytest.raises(ConnectFailedError, match=address):
            await admin.set_kv("space", "key", "value")


async def test_a_broker_that_is_not_there_is_named(site: Site, admin: Admin) -> None:
    address = f"127.0.0.1:{lease_port()}"
    with pytest.raises(ConnectFailedError, match=address):
        await admin.broker_runtime(address)


async def test_failed_name_servers_are_named(site: Site) -> None:
    gone = f"127.0.0.1:{lease_port()}"
    space = site.new_group("AdminPartly")
    async with Admin(f"{gone};{site.namesrv}", timeout_ms=15_000) as admin:
        with pytest.raises(PartialFailureError, match=f"1 of 2 failed: {gone}") as failure:
            await admin.set_kv(space, "key", "value")
        assert isinstance(failure.value.failures[gone], ConnectFailedError)
        assert list(failure.value.results) == [site.namesrv]
        # Requests that need one answer succeed.
        assert await admin.kv(space, "key") == "value"


async def test_admins_of_one_process_share_no_session(site: Site) -> None:
    gone = f"127.0.0.1:{lease_port()}"
    async with Admin(site.namesrv) as here, Admin(gone, timeout_ms=500) as there:
        assert here.client_id != there.client_id
        listed = asyncio.create_task(here.topics())
        with pytest.raises(ClientError):
            await there.topics()
        assert await listed


async def test_a_queue_of_a_broker_that_does_not_exist(site: Site, admin: Admin) -> None:
    topic = site.create_topic("AdminStray")
    with pytest.raises(BrokerNotFoundError, match="stray"):
        await admin.max_offset(MessageQueue(topic, "stray", 0))


@pytest.mark.parametrize("timeout_ms", [0, -1, 2**40])
def test_the_timeout_is_checked(timeout_ms: int) -> None:
    with pytest.raises(ConfigError, match="timeout_ms"):
        Admin("127.0.0.1:9876", timeout_ms=timeout_ms)
