"""A slave acts for a master that is away, and the master takes over what was reached meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.broker import Broker
from goddard.broker.sending.escape import Escape
from goddard.broker.sending.message_rules import NewMessage
from goddard.protocol.bodies import KvTable, MessageQueue, decode_body, encode_body
from goddard.protocol.bodies_client import LockQueuesBody
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.message import decode_properties
from goddard.protocol.record import Record
from goddard.testing.wire import query_brokers
from tests.support.broker_group import BrokerGroup, broker_group
from tests.support.polling import until

ACTING = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": "2",
    "syncBrokerMemberGroupPeriod": "50",
    "messageDelayLevel": "1s 2s",
    "transactionCheckInterval": "200",
    "transactionTimeOut": "200",
}


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with asyncio.timeout(60), broker_group(tmp_path) as group:
        yield group


async def members(group: BrokerGroup, name: str = "broker-a") -> dict[int, str]:
    address = f"127.0.0.1:{group.name_server.port}"
    return (await asyncio.to_thread(query_brokers, address)).get(name, {})


async def active(group: BrokerGroup) -> list[bool]:
    """What the brokers tell of themselves, by id; clusterList shows it."""
    answers = [
        await group.client(broker).ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        for _, broker in sorted(group.brokers.items())
    ]
    tables = [decode_body(answer.body, KvTable).table for answer in answers]
    return [table["brokerActive"] == "true" for table in tables]


async def start_pair(group: BrokerGroup) -> tuple[Broker, Broker]:
    master = await group.start(0, **ACTING)
    slave = await group.start(1, **ACTING)
    await group.level(slave)
    return master, slave


async def start_other(group: BrokerGroup, tmp_path: Path) -> Broker:
    """A broker of another name, where messages can go."""
    root = str(tmp_path / "other")
    config = group.config(
        0,
        brokerName="broker-b",
        storePathRootDir=root,
        **{name: ACTING[name] for name in ("messageDelayLevel", "transactionTimeOut")},
    )
    other = Broker(config)
    await other.start()
    group.brokers[10] = other
    return other


async def lose_master(group: BrokerGroup, slave: Broker) -> None:
    await group.stop(0)
    await until(lambda: slave.roles.is_acting)


async def test_a_slave_acts_for_its_master_and_stops_when_that_returns(group: BrokerGroup) -> None:
    _, slave = await start_pair(group)
    second = await group.start(2, **ACTING)
    assert await active(group) == [True, False, False]
    await lose_master(group, slave)
    assert await active(group) == [True, False]
    master = await group.start(0, **ACTING)
    assert await members(group) == {0: master.address, 1: slave.address, 2: second.address}
    await until(lambda: not slave.roles.is_acting)
    await group.client(master).send("T", b"after")
    await group.level(slave)


async def test_due_messages_go_to_another_broker_and_are_not_delivered_again(
    group: BrokerGroup, tmp_path: Path
) -> None:
    """The master takes over the delay offsets, so nothing is delivered twice."""
    other = await start_other(group, tmp_path)
    master, slave = await start_pair(group)
    await group.client(other).send("D", b"of the other broker")
    for number in range(40):  # more than a batch
        await group.client(master).send(
            "D", b"%d" % number, {"DELAY": "1", "color": "red"}, reconsume_times=2
        )
    await group.level(slave)
    end_offset = slave.store.log_max_offset
    master.delay_table.next_version()  # the slave does not hear of it
    await lose_master(group, slave)

    received: list[Record] = []
    while len(received) < 41:
        received = [
            record
            for queue_id in range(8)
            for record in await group.client(other).pull("D", queue_id=queue_id)
        ]
        await asyncio.sleep(0.02)
    late = [record for record in received if record.body != b"of the other broker"]
    assert sorted(int(record.body) for record in late) == list(range(40))
    properties = decode_properties(late[0].properties)
    assert properties["color"] == "red"
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & set(properties)
    assert late[0].reconsume_times == 2
    assert slave.store.log_max_offset == end_offset  # its log is its master's

    master = await group.start(0, **ACTING)
    assert master.delay_table.offsets == {1: 40}
    await group.client(master).send("D", b"last", {"DELAY": "1"})
    (record,) = await group.client(master).receive("D", 1)
    assert record.body == b"last"


async def test_halves_go_to_another_broker_which_asks_their_producer(
    group: BrokerGroup, tmp_path: Path
) -> None:
    other = await start_other(group, tmp_path)
    master, slave = await start_pair(group)
    await group.client(other).send("T", b"of the other broker")
    client = group.client(master)
    decided = await client.send_half("T", b"decided")
    await client.end(decided, 8)
    await client.receive("T", 1)
    await client.send_half("T", b"open", __transactionId__="old")
    await until(lambda: master.store.max_offset("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0) == 1)
    await group.level(slave)
    master.offset_table.next_version()  # the slave does not hear of it
    await lose_master(group, slave)

    def halves() -> int:
        return other.store.max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0)

    await until(lambda: halves() > 0)
    (half, *_) = await group.client(other).pull("RMQ_SYS_TRANS_HALF_TOPIC")
    assert half.body == b"open"
    properties = decode_properties(half.properties)
    assert (properties["REAL_TOPIC"], properties["PGROUP"]) == ("T", "P")
    query = slave.offset_table.query
    await until(lambda: query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 2)

    master = await group.start(0, **ACTING)
    query = master.offset_table.query
    assert query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 2


async def test_progress_of_consumers_at_the_slave_is_taken_over_before_the_master_is_online(
    group: BrokerGroup,
) -> None:
    """#1094: what the master had when it went away is not newer."""
    master, slave = await start_pair(group)
    client = group.client(master)
    for _ in range(3):
        await client.send("T", b"one")
    await client.consumer_heartbeat("G", "T")
    await client.commit("G", "T", 0, 1)
    slave.roles.sync_now()
    await until(lambda: slave.offset_table.query("G", "T", 0) == 1)
    master.offset_table.next_version()  # the slave does not hear of it
    await lose_master(group, slave)
    await group.client(slave).commit("G", "T", 0, 3)
    master = await group.start(0, **ACTING)
    assert master.offset_table.query("G", "T", 0) == 3
    slave.roles.sync_now()
    await until(lambda: not slave.offsets.unsent)
    assert slave.offset_table.query("G", "T", 0) == 3


