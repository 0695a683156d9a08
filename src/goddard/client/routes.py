"""Routes: from what a name server says about a topic to the queues to write to and to read from.

Pure: no clock, no network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerData, QueueData, TopicRoute
from goddard.protocol.codes import Permission

MASTER_ID: Final = 0
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


def comparable(route: TopicRoute) -> tuple[list[QueueData], list[BrokerData], str | None]:
    """What makes two routes differ; the order in which a name server lists things does not."""
    return (
        sorted(route.queue_datas, key=lambda data: data.broker_name),
        sorted(route.broker_datas, key=lambda data: data.broker_name),
        route.order_topic_conf,
    )


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
