"""The clusters for the functional tests of the client: Goddard's, then RocketMQ's.

Every test with the fixture `site` runs on both. pytest groups tests by site, so each cluster starts
once. Tests share it and therefore create their own topics and groups (`site.create_topic`,
`site.new_group`). ``-m "not java"`` leaves out RocketMQ. Every test is also checked for TCP
connections that it leaves open.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.guarded import Guarded, guarded_cluster
from tests.support.java import JavaPeers, start_java_broker
from tests.support.process_resources import open_tcp_sockets

RELEASE = "5.4.0"
LEGACY_RELEASE = "4.9.4"

_POLL_SECONDS = 0.01
_POLLS = 500


@pytest.fixture(scope="session", params=["goddard", pytest.param("java", marks=pytest.mark.java)])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A name server and a broker, both of Goddard or both of RocketMQ."""
    directory = tmp_path_factory.mktemp(f"site-{request.param}")
    if request.param == "java":
        yield from _java_site(RELEASE, directory)
        return
    with Cluster(directory) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        yield site


@pytest.fixture(scope="session", params=[pytest.param(LEGACY_RELEASE, marks=pytest.mark.java)])
def legacy_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A name server and a broker of RocketMQ 4.9."""
    yield from _java_site(request.param, tmp_path_factory.mktemp("site-legacy"))


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """RocketMQ 5.4 with access control and a controller."""
    with guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        yield cluster


def _java_site(version: str, directory: Path) -> Iterator[Site]:
    with JavaPeers(version, directory) as java:
        site = Site(java.start_name_server())
        start_java_broker(site, java)
        yield site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function):
            is_async = asyncio.iscoroutinefunction(item.function)
            # Torn down last, so that connections of other fixtures are checked too.
            item.fixturenames.insert(0, "no_leaked_sockets" if is_async else "no_open_sockets")


@pytest.fixture
async def no_leaked_sockets(no_leaked_tasks: None) -> AsyncIterator[None]:
    """Fail an async test that leaves a TCP socket of this process open."""
    before = set(open_tcp_sockets())
    yield
    for _ in range(_POLLS):
        if not _left_open(before):
            break
        await asyncio.sleep(_POLL_SECONDS)
    assert not _left_open(before), "sockets left open"


@pytest.fixture
def no_open_sockets() -> Iterator[None]:
    """Fail a plain test that leaves a TCP socket of this process open."""
    before = set(open_tcp_sockets())
    yield
    for _ in range(_POLLS):
        if not _left_open(before):
            break
        time.sleep(_POLL_SECONDS)
    assert not _left_open(before), "sockets left open"


def _left_open(before: set[int]) -> list[str]:
    return sorted(text for inode, text in open_tcp_sockets().items() if inode not in before)
