"""Official brokers and clients, 5.4.0 and 4.9.4, with two of our name servers."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers, query_route
from tests.support.java import JavaBroker, JavaDriver, JavaPeers

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOPIC = "TrafficTopic"
# A 5.x broker that has not finished its first check of the name servers registers 10 s later, and
# every broker returns to a restarted name server at its next registration: 10 s at the soonest.
REGISTRATION_TIMEOUT = 30


@dataclass
class Site:
    """A broker registered with two name servers, and a JVM for its clients."""

    name_servers: list[Process]
    broker: JavaBroker
    driver: JavaDriver
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def namesrv(self) -> str:
        return ";".join(server.address for server in self.name_servers)

    def is_registered(self, server: Process) -> bool:
        return query_brokers(server.address) == {"broker-a": {0: self.broker.address}}

    def wait_registered(self, *servers: Process) -> None:
        wanted = servers or self.name_servers
        wait_until(
            lambda: all(self.is_registered(server) for server in wanted),
            REGISTRATION_TIMEOUT,
            f"{self.broker.name} registered with {[server.name for server in wanted]}",
        )

    def new_clients(self, namesrv: str) -> tuple[str, str]:
        """A producer and a consumer in a new group, which know only these name servers."""
        number = next(self.numbers)
        self.driver.open_producer(f"producer-{number}", namesrv, f"producers-{number}")
        self.driver.open_consumer(f"consumer-{number}", namesrv, TOPIC)
        return f"producer-{number}", f"consumer-{number}"

    def check_delivery(self, clients: tuple[str, str], messages: int) -> None:
        producer, consumer = clients
        before = set(self.driver.receive(consumer, 0))
        sent = self.driver.send(producer, TOPIC, messages)
        assert len(set(sent)) == messages
        deadline = time.monotonic() + 30
        received: set[str] = before
        while not received >= set(sent) and time.monotonic() < deadline:
            received = set(self.driver.receive(consumer, len(received) + 1, timeout=5))
        assert set(sent) - received == set()

    def close_clients(self, clients: tuple[str, str]) -> None:
        self.driver.close_consumer(clients[1])
        self.driver.close_producer(clients[0])


@pytest.fixture(scope="module", params=["5.4.0", "4.9.4"])
def shared_site(
    request: pytest.FixtureRequest,
    java540: JavaPeers,
    java494: JavaPeers,
    start_name_server: Callable[[dict[str, str]], Process],
) -> Iterator[Site]:
    java = java540 if request.param == "5.4.0" else java494
    servers = [start_name_server({}), start_name_server({})]
    namesrv = ";".join(server.address for server in servers)
    broker = java.start_broker(namesrv=namesrv)
    site = Site(servers, broker, java.driver())
    site.wait_registered()
    created = site.driver.admin(
        "updateTopic", "-n", servers[0].address, "-b", broker.address, "-t", TOPIC
    )
    assert f"create topic to {broker.address} success" in created
    wait_until(
        lambda: all(query_route(server.address, TOPIC) for server in servers),
        REGISTRATION_TIMEOUT,
        f"route of {TOPIC} at both name servers",
    )
    yield site
    for process in (broker, *servers):
        process.kill()


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The site with all processes running, whatever the previous test did to it."""
    for process in (*shared_site.name_servers, shared_site.broker):
        if not process.is_running:
            process.start()
    shared_site.wait_registered()
    return shared_site


def test_broker_registers_with_both(site: Site) -> None:
    for server in site.name_servers:
        route = query_route(server.address, TOPIC)
        assert route is not None
        (queues,) = route["queueDatas"]
        assert queues["brokerName"] == "broker-a"
        assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (8, 8, 6)
        (broker,) = route["brokerDatas"]
        assert broker["brokerAddrs"] == {"0": site.broker.address}


def test_thousand_messages_arrive(site: Site) -> None:
    clients = site.new_clients(site.namesrv)
    site.check_delivery(clients, 1000)
    site.close_clients(clients)


def test_quick_start_example_runs_unchanged(site: Site, java494: JavaPeers) -> None:
    """RocketMQ's first example: 1,000 messages to a topic that the first send creates."""
    number = next(site.numbers)
    consumer = java494.example(
        f"quickstart-consumer-{site.broker.port}-{number}",
        "quickstart.Consumer",
        namesrv=site.namesrv,
        ready="Consumer Started",
    )
    producer = java494.example(
        f"quickstart-producer-{site.broker.port}-{number}",
        "quickstart.Producer",
        namesrv=site.namesrv,
    )
    with consumer, producer:
        producer.launch()
        # A consumer without a route retries only after 30 s.
        wait_until(
            lambda: all(query_route(server.address, "TopicTest") for server in site.name_servers),
            30,
            "route of the topic that the first message created",
        )
        consumer.start()
        wait_until(lambda: not producer.is_running, 40, "the producer is done")
        sent = re.findall(r"sendStatus=SEND_OK, msgId=(\w+)", producer.output())
        assert len(set(sent)) == 1000, producer.diagnosis()
        wait_until(
            lambda: set(re.findall(r"UNIQ_KEY=(\w+)", consumer.output())) >= set(sent),
            30,
            "the consumer printed every message",
        )


def test_traffic_continues_when_one_of_two_is_killed_and_restarted(site: Site) -> None:
    first, second = site.name_servers
    clients = site.new_clients(site.namesrv)
    site.check_delivery(clients, 100)

    first.kill()
    site.check_delivery(clients, 100)
    newcomers = site.new_clients(site.namesrv)
    site.check_delivery(newcomers, 100)

    first.start()
    site.wait_registered(first)
    second.kill()
    site.check_delivery(clients, 100)
    latecomers = site.new_clients(site.namesrv)
    site.check_delivery(latecomers, 100)
    for each in (clients, newcomers, latecomers):
        site.close_clients(each)


def test_killed_broker_loses_its_routes_at_once(site: Site) -> None:
    for server in site.name_servers:
        assert query_route(server.address, TOPIC) is not None
    site.broker.kill()
    wait_until(
        lambda: not any(query_route(server.address, TOPIC) for server in site.name_servers),
        30,  # a silent broker would expire after 120 s
        "no route at either name server",
    )
    for server in site.name_servers:
        assert query_brokers(server.address) == {}
