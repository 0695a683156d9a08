"""Routes: which queues a topic has to write to and to read from, according to the name server.

``KnownRoutes`` keeps the last route of each topic and the queues derived from it. Pure: no clock,
no network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerData, QueueData, TopicRoute
from goddard.protocol.codes import Permission

MASTER_ID: Final = 0
VIP_PORT_DISTANCE: Final = 2
# More queues than a topic can have. A route with more is cut to this number.
MAX_QUEUES: Final = 65_536


@dataclass(frozen=True, slots=True)
class PublishRoute:
    """The queues of a topic to write to, sorted by broker and number.

    ``by_broker`` has the same queues by broker name. ``is_ordered``: the name server has a fixed
    number of queues for each broker (orderTopicConf).
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
    """The queues to write to: those with write permission on brokers that have a master."""
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
    """The queues to read from: those with read permission; their broker may have only a slave."""
    queues: list[MessageQueue] = []
    for data in route.queue_datas:
        if data.perm & Permission.READ:
            queues += _queues_of(topic, data.broker_name, data.read_queue_nums)
    return queues[:MAX_QUEUES]


def vip_address(address: str) -> str:
    """The address of a broker's second port, for clients with ``vip_channel``."""
    host, separator, port = address.rpartition(":")
    return f"{host}{separator}{int(port) - VIP_PORT_DISTANCE}" if port.isdigit() else address


def auto_create_route(route: TopicRoute, queue_count: int) -> TopicRoute:
    """The route that a topic will get when a broker creates it automatically.

    ``route`` is that of the topic whose settings the broker copies.
    """
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


def comparison_key(route: TopicRoute) -> tuple[list[QueueData], list[BrokerData], str | None, bool]:
    """The same for two routes that differ only in the order of queues and brokers."""
    return (
        sorted(route.queue_datas, key=lambda data: data.broker_name),
        sorted(route.broker_datas, key=lambda data: data.broker_name),
        route.order_topic_conf,
        # A topic can become a static topic at any time.
        bool(route.topic_queue_mapping_by_broker),
    )


class KnownRoutes:
    """The last known routes of topics, and the addresses of the brokers in them.

    ``brokers`` is broker name -> broker id -> address.
    """

    def __init__(self) -> None:
        self.brokers: dict[str, dict[int, str]] = {}
        self._routes: dict[str, TopicRoute] = {}
        # Computed from the routes on first use.
        self._publish_routes: dict[str, PublishRoute] = {}
        self._subscribe_queues: dict[str, list[MessageQueue]] = {}

    def get(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def set(self, topic: str, route: TopicRoute) -> bool:
        """Keep a route; True if it differs from the last one of the topic."""
        for broker in route.broker_datas:
            self.brokers[broker.broker_name] = dict(broker.broker_addrs)
        old = self._routes.get(topic)
        if old is not None and comparison_key(old) == comparison_key(route):
            return False
        self._routes[topic] = route
        self._publish_routes.pop(topic, None)
        self._subscribe_queues.pop(topic, None)
        return True

    def expect_creation(self, topic: str, template: TopicRoute, queue_count: int) -> None:
        """Publish to a topic that does not exist yet, by the route that it will get."""
        route = publish_route(topic, auto_create_route(template, queue_count))
        self._publish_routes[topic] = route

    def publish_route(self, topic: str) -> PublishRoute | None:
        """The queues to write to; None if the topic is not known or has no such queues."""
        route = self._publish_routes.get(topic)
        if route is None:
            found = self._routes.get(topic)
            if found is None:
                return None
            route = self._publish_routes[topic] = publish_route(topic, found)
        return route if route.queues else None

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """The queues to read from; an empty list if the topic is not known."""
        queues = self._subscribe_queues.get(topic)
        if queues is None:
            found = self._routes.get(topic)
            if found is None:
                return []
            queues = self._subscribe_queues[topic] = subscribe_queues(topic, found)
        return list(queues)

    def find_broker(
        self, broker_name: str, broker_id: int, *, only_this: bool
    ) -> tuple[str, bool] | None:
        """An address of a broker to read from, and whether it is a slave's.

        It is the replica with this id. If there is none, it is the one with the next id (for a
        slave), or else any other one, unless ``only_this``.
        """
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

    def remove_offline_brokers(self) -> list[str]:
        """Remove the brokers that are not in any route; returns their names."""
        routed = {
            broker.broker_name for route in self._routes.values() for broker in route.broker_datas
        }
        gone = [name for name in self.brokers if name not in routed]
        for name in gone:
            del self.brokers[name]
        return gone


def _queues_of(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, broker_name, number) for number in range(min(count, MAX_QUEUES))]


def _ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    """The queues in a text ``broker:count;broker:count``; malformed parts are left out."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        broker_name, _, count = part.strip().rpartition(":")
        if broker_name and count.isascii() and count.isdigit() and len(count) <= 6:
            queues += _queues_of(topic, broker_name, int(count))
    return queues[:MAX_QUEUES]
