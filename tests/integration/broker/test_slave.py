"""A broker that is a slave: it copies its master, serves reads and refuses writes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from goddard.broker.broker import Broker
from goddard.protocol.bodies import KvTable, decode_body
from goddard.protocol.bodies_admin import HaStatus
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.wire import query_brokers
from tests.support.broker_group import BrokerGroup, broker_group
from tests.support.polling import until


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with asyncio.timeout(60), broker_group(tmp_path) as group:
        yield group


async def test_a_slave_finds_its_master_and_serves_its_messages(group: BrokerGroup) -> None:
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    assert slave.store.max_offset("T", 0) == 1
    name_server = f"127.0.0.1:{group.name_server.port}"
    members = await asyncio.to_thread(query_brokers, name_server)
    assert members == {"broker-a": {0: master.address, 1: slave.address}}


async def test_a_slave_starts_before_its_master_and_follows_its_successors(
    group: BrokerGroup,
) -> None:
    slave = await group.start(1)
    master = await group.start(0)
    for _ in range(3):
        await group.client(master).send("T", bytes(30_000))
    await group.level(slave)
    await group.stop(0)
    master = await group.start(0)  # on another port
    await group.client(master).send("T", b"after")
    await group.level(slave)
    await group.stop(1)
    await group.client(master).send("T", b"away")
    slave = await group.start(1)
    await group.level(slave)
    assert slave.store.max_offset("T", 0) == 5


async def test_a_slave_finds_a_master_whose_ha_address_is_configured(group: BrokerGroup) -> None:
    master = await group.start(0)
    slave = await group.start(
        1, haMasterAddress=f"127.0.0.1:{master.settings.current.ha_port}", namesrvAddr=""
    )
    await group.client(master).send("T", b"one")
    await group.level(slave)


async def test_a_slave_refuses_every_kind_of_message(group: BrokerGroup) -> None:
    slave = await group.start(1)
    client = group.client(slave)
    for code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
    ):
        answer: RemotingCommand = await client.ask(code, {})
        assert answer.code == ResponseCode.SYSTEM_BUSY, code
    assert slave.store.log_max_offset == 0


async def test_a_heartbeat_creates_nothing_on_a_slave(group: BrokerGroup) -> None:
    slave = await group.start(1)
    before = set(slave.topics.configs), set(slave.groups.configs), slave.topics.data_version
    await group.client(slave).consumer_heartbeat("G", "T")
    assert (set(slave.topics.configs), set(slave.groups.configs)) == before[:2]
    assert slave.topics.data_version == before[2]


async def test_a_master_with_another_segment_size_is_refused(group: BrokerGroup) -> None:
    master = await group.start(0)
    await group.client(master).send("T", b"one")
    slave = await group.start(1, mappedFileSizeCommitLog=str(1 << 20))

    def reason() -> str:
        status = slave.roles.follow_status
        return "" if status is None else status.reason

    await until(lambda: "mappedFileSizeCommitLog" in reason(), reason)
    assert slave.store.log_max_offset == 0


async def test_a_master_that_lost_its_store_is_not_followed(group: BrokerGroup) -> None:
    """Logs are compared first, so no message that was acknowledged is overwritten."""
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    await until(lambda: "T" in slave.topics)
    end_offset = slave.store.log_max_offset
    await group.stop(0)
    master = await group.start(0, storePathRootDir=str(slave.store.config.root.parent / "new"))
    for _ in range(4):
        await group.client(master).send("Other", bytes(1000))

    def reason() -> str:
        status = slave.roles.follow_status
        return "" if status is None else status.reason

    await until(lambda: "is equal to the master's" in reason(), reason)
    assert slave.store.log_max_offset == end_offset
    assert "T" in slave.topics


async def test_master_and_slave_show_how_far_they_are(group: BrokerGroup) -> None:
    async def status(broker: Broker) -> HaStatus:
        answer = await group.client(broker).ask(RequestCode.GET_BROKER_HA_STATUS, {})
        return decode_body(answer.body, HaStatus)

    master = await group.start(0)
    assert (await status(master)).master
    assert (await status(master)).in_sync_slave_nums == 0
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    end_offset = master.store.log_max_offset
    await until(lambda: master.roles.acknowledged_offsets == [end_offset])
    of_master = await status(master)
    assert of_master.master_commit_log_max_offset == end_offset
    assert of_master.in_sync_slave_nums == 1
    (connection,) = of_master.ha_connection_info
    assert (connection.in_sync, connection.diff) == (True, 0)
    assert connection.slave_ack_offset == connection.transfer_from_where == end_offset

    answer = await group.client(slave).ask(
        RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 7}
    )
    assert answer.code == ResponseCode.SUCCESS
    of_slave = await status(slave)
    assert not of_slave.master
    client = of_slave.ha_client_runtime_info
    assert client.activated
    assert client.master_addr == f"127.0.0.1:{master.settings.current.ha_port}"
    assert (client.max_offset, client.master_flush_offset) == (end_offset, 7)
    assert 0 < client.last_read_timestamp <= client.last_write_timestamp
    info = await group.client(slave).ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
    table = decode_body(info.body, KvTable).table
    assert table["commitLogMaxOffset"] == str(end_offset)


# What a slave copies besides the log


async def restarted(group: BrokerGroup, broker_id: int) -> Broker:
    await group.stop(broker_id)
    return await group.start(broker_id)


async def test_a_slave_copies_topics_groups_and_offsets(group: BrokerGroup) -> None:
    master = await group.start(0)
    slave = await group.start(1)
    client = group.client(master)
    await client.send("T", b"one")
    await client.consumer_heartbeat("G", "T")
    await client.commit("G", "T", 0, 1)
    master.groups.forbid("G", "T", 4)
    slave.roles.sync_now()
    await until(lambda: slave.offset_table.query("G", "T", 0) == 1)
    assert slave.topics.configs == master.topics.configs
    assert slave.topics.data_version == master.topics.data_version
    assert slave.groups.configs == master.groups.configs
    assert slave.group_table.forbidden("G", "T") == 4
    slave = await restarted(group, 1)
    assert slave.topics.configs == master.topics.configs

    master.topics.delete("T")
    master.groups.delete("G")
    master.offsets.remove(topic="T")
    slave.roles.sync_now()
    await until(lambda: slave.offset_table.query("G", "T", 0) == -1)
    assert "T" not in slave.topics
    assert "G" not in slave.groups
    assert slave.group_table.forbidden("G", "T") == 0
    slave = await restarted(group, 1)
    assert "T" not in slave.topics
    assert "G" not in slave.groups


async def test_configuration_is_never_gone_in_between(group: BrokerGroup) -> None:
    """#9777, #9984: a slave deleted every topic and group before it filled them in again."""
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    await until(lambda: "T" in slave.topics)
    told: list[list[str]] = []
    slave.topics.add_listener(told.append)
    await group.client(master).send("Other", b"one")
    await until(lambda: "Other" in slave.topics)
    assert told == [["Other"]]
    version = slave.topics.data_version
    assert slave.topics.data_version == version == master.topics.data_version


