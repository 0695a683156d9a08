"""A place for clients to work at: name servers and brokers of either make, and topics on them.

The same suite runs against our broker and against RocketMQ's own, which shows that it tests the
protocol and not us. Everything a suite cannot wait for in its usual time is shortened for both
alike: the check-back of transactions, and how soon their ends are written down.
"""

from collections.abc import Mapping
from itertools import count

from goddard.protocol.codes import Permission, RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask, query_brokers, query_route

# A 5.x broker that has not finished its first look at the name servers registers 10 s later.
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
    """Brokers that are registered with one name server."""

    def __init__(self, name_server: Process) -> None:
        self.name_server = name_server
        self.brokers: dict[str, Process] = {}

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    @property
    def broker(self) -> Process:
        """The only broker of a site that has one."""
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
        """A new topic with this many queues on each broker, known to the name server.

        Its name begins with the label, or is the label if ``is_exact``.
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
