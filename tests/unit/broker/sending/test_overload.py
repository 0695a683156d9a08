"""Sends that arrive while the disk delays an append are refused, and no others."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import encode_frame
from goddard.store.config import FlushMode
from tests.support.clock import ManualClock
from tests.support.faulty_files import FaultyFiles
from tests.support.send_harness import SendHarness, send_request


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(tmp_path / "store")


@pytest.fixture
async def harness(
    tmp_path: Path, clock: ManualClock, files: FaultyFiles
) -> AsyncIterator[SendHarness]:
    with SendHarness(tmp_path, clock=clock, files=files) as harness:
        harness.add_topic("TopicTest")
        yield harness


@pytest.mark.parametrize("lane", [False, True])
@pytest.mark.parametrize(
    ("limit_ms", "took_ms", "is_refused"),
    [(1_000, 1_000, False), (1_000, 1_001, True), (20, 21, True)],
)
async def test_sends_that_arrive_during_a_slow_append_are_refused(
    harness: SendHarness,
    clock: ManualClock,
    files: FaultyFiles,
    lane: bool,
    limit_ms: int,
    took_ms: int,
    is_refused: bool,
) -> None:
    limit = {"osPageCacheBusyTimeOutMills": str(limit_ms)}
    harness.settings.replace(harness.settings.current.updated(limit))
    peer, connection = harness.connect(lane=lane)

    def hold_up() -> None:
        clock.advance(took_ms)
        # What the socket holds when the loop reads it.
        frame = encode_frame(send_request(body=b"meanwhile"))
        asyncio.get_running_loop().call_soon(connection.data_received, frame)

    files.slow("pwrite", hold_up, path_part="commitlog")
    connection.data_received(encode_frame(send_request(body=b"slow")))
    slow, meanwhile = await peer.receive(2)
    connection.data_received(encode_frame(send_request(body=b"later")))
    (later,) = await peer.receive(1)
    assert (slow.code, later.code) == (0, 0)
    if is_refused:
        assert meanwhile.code == ResponseCode.SYSTEM_BUSY
        assert meanwhile.remark == (
            "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, "
            f"period in queue: {took_ms}ms, size of queue: 0"
        )
    else:
        assert meanwhile.code == 0
    stored = [record.body for record in harness.records()]
    assert stored == ([b"slow", b"later"] if is_refused else [b"slow", b"meanwhile", b"later"])
    connection.close()


@pytest.mark.parametrize("lane", [False, True])
async def test_a_failed_sync_is_answered_with_flush_disk_timeout(
    tmp_path: Path, files: FaultyFiles, lane: bool
) -> None:
    """Whether the message is stored is unknown: the code for that is FLUSH_DISK_TIMEOUT."""
    with SendHarness(tmp_path, files=files, flush_mode=FlushMode.SYNC) as harness:
        harness.add_topic("TopicTest")
        peer, connection = harness.connect(lane=lane)
        connection.data_received(encode_frame(send_request(body=b"safe")))
        (safe,) = await peer.receive(1)
        assert safe.code == 0
        files.fail("sync", errno.EIO, path_part="commitlog")
        connection.data_received(encode_frame(send_request(body=b"unsure")))
        (unsure,) = await peer.receive(1)
        assert unsure.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert unsure.fields["msgId"]
        assert unsure.fields["queueOffset"] == "1"
        # Sends are refused, and the message is invisible, until a sync succeeds.
        connection.data_received(encode_frame(send_request(body=b"refused")))
        (refused,) = await peer.receive(1)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert harness.store.max_offset("TopicTest", 0) == 1
        harness.store.tick()
        assert [record.body for record in harness.records()] == [b"safe", b"unsure"]
        assert harness.store.max_offset("TopicTest", 0) == 2
        connection.close()


@pytest.mark.parametrize("lane", [False, True])
async def test_the_limit_counts_each_request_of_a_chunk(tmp_path: Path, lane: bool) -> None:
    with SendHarness(tmp_path, properties={"sendThreadPoolQueueCapacity": "2"}) as harness:
        harness.add_topic("TopicTest")
        answers = await harness.ask(*(send_request() for _ in range(3)), lane=lane)
        assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_BUSY]
        assert (answers[2].remark or "").startswith("[OVERLOAD]")
        assert len(harness.records()) == 2
