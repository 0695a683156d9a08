"""Garbage, wrong types, unknown codes, very large sizes: an error response or a closed connection.

After each, the name server still serves others, and its tables are consistent.
"""

import asyncio
import random
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from goddard.config import NameServerConfig
from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from tests.support.name_server_client import NameServerClient

IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
}
HANDLED = [
    100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304,
    311, 312, 313, 318, 319, 322, 327, 901, 904,
]  # fmt: skip


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NameServer]:
    config = NameServerConfig(
        rocketmq_home=str(tmp_path),
        kv_config_path=str(tmp_path / "kvConfig.json"),
        config_store_path=str(tmp_path / "namesrv.properties"),
        bind_address="127.0.0.1",
        listen_port=0,
    )
    async with NameServer(config) as running:
        yield running


@pytest.fixture
async def peer(server: NameServer) -> AsyncIterator[NameServerClient]:
    made = NameServerClient(server.port)
    yield made
    await made.close()


async def send_raw(server: NameServer, data: bytes) -> bytes:
    """Everything that the server sends until it closes, or sends nothing for half a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    heard = b""
    try:
        writer.write(data)
        while chunk := await asyncio.wait_for(reader.read(65_536), 0.5):
            heard += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return heard


async def assert_serves(peer: NameServerClient) -> None:
    assert (await peer.register()).code == 0
    assert await peer.route("T1") is not None


async def test_garbage_closes_that_connection_only(
    server: NameServer, peer: NameServerClient
) -> None:
    await assert_serves(peer)
    chance = random.Random(7)
    for data in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x00",
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">iI", 8, 0x02000004) + b"abcd",
        struct.pack(">iI", 8, 0x00FFFFFF) + b"abcd",
        struct.pack(">iI", 8, 0x00000004) + b"{{{{",
        struct.pack(">iI", 8, 0x01000004) + b"abcd",
        chance.randbytes(4096),
    ):
        assert await send_raw(server, data) == b""
        await assert_serves(peer)


async def test_unknown_codes_are_answered(peer: NameServerClient) -> None:
    for code in (0, 1, 9999, -1, 32767, 200050):
        answer = await peer.ask(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"


@pytest.mark.parametrize("code", HANDLED)
async def test_no_header_and_no_body_is_answered(peer: NameServerClient, code: int) -> None:
    answer = await peer.ask(code)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert answer.remark
    await assert_serves(peer)


@pytest.mark.parametrize("code", HANDLED)
async def test_garbage_in_every_field_and_body_is_answered(
    peer: NameServerClient, code: int
) -> None:
    names = [
        *IDENTITY, "topic", "cluster", "namespace", "key", "value", "compressed", "bodyCrc32",
        "heartbeatTimeoutMillis", "enableActingMaster", "acceptStandardJsonOnly", "epoch",
    ]  # fmt: skip
    for text in ("", "x", "-1", "9" * 30, "\uff11\uff12", "\x00", "true", "\U0001f600" * 50):
        answer = await peer.ask(code, dict.fromkeys(names, text), b"\xff\x00garbage{")
        assert isinstance(answer.code, int)
    await assert_serves(peer)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokerId", "first"),
        ("brokerId", ""),
        ("brokerId", str(2**63)),
        ("bodyCrc32", "0x1"),
        ("heartbeatTimeoutMillis", "1.5"),
    ],
)
async def test_a_field_of_the_wrong_type_is_reported(
    server: NameServer, peer: NameServerClient, name: str, value: str
) -> None:
    answer = await peer.ask(RequestCode.REGISTER_BROKER, {**IDENTITY, name: value})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert name in answer.remark
    assert not server.routes.brokers


@pytest.mark.parametrize(
    ("body", "compressed"),
    [
        (b"not json", "false"),
        (b"[]", "false"),
        (b'{"topicConfigSerializeWrapper":7}', "false"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":"x"}}}}', "false"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":1e40}}}}', "false"),
        (b"[" * 100_000, "false"),
        (b"not zlib", "true"),
        (zlib.compress(b"\x7f\xff\xff\xff"), "true"),
        (zlib.compress(b"\x00\x00\x00\x02{}\x7f\xff\xff\xff"), "true"),
        (zlib.compress(b"\x00" * 64_000_000), "true"),
        (zlib.compress(b"\x00\x00\x00\x02{}")[:-3], "true"),
    ],
)
async def test_a_malformed_registration_changes_nothing(
    server: NameServer, peer: NameServerClient, body: bytes, compressed: str
) -> None:
    fields = {**IDENTITY, "compressed": compressed}
    answer = await peer.ask(RequestCode.REGISTER_BROKER, fields, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert not server.routes.brokers
    assert not server.routes.clusters
    assert not server.routes.live
    await assert_serves(peer)


async def test_duplicate_opaques_are_each_answered(server: NameServer) -> None:
    command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=7)
    missing = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, opaque=7)
    heard = await send_raw(server, encode_frame(command) * 2 + encode_frame(missing))
    answers = [decode_frame(frame) for frame in FrameDecoder().feed(heard)]
    assert [(answer.opaque, answer.code) for answer in answers] == [(7, 0), (7, 0), (7, 17)]


async def test_a_response_without_request_is_ignored(
    server: NameServer, peer: NameServerClient
) -> None:
    stray = RemotingCommand(0, opaque=99, flag=1)
    assert await send_raw(server, encode_frame(stray)) == b""
    await assert_serves(peer)


async def test_a_slow_sender_does_not_delay_others(
    server: NameServer, peer: NameServerClient
) -> None:
    frame = encode_frame(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for position in range(len(frame)):
            writer.write(frame[position : position + 1])
            await writer.drain()
            if position % 16 == 0:
                await assert_serves(peer)
        heard = await asyncio.wait_for(reader.read(65_536), 5)
        (answer,) = (decode_frame(view) for view in FrameDecoder().feed(heard))
        assert answer.code == 0
    finally:
        writer.close()


async def test_too_large_configurations_and_values_are_rejected(peer: NameServerClient) -> None:
    answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"a=" + b"x" * 65_536)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    for number in range(17):
        fields = {"namespace": "n", "key": f"k{number}", "value": "v" * 1_000_000}
        answer = await peer.ask(RequestCode.PUT_KV_CONFIG, fields)
        assert (answer.code == ResponseCode.SUCCESS) is (number < 16)
    assert answer.remark is not None
    assert "full" in answer.remark


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.QUERY_DATA_VERSION, IDENTITY),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}),
        (RequestCode.REGISTER_BROKER, IDENTITY),
    ],
)
@pytest.mark.parametrize(
    "body", [b'{"x":[' + b"[]," * 1_000_000 + b"0]", b"{0:[" + b"0," * 1_000_000 + b"0]}"]
)
async def test_large_bodies_in_the_slow_dialect_are_rejected(
    peer: NameServerClient, code: int, fields: dict[str, str], body: bytes
) -> None:
    """Bodies whose decoding in Python would take seconds are rejected because of their size."""
    answer = await peer.ask(code, fields, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert "limit" in answer.remark
