"""Delays and transactions under way when a directory changes hands between our broker and Java's.

Ours leaves decided and undecided half messages and a delayed message; a Java broker on the same
directory asks about the undecided half only and delivers the delayed one; what Java leaves open,
ours asks about. The producer is our transport in each case, so that both brokers meet the same.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.broker_client import BrokerClient
from tests.support.java import BROKER_PROPERTIES, JavaPeers

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers_message import (
    CheckTransactionRequest,
    EndTransactionRequest,
    SendResponse,
)
from goddard.protocol.message import TransactionType
from goddard.protocol.names import SCHEDULE_TOPIC, TRANS_OP_HALF_TOPIC
from goddard.protocol.record import Record, decode_record
from goddard.protocol.responses import check
from goddard.testing.ports import lease_port
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TOPIC = "Orders"
COMMIT = TransactionType.COMMIT
ROLLBACK = TransactionType.ROLLBACK
CHECKS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "2000",
    # A broker takes a while to stop and asks on meanwhile; nothing is to be discarded for that.
    "transactionCheckMax": "1000",
    # 5.x keeps decisions in memory for 3 s, and meanwhile asks about what is decided.
    "transactionOpBatchInterval": "100",
}


@pytest.fixture(params=["5.4.0", "4.9.4"])
def peers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JavaPeers]:
    with JavaPeers(str(request.param), tmp_path / "java") as running:
        yield running


class Producer:
    """Answers checks about half messages with what it was told to, and keeps what it was asked."""

    def __init__(self, address: str) -> None:
        self.decisions: dict[bytes, int] = {}
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        handlers = Handlers()
        handlers.register(RequestCode.CHECK_TRANSACTION_STATE, self._check)
        # Java tells consumers and producers of one connection alike.
        handlers.set_fallback(lambda request, connection: None)
        self.client = Client(ClientOptions(), handlers)
        self.talk = BrokerClient(self.client, address)

    def _check(self, request: RemotingCommand, connection: Connection) -> None:
        header = CheckTransactionRequest.decode(request.fields)
        record, _ = decode_record(request.body)
        self.asked.put_nowait(record.body)
        answer = EndTransactionRequest(
            producer_group="P",
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=self.decisions.get(record.body, 0),
            from_transaction_check=True,
            msg_id=header.msg_id or "",
        )
        connection.oneway(RemotingCommand(RequestCode.END_TRANSACTION, answer.encode()))

    async def next_asked(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.asked.get()

    async def aclose(self) -> None:
        await self.client.close()


@contextlib.asynccontextmanager
async def our_broker(root: Path, port: int) -> AsyncIterator[Producer]:
    properties = {
        **BROKER_PROPERTIES,
        **CHECKS,
        "brokerName": "broker-a",
        "listenPort": str(port),
        "storePathRootDir": str(root),
    }
    async with (
        Broker(BrokerConfig.from_properties(properties)) as broker,
        contextlib.aclosing(Producer(broker.address)) as producer,
    ):
        yield producer


@contextlib.asynccontextmanager
async def java_broker(peers: JavaPeers, root: Path, port: int) -> AsyncIterator[Producer]:
    """A Java broker on the directory; it is stopped cleanly."""
    broker = await asyncio.to_thread(
        peers.start_broker, "broker-a", store_dir=root, port=port, properties=CHECKS
    )
    async with contextlib.aclosing(Producer(broker.address)) as producer:
        yield producer
    await asyncio.to_thread(broker.stop)


async def wait_for(talk: BrokerClient, *bodies: bytes, queue_id: int = 0) -> None:
    """Until these were delivered, in this order, and nothing else.

    Once or more often: while a decision is on its way to the op log, which on a busy machine takes
    longer than the next check, Java asks again, and commits again.
    """
    seen: list[bytes] = []
    async with asyncio.timeout(60):
        while not set(bodies) <= set(seen):
            records = await talk.pull(TOPIC, len(seen), queue_id=queue_id, wait_ms=1_000)
            seen += [record.body for record in records]
            await asyncio.sleep(0.05)
    assert list(dict.fromkeys(seen)) == list(bodies)


async def wait_for_op(talk: BrokerClient, half: SendResponse) -> None:
    """Until the broker has noted a decision where the next one will find it."""
    ops: list[Record] = []
    async with asyncio.timeout(60):
        while not any(b"%d" % half.queue_offset in op.body.split(b",") for op in ops):
            ops += await talk.pull(TRANS_OP_HALF_TOPIC, len(ops), wait_ms=1_000)
            await asyncio.sleep(0.05)


async def test_what_is_under_way_goes_on_with_the_other(peers: JavaPeers, tmp_path: Path) -> None:
    root, port = tmp_path / "store", lease_port(-2, 1)
    async with our_broker(root, port) as ours:
        talk = ours.talk
        # No producer is known to the broker yet, so it asks nobody.
        for number, (body, decision) in enumerate(
            ((b"first", COMMIT), (b"second", ROLLBACK), (b"third", COMMIT))
        ):
            check(await talk.end(await talk.send_half(TOPIC, body), decision))
            # One op each: 4.9 reads no lists.
            await talk.receive(TRANS_OP_HALF_TOPIC, number + 1)
        await talk.send_half(TOPIC, b"open")
        await talk.send(TOPIC, b"delayed", {"DELAY": "3"}, queue_id=1)

    async with java_broker(peers, root, port) as javas:
        talk = javas.talk
        javas.decisions = {b"open": int(COMMIT)}
        await talk.heartbeat("P")
        assert await javas.next_asked() == b"open"
        await wait_for(talk, b"first", b"third", b"open")
        await wait_for(talk, b"delayed", queue_id=1)
        # And something for the way back.
        half = await talk.send_half(TOPIC, b"fourth")
        check(await talk.end(half, COMMIT))
        await wait_for(talk, b"first", b"third", b"open", b"fourth")
        await wait_for_op(talk, half)
        await talk.send_half(TOPIC, b"left by java")
        await talk.send(TOPIC, b"delayed by java", {"DELAY": "3"}, queue_id=1)
        javas.decisions = {}
        while await javas.next_asked() != b"left by java":
            pass

    async with our_broker(root, port) as ours:
        talk = ours.talk
        ours.decisions = {b"left by java": int(COMMIT)}
        await talk.heartbeat("P")
        assert await ours.next_asked() == b"left by java"
        await wait_for(talk, b"first", b"third", b"open", b"fourth", b"left by java")
        assert len(await talk.pull(SCHEDULE_TOPIC, queue_id=2)) == 2
        await wait_for(talk, b"delayed", b"delayed by java", queue_id=1)
        # A Java broker that is stopped during a check has put a half back and not yet moved on.
        while not ours.asked.empty():
            assert ours.asked.get_nowait() == b"left by java"
