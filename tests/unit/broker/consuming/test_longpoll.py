"""Long polling: which pulls are woken, by what and when, and how the others end."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.consuming import longpoll as longpoll_module
from goddard.broker.consuming.longpoll import ParkedPull
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.store.config import FlushMode
from tests.support.consumer_harness import ConsumerHarness, bodies_of, pull_fields, sql, tags

PULL = RequestCode.PULL_MESSAGE


def waiting(topic: str, queue_offset: int = 0, **fields: Any) -> dict[str, Any]:
    return pull_fields(topic, queue_offset, sysFlag=6) | fields


async def parked(harness: ConsumerHarness, count: int) -> None:
    """Run the loop until so many pulls are held; in memory that takes a few turns."""
    for _ in range(1000):
        if len(harness.parked_pulls) >= count:
            break
        await asyncio.sleep(0)
    assert len(harness.parked_pulls) == count


both_ways = pytest.mark.parametrize("lane", [False, True], ids=["general", "lane"])


class TestWaking:
    @both_ways
    async def test_a_message_wakes_a_pull_within_its_tick(self, tmp_path: Path, lane: bool) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect(lane=lane)
            opaque = one.send(PULL, waiting("T"))
            await parked(harness, 1)
            harness.put("T", b"hello")
            # The answer is written before the loop does anything else.
            assert len(harness.parked_pulls) == 0
            assert one.connection.unsent_bytes > 0
            answer = await one.answer(opaque)
            assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
            assert bodies_of(answer) == [b"hello"]

    async def test_only_messages_of_its_queue_wake_a_pull(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.add_topic("U")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T", queueId=1))
            await parked(harness, 1)
            harness.put("U", b"x", queue_id=1)
            harness.put("T", b"x", queue_id=0)
            assert len(harness.parked_pulls) == 1
            harness.put("T", b"mine", queue_id=1)
            assert bodies_of(await one.answer(opaque)) == [b"mine"]

    async def test_all_pulls_of_a_queue_are_woken(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            consumers = [harness.connect() for _ in range(20)]
            opaques = [each.send(PULL, waiting("T")) for each in consumers]
            await parked(harness, 20)
            harness.put("T", b"x")
            for consumer, opaque in zip(consumers, opaques, strict=True):
                assert bodies_of(await consumer.answer(opaque)) == [b"x"]

    async def test_a_group_of_messages_wakes_once_and_is_returned_whole(
        self, tmp_path: Path
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T"))
            await parked(harness, 1)
            harness.put("T", b"1", b"2", b"3")
            assert bodies_of(await one.answer(opaque)) == [b"1", b"2", b"3"]
            assert one.peer.received.empty()

    @pytest.mark.parametrize("fields", [{}, {"sysFlag": 2}])
    async def test_messages_with_other_tags_do_not_wake_a_pull(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            await one.heartbeat("G", tags("T", "B || C"))
            opaque = one.send(PULL, waiting("T", subscription="B || C") | fields)
            await parked(harness, 1)
            harness.put("T", b"a", tags="A")
            harness.put("T", b"none")
            assert len(harness.parked_pulls) == 1
            harness.put("T", b"b", tags="B")
            assert bodies_of(await one.answer(opaque)) == [b"b"]

    async def test_messages_that_the_filter_rejects_do_not_wake_a_pull(
        self, tmp_path: Path
    ) -> None:
        with ConsumerHarness(tmp_path, properties={"enablePropertyFilter": "true"}) as harness:
            harness.add_topic("T")
            one = harness.connect()
            await one.heartbeat("G", sql("T", "a > 5"))
            opaque = one.send(PULL, waiting("T", sysFlag=2))
            await parked(harness, 1)
            harness.put("T", b"no", properties=b"a\x014\x02")
            assert len(harness.parked_pulls) == 1
            harness.put("T", b"yes", properties=b"a\x016\x02")
            assert bodies_of(await one.answer(opaque)) == [b"yes"]

    async def test_the_flush_thread_wakes_pulls_through_the_loop(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T"))
            await parked(harness, 1)
            harness.flush_worker.is_held = True
            harness.put("T", b"safe")
            thread = threading.Thread(target=harness.flush_worker.run)
            thread.start()
            thread.join(10)
            # The message is visible, but the data of the loop is unchanged.
            assert harness.store.max_offset("T", 0) == 1
            assert len(harness.parked_pulls) == 1
            assert bodies_of(await one.answer(opaque)) == [b"safe"]

    async def test_a_message_that_arrives_between_reading_and_parking_wakes_the_pull(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ConsumerHarness(tmp_path, flush_mode=FlushMode.SYNC) as harness:
            harness.add_topic("T")
            one = harness.connect()
            harness.flush_worker.is_held = True
            harness.put("T", b"safe")
            park = harness.parked_pulls.park

            def flush_then_park(parked: ParkedPull, timeout_ms: int) -> bool:
                # The pull has found nothing; the message becomes visible before the pull is parked.
                thread = threading.Thread(target=harness.flush_worker.run)
                thread.start()
                thread.join(10)
                return park(parked, timeout_ms)

            monkeypatch.setattr(harness.parked_pulls, "park", flush_then_park)
            assert bodies_of(await one.ask(PULL, waiting("T"))) == [b"safe"]


class TestTime:
    async def expire(self, harness: ConsumerHarness, milliseconds: int) -> None:
        harness.clock.advance(milliseconds)
        harness.parked_pulls.expire()

    @pytest.mark.parametrize(
        ("asked_ms", "held_ms"),
        [
            (4_000, 4_000),
            (15_000, 15_000),
            (15_000_000_000, 30_000),
            (2**63 - 1, 30_000),
            (0, 0),
            (-5, 0),
        ],
    )
    async def test_a_pull_is_answered_when_its_time_is_over(
        self, tmp_path: Path, asked_ms: int, held_ms: int
    ) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", b"x")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T", 1, suspendTimeoutMillis=asked_ms))
            await parked(harness, 1)
            if held_ms:
                await self.expire(harness, held_ms - 1)
                assert len(harness.parked_pulls) == 1
            await self.expire(harness, 100)
            answer = await one.answer(opaque)
            assert (answer.code, answer.remark) == (
                ResponseCode.PULL_NOT_FOUND,
                "OFFSET_OVERFLOW_ONE",
            )
            assert answer.fields["nextBeginOffset"] == "1"
            assert len(harness.parked_pulls) == 0

    async def test_a_timer_of_the_loop_ends_a_pull(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T", suspendTimeoutMillis=1))
            await parked(harness, 1)
            harness.clock.advance(1000)
            assert (await one.answer(opaque)).code == ResponseCode.PULL_NOT_FOUND

    async def test_without_long_polling_the_wait_is_short(self, tmp_path: Path) -> None:
        properties = {"longPollingEnable": "false", "shortPollingTimeMills": "300"}
        with ConsumerHarness(tmp_path, properties=properties) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T"))
            await parked(harness, 1)
            await self.expire(harness, 250)
            assert len(harness.parked_pulls) == 1
            await self.expire(harness, 100)
            assert (await one.answer(opaque)).code == ResponseCode.PULL_NOT_FOUND

    async def test_a_pull_skips_rejected_messages_after_five_seconds(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T", subscription="B"))
            await parked(harness, 1)
            harness.put("T", b"a", tags="A")
            await self.expire(harness, 4_900)
            assert len(harness.parked_pulls) == 1
            await self.expire(harness, 200)
            answer = await one.answer(opaque)
            assert (answer.code, answer.remark) == (
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                "NO_MATCHED_MESSAGE",
            )
            assert answer.fields["nextBeginOffset"] == "1"

    async def test_a_clock_set_ahead_answers_all_pulls(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaques = [
                one.send(PULL, waiting("T", suspendTimeoutMillis=wait))
                for wait in (1_000, 7_000, 29_000)
            ]
            await parked(harness, 3)
            await self.expire(harness, 10_000_000)
            for opaque in opaques:
                assert (await one.answer(opaque)).code == ResponseCode.PULL_NOT_FOUND

    async def test_a_pull_without_the_flag_does_not_wait(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            answer = await harness.connect().ask(PULL, pull_fields("T", sysFlag=4))
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert len(harness.parked_pulls) == 0


class TestCommits:
    async def test_a_woken_pull_does_not_commit_again(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            harness.put("T", *[b"x"] * 9)
            one = harness.connect()
            opaque = one.send(PULL, waiting("T", 9, sysFlag=7, commitOffset=5))
            await parked(harness, 1)
            assert harness.offsets.query("G", "T", 0) == 5
            harness.offsets.commit("G", "T", 0, 8, "test")
            harness.put("T", b"y")
            await one.answer(opaque)
            assert harness.offsets.query("G", "T", 0) == 8


class TestEnding:
    async def test_pulls_of_a_closed_connection_are_dropped(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one, two = harness.connect(), harness.connect()
            for queue_id in range(4):
                one.send(PULL, waiting("T", queueId=queue_id))
            opaque = two.send(PULL, waiting("T"))
            await parked(harness, 5)
            one.peer.transport.close()
            await asyncio.wait_for(one.connection.wait_closed(), 5)
            assert len(harness.parked_pulls) == 1
            harness.put("T", b"x")
            assert bodies_of(await two.answer(opaque)) == [b"x"]

    async def test_a_stop_answers_all_pulls(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T"))
            await parked(harness, 1)
            harness.parked_pulls.stop()
            assert (await one.answer(opaque)).code == ResponseCode.PULL_NOT_FOUND
            answer = await one.ask(PULL, waiting("T"))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark == "the broker is stopping"

    async def test_a_topic_deleted_during_a_pull(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect()
            opaque = one.send(PULL, waiting("T"))
            await parked(harness, 1)
            harness.topics.delete("T")
            harness.clock.advance(15_100)
            harness.parked_pulls.expire()
            assert (await one.answer(opaque)).code == ResponseCode.TOPIC_NOT_EXIST


class TestNumbers:
    async def test_ten_thousand_pulls_of_one_connection(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T", queues=10_000)
            one = harness.connect(lane=True)
            opaques = [one.send(PULL, waiting("T", queueId=number)) for number in range(10_000)]
            await parked(harness, 10_000)
            harness.put("T", b"x", queue_id=7_777)
            assert bodies_of(await one.answer(opaques[7_777])) == [b"x"]
            assert len(harness.parked_pulls) == 9_999
            harness.clock.advance(15_100)
            harness.parked_pulls.expire()
            assert len(harness.parked_pulls) == 0
            for number in (0, 9_999):
                assert (await one.answer(opaques[number])).code == ResponseCode.PULL_NOT_FOUND

    async def test_pulls_that_wake_together_do_not_block_the_loop(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect(lane=True)
            opaques = [one.send(PULL, waiting("T")) for _ in range(1000)]
            await parked(harness, 1000)
            harness.put("T", b"x")
            assert len(harness.parked_pulls) == 0
            assert not harness.parked_pulls.is_idle
            for opaque in opaques:
                assert bodies_of(await one.answer(opaque)) == [b"x"]
            assert harness.parked_pulls.is_idle

    async def test_a_connection_that_closes_before_its_turn(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect(lane=True)
            for _ in range(1000):
                one.send(PULL, waiting("T"))
            await parked(harness, 1000)
            harness.put("T", b"x")
            one.peer.transport.abort()
            await asyncio.wait_for(one.connection.wait_closed(), 5)
            harness.parked_pulls.stop()
            assert harness.parked_pulls.is_idle

    async def test_a_connection_has_a_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(longpoll_module, "MAX_PARKED_PER_CONNECTION", 3)
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one, two = harness.connect(), harness.connect()
            for _ in range(3):
                one.send(PULL, waiting("T"))
            answer = await one.ask(PULL, waiting("T"))
            assert answer.code == ResponseCode.SYSTEM_BUSY
            two.send(PULL, waiting("T"))
            await parked(harness, 4)

    async def test_the_broker_has_a_limit(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path, properties={"pullThreadPoolQueueCapacity": "2"}) as harness:
            harness.add_topic("T")
            one, two = harness.connect(), harness.connect()
            one.send(PULL, waiting("T"))
            one.send(PULL, waiting("T"))
            await parked(harness, 2)
            assert (await two.ask(PULL, waiting("T"))).code == ResponseCode.SYSTEM_BUSY
            harness.put("T", b"x")
            assert len(harness.parked_pulls) == 0

    async def test_repeated_pulls_leave_nothing_in_memory(self, tmp_path: Path) -> None:
        with ConsumerHarness(tmp_path) as harness:
            harness.add_topic("T")
            one = harness.connect(lane=True)
            for turn in range(200):
                opaque = one.send(PULL, waiting("T", turn))
                await parked(harness, 1)
                harness.put("T", b"x")
                assert (await one.answer(opaque)).fields["nextBeginOffset"] == str(turn + 1)
            assert harness.parked_pulls.is_idle

    @both_ways
    async def test_a_consumer_that_never_reads(self, tmp_path: Path, lane: bool) -> None:
        with ConsumerHarness(tmp_path, segment_bytes=8 << 20) as harness:
            harness.add_topic("T")
            harness.put("T", bytes(1 << 20), bytes(1 << 20))
            deaf, other = harness.connect(lane=lane), harness.connect(lane=lane)
            deaf.peer.transport.pause_reading()
            for _ in range(500):
                deaf.send(PULL, pull_fields("T"))
            for _ in range(3):
                assert len(bodies_of(await other.ask(PULL, pull_fields("T", maxMsgNums=1)))) == 1
            # A few answers of a megabyte wait to be sent; the other requests wait unread.
            assert deaf.connection.unsent_bytes < 8 << 20
            assert deaf.connection.is_paused
            deaf.peer.transport.abort()
            await asyncio.wait_for(deaf.connection.wait_closed(), 5)
