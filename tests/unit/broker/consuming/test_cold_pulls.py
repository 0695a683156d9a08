"""Messages that are not in the page cache are read by a thread, not by the loop."""

import asyncio
import threading
from pathlib import Path

import pytest

from goddard.core import IS_COMPILED
from goddard.environment.files import SystemFiles
from goddard.protocol.codes import RequestCode, ResponseCode
from tests.support.consumer_harness import ConsumerHarness, bodies_of, pull_fields, tags
from tests.support.polling import until

PULL = RequestCode.PULL_MESSAGE


class ColdFiles(SystemFiles):
    """A disk whose files are in the page cache once they were read by another thread."""

    def __init__(self) -> None:
        self.loop_thread = threading.get_ident()
        self.cached: set[str] = set()
        self.asked = 0
        self.may_read = threading.Event()
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self._names[fd] = str(path)
        return fd

    def is_cached(self, fd: int, position: int) -> bool:
        self.asked += 1
        return self._names[fd] in self.cached

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if threading.get_ident() != self.loop_thread:
            assert self.may_read.wait(5)
            self.cached.add(self._names[fd])
        return super().pread(fd, size, position)


def filled(root: Path) -> None:
    """A store directory with 100 messages, of an earlier run of the broker."""
    with ConsumerHarness(root) as harness:
        harness.put("T", *(b"%d" % number for number in range(100)))


@pytest.mark.parametrize("lane", [False, True] if IS_COMPILED else [False])
async def test_a_thread_reads_what_is_not_in_the_page_cache(tmp_path: Path, lane: bool) -> None:
    filled(tmp_path)
    files = ColdFiles()
    with ConsumerHarness(tmp_path, files=files) as harness:
        files.cached.clear()
        files.may_read.clear()
        harness.add_topic("T")
        consumer, other = harness.connect(lane=lane), harness.connect()
        await consumer.heartbeat("G", tags("T"))
        opaque = consumer.send(PULL, pull_fields("T", 10))
        assert (await other.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})).code == 0
        assert files.cached == set(), "the loop has read nothing"
        files.may_read.set()
        answer = await consumer.answer(opaque)
        assert bodies_of(answer) == [b"%d" % number for number in range(10, 42)]
        assert {Path(name).parent.name for name in files.cached} == {"0", "commitlog"}
        asked = files.asked
        assert (await consumer.ask(PULL, pull_fields("T", 42))).code == 0
        assert files.asked == asked + 4, "now it is in the page cache"


async def test_new_messages_are_read_without_a_look_at_the_page_cache(tmp_path: Path) -> None:
    filled(tmp_path)
    files = ColdFiles()
    with ConsumerHarness(tmp_path, files=files) as harness:
        harness.add_topic("T")
        harness.put("T", b"new")
        harness.store.tick()
        consumer = harness.connect()
        await consumer.heartbeat("G", tags("T"))
        assert bodies_of(await consumer.ask(PULL, pull_fields("T", 100))) == [b"new"]
        assert files.asked == 0


async def test_a_pull_at_the_end_is_parked_after_its_cold_read(tmp_path: Path) -> None:
    filled(tmp_path)
    files = ColdFiles()
    files.may_read.set()
    with ConsumerHarness(tmp_path, files=files) as harness:
        files.cached.clear()
        harness.add_topic("T")
        consumer = harness.connect()
        await consumer.heartbeat("G", tags("T", "TagA"))
        # The filter rejects what the cold read brings, so the pull goes on to the end.
        fields = pull_fields("T", 99, sysFlag=2, commitOffset=0)
        answer = await consumer.ask(PULL, fields)
        opaque = consumer.send(PULL, fields | {"queueOffset": answer.fields["nextBeginOffset"]})
        await until(lambda: len(harness.parked_pulls) == 1, seconds=5)
        harness.put("T", b"new", tags="TagA")
        assert bodies_of(await consumer.answer(opaque)) == [b"new"]


async def test_a_lost_connection_gets_no_cold_messages(tmp_path: Path) -> None:
    filled(tmp_path)
    files = ColdFiles()
    with ConsumerHarness(tmp_path, files=files) as harness:
        files.cached.clear()
        harness.add_topic("T")
        consumer = harness.connect()
        await consumer.heartbeat("G", tags("T"))
        consumer.send(PULL, pull_fields("T", 10))
        await until(lambda: files.asked > 0, seconds=5)
        consumer.connection.abort()
        await asyncio.wait_for(consumer.connection.wait_closed(), 5)
        files.may_read.set()
        await until(lambda: len(files.cached) == 2, seconds=5)
        assert harness.stats.gets == {}


async def test_too_many_cold_pulls_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    files = ColdFiles()
    properties = {"pullThreadPoolQueueCapacity": "2"}
    with ConsumerHarness(tmp_path, files=files, properties=properties) as harness:
        files.cached.clear()
        harness.add_topic("T")
        consumer = harness.connect()
        await consumer.heartbeat("G", tags("T"))
        opaques = [consumer.send(PULL, pull_fields("T", 10)) for _ in range(3)]
        assert (await consumer.answer(opaques[2])).code == ResponseCode.SYSTEM_BUSY
        files.may_read.set()
        assert [(await consumer.answer(opaque)).code for opaque in opaques[:2]] == [0, 0]