async def test_offsets_wait_for_the_log_they_belong_to(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slave that becomes the master would skip what it does not have."""
    master = await group.start(0)
    slave = await group.start(1)
    client = group.client(master)
    await client.send("T", b"one")
    await client.consumer_heartbeat("G", "T")
    await client.commit("G", "T", 0, 1)
    await group.level(slave)
    slave.roles.sync_now()
    await until(lambda: slave.offset_table.query("G", "T", 0) == 1)

    when_ready = slave.store.when_ready
    resumes: list[Callable[[], None]] = []

    def not_ready(resume: Callable[[], None]) -> bool:
        resumes.append(resume)
        return False

    monkeypatch.setattr(slave.store, "when_ready", not_ready)
    await client.send("T", b"two")
    await client.commit("G", "T", 0, 2)
    master.delay_table.commit(1, 7)
    await client.consumer_heartbeat("H", "T")
    slave.roles.sync_now()
    await until(lambda: "H" in slave.groups and bool(resumes))
    for _ in range(20):
        await asyncio.sleep(0)
    assert slave.offset_table.query("G", "T", 0) == 1
    assert slave.delay_table.offsets == {}
    monkeypatch.setattr(slave.store, "when_ready", when_ready)
    resumes[0]()
    await until(lambda: slave.offset_table.query("G", "T", 0) == 2)
    assert slave.delay_table.offsets == {1: 7}


async def test_consumers_go_on_at_the_slave_and_their_offsets_return(group: BrokerGroup) -> None:
    """#1094: a master that comes back overwrote newer offsets of its slave."""
    master = await group.start(0)
    slave = await group.start(1)
    for number in range(3):
        await group.client(master).send("T", b"%d" % number)
    await group.client(master).consumer_heartbeat("G", "T")
    await group.client(master).commit("G", "T", 0, 1)
    await group.level(slave)
    slave.roles.sync_now()
    await until(lambda: slave.offset_table.query("G", "T", 0) == 1)
    await group.stop(0)

    client = group.client(slave)
    await client.consumer_heartbeat("G", "T")
    records = await client.pull("T", 1)
    assert [record.body for record in records] == [b"1", b"2"]
    await client.commit("G", "T", 0, 3)
    master = await group.start(0)
    assert master.offset_table.query("G", "T", 0) == 1
    await until(lambda: master.offset_table.query("G", "T", 0) == 3)
    await until(lambda: not slave.offsets.unsent)
    assert slave.offset_table.query("G", "T", 0) == 3

    # From now on the master is right again, also when an administrator resets the group.
    await group.client(master).commit("G", "T", 0, 2)
    slave.roles.sync_now()
    await until(lambda: slave.offset_table.query("G", "T", 0) == 2)
