"""Sends to a running broker over loopback, including every recorded send to RocketMQ."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.protocol.message import BatchEntry, encode_batch
from goddard.protocol.record import decode_record, iter_records
from goddard.transport.client import Client, ClientOptions
from tests.support.send_harness import send_request

WIRE = Path(__file__).parents[2] / "golden" / "data" / "wire"
SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


def config_of(directory: Path, **properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "brokerName": "broker-golden",
            "storePathRootDir": str(directory / "store"),
            **SMALL_FILES,
            **properties,
        }
    )


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(config_of(tmp_path)) as broker:
        yield broker


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(ClientOptions())
    yield client
    await client.close()


class Peer:
    """A connection that writes given bytes and returns every answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._answers: dict[int, RemotingCommand] = {}

    @classmethod
    async def connect(cls, port: int) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self, opaque: int, timeout_seconds: float = 5.0) -> RemotingCommand:
        async with asyncio.timeout(timeout_seconds):
            while opaque not in self._answers:
                for frame in self._decoder.feed(await self._reader.read(1 << 16)):
                    answer = decode_frame(frame)
                    self._answers[answer.opaque] = answer
        return self._answers.pop(opaque)


# Recorded sends


RECORDINGS = [
    path
    for path in sorted(WIRE.glob("c*-s5.4.0/*.jsonl*"))
    if not path.name.startswith("auth")  # refused there for missing permissions
]


