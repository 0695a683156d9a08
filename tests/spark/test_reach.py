"""Options on how to reach a cluster, TLS and namespaces: readers and writers without Spark."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from goddard import Admin, MessageQueue
from goddard.errors import GoddardError
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from goddard.testing.sparkreads import Stream, read_rows, write_bodies


def write(options: dict[str, str], *bodies: bytes) -> None:
    assert write_bodies(options, bodies) == len(bodies)


def read(options: dict[str, str]) -> list[dict[str, Any]]:
    return read_rows(options, ["topic", "body"])


def write_identity(folder: Path, password: str | None = None) -> tuple[str, str]:
    """A new self-signed certificate and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    folder.mkdir()
    key = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode()),
    )
    (folder / "key.pem").write_bytes(key)
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return str(folder / "certificate.pem"), str(folder / "key.pem")


def test_certificates_are_verified(tmp_path: Path) -> None:
    certificate, key = write_identity(tmp_path / "servers")
    another, _ = write_identity(tmp_path / "another")
    tls = {"tls.server.certPath": certificate, "tls.server.keyPath": key}
    with Cluster(tmp_path / "cluster") as cluster:
        server = cluster.start_name_server(properties=tls)
        trusting = {"nameServers": server.address, "subscribe": "T", "tlsTrust": certificate}
        with pytest.raises(GoddardError, match="No route info of this topic: T"):
            read(trusting)
        with pytest.raises(GoddardError, match="no name server answers"):
            read(trusting | {"tlsTrust": another})


def test_our_own_certificate_is_shown(tmp_path: Path) -> None:
    certificate, key = write_identity(tmp_path / "servers")
    own, own_key = write_identity(tmp_path / "own", "secret")
    tls = {
        "tls.server.certPath": certificate,
        "tls.server.keyPath": key,
        "tls.server.trustCertPath": own,
        "tls.server.need.client.auth": "require",
    }
    with Cluster(tmp_path / "cluster") as cluster:
        server = cluster.start_name_server(properties=tls)
        options = {"nameServers": server.address, "subscribe": "T", "tls": "true"}
        with pytest.raises(GoddardError, match="no name server answers"):
            read(options)
        shown = options | {"tlsCertificate": own, "tlsKey": own_key}
        with pytest.raises(GoddardError, match="cannot be used"):
            read(shown | {"tlsKeyPassword": "wrong"})
        with pytest.raises(GoddardError, match="No route info of this topic: T"):
            read(shown | {"tlsKeyPassword": "secret"})


@pytest.mark.java
def test_encrypted_connections(javas: Site) -> None:
    topic = javas.create_topic("tls")
    options = {"nameServers": javas.namesrv, "tls": "true"}
    write(options | {"topic": topic}, b"1", b"2")
    found = read(options | {"subscribe": topic})
    assert sorted(row["body"] for row in found) == [b"1", b"2"]


def test_namespaces(site: Site) -> None:
    plain = {"nameServers": site.namesrv}
    spaced = plain | {"namespace": "team"}
    topic = site.create_topic("team%spaced").removeprefix("team%")
    write(spaced | {"topic": topic}, b"1")
    assert read(spaced | {"subscribe": topic}) == [{"topic": topic, "body": b"1"}]
    assert read(plain | {"subscribe": f"team%{topic}"}) == [
        {"topic": f"team%{topic}", "body": b"1"}
    ]
    assert read(spaced | {"subscribePattern": "spaced-.*"}) == [{"topic": topic, "body": b"1"}]
    with pytest.raises(GoddardError, match="No route info"):
        read(plain | {"subscribe": topic})
    # Offsets are committed to the namespace's group.
    options = spaced | {"subscribe": topic, "group": "readers", "startingOffsets": "earliest"}
    stream = Stream(options)
    assert stream.step() == [1]
    assert stream.step() == []
    (broker,) = site.brokers
    with Admin(name_servers=site.namesrv) as admin:
        committed = [
            admin.consumer_offset("team%readers", MessageQueue(f"team%{topic}", broker, queue_id))
            for queue_id in range(4)
        ]
    assert sum(offset or 0 for offset in committed) == 1
