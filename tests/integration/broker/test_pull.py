"""Pulls over loopback: results, long polling, and peers that misbehave."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.broker import Broker
from goddard.broker.consuming import longpoll
from goddard.broker.settings import BrokerConfig
from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.protocol.responses import check
from goddard.transport.client import Client, ClientOptions
from tests.support.consumer_harness import bodies_of, pull_fields

TIMEOUT_MS = 10_000


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
            **properties,
        }
    )


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(config(tmp_path, enablePropertyFilter="true")) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(ClientOptions()) as opened:
        yield opened


def sending(topic: str, body: bytes, queue_id: int = 0, properties: str = "") -> RemotingCommand:
    fields: dict[str, Any] = {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": int(time.time() * 1000),
        "h": 0,
        "i": properties,
    }
    texts = {name: str(value) for name, value in fields.items()}
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, texts, body)


def pulling(
    topic: str,
    queue_offset: int = 0,
    *,
    serialize_type: SerializeType = SerializeType.JSON,
    **fields: Any,
) -> RemotingCommand:
    values = pull_fields(topic, queue_offset, **fields)
    texts = {name: str(value) for name, value in values.items()}
    return RemotingCommand(RequestCode.PULL_MESSAGE, texts, serialize_type=serialize_type)


async def send(client: Client, broker: Broker, *args: Any, **options: Any) -> None:
    check(await client.request(broker.address, sending(*args, **options), TIMEOUT_MS))


async def held(broker: Broker, count: int) -> None:
    deadline = time.monotonic() + 60
    for _ in iter(lambda: len(broker.parked_pulls) < count, False):
        assert time.monotonic() < deadline, f"{len(broker.parked_pulls)} of {count} pulls are held"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_sent_messages_are_pulled(
    broker: Broker, client: Client, serialize_type: SerializeType
) -> None:
    for number in range(100):
        await send(client, broker, "T", b"%d" % number)
    received: list[bytes] = []
    while len(received) < 100:
        answer = await client.request(
            broker.address,
            pulling("T", len(received), serialize_type=serialize_type),
            TIMEOUT_MS,
        )
        assert answer.code == ResponseCode.SUCCESS
        assert answer.serialize_type is serialize_type
        received += bodies_of(answer)
        assert answer.fields["nextBeginOffset"] == str(len(received))
    assert received == [b"%d" % number for number in range(100)]
    answer = await client.request(broker.address, pulling("T", 100), TIMEOUT_MS)
    assert answer.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_waiting_pull_is_answered_at_once(
    tmp_path: Path, client: Client, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only woken pulls are answered within the timeout.
    monkeypatch.setattr(longpoll, "_CHECK_MS", 600_000)
    async with (
        Broker(config(tmp_path, flushDiskType=flush)) as broker,
        Client(ClientOptions()) as other,
    ):
        await send(client, broker, "T", b"first")
        for number in range(1, 6):
            waiting = asyncio.create_task(
                other.request(broker.address, pulling("T", number, sysFlag=6), TIMEOUT_MS)
            )
            await held(broker, 1)
            await send(client, broker, "T", b"more")
            answer = await waiting
            assert bodies_of(answer) == [b"more"]


async def test_filters(broker: Broker, client: Client) -> None:
    for number in range(10):
        tag = "AB"[number % 2]
        properties = f"TAGS\x01{tag}\x02n\x01{number}\x02"
        await send(client, broker, "T", b"%d" % number, properties=properties)
    answer = await client.request(broker.address, pulling("T", subscription="B"), TIMEOUT_MS)
    assert bodies_of(answer) == [b"1", b"3", b"5", b"7", b"9"]
    answer = await client.request(
        broker.address,
        pulling("T", subscription="n >= 6 AND TAGS = 'A'", expressionType="SQL92"),
        TIMEOUT_MS,
    )
    assert bodies_of(answer) == [b"6", b"8"]


async def test_many_clients_wait_for_their_own_queues(broker: Broker, client: Client) -> None:
    await send(client, broker, "BenchmarkTest", b"x", queue_id=1023)
    consumers = [Client(ClientOptions()) for _ in range(10)]
    try:
        waiting = [
            asyncio.create_task(
                consumers[queue_id % 10].request(
                    broker.address, pulling("BenchmarkTest", queueId=queue_id, sysFlag=6), 60_000
                )
            )
            for queue_id in range(1000)
        ]
        await held(broker, 1000)
        for queue_id in range(1000):
            await send(client, broker, "BenchmarkTest", b"%d" % queue_id, queue_id=queue_id)
        answers = await asyncio.gather(*waiting)
        assert [bodies_of(answer) for answer in answers] == [[b"%d" % n] for n in range(1000)]
        assert broker.parked_pulls.is_idle
    finally:
        for consumer in consumers:
            await consumer.close()


async def test_a_consumer_that_never_reads_does_not_affect_others(
    broker: Broker, client: Client
) -> None:
    for _ in range(4):
        await send(client, broker, "T", bytes(1 << 20))
    host, port = broker.address.split(":")
    with socket.create_connection((host, int(port))) as deaf:
        deaf.setblocking(False)
        request = encode_frame(pulling("T"))
        loop = asyncio.get_running_loop()
        flood = loop.create_task(loop.sock_sendall(deaf, request * 5000))
        for _ in range(20):
            answer = await client.request(broker.address, pulling("T", maxMsgNums=1), TIMEOUT_MS)
            assert len(answer.body) > 1 << 20
        flood.cancel()
        await asyncio.wait((flood,))
    # It is disconnected, and its pending answers are dropped.
    answer = await client.request(broker.address, pulling("T"), TIMEOUT_MS)
    assert answer.code == ResponseCode.SUCCESS


async def test_pulls_of_a_disconnected_client_are_dropped(broker: Broker, client: Client) -> None:
    await send(client, broker, "T", b"x")
    host, port = broker.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_frame(pulling("T", 1, sysFlag=6)) * 3)
    await held(broker, 3)
    writer.close()
    await writer.wait_closed()
    deadline = time.monotonic() + 60
    for _ in iter(lambda: len(broker.parked_pulls) > 0, False):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    assert broker.parked_pulls.is_idle


async def test_a_stopping_broker_does_not_wait_for_held_pulls(tmp_path: Path) -> None:
    broker = Broker(config(tmp_path))
    await broker.start()
    async with Client(ClientOptions()) as client:
        await send(client, broker, "T", b"x")
        waiting = [
            asyncio.create_task(
                client.request(broker.address, pulling("T", 1, sysFlag=6), TIMEOUT_MS)
            )
            for _ in range(3)
        ]
        await held(broker, 3)
        async with asyncio.timeout(12):  # they may be held for 15 s
            await broker.stop()
        for answer in await asyncio.gather(*waiting):
            assert answer.code == ResponseCode.PULL_NOT_FOUND
