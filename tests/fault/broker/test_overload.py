"""An overloaded broker refuses sends at once; accepted messages are stored and answered."""

import asyncio
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from goddard.broker import broker as broker_module
from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.environment import Environment
from goddard.environment.files import Data, SystemFiles
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from tests.support.send_harness import send_request
from tests.support.stream_peer import StreamPeer
from tests.support.syncs import ThreadSyncs

SYNC_SECONDS = 0.4


class SlowFiles(SystemFiles):
    """A disk that delays every sync of the log, and one write to it."""

    __slots__ = ("hold_up", "is_slow")

    def __init__(self) -> None:
        self.is_slow = False
        self.hold_up: Callable[[], None] | None = None

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        if self.hold_up is not None and threading.current_thread() is threading.main_thread():
            hold_up, self.hold_up = self.hold_up, None  # the loop writes to the log
            hold_up()
        super().pwrite(fd, data, position)

    def sync(self, fd: int) -> None:
        if self.is_slow:
            time.sleep(SYNC_SECONDS)
        super().sync(fd)

    def open_syncs(self) -> ThreadSyncs:
        return ThreadSyncs(self.sync)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> SlowFiles:
    """The files of the next broker."""
    made = SlowFiles()
    monkeypatch.setattr(broker_module, "Environment", partial(Environment, files=made))
    return made


def config_of(directory: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(directory / "store"),
            "mappedFileSizeCommitLog": str(16 << 20),
            "mappedFileSizeConsumeQueue": "60000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
            **properties,
        }
    )


async def stored(peer: StreamPeer) -> int:
    fields = {"topic": "T", "queueId": "0"}
    answer = await peer.ask(RemotingCommand(RequestCode.GET_MAX_OFFSET, fields, opaque=10**6))
    assert answer is not None
    return int(answer.fields["offset"])


async def test_sends_above_the_speed_of_the_disk_are_refused_at_once(
    tmp_path: Path, files: SlowFiles
) -> None:
    config = config_of(
        tmp_path,
        flushDiskType="SYNC_FLUSH",
        sendThreadPoolQueueCapacity="20",
        # On a busy machine an iteration of the loop can exceed the 200 ms that sends may wait.
        waitTimeMillsInSendQueue="30000",
    )
    async with Broker(config) as broker, await StreamPeer.connect(broker.address) as peer:
        first = await peer.ask(send_request("T", opaque=10**5))
        assert first is not None
        assert first.code == ResponseCode.SUCCESS
        files.is_slow = True
        waits: dict[int, list[float]] = {ResponseCode.SUCCESS: [], ResponseCode.SYSTEM_BUSY: []}
        answers: list[RemotingCommand] = []

        async def client(number: int) -> None:
            """One of many clients, each with one message in flight."""
            async with await StreamPeer.connect(broker.address) as mine:
                for turn in range(5):
                    begun = time.monotonic()
                    request = send_request("T", opaque=turn)
                    answer = await mine.ask(request)
                    assert answer is not None
                    answers.append(answer)
                    waits[answer.code].append(time.monotonic() - begun)

        await asyncio.gather(*map(client, range(400)))
        codes = Counter(answer.code for answer in answers)
        assert codes.keys() == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        remarks = {answer.remark for answer in answers if answer.code == ResponseCode.SYSTEM_BUSY}
        assert remarks == {"[OVERLOAD]system busy, start flow control for a while"}
        # They do not wait for the disk; accepted sends do.
        refused, taken = waits[ResponseCode.SYSTEM_BUSY], waits[ResponseCode.SUCCESS]
        assert statistics.median(refused) < statistics.median(taken)
        files.is_slow = False
        assert await stored(peer) == 1 + codes[ResponseCode.SUCCESS]
        again = await peer.ask(send_request("T", opaque=10**5 + 1))
        assert again is not None
        assert again.code == ResponseCode.SUCCESS


async def test_sends_that_waited_in_sockets_during_a_slow_write_are_refused(
    tmp_path: Path, files: SlowFiles
) -> None:
    config = config_of(
        tmp_path, osPageCacheBusyTimeOutMills="300", waitTimeMillsInSendQueue="30000"
    )
    async with (
        Broker(config) as broker,
        await StreamPeer.connect(broker.address) as one,
        await StreamPeer.connect(broker.address) as other,
    ):
        for number, peer in enumerate((one, other)):
            first = await peer.ask(send_request("T", opaque=number))
            assert first is not None
            assert first.code == ResponseCode.SUCCESS

        def hold_up() -> None:
            other.write(encode_frame(send_request("T", opaque=11)))
            time.sleep(0.5)

        files.hold_up = hold_up
        slow = await one.ask(send_request("T", opaque=10))
        async with asyncio.timeout(60):
            await other.receive([11])
        again = await other.ask(send_request("T", opaque=12))
        assert slow is not None
        assert again is not None
        assert (slow.code, again.code) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)
        meanwhile = other.answers[11]
        assert meanwhile.code == ResponseCode.SYSTEM_BUSY
        assert meanwhile.remark is not None
        assert meanwhile.remark.startswith("[PCBUSY_CLEAN_QUEUE]broker busy")
        assert await stored(one) == 4
