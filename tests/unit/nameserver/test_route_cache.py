"""Limits of the route cache: memory, and peers that do not read."""

import asyncio

import pytest

from goddard.nameserver.route_cache import RouteResponseCache
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions
from goddard.transport.rules import OpenGate
from tests.support.memory import RawPeer, join_raw
from tests.support.rules import ANY_RULE

KIB = 1024


class Routes:
    """Answers every query with ``answer_bytes``, and counts the queries that were not cached."""

    def __init__(self, answer_bytes: int = 100) -> None:
        self.asked = 0
        self._body = bytes(answer_bytes)
        self._cache = RouteResponseCache(self._get_route, lambda: 1, OpenGate())

    def _get_route(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.asked += 1
        return request.reply(body=self._body)

    def connect(self, options: ConnectionOptions | None = None) -> tuple[RawPeer, Connection]:
        handlers = Handlers()
        handlers.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._get_route, ANY_RULE)
        return join_raw(handlers, options, on_frames=self._cache.answer)


def query(topic: str, opaque: int) -> bytes:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    return encode_frame(RemotingCommand(code, {"topic": topic}, opaque=opaque))


async def test_a_repeated_query_is_handled_once() -> None:
    routes = Routes()
    peer, _ = routes.connect()
    for number in range(100, 200):
        peer.transport.write(query("T", number))
    answers = await peer.receive(100)
    assert [answer.opaque for answer in answers] == list(range(100, 200))
    assert {answer.body for answer in answers} == {bytes(100)}
    assert routes.asked == 1


@pytest.mark.parametrize(("topic_bytes", "answer_bytes"), [(1, 900), (900, 1)])
async def test_cached_bytes_are_bounded(
    monkeypatch: pytest.MonkeyPatch, topic_bytes: int, answer_bytes: int
) -> None:
    monkeypatch.setattr("goddard.nameserver.route_cache._MAX_CACHED_BYTES", 60 * KIB)
    routes = Routes(answer_bytes)
    peer, _ = routes.connect()
    for _ in range(2):
        for number in range(100, 150):
            peer.transport.write(query(f"T{number}" + "x" * topic_bytes, number))
        await peer.receive(50)
    # About forty fit; then all are dropped.
    asked = routes.asked
    assert asked > 60
    peer.transport.write(query("T149" + "x" * topic_bytes, 149))
    await peer.receive(1)
    assert routes.asked == asked


async def test_a_peer_that_does_not_read_gets_no_more_responses() -> None:
    routes = Routes(answer_bytes=10 * KIB)
    peer, server = routes.connect(ConnectionOptions(write_buffer_high_bytes=32 * KIB))
    peer.transport.write(query("T", 100))
    await peer.receive(1)
    peer.transport.pause_reading()
    peer.transport.write(b"".join(query("T", number) for number in range(101, 301)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.is_paused
    assert server.unsent_bytes < 64 * KIB
    peer.transport.resume_reading()
    answers = await peer.receive(200)
    assert [answer.opaque for answer in answers] == list(range(101, 301))
    assert routes.asked == 1
