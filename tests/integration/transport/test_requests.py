"""Requests as futures: frames encoded by the caller, timeouts, silent peers, GO_AWAY."""

import asyncio

import pytest

from goddard.errors import (
    ConnectFailedError,
    ConnectionLostError,
    OverloadedError,
    ProtocolError,
    RemotingError,
    RequestTimeoutError,
    ServerShuttingDownError,
)
from goddard.protocol.codes import CommandFlag, ResponseCode
from goddard.protocol.frame import RemotingCommand, encode_frame
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.server import Server, ServerOptions
from tests.support.proxy import FaultProxy
from tests.support.rules import ANY_RULE

ECHO, LATER = 1, 2


def server() -> Server:
    async def never(request: RemotingCommand, _: Connection) -> None:
        await asyncio.Event().wait()

    def echo(request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.reply(body=request.body)

    handlers = Handlers()
    handlers.register(ECHO, echo, ANY_RULE)
    handlers.register(LATER, never, ANY_RULE)
    return Server(ServerOptions(), handlers)


def address_of(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


async def test_many_requests_without_a_task_each() -> None:
    async with server() as peer, Client() as client:
        connection = await client.connection(address_of(peer))
        tasks = len(asyncio.all_tasks())
        futures = [
            connection.request_soon(RemotingCommand(ECHO, body=b"%d" % number), 30_000)
            for number in range(1000)
        ]
        assert len(asyncio.all_tasks()) == tasks
        assert connection.requests_in_flight == 1000
        answers = await asyncio.gather(*futures)
        assert [bytes(answer.body) for answer in answers] == [b"%d" % each for each in range(1000)]
        assert connection.requests_in_flight == 0


async def test_frames_encoded_by_the_caller() -> None:
    async with server() as peer, Client() as client:
        connection = await client.connection(address_of(peer))
        opaques: list[int] = []
        outcomes: list[RemotingCommand | RemotingError] = []
        done = asyncio.Event()

        class Own:
            def encode(self, opaque: int) -> bytes:
                opaques.append(opaque)
                return encode_frame(RemotingCommand(ECHO, body=b"own", opaque=opaque))

            def done(self, outcome: RemotingCommand | RemotingError) -> None:
                outcomes.append(outcome)
                done.set()

        connection.submit(Own(), ECHO, 30_000)
        await done.wait()
        (outcome,) = outcomes
        assert isinstance(outcome, RemotingCommand)
        assert (outcome.opaque, bytes(outcome.body)) == (opaques[0], b"own")
        future = connection.request_encoded(Own().encode, ECHO, 30_000)
        assert (await future).opaque == opaques[1] != opaques[0]


async def test_each_request_has_its_own_timeout() -> None:
    async with server() as peer, Client() as client:
        connection = await client.connection(address_of(peer))
        order: list[int] = []

        def note(timeout_ms: int) -> None:
            future = connection.request_soon(RemotingCommand(LATER), timeout_ms)
            future.add_done_callback(lambda done: order.append(timeout_ms))
            futures.append(future)

        futures: list[asyncio.Future[RemotingCommand]] = []
        # The second is due before the first, for which the timer was set.
        for timeout_ms in (900, 300, 600, 301):
            note(timeout_ms)
        alive = connection.request_soon(RemotingCommand(ECHO), 30_000)
        assert (await alive).code == 0
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(outcome, RequestTimeoutError) for outcome in outcomes)
        assert sorted(order) == [300, 301, 600, 900]
        assert order[0] in (300, 301)
        assert order[-1] == 900
        assert "request code 2 within 900 ms" in str(outcomes[0])
        # It answers other requests, so a slow handler does not close the connection.
        assert not connection.is_closed
        assert connection.requests_in_flight == 0


async def test_a_cancelled_request_is_forgotten() -> None:
    async with server() as peer, Client() as client:
        connection = await client.connection(address_of(peer))
        asking = asyncio.create_task(connection.request(RemotingCommand(LATER), 30_000))
        await asyncio.sleep(0)
        assert connection.requests_in_flight == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert connection.requests_in_flight == 0


async def test_the_connection_to_a_silent_peer_is_closed() -> None:
    async with (
        server() as peer,
        FaultProxy(address_of(peer)) as proxy,
        Client() as client,
    ):
        connection = await client.connection(proxy.address)
        await connection.request(RemotingCommand(ECHO), 30_000)
        proxy.half_open()
        brief = connection.request_soon(RemotingCommand(ECHO), 100)
        with pytest.raises(RequestTimeoutError):
            await brief
        # The timeout is too short to call the peer silent.
        assert client.open_connection(proxy.address) is connection
        first = connection.request_soon(RemotingCommand(ECHO), 1_000)
        other = connection.request_soon(RemotingCommand(ECHO), 60_000)
        with pytest.raises(RequestTimeoutError):
            await first
        with pytest.raises(ConnectionLostError):
            await other
        assert client.open_connection(proxy.address) is None
        proxy.heal()
        assert (await client.request(proxy.address, RemotingCommand(ECHO), 30_000)).code == 0


async def test_too_many_requests() -> None:
    options = ClientOptions(max_requests_in_flight=3)
    async with server() as peer, Client(options) as client:
        connection = await client.connection(address_of(peer))
        waiting = [connection.request_soon(RemotingCommand(LATER), 30_000) for _ in range(3)]
        with pytest.raises(OverloadedError, match="3 requests to"):
            connection.request_soon(RemotingCommand(ECHO), 30_000)
        connection.abort()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, ConnectionLostError) for outcome in outcomes)
        with pytest.raises(ConnectionLostError):
            connection.request_soon(RemotingCommand(ECHO), 30_000)


