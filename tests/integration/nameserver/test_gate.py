"""A gate that refuses everything: no request of any code has an effect, cached routes included."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from goddard.nameserver.rules import RULES
from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame
from goddard.transport.connection import Connection
from goddard.transport.rules import Rule

DENIED = 4711
FIELDS = {
    "topic": "T",
    "namespace": "N",
    "key": "K",
    "value": "V",
    "cluster": "C",
    "clusterName": "C",
    "brokerName": "B",
    "brokerAddr": "127.0.0.1:10911",
    "brokerId": "0",
    "haServerAddr": "127.0.0.1:10912",
}
TOPICS = {name: {"topicName": name} for name in ("T", "U")}
TABLE = {"topicConfigTable": TOPICS, "dataVersion": {"counter": 1}}
BODIES = {
    RequestCode.REGISTER_BROKER: {"topicConfigSerializeWrapper": TABLE, "filterServerList": []}
}


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._decoder = FrameDecoder()

    async def ask(self, code: int) -> RemotingCommand:
        body = BODIES.get(RequestCode(code))
        if code == RequestCode.UPDATE_NAMESRV_CONFIG:
            data = b"orderMessageEnable=true\n"
        else:
            data = b"" if body is None else json.dumps(body).encode()
        self.writer.write(encode_frame(RemotingCommand(code, dict(FIELDS), data)))
        async with asyncio.timeout(30):
            while not (frames := self._decoder.feed(received := await self._reader.read(65_536))):
                assert received, "the connection was closed"
        return decode_frame(frames[0])


@pytest.fixture
async def peer(server: NameServer) -> AsyncIterator[Peer]:
    peer = Peer(*await asyncio.open_connection("127.0.0.1", server.port))
    yield peer
    peer.writer.close()
    await peer.writer.wait_closed()


async def test_a_denied_request_has_no_effect(
    server: NameServer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(request: RemotingCommand, rule: Rule, connection: Connection) -> RemotingCommand:
        return request.reply(DENIED)

    def no_room(rule: Rule) -> int:
        return 0

    order = (RequestCode.REGISTER_BROKER, RequestCode.PUT_KV_CONFIG)
    with monkeypatch.context() as denied:
        denied.setattr(server.gate, "refusal", deny)
        denied.setattr(server.gate, "room", no_room)
        for code in (*order, *RULES):
            assert (await peer.ask(code)).code == DENIED, code
        assert server.routes.encoded_route("T", standard_json=True, order_conf=None) is None
        assert server.kv.get("N", "K") is None
        assert "orderMessageEnable=false" in server.settings.as_text()
    for code in (*order, RequestCode.UPDATE_NAMESRV_CONFIG):
        assert (await peer.ask(code)).code == 0, code
    assert server.routes.encoded_route("T", standard_json=True, order_conf=None) is not None
    assert server.kv.get("N", "K") == "V"
    assert "orderMessageEnable=true" in server.settings.as_text()
    for _ in range(2):  # the second one from the cache
        assert (await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)).code == 0
    monkeypatch.setattr(server.gate, "refusal", deny)
    monkeypatch.setattr(server.gate, "room", no_room)
    assert (await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)).code == DENIED
