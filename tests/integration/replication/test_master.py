"""The HA port of a master, with slaves that are made of sockets."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from goddard.replication.decisions import SlaveLimits
from goddard.replication.frames import Frame, FrameDecoder, encode_report
from goddard.replication.master import HaServer, SlaveStatus
from goddard.store.config import StoreConfig
from goddard.store.store import MessageStore
from tests.support.polling import until
from tests.support.store import prepared

SEGMENT_BYTES = 8192
LIMITS = SlaveLimits(batch_bytes=1000, heartbeat_ms=50)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore(StoreConfig(root=tmp_path, segment_bytes=SEGMENT_BYTES)) as store:
        yield store


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@asynccontextmanager
async def serving(
    store: MessageStore, executor: ThreadPoolExecutor, limits: SlaveLimits = LIMITS
) -> AsyncIterator[HaServer]:
    server = HaServer(store, executor, limits=lambda: limits)
    await server.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(60):
            yield server
    finally:
        await server.stop()


class RawSlave:
    """The socket of a slave, and the bytes of the log that it got."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self.frames: list[Frame] = []

    @property
    def log(self) -> bytes:
        return b"".join(frame.data for frame in self.frames)

    def report(self, physical_offset: int) -> None:
        self._writer.write(encode_report(physical_offset))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def read_to(self, end_offset: int) -> None:
        """Read frames, each of which must continue the one before, up to this offset."""
        while not self.frames or self.frames[-1].end_offset < end_offset:
            await self._read()

    async def read_heartbeat(self) -> Frame:
        while not self.frames or self.frames[-1].data:
            await self._read()
        return self.frames[-1]

    async def is_disconnected(self) -> bool:
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True

    async def _read(self) -> None:
        data = await self._reader.read(1 << 16)
        assert data, "the master disconnected"
        for frame in self._decoder.feed(data):
            if self.frames:
                assert frame.physical_offset == self.frames[-1].end_offset
            self.frames.append(frame)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def slave_of(server: HaServer, report: int | None = None) -> AsyncIterator[RawSlave]:
    slave = RawSlave(*await asyncio.open_connection("127.0.0.1", server.port))
    if report is not None:
        slave.report(report)
    try:
        yield slave
    finally:
        with suppress(ConnectionError):
            await slave.close()


def put(store: MessageStore, count: int, size: int = 300) -> None:
    store.put_many([prepared(body=bytes([number % 256]) * size) for number in range(count)])


def log_bytes(store: MessageStore, start: int, end: int) -> bytes:
    pieces = b""
    while start + len(pieces) < end:
        view = store.read_log(start + len(pieces), end - start - len(pieces))
        assert view is not None
        pieces += view
    return pieces


async def acknowledged(server: HaServer, *offsets: int) -> list[SlaveStatus]:
    await until(lambda: [slave.acknowledged_offset for slave in server.slaves] == list(offsets))
    return server.slaves


async def test_a_slave_gets_the_log_across_segments_and_what_is_appended_later(
    store: MessageStore, executor: ThreadPoolExecutor
) -> None:
    async with serving(store, executor) as server, slave_of(server, 0) as slave:
        await acknowledged(server, 0)
        put(store, 100)
        end_offset = store.log_max_offset
        assert end_offset > 3 * SEGMENT_BYTES
        await slave.read_to(end_offset)
        put(store, 3)
        await slave.read_to(store.log_max_offset)
        assert slave.log == log_bytes(store, 0, store.log_max_offset)
        for frame in slave.frames:
            last = max(frame.physical_offset, frame.end_offset - 1)
            assert len(frame.data) <= LIMITS.batch_bytes
            assert frame.physical_offset // SEGMENT_BYTES == last // SEGMENT_BYTES
        slave.report(store.log_max_offset)
        (status,) = await acknowledged(server, store.log_max_offset)
        assert status.next_offset == store.log_max_offset


async def test_a_slave_continues_where_its_log_ends(
    store: MessageStore, executor: ThreadPoolExecutor
) -> None:
    put(store, 100)
    start = SEGMENT_BYTES + 77  # in the middle of a record
    async with serving(store, executor) as server, slave_of(server, start) as slave:
        await slave.read_to(store.log_max_offset)
        assert slave.frames[0].physical_offset == start
        assert slave.log == log_bytes(store, start, store.log_max_offset)


async def test_an_empty_slave_starts_with_the_last_segment(
    store: MessageStore, executor: ThreadPoolExecutor
) -> None:
    put(store, 100)
    async with serving(store, executor) as server, slave_of(server, 0) as slave:
        await slave.read_to(store.log_max_offset)
        start = store.log_max_offset // SEGMENT_BYTES * SEGMENT_BYTES
        assert slave.frames[0].physical_offset == start > 0