class Draining:
    """A server that answers new requests on its first ``count`` connections with GO_AWAY, and
    echoes those on other connections."""

    def __init__(self, count: int) -> None:
        self.connections: list[Connection] = []
        self.bodies: list[bytes] = []
        self.finish = asyncio.Event()
        self._count = count
        handlers = Handlers()
        handlers.register(ECHO, self._echo, ANY_RULE)
        handlers.register(LATER, self._later, ANY_RULE)
        self.server = Server(ServerOptions(), handlers, on_open=self.connections.append)

    def _echo(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        if connection in self.connections[: self._count]:
            return request.reply(ResponseCode.GO_AWAY, "please go away")
        self.bodies.append(bytes(request.body))
        return request.reply(body=request.body)

    async def _later(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        await self.finish.wait()
        return request.reply(body=b"finished")


async def test_go_away_resends_over_a_new_connection() -> None:
    draining = Draining(1)
    async with draining.server, Client() as client:
        address = address_of(draining.server)
        old = await client.connection(address, 30_000)
        later = old.request_soon(RemotingCommand(LATER), 30_000)
        bodies = [b"%d" % number for number in range(100)]
        futures = [old.request_soon(RemotingCommand(ECHO, body=body), 30_000) for body in bodies]
        async with asyncio.timeout(60):
            assert [bytes((await future).body) for future in futures] == bodies
            # In the order of the requests, over one connection.
            assert draining.bodies == bodies
            assert len(draining.connections) == 2
            new = client.open_connection(address)
            assert new is not None
            assert new is not old
            answer = await client.request(address, RemotingCommand(ECHO, body=b"x"), 30_000)
            assert bytes(answer.body) == b"x"
            # The old connection finishes the requests that the server handles.
            draining.finish.set()
            assert bytes((await later).body) == b"finished"
            old.abort()
            await old.wait_closed()
        # Losing the old connection does not affect the new one.
        assert client.open_connection(address) is new


async def test_a_second_go_away_is_an_error() -> None:
    draining = Draining(2)
    async with draining.server, Client() as client:
        address = address_of(draining.server)
        with pytest.raises(ServerShuttingDownError, match=f"{address} is shutting down"):
            await client.request(address, RemotingCommand(ECHO), 30_000)
        assert len(draining.connections) == 2
        assert client.open_connection(address) is None
        assert (await client.request(address, RemotingCommand(ECHO), 30_000)).code == 0


def go_away(connection: Connection) -> None:
    """Pretend that the server answered the first request of a connection with GO_AWAY."""
    connection.data_received(
        encode_frame(RemotingCommand(ResponseCode.GO_AWAY, opaque=1, flag=CommandFlag.RESPONSE))
    )


async def test_go_away_of_a_server_that_is_gone() -> None:
    async with server() as peer, FaultProxy(address_of(peer)) as proxy, Client() as client:
        connection = await client.connection(proxy.address, 30_000)
        future = connection.request_soon(RemotingCommand(LATER), 30_000)
        await proxy.refuse()
        go_away(connection)
        with pytest.raises(ConnectFailedError):
            await future


@pytest.mark.parametrize("raised", [ProtocolError("no"), ValueError("no")])
async def test_a_resend_that_cannot_be_encoded_is_an_error(raised: Exception) -> None:
    opaques: list[int] = []

    def encode(opaque: int) -> bytes:
        opaques.append(opaque)
        if len(opaques) == 2:
            raise raised
        return encode_frame(RemotingCommand(LATER, opaque=opaque))

    async with server() as peer, Client() as client:
        connection = await client.connection(address_of(peer), 30_000)
        future = connection.request_encoded(encode, LATER, 30_000)
        go_away(connection)
        with pytest.raises(RemotingError, match="the request cannot be sent again: no") as failed:
            await asyncio.wait_for(future, 10)
        assert failed.value.__cause__ is raised


async def test_a_resend_keeps_the_timeout_of_the_request() -> None:
    async with server() as peer, Client() as client:
        connection = await client.connection(address_of(peer), 30_000)
        future = connection.request_soon(RemotingCommand(LATER), 300)
        go_away(connection)
        with pytest.raises(RequestTimeoutError):
            await future


async def test_closing_ends_a_request_that_waits_for_its_resend() -> None:
    async with server() as peer:
        client = Client()
        connection = await client.connection(address_of(peer), 30_000)
        future = connection.request_soon(RemotingCommand(LATER), 30_000)
        go_away(connection)
        await client.close()
        with pytest.raises(ConnectionLostError):
            await future
