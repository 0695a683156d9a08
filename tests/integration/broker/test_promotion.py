"""A slave becomes the master, and a master a slave, without losing what was acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from goddard.broker.broker import Broker
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import ChangeRoleRequest
from goddard.protocol.message import TransactionType
from goddard.testing.wire import query_brokers
from tests.support.broker_group import BrokerGroup, broker_group
from tests.support.polling import until


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with asyncio.timeout(60), broker_group(tmp_path) as group:
        yield group


async def promote(group: BrokerGroup, broker: Broker, *, force: bool = False) -> RemotingCommand:
    header = ChangeRoleRequest(master_address=broker.address, force=force)
    return await group.client(broker).ask(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.encode())


async def demote(
    group: BrokerGroup, broker: Broker, broker_id: int, *, force: bool = False
) -> RemotingCommand:
    header = ChangeRoleRequest(broker_id=broker_id, force=force)
    return await group.client(broker).ask(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.encode())


def checked(answer: RemotingCommand) -> None:
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def members(group: BrokerGroup) -> dict[int, str]:
    address = f"127.0.0.1:{group.name_server.port}"
    return (await asyncio.to_thread(query_brokers, address)).get("broker-a", {})


async def test_master_and_slave_change_places(group: BrokerGroup) -> None:
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    checked(await demote(group, master, 2))
    refused = await group.client(master).ask_to_send("T", b"refused")
    assert refused.code == ResponseCode.SYSTEM_BUSY
    checked(await promote(group, slave))
    assert await members(group) == {0: slave.address, 2: master.address}

    group.brokers = {0: slave, 2: master}
    await group.client(slave).send("T", b"two")
    await group.level(master)
    assert [record.body for record in await group.client(master).pull("T")] == [b"one", b"two"]
    # And back.
    checked(await demote(group, slave, 1))
    checked(await promote(group, master))
    group.brokers = {0: master, 1: slave}
    await group.client(master).send("T", b"three")
    await group.level(slave)


async def test_the_role_outlives_a_restart(group: BrokerGroup, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    master = await group.start(0)
    slave = await group.start(1, brokerConfigPath=str(file))
    await group.level(slave)
    checked(await demote(group, master, 2))
    checked(await promote(group, slave))
    text = file.read_text()
    assert "brokerRole=ASYNC_MASTER" in text
    assert "brokerId=0" in text


async def test_a_slave_of_a_living_master_is_not_promoted(group: BrokerGroup) -> None:
    master = await group.start(0)
    slave = await group.start(1)
    await group.level(slave)
    for force in (False, True):
        answer = await promote(group, slave, force=force)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        remark = f"{master.address} is the master of this group and answers: demote it first"
        assert answer.remark == remark
    assert slave.roles.follow_status is not None


async def test_a_slave_of_an_asynchronous_master_that_is_gone_is_promoted_by_force(
    group: BrokerGroup,
) -> None:
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    await group.stop(0)
    answer = await promote(group, slave)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "messages could be lost: the last master" in (answer.remark or "")
    checked(await promote(group, slave, force=True))
    await group.client(slave).send("T", b"two")


async def test_a_slave_that_has_every_acknowledged_message_is_promoted(group: BrokerGroup) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER")
    slave = await group.start(1)
    await until(lambda: len(master.roles.slaves) == 1)
    await group.client(master).send("T", b"one")
    await group.stop(0)
    checked(await promote(group, slave))
    assert slave.settings.current.broker_role == "SYNC_MASTER"
    assert [record.body for record in await group.client(slave).pull("T")] == [b"one"]


async def test_a_topic_that_the_slave_did_not_hear_of_is_there_after_the_promotion(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER")
    slave = await group.start(1)
    await until(lambda: len(master.roles.slaves) == 1)
    await group.client(master).send("Known", b"one")
    await until(lambda: "Known" in slave.topics)
    monkeypatch.setattr(type(slave.topics), "copy", lambda *_: None)
    await group.client(master).send("T", b"one")
    assert "T" not in slave.topics
    await group.stop(0)
    checked(await promote(group, slave))
    assert [record.body for record in await group.client(slave).pull("T")] == [b"one"]


async def test_the_slave_with_the_longest_log_is_promoted(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER")
    first = await group.start(1)
    second = await group.start(2)
    await until(lambda: len(master.roles.slaves) == 2)
    await group.client(master).send("T", b"one")
    await group.level(first)
    await group.level(second)
    monkeypatch.setattr(second.store, "when_ready", lambda _: False)
    await group.client(master).send("T", b"two")
    for slave in (first, second):
        slave.roles.sync_now()
    await asyncio.sleep(0)
    await group.stop(0)
    monkeypatch.undo()
    answer = await promote(group, second)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"promote {first.address}" in (answer.remark or "")
    checked(await promote(group, first))


async def test_a_master_without_a_level_slave_is_demoted_by_force(group: BrokerGroup) -> None:
    master = await group.start(0)
    await group.client(master).send("T", b"one")
    answer = await demote(group, master, 1)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no slave has the log up to its end" in (answer.remark or "")
    await group.client(master).send("T", b"it is still the master")
    checked(await demote(group, master, 1, force=True))
    assert (await group.client(master).ask_to_send("T", b"x")).code == ResponseCode.SYSTEM_BUSY


async def test_delayed_messages_and_transactions_go_on_at_the_new_master(
    group: BrokerGroup,
) -> None:
    master = await group.start(0, messageDelayLevel="1s 2s", transactionCheckInterval="100")
    slave = await group.start(
        1, messageDelayLevel="1s 2s", transactionCheckInterval="100", transactionTimeOut="100"
    )
    client = group.client(master)
    half = await client.send_half("T", b"half")
    await client.send("D", b"delayed", {"DELAY": "2"})
    await group.level(slave)
    checked(await demote(group, master, 2))
    checked(await promote(group, slave))
    client = group.client(slave)
    (record,) = await client.receive("D", 1)
    assert record.body == b"delayed"
    checked(await client.end(half, TransactionType.COMMIT))
    (record,) = await client.receive("T", 1)
    assert record.body == b"half"
