"""Recorded requests of real brokers to a real name server get the recorded responses from ours.

Recorded from RocketMQ 4.9.4 and 5.4.0. Each request is sent byte for byte, on one connection per
recorded connection, and our response is compared with the recorded one. The order settings that
administrators created on other connections are not in these files; they are set before the first
response that contains them.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from goddard.config import parse_properties
from goddard.nameserver.kv import ORDER_TOPIC_NAMESPACE
from goddard.nameserver.server import NameServer
from goddard.protocol import fastjson
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame

WIRE = Path(__file__).parents[2] / "golden" / "data" / "wire"


@dataclass
class Exchange:
    connection: int
    frame: bytes
    request: RemotingCommand
    answer: RemotingCommand | None = None


def recorded(file: Path) -> list[Exchange]:
    """The requests to the name server in order, with their responses."""
    exchanges: list[Exchange] = []
    waiting: dict[tuple[int, int], Exchange] = {}
    for line in _lines(file):
        item = json.loads(line)
        if item["peer"] != "namesrv":
            continue
        frame = bytes.fromhex(item["hex"])
        command = decode_frame(memoryview(frame)[4:])
        key = (item["conn"], command.opaque)
        if command.is_response:
            waiting.pop(key).answer = command
        else:
            exchange = Exchange(item["conn"], frame, command)
            exchanges.append(exchange)
            waiting[key] = exchange
    return exchanges


def _lines(file: Path) -> Iterator[str]:
    if file.suffix == ".gz":
        with gzip.open(file, "rt") as lines:
            yield from lines
    else:
        with file.open() as lines:
            yield from lines


class RawConnections:
    """Connections by recorded number: sends bytes, receives the response with the same opaque."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def send(self, number: int, frame: bytes) -> asyncio.StreamReader:
        if number not in self._open:
            self._open[number] = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open[number]
        writer.write(frame)
        await writer.drain()
        return reader

    async def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()
            await writer.wait_closed()


async def answer_from(reader: asyncio.StreamReader, opaque: int) -> RemotingCommand:
    decoder = FrameDecoder()
    while data := await reader.read(65_536):
        for frame in decoder.feed(data):
            answer = decode_frame(frame)
            assert answer.is_response
            assert answer.opaque == opaque
            return answer
    raise AssertionError("the connection closed without a response")


def comparable(answer: RemotingCommand, request: RemotingCommand) -> dict[str, Any]:
    """A response without the parts that may differ: encoding, version, the order of sets."""
    body: Any = bytes(answer.body)
    if body:
        body = fastjson.loads(body)
    if isinstance(body, dict):
        if "topicList" in body:
            body["topicList"] = sorted(body["topicList"])
        for group in (body.get("brokerDatas", []), body.get("brokerAddrTable", {}).values()):
            for data in group:
                # 5.0 and later say whether a slave may act as master; 4.9.4 does not.
                data.setdefault("enableActingMaster", False)
                data["brokerAddrs"] = {int(k): v for k, v in data["brokerAddrs"].items()}
        for data in body.get("queueDatas", []):
            # The old name of topicSysFlag, which we add for clients that only know that name.
            data.pop("topicSynFlag", None)
    return {
        "request": request.code,
        "code": answer.code,
        # "not set any response code" is Java's remark if a handler sets none.
        "remark": None if answer.code == 0 else answer.remark,
        "fields": answer.ext_fields or {},
        "body": body,
    }


@pytest.mark.parametrize(
    "file",
    [
        "s4.9.4/broker_to_namesrv.jsonl.gz",
        "s4.9.4/broker_to_namesrv_compressed.jsonl",
        "s5.4.0/broker_to_namesrv.jsonl.gz",
        "s5.4.0/broker_to_namesrv_acting_master.jsonl.gz",
    ],
)
async def test_brokers_get_the_recorded_responses(
    start: Callable[..., Awaitable[NameServer]], file: str
) -> None:
    exchanges = recorded(WIRE / file)
    assert any(e.request.code == RequestCode.REGISTER_BROKER for e in exchanges)
    server = await start()
    connections = RawConnections(server.port)
    ordered: set[str] = set()
    compared = 0
    try:
        async with asyncio.timeout(60):
            for exchange in exchanges:
                expected = exchange.answer
                if expected is not None and bytes(expected.body).startswith(b'{"table"'):
                    table = json.loads(bytes(expected.body))["table"]
                    for topic in table.keys() - ordered:
                        await server.kv.put(ORDER_TOPIC_NAMESPACE, topic, table[topic])
                        ordered.add(topic)
                reader = await connections.send(exchange.connection, exchange.frame)
                if expected is None:
                    # One-way, or not answered by that version.
                    if not exchange.request.is_oneway:
                        await answer_from(reader, exchange.request.opaque)
                    continue
                found = await answer_from(reader, exchange.request.opaque)
                assert comparable(found, exchange.request) == comparable(
                    expected, exchange.request
                ), exchange.request
                compared += 1
    finally:
        await connections.close()
    assert compared >= 3


async def test_the_compressed_body_of_5_4_0_is_understood(
    start: Callable[..., Awaitable[NameServer]],
) -> None:
    """5.4.0 sends a compressed body with compressed=false; RocketMQ's name server rejects it."""
    exchanges = recorded(WIRE / "s5.4.0/broker_to_namesrv_compressed.jsonl")
    first = next(e for e in exchanges if e.request.code == RequestCode.REGISTER_BROKER)
    assert first.answer is not None
    assert first.answer.code == 1
    server = await start()
    connections = RawConnections(server.port)
    try:
        async with asyncio.timeout(60):
            reader = await connections.send(first.connection, first.frame)
            answer = await answer_from(reader, first.request.opaque)
            assert answer.code == 0
            assert "TBW102" in server.routes.topic_queues
    finally:
        await connections.close()


async def test_the_configuration_has_the_recorded_names_and_values(
    start: Callable[..., Awaitable[NameServer]],
) -> None:
    """The output of getNamesrvConfig of 5.4.0, without paths and the port."""
    exchanges = recorded(WIRE / "c5.4.0-s5.4.0/admin.jsonl.gz")
    asked = next(e for e in exchanges if e.request.code == RequestCode.GET_NAMESRV_CONFIG)
    assert asked.answer is not None
    expected = parse_properties(str(asked.answer.body, "utf-8"))
    server = await start()
    connections = RawConnections(server.port)
    try:
        async with asyncio.timeout(60):
            reader = await connections.send(asked.connection, asked.frame)
            answer = await answer_from(reader, asked.request.opaque)
    finally:
        await connections.close()
    found = parse_properties(str(answer.body, "utf-8"))
    assert list(found) == list(expected)
    placed = {"bindAddress", "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome"}
    assert {k: v for k, v in found.items() if k not in placed} == {
        k: v for k, v in expected.items() if k not in placed
    }