def exchanges(path: Path) -> Iterator[tuple[bytes, RemotingCommand, RemotingCommand | None]]:
    """The sends of a recording: bytes, request, and the answer unless it was one-way."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    frames = [json.loads(line) for line in text.splitlines()]
    asked: dict[tuple[int, int], tuple[bytes, RemotingCommand]] = {}
    for line in frames:
        if line["peer"] != "broker":
            continue
        frame = bytes.fromhex(line["hex"])
        command = decode_frame(memoryview(frame)[4:])
        key = (line["conn"], command.opaque)
        if line["dir"] == "c2s" and command.code in SENDS:
            if command.is_oneway:
                yield frame, command, None
            else:
                asked[key] = (frame, command)
        elif line["dir"] == "s2c" and key in asked:
            yield *asked.pop(key), command


def comparable(answer: RemotingCommand) -> dict[str, Any]:
    """An answer without the values that differ from run to run.

    Its encoding is that of the request, as with 4.9.4; 5.4.0 always answers in JSON.
    """
    fields = dict(answer.fields)
    for name in ("msgId", "queueOffset"):
        if name in fields:
            fields[name] = re.sub("[0-9A-F]+", "N", fields[name])
    remark = answer.remark and re.sub(r"127\.0\.0\.1:\d+", "peer", answer.remark)
    return {
        "code": answer.code,
        "remark": remark,
        "fields": list(fields.items()),
        "flag": answer.flag,
        "language": answer.language,
    }


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name}")
async def test_recorded_sends_get_the_recorded_answers(broker: Broker, path: Path) -> None:
    peer = await Peer.connect(broker.port)
    count = 0
    try:
        for data, request, expected in exchanges(path):
            if "TIMER_" in (request.fields.get("i") or ""):
                continue  # timer messages are not supported yet
            topic = request.fields.get("b") or request.fields["topic"]
            if topic not in broker.topics and not topic.startswith("%"):
                broker.topics.put(
                    TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4)
                )
            peer.write(data)
            count += 1
            if expected is not None:
                answer = await peer.answer(request.opaque)
                assert comparable(answer) == comparable(expected)
    finally:
        await peer.close()
    if "producer" in path.name:
        assert count > 0


# From the send to the stored message


async def test_a_message_can_be_looked_up_by_the_id_in_the_answer(
    broker: Broker, client: Client
) -> None:
    answer = await client.request(broker.address, send_request("Fresh", b"hello", e="2"), 3000)
    assert answer.code == 0
    view = broker.store.lookup(int(answer.fields["msgId"][16:], 16))
    assert view is not None
    record, _ = decode_record(view)
    assert (record.topic, record.queue_id, record.body) == ("Fresh", 2, b"hello")
    assert str(record.store_host) == broker.address
    assert broker.store.max_offset("Fresh", 2) == 1


async def test_many_connections_keep_their_own_order(broker: Broker) -> None:
    broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8))
    peers = [await Peer.connect(broker.port) for _ in range(8)]
    count = 30

    async def play(number: int, peer: Peer) -> None:
        requests = []
        for at in range(count):
            body = b"%d:%d" % (number, at)
            properties = f"UNIQ_KEY\x01{number:08X}{at:08X}\x02"
            if at % 7 == 3:  # the lane leaves these
                properties += "CLUSTER\x01x\x02"
            requests.append(
                send_request("T", body, properties=properties, e=str(number), opaque=at)
            )
        for start in range(0, count, 10):
            peer.write(b"".join(map(encode_frame, requests[start : start + 10])))
            for request in requests[start : start + 10]:
                answer = await peer.answer(request.opaque)
                assert (answer.code, answer.fields["queueOffset"]) == (0, str(request.opaque))

    try:
        await asyncio.gather(*(play(number, peer) for number, peer in enumerate(peers)))
    finally:
        for peer in peers:
            await peer.close()
    for number in range(8):
        result = broker.store.get("T", number, 0, count, max_bytes=1 << 20)
        bodies = [record.body for record in iter_records(b"".join(result.records))]
        assert bodies == [b"%d:%d" % (number, at) for at in range(count)]


async def test_one_way_sends_and_batches(broker: Broker, client: Client) -> None:
    await client.oneway(broker.address, send_request("T", b"one-way"))
    body = encode_batch([BatchEntry(b"1", b"KEYS\x01a\x02"), BatchEntry(b"2")])
    answer = await client.request(
        broker.address, send_request("T", body, code=RequestCode.SEND_BATCH_MESSAGE), 3000
    )
    assert answer.code == 0
    assert answer.fields["queueOffset"] == "1"
    assert answer.fields["msgId"].count(",") == 1


async def test_sync_flush(tmp_path: Path, client: Client) -> None:
    async with Broker(config_of(tmp_path, flushDiskType="SYNC_FLUSH")) as broker:
        answers = await asyncio.gather(
            *(client.request(broker.address, send_request("T", b"x"), 5000) for _ in range(20))
        )
        assert {answer.code for answer in answers} == {0}
        assert broker.store.flushed_offset >= broker.store.log_max_offset
        assert broker.store.max_offset("T", 0) == 20


async def test_sends_during_a_stop_are_acknowledged_only_if_stored(
    tmp_path: Path, client: Client
) -> None:
    async with Broker(config_of(tmp_path)) as broker:
        sends = [
            asyncio.create_task(client.request(broker.address, send_request("T", b"x"), 3000))
            for _ in range(50)
        ]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    stored = sum(isinstance(outcome, RemotingCommand) and outcome.code == 0 for outcome in outcomes)
    assert stored > 0
    async with Broker(config_of(tmp_path)) as again:
        assert again.store.max_offset("T", 0) >= stored


# Bad input


@pytest.mark.parametrize(
    "changes",
    [
        {"b": None},
        {"e": "x"},
        {"b": "../../etc/passwd"},
        {"b": "x" * 5000},
        {"d": "-5"},
        {"i": "\x01\x02" * 3000},
        {"g": "-9223372036854775808"},
        {"e": "2147483647"},
    ],
)
async def test_bad_fields_are_answered_and_the_connection_stays_open(
    broker: Broker, client: Client, changes: dict[str, Any]
) -> None:
    answer = await client.request(broker.address, send_request("T", b"x", **changes), 3000)
    assert answer.code in {
        ResponseCode.SUCCESS,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.INVALID_PARAMETER,
    }
    assert (await client.request(broker.address, send_request("Other", b"x"), 3000)).code == 0


async def test_a_frame_with_a_wrong_header_length(broker: Broker) -> None:
    peer = await Peer.connect(broker.port)
    good = encode_frame(send_request("T", b"x", opaque=7))
    for word in (b"\x00\xff\xff\xff", b"\x01\xff\xff\xff", b"\x02\0\0\1", b"\xff\xff\xff\xff"):
        liar = await Peer.connect(broker.port)
        liar.write(b"\0\0\0\x20" + word + bytes(28))
        await liar.close()
    peer.write(good)
    assert (await peer.answer(7)).code == 0
    await peer.close()
