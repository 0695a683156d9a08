"""Delayed messages: due times, order, restarts, failures, a clock that is set."""

import asyncio
from pathlib import Path

import pytest

from goddard.broker.sending.delay import DelayDelivery
from goddard.broker.sending.message_rules import NewMessage
from goddard.protocol.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from goddard.store.errors import StoreUnavailableError
from goddard.store.log.records import LogEntry, PreparedRecord
from tests.support.broker_parts import BrokerParts, broker_parts, properties_of
from tests.support.clock import ManualClock
from tests.support.store import HOST, prepared


class CountingStats:
    def __init__(self) -> None:
        self.stored: list[str] = []
        self.read: list[tuple[str, int]] = []

    def put(self, topic: str, count: int, size: int) -> None:
        self.stored.append(topic)

    def get(self, topic: str, group: str, count: int, size: int) -> None:
        self.read.append((group, count))


def delivery(parts: BrokerParts, stats: CountingStats | None = None) -> DelayDelivery:
    return DelayDelivery(
        store=parts.store,
        table=parts.delay_table,
        appender=parts.appender,
        clock=parts.clock,
        stats=stats,
    )


async def send(
    parts: BrokerParts, body: bytes, level: int, *, topic: str = "TopicA", queue_id: int = 0
) -> LogEntry:
    return await parts.writer.write(
        NewMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            born_timestamp_ms=1_234,
            born_host=HOST,
            properties={"DELAY": str(level), "TAGS": "T", "KEYS": "k"},
            flag=7,
            sys_flag=1,
            reconsume_times=2,
        )
    )


def bodies(parts: BrokerParts, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in parts.records(topic, queue_id)]


async def test_a_message_arrives_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    stats = CountingStats()
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts, stats)
        entry = await send(parts, b"later", 2, queue_id=3)
        assert (entry.topic, entry.queue_id) == (SCHEDULE_TOPIC, 1)
        parts.clock.advance(4_999)
        assert await delays.deliver() == 20
        assert bodies(parts, queue_id=3) == []
        parts.clock.advance(1)
        await delays.deliver()
        (record,) = parts.records("TopicA", 3)
    assert record.body == b"later"
    assert (record.flag, record.sys_flag, record.reconsume_times) == (7, 1, 2)
    assert (record.born_timestamp_ms, record.born_host) == (1_234, HOST)
    # As RocketMQ stores them.
    assert properties_of(record) == {
        "DELAY": "2",
        "TAGS": "T",
        "KEYS": "k",
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "3",
    }
    assert stats.stored == ["TopicA"]
    assert stats.read == [("SCHEDULE_CONSUMER", 1)]


async def test_the_next_check_is_when_the_next_message_is_due(tmp_path: Path) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        # No message waits: a message sent now is due after the shortest delay.
        assert await delays.deliver() == 1_000
        await send(parts, b"a", 1)
        parts.clock.advance(400)
        assert await delays.deliver() == 600
        await send(parts, b"b", 1)
        assert await delays.deliver() == 600
        parts.clock.advance(600)
        assert await delays.deliver() == 400
        assert bodies(parts) == [b"a"]


async def test_order_within_a_level_and_independence_of_levels(tmp_path: Path) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        for number in range(50):
            await send(parts, b"slow %d" % number, 3)
            await send(parts, b"fast %d" % number, 1, topic="TopicB")
        parts.clock.advance(1_000)
        await delays.deliver()
        assert bodies(parts, "TopicB") == [b"fast %d" % number for number in range(50)]
        assert bodies(parts) == []
        parts.clock.advance(9_000)
        await delays.deliver()
        assert bodies(parts) == [b"slow %d" % number for number in range(50)]


async def test_many_due_messages_are_delivered_in_turns(tmp_path: Path) -> None:
    async with broker_parts(
        tmp_path, store={"segment_bytes": 1 << 20, "queue_file_bytes": 20_000}
    ) as parts:
        delays = delivery(parts)
        for number in range(300):
            await send(parts, b"%d" % number, 1)
        parts.clock.advance(1_000)
        assert await delays.deliver() == 0  # more messages are due at once
        assert 0 < len(bodies(parts)) < 300
        assert await delays.deliver() > 0
        assert bodies(parts) == [b"%d" % number for number in range(300)]


