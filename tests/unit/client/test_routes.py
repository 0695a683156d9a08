"""Routes: the queues to write to and to read from, and broker addresses."""

import pytest

from goddard.client.routes import (
    MAX_QUEUES,
    KnownRoutes,
    auto_create_route,
    comparison_key,
    publish_route,
    subscribe_queues,
    vip_address,
)
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerData, QueueData, TopicRoute
from goddard.protocol.codes import Permission

READ_WRITE = int(Permission.READ | Permission.WRITE)


def broker(name: str, *ids: int) -> BrokerData:
    return BrokerData(
        broker_name=name, cluster="c", broker_addrs={each: f"10.0.0.{each}:1" for each in ids}
    )


def data(
    name: str, queues: int = 2, *, read: int | None = None, perm: int = READ_WRITE
) -> QueueData:
    return QueueData(
        broker_name=name,
        perm=perm,
        read_queue_nums=queues if read is None else read,
        write_queue_nums=queues,
    )


def names(queues: list[MessageQueue] | tuple[MessageQueue, ...]) -> list[str]:
    assert {queue.topic for queue in queues} <= {"T"}
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


@pytest.mark.parametrize(
    ("route", "written", "read"),
    [
        # Brokers are sorted for writing.
        (
            TopicRoute(
                queue_datas=[data("b"), data("a")], broker_datas=[broker("a", 0), broker("b", 0)]
            ),
            ["a0", "a1", "b0", "b1"],
            ["b0", "b1", "a0", "a1"],
        ),
        # No master: read only.
        (
            TopicRoute(queue_datas=[data("a")], broker_datas=[broker("a", 1, 2)]),
            [],
            ["a0", "a1"],
        ),
        # Different permissions and numbers of queues.
        (
            TopicRoute(
                queue_datas=[
                    data("a", perm=int(Permission.READ)),
                    data("b", perm=int(Permission.WRITE)),
                    data("c", 1, read=3),
                    data("d", perm=0),
                ],
                broker_datas=[broker(name, 0) for name in "abcd"],
            ),
            ["b0", "b1", "c0"],
            ["a0", "a1", "c0", "c1", "c2"],
        ),
        # Queues of a broker that has no address.
        (TopicRoute(queue_datas=[data("x")]), [], ["x0", "x1"]),
        (TopicRoute(queue_datas=[data("x", -5)], broker_datas=[broker("x", 0)]), [], []),
        (TopicRoute(), [], []),
    ],
)
def test_queues_of_a_route(route: TopicRoute, written: list[str], read: list[str]) -> None:
    assert names(publish_route("T", route).queues) == written
    assert names(subscribe_queues("T", route)) == read


def test_ordered_topic_has_its_configured_queues() -> None:
    route = TopicRoute(
        order_topic_conf="b:2;a:1;nonsense;x:y;:3;z:9999999",
        queue_datas=[data("a", 8)],
        broker_datas=[broker("a", 0)],
    )
    made = publish_route("T", route)
    assert made.is_ordered
    assert names(made.queues) == ["b0", "b1", "a0"]
    assert made.brokers == ("b", "a")
    assert names(made.by_broker["b"]) == ["b0", "b1"]
    assert not publish_route("T", TopicRoute()).is_ordered


def test_auto_created_topic_gets_the_queues_of_its_template() -> None:
    template = TopicRoute(
        queue_datas=[data("a", 8), data("b", 2, read=3)],
        broker_datas=[broker("a", 0), broker("b", 0)],
    )
    assert len(publish_route("T", auto_create_route(template, 4)).queues) == 4 + 3
    assert template.queue_datas[0].write_queue_nums == 8


def test_number_of_queues_is_limited() -> None:
    route = TopicRoute(
        queue_datas=[data(name, 2**31 - 1) for name in "ab"],
        broker_datas=[broker("a", 0), broker("b", 0)],
    )
    assert len(publish_route("T", route).queues) == MAX_QUEUES
    assert len(subscribe_queues("T", route)) == MAX_QUEUES


def test_order_in_a_route_does_not_matter() -> None:
    brokers = [broker("a", 0, 1), broker("b", 0)]
    one = TopicRoute(queue_datas=[data("a"), data("b")], broker_datas=brokers)
    other = TopicRoute(queue_datas=[data("b"), data("a")], broker_datas=brokers[::-1])
    assert comparison_key(one) == comparison_key(other)
    for changed in (
        TopicRoute(queue_datas=[data("a"), data("b", 3)], broker_datas=brokers),
        TopicRoute(queue_datas=one.queue_datas, broker_datas=[broker("a", 0), broker("b", 0)]),
        TopicRoute(queue_datas=one.queue_datas, broker_datas=brokers, order_topic_conf="a:1"),
    ):
        assert comparison_key(one) != comparison_key(changed)


def test_known_routes_and_brokers() -> None:
    known = KnownRoutes()
    both = TopicRoute(
        queue_datas=[data("a", 2), data("b", 1)], broker_datas=[broker("a", 0, 1), broker("b", 2)]
    )
    assert known.publish_route("T") is None
    assert known.subscribe_queues("T") == []
    assert known.set("T", both)
    assert not known.set("T", both)
    published = known.publish_route("T")
    assert published is not None
    # A broker with only a slave can be read from, but not written to.
    assert published.brokers == ("a",)
    assert {queue.broker_name for queue in known.subscribe_queues("T")} == {"a", "b"}
    assert known.find_broker("a", 0, only_this=True) == ("10.0.0.0:1", False)
    assert known.find_broker("a", 1, only_this=True) == ("10.0.0.1:1", True)
    assert known.find_broker("b", 1, only_this=True) == ("10.0.0.2:1", True)
    assert known.find_broker("b", 0, only_this=True) is None
    assert known.find_broker("b", 0, only_this=False) == ("10.0.0.2:1", True)
    assert known.find_broker("x", 0, only_this=False) is None
    assert known.remove_offline_brokers() == []
    assert known.set("T", TopicRoute(queue_datas=[data("a")], broker_datas=[broker("a", 0)]))
    assert known.publish_route("T") is not published
    assert known.remove_offline_brokers() == ["b"]
    assert list(known.brokers) == ["a"]
    known.expect_creation("New", both, 1)
    expected = known.publish_route("New")
    assert expected is not None
    assert expected.queues == (MessageQueue("New", "a", 0),)


def test_vip_address() -> None:
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert vip_address("no-port") == "no-port"
