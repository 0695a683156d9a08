"""Bugs that RocketMQ had in replication, by their numbers there; here none of them happens.

More of them are in the suites of their subject: #1155, #3349, #3015, #8875, #1535 and #3484 in
``test_sync_master``, #1094, #9777 and #9984 in ``test_slave``, #7577, #7601, #7923 and #7927 of the
acting master in ``test_acting_master``.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import RegisterBrokerRequest, UnregisterBrokerRequest
from goddard.testing.wire import ask, query_brokers
from tests.support.broker_group import SEGMENT_BYTES, BrokerGroup, broker_group
from tests.support.polling import until


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with asyncio.timeout(60), broker_group(tmp_path) as group:
        yield group


async def test_3388_a_slave_below_the_minimum_of_its_master_says_so(group: BrokerGroup) -> None:
    """It got heartbeats for ever."""
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    await group.stop(1)
    for _ in range(5):
        await group.client(master).send("T", bytes(40_000))
    log = master.store.log.directory
    await group.stop(0)
    (log / f"{0:020d}").unlink()  # expired
    master = await group.start(0)
    assert master.store.log_min_offset == SEGMENT_BYTES
    slave = await group.start(1)

    def reason() -> str:
        status = slave.roles.follow_status
        return "" if status is None else status.reason

    await until(lambda: "delete its store" in reason(), reason)
    assert f"deleted everything before {SEGMENT_BYTES}" in reason()


async def test_467_a_slave_that_recovers_skips_no_record(group: BrokerGroup) -> None:
    """A crash in the middle of a record; the next start continued after that record."""
    master = await group.start(0)
    slave = await group.start(1)
    for number in range(3):
        await group.client(master).send("T", b"%d" % number)
    await group.level(slave)
    end_offset = slave.store.log_max_offset
    log = slave.store.log.directory
    await group.stop(1)
    await group.client(master).send("T", b"torn")
    whole = bytes(master.store.read_log(end_offset, 1000) or b"")
    with (log / f"{0:020d}").open("r+b") as file:
        file.seek(end_offset)
        file.write(whole[: len(whole) // 2])
    (log.parent / "abort").touch()
    slave = await group.start(1)
    await group.client(master).send("T", b"after")
    await group.level(slave)
    assert slave.store.max_offset("T", 0) == 5
    await until(lambda: "T" in slave.topics)
    bodies = [record.body for record in await group.client(slave).pull("T")]
    assert bodies == [b"0", b"1", b"2", b"torn", b"after"]


async def test_1464_a_slave_never_registers_as_a_master(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It registered with the id 0 before it knew its role."""
    ids: list[int] = []

    class Recorded(RegisterBrokerRequest):
        def encode(self) -> dict[str, str]:
            ids.append(self.broker_id)
            return super().encode()

    monkeypatch.setattr("goddard.broker.registration.RegisterBrokerRequest", Recorded)
    slave = await group.start(1)
    slave.registration.register_all()
    await slave.registration.settled()
    assert set(ids) == {1}


async def test_5374_11043_a_late_unregistration_does_not_erase_the_new_master(
    group: BrokerGroup,
) -> None:
    old = await group.start(0)
    late = UnregisterBrokerRequest(
        broker_name="broker-a",
        broker_addr=old.address,
        cluster_name="DefaultCluster",
        broker_id=0,
    )
    await group.stop(0)
    master = await group.start(0)
    assert master.address != old.address
    address = f"127.0.0.1:{group.name_server.port}"
    request = RemotingCommand(RequestCode.UNREGISTER_BROKER, late.encode())
    await asyncio.to_thread(ask, address, request)
    members = await asyncio.to_thread(query_brokers, address)
    assert members == {"broker-a": {0: master.address}}


async def test_two_masters_of_one_name_do_not_mix_in_a_slave(group: BrokerGroup) -> None:
    """The name servers show the one that registered last; a slave follows whose log it has."""
    master = await group.start(0)
    slave = await group.start(1)
    await group.client(master).send("T", b"one")
    await group.level(slave)
    end_offset = slave.store.log_max_offset
    config = group.config(0, storePathRootDir=str(slave.store.config.root.parent / "second"))
    second = type(master)(config)
    await second.start()
    try:
        await group.client(second).send("Other", bytes(2_000))
        assert slave.roles.follow_status is not None
        # The connection to the first stays; a new one finds the second and refuses it.
        await group.stop(0)

        def reason() -> str:
            status = slave.roles.follow_status
            return "" if status is None else status.reason

        await until(lambda: "is equal to the master's" in reason(), reason)
        assert slave.store.log_max_offset == end_offset
    finally:
        await second.stop()
