"""Routes: queues to write to and to read from."""

import pytest

from goddard.client.routes import (
    MAX_QUEUES,
    KnownRoutes,
    comparable,
    default_route,
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
        # Permissions and numbers of their own.
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


def test_an_ordered_topic_says_itself_how_many_queues_it_has() -> None:
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


def test_new_topics_are_made_after_another() -> None:
    pattern = TopicRoute(
        queue_datas=[data("a", 8), data("b", 2, read=3)],
        broker_datas=[broker("a", 0), broker("b", 0)],
    )
    assert len(publish_route("T", default_route(pattern, 4)).queues) == 4 + 3
    assert pattern.queue_datas[0].write_queue_nums == 8


def test_no_route_has_queues_without_end() -> None:
    route = TopicRoute(
        queue_datas=[data(name, 2**31 - 1) for name in "ab"],
        broker_datas=[broker("a", 0), broker("b", 0)],
    )
    assert len(publish_route("T", route).queues) == MAX_QUEUES
    assert len(subscribe_queues("T", route)) == MAX_QUEUES


def test_the_order_of_a_route_says_nothing() -> None:
    brokers = [broker("a", 0, 1), broker("b", 0)]
    one = TopicRoute(queue_datas=[data("a"), data("b")], broker_datas=brokers)
    other = TopicRoute(queue_datas=[data("b"), data("a")], broker_datas=brokers[::-1])
    assert comparable(one) == comparable(other)
    for changed in (
        TopicRoute(queue_datas=[data("a"), data("b", 3)], broker_datas=brokers),
        TopicRoute(queue_datas=one.queue_datas, broker_datas=[broker("a", 0), broker("b", 0)]),
        TopicRoute(queue_datas=one.queue_datas, broker_datas=brokers, order_topic_conf="a:1"),
    ):
        assert comparable(one) != comparable(changed)


def test_what_is_known_of_brokers_and_queues() -> None:
    known = KnownRoutes()
    both = TopicRoute(
        queue_datas=[data("a", 2), data("b", 1)], broker_datas=[broker("a", 0, 1), broker("b", 2)]
    )
    assert known.to_publish("T") is None
    assert known.to_subscribe("T") == []
    assert known.set("T", both)
    assert not known.set("T", both)
    published = known.to_publish("T")
    assert published is not None
    # A slave alone can be read from, not written to.
    assert published.brokers == ("a",)
    assert {queue.broker_name for queue in known.to_subscribe("T")} == {"a", "b"}
    assert known.find_broker("a", 0, only_this=True) == ("10.0.0.0:1", False)
    assert known.find_broker("a", 1, only_this=True) == ("10.0.0.1:1", True)
    assert known.find_broker("b", 1, only_this=True) == ("10.0.0.2:1", True)
    assert known.find_broker("b", 0, only_this=True) is None
    assert known.find_broker("b", 0, only_this=False) == ("10.0.0.2:1", True)
    assert known.find_broker("x", 0, only_this=False) is None
    assert known.drop_offline() == []
    assert known.set("T", TopicRoute(queue_datas=[data("a")], broker_datas=[broker("a", 0)]))
    assert known.to_publish("T") is not published
    assert known.drop_offline() == ["b"]
    assert list(known.brokers) == ["a"]
    known.expect("New", both, 1)
    expected = known.to_publish("New")
    assert expected is not None
    assert expected.queues == (MessageQueue("New", "a", 0),)


def test_the_second_port_of_brokers() -> None:
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert vip_address("no-port") == "no-port"
