"""The rules for every message on its way into the store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.sending.appender import Appender, FlushTimeoutError
from goddard.broker.sending.message_rules import (
    MessageWriter,
    NewMessage,
    PutRefusedError,
    PutStatus,
    put_status,
)
from goddard.broker.settings import BrokerConfig, Settings
from goddard.errors import ProtocolError, StoreError
from goddard.protocol.message import decode_properties
from goddard.protocol.record import Host, decode_record
from goddard.store.config import FlushMode
from goddard.store.errors import (
    MessageIllegalError,
    StoreDiskError,
    StoreFullError,
    StoreUnavailableError,
)
from goddard.store.log.records import LogEntry
from goddard.store.store import MessageStore
from tests.support.store import SmallStore

PEER = Host.parse("10.0.0.7:50001")


def new_message(**changes: Any) -> NewMessage:
    values: dict[str, Any] = {
        "topic": "TopicA",
        "queue_id": 1,
        "body": b"hello",
        "born_timestamp_ms": 5,
        "born_host": PEER,
    }
    return NewMessage(**(values | changes))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with SmallStore(tmp_path) as store:
        yield store


def writer_of(store: MessageStore, **properties: str) -> MessageWriter:
    appender = Appender(store, asyncio.get_running_loop())
    return MessageWriter(appender, Settings(BrokerConfig.from_properties(properties)))


async def test_a_message_is_stored_as_it_is(store: MessageStore) -> None:
    writer = writer_of(store, brokerIP1="127.0.0.1", listenPort="10911")
    entry = await writer.write(
        new_message(properties={"KEYS": "k"}, flag=7, sys_flag=1, reconsume_times=2)
    )
    view = store.lookup(entry.physical_offset)
    assert view is not None
    record, _ = decode_record(view)
    assert (record.topic, record.queue_id, record.body, record.flag) == ("TopicA", 1, b"hello", 7)
    assert (record.sys_flag, record.reconsume_times, record.born_host) == (1, 2, PEER)
    assert record.properties == b"KEYS\x01k\x02"
    assert str(record.store_host) == "127.0.0.1:10911"


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("99", 18), ("+3", 3)])
async def test_a_delayed_message_goes_to_its_level(
    store: MessageStore, asked: str, level: int
) -> None:
    writer = writer_of(store)
    original = new_message(properties={"DELAY": asked, "TIMER_DELAY_SEC": "4", "KEYS": "k"})
    entry = await writer.write(original)
    assert (entry.topic, entry.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    assert decode_properties(entry.properties) == {
        "DELAY": str(level),
        "KEYS": "k",
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "1",
    }
    assert original.topic == "TopicA"  # the caller's message is not changed


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": {"DELAY": "0"}},
        {"properties": {"DELAY": "-1"}},
        {"properties": {"DELAY": "3"}, "sys_flag": 4},
        {"properties": {"DELAY": "3"}, "sys_flag": 12},
        {"properties": {"TIMER_DELAY_MS": "3", "TIMER_OUT_MS": "9"}},
    ],
)
async def test_not_delayed(store: MessageStore, changes: dict[str, Any]) -> None:
    entry = await writer_of(store).write(new_message(**changes))
    assert entry.topic == "TopicA"


async def test_a_committed_transaction_may_be_delayed(store: MessageStore) -> None:
    entry = await writer_of(store).write(new_message(sys_flag=8, properties={"DELAY": "2"}))
    assert entry.topic == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize("delay", ["", "x", "1x", "1.5", "99999999999999999999", "--1", "٣"])
async def test_a_delay_must_be_a_number(store: MessageStore, delay: str) -> None:
    with pytest.raises(ProtocolError):
        await writer_of(store).write(new_message(properties={"DELAY": delay}))
    assert store.log_max_offset == 0


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"body": b""}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": b"x" * 101}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "%RETRY%" + "g" * 249}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": {"INNER_NUM": "3"}}, PutStatus.MESSAGE_ILLEGAL),
        ({"sys_flag": 0x80}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": 70_000}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": {"p": "x" * 32766}}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"properties": {"TIMER_DELIVER_MS": "3"}}, PutStatus.WHEEL_TIMER_NOT_ENABLE),
        ({"properties": {"TIMER_DELAY_SEC": "3"}}, PutStatus.WHEEL_TIMER_NOT_ENABLE),
        ({"properties": {"TIMER_DELAY_MS": "3"}}, PutStatus.WHEEL_TIMER_NOT_ENABLE),
    ],
)
async def test_illegal_messages_are_refused(
    store: MessageStore, changes: dict[str, Any], status: PutStatus
) -> None:
    writer = writer_of(store, maxMessageSize="100")
    with pytest.raises(StoreError) as refused:
        await writer.write(new_message(**changes))
    assert put_status(refused.value) is status
    assert store.log_max_offset == 0


async def test_retry_topics_may_be_long(store: MessageStore) -> None:
    entry = await writer_of(store).write(new_message(topic="%RETRY%" + "g" * 248))
    assert len(entry.topic) == 255


async def test_a_new_limit_applies_at_once(store: MessageStore) -> None:
    settings = Settings(BrokerConfig())
    writer = MessageWriter(Appender(store, asyncio.get_running_loop()), settings)
    await writer.write(new_message(body=b"12345"))
    settings.replace(BrokerConfig.from_properties({"maxMessageSize": "4"}))
    with pytest.raises(PutRefusedError):
        await writer.write(new_message(body=b"12345"))


@pytest.mark.parametrize(
    ("wait", "is_waited_for"), [(None, True), ("true", True), ("TRUE", True), ("false", False)]
)
async def test_which_messages_wait_for_the_disk(
    tmp_path: Path, wait: str | None, is_waited_for: bool
) -> None:
    small = SmallStore(tmp_path, flush_mode=FlushMode.SYNC)
    with small as store:
        writer = writer_of(store)
        small.flush_worker.is_held = True
        properties = {} if wait is None else {"WAIT": wait}
        writing = asyncio.create_task(writer.write(new_message(properties=properties)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert writing.done() is not is_waited_for
        small.flush_worker.is_held = False
        small.flush_worker.run()
        async with asyncio.timeout(60):
            await writing


async def test_submit_reports_the_outcome(store: MessageStore) -> None:
    writer = writer_of(store)
    notified: list[tuple[LogEntry | None, StoreError | None]] = []
    writer.submit(
        new_message(properties={"DELAY": "2"}), lambda entry, error: notified.append((entry, error))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ((entry, error),) = notified
    assert error is None
    assert entry is not None
    assert entry.topic == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, PutStatus.PUT_OK),
        (FlushTimeoutError(0, 5), PutStatus.FLUSH_DISK_TIMEOUT),
        (MessageIllegalError("x"), PutStatus.MESSAGE_ILLEGAL),
        (StoreUnavailableError("x"), PutStatus.SERVICE_NOT_AVAILABLE),
        (StoreFullError("x"), PutStatus.SERVICE_NOT_AVAILABLE),
        (StoreDiskError("x"), PutStatus.CREATE_MAPPED_FILE_FAILED),
        (StoreError("x"), PutStatus.UNKNOWN_ERROR),
    ],
)
def test_statuses(error: StoreError | None, status: PutStatus) -> None:
    assert put_status(error) is status
