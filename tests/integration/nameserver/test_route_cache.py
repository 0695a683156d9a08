"""Repeated route queries are answered from a cache; responses must not differ because of it."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from tests.support.name_server_client import NameServerClient


class Raw:
    """Sends frames, returns decoded responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._received: list[RemotingCommand] = []

    async def ask(self, *frames: bytes) -> list[RemotingCommand]:
        self.writer.write(b"".join(frames))
        async with asyncio.timeout(60):
            while len(self._received) < len(frames):
                data = await self._reader.read(65_536)
                assert data, "the connection was closed"
                self._received += [decode_frame(frame) for frame in self._decoder.feed(data)]
        heard, self._received = self._received, []
        return heard


@pytest.fixture
async def raw(server: NameServer) -> AsyncIterator[Raw]:
    created = Raw(*await asyncio.open_connection("127.0.0.1", server.port))
    yield created
    created.writer.close()
    await created.writer.wait_closed()


def frame_of(header: str | dict[str, Any], body: bytes = b"") -> bytes:
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    data = text.encode()
    return struct.pack(">iI", 4 + len(data) + len(body), len(data)) + data + body


def query(opaque: object, topic: str = "T1", **fields: str) -> bytes:
    """A query as Java writes it."""
    return frame_of(
        {
            "code": 105,
            "extFields": {"topic": topic, **fields},
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": 493,
        }
    )


async def test_only_the_opaque_differs_between_answers(peer: NameServerClient, raw: Raw) -> None:
    await peer.register()
    opaques = [0, 1, 9, 10, 99, 12345, 2**31 - 1, 7, 7, 1_000_000_000]
    first = await raw.ask(*(query(opaque) for opaque in opaques))
    again = await raw.ask(*(query(opaque) for opaque in opaques))
    assert [answer.opaque for answer in again] == opaques
    for answer in (*first, *again):
        assert answer.is_response
        answer.opaque = 0
        assert answer == first[0]
    assert first[0].code == 0


async def test_a_change_is_seen_by_the_next_query(peer: NameServerClient, raw: Raw) -> None:
    async def queues() -> list[tuple[str, int, int]] | None:
        answers = await raw.ask(query(1), query(2))
        assert answers[0].body == answers[1].body
        if answers[0].code != 0:
            return None
        return [
            (data["brokerName"], data["writeQueueNums"], data["perm"])
            for data in json.loads(bytes(answers[0].body))["queueDatas"]
        ]

    assert await queues() is None
    await peer.register()
    assert await queues() == [("broker-a", 4, 6)]
    await peer.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert await queues() == [("broker-a", 4, 4)]
    await peer.register(name="broker-b", address="10.0.0.2:10911")
    assert await queues() == [("broker-b", 4, 6), ("broker-a", 4, 4)]
    await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1"})
    assert await queues() is None


async def test_settings_and_order_conf_are_seen_by_the_next_query(
    peer: NameServerClient, raw: Raw
) -> None:
    await peer.register()
    await raw.ask(query(1))
    await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true")
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "broker-a:4"}
    await peer.ask(RequestCode.PUT_KV_CONFIG, fields)
    (answer,) = await raw.ask(query(2))
    assert b'"orderTopicConf":"broker-a:4"' in bytes(answer.body)
    await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"needWaitForService=true")
    (answer,) = await raw.ask(query(3))
    assert answer.remark == "name server not ready"


async def test_variants_of_a_query_do_not_share_an_answer(peer: NameServerClient, raw: Raw) -> None:
    await peer.register("T1", "T2", "T11")
    for _ in range(2):
        answers = await raw.ask(
            query(1),
            query(2, "T11"),
            query(3, acceptStandardJsonOnly="true"),
            query(4, "Missing"),
            query(5, __ZONE_MODE="true", __ZONE_NAME="elsewhere"),
            frame_of('{"code":105,"extFields":{"topic":"T1"},"opaque":6,"version":1}'),
            frame_of('{"code":106,"extFields":{"topic":"T1"},"opaque":7,"version":493}'),
            encode_frame(
                RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T2"}, opaque=8)
            ),
        )
        assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [answer.code for answer in answers] == [0, 0, 0, 17, 0, 0, 0, 0]
        assert json.loads(bytes(answers[0].body)) == json.loads(bytes(answers[2].body))
        assert json.loads(bytes(answers[4].body))["queueDatas"] == []
        assert b'{0:"10.0.0.1:10911"}' in bytes(answers[5].body)
        assert b"clusterAddrTable" in bytes(answers[6].body)


@pytest.mark.parametrize(
    "header",
    [
        '{"code":105,"extFields":{"topic":"T1","opaque":"5"},"opaque":%d,"version":493}',
        '{"code":105,"extFields":{"topic":"T1","opaque":5},"opaque":%d,"version":493}',
        '{"code":105,"opaque":5,"extFields":{"topic":"T1"},"opaque":%d,"version":493}',
        '{"code":105,"extFields":{"topic":"T1"},"version":493,"opaque":%d}',
        '{"code":105,"extFields":{"topic":"T1"},"opaque" : %d , "version":493}',
        '{"code":105,"extFields":{"topic":"T1"},"opaque":"%d","version":493}',
        '{ "opaque":%d, "code":105, "extFields":{"topic":"T1"}, "version":493}',
    ],
)
async def test_unusual_headers_get_their_own_opaque(
    peer: NameServerClient, raw: Raw, header: str
) -> None:
    await peer.register()
    answers = await raw.ask(*(frame_of(header % opaque) for opaque in (1, 2, 3)))
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0), (3, 0)]


async def test_a_topic_that_looks_like_an_opaque_is_a_topic(
    peer: NameServerClient, raw: Raw
) -> None:
    await peer.register('"opaque":7,', "T2")
    answers = await raw.ask(query(1, '"opaque":7,'), query(2, '"opaque":7,'))
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0)]


async def test_negative_opaques_are_answered(peer: NameServerClient, raw: Raw) -> None:
    await peer.register()
    answers = await raw.ask(query(1), query(-1), query(-(2**31)))
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (-1, 0), (-(2**31), 0)]


@pytest.mark.parametrize("opaque", ["2147483648", "99999999999999999999", "01", "1e3x", ""])
async def test_invalid_opaques_are_rejected(
    server: NameServer, peer: NameServerClient, raw: Raw, opaque: str
) -> None:
    header = '{"code":105,"extFields":{"topic":"T1"},"opaque":%s,"version":493}'
    await peer.register()
    # As many digits as the wrong one has, so that the lengths match the cached query.
    good = "1" * min(len(opaque), 9) or "1"
    await raw.ask(frame_of(header % good))
    raw.writer.write(frame_of(header % opaque))
    with pytest.raises(AssertionError, match="closed"):
        await raw.ask(query(1))


async def test_a_oneway_query_is_not_answered(peer: NameServerClient, raw: Raw) -> None:
    await peer.register()
    header = '{"code":105,"extFields":{"topic":"T1"},"flag":2,"opaque":%d,"version":493}'
    raw.writer.write(frame_of(header % 1) + frame_of(header % 2))
    answers = await raw.ask(query(3))
    assert [answer.opaque for answer in answers] == [3]


async def test_a_query_does_not_overtake_earlier_requests(peer: NameServerClient, raw: Raw) -> None:
    """A deletion and a query arrive in one chunk."""
    await peer.register()
    await raw.ask(query(1))
    delete = RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1"}, opaque=2)
    answers = await raw.ask(encode_frame(delete), query(3))
    assert [(answer.opaque, answer.code) for answer in answers] == [(2, 0), (3, 17)]
