"""A name server with a certificate: TLS and plain clients on one port, and a new certificate."""

import asyncio
import datetime as dt
import hashlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from goddard.nameserver.server import NameServer
from goddard.protocol.codes import RequestCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.registrant import Registrant
from goddard.transport.client import Client, ClientOptions
from goddard.transport.tls import TlsOptions


def write_identity(certificate: Path, key: Path) -> str:
    """Write a new self-signed certificate; its fingerprint."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "name server")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(private, hashes.SHA256())
    )
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest()


async def shown_certificate(port: int) -> str:
    """The fingerprint of the certificate that the server shows now."""
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
    connect: Callable[[NameServer], Registrant],
    tmp_path: Path,
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    first = write_identity(certificate, key)
    server = await start(
        others={"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}
    )
    plain = connect(server)
    await plain.register()
    assert await plain.route("T1") is not None
    async with Client(ClientOptions(tls=TlsOptions())) as client, asyncio.timeout(60):
        address = f"127.0.0.1:{server.port}"
        query = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
        assert (await client.request(address, query, 5_000)).code == 0
        assert await shown_certificate(server.port) == first
        second = write_identity(certificate, key)
        for _ in range(200):
            if await shown_certificate(server.port) == second:
                break
            await asyncio.sleep(0.05)
        assert await shown_certificate(server.port) == second
        # Those who were connected stay.
        assert (await client.request(address, query, 5_000)).code == 0
