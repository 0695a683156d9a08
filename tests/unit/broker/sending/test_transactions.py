"""Transactions: half messages, their end, the op queue, check-backs, restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.rules import register
from goddard.broker.sending.message_rules import NewMessage
from goddard.broker.sending.transaction_checks import GROUP
from goddard.broker.sending.transactions import Transactions, as_half
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.headers.message import CheckTransactionRequest, EndTransactionRequest
from goddard.protocol.ids import offset_message_id, parse_offset_message_id
from goddard.protocol.message import TransactionType, encode_properties
from goddard.protocol.names import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from goddard.protocol.record import MAX_PROPERTIES_BYTES, Record, decode_record
from goddard.store.config import FlushMode
from goddard.store.errors import StoreUnavailableError
from goddard.store.log.block import each_entry
from goddard.store.log.records import LogEntry
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.broker_parts import BrokerParts, broker_parts, properties_of
from tests.support.clock import ManualClock
from tests.support.memory import RawPeer, join_raw
from tests.support.store import HOST, prepared, put_forged

COMMIT = TransactionType.COMMIT
ROLLBACK = TransactionType.ROLLBACK


@dataclass
class Harness:
    """Transactions around a store, and one producer of the group P."""

    parts: BrokerParts
    transactions: Transactions
    peer: RawPeer
    connection: Connection
    producers: dict[str, Connection] = field(default_factory=dict)
    saves: int = 0

    async def send_half(self, body: bytes = b"order 1", **properties: str) -> LogEntry:
        return await self.parts.writer.write(as_half(self.message(body, **properties)))

    def message(self, body: bytes = b"order 1", **properties: str) -> NewMessage:
        return NewMessage(
            topic="Orders",
            queue_id=2,
            body=body,
            born_timestamp_ms=self.parts.clock.now_ms(),
            born_host=HOST,
            properties={"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "U1", "TAGS": "T"}
            | properties,
            flag=9,
            sys_flag=0x5,
        )

    async def end(
        self, entry: LogEntry, decision: int, *, answered: bool = True, **fields: Any
    ) -> RemotingCommand | None:
        """Send END_TRANSACTION and wait for the answer, or until earlier requests are handled."""
        values: dict[str, Any] = {
            "producer_group": "P",
            "tran_state_table_offset": entry.queue_offset,
            "commit_log_offset": entry.physical_offset,
            "commit_or_rollback": decision,
            "msg_id": "U1",
        } | fields
        return await self.request(
            RequestCode.END_TRANSACTION,
            EndTransactionRequest(**values).encode(),
            answered=answered,
        )

    async def request(
        self, code: int, fields: dict[str, str], *, answered: bool = True
    ) -> RemotingCommand | None:
        self.peer.transport.write(encode_frame(RemotingCommand(code, fields, opaque=5)))
        if not answered:
            with pytest.raises(TimeoutError):
                await self.peer.receive(1, 0.05)
            return None
        (answer,) = await self.peer.receive(1)
        return answer

    async def op_bodies(self) -> list[bytes]:
        """The bodies of the op queue, after all decisions are written."""
        self.transactions.note_decisions()
        await self.parts.appender.drain()
        return [record.body for record in self.parts.records(TRANS_OP_HALF_TOPIC)]

    def halves(self) -> list[Record]:
        return self.parts.records(TRANS_HALF_TOPIC)

    def offsets(self) -> tuple[int, int]:
        table = self.parts.offset_table
        return (
            table.query(GROUP, TRANS_HALF_TOPIC, 0),
            table.query(GROUP, TRANS_OP_HALF_TOPIC, 0),
        )


@asynccontextmanager
async def harness(
    root: Path, *, clock: ManualClock | None = None, crash: bool = False, **options: Any
) -> AsyncIterator[Harness]:
    async with broker_parts(root, clock=clock, crash=crash, **options) as parts:
        handlers = Handlers()
        producers: dict[str, Connection] = {}

        async def save() -> None:
            made.saves += 1
            parts.offset_table.save()

        transactions = Transactions(
            store=parts.store,
            appender=parts.appender,
            writer=parts.writer,
            topics=parts.topics,
            offsets=parts.offset_table,
            settings=parts.settings,
            find_producer=producers.get,
            save_offsets=save,
            clock=parts.clock,
        )
        register(handlers, transactions.handlers())
        peer, connection = join_raw(handlers)
        producers["P"] = connection
        made = Harness(parts, transactions, peer, connection, producers)
        try:
            yield made
        finally:
            if not crash:
                await transactions.stop()
            connection.close()
            await peer.lost.wait()


class TestHalf:
    async def test_a_half_is_stored_in_the_half_topic(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            await made.send_half()
            (half,) = made.halves()
            assert made.parts.records("Orders", 2) == []
        assert properties_of(half) == {
            "TRAN_MSG": "true",
            "PGROUP": "P",
            "UNIQ_KEY": "U1",
            "TAGS": "T",
            "__transactionId__": "U1",
            "REAL_TOPIC": "Orders",
            "REAL_QID": "2",
        }
        assert (half.queue_id, half.flag) == (0, 9)
        assert half.sys_flag == 0x1  # still compressed, but no longer "prepared"

    async def test_a_delayed_half_is_not_stored_in_the_delay_topic(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            await made.send_half(DELAY="3")
            assert len(made.halves()) == 1
            assert made.parts.records(SCHEDULE_TOPIC, 2) == []

    def test_without_a_unique_id_there_is_no_transaction_id(self) -> None:
        plain = NewMessage(topic="T", queue_id=0, body=b"x", born_timestamp_ms=0, born_host=HOST)
        assert "__transactionId__" not in as_half(plain).properties
        assert plain.properties == {}


class TestEnd:
    async def test_commit(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            answer = await made.end(entry, COMMIT)
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS
            (record,) = made.parts.records("Orders", 2)
            assert await made.op_bodies() == [b"0"]
            (op,) = made.parts.records(TRANS_OP_HALF_TOPIC)
        # As RocketMQ 5.4.0 stores it.
        assert properties_of(record) == {
            "TRAN_MSG": "true",
            "PGROUP": "P",
            "UNIQ_KEY": "U1",
            "TAGS": "T",
            "__transactionId__": "U1",
        }
        assert record.body == b"order 1"
        assert record.sys_flag == 0x1 | COMMIT
        assert record.prepared_transaction_offset == entry.physical_offset
        assert (record.flag, record.born_host) == (9, HOST)
        assert op.properties == b"WAIT\x01true\x02TAGS\x01d\x02"

    async def test_rollback(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            answer = await made.end(entry, ROLLBACK)
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS
            assert made.parts.records("Orders", 2) == []
            assert await made.op_bodies() == [b"0"]

    @pytest.mark.parametrize("decision", [0, 4, 7, -1])
    async def test_an_end_without_decision_is_not_answered(
        self, tmp_path: Path, decision: int
    ) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            await made.end(entry, decision, answered=False)
            assert await made.op_bodies() == []

    async def test_many_decisions_share_an_op(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entries = [await made.send_half(b"%d" % number) for number in range(3)]
            for entry in reversed(entries):
                await made.end(entry, COMMIT)
            assert await made.op_bodies() == [b"2,1,0"]

    async def test_ops_are_split_at_the_maximum_size(self, tmp_path: Path) -> None:
        async with harness(tmp_path, transaction_op_bytes=4) as made:
            entries = [await made.send_half(b"%d" % number) for number in range(5)]
            for entry in entries:
                await made.end(entry, ROLLBACK)
            assert await made.op_bodies() == [b"0,1", b"2,3", b"4"]

    async def test_ops_are_written_in_the_background(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            written = asyncio.Event()
            made.parts.store.add_listener(
                lambda placed: (
                    written.set() if each_entry(placed)[0].topic == TRANS_OP_HALF_TOPIC else None
                )
            )
            await made.end(await made.send_half(), ROLLBACK)
            async with asyncio.timeout(60):
                await written.wait()

    async def test_a_commit_of_a_peer_that_disconnects_is_kept(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            fields = EndTransactionRequest(
                producer_group="P",
                tran_state_table_offset=0,
                commit_log_offset=entry.physical_offset,
                commit_or_rollback=COMMIT,
                msg_id="U1",
            ).encode()
            request = RemotingCommand(RequestCode.END_TRANSACTION, fields, flag=2)
            made.peer.transport.write(encode_frame(request))
            made.peer.transport.close()
            await made.peer.lost.wait()
            assert len(made.parts.records("Orders", 2)) == 1

    @pytest.mark.parametrize(
        ("fields", "remark"),
        [
            ({"commit_log_offset": 3}, "Find prepared transaction message failed"),
            ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
            ({"commit_log_offset": 2**62}, "Find prepared transaction message failed"),
            ({"producer_group": "Other"}, "The producer group wrong"),
            ({"tran_state_table_offset": 7}, "The transaction state table offset wrong"),
            ({"tran_state_table_offset": -7}, "The transaction state table offset wrong"),
        ],
    )
    @pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
    async def test_refused_ends(
        self, tmp_path: Path, fields: dict[str, Any], remark: str, decision: int
    ) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            answer = await made.end(entry, decision, **fields)
            assert answer is not None
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
            assert made.parts.records("Orders", 2) == []
            assert await made.op_bodies() == []

    async def test_a_message_that_is_not_a_half_cannot_be_ended(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = made.parts.put(prepared("TopicA", 0, properties=b"PGROUP\x01P\x02"))
            answer = await made.end(entry, COMMIT)
            assert answer is not None
            assert answer.remark == "Find prepared transaction message failed"

    @pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
    async def test_a_forged_half_inside_of_a_body_cannot_be_ended(
        self, tmp_path: Path, decision: int
    ) -> None:
        properties = b"PGROUP\x01P\x02REAL_TOPIC\x01Secret\x02REAL_QID\x010\x02"
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            forged = put_forged(made.parts.store, TRANS_HALF_TOPIC, properties)
            answer = await made.end(entry, decision, commit_log_offset=forged)
            assert answer is not None
            assert answer.remark == "Find prepared transaction message failed"
            id_ = offset_message_id(HOST, forged)
            answer = await made.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": id_})
            assert answer is not None
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert made.parts.records("Secret") == []
            assert len(made.halves()) == 1
            assert await made.op_bodies() == []

    async def test_a_half_without_its_topic(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = made.parts.put(prepared(TRANS_HALF_TOPIC, 0, properties=b"PGROUP\x01P\x02"))
            answer = await made.end(entry, COMMIT)
            assert answer is not None
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert await made.op_bodies() == []

    @pytest.mark.parametrize("missing", ["producerGroup", "commitLogOffset", "msgId"])
    async def test_missing_fields(self, tmp_path: Path, missing: str) -> None:
        async with harness(tmp_path) as made:
            fields = EndTransactionRequest(
                producer_group="P",
                tran_state_table_offset=0,
                commit_log_offset=0,
                commit_or_rollback=8,
                msg_id="U",
            ).encode()
            del fields[missing]
            answer = await made.request(RequestCode.END_TRANSACTION, fields)
            assert answer is not None
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert missing in (answer.remark or "")

    async def test_a_commit_after_the_immunity_time(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS="30")
            made.parts.clock.advance(30_001)
            answer = await made.end(entry, COMMIT)
            assert answer is not None
            assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, None)
            # The answer to a check is always accepted.
            answer = await made.end(entry, COMMIT, from_transaction_check=True)
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS

    async def test_a_commit_that_cannot_be_stored_writes_no_op(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()

            def refuse(records: object, *, whole: bool = False) -> list[LogEntry]:
                raise StoreUnavailableError("the disk is full")

            with monkeypatch.context() as patch:
                patch.setattr(made.parts.store, "append", refuse)
                answer = await made.end(entry, COMMIT)
            assert answer is not None
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark == "Service not available now."
            assert await made.op_bodies() == []


class TestTransactionChecks:
    async def test_a_producer_is_asked_about_an_undecided_half(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            made.parts.clock.advance(6_001)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            first, renewed = made.halves()
            config = made.parts.settings.current
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE
            assert command.is_oneway
            header = CheckTransactionRequest.decode(command.fields)
            assert header == CheckTransactionRequest(
                topic=TRANS_HALF_TOPIC,
                tran_state_table_offset=1,
                commit_log_offset=renewed.physical_offset,
                msg_id="U1",
                transaction_id="U1",
                offset_msg_id=offset_message_id(config.store_host, renewed.physical_offset),
                bname=config.broker_name,
            )
            record, _ = decode_record(command.body)
            assert (record.topic, record.queue_id, record.queue_offset) == ("Orders", 2, 1)
            assert record.physical_offset == renewed.physical_offset
            assert record.store_timestamp_ms == first.store_timestamp_ms
            assert record.body == b"order 1"
            assert properties_of(record) == properties_of(first) | {
                "TRANSACTION_CHECK_TIMES": "1",
                "WAIT": "false",
            }
            assert properties_of(renewed) == properties_of(first) | {"TRANSACTION_CHECK_TIMES": "1"}
            assert renewed.flag == first.flag
            assert made.offsets() == (1, -1)
            assert made.saves == 1
            # Its answer ends the transaction.
            answer = await made.end(
                LogEntry(TRANS_HALF_TOPIC, 0, 1, renewed.physical_offset, 0, 0, 0, 0, b""),
                COMMIT,
                from_transaction_check=True,
            )
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS
            assert len(made.parts.records("Orders", 2)) == 1
            assert entry.queue_offset == 0

    async def test_a_producer_is_asked_when_the_renewed_half_can_be_found(
        self, tmp_path: Path
    ) -> None:
        async with harness(tmp_path, store={"flush_mode": FlushMode.SYNC}) as made:
            await made.send_half()
            made.parts.clock.advance(6_001)
            worker = made.parts.small.flush_worker
            worker.is_held = True
            checking = asyncio.create_task(made.transactions.check())
            with pytest.raises(TimeoutError):
                await made.peer.receive(1, 0.1)
            worker.is_held = False
            worker.run()
            (command,) = await made.peer.receive(1)
            await checking
            header = CheckTransactionRequest.decode(command.fields)
            assert made.parts.store.lookup(header.commit_log_offset) is not None

    async def test_young_halves_are_not_checked(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            await made.send_half()
            made.parts.clock.advance(6_000)
            await made.transactions.check()
            assert len(made.halves()) == 1
            assert made.offsets() == (-1, -1)

    async def test_decided_halves_and_their_ops_are_skipped(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entries = [await made.send_half(b"%d" % number) for number in range(100)]
            for entry in entries:
                await made.end(entry, ROLLBACK)
            await made.op_bodies()
            made.parts.clock.advance(10_000)
            await made.transactions.check()
            assert len(made.halves()) == 100
            assert made.offsets() == (100, 1)

    async def test_a_decision_not_yet_in_the_op_queue_counts(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            made.parts.clock.advance(10_000)
            await made.end(entry, ROLLBACK)
            await made.transactions.check()
            assert len(made.halves()) == 1
            assert made.offsets() == (1, -1)

    async def test_a_half_whose_commit_fails_during_a_round_is_checked(
        self, tmp_path: Path
    ) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half()
            made.parts.clock.advance(60_000)
            submitted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    made.parts.writer, "submit", lambda message, done: submitted.set_result(done)
                )
                ending = asyncio.create_task(made.end(entry, COMMIT))
                async with asyncio.timeout(60):
                    fail = await submitted
            await made.transactions.check()
            assert made.offsets()[0] in (-1, entry.queue_offset)
            assert len(made.halves()) == 1
            fail(None, StoreUnavailableError("no disk"))
            answer = await ending
            assert answer is not None
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await made.transactions.check()
            (asked,) = await made.peer.receive(1)
            assert asked.code == RequestCode.CHECK_TRANSACTION_STATE

    async def test_ops_of_every_version_are_read(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            for number in range(5):
                await made.send_half(b"%d" % number)
            for body in (b"0", b"3,1,", b"nonsense,4"):
                made.parts.put(prepared(TRANS_OP_HALF_TOPIC, 0, body, tags="d"))
            made.parts.put(prepared(TRANS_OP_HALF_TOPIC, 0, b"2", tags="other"))
            made.parts.clock.advance(10_000)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            record, _ = decode_record(command.body)
            assert record.body == b"2"
            assert made.offsets() == (5, 4)

    async def test_without_a_live_producer_the_half_is_kept(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            made.producers.clear()
            await made.send_half()
            for round_number in (1, 2, 3):
                made.parts.clock.advance(30_000)
                await made.transactions.check()
                assert properties_of(made.halves()[-1])["TRANSACTION_CHECK_TIMES"] == str(
                    round_number
                )
            assert made.offsets() == (3, -1)

    async def test_a_half_checked_too_often_is_set_aside(self, tmp_path: Path) -> None:
        async with harness(tmp_path, transaction_check_max=2) as made:
            await made.send_half()
            for _ in range(4):
                made.parts.clock.advance(30_000)
                await made.transactions.check()
            assert len(made.halves()) == 3
            (aside,) = made.parts.records(TRANS_CHECK_MAX_TIME_TOPIC)
            assert aside.body == b"order 1"
            assert properties_of(aside)["TRANSACTION_CHECK_TIMES"] == "2"
            topic = made.parts.topics.get(TRANS_CHECK_MAX_TIME_TOPIC)
            assert topic is not None
            assert (topic.read_queue_nums, topic.perm) == (1, 6)
            assert made.offsets() == (3, -1)
            await made.peer.receive(2)  # the number of checks
            # An administrator has it checked again.
            id_ = offset_message_id(HOST, aside.physical_offset)
            answer = await made.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": id_})
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS
            resumed = made.halves()[-1]
            assert properties_of(resumed)["TRANSACTION_CHECK_TIMES"] == "0"

    async def test_a_half_older_than_the_reserved_time_is_set_aside(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            await made.send_half()
            made.parts.clock.advance(73 * 3_600_000)
            await made.transactions.check()
            assert len(made.parts.records(TRANS_CHECK_MAX_TIME_TOPIC)) == 1

    async def test_a_half_that_cannot_be_rewritten_does_not_block_the_others(
        self, tmp_path: Path
    ) -> None:
        async with harness(tmp_path) as made:
            used = len(encode_properties(as_half(made.message(filler="x")).properties))
            await made.send_half(b"too long", filler="x" * (MAX_PROPERTIES_BYTES - used + 1))
            await made.send_half(b"good")
            made.parts.clock.advance(10_000)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            assert decode_record(command.body)[0].body == b"good"
            (aside,) = made.parts.records(TRANS_CHECK_MAX_TIME_TOPIC)
            assert aside.body == b"too long"

    async def test_a_store_that_refuses_messages_stops_the_round(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with harness(tmp_path) as made:
            await made.send_half()
            made.parts.clock.advance(10_000)

            def refuse(records: object, *, whole: bool = False) -> list[LogEntry]:
                raise StoreUnavailableError("the disk is full")

            with monkeypatch.context() as patch:
                patch.setattr(made.parts.store, "append", refuse)
                await made.transactions.check()
            assert made.offsets() == (-1, -1)
            await made.transactions.check()
            await made.peer.receive(1)

    async def test_the_service_checks_periodically(self, tmp_path: Path) -> None:
        async with harness(tmp_path, transaction_check_interval_ms=20) as made:
            await made.send_half()
            made.parts.clock.advance(10_000)
            made.transactions.start()
            (command,) = await made.peer.receive(1)
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE


class TestImmunity:
    async def test_a_half_is_not_checked_before_its_immunity_ends(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            await made.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
            for _ in range(2):
                made.parts.clock.advance(29_000)
                await made.transactions.check()
            halves = made.halves()
            assert len(halves) == 3
            assert properties_of(halves[-1])["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
            assert "TRANSACTION_CHECK_TIMES" not in properties_of(halves[-1])
            made.parts.clock.advance(29_000)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE

    async def test_a_decision_by_the_first_offset_ends_the_rewritten_half(
        self, tmp_path: Path
    ) -> None:
        async with harness(tmp_path) as made:
            entry = await made.send_half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
            made.parts.clock.advance(20_000)
            await made.transactions.check()
            assert made.offsets() == (1, -1)
            await made.end(entry, COMMIT)
            assert await made.op_bodies() == [b"0"]
            made.parts.clock.advance(100_000)
            await made.transactions.check()
            assert made.offsets() == (2, 1)
            assert len(made.halves()) == 2
            assert len(made.parts.records("Orders", 2)) == 1

    async def test_a_wrong_clock_of_the_producer_gives_no_immunity(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            message = made.message(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
            message.born_timestamp_ms = 2**62
            await made.parts.writer.write(as_half(message))
            made.parts.clock.advance(10)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE


class TestRestart:
    async def test_undecided_halves_are_checked_after_a_restart(self, tmp_path: Path) -> None:
        clock = ManualClock()
        async with harness(tmp_path, clock=clock) as made:
            entry = await made.send_half(b"decided")
            await made.send_half(b"open")
            await made.end(entry, COMMIT)
        clock.advance(10_000)
        async with harness(tmp_path, clock=clock) as made:
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            assert decode_record(command.body)[0].body == b"open"
            assert made.offsets() == (2, 1)
        clock.advance(10_000)
        async with harness(tmp_path, clock=clock) as made:
            assert made.offsets() == (2, 1)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            record, _ = decode_record(command.body)
            assert properties_of(record)["TRANSACTION_CHECK_TIMES"] == "2"
            assert made.offsets() == (3, 1)

    async def test_undecided_halves_are_checked_after_a_crash(self, tmp_path: Path) -> None:
        clock = ManualClock()
        async with harness(tmp_path, clock=clock, crash=True) as made:
            await made.send_half(b"open")
            clock.advance(10_000)
            await made.transactions.check()
        async with harness(tmp_path, clock=clock) as made:
            # The offset was saved with the round, so there is one half, not two.
            assert made.offsets() == (1, -1)
            clock.advance(10_000)
            await made.transactions.check()
            (command,) = await made.peer.receive(1)
            assert decode_record(command.body)[0].body == b"open"

    async def test_offsets_outside_the_queues_are_corrected(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as made:
            made.parts.offset_table.commit(GROUP, TRANS_HALF_TOPIC, 0, 50)
            made.parts.offset_table.commit(GROUP, TRANS_OP_HALF_TOPIC, 0, 50)
            await made.send_half()
            await made.transactions.check()
            assert made.offsets()[0] == 1


class TestResume:
    @pytest.mark.parametrize(
        "message_id", [None, "", "nonsense", "7F000001000051AF00000000FFFFFFFF", "0" * 32]
    )
    async def test_unknown_messages(self, tmp_path: Path, message_id: str | None) -> None:
        async with harness(tmp_path) as made:
            made.parts.put(prepared("TopicA"))
            fields = {} if message_id is None else {"msgId": message_id}
            answer = await made.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
            assert answer is not None
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert made.halves() == []

    def test_message_ids_contain_offsets(self) -> None:
        assert parse_offset_message_id(offset_message_id(HOST, 77)) == (HOST, 77)