async def test_heartbeats_tell_the_next_offset(
    store: MessageStore, executor: ThreadPoolExecutor
) -> None:
    async with serving(store, executor) as server, slave_of(server, 0) as slave:
        assert await slave.read_heartbeat() == Frame(0, b"")
        put(store, 1)
        await slave.read_to(store.log_max_offset)
        assert await slave.read_heartbeat() == Frame(store.log_max_offset, b"")


async def test_a_slave_far_behind_is_served_from_blocks_that_a_thread_reads(
    store: MessageStore, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goddard.replication.master._COLD_BYTES", 2 * SEGMENT_BYTES)
    monkeypatch.setattr("goddard.replication.master._BLOCK_BYTES", 2500)
    put(store, 200)
    async with serving(store, executor) as server, slave_of(server, 1) as slave:
        await slave.read_to(store.log_max_offset)
        assert slave.log == log_bytes(store, 1, store.log_max_offset)
        put(store, 30)
        await slave.read_to(store.log_max_offset)
        assert slave.log == log_bytes(store, 1, store.log_max_offset)


async def test_a_slave_that_does_not_read_costs_little_memory_and_no_messages(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    config = StoreConfig(root=tmp_path / "large", segment_bytes=32 << 20)
    with MessageStore(config) as store:
        async with serving(store, executor) as server, slave_of(server, 0) as slave:
            await acknowledged(server, 0)
            put(store, 1, size=100)
            for _ in range(24):
                put(store, 1, size=1 << 20)
                await asyncio.sleep(0)
            await until(lambda: server.slaves[0].next_offset > 1 << 20)
            for _ in range(100):
                await asyncio.sleep(0)
            # The socket buffers of both ends, and the write buffer.
            assert server.slaves[0].next_offset < 16 << 20
            await slave.read_to(store.log_max_offset)
            assert slave.log == log_bytes(store, 0, store.log_max_offset)


@pytest.mark.parametrize(
    ("before", "sent", "reason"),
    [
        pytest.param(
            None, b"GET / HTTP/1.1\r\n\r\n", "it is not a slave of this master", id="http"
        ),
        pytest.param(None, encode_report(-1), "the report -1 is not an offset", id="negative"),
        pytest.param(
            None, encode_report(1 << 40), "after the end of this master's log", id="ahead"
        ),
        pytest.param(0, encode_report(5), "it reports 5 after 0", id="bogus"),
    ],
)
async def test_garbage_and_bogus_reports_are_disconnected_with_a_reason(
    store: MessageStore,
    executor: ThreadPoolExecutor,
    caplog: pytest.LogCaptureFixture,
    before: int | None,
    sent: bytes,
    reason: str,
) -> None:
    async with serving(store, executor) as server:
        for _ in range(2):
            async with slave_of(server) as slave:
                if before is not None:
                    slave.report(before)
                    await acknowledged(server, before)
                slave.write(sent)
                assert await slave.is_disconnected()
        assert server.slaves == []
    warnings = [text for _, level, text in caplog.record_tuples if level == logging.WARNING]
    assert len(warnings) == 1, "the same reason is logged once in a minute"
    assert reason in warnings[0]


async def test_a_port_probe_is_not_a_slave(
    store: MessageStore, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store, executor) as server:
        async with slave_of(server):
            pass
        await until(lambda: "left without a report: it is not a slave" in caplog.text)
        assert server.slaves == []


async def test_a_silent_connection_is_closed(
    store: MessageStore, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    limits = LIMITS._replace(silence_ms=100)
    async with serving(store, executor, limits) as server:
        async with slave_of(server) as probe, slave_of(server, 0) as slave:
            await acknowledged(server, 0)
            assert await probe.is_disconnected()
            while not await slave.is_disconnected():
                pass
        assert server.slaves == []
    assert "reported nothing for 100 ms: it is not a slave" in caplog.text


async def test_connections_are_limited(
    store: MessageStore, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goddard.replication.master._MAX_CONNECTIONS", 2)
    async with serving(store, executor) as server:
        async with slave_of(server, 0), slave_of(server, 0):
            await until(lambda: len(server.slaves) == 2)
            async with slave_of(server, 0) as third:
                assert await third.is_disconnected()
            assert len(server.slaves) == 2
        await until(lambda: not server.slaves)
        async with slave_of(server, 0) as slave:
            await slave.read_heartbeat()


async def test_a_stop_sends_what_is_missing_and_disconnects(
    store: MessageStore, executor: ThreadPoolExecutor
) -> None:
    async with serving(store, executor) as server, slave_of(server, 0) as slave:
        await acknowledged(server, 0)
        put(store, 20)
        await server.stop()
        await slave.read_to(store.log_max_offset)
        assert await slave.is_disconnected()
        await server.stop()


async def test_a_port_in_use_is_named(store: MessageStore, executor: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = HaServer(store, executor)
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port} for slaves"):
            await server.start("127.0.0.1", port)
        await server.stop()
