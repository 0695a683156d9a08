"""A name server with TLS: TLS and plain clients on one port, and replaced certificates."""

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.transport.client import Client, ClientOptions
from goddard.transport.tls import TlsOptions
from tests.support.certificates import make_identity
from tests.support.name_server_client import NameServerClient


async def shown_certificate(port: int) -> str:
    """The fingerprint of the server's current certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return hashlib.sha256(shown).hexdigest()


async def test_tls_and_plain_on_one_port_and_a_new_certificate(
    start: Callable[..., Awaitable[NameServer]],
    connect: Callable[[NameServer], NameServerClient],
    tmp_path: Path,
) -> None:
    identity = make_identity(tmp_path, "server")
    first = identity.fingerprint
    server = await start(
        unused_properties={
            "tls.server.certPath": str(identity.certificate),
            "tls.server.keyPath": str(identity.key),
        }
    )
    plain = connect(server)
    await plain.register()
    assert await plain.route("T1") is not None
    async with Client(ClientOptions(tls=TlsOptions())) as client, asyncio.timeout(60):
        address = f"127.0.0.1:{server.port}"
        query = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
        assert (await client.request(address, query, 5_000)).code == 0
        assert await shown_certificate(server.port) == first
        second = make_identity(tmp_path, "server").fingerprint
        assert second != first
        shown = first
        while shown != second:
            await asyncio.sleep(0.05)
            shown = await shown_certificate(server.port)
        # Open connections stay open.
        assert (await client.request(address, query, 5_000)).code == 0
