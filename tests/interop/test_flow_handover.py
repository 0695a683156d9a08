"""Delays and transactions in progress when a directory moves between our broker and Java's.

Our broker leaves decided and undecided half messages and a delayed message. A Java broker on the
same directory checks only the undecided half and delivers the delayed one. Our broker checks the
halves that Java leaves undecided. The producer uses our transport with both brokers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import (
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
from tests.support.broker_client import BrokerClient
from tests.support.java import BROKER_PROPERTIES, JavaPeers
from tests.support.rules import ANY_RULE

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

TOPIC = "Orders"
COMMIT = TransactionType.COMMIT
ROLLBACK = TransactionType.ROLLBACK
CHECKS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "2000",
    # A broker continues to check while it stops; no half may be discarded because of that.
    "transactionCheckMax": "1000",
    # 5.x keeps decisions in memory for 3 s, and checks decided halves during that time.
    "transactionOpBatchInterval": "100",
}


@pytest.fixture(params=["5.4.0", "4.9.4"])
def peers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JavaPeers]:
    with JavaPeers(str(request.param), tmp_path / "java") as running:
        yield running


class Producer:
    """Answers checks of half messages with the given decisions, and records the checks."""

    def __init__(self, address: str) -> None:
        self.decisions: dict[bytes, int] = {}
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        handlers = Handlers()
        handlers.register(RequestCode.CHECK_TRANSACTION_STATE, self._check, ANY_RULE)
        # Java notifies consumers and producers of a connection in the same way.
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
    """Wait until these were delivered, in this order, and nothing else.

    Duplicates are possible: until a decision is in the op queue, which on a busy machine may take
    longer than the next check, Java checks again and commits again.
    """
    seen: list[bytes] = []
    async with asyncio.timeout(60):
        while not set(bodies) <= set(seen):
            records = await talk.pull(TOPIC, len(seen), queue_id=queue_id, wait_ms=1_000)
            seen += [record.body for record in records]
            await asyncio.sleep(0.05)
    assert list(dict.fromkeys(seen)) == list(bodies)


async def wait_for_op(talk: BrokerClient, half: SendResponse) -> None:
    """Wait until the broker has written the decision to the op queue, for the next broker."""
    ops: list[Record] = []
    async with asyncio.timeout(60):
        while not any(b"%d" % half.queue_offset in op.body.split(b",") for op in ops):
            ops += await talk.pull(TRANS_OP_HALF_TOPIC, len(ops), wait_ms=1_000)
            await asyncio.sleep(0.05)


async def test_delays_and_transactions_continue_with_the_other_broker(
    peers: JavaPeers, tmp_path: Path
) -> None:
    root, port = tmp_path / "store", lease_port(-2, 1)
    async with our_broker(root, port) as ours:
        talk = ours.talk
        # No producer is registered yet, so the broker checks nothing.
        for number, (body, decision) in enumerate(
            ((b"first", COMMIT), (b"second", ROLLBACK), (b"third", COMMIT))
        ):
            check(await talk.end(await talk.send_half(TOPIC, body), decision))
            # One op each: 4.9 cannot read lists.
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
        # Messages for our broker to continue with.
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
        # A Java broker stopped during a check has rewritten a half without moving its offset.
        while not ours.asked.empty():
            assert ours.asked.get_nowait() == b"left by java"
