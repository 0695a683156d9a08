"""One Spark session for the whole run, and the clusters that it reads from and writes to.

Tests that take ``site`` run at our cluster and at RocketMQ's own. Sessions are slow to start, so
every test shares the one; what a test sets on it, it sets back.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.support.java import JavaPeers, start_java_broker

from goddard.spark.session import spark_session
from goddard.testing.cluster import Cluster
from goddard.testing.site import Site

RELEASE = "5.4.0"
# The first to use the session starts Java and several Pythons, on a busy machine for a minute.
_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "spark" in item.fixturenames:
            item.add_marker(pytest.mark.timeout(_SECONDS))


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
    """Our own cluster, for what does not depend on the make of the broker."""
    with Cluster(tmp_path_factory.mktemp("site-ours")) as cluster:
        site = Site(cluster.start_name_server())
        site.start_goddard_broker(cluster)
        yield site


@pytest.fixture(scope="session")
def javas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of RocketMQ's own; for tests that are marked ``java``."""
    with JavaPeers(RELEASE, tmp_path_factory.mktemp("site-java")) as java:
        site = Site(java.start_name_server())
        start_java_broker(site, java)
        yield site


@pytest.fixture(params=["goddard", pytest.param("java", marks=pytest.mark.java)], scope="session")
def site(request: pytest.FixtureRequest) -> Site:
    """A name server and a broker, both of the same make."""
    site: Site = request.getfixturevalue("javas" if request.param == "java" else "ours")
    return site
