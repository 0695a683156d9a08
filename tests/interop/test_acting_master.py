"""A 5.4.0 master and slave, with the slave as acting master: notifications and routes.

The name server notifies the members of a group when its smallest broker id changes, and its route
shows the slave instead of the master, without write permission.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers, query_route
from tests.support.java import JavaBroker, JavaPeers

pytestmark = pytest.mark.java

GROUP = "broker-pair"
TOPIC = "ActingTopic"
READ_WRITE, READ_ONLY = 6, 4
# What a 5.4.0 broker logs when a name server's notification arrives.
NOTIFIED_OF_SLAVE = re.compile(r"min broker id changed, prev \S+, new 1\b")
NOTIFIED_OF_MASTER = re.compile(r"min broker id changed, prev \S+, new 0\b")


@dataclass
class Group:
    name_server: Process
    master: JavaBroker
    slave: JavaBroker

    @property
    def members(self) -> dict[int, str]:
        return query_brokers(self.name_server.address).get(GROUP, {})

    def route_is(self, addresses: dict[str, str], permission: int) -> bool:
        route: dict[str, Any] = query_route(self.name_server.address, TOPIC) or {}
        brokers = [broker["brokerAddrs"] for broker in route.get("brokerDatas", [])]
        permissions = [queue["perm"] for queue in route.get("queueDatas", [])]
        return brokers == [addresses] and permissions == [permission]

    def slave_log(self) -> str:
        return (self.slave.home / "rocketmq.log").read_text()


@pytest.fixture(scope="module")
def group(java540: JavaPeers, start_name_server: Callable[[dict[str, str]], Process]) -> Group:
    name_server = start_name_server(
        {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
    )
    shared = {"brokerName": GROUP, "enableSlaveActingMaster": "true"}
    master = java540.start_broker("master", namesrv=name_server.address, properties=shared)
    slave = java540.start_broker(
        "slave",
        namesrv=name_server.address,
        properties={**shared, "brokerRole": "SLAVE", "brokerId": "1"},
    )
    group = Group(name_server, master, slave)
    wait_until(lambda: group.members == {0: master.address, 1: slave.address}, 40, "both alive")
    java540.driver().admin(
        "updateTopic", "-n", name_server.address, "-b", master.address, "-t", TOPIC
    )
    return group


def test_slave_acts_as_master_until_the_master_returns(group: Group) -> None:
    both = {"0": group.master.address, "1": group.slave.address}
    wait_until(lambda: group.route_is(both, READ_WRITE), 40, "a route with master and slave")

    log_length = len(group.slave_log())
    group.master.kill()
    stand_in = {"0": group.slave.address}
    wait_until(lambda: group.route_is(stand_in, READ_ONLY), 60, "a route with the slave as master")
    wait_until(
        lambda: NOTIFIED_OF_SLAVE.search(group.slave_log(), log_length),
        60,
        "the notification of the slave that it has the smallest id",
    )

    log_length = len(group.slave_log())
    group.master.start()
    wait_until(lambda: group.route_is(both, READ_WRITE), 40, "a route with master and slave again")
    wait_until(
        lambda: NOTIFIED_OF_MASTER.search(group.slave_log(), log_length),
        60,
        "the notification of the slave that the master is back",
    )
