"""Java brokers, clients and mqadmin around the name servers under test.

Those are Goddard's, or with ``--name-server=java`` RocketMQ's own: a test that fails there expects
something that RocketMQ does not do. JVMs are shared by the tests of a module.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.java import JavaPeers
from goddard.testing.process import Process

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
