"""Java brokers, clients and mqadmin around the name servers under test.

The name servers are Goddard's, or with ``--name-server=java`` RocketMQ's: a test that fails there
expects something that RocketMQ does not do. The tests of a module share JVMs. ``--broker`` selects
the broker of the client suites in the same way; they share brokers and JVMs during the whole run,
so each of their tests uses its own topics and groups.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.process import Process
from goddard.testing.site import Site
from tests.support.java import JavaPeers, JavaProgram, start_java_broker
from tests.support.java_clients import JavaClients

CLIENT_VERSIONS = ("5.4.0", "4.9.4")

StartNameServer = Callable[[Mapping[str, str]], Process]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="module")
def java540(directory: Path) -> Iterator[JavaPeers]:
    with JavaPeers("5.4.0", directory) as peers:
        yield peers


@pytest.fixture(scope="module")
def java494(directory: Path) -> Iterator[JavaPeers]:
    with JavaPeers("4.9.4", directory) as peers:
        yield peers


@pytest.fixture(scope="module")
def start_name_server(
    pytestconfig: pytest.Config, directory: Path, java540: JavaPeers
) -> Iterator[StartNameServer]:
    """Start a name server under test with the given properties."""
    if pytestconfig.getoption("--name-server") == "java":
        count = 0

        def start_java(properties: Mapping[str, str]) -> Process:
            nonlocal count
            count += 1
            return java540.start_name_server(f"namesrv-{count}", properties=properties)

        yield start_java
        return
    with Cluster(directory / "goddard") as cluster:
        yield lambda properties: cluster.start_name_server(properties=properties)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker_kind" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--broker")
        kinds = ["goddard", "java"] if chosen == "both" else [chosen]
        metafunc.parametrize("broker_kind", kinds, scope="session")


@pytest.fixture(scope="session")
def site(
    broker_kind: str, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A name server and a broker, as selected on the command line."""
    directory = tmp_path_factory.mktemp(f"site-{broker_kind}")
    with JavaPeers("5.4.0", directory) as java, Cluster(directory / "goddard") as cluster:
        is_java = pytestconfig.getoption("--name-server") == "java"
        site = Site(java.start_name_server() if is_java else cluster.start_name_server())
        if broker_kind == "java":
            start_java_broker(site, java)
        else:
            site.start_goddard_broker(cluster)
        yield site


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def client_version(request: pytest.FixtureRequest) -> str:
    version = request.param
    assert isinstance(version, str)
    return version


@pytest.fixture(scope="session")
def client_peers(
    client_version: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaPeers]:
    with JavaPeers(client_version, tmp_path_factory.mktemp(f"client-{client_version}")) as java:
        yield java


@pytest.fixture(scope="session")
def client_jvm(client_peers: JavaPeers) -> JavaProgram:
    return client_peers.client_suite()


@pytest.fixture
def clients(site: Site, client_jvm: JavaProgram) -> Iterator[JavaClients]:
    """Clients of one version at the site; clients that a test leaves open are closed after it."""
    clients = JavaClients(client_jvm, site.namesrv)
    yield clients
    clients.close_all()