async def test_a_restart_during_a_delay_loses_and_repeats_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with broker_parts(tmp_path, clock=clock) as parts:
        delays = delivery(parts)
        delays.start()
        await send(parts, b"first", 1)
        await send(parts, b"second", 2)
        clock.advance(1_000)
        await delays.deliver()
        await delays.stop()
        assert dict(parts.delay_table.offsets) == {1: 1, 2: 0}
    clock.advance(4_000)
    async with broker_parts(tmp_path, clock=clock) as parts:
        assert dict(parts.delay_table.offsets) == {1: 1, 2: 0}
        await delivery(parts).deliver()
        assert bodies(parts) == [b"first", b"second"]


async def test_after_a_crash_messages_are_repeated_and_none_is_lost(tmp_path: Path) -> None:
    clock = ManualClock()
    async with broker_parts(tmp_path, clock=clock, crash=True) as parts:
        await send(parts, b"once or twice", 1)
        clock.advance(1_000)
        await delivery(parts).deliver()
    async with broker_parts(tmp_path, clock=clock) as parts:
        await delivery(parts).deliver()
        assert set(bodies(parts)) == {b"once or twice"}


async def test_an_offset_moves_only_when_the_delivered_message_is_on_disk(tmp_path: Path) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        await send(parts, b"x", 1)
        parts.clock.advance(1_000)
        await delays.deliver()
        assert bodies(parts) == [b"x"]
        assert parts.delay_table.offsets.get(1, 0) == 0
        parts.store.flush()
        await delays.deliver()
        assert parts.delay_table.offsets[1] == 1


async def test_a_refused_delivery_is_retried_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        await send(parts, b"x", 1)
        parts.clock.advance(1_000)
        with monkeypatch.context() as patch:
            patch.setattr(parts.appender, "put", _refuse)
            assert await delays.deliver() == 100
        assert bodies(parts) == []
        assert await delays.deliver() == 100  # not before its time
        assert bodies(parts) == []
        parts.clock.advance(100)
        await delays.deliver()
        assert bodies(parts) == [b"x"]


async def _refuse(records: list[PreparedRecord], *, wait_durable: bool) -> list[LogEntry]:
    raise StoreUnavailableError("the disk is full")


async def test_a_clock_set_back_delays_nothing(tmp_path: Path) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        await send(parts, b"x", 3)
        await delays.deliver()
        parts.clock.jump(-3_600_000)
        await delays.deliver()  # due in more than ten seconds: impossible, so it is due
        assert bodies(parts) == [b"x"]


async def test_a_clock_set_ahead_delivers_at_once(tmp_path: Path) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        await send(parts, b"x", 18)
        assert await delays.deliver() == 1_000
        parts.clock.jump(7_200_000)
        await delays.deliver()
        assert bodies(parts) == [b"x"]


@pytest.mark.parametrize(
    "properties",
    [
        b"DELAY\x011\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01TopicA\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01TopicA\x02REAL_QID\x01minus one\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01TopicA\x02REAL_QID\x01-1\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01TopicA\x02REAL_QID\x0199999999999\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01../TopicA\x02REAL_QID\x010\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01" + TRANS_HALF_TOPIC.encode() + b"\x02REAL_QID\x010\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01" + SCHEDULE_TOPIC.encode() + b"\x02REAL_QID\x010\x02",
    ],
)
async def test_a_message_without_a_target_does_not_block_its_level(
    tmp_path: Path, properties: bytes
) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        parts.put(prepared(SCHEDULE_TOPIC, 0, b"lost", properties=properties))
        await send(parts, b"good", 1)
        parts.clock.advance(1_000)
        await delays.deliver()
        assert bodies(parts) == [b"good"]
        assert parts.records(TRANS_HALF_TOPIC) == []


@pytest.mark.parametrize("offset", [-5, 99])
async def test_an_offset_outside_the_queue_is_corrected(tmp_path: Path, offset: int) -> None:
    async with broker_parts(tmp_path) as parts:
        await send(parts, b"x", 1)
        parts.delay_table.commit(1, offset)
        delays = delivery(parts)
        await delays.deliver()
        await send(parts, b"y", 1)
        parts.clock.advance(1_000)
        await delays.deliver()
        assert bodies(parts) == ([b"x", b"y"] if offset < 0 else [b"y"])


async def test_the_service_runs_and_stops_by_itself(tmp_path: Path) -> None:
    async with broker_parts(tmp_path) as parts:
        delays = delivery(parts)
        await send(parts, b"x", 1)
        parts.clock.advance(1_000)
        arrived = asyncio.Event()
        parts.store.add_listener(lambda entries: arrived.set())
        delays.start()
        async with asyncio.timeout(60):
            await arrived.wait()
        await delays.stop()
        assert bodies(parts) == [b"x"]
        assert parts.delay_table.offsets[1] == 1
        await delays.stop()  # a second stop does nothing
