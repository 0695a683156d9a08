"""Full or failing disks: producers get errors, consumers continue, and the broker recovers."""

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from goddard.broker import broker as broker_module
from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.environment import Environment
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.responses import ResponseError, check
from goddard.testing.cluster import Cluster
from goddard.transport.client import Client, ClientOptions
from tests.support.broker_client import BrokerClient
from tests.support.faulty_files import FaultyFiles

SEGMENT = 64 * 1024
TRIES = 1_000


async def refusal(dialogue: BrokerClient, body: bytes = b"x") -> ResponseError | None:
    try:
        await dialogue.send("T", body)
    except ResponseError as error:
        return error
    return None


async def refused(dialogue: BrokerClient) -> ResponseError:
    """The error of a send, once the broker has detected the problem."""
    for _ in range(TRIES):
        error = await refusal(dialogue)
        if error is not None:
            return error
        await asyncio.sleep(0.02)
    raise AssertionError("messages are taken all the same")


async def taken(dialogue: BrokerClient, body: bytes) -> None:
    """Send a message, once the broker accepts sends again."""
    for _ in range(TRIES):
        if await refusal(dialogue, body) is None:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no message is taken any more")


async def assert_reads(dialogue: BrokerClient, first: bytes) -> None:
    """Assert that consumers can read, commit and query."""
    (record, *_) = await dialogue.pull("T")
    assert record.body == first
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
    check(await dialogue.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
    answer = check(await dialogue.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.fields["offset"] == "1"
    check(await dialogue.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
    await dialogue.heartbeat("P")


async def test_sends_are_refused_above_the_disk_ratio_and_accepted_below(tmp_path: Path) -> None:
    """The ratio is set below the used space, as if the disk were full, and back."""
    with Cluster(tmp_path, brokers=1, properties={"cleanResourceInterval": "100"}) as cluster:
        (broker,) = cluster.brokers
        async with Client(ClientOptions()) as client:
            dialogue = BrokerClient(client, broker.address)
            await dialogue.send("T", b"first")

            async def set_mark(ratio: str) -> None:
                names = ("diskMaxUsedSpaceRatio", "diskSpaceWarningLevelRatio")
                body = "".join(f"{name}={ratio}\n" for name in names).encode()
                check(await dialogue.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body))

            await set_mark("0.0001")
            error = await refused(dialogue)
            assert error.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "the broker's disk is full [CL: " in error.remark
            for _ in range(100):
                assert await refusal(dialogue) is not None
            await assert_reads(dialogue, b"first")
            # Delayed messages are not lost either.
            with pytest.raises(ResponseError, match="disk is full"):
                await dialogue.send("T", b"later", {"DELAY": "1"})
            await set_mark("99")
            await taken(dialogue, b"last")
            assert (await dialogue.pull("T"))[-1].body == b"last"
        assert broker.stop() == 0


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FaultyFiles:
    """The files of the next broker."""
    made = FaultyFiles(tmp_path / "store")
    monkeypatch.setattr(broker_module, "Environment", partial(Environment, files=made))
    return made


def config_of(directory: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(directory / "store"),
            "mappedFileSizeCommitLog": str(SEGMENT),
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            "maxMessageSize": "16384",
            "cleanResourceInterval": "100",
            **properties,
        }
    )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_no_space_for_the_next_file(tmp_path: Path, files: FaultyFiles, flush: str) -> None:
    async with (
        Broker(config_of(tmp_path, flushDiskType=flush)) as broker,
        Client(ClientOptions()) as client,
    ):
        dialogue = BrokerClient(client, broker.address)
        await dialogue.send("T", b"first")
        files.fail("allocate", errno.ENOSPC, count=1_000_000, path_part="commitlog")
        files.fail("pwrite", errno.ENOSPC, count=1_000_000, path_part="commitlog")
        error = await refused(dialogue)
        assert error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
        assert error.remark
        await assert_reads(dialogue, b"first")
        files.heal()
        await taken(dialogue, b"last")
        stored = [record.body for record in await dialogue.pull("T")]
        assert stored[0] == b"first"
        assert stored[-1] == b"last"
        assert stored.count(b"last") == 1, "what was refused is not there"


async def test_no_send_succeeds_when_a_sync_fails(tmp_path: Path, files: FaultyFiles) -> None:
    async with (
        Broker(config_of(tmp_path, flushDiskType="SYNC_FLUSH")) as broker,
        Client(ClientOptions()) as client,
    ):
        dialogue = BrokerClient(client, broker.address)
        await dialogue.send("T", b"first")
        files.fail("sync", errno.EIO, count=1_000_000, path_part="commitlog")
        unsure = await refused(dialogue)
        assert unsure.code == ResponseCode.FLUSH_DISK_TIMEOUT, "in the log, and not confirmed"
        later = await refused(dialogue)
        assert later.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await assert_reads(dialogue, b"first")
        files.heal()
