"""Stores of RocketMQ continue here: delays, transactions and retries, stored as Java does."""

import tarfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from goddard.broker.rules import register
from goddard.broker.sending.delay import DelayDelivery
from goddard.broker.sending.retry import SendBacks
from goddard.broker.sending.transaction_checks import GROUP
from goddard.broker.sending.transactions import Transactions, as_committed, as_half
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import CheckTransactionRequest, SendBackRequest
from goddard.protocol.ids import parse_offset_message_id
from goddard.protocol.message import decode_properties
from goddard.protocol.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from goddard.protocol.record import Record, decode_record
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.broker_parts import BrokerParts, broker_parts, properties_of
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer, join_raw

DATA = Path(__file__).parent / "data" / "store"
NAMES = ("clean-5.4.0", "clean-4.9.4", "kill9-5.4.0")
STORE = {
    "segment_bytes": 1_048_576,
    "queue_file_bytes": 6_000,
    "index_slots": 1_000,
    "index_entries": 2_000,
    "reserved_hours": 720,
}
# From the last message to the start here; the pending delays are of 20 minutes and more.
PAUSE_MS = 5 * 60_000


@asynccontextmanager
async def java_store(name: str, folder: Path) -> AsyncIterator[BrokerParts]:
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    clock = ManualClock()
    async with broker_parts(folder / "store", clock=clock, store=dict(STORE)) as parts:
        clock.jump(parts.store.log.last_store_timestamp_ms + PAUSE_MS - clock.now_ms())
        yield parts


def log_records(parts: BrokerParts) -> list[Record]:
    log = parts.store.log
    found = []
    for entry in log.scan(log.min_offset):
        view = parts.store.lookup(entry.physical_offset)
        assert view is not None
        found.append(decode_record(view)[0])
    return found


Image = tuple[str, int, bytes, int, int, int, int, str, tuple[tuple[str, str], ...]]


def image(record: Record) -> Image:
    """All of a record except its position and store time."""
    return (
        record.topic,
        record.queue_id,
        record.body,
        record.flag,
        record.sys_flag,
        record.reconsume_times,
        record.born_timestamp_ms,
        str(record.born_host),
        tuple(sorted(properties_of(record).items())),
    )


def images(records: Iterable[Record]) -> list[Image]:
    return sorted(map(image, records))


@pytest.mark.parametrize("name", NAMES)
class TestDelays:
    async def test_pending_messages_are_delivered_when_they_are_due(
        self, name: str, tmp_path: Path
    ) -> None:
        async with java_store(name, tmp_path) as parts:
            delays = _delivery(parts)
            before = parts.store.log_max_offset
            while await delays.deliver() == 0:
                pass
            assert parts.store.log_max_offset == before  # Java delivered the messages that were due
            parts.clock.advance(2 * 3_600_000)
            while await delays.deliver() == 0:
                pass
            expected = {
                record.body
                for queue_id in range(14, 18)
                for record in parts.records(SCHEDULE_TOPIC, queue_id)
            }
            delivered = [
                record for record in log_records(parts) if record.physical_offset >= before
            ]
            assert len(expected) > 4
            assert {record.body for record in delivered} == expected
            assert len(delivered) == len(expected)

    async def test_a_delivered_message_is_stored_as_java_stores_it(
        self, name: str, tmp_path: Path
    ) -> None:
        async with java_store(name, tmp_path) as parts:
            waited = {
                (properties["UNIQ_KEY"], record.reconsume_times)
                for queue_id in (0, 1)
                for record in parts.records(SCHEDULE_TOPIC, queue_id)
                for properties in (properties_of(record),)
            }
            by_java = [
                record
                for record in log_records(parts)
                if record.topic != SCHEDULE_TOPIC
                and not record.topic.startswith("%DLQ%")
                and "DELAY" in (properties := properties_of(record))
                and (properties["UNIQ_KEY"], record.reconsume_times) in waited
            ]
            for level in (1, 2):
                parts.delay_table.commit(level, 0)
            before = parts.store.log_max_offset
            delays = _delivery(parts)
            while await delays.deliver() == 0:
                pass
            ours = [record for record in log_records(parts) if record.physical_offset >= before]
            assert len(ours) > 20
            assert images(ours) == images(by_java)


def _delivery(parts: BrokerParts) -> DelayDelivery:
    return DelayDelivery(
        store=parts.store, table=parts.delay_table, appender=parts.appender, clock=parts.clock
    )


