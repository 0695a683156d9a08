"""Fixtures for pytest, in anybody's project: an embedded cluster, topics, groups, clients.

pytest finds this module by itself once Goddard is installed. Nothing is imported or started before
a test asks for it; then a name server and a broker run on free loopback ports, in a temporary
folder, until the tests end. Tests share them and keep apart by topics and groups of their own.

    def test_orders_arrive(goddard_topic, goddard_producer, goddard_read):
        topic = goddard_topic("orders")
        goddard_producer.send(Message(topic, b"one coffee"))
        assert [message.body for message in goddard_read(topic, 1)] == [b"one coffee"]
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import pytest

# Both import their parts when these are first used.
import goddard
from goddard import testing

if TYPE_CHECKING:
    from goddard import Producer, ReceivedMessage
    from goddard.testing import Site

_READ_SECONDS = 30.0


class NewTopic(Protocol):
    """Makes topics."""

    def __call__(self, label: str = ..., *, queues: int = ..., order: bool = ...) -> str:
        """A new topic whose name begins with ``label``."""


class NewGroup(Protocol):
    """Makes up names of groups."""

    def __call__(self, label: str = ...) -> str:
        """A name that no other test has, beginning with ``label``."""


class ReadTopic(Protocol):
    """Reads what is in a topic."""

    def __call__(
        self, topic: str, count: int, *, timeout_seconds: float = ...
    ) -> "list[ReceivedMessage]":
        """The first messages of a topic, sorted by when they were stored.

        TimeoutError if there are not ``count`` of them in time.
        """


@pytest.fixture(scope="session")
def goddard_broker_properties() -> Mapping[str, str]:
    """Properties of the embedded broker, as in ``broker.conf``; redefine it to set some."""
    return {}


@pytest.fixture(scope="session")
def goddard_cluster(
    tmp_path_factory: pytest.TempPathFactory, goddard_broker_properties: Mapping[str, str]
) -> "Iterator[Site]":
    """A name server and a broker, which end with the tests."""
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
    """What a client is to be given as ``name_servers``."""
    return goddard_cluster.namesrv


@pytest.fixture(scope="session")
def goddard_topic(goddard_cluster: "Site") -> NewTopic:
    """Makes topics: ``topic = goddard_topic("orders", queues=8)``."""

    def new_topic(label: str = "topic", *, queues: int = 4, order: bool = False) -> str:
        return goddard_cluster.create_topic(label, queues=queues, order=order)

    return new_topic


@pytest.fixture(scope="session")
def goddard_group(goddard_cluster: "Site") -> NewGroup:
    """Makes up names of groups: ``group = goddard_group("billing")``."""

    def new_group(label: str = "group") -> str:
        return goddard_cluster.new_group(label)

    return new_group


@pytest.fixture
def goddard_producer(goddard_name_servers: str, goddard_group: NewGroup) -> "Iterator[Producer]":
    """A producer that is running, and stopped after the test."""
    group = goddard_group("producer")
    with goddard.Producer(group, name_servers=goddard_name_servers) as producer:
        yield producer


@pytest.fixture
def goddard_read(goddard_name_servers: str, goddard_group: NewGroup) -> ReadTopic:
    """Reads topics from their beginning: ``messages = goddard_read(topic, 3)``."""

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