async def test_queues_are_locked_at_an_acting_slave_only(group: BrokerGroup) -> None:
    _, slave = await start_pair(group)
    body = encode_body(
        LockQueuesBody(
            consumer_group="G",
            client_id="client-1",
            mq_set=[MessageQueue(broker_name="broker-a", queue_id=0, topic="T")],
        )
    )

    async def lock() -> int:
        answer = await group.client(slave).ask(RequestCode.LOCK_BATCH_MQ, {}, body)
        return answer.code

    assert await lock() == ResponseCode.SYSTEM_ERROR
    await lose_master(group, slave)
    assert await lock() == ResponseCode.SUCCESS
    refused = await group.client(slave).ask_to_send("T", b"x")
    assert refused.code == ResponseCode.SYSTEM_BUSY


async def test_a_master_that_lost_its_store_does_not_go_online(
    group: BrokerGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would acknowledge messages in place of those that its slave has."""
    master, slave = await start_pair(group)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    end_offset = slave.store.log_max_offset
    await lose_master(group, slave)
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr("goddard.broker.roles.going_online._CONNECT_SECONDS", 1.0)
        patched.setattr("goddard.broker.roles.roles._ONLINE_SECONDS", 0.01)
        master = await group.start(0, **ACTING, storePathRootDir=str(tmp_path / "new"))
        await until(lambda: "does not follow it" in caplog.text)
    assert 0 not in await members(group)
    refused = await group.client(master).ask_to_send("T", b"lost")
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "[REJECTREQUEST]this broker is not online yet",
    )
    assert master.store.log_max_offset == 0
    assert slave.store.log_max_offset == end_offset


async def test_a_second_master_does_not_go_online(
    group: BrokerGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = await group.start(0, **ACTING)
    config = group.config(0, **ACTING, storePathRootDir=str(tmp_path / "second"))
    second = Broker(config)
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr("goddard.broker.roles.roles._ONLINE_SECONDS", 0.2)
        await second.start()
    try:
        reason = f"{master.address} is registered as the master of this group"
        await until(lambda: reason in caplog.text)
        assert await members(group) == {0: master.address}
    finally:
        await second.stop()


async def test_a_slave_that_was_promoted_does_not_act(group: BrokerGroup) -> None:
    _, slave = await start_pair(group)
    await lose_master(group, slave)
    await slave.roles.promote(force=True)
    assert not slave.roles.is_acting
    assert await members(group) == {0: slave.address}
    client = group.client(slave)
    await client.send("D", b"late", {"DELAY": "1"})
    (record,) = await client.receive("D", 1)
    assert record.body == b"late"


async def test_a_slave_that_hears_of_no_name_server_stops_acting(group: BrokerGroup) -> None:
    """Its lease ends: the master may be back, where this slave cannot see it."""
    await group.start(0, **ACTING)
    slave = await group.start(1, **ACTING, brokerNotActiveTimeoutMillis="500")
    await group.level(slave)
    await lose_master(group, slave)
    await group.name_server.stop()
    await until(lambda: not slave.roles.is_acting)


# Bugs that RocketMQ had, by their numbers there


async def test_7577_7601_7927_a_message_is_tried_until_another_broker_takes_it(
    group: BrokerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry wrote it to the slave's log, the fifth lost it, and the master delivered it again."""
    attempts: list[NewMessage] = []
    send = Escape.send

    async def counted(escape: Escape, message: NewMessage) -> None:
        attempts.append(message)
        await send(escape, message)

    monkeypatch.setattr(Escape, "send", counted)
    master, slave = await start_pair(group)
    await group.client(master).send("D", b"late", {"DELAY": "1"})
    await group.level(slave)
    end_offset = slave.store.log_max_offset
    await lose_master(group, slave)
    await until(lambda: len(attempts) > 5)
    assert slave.delay_table.offsets.get(1, 0) == 0  # no other broker has the topic
    other = await start_other(group, tmp_path)
    await group.client(other).send("D", b"of the other broker")
    await until(lambda: slave.delay_table.offsets.get(1) == 1)
    assert slave.store.log_max_offset == end_offset
    found = [
        record.body
        for queue_id in range(8)
        for record in await group.client(other).pull("D", queue_id=queue_id)
    ]
    assert sorted(found) == [b"late", b"of the other broker"]
    master = await group.start(0, **ACTING)
    assert master.delay_table.offsets == {1: 1}


async def test_7923_a_message_does_not_go_to_a_master_that_is_down(
    group: BrokerGroup, tmp_path: Path
) -> None:
    """The own group and a dead broker were chosen, and after some attempts the message was lost."""
    other = await start_other(group, tmp_path)
    third = Broker(group.config(0, brokerName="broker-c", storePathRootDir=str(tmp_path / "third")))
    await third.start()
    group.brokers[11] = third
    master, slave = await start_pair(group)
    for broker in (master, other, third):
        await group.client(broker).send("D", b"plain")
    for number in range(8):
        await group.client(master).send("D", b"%d" % number, {"DELAY": "1"})
    await group.level(slave)
    refusal = third.gate.refusal

    def down(request: RemotingCommand, *rest: Any) -> RemotingCommand | None:
        if request.code == RequestCode.SEND_MESSAGE_V2:
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "down")
        return refusal(request, *rest)

    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(third.gate, "refusal", down)
        patched.setattr(third.gate, "room", lambda _: 0)
        await lose_master(group, slave)
        await until(lambda: slave.delay_table.offsets.get(1) == 8)
    assert sum(other.store.max_offset("D", queue_id) for queue_id in range(8)) == 9
