"""A name server, its brokers, and the topics that tests create on them.

The brokers are Goddard's or RocketMQ's: the same tests run against both. Periods that are too long
for tests are shortened on both: the check of open transactions, and the delay before ended
transactions are recorded.
"""

from collections.abc import Mapping
from itertools import count

from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask, query_brokers, query_route

# A RocketMQ 5.x broker whose first registration fails tries again after 10 s.
_REGISTRATION_TIMEOUT_SECONDS = 30

BROKER_PROPERTIES: Mapping[str, str] = {
    "brokerClusterName": "DefaultCluster",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "100",
}

_numbers = count(1)


class Site:
    """One name server and the brokers that are registered with it."""

    def __init__(self, name_server: Process) -> None:
        self.name_server = name_server
        self.brokers: dict[str, Process] = {}

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def broker(self) -> Process:
        """The broker of a site with exactly one broker."""
        (broker,) = self.brokers.values()
        return broker

    def start_goddard_broker(
        self,
        cluster: Cluster,
        name: str = "broker-goddard",
        *,
        properties: Mapping[str, str] | None = None,
    ) -> Process:
        own = {"brokerName": name, "namesrvAddr": self.namesrv, **(properties or {})}
        return self.add_broker(name, cluster.start_broker(properties={**BROKER_PROPERTIES, **own}))

    def create_topic(
        self, label: str, *, queues: int = 4, order: bool = False, is_exact: bool = False
    ) -> str:
        """Create a topic on every broker, wait until it has a route, and return its name.

        The name is unique and begins with ``label``; with ``is_exact`` it is ``label`` itself.
        ``queues`` is the number of queues on each broker.
        """
        topic = label if is_exact else f"{label}-{next(_numbers)}"
        for broker in self.brokers.values():
            _create_topic(broker.address, topic, queues, order=order)
        wait_until(
            lambda: self._has_route(topic), _REGISTRATION_TIMEOUT_SECONDS, f"route of {topic}"
        )
        return topic

    def new_group(self, label: str) -> str:
        return f"{label}-{next(_numbers)}"

    def _has_route(self, topic: str) -> bool:
        route = query_route(self.namesrv, topic)
        served = {data["brokerName"] for data in route["queueDatas"]} if route else set()
        return served == set(self.brokers)

    def add_broker(self, name: str, broker: Process) -> Process:
        """Add a running broker, and wait until the name server knows it."""
        self.brokers[name] = broker
        wait_until(
            lambda: name in query_brokers(self.namesrv),
            _REGISTRATION_TIMEOUT_SECONDS,
            f"{name} is registered",
        )
        return broker


def _create_topic(address: str, topic: str, queues: int, *, order: bool) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(int(Permission.READ | Permission.WRITE)),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "true" if order else "false",
    }
    answer = ask(address, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    if answer.code != ResponseCode.SUCCESS:
        raise AssertionError(f"topic {topic} at {address}: {answer.code} {answer.remark}")
