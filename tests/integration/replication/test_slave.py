"""A slave that follows a master, both with real stores and sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from goddard.clock import SystemClock
from goddard.replication.decisions import LogRange, SlaveLimits
from goddard.replication.following import BrokerIdentity, FollowLimits, LogsDifferError
from goddard.replication.frames import encode_header
from goddard.replication.master import HaServer
from goddard.replication.slave import Follower, Master
from goddard.store.config import FlushMode, StoreConfig
from goddard.store.store import MessageStore
from goddard.transport.connection import address_text
from tests.support.polling import until
from tests.support.store import prepared

SEGMENT_BYTES = 8192
IDENTITY = BrokerIdentity("cluster", "broker", SEGMENT_BYTES)
FOLLOW_LIMITS = FollowLimits(report_ms=50, silence_ms=2_000)
SLAVE_LIMITS = SlaveLimits(batch_bytes=1000, heartbeat_ms=50)


def config(root: Path, mode: FlushMode = FlushMode.ASYNC) -> StoreConfig:
    return StoreConfig(root=root, segment_bytes=SEGMENT_BYTES, flush_mode=mode)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore(config(tmp_path / "master")) as store:
        yield store


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore(config(tmp_path / "slave")) as store:
        yield store


@asynccontextmanager
async def serving(store: MessageStore, executor: ThreadPoolExecutor) -> AsyncIterator[HaServer]:
    server = HaServer(store, executor, limits=lambda: SLAVE_LIMITS)
    await server.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(60):
            yield server
    finally:
        await server.stop()


@asynccontextmanager
async def following(
    store: MessageStore,
    executor: ThreadPoolExecutor,
    find_master: Callable[[], Master | None],
    *,
    on_logs_differ: Callable[[LogsDifferError], None] = lambda _: None,
    limits: FollowLimits = FOLLOW_LIMITS,
) -> AsyncIterator[Follower]:
    async def find() -> Master | None:
        return find_master()

    follower = Follower(
        store,
        executor,
        identity=IDENTITY,
        find_master=find,
        limits=lambda: limits,
        clock=SystemClock(),
        random=lambda: 0.0,
        on_logs_differ=on_logs_differ,
    )
    follower.start()
    try:
        async with asyncio.timeout(60):
            yield follower
    finally:
        await follower.stop()


def known(server: HaServer, store: MessageStore) -> Callable[[], Master]:
    """A master whose range can be asked for."""
    return lambda: Master(
        f"127.0.0.1:{server.port}",
        IDENTITY,
        LogRange(store.log_min_offset, store.log_max_offset, SEGMENT_BYTES),
    )


def unknown(server: HaServer, store: MessageStore) -> Callable[[], Master]:
    return lambda: Master(f"127.0.0.1:{server.port}")


def put(store: MessageStore, count: int, size: int = 300) -> None:
    store.put_many([prepared(body=bytes([number % 256]) * size) for number in range(count)])


def log_bytes(store: MessageStore) -> bytes:
    start, pieces = store.log_min_offset, b""
    while view := store.read_log(start + len(pieces), 1 << 20):
        pieces += view
    return pieces


async def level(slave: MessageStore, master: MessageStore) -> None:
    await until(lambda: slave.log_max_offset == master.log_max_offset)
    assert log_bytes(slave) == log_bytes(master)


@pytest.mark.parametrize("count", [0, 1, 200], ids=["empty", "one segment", "several segments"])
async def test_an_empty_slave_copies_the_whole_log_and_what_follows(
    master: MessageStore, slave: MessageStore, executor: ThreadPoolExecutor, count: int
) -> None:
    put(master, count or 1) if count else None
    async with (
        serving(master, executor) as server,
        following(slave, executor, known(server, master)) as follower,
    ):
        await level(slave, master)
        put(master, 100)
        await level(slave, master)
        assert slave.max_offset("TopicA", 0) == count + 100
        await until(
            lambda: [each.acknowledged_offset for each in server.slaves] == [master.log_max_offset]
        )
        status = follower.status
        assert status.is_following
        assert status.master_end_offset == status.end_offset == master.log_max_offset


async def test_a_slave_that_knows_nothing_of_its_master_begins_with_the_last_segment(
    master: MessageStore, slave: MessageStore, executor: ThreadPoolExecutor
) -> None:
    put(master, 100)
    async with (
        serving(master, executor) as server,
        following(slave, executor, unknown(server, master)),
    ):
        await until(lambda: slave.log_max_offset == master.log_max_offset)
        assert slave.log_min_offset == master.log_max_offset // SEGMENT_BYTES * SEGMENT_BYTES > 0
        assert log_bytes(slave) == log_bytes(master)[slave.log_min_offset :]


@pytest.mark.parametrize("find", [known, unknown])
async def test_a_slave_continues_after_both_were_away(
    tmp_path: Path,
    master: MessageStore,
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    find: Callable[[HaServer, MessageStore], Callable[[], Master]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(master, executor) as server:
        async with following(slave, executor, known(server, master)):
            put(master, 100)
            await level(slave, master)
        put(master, 30)
        async with following(slave, executor, find(server, master)) as follower:
            await level(slave, master)
            await server.stop()
            await until(lambda: not follower.status.is_following)
            assert follower.status.reason
            put(master, 30)
            caplog.set_level(logging.INFO)
            again = HaServer(master, executor, limits=lambda: SLAVE_LIMITS)
            await again.start("127.0.0.1", server.port)
            await level(slave, master)
            await again.stop()
    assert "cannot follow the master at 127.0.0.1" in caplog.text


async def test_a_stop_leaves_whole_records(
    tmp_path: Path, slave: MessageStore, executor: ThreadPoolExecutor
) -> None:
    async def send_half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(encode_header(0, len(data)) + data)
        await reader.read()
        writer.close()

    with MessageStore(config(tmp_path / "other")) as other:
        put(other, 3)
        whole = log_bytes(other)
    data = whole[:-5]
    server = await asyncio.start_server(send_half, "127.0.0.1", 0)
    address = address_text(server.sockets[0].getsockname()[:2])
    async with server, following(slave, executor, lambda: Master(address)):
        await until(lambda: slave.log_max_offset == len(data))
        assert slave.max_offset("TopicA", 0) == 2
    assert slave.log_max_offset == len(whole) // 3 * 2


async def test_a_sync_flush_slave_reports_what_is_on_disk(
    tmp_path: Path,
    master: MessageStore,
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MessageStore(config(tmp_path / "sync", FlushMode.SYNC)) as slave:
        waits: list[tuple[int, Callable[[None], None]]] = []
        monkeypatch.setattr(
            slave, "wait_durable", lambda offset, callback: waits.append((offset, callback))
        )
        async with (
            serving(master, executor) as server,
            following(slave, executor, known(server, master)),
        ):
            await until(lambda: len(server.slaves) == 1)
            put(master, 10)
            await until(lambda: slave.log_max_offset == master.log_max_offset)
            await until(lambda: len(waits) == 1)
            assert server.slaves[0].acknowledged_offset == 0
            slave.flush()
            waits[0][1](None)
            await until(lambda: server.slaves[0].acknowledged_offset == master.log_max_offset)


@pytest.mark.parametrize("find", [known, unknown])
@pytest.mark.parametrize("more", [0, 1, 100], ids=["shorter", "a record", "longer"])
async def test_logs_that_parted_are_compared_and_nothing_is_changed(
    master: MessageStore,
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    find: Callable[[HaServer, MessageStore], Callable[[], Master]],
    more: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(master, 40)
    for view in iter(lambda: master.read_log(slave.log_max_offset, SEGMENT_BYTES), None):
        if not view:
            break
        slave.append_raw(view)
    common = master.log_max_offset
    put(slave, 3, size=301)
    if more:
        put(master, more)
    before = log_bytes(slave)
    found: list[LogsDifferError] = []
    async with (
        serving(master, executor) as server,
        following(slave, executor, find(server, master), on_logs_differ=found.append) as follower,
    ):
        await until(lambda: bool(found))
        error = found[0]
        # Both may have ended a segment, and a record begins with its size.
        assert log_bytes(master)[: error.common_offset] == before[: error.common_offset]
        assert error.common_offset >= common
        assert slave.lookup(error.common_offset) is None
        assert not follower.status.is_following
        assert "is equal to the master's" in follower.status.reason
        assert log_bytes(slave) == before
    assert "cannot follow the master" in caplog.text


async def test_the_common_prefix_is_found_far_before_the_end(
    master: MessageStore,
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goddard.replication.slave.COMPARED_BYTES", 500)
    put(master, 10)
    slave.append_raw(master.read_log(0, SEGMENT_BYTES) or b"")
    common = master.log_max_offset
    put(slave, 100, size=301)
    put(master, 120)
    found: list[LogsDifferError] = []
    async with (
        serving(master, executor) as server,
        following(slave, executor, known(server, master), on_logs_differ=found.append),
    ):
        await until(lambda: bool(found))
        # A record has its size first, which begins with equal bytes.
        assert common <= found[0].common_offset < common + 4


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "is impossible", id="http"),
        pytest.param(encode_header(0, 1 << 30), "is impossible", id="a huge frame"),
        pytest.param(encode_header(-5, 3) + b"abc", "is impossible", id="a negative offset"),
        pytest.param(encode_header(8192, 3) + b"abc", "not from 0", id="another place"),
        pytest.param(encode_header(0, 40) + b"abc" * 13, "closed the connection", id="half"),
        pytest.param(encode_header(0, 39) + b"abc" * 13, "are no record", id="no records"),
    ],
)
async def test_garbage_from_a_master_closes_the_connection_with_a_reason(
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    sent: bytes,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readexactly(8)
        writer.write(sent)
        await writer.drain()
        writer.write_eof()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = address_text(server.sockets[0].getsockname()[:2])
    log = LogRange(0, 500, SEGMENT_BYTES)
    async with server, following(slave, executor, lambda: Master(address, IDENTITY, log)):
        await until(lambda: connections >= 2)
        assert slave.log_max_offset == 0
    warnings = [text for _, level, text in caplog.record_tuples if level == logging.WARNING]
    assert len(warnings) == 1, "the same reason is logged once in a minute"
    assert reason in warnings[0]


async def test_masters_of_other_groups_are_refused(
    master: MessageStore, slave: MessageStore, executor: ThreadPoolExecutor
) -> None:
    put(master, 3)
    other = IDENTITY._replace(broker_name="other")
    async with (
        serving(master, executor) as server,
        following(slave, executor, lambda: Master(f"127.0.0.1:{server.port}", other)) as follower,
    ):
        await until(lambda: "it is not the master of this slave" in follower.status.reason)
        assert server.slaves == []
        assert slave.log_max_offset == 0


async def test_a_silent_master_is_left(
    slave: MessageStore, executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    address = address_text(server.sockets[0].getsockname()[:2])
    limits = FollowLimits(report_ms=20, silence_ms=100)
    async with server, following(slave, executor, lambda: Master(address), limits=limits):
        await until(lambda: "it has sent nothing for 100 ms" in caplog.text)


async def test_a_slave_whose_store_takes_nothing_waits_and_goes_on(
    master: MessageStore,
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(master, 10)
    is_ready = False
    resumes: list[Callable[[], None]] = []
    when_ready = slave.when_ready

    def ready(resume: Callable[[], None]) -> bool:
        if not is_ready:
            resumes.append(resume)
        return is_ready and when_ready(resume)

    monkeypatch.setattr(slave, "when_ready", ready)
    async with (
        serving(master, executor) as server,
        following(slave, executor, known(server, master)),
    ):
        await until(lambda: bool(resumes))
        assert slave.log_max_offset == 0
        is_ready = True
        resumes[-1]()
        await level(slave, master)


async def test_a_slave_far_behind_copies_first_and_dispatches_meanwhile(
    master: MessageStore,
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goddard.replication.slave._FAR_BEHIND_BYTES", 2_000)
    monkeypatch.setattr("goddard.replication.slave._DISPATCHED_BYTES", 500)
    put(master, 100)
    put(master, 3, size=5_000)
    put(master, 100)
    behind: list[bool] = []
    append_raw = slave.append_raw

    def noted(data: bytes, *, dispatch_later: bool = False) -> None:
        append_raw(data, dispatch_later=dispatch_later)
        behind.append(slave.is_dispatch_behind)

    monkeypatch.setattr(slave, "append_raw", noted)
    async with (
        serving(master, executor) as server,
        following(slave, executor, known(server, master)),
    ):
        await until(lambda: slave.max_offset("TopicA", 0) == 203)
        assert True in behind
        put(master, 1)
        await until(lambda: slave.max_offset("TopicA", 0) == 204)
        assert not slave.is_dispatch_behind
        assert log_bytes(slave) == log_bytes(master)


async def test_what_was_copied_and_not_dispatched_is_there_after_a_stop(
    tmp_path: Path,
    master: MessageStore,
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goddard.replication.slave._FAR_BEHIND_BYTES", -1)
    put(master, 100)
    for can_be_behind in (True, False):
        with MessageStore(config(tmp_path / f"{can_be_behind}")) as slave:
            with monkeypatch.context() as patch:
                patch.setattr("goddard.replication.slave._MasterConnection._dispatch_soon", print)
                async with (
                    serving(master, executor) as server,
                    following(slave, executor, known(server, master)) as follower,
                ):
                    await until(lambda: slave.log_max_offset == master.log_max_offset)
                    assert slave.max_offset("TopicA", 0) == 0
                    await follower.stop(can_be_behind=can_be_behind)
            assert slave.is_dispatch_behind is can_be_behind
            assert slave.dispatch_behind_bytes == (slave.log_max_offset if can_be_behind else 0)
        with MessageStore(config(tmp_path / f"{can_be_behind}")) as slave:
            assert slave.max_offset("TopicA", 0) == 100
            assert log_bytes(slave) == log_bytes(master)


async def test_damage_that_is_found_late_is_cut_off(
    slave: MessageStore,
    executor: ThreadPoolExecutor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("goddard.replication.slave._FAR_BEHIND_BYTES", -1)
    with MessageStore(config(tmp_path / "other")) as other:
        put(other, 3)
        data = log_bytes(other) + b"not a record" * 10

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(encode_header(0, len(data)) + data)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = address_text(server.sockets[0].getsockname()[:2])
    log = LogRange(0, 5_000, SEGMENT_BYTES)
    async with server, following(slave, executor, lambda: Master(address, IDENTITY, log)):
        await until(lambda: "are no record" in caplog.text)
        assert slave.max_offset("TopicA", 0) == 3
        assert slave.log_max_offset == len(data) - 120
        assert not slave.is_dispatch_behind
