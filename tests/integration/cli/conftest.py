"""A Goddard cluster of two brokers, and commands that use it."""

from collections.abc import Iterator
from itertools import count

import pytest

from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.command_line import CommandLine

_BROKERS = ("broker-0", "broker-1")
_numbers = count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    properties = {"enablePropertyFilter": "true"}
    with Cluster(tmp_path_factory.mktemp("cli"), brokers=2, properties=properties) as cluster:
        wait_until(
            lambda: set(_BROKERS) <= set(query_brokers(cluster.namesrv)), 30, "both registered"
        )
        yield cluster


@pytest.fixture(scope="session")
def goddard(cluster: Cluster) -> CommandLine:
    """Commands with NAMESRV_ADDR set to the cluster."""
    return CommandLine({"NAMESRV_ADDR": cluster.namesrv})


@pytest.fixture
def topic(goddard: CommandLine) -> str:
    """A new topic of two queues on each broker."""
    name = f"topic-{next(_numbers)}"
    made = goddard("topic", "create", name, "--queues", "2")
    assert made.code == 0, made.err
    return name


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"
