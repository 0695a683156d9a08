"""Transactions with a running broker: commit, rollback, check-back, restarts."""

import asyncio
from pathlib import Path
from typing import Self

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.environment import Environment
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import CheckTransactionRequest, EndTransactionRequest
from goddard.protocol.message import TransactionType, decode_properties
from goddard.protocol.names import TRANS_OP_HALF_TOPIC
from goddard.protocol.record import decode_record
from goddard.protocol.responses import NoPermissionError, check
from goddard.testing.cluster import Cluster
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from tests.support.broker_client import BrokerClient
from tests.support.clock import ManualClock
from tests.support.rules import ANY_RULE

COMMIT = TransactionType.COMMIT
ROLLBACK = TransactionType.ROLLBACK
TOPIC = "Orders"


def config(folder: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": str(16 << 20),
            "mappedFileSizeConsumeQueue": "60000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "4000",
            "transactionCheckInterval": "50",
            **properties,
        }
    )


class Producer:
    """A transactional producer: answers each check with a decision, like Java's does."""

    def __init__(self, decisions: dict[bytes, int]) -> None:
        self.decisions = decisions
        self.asked: asyncio.Queue[tuple[bytes, CheckTransactionRequest]] = asyncio.Queue()
        handlers = Handlers()
        handlers.register(RequestCode.CHECK_TRANSACTION_STATE, self._check, ANY_RULE)
        self.client = Client(ClientOptions(), handlers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def _check(self, request: RemotingCommand, connection: Connection) -> None:
        header = CheckTransactionRequest.decode(request.fields)
        record, _ = decode_record(request.body)
        self.asked.put_nowait((record.body, header))
        answer = EndTransactionRequest(
            topic=header.topic,
            producer_group=decode_properties(record.properties)["PGROUP"],
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=self.decisions.get(record.body, 0),
            from_transaction_check=True,
            msg_id=header.msg_id or "",
            transaction_id=header.transaction_id,
        )
        connection.oneway(RemotingCommand(RequestCode.END_TRANSACTION, answer.encode()))

    async def next_asked(self) -> bytes:
        async with asyncio.timeout(60):
            body, _ = await self.asked.get()
        return body


async def test_commit_and_rollback(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, Client(ClientOptions()) as client:
        talk = BrokerClient(client, broker.address)
        kept = await talk.send_half(TOPIC, b"kept")
        dropped = await talk.send_half(TOPIC, b"dropped")
        assert kept.transaction_id == "U-kept"
        assert (kept.queue_offset, dropped.queue_offset) == (0, 1)
        assert await talk.pull(TOPIC) == []
        check(await talk.end(dropped, ROLLBACK))
        check(await talk.end(kept, COMMIT))
        (record,) = await talk.receive(TOPIC, 1)
        assert record.body == b"kept"
        assert await talk.pull(TOPIC, 1) == []
        wrong = await talk.ask(RequestCode.END_TRANSACTION, {"producerGroup": "P"})
        assert wrong.code == ResponseCode.SYSTEM_ERROR


async def test_a_connected_producer_is_asked_and_its_answer_is_applied(tmp_path: Path) -> None:
    clock = ManualClock()
    decisions = {b"commit": int(COMMIT), b"rollback": int(ROLLBACK)}
    async with (
        Broker(config(tmp_path), environment=Environment(clock=clock)) as broker,
        Producer(decisions) as producer,
    ):
        talk = BrokerClient(producer.client, broker.address)
        await talk.heartbeat("P")
        now_ms = clock.now_ms()
        for body in (b"commit", b"rollback", b"unknown"):
            marks = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": f"U-{body.decode()}"}
            await talk.send(TOPIC, body, marks, sys_flag=4, born_timestamp=now_ms)
        clock.advance(6_001)
        asked = {await producer.next_asked() for _ in range(3)}
        assert asked == {b"commit", b"rollback", b"unknown"}
        (record,) = await talk.receive(TOPIC, 1)
        assert record.body == b"commit"
        # The third is checked again, and is decided this time.
        decisions[b"unknown"] = int(COMMIT)
        clock.advance(6_001)
        while await producer.next_asked() != b"unknown":
            pass
        records = await talk.receive(TOPIC, 2)
        assert {record.body for record in records} == {b"commit", b"unknown"}
        assert records[1].prepared_transaction_offset > 0


async def test_a_new_producer_of_the_group_is_asked_after_a_restart(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with (
        Broker(config(tmp_path), environment=Environment(clock=clock)) as broker,
        Client(ClientOptions()) as client,
    ):
        talk = BrokerClient(client, broker.address)
        decided = await talk.send_half(TOPIC, b"decided")
        await talk.send_half(TOPIC, b"open")
        check(await talk.end(decided, COMMIT))
    clock.advance(60_000)
    async with (
        Broker(config(tmp_path), environment=Environment(clock=clock)) as broker,
        Producer({b"open": int(COMMIT)}) as producer,
    ):
        talk = BrokerClient(producer.client, broker.address)
        await talk.heartbeat("P")
        # Its born time, from the real clock, is in the future: it is checked at once.
        assert await producer.next_asked() == b"open"
        records = await talk.receive(TOPIC, 2)
        assert [record.body for record in records] == [b"decided", b"open"]


async def test_a_killed_broker_checks_undecided_halves(tmp_path: Path) -> None:
    checks = {"transactionCheckInterval": "200", "transactionTimeOut": "500"}
    with Cluster(tmp_path, brokers=1, properties=checks) as cluster:
        broker = cluster.brokers[0]
        async with Client(ClientOptions()) as client:
            talk = BrokerClient(client, broker.address)
            for number in range(5):
                half = await talk.send_half(TOPIC, b"decided %d" % number)
                check(await talk.end(half, ROLLBACK if number % 2 else COMMIT))
            await talk.receive(TRANS_OP_HALF_TOPIC, 1)
            await talk.send_half(TOPIC, b"open")
            broker.kill()
        broker.start()
        async with Producer({b"open": int(COMMIT)}) as producer:
            talk = BrokerClient(producer.client, broker.address)
            await talk.heartbeat("P")
            while await producer.next_asked() != b"open":
                pass
            records = await talk.receive(TOPIC, 4)
            expected = {b"decided 0", b"decided 2", b"decided 4", b"open"}
            assert {record.body for record in records} == expected


async def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    settings = config(tmp_path, rejectTransactionMessage="true")
    async with Broker(settings) as broker, Client(ClientOptions()) as client:
        with pytest.raises(NoPermissionError):
            await BrokerClient(client, broker.address).send_half(TOPIC, b"x")


async def test_with_synchronous_flushing(tmp_path: Path) -> None:
    settings = config(tmp_path, flushDiskType="SYNC_FLUSH")
    async with Broker(settings) as broker, Client(ClientOptions()) as client:
        talk = BrokerClient(client, broker.address)
        half = await talk.send_half(TOPIC, b"x")
        check(await talk.end(half, COMMIT))
        (record,) = await talk.receive(TOPIC, 1)
        assert record.body == b"x"
