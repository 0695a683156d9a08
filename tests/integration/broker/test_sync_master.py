"""SYNC_MASTER: a send is acknowledged when enough slaves have the message."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from goddard.broker.broker import Broker
from goddard.core import IS_COMPILED
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import SendRequestV2
from tests.support.broker_client import BrokerClient
from tests.support.broker_group import BrokerGroup, broker_group
from tests.support.polling import until

LANES = [
    pytest.param(False, id="general"),
    pytest.param(
        True, id="lane", marks=pytest.mark.skipif(not IS_COMPILED, reason="there is no lane")
    ),
]


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    async with asyncio.timeout(60), broker_group(tmp_path) as group:
        yield group


async def send(
    client: BrokerClient, body: bytes = b"x", *, lane: bool = False, **properties: str
) -> RemotingCommand:
    """A plain send is for the lane; one with a property that means something is not."""
    if not lane:
        properties.setdefault("DELAY", "0")
    header = client.send_header("T", properties)
    return await client.ask(
        RequestCode.SEND_MESSAGE_V2, SendRequestV2.from_v1(header).encode(), body
    )


class Blocked:
    """A slave that receives and does not append until ``release``."""

    def __init__(self, slave: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = slave.store
        self._monkeypatch = monkeypatch
        self._when_ready = slave.store.when_ready
        self.resumes: list[Callable[[], None]] = []
        monkeypatch.setattr(slave.store, "when_ready", self._not_ready)

    def _not_ready(self, resume: Callable[[], None]) -> bool:
        self.resumes.append(resume)
        return False

    def release(self) -> None:
        self._monkeypatch.setattr(self._store, "when_ready", self._when_ready)
        self.resumes.pop()()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("lane", LANES)
async def test_the_answer_waits_for_the_slave(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch, lane: bool, flush: str
) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER", flushDiskType=flush)
    slave = await group.start(1, flushDiskType=flush)
    client = group.client(master)
    await until(lambda: len(master.roles.slaves) == 1)
    assert (await send(client)).code == ResponseCode.SUCCESS
    await group.level(slave)
    blocked = Blocked(slave, monkeypatch)
    sending = asyncio.create_task(send(client, lane=lane))
    await until(lambda: bool(blocked.resumes))
    assert slave.store.log_max_offset < master.store.log_max_offset
    done, _ = await asyncio.wait([sending], timeout=0.1)
    assert not done
    blocked.release()
    assert (await sending).code == ResponseCode.SUCCESS
    assert slave.store.log_max_offset == master.store.log_max_offset


@pytest.mark.parametrize("lane", LANES)
async def test_a_late_slave_is_a_slave_timeout(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch, lane: bool
) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER", slaveTimeout="50")
    slave = await group.start(1)
    client = group.client(master)
    await until(lambda: len(master.roles.slaves) == 1)
    await send(client)
    await group.level(slave)
    blocked = Blocked(slave, monkeypatch)
    answer = await send(client, lane=lane)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.fields["queueOffset"] == "1"
    blocked.release()
    await group.level(slave)
    assert (await send(client, lane=lane)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("lane", LANES)
async def test_without_a_slave_the_answer_is_that_of_4_9(group: BrokerGroup, lane: bool) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER")
    client = group.client(master)
    await send(client)
    answer = await send(client, lane=lane)
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert answer.fields["queueOffset"] == "1"


async def test_a_message_that_does_not_wait_is_answered_at_once(group: BrokerGroup) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER", minInSyncReplicas="2")
    answer = await send(group.client(master), lane=True, WAIT="false")
    assert answer.code == ResponseCode.SUCCESS


async def test_two_replicas_wait_for_a_slave_that_is_not_there_as_in_5(
    group: BrokerGroup,
) -> None:
    master = await group.start(0, brokerRole="SYNC_MASTER", inSyncReplicas="2", slaveTimeout="50")
    assert (await send(group.client(master))).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_without_enough_replicas_nothing_is_stored(group: BrokerGroup) -> None:
    master = await group.start(
        0, brokerRole="SYNC_MASTER", inSyncReplicas="2", minInSyncReplicas="2"
    )
    client = group.client(master)
    answer = await send(client)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "in-sync replicas not enough"
    assert master.store.log_max_offset == 0
    await group.start(1)
    await until(lambda: len(master.roles.slaves) == 1)
    assert (await send(client)).code == ResponseCode.SUCCESS


async def test_the_number_of_replicas_adapts_to_those_that_are_in_sync(
    group: BrokerGroup,
) -> None:
    master = await group.start(
        0, brokerRole="SYNC_MASTER", inSyncReplicas="3", enableAutoInSyncReplicas="true"
    )
    client = group.client(master)
    assert (await send(client)).code == ResponseCode.SUCCESS
    slave = await group.start(1)
    await group.level(slave)
    assert (await send(client)).code == ResponseCode.SUCCESS
    await group.level(slave)


async def test_a_connection_that_reports_what_it_was_not_sent_acknowledges_nothing(
    group: BrokerGroup,
) -> None:
    """#1155, #3349, #3015: a bogus report made messages count as replicated."""
    master = await group.start(0, brokerRole="SYNC_MASTER", slaveTimeout="50")
    client = group.client(master)
    await send(client)
    port = master.settings.current.ha_port
    for report in (1 << 40, 1 << 62, master.store.log_max_offset + 1, -1):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(report.to_bytes(8, "big", signed=True))
        assert await reader.read() == b""
        writer.close()
    assert master.roles.slaves == []
    assert (await send(client)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    # A port probe that stays is no slave either (#8875).
    _, probe = await asyncio.open_connection("127.0.0.1", port)
    assert (await send(client)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    probe.close()


async def test_large_messages_do_not_time_out_by_the_number_of_frames(
    group: BrokerGroup,
) -> None:
    """#1535: each wake-up counted as a second, so messages above 160 KB timed out."""
    sizes = {"mappedFileSizeCommitLog": str(8 << 20)}
    master = await group.start(0, brokerRole="SYNC_MASTER", **sizes)
    await group.start(1, **sizes)
    await until(lambda: len(master.roles.slaves) == 1)
    answer = await send(group.client(master), bytes(2 << 20))
    assert answer.code == ResponseCode.SUCCESS


async def test_sends_go_on_while_the_slave_only_reads(group: BrokerGroup) -> None:
    """#3484: with a slave that wrote nothing, the rate of sends fell to nothing."""
    master = await group.start(0, brokerRole="SYNC_MASTER")
    slave = await group.start(1, slaveReadEnable="true")
    client = group.client(master)
    await until(lambda: len(master.roles.slaves) == 1)
    await send(client)
    await until(lambda: "T" in slave.topics)
    for number in range(20):
        assert (await send(client, lane=True)).code == ResponseCode.SUCCESS
        assert len(await group.client(slave).pull("T", number + 1)) == 1
