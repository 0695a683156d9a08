"""TLS: every server mode against plain and TLS clients, on one port."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from goddard.errors import ConfigError, ConnectFailedError, RemotingError
from goddard.protocol.frame import RemotingCommand
from goddard.transport.client import Client, ClientOptions
from goddard.transport.connection import Connection
from goddard.transport.handlers import Answer, Handlers
from goddard.transport.server import Server, ServerOptions
from goddard.transport.tls import TlsMode, TlsOptions
from tests.support.certificates import Identity, make_identity
from tests.support.rules import ANY_RULE

ECHO = 1


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return make_identity(tmp_path_factory.mktemp("tls"), "client")


@pytest.fixture
def handlers() -> Handlers:
    async def later(request: RemotingCommand, connection: Connection) -> Answer:
        await asyncio.sleep(0)
        return request.reply(body=request.body)

    created = Handlers()
    created.register(ECHO, later, ANY_RULE)
    return created


def _server(ours: Identity, mode: TlsMode, handlers: Handlers) -> Server:
    tls = TlsOptions(mode=mode, certificate=ours.certificate, key=ours.key)
    return Server(ServerOptions(tls=tls, handshake_seconds=30), handlers)


async def _echo(server: Server, tls: TlsOptions | None, body: bytes = b"hello") -> None:
    async with Client(ClientOptions(tls=tls, connect_seconds=30)) as client:
        command = RemotingCommand(ECHO, body=body)
        answer = await client.request(f"127.0.0.1:{server.port}", command, 30_000)
        assert answer.body == body


@pytest.mark.parametrize(
    ("mode", "encrypted"),
    [
        (TlsMode.DISABLED, False),
        (TlsMode.PERMISSIVE, False),
        (TlsMode.PERMISSIVE, True),
        (TlsMode.ENFORCING, True),
    ],
)
async def test_accepted(ours: Identity, handlers: Handlers, mode: TlsMode, encrypted: bool) -> None:
    async with _server(ours, mode, handlers) as server:
        tls = TlsOptions() if encrypted else None
        await asyncio.gather(*(_echo(server, tls, b"%d" % n) for n in range(5)))
        await _echo(server, tls, bytes(3_000_000))


@pytest.mark.parametrize(
    ("mode", "encrypted", "reason"),
    [
        (TlsMode.DISABLED, True, "TLS is disabled on this port"),
        (TlsMode.ENFORCING, False, "no TLS handshake, but TLS is enforced"),
    ],
)
async def test_refused(
    ours: Identity,
    handlers: Handlers,
    mode: TlsMode,
    encrypted: bool,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _server(ours, mode, handlers) as server:
        with pytest.raises(RemotingError):
            await _echo(server, TlsOptions() if encrypted else None)
    messages = [r.getMessage() for r in caplog.records if r.name == "goddard.transport"]
    (message,) = messages
    assert reason in message
    assert message.startswith("127.0.0.1:")


async def test_the_client_verifies_the_server_if_configured(
    ours: Identity, theirs: Identity, handlers: Handlers
) -> None:
    async with _server(ours, TlsMode.ENFORCING, handlers) as server:
        trusting = TlsOptions(trust=ours.certificate, verify_peer=True, check_hostname=True)
        await _echo(server, trusting)
        with pytest.raises(ConnectFailedError, match=r"(?i)certificate"):
            await _echo(server, replace(trusting, trust=theirs.certificate))


async def test_the_server_verifies_the_client_if_configured(
    ours: Identity, theirs: Identity, handlers: Handlers
) -> None:
    tls = TlsOptions(
        mode=TlsMode.ENFORCING,
        certificate=ours.certificate,
        key=ours.key,
        trust=theirs.certificate,
        verify_peer=True,
    )
    async with Server(ServerOptions(tls=tls), handlers) as server:
        await _echo(server, TlsOptions(certificate=theirs.certificate, key=theirs.key))
        with pytest.raises(RemotingError):
            await _echo(server, TlsOptions())


async def test_a_silent_client_and_a_bad_handshake_do_not_affect_others(
    ours: Identity, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsOptions(certificate=ours.certificate, key=ours.key)
    options = ServerOptions(tls=tls, handshake_seconds=0.2, idle_seconds=0.3)
    async with Server(options, handlers) as server:
        for first in (b"", b"\x16", b"\x16\x03\x01\x00\x05hello"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(first)
            await _echo(server, None)
            async with asyncio.timeout(60):
                # Closed in time; a TLS alert may arrive first.
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1000)
            writer.transport.abort()


async def test_the_connection_limit_holds_with_tls(ours: Identity, handlers: Handlers) -> None:
    tls = TlsOptions(certificate=ours.certificate, key=ours.key)
    async with Server(ServerOptions(tls=tls, max_connections=1), handlers) as server:
        _, silent = await asyncio.open_connection("127.0.0.1", server.port)
        async with Client() as client:
            with pytest.raises(RemotingError):
                await client.request(f"127.0.0.1:{server.port}", RemotingCommand(ECHO), 30_000)
        silent.transport.abort()


async def test_stop_ends_handshakes(ours: Identity, handlers: Handlers) -> None:
    server = _server(ours, TlsMode.PERMISSIVE, handlers)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        await server.stop()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.transport.abort()


async def test_a_cancelled_stop_ends_accepting(ours: Identity, handlers: Handlers) -> None:
    server = _server(ours, TlsMode.PERMISSIVE, handlers)
    await server.start()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await _echo(server, None)
        stop = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)
        stop.cancel()
        await asyncio.wait((stop,))
        # Connections whose first byte it was waiting for are closed, too.
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_stop_closes_a_connection_that_was_just_created(
    ours: Identity, handlers: Handlers, caplog: pytest.LogCaptureFixture
) -> None:
    stops: list[asyncio.Task[None]] = []

    def stop(connection: Connection) -> None:
        stops.append(asyncio.ensure_future(server.stop(grace_seconds=1)))

    tls = TlsOptions(certificate=ours.certificate, key=ours.key)
    server = Server(ServerOptions(tls=tls), handlers, on_open=stop)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\0")
    async with asyncio.timeout(60):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await stops[0]
    writer.transport.abort()
    assert not list(server.connections)
    assert not caplog.records


async def test_certificates_can_be_replaced_while_serving(
    handlers: Handlers, tmp_path: Path
) -> None:
    old = make_identity(tmp_path, "current")
    old_trust = tmp_path / "old.pem"
    old_trust.write_bytes(old.certificate.read_bytes())
    async with _server(old, TlsMode.ENFORCING, handlers) as server:
        await _echo(server, TlsOptions(trust=old_trust, verify_peer=True))
        # Half-written files change nothing.
        old.certificate.write_bytes(b"")
        with pytest.raises(ConfigError):
            server.reload_tls()
        await _echo(server, TlsOptions(trust=old_trust, verify_peer=True))
        new = make_identity(tmp_path, "current")
        server.reload_tls()
        await _echo(server, TlsOptions(trust=new.certificate, verify_peer=True))
        with pytest.raises(ConnectFailedError):
            await _echo(server, TlsOptions(trust=old_trust, verify_peer=True))


def test_invalid_files_are_reported(ours: Identity, theirs: Identity, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a certificate"):
        TlsOptions().server_context()
    with pytest.raises(ConfigError, match="trusted authorities"):
        TlsOptions(verify_peer=True).client_context()
    missing = TlsOptions(certificate=tmp_path / "none.pem", key=ours.key)
    with pytest.raises(ConfigError, match=r"none\.pem"):
        missing.server_context()
    with pytest.raises(ConfigError, match="cannot be used"):
        TlsOptions(certificate=ours.certificate, key=theirs.key).server_context()
    assert TlsOptions(mode=TlsMode.DISABLED).server_context() is None
    assert TlsOptions(mode=TlsMode.DISABLED).client_context() is None


def test_a_key_may_have_a_password(tmp_path: Path) -> None:
    locked = make_identity(tmp_path, "locked", b"secret")
    options = TlsOptions(certificate=locked.certificate, key=locked.key)
    with pytest.raises(ConfigError):
        options.server_context()
    context = replace(options, key_password="secret").server_context()
    assert isinstance(context, ssl.SSLContext)


async def test_a_server_without_tls_is_named() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_024)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, Client(ClientOptions(tls=TlsOptions())) as client:
        with pytest.raises(ConnectFailedError, match=r"TLS handshake failed .*accept TLS there"):
            await client.request(f"{host}:{port}", RemotingCommand(ECHO), 30_000)
