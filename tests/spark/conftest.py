"""Fixtures: one Spark session for the whole run, and the clusters that it reads and writes.

Tests with the fixture ``site`` run with Goddard's broker and with RocketMQ's. A Spark session is
slow to start, so all tests share one; a test that changes its configuration restores it.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from goddard.spark.session import spark_session
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site
from tests.support.java import JavaPeers, start_java_broker

RELEASE = "5.4.0"
# The first test starts Java and several Python processes, which takes a minute on a busy machine.
_TIMEOUT_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "local[2]",
        name="goddard-tests",
        settings={
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.streaming.stopTimeout": "60s",
        },
        log=folder / "spark.log",
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A Goddard cluster, for tests that do not depend on the broker's implementation."""
    with Cluster(tmp_path_factory.mktemp("site-ours")) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        yield site


@pytest.fixture(scope="session")
def javas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A RocketMQ cluster, for tests that are marked ``java``."""
    with JavaPeers(RELEASE, tmp_path_factory.mktemp("site-java")) as java:
        site = Site(java.start_name_server())
        start_java_broker(site, java)
        yield site


@pytest.fixture(params=["goddard", pytest.param("java", marks=pytest.mark.java)], scope="session")
def site(request: pytest.FixtureRequest) -> Site:
    """A name server and a broker of the same implementation."""
    site: Site = request.getfixturevalue("javas" if request.param == "java" else "ours")
    return site
