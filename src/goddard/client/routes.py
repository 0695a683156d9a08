"""Routes: from what a name server says about a topic to the queues to write to and to read from.

``KnownRoutes`` keeps what was said, and what was made of it. Pure: no clock, no network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerData, QueueData, TopicRoute
from goddard.protocol.codes import Permission

MASTER_ID: Final = 0
VIP_PORT_DISTANCE: Final = 2
# No topic has more; a route that says so is not believed.
MAX_QUEUES: Final = 65_536


@dataclass(frozen=True, slots=True)
class PublishRoute:
    """The queues of a topic that can be written to, in the order of their brokers and numbers.

    ``by_broker`` holds the same queues by broker. ``is_ordered``: the topic has a fixed number of
    queues on each broker, which the name server was told (orderTopicConf).
    """

    topic: str
    queues: tuple[MessageQueue, ...]
    is_ordered: bool = False
    by_broker: Mapping[str, tuple[MessageQueue, ...]] = field(init=False)

    def __post_init__(self) -> None:
        grouped: dict[str, list[MessageQueue]] = {}
        for queue in self.queues:
            grouped.setdefault(queue.broker_name, []).append(queue)
        object.__setattr__(
            self, "by_broker", {name: tuple(queues) for name, queues in grouped.items()}
        )

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(self.by_broker)


def publish_route(topic: str, route: TopicRoute) -> PublishRoute:
    """What to write to: writable queues of brokers that have a master."""
    if route.order_topic_conf:
        queues = _ordered_queues(topic, route.order_topic_conf)
        return PublishRoute(topic, tuple(queues), is_ordered=True)
    masters = {
        broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs
    }
    queues = []
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        if data.perm & Permission.WRITE and data.broker_name in masters:
            queues += _queues_of(topic, data.broker_name, data.write_queue_nums)
    return PublishRoute(topic, tuple(queues[:MAX_QUEUES]))


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """What to read from: readable queues; a slave alone can serve them."""
    queues: list[MessageQueue] = []
    for data in route.queue_datas:
        if data.perm & Permission.READ:
            queues += _queues_of(topic, data.broker_name, data.read_queue_nums)
    return queues[:MAX_QUEUES]


def vip_address(address: str) -> str:
    """The address of a broker's second port, which its producers may have to themselves."""
    host, separator, port = address.rpartition(":")
    return f"{host}{separator}{int(port) - VIP_PORT_DISTANCE}" if port.isdigit() else address


def default_route(route: TopicRoute, queue_count: int) -> TopicRoute:
    """The route of the topic that new ones are made after, as one of these will be made."""
    datas = [
        QueueData(
            broker_name=data.broker_name,
            perm=data.perm,
            read_queue_nums=min(queue_count, data.read_queue_nums),
            write_queue_nums=min(queue_count, data.read_queue_nums),
            topic_sys_flag=data.topic_sys_flag,
        )
        for data in route.queue_datas
    ]
    return TopicRoute(queue_datas=datas, broker_datas=route.broker_datas)


def comparable(route: TopicRoute) -> tuple[list[QueueData], list[BrokerData], str | None, bool]:
    """What makes two routes differ; the order in which a name server lists things does not."""
    return (
        sorted(route.queue_datas, key=lambda data: data.broker_name),
        sorted(route.broker_datas, key=lambda data: data.broker_name),
        route.order_topic_conf,
        # A topic may become a static one while it is read.
        bool(route.topic_queue_mapping_by_broker),
    )


class KnownRoutes:
    """What name servers said last about topics, and where brokers therefore are.

    ``brokers`` is broker name -> broker id -> address, of all brokers in any route.
    """

    def __init__(self) -> None:
        self.brokers: dict[str, dict[int, str]] = {}
        self._routes: dict[str, TopicRoute] = {}
        # Made of the routes when somebody asks.
        self._published: dict[str, PublishRoute] = {}
        self._subscribed: dict[str, list[MessageQueue]] = {}

    def get(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def set(self, topic: str, route: TopicRoute) -> bool:
        """Note a route; True if it says something new about the topic."""
        for broker in route.broker_datas:
            self.brokers[broker.broker_name] = dict(broker.broker_addrs)
        old = self._routes.get(topic)
        if old is not None and comparable(old) == comparable(route):
            return False
        self._routes[topic] = route
        self._published.pop(topic, None)
        self._subscribed.pop(topic, None)
        return True

    def expect(self, topic: str, pattern: TopicRoute, queue_count: int) -> None:
        """Write to a topic that is not there yet as to what its brokers will make of it."""
        self._published[topic] = publish_route(topic, default_route(pattern, queue_count))

    def to_publish(self, topic: str) -> PublishRoute | None:
        """The queues to write to; None if the topic is not known, or has no such queues."""
        route = self._published.get(topic) or self.published(topic)
        return route if route is not None and route.queues else None

    def published(self, topic: str) -> PublishRoute | None:
        """The same, even if there are none."""
        route = self._published.get(topic)
        found = self._routes.get(topic)
        if route is None and found is not None:
            route = self._published[topic] = publish_route(topic, found)
        return route

    def to_subscribe(self, topic: str) -> list[MessageQueue]:
        """The queues to read from; none if the topic is not known."""
        queues = self._subscribed.get(topic)
        if queues is None:
            found = self._routes.get(topic)
            if found is None:
                return []
            queues = self._subscribed[topic] = subscribe_queues(topic, found)
        return list(queues)

    def find_broker(
        self, broker_name: str, broker_id: int, *, only_this: bool
    ) -> tuple[str, bool] | None:
        """An address to read from, and whether it is a slave's: that of the id wanted, for a slave
        the next one, else any (unless ``only_this``)."""
        addresses = self.brokers.get(broker_name)
        if not addresses:
            return None
        address = addresses.get(broker_id)
        if address is None and broker_id != MASTER_ID:
            address = addresses.get(broker_id + 1)
        if address is not None:
            return address, broker_id != MASTER_ID
        if only_this:
            return None
        other_id, address = next(iter(addresses.items()))
        return address, other_id != MASTER_ID

    def drop_offline(self) -> list[str]:
        """Forget brokers that are in no route any more; gives their names."""
        routed = {
            broker.broker_name for route in self._routes.values() for broker in route.broker_datas
        }
        gone = [name for name in self.brokers if name not in routed]
        for name in gone:
            del self.brokers[name]
        return gone


def _queues_of(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, broker_name, each) for each in range(min(count, MAX_QUEUES))]


def _ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    """``broker:count;broker:count``; parts that say nothing sensible are left out."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        broker_name, _, count = part.strip().rpartition(":")
        if broker_name and count.isascii() and count.isdigit() and len(count) <= 6:
            queues += _queues_of(topic, broker_name, int(count))
    return queues[:MAX_QUEUES]
