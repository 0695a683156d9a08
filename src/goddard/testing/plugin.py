"""pytest fixtures for any project: a cluster, topics, groups, clients.

pytest loads this module when Goddard is installed. The first test that uses a fixture starts a
name server and a broker on free loopback ports, with their data in a temporary folder; they run
until the test session ends. All tests share them, so each test uses its own topics and groups.
Nothing else is imported before a fixture is used.

    def test_orders_arrive(goddard_topic, goddard_producer, goddard_read):
        topic = goddard_topic("orders")
        goddard_producer.send(Message(topic, b"one coffee"))
        assert [message.body for message in goddard_read(topic, 1)] == [b"one coffee"]
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

# Both packages import their modules on first use.
import goddard
from goddard import testing

if TYPE_CHECKING:
    from goddard import Producer, ReceivedMessage
    from goddard.testing import Site

_READ_SECONDS = 30.0


class NewTopic(Protocol):
    """The type of ``goddard_topic``."""

    def __call__(self, label: str = ..., *, queues: int = ..., order: bool = ...) -> str:
        """Create a topic with a unique name that begins with ``label``, and return the name."""


class NewGroup(Protocol):
    """The type of ``goddard_group``."""

    def __call__(self, label: str = ...) -> str:
        """Return a unique group name that begins with ``label``."""


class ReadTopic(Protocol):
    """The type of ``goddard_read``."""

    def __call__(
        self, topic: str, count: int, *, timeout_seconds: float = ...
    ) -> "list[ReceivedMessage]":
        """Wait until a topic has ``count`` messages; return its messages in the order of storing.

        Raises TimeoutError if there are fewer after ``timeout_seconds``.
        """


@pytest.fixture(scope="session")
def goddard_broker_properties() -> Mapping[str, str]:
    """Properties of the broker, as in ``broker.conf``; override this fixture to set some."""
    return {}


@pytest.fixture(scope="session")
def goddard_cluster(
    tmp_path_factory: pytest.TempPathFactory, goddard_broker_properties: Mapping[str, str]
) -> "Iterator[Site]":
    """A name server and a broker, stopped at the end of the test session."""
    try:
        made = testing.Cluster(tmp_path_factory.mktemp("goddard"))
    except ImportError as error:
        pytest.fail(str(error), pytrace=False)
    with made as cluster:
        site = testing.Site(cluster.start_name_server())
        site.start_goddard_broker(cluster, properties=goddard_broker_properties)
        yield site


@pytest.fixture(scope="session")
def goddard_name_servers(goddard_cluster: "Site") -> str:
    """The address to pass to clients as ``name_servers``."""
    return goddard_cluster.namesrv


@pytest.fixture(scope="session")
def goddard_topic(goddard_cluster: "Site") -> NewTopic:
    """Creates topics: ``topic = goddard_topic("orders", queues=8)``."""

    def new_topic(label: str = "topic", *, queues: int = 4, order: bool = False) -> str:
        return goddard_cluster.create_topic(label, queues=queues, order=order)

    return new_topic


@pytest.fixture(scope="session")
def goddard_group(goddard_cluster: "Site") -> NewGroup:
    """Returns unique group names: ``group = goddard_group("billing")``."""

    def new_group(label: str = "group") -> str:
        return goddard_cluster.new_group(label)

    return new_group


@pytest.fixture
def goddard_producer(goddard_name_servers: str, goddard_group: NewGroup) -> "Iterator[Producer]":
    """A running producer, stopped after the test."""
    group = goddard_group("producer")
    with goddard.Producer(group, name_servers=goddard_name_servers) as producer:
        yield producer


@pytest.fixture
def goddard_read(goddard_name_servers: str, goddard_group: NewGroup) -> ReadTopic:
    """Reads a topic from the beginning: ``messages = goddard_read(topic, 3)``."""

    def read(
        topic: str, count: int, *, timeout_seconds: float = _READ_SECONDS
    ) -> "list[ReceivedMessage]":
        deadline = time.monotonic() + timeout_seconds
        found: list[ReceivedMessage] = []
        consumer = goddard.LitePullConsumer(
            goddard_group("reader"),
            name_servers=goddard_name_servers,
            consume_from=goddard.ConsumeFrom.FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        with consumer:
            while len(found) < count:
                left_ms = int((deadline - time.monotonic()) * 1000)
                if left_ms <= 0:
                    raise TimeoutError(f"{topic} has {len(found)} messages, not {count}: {found}")
                found += consumer.poll(timeout_ms=left_ms)
        return sorted(found, key=lambda message: message.physical_offset)

    return read
