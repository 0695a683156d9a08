"""Connection options: TLS, credentials and namespaces, without Spark."""

from pathlib import Path
from typing import Any

import pytest

from goddard import Admin, MessageQueue
from goddard.errors import GoddardError
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.certificates import make_identity
from tests.support.spark_readers import ManualStream, read_rows, write_bodies


def write(options: dict[str, str], *bodies: bytes) -> None:
    assert write_bodies(options, bodies) == len(bodies)


def read(options: dict[str, str]) -> list[dict[str, Any]]:
    return read_rows(options, ["topic", "body"])


def test_server_certificates_are_verified(tmp_path: Path) -> None:
    servers, another = (make_identity(tmp_path, name) for name in ("servers", "another"))
    tls = {
        "tls.server.certPath": str(servers.certificate),
        "tls.server.keyPath": str(servers.key),
    }
    with Cluster(tmp_path / "cluster") as cluster:
        server = cluster.start_name_server(properties=tls)
        options = {"nameServers": server.address, "subscribe": "T"}
        trust = {"tlsTrust": str(servers.certificate)}
        with pytest.raises(GoddardError, match="No route info of this topic: T"):
            read(options | trust)
        with pytest.raises(GoddardError, match="no name server answers"):
            read(options | {"tlsTrust": str(another.certificate)})


def test_client_certificate_is_presented(tmp_path: Path) -> None:
    servers = make_identity(tmp_path, "servers")
    own = make_identity(tmp_path, "own", b"secret")
    tls = {
        "tls.server.certPath": str(servers.certificate),
        "tls.server.keyPath": str(servers.key),
        "tls.server.trustCertPath": str(own.certificate),
        "tls.server.need.client.auth": "require",
    }
    with Cluster(tmp_path / "cluster") as cluster:
        server = cluster.start_name_server(properties=tls)
        options = {"nameServers": server.address, "subscribe": "T", "tls": "true"}
        with pytest.raises(GoddardError, match="no name server answers"):
            read(options)
        with_certificate = options | {
            "tlsCertificate": str(own.certificate),
            "tlsKey": str(own.key),
        }
        with pytest.raises(GoddardError, match="cannot be used"):
            read(with_certificate | {"tlsKeyPassword": "wrong"})
        with pytest.raises(GoddardError, match="No route info of this topic: T"):
            read(with_certificate | {"tlsKeyPassword": "secret"})


@pytest.mark.java
def test_encrypted_connections(javas: Site) -> None:
    topic = javas.create_topic("tls")
    options = {"nameServers": javas.namesrv, "tls": "true"}
    write(options | {"topic": topic}, b"1", b"2")
    found = read(options | {"subscribe": topic})
    assert sorted(row["body"] for row in found) == [b"1", b"2"]


def test_sql_filter_rejected_by_the_broker_fails_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster, properties={"enablePropertyFilter": "false"})
        topic = site.create_topic("conditions")
        plain = {"nameServers": site.namesrv}
        write(plain | {"topic": topic}, b"1")
        # This is not an outage, so maxOutage does not apply.
        condition = {"filter": "a > 1", "filterType": "sql92", "maxOutage": "10m"}
        with pytest.raises(GoddardError, match="set enablePropertyFilter=true in the broker's"):
            read(plain | {"subscribe": topic} | condition)


def test_namespaces(site: Site) -> None:
    plain = {"nameServers": site.namesrv}
    with_namespace = plain | {"namespace": "team"}
    topic = site.create_topic("team%spaced").removeprefix("team%")
    write(with_namespace | {"topic": topic}, b"1")
    assert read(with_namespace | {"subscribe": topic}) == [{"topic": topic, "body": b"1"}]
    assert read(plain | {"subscribe": f"team%{topic}"}) == [
        {"topic": f"team%{topic}", "body": b"1"}
    ]
    assert read(with_namespace | {"subscribePattern": "spaced-.*"}) == [
        {"topic": topic, "body": b"1"}
    ]
    with pytest.raises(GoddardError, match="No route info"):
        read(plain | {"subscribe": topic})
    # Offsets are committed to the namespace's group.
    options = with_namespace | {
        "subscribe": topic,
        "group": "readers",
        "startingOffsets": "earliest",
    }
    stream = ManualStream(options)
    assert stream.run_batch() == [1]
    assert stream.run_batch() == []
    (broker,) = site.brokers
    with Admin(name_servers=site.namesrv) as admin:
        committed = [
            admin.consumer_offset("team%readers", MessageQueue(f"team%{topic}", broker, queue_id))
            for queue_id in range(4)
        ]
    assert sum(offset or 0 for offset in committed) == 1
