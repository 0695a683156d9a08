"""Sends that create their topic: stored in order, and not before the topic is saved."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goddard.broker.tables.saving import TableSaver
from goddard.errors import StoreError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import encode_frame
from tests.support.polling import until
from tests.support.send_harness import SendHarness, send_request


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class SavingHarness(SendHarness):
    """A harness that saves its topics, when ``may_save`` is set."""

    def __init__(self, root: Path, executor: ThreadPoolExecutor) -> None:
        saver = TableSaver(executor)
        self.may_save = threading.Event()
        executor.submit(self.may_save.wait, 10)
        super().__init__(root, save_topics=lambda: saver.save(self.topics.table))

    def bodies(self) -> list[bytes]:
        return [bytes(record.body) for record in self.records()]


def frames(numbers: range, topic: str = "New") -> bytes:
    return b"".join(
        encode_frame(send_request(topic, b"%d" % number, opaque=number)) for number in numbers
    )


async def until_created(harness: SendHarness) -> None:
    await until(lambda: "New" in harness.topics, seconds=5)


@pytest.mark.parametrize("lane", [False, True])
async def test_sends_that_arrive_during_the_save_do_not_overtake(
    tmp_path: Path, executor: ThreadPoolExecutor, lane: bool
) -> None:
    with SavingHarness(tmp_path, executor) as harness:
        peer, _ = harness.connect(lane=lane)
        peer.transport.write(frames(range(40)))
        await until_created(harness)
        assert harness.bodies() == [], "the topic is not on the disk"
        harness.may_save.set()
        # From the first stored send on, one more send in each turn of the loop.
        numbers = itertools.count(40)
        async with asyncio.timeout(10):
            while len(harness.bodies()) < 45:
                if harness.bodies():
                    number = next(numbers)
                    peer.transport.write(frames(range(number, number + 1)))
                await asyncio.sleep(0)
        bodies = harness.bodies()
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        assert {answer.code for answer in await peer.receive(45)} == {0}


async def test_each_new_topic_keeps_its_order(tmp_path: Path, executor: ThreadPoolExecutor) -> None:
    with SavingHarness(tmp_path, executor) as harness:
        peer, _ = harness.connect()
        other, _ = harness.connect()
        for number in range(0, 20, 2):
            peer.transport.write(frames(range(number, number + 1), "NewA"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            other.transport.write(frames(range(number + 1, number + 2), "NewA"))
            peer.transport.write(frames(range(100 + number, 101 + number), "NewB"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        harness.may_save.set()
        await peer.receive(20)
        await other.receive(10)
        for topic, expected in (("NewA", range(20)), ("NewB", range(100, 120, 2))):
            bodies = [int(record.body) for record in harness.records() if record.topic == topic]
            assert bodies == list(expected)


async def test_a_save_that_fails_refuses_the_sends_that_wait(tmp_path: Path) -> None:
    async def fail() -> None:
        raise StoreError("the disk is full")

    with SendHarness(tmp_path, save_topics=fail) as harness:
        answers = await harness.ask(*(send_request("New", b"%d" % each) for each in range(3)))
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR] * 3
        assert "New" in harness.topics.unsaved, "the next send saves it"
        assert harness.records() == []


async def test_a_send_whose_connection_is_lost_is_not_stored(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    with SavingHarness(tmp_path, executor) as harness:
        peer, connection = harness.connect()
        other, _ = harness.connect()
        peer.transport.write(frames(range(1)))
        await until_created(harness)
        other.transport.write(frames(range(1, 2)))
        connection.abort()
        await asyncio.wait_for(connection.wait_closed(), 5)
        harness.may_save.set()
        await other.receive(1)
        assert harness.bodies() == [b"1"]
