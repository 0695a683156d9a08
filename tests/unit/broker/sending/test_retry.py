"""Messages that consumers send back: retries through the levels, and the dead-letter queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goddard.broker.rules import register
from goddard.broker.sending.delay import DelayDelivery
from goddard.broker.sending.retry import SendBacks
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import SendBackRequest
from goddard.protocol.ids import offset_message_id
from goddard.protocol.names import SCHEDULE_TOPIC
from goddard.store.config import FlushMode
from goddard.store.errors import StoreDiskError, StoreUnavailableError
from goddard.store.log.records import LogEntry
from goddard.transport.handlers import Handlers
from tests.support.broker_parts import BrokerParts, broker_parts, properties_of
from tests.support.memory import RawPeer, join_raw
from tests.support.store import HOST, prepared, put_forged

BORN = 1_600_000_000_000


class CountingStats:
    def __init__(self) -> None:
        self.stored: list[str] = []
        self.returned: list[tuple[str, str]] = []
        self.buried: list[tuple[str, str]] = []

    def put(self, topic: str, count: int, size: int) -> None:
        self.stored.append(topic)

    def sendback(self, topic: str, group: str) -> None:
        self.returned.append((topic, group))

    def dead(self, topic: str, group: str) -> None:
        self.buried.append((topic, group))


@dataclass
class Harness:
    parts: BrokerParts
    peer: RawPeer
    stats: CountingStats

    def consumed(self, **fields: Any) -> LogEntry:
        """A message that a consumer has received."""
        return self.parts.put(
            prepared(
                "TopicA",
                0,
                b"order 1",
                tags="T",
                unique_key="U1",
                born_timestamp_ms=BORN,
                **{"flag": 7, "sys_flag": 1} | fields,
            )
        )

    async def send_back(self, offset: int, **fields: Any) -> RemotingCommand:
        values: dict[str, Any] = {"group": "G", "delay_level": 0, "origin_topic": "TopicA"} | fields
        version = values.pop("version", 493)
        header = SendBackRequest(offset=offset, **values)
        return await self.request(header.encode(), version)

    async def request(self, fields: dict[str, str], version: int = 493) -> RemotingCommand:
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields, version=version)
        self.peer.transport.write(encode_frame(command))
        (answer,) = await self.peer.receive(1)
        return answer


@asynccontextmanager
async def open_harness(root: Path, **options: Any) -> AsyncIterator[Harness]:
    async with broker_parts(root, **options) as parts:
        stats = CountingStats()
        handlers = Handlers()
        send_backs = SendBacks(
            store=parts.store,
            writer=parts.writer,
            topics=parts.topics,
            groups=parts.groups,
            settings=parts.settings,
            stats=stats,
        )
        register(handlers, send_backs.handlers())
        peer, connection = join_raw(handlers)
        try:
            yield Harness(parts, peer, stats)
        finally:
            connection.close()
            await peer.lost.wait()


async def test_sync_flush_answers_when_the_message_is_on_disk(tmp_path: Path) -> None:
    async with open_harness(tmp_path, store={"flush_mode": FlushMode.SYNC}) as harness:
        entry = harness.consumed()
        worker = harness.parts.small.flush_worker
        worker.is_held = True
        sending = asyncio.create_task(harness.send_back(entry.physical_offset, delay_level=1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert harness.parts.store.log_max_offset > entry.end_offset  # stored
        assert harness.peer.received.empty()
        worker.is_held = False
        worker.run()
        assert (await sending).code == ResponseCode.SUCCESS


async def test_a_flush_timeout_is_an_error_for_the_consumer(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path, store={"flush_mode": FlushMode.SYNC}) as harness:
        entry = harness.consumed()
        harness.parts.appender.flush_timeout_ms = 20
        harness.parts.small.flush_worker.is_held = True
        answer = await harness.send_back(entry.physical_offset, delay_level=1)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "FLUSH_DISK_TIMEOUT")
        harness.parts.small.flush_worker.is_held = False


async def test_a_message_is_redelivered_after_a_delay(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed()
        answer = await harness.send_back(entry.physical_offset, delay_level=1)
        assert (answer.code, answer.remark, answer.ext_fields) == (0, None, None)
        (waiting,) = harness.parts.records(SCHEDULE_TOPIC, 0)
        harness.parts.clock.advance(1_000)
        await DelayDelivery(
            store=harness.parts.store,
            table=harness.parts.delay_table,
            appender=harness.parts.appender,
            clock=harness.parts.clock,
        ).deliver()
        (retried,) = harness.parts.records("%RETRY%G")
        topic = harness.parts.topics.get("%RETRY%G")
    # As RocketMQ 5.4.0 stores both.
    for record in (waiting, retried):
        assert properties_of(record) == {
            "TAGS": "T",
            "UNIQ_KEY": "U1",
            "RETRY_TOPIC": "TopicA",
            "ORIGIN_MESSAGE_ID": offset_message_id(HOST, entry.physical_offset),
            "WAIT": "false",
            "DELAY": "1",
            "REAL_TOPIC": "%RETRY%G",
            "REAL_QID": "0",
        }
        assert record.body == b"order 1"
        assert (record.flag, record.sys_flag, record.reconsume_times) == (7, 1, 1)
        assert (record.born_timestamp_ms, record.born_host) == (BORN, HOST)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    assert harness.stats.stored == [SCHEDULE_TOPIC]
    assert harness.stats.returned == [("TopicA", "G")]


@pytest.mark.parametrize(
    ("tries", "level", "queue_id"),
    [(0, 0, 2), (1, 0, 3), (15, 0, 17), (0, 5, 4), (0, 18, 17), (0, 99, 17), (0, 2**31 - 1, 17)],
)
async def test_the_delay_rises_with_each_attempt(
    tmp_path: Path, tries: int, level: int, queue_id: int
) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed(reconsume_times=tries)
        await harness.send_back(entry.physical_offset, delay_level=level)
        (waiting,) = harness.parts.records(SCHEDULE_TOPIC, queue_id)
        assert properties_of(waiting)["DELAY"] == str(queue_id + 1)
        assert waiting.reconsume_times == tries + 1


async def test_later_attempts_keep_the_origin_of_a_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.parts.put(
            prepared(
                "%RETRY%G",
                properties=b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01AB\x02DELAY\x013\x02"
                b"REAL_TOPIC\x01%RETRY%G\x02REAL_QID\x010\x02WAIT\x01false\x02",
                reconsume_times=1,
            )
        )
        await harness.send_back(entry.physical_offset)
        (waiting,) = harness.parts.records(SCHEDULE_TOPIC, 3)
        properties = properties_of(waiting)
        assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("First", "AB")
        assert harness.stats.returned == [("First", "G")]


@pytest.mark.parametrize(
    ("tries", "fields"),
    [
        (16, {}),  # the limit of the group
        (3, {"max_reconsume_times": 3}),
        (0, {"max_reconsume_times": 0}),
        (0, {"max_reconsume_times": -1}),
        (0, {"delay_level": -1}),  # the consumer asks for no retry
        (16, {"max_reconsume_times": 99, "version": 120}),  # too old to send its limit
    ],
)
async def test_after_its_last_attempt_a_message_is_a_dead_letter(
    tmp_path: Path, tries: int, fields: dict[str, Any]
) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed(reconsume_times=tries)
        answer = await harness.send_back(entry.physical_offset, **fields)
        assert answer.code == ResponseCode.SUCCESS
        (dead,) = harness.parts.records("%DLQ%G")
        topic = harness.parts.topics.get("%DLQ%G")
    assert properties_of(dead) == {
        "TAGS": "T",
        "UNIQ_KEY": "U1",
        "RETRY_TOPIC": "TopicA",
        "ORIGIN_MESSAGE_ID": offset_message_id(HOST, entry.physical_offset),
        "WAIT": "false",
        "DELAY": "0",
    }
    assert dead.reconsume_times == tries + 1
    assert topic is not None
    assert (topic.read_queue_nums, topic.perm) == (1, 6)
    assert harness.stats.stored == ["%DLQ%G"]
    assert harness.stats.buried == [("TopicA", "G")]


async def test_an_attempt_below_the_limit_is_not_the_last(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed(reconsume_times=2)
        await harness.send_back(entry.physical_offset, max_reconsume_times=3)
        assert harness.parts.topics.get("%DLQ%G") is None
        assert len(harness.parts.records(SCHEDULE_TOPIC, 4)) == 1


async def test_a_group_of_a_unit_marks_its_retry_topic(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        await harness.send_back(harness.consumed().physical_offset, unit_mode=True)
        topic = harness.parts.topics.get("%RETRY%G")
        assert topic is not None
        assert topic.topic_sys_flag == 2


async def test_a_group_without_retry_queues_drops_the_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.parts.groups.put(SubscriptionGroupConfig(group_name="G", retry_queue_nums=0))
        answer = await harness.send_back(harness.consumed().physical_offset)
        assert answer.code == ResponseCode.SUCCESS
        assert harness.parts.topics.get("%RETRY%G") is None
        assert harness.stats.returned == []


async def test_retries_use_every_queue_of_the_group(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.parts.groups.put(SubscriptionGroupConfig(group_name="G", retry_queue_nums=3))
        offset = harness.consumed().physical_offset
        for _ in range(60):
            await harness.send_back(offset, delay_level=1)
        waiting = harness.parts.records(SCHEDULE_TOPIC, 0)
        assert {properties_of(record)["REAL_QID"] for record in waiting} == {"0", "1", "2"}


async def test_an_unknown_group(tmp_path: Path) -> None:
    async with open_harness(tmp_path, auto_create_group=False) as harness:
        answer = await harness.send_back(harness.consumed().physical_offset)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (answer.remark or "").startswith("subscription group not exist, G ")


@pytest.mark.parametrize("group", ["", "bad name", "x" * 300, "../etc"])
async def test_an_illegal_group_name(tmp_path: Path, group: str) -> None:
    async with open_harness(tmp_path) as harness:
        answer = await harness.send_back(harness.consumed().physical_offset, group=group)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_broker_without_write_permission(tmp_path: Path) -> None:
    async with open_harness(tmp_path, broker_permission=4) as harness:
        answer = await harness.send_back(harness.consumed().physical_offset)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] sending message is forbidden"


async def test_a_retry_topic_without_write_permission(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.parts.topics.put(TopicConfig(topic_name="%RETRY%G", perm=4))
        answer = await harness.send_back(harness.consumed().physical_offset)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the topic[%RETRY%G] sending message is forbidden"


@pytest.mark.parametrize("offset", [3, -1, 2**62, -(2**63)])
async def test_an_offset_without_a_message(tmp_path: Path, offset: int) -> None:
    async with open_harness(tmp_path) as harness:
        harness.consumed()
        answer = await harness.send_back(offset)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"look message by offset failed, {offset}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("offset", None),
        ("group", None),
        ("delayLevel", None),
        ("offset", "x"),
        ("offset", str(2**63)),
        ("delayLevel", str(2**31)),
        ("maxReconsumeTimes", "1.5"),
    ],
)
async def test_missing_and_mistyped_fields(tmp_path: Path, name: str, value: str | None) -> None:
    async with open_harness(tmp_path) as harness:
        fields = SendBackRequest(offset=0, group="G", delay_level=0).encode()
        fields.pop(name, None)
        if value is not None:
            fields[name] = value
        answer = await harness.request(fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert name in (answer.remark or "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailableError("full"), "SERVICE_NOT_AVAILABLE"),
        (StoreDiskError("broken"), "CREATE_MAPPED_FILE_FAILED"),
    ],
)
async def test_messages_that_are_not_stored_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed()

        def refuse(records: object, *, whole: bool = False) -> list[LogEntry]:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(harness.parts.store, "append", refuse)
            answer = await harness.send_back(entry.physical_offset)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, status)
        assert harness.stats.returned == []


async def test_properties_at_the_size_limit(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed(properties=b"filler\x01" + b"x" * 32_700 + b"\x02")
        answer = await harness.send_back(entry.physical_offset)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "PROPERTIES_SIZE_EXCEEDED",
        )


async def test_an_administrator_can_set_the_retries_of_a_group(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        group = harness.parts.groups.find("G")
        assert group is not None
        harness.parts.groups.put(msgspec.structs.replace(group, retry_max_times=1))
        await harness.send_back(harness.consumed(reconsume_times=1).physical_offset)
        assert len(harness.parts.records("%DLQ%G")) == 1


async def test_a_forged_message_inside_of_a_body_cannot_be_sent_back(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        forged = put_forged(harness.parts.store, "Secret", b"")
        end_offset = harness.parts.store.log_max_offset
        answer = await harness.send_back(forged, delay_level=1)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"look message by offset failed, {forged}"
        assert harness.parts.store.log_max_offset == end_offset


async def test_the_failure_of_the_consumer_travels_with_the_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed()
        await harness.send_back(entry.physical_offset, delay_level=1, consume_failure="first")
        (waiting,) = harness.parts.records(SCHEDULE_TOPIC, 0)
        assert properties_of(waiting)["CONSUME_FAILURE"] == "first"
        reason = f"ValueError: \x01bad\n{'x' * 10_000}"
        await harness.send_back(waiting.physical_offset, delay_level=-1, consume_failure=reason)
        (dead,) = harness.parts.records("%DLQ%G")
        kept = properties_of(dead)["CONSUME_FAILURE"]
        assert kept.startswith("ValueError: ?bad xxx")
        assert len(kept) == 500


async def test_a_failure_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        entry = harness.consumed(keys="k" * 31_500)
        answer = await harness.send_back(
            entry.physical_offset, delay_level=1, consume_failure="x" * 400
        )
        assert answer.code == ResponseCode.SUCCESS
        (waiting,) = harness.parts.records(SCHEDULE_TOPIC, 0)
        assert "CONSUME_FAILURE" not in properties_of(waiting)