@pytest.mark.parametrize("name", NAMES)
class TestTransactions:
    async def test_a_commit_is_stored_as_java_stores_it(self, name: str, tmp_path: Path) -> None:
        async with java_store(name, tmp_path) as parts:
            commits = [
                record for record in log_records(parts) if record.prepared_transaction_offset
            ]
            assert len(commits) > 5
            for by_java in commits:
                view = parts.store.lookup(by_java.prepared_transaction_offset)
                assert view is not None
                half, _ = decode_record(view)
                ours = as_committed(half)
                properties = properties_of(by_java)
                # 4.9.4 left these two in; 5.4.0 takes them out.
                properties.pop("REAL_TOPIC", None)
                properties.pop("REAL_QID", None)
                assert ours.properties == properties
                assert (ours.topic, ours.queue_id) == (by_java.topic, by_java.queue_id)
                assert (ours.sys_flag, ours.flag) == (by_java.sys_flag, by_java.flag)
                assert ours.prepared_transaction_offset == half.physical_offset
                # The reverse: the message that the producer sent, stored as a half.
                again = as_half(ours)
                half_properties = properties_of(half)
                half_properties.setdefault("__transactionId__", half_properties["UNIQ_KEY"])
                assert again.properties == half_properties
                assert (again.topic, again.sys_flag) == (half.topic, half.sys_flag)

    async def test_only_undecided_halves_are_checked(self, name: str, tmp_path: Path) -> None:
        async with java_store(name, tmp_path) as parts, _checking(parts) as (transactions, peer):
            before = len(parts.records(TRANS_HALF_TOPIC))
            undecided = parts.records(TRANS_HALF_TOPIC)[
                parts.offset_table.query(GROUP, TRANS_HALF_TOPIC, 0) :
            ]
            assert undecided
            await transactions.check()
            commands = await peer.receive(len(undecided))
            for half, command in zip(undecided, commands, strict=True):
                assert command.code == RequestCode.CHECK_TRANSACTION_STATE
                header = CheckTransactionRequest.decode(command.fields)
                record, _ = decode_record(command.body)
                assert record.body == half.body
                assert header.msg_id == properties_of(half)["UNIQ_KEY"]
                times = int(properties_of(half).get("TRANSACTION_CHECK_TIMES", "0"))
                assert properties_of(record)["TRANSACTION_CHECK_TIMES"] == str(times + 1)
            renewed = parts.records(TRANS_HALF_TOPIC)[before:]
            assert [half.body for half in renewed] == [half.body for half in undecided]
            assert parts.offset_table.query(GROUP, TRANS_HALF_TOPIC, 0) == before

    async def test_decisions_of_both_formats_are_read_without_offsets(
        self, name: str, tmp_path: Path
    ) -> None:
        """Without offsets the whole queue is read: ops of 4.9 are numbers, those of 5.4 lists."""
        async with java_store(name, tmp_path) as parts, _checking(parts) as (transactions, peer):
            parts.offset_table.remove(group=GROUP)
            halves = parts.records(TRANS_HALF_TOPIC)
            noted = {
                int(text)
                for op in parts.records(TRANS_OP_HALF_TOPIC)
                for text in op.body.decode().split(",")
                if text
            }
            assert len(noted) > 15
            open_ = [half for half in halves if half.queue_offset not in noted]
            await transactions.check()
            commands = await peer.receive(len(open_))
            asked = [decode_record(command.body)[0].body for command in commands]
            assert asked == [half.body for half in open_]
            assert parts.offset_table.query(GROUP, TRANS_HALF_TOPIC, 0) == len(halves)
            assert parts.offset_table.query(GROUP, TRANS_OP_HALF_TOPIC, 0) == len(
                parts.records(TRANS_OP_HALF_TOPIC)
            )


@asynccontextmanager
async def _checking(parts: BrokerParts) -> AsyncIterator[tuple[Transactions, RawPeer]]:
    peer, connection = join_raw(Handlers())

    def producer(group: str) -> Connection:
        assert group == "ProducerGroupTx"
        return connection

    transactions = Transactions(
        store=parts.store,
        appender=parts.appender,
        writer=parts.writer,
        topics=parts.topics,
        offsets=parts.offset_table,
        settings=parts.settings,
        find_producer=producer,
        clock=parts.clock,
    )
    try:
        yield transactions, peer
    finally:
        await transactions.stop()
        connection.close()
        await peer.lost.wait()


@pytest.mark.parametrize("name", NAMES)
async def test_retries_are_stored_as_java_stores_them(name: str, tmp_path: Path) -> None:
    async with java_store(name, tmp_path) as parts:
        handlers = Handlers()
        send_backs = SendBacks(
            store=parts.store,
            writer=parts.writer,
            topics=parts.topics,
            groups=parts.groups,
            settings=parts.settings,
        )
        register(handlers, send_backs.handlers())
        peer, connection = join_raw(handlers)
        by_java = [record for record in log_records(parts) if _is_retry(record)]
        retried = {
            (properties_of(record)["UNIQ_KEY"], record.reconsume_times): record
            for record in log_records(parts)
            if record.topic == "%RETRY%GroupRetry"
        }
        assert {record.topic for record in by_java} == {SCHEDULE_TOPIC, "%DLQ%GroupRetry"}
        before = parts.store.log_max_offset
        for record in by_java:
            properties = properties_of(record)
            if record.reconsume_times == 1:
                _, offset = parse_offset_message_id(properties["ORIGIN_MESSAGE_ID"])
            else:
                consumed = retried[properties["UNIQ_KEY"], record.reconsume_times - 1]
                offset = consumed.physical_offset
            is_dead = record.topic != SCHEDULE_TOPIC
            header = SendBackRequest(
                offset=offset,
                group="GroupRetry",
                delay_level=-1 if is_dead else int(properties["DELAY"]),
                max_reconsume_times=16,
            )
            command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
            peer.transport.write(encode_frame(command))
            (answer,) = await peer.receive(1)
            assert answer.code == ResponseCode.SUCCESS
        ours = [record for record in log_records(parts) if record.physical_offset >= before]
        connection.close()
        await peer.lost.wait()
    assert images(ours) == images(by_java)


def _is_retry(record: Record) -> bool:
    properties = decode_properties(record.properties)
    return (
        record.reconsume_times > 0
        and record.topic in (SCHEDULE_TOPIC, "%DLQ%GroupRetry")
        and ("ORIGIN_MESSAGE_ID" in properties)
    )
