"""Large registrations while the decoding thread is busy: which wait, which are rejected."""

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goddard.config import NameServerConfig
from goddard.nameserver.brokers import Brokers
from goddard.nameserver.kv import KvTable
from goddard.nameserver.routes import RouteTable
from goddard.nameserver.settings import Settings
from goddard.protocol.bodies import encode_register_body
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.cluster import RegisterBrokerRequest, UnregisterBrokerRequest
from goddard.transport.handlers import Handlers
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer, join_raw
from tests.support.name_server_client import registration

MIB = 1024 * 1024


class Harness:
    """Handlers of broker requests; the decoding thread is blocked until ``free`` is set."""

    def __init__(self, folder: Path) -> None:
        self.free = threading.Event()
        self.executor = ThreadPoolExecutor(1)
        self.executor.submit(self.free.wait, 20)
        self.routes = RouteTable()
        kv = KvTable(folder / "kv.json", self.executor)
        config = NameServerConfig(unregister_queue_capacity=2)
        settings = Settings(config, self.executor, lambda _: None)
        self.brokers = Brokers(
            self.routes, kv, settings, self.executor, ManualClock(), lambda _: None
        )
        self.handlers = Handlers()
        self.brokers.install(self.handlers)

    def connect(self) -> RawPeer:
        return join_raw(self.handlers)[0]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    created = Harness(tmp_path)
    async with asyncio.timeout(60):
        yield created
    created.free.set()
    created.executor.shutdown()


def register(name: str, *, padding_bytes: int = 0, compressed: bool = False) -> bytes:
    header = RegisterBrokerRequest(
        broker_name=name,
        broker_addr=f"{name}:10911",
        cluster_name="C",
        ha_server_addr=f"{name}:10912",
        broker_id=0,
        compressed=compressed,
    )
    body = encode_register_body(registration("T1", "T2"), compressed=compressed)
    return encode_frame(
        RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body + b" " * padding_bytes)
    )


async def test_small_registrations_do_not_wait_for_large_ones(harness: Harness) -> None:
    large, small = harness.connect(), harness.connect()
    large.transport.write(register("large", padding_bytes=MIB))
    small.transport.write(register("small"))
    (answer,) = await small.receive(1)
    assert answer.code == ResponseCode.SUCCESS
    assert set(harness.routes.brokers) == {"small"}
    harness.free.set()
    (answer,) = await large.receive(1)
    assert answer.code == ResponseCode.SUCCESS
    assert set(harness.routes.brokers) == {"large", "small"}


async def test_compressed_registrations_are_never_inflated_on_the_loop(harness: Harness) -> None:
    compressed, small = harness.connect(), harness.connect()
    compressed.transport.write(register("compressed", compressed=True))
    small.transport.write(register("small"))
    await small.receive(1)
    assert set(harness.routes.brokers) == {"small"}
    harness.free.set()
    (answer,) = await compressed.receive(1)
    assert answer.code == ResponseCode.SUCCESS
    assert set(harness.routes.brokers) == {"compressed", "small"}


async def test_registrations_over_the_waiting_limit_are_rejected(harness: Harness) -> None:
    peers = [harness.connect() for _ in range(10)]
    for number, peer in enumerate(peers):
        peer.transport.write(register(f"b{number}", padding_bytes=15 * MIB))
    # Eight of them fit into 128 MiB.
    refused = [(await peer.receive(1))[0] for peer in peers[8:]]
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
    harness.free.set()
    taken = [(await peer.receive(1))[0] for peer in peers[:8]]
    assert {answer.code for answer in taken} == {ResponseCode.SUCCESS}
    assert len(harness.routes.brokers) == 8


async def test_registrations_of_a_lost_peer_count_until_they_are_dropped(harness: Harness) -> None:
    gone = [harness.connect() for _ in range(8)]
    for number, peer in enumerate(gone):
        peer.transport.write(register(f"b{number}", padding_bytes=15 * MIB))
    # They are answered in order, so all of them have been registered by then.
    probe = harness.connect()
    probe.transport.write(register("probe"))
    await probe.receive(1)
    for peer in gone:
        peer.transport.abort()
        await peer.lost.wait()
    late = harness.connect()
    late.transport.write(register("late", padding_bytes=15 * MIB))
    (answer,) = await late.receive(1)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    harness.free.set()
    while answer.code == ResponseCode.SYSTEM_BUSY:
        late.transport.write(register("late", padding_bytes=15 * MIB))
        (answer,) = await late.receive(1)
    assert answer.code == ResponseCode.SUCCESS
    assert set(harness.routes.brokers) == {"probe", "late"}


async def test_registrations_of_a_lost_peer_are_dropped_without_a_log_line(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    peer = harness.connect()
    for _ in range(3):
        peer.transport.write(register("gone", padding_bytes=MIB))
    probe = harness.connect()
    probe.transport.write(register("probe"))
    await probe.receive(1)
    peer.transport.abort()
    await peer.lost.wait()
    harness.free.set()
    # It is decoded after theirs.
    probe.transport.write(register("probe", padding_bytes=MIB))
    await probe.receive(1)
    gc.collect()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_too_many_unregistrations_at_once_are_rejected(harness: Harness) -> None:
    peer = harness.connect()
    requests = b""
    for number in range(3):
        header = UnregisterBrokerRequest(
            broker_name=f"b{number}", broker_addr="a:1", cluster_name="C", broker_id=0
        )
        command = RemotingCommand(RequestCode.UNREGISTER_BROKER, header.encode(), opaque=number)
        requests += encode_frame(command)
    peer.transport.write(requests)
    codes = {answer.opaque: answer.code for answer in await peer.receive(3)}
    assert codes == {0: ResponseCode.SUCCESS, 1: ResponseCode.SUCCESS, 2: ResponseCode.SYSTEM_ERROR}
