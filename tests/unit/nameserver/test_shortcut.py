"""What bounds the shortcut for route queries: the memory of its answers, and a slow peer."""

import asyncio

import pytest
from tests.support.memory import RawPeer, join_raw

from goddard.nameserver.shortcut import RouteShortcut
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions

KIB = 1024


class Routes:
    """Answers every query with ``answer_bytes``, and counts those that took the long way."""

    def __init__(self, answer_bytes: int = 100) -> None:
        self.asked = 0
        self._body = bytes(answer_bytes)
        self._shortcut = RouteShortcut(self._get_route, lambda: 1)

    def _get_route(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.asked += 1
        return request.reply(body=self._body)

    def connect(self, options: ConnectionOptions | None = None) -> tuple[RawPeer, Connection]:
        handlers = Handlers()
        handlers.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._get_route)
        return join_raw(handlers, options, on_frames=self._shortcut.take)


def query(topic: str, opaque: int) -> bytes:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    return encode_frame(RemotingCommand(code, {"topic": topic}, opaque=opaque))


async def test_the_same_query_is_worked_on_once() -> None:
    routes = Routes()
    peer, _ = routes.connect()
    for number in range(100, 200):
        peer.transport.write(query("T", number))
    answers = await peer.receive(100)
    assert [answer.opaque for answer in answers] == list(range(100, 200))
    assert {answer.body for answer in answers} == {bytes(100)}
    assert routes.asked == 1


@pytest.mark.parametrize(("topic_bytes", "answer_bytes"), [(1, 900), (900, 1)])
async def test_kept_queries_and_answers_are_bounded(
    monkeypatch: pytest.MonkeyPatch, topic_bytes: int, answer_bytes: int
) -> None:
    monkeypatch.setattr("goddard.nameserver.shortcut._MAX_KEPT_BYTES", 60 * KIB)
    routes = Routes(answer_bytes)
    peer, _ = routes.connect()
    for _ in range(2):
        for number in range(100, 150):
            peer.transport.write(query(f"T{number}" + "x" * topic_bytes, number))
        await peer.receive(50)
    # About forty fit; then all are forgotten.
    asked = routes.asked
    assert asked > 60
    peer.transport.write(query("T149" + "x" * topic_bytes, 149))
    await peer.receive(1)
    assert routes.asked == asked


async def test_a_peer_that_does_not_read_is_not_answered_on_and_on() -> None:
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
