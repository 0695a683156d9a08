"""The C++ client (through PyPI's `rocketmq`): its features work with the broker under test.

The package has no transactions, no SQL filters and no way to reject a message, and a batch that it
sends arrives as one empty message at RocketMQ's own broker.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from goddard.testing.site import Site
from tests.support import cpp, peers
from tests.support.cpp import CppClients

pytestmark = pytest.mark.java

READ_TIMEOUT = 20

_names = count()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CppClients]:
    reason = cpp.why_unavailable()
    if reason is not None:
        if peers.is_required():
            pytest.fail(f"CI=true requires the C++ client: {reason}")
        pytest.skip(reason)
    with CppClients(tmp_path_factory.mktemp("cpp")) as clients:
        yield clients


class Endpoints:
    """Producers and consumers at a site, by their names in the driver."""

    def __init__(self, client: CppClients, site: Site) -> None:
        self.client = client
        self.site = site
        self.consumers: list[str] = []
        self.producer = f"producer-{next(_names)}"
        group = site.new_group("senders")
        client.do("open_producer", name=self.producer, namesrv=site.namesrv, group=group)

    def send(self, mode: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        results = self.client.do("send", name=self.producer, mode=mode, messages=messages)
        assert isinstance(results, list)
        return results

    def subscribe(self, topic: str, **options: Any) -> str:
        name = f"consumer-{next(_names)}"
        group = options.pop("group", None) or self.site.new_group("readers")
        self.client.do(
            "open_consumer",
            name=name,
            namesrv=self.site.namesrv,
            group=group,
            topic=topic,
            **options,
        )
        self.consumers.append(name)
        return name

    def receive(self, consumer: str, wanted: int) -> list[dict[str, Any]]:
        deliveries = self.client.do("receive", name=consumer, count=wanted, seconds=READ_TIMEOUT)
        assert isinstance(deliveries, list)
        return deliveries

    def close(self) -> None:
        for consumer in self.consumers:
            self.client.do("close_consumer", name=consumer)
        self.client.do("close_producer", name=self.producer)


@pytest.fixture
def endpoints(client: CppClients, site: Site) -> Iterator[Endpoints]:
    endpoints = Endpoints(client, site)
    yield endpoints
    endpoints.close()


def numbered(topic: str, wanted: int) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "body": f"body {i}", "tag": f"t{i % 3}", "keys": f"k{i}"}
        for i in range(wanted)
    ]


def test_sync_and_push(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-sync")
    messages = numbered(topic, 40)
    messages[0]["properties"] = {"colour": "red"}
    sent = endpoints.send("sync", *messages)
    assert {each["status"] for each in sent} == {"OK"}
    assert len({each["id"] for each in sent}) == 40
    received = endpoints.receive(endpoints.subscribe(topic), 40)
    assert {(each["id"], each["offset"]) for each in received} == {
        (each["id"], each["offset"]) for each in sent
    }
    assert sorted((each["body"], each["tag"], each["keys"]) for each in received) == sorted(
        (each["body"], each["tag"], each["keys"]) for each in messages
    )
    assert [each["colour"] for each in received if each["body"] == "body 0"] == ["red"]
    assert len(received) == 40


def test_one_way_and_async(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-oneway")
    messages = numbered(topic, 40)
    assert endpoints.send("oneway", *messages[:20]) == []
    sent = endpoints.send("async", *messages[20:])
    assert [each.get("status") for each in sent] == ["OK"] * 20
    received = endpoints.receive(endpoints.subscribe(topic), 40)
    assert sorted(each["body"] for each in received) == sorted(each["body"] for each in messages)


def test_ordered(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-ordered")
    messages = numbered(topic, 40)
    for i, message in enumerate(messages):
        message["shard"] = i % 8
    sent = endpoints.send("ordered", *messages)
    assert {each["status"] for each in sent} == {"OK"}
    received = endpoints.receive(endpoints.subscribe(topic, orderly=True), 40)
    assert len(received) == 40
    by_queue: dict[int, list[int]] = defaultdict(list)
    for each in received:
        by_queue[each["queue"]].append(int(each["body"].removeprefix("body ")))
    assert dict(by_queue) == {queue: list(range(queue, 40, 4)) for queue in range(4)}


def test_tags(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-tags")
    endpoints.send("sync", *numbered(topic, 30))
    received = endpoints.receive(endpoints.subscribe(topic, expression="t0 || t2"), 20)
    assert sorted(each["tag"] for each in received) == ["t0"] * 10 + ["t2"] * 10


def test_delayed(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-delayed")
    (sent,) = endpoints.send("sync", {"topic": topic, "body": "later", "delayLevel": 1})
    assert sent["status"] == "OK"
    (received,) = endpoints.receive(endpoints.subscribe(topic), 1)
    assert received["body"] == "later"
    assert 950 <= received["storedMs"] - received["bornMs"] < 3000


def test_offset_resume(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-resume")
    group = site.new_group("readers")
    endpoints.send("sync", *numbered(topic, 20))
    first = endpoints.subscribe(topic, group=group)
    assert len(endpoints.receive(first, 20)) == 20
    endpoints.client.do("close_consumer", name=first)
    endpoints.consumers.remove(first)
    endpoints.send("sync", {"topic": topic, "body": "after"})
    received = endpoints.receive(endpoints.subscribe(topic, group=group), 1)
    assert [each["body"] for each in received] == ["after"]


def test_broadcast(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-broadcast")
    group = site.new_group("readers")
    both = [endpoints.subscribe(topic, group=group, broadcast=True) for _ in range(2)]
    sent = endpoints.send("sync", *numbered(topic, 12))
    for consumer in both:
        received = endpoints.receive(consumer, 12)
        assert sorted(each["id"] for each in received) == sorted(each["id"] for each in sent)


def test_pull(site: Site, endpoints: Endpoints) -> None:
    topic = site.create_topic("cpp-pull")
    endpoints.send("sync", *numbered(topic, 40))
    pulled = endpoints.client.do(
        "pull", namesrv=site.namesrv, group=site.new_group("pullers"), topic=topic, expression="*"
    )
    assert sorted(each["body"] for each in pulled) == sorted(f"body {i}" for i in range(40))


def test_large_body(site: Site, endpoints: Endpoints) -> None:
    """A megabyte, which the client compresses."""
    topic = site.create_topic("cpp-large")
    body = "The quick brown fox. " * 50_000
    endpoints.send("sync", {"topic": topic, "body": body})
    (received,) = endpoints.receive(endpoints.subscribe(topic), 1)
    assert received["body"] == body
