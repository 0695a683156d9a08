"""Slaves that act for their masters: those of RocketMQ at our name server, and mixed pairs.

The name server notifies the members of a group when its smallest broker id changes, and its route
shows the slave instead of the master, without write permission. In a mixed pair each side acts for
the other, and takes over what the other reached before it goes online.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.codes import RequestCode
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import query_brokers, query_route
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.java import JavaBroker, JavaPeers
from tests.support.replicas import log_end, table

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


PAIR = {
    "brokerName": GROUP,
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": "2",
    "messageDelayLevel": "1s 3s",
    "haSendHeartbeatInterval": "1000",
    "mappedFileSizeCommitLog": str(4 << 20),
}
SLAVE = {**PAIR, "brokerRole": "SLAVE", "brokerId": "1"}
DELAYED = 5


@pytest.mark.parametrize("acting", ["java", "ours"])
async def test_a_slave_acts_for_a_master_of_the_other_kind(
    acting: str, java540: JavaPeers, tmp_path: Path
) -> None:
    """Due messages go to another broker once; the master is online again with these offsets."""
    with Cluster(tmp_path) as cluster:
        names = cluster.start_name_server().address
        other = cluster.start_broker(properties={"brokerName": "other"})
        master: Process
        slave: Process
        if acting == "java":
            master = cluster.start_broker(properties=PAIR)
            slave = java540.start_broker("acting-slave", namesrv=names, properties=SLAVE)
        else:
            master = java540.start_broker("acted-for", namesrv=names, properties=PAIR)
            wait_until(lambda: query_brokers(names).get(GROUP), 40, "the master is online")
            slave = cluster.start_broker(properties=SLAVE)
        both = {0: master.address, 1: slave.address}

        def is_whole() -> bool:
            return query_brokers(names).get(GROUP) == both and log_end(slave) == log_end(master)

        await asyncio.to_thread(wait_until, is_whole, 60, "both online, with the same log")
        async with Client() as client:
            await BrokerClient(client, other.address).send(TOPIC, b"plain")
            for number in range(DELAYED):
                await BrokerClient(client, master.address).send(
                    TOPIC, b"%d" % number, {"DELAY": "2"}
                )
            await asyncio.to_thread(wait_until, is_whole, 60, "the slave has the messages")
            await asyncio.to_thread(master.kill)
            received: list[bytes] = []
            async with asyncio.timeout(60):
                while len(received) < 1 + DELAYED:
                    received = await bodies(client, other)
                    await asyncio.sleep(0.05)
            expected = [b"plain", *(b"%d" % number for number in range(DELAYED))]
            assert sorted(received) == sorted(expected)

            await asyncio.to_thread(master.start)
            await asyncio.to_thread(wait_until, is_whole, 60, "the master is back")
            offsets = table(master, RequestCode.GET_ALL_DELAY_OFFSET)["offsetTable"]
            assert {str(level): offset for level, offset in offsets.items()}["2"] == DELAYED
            await BrokerClient(client, master.address).send(TOPIC, b"last", {"DELAY": "1"})
            (record,) = await BrokerClient(client, master.address).receive(TOPIC, 1)
            assert record.body == b"last"
            assert sorted(await bodies(client, other)) == sorted(expected)
        await asyncio.to_thread(wait_until, is_whole, 60, "the slave follows")


async def bodies(client: Client, broker: Process) -> list[bytes]:
    """Everything in the topic at a broker."""
    queues = [
        await BrokerClient(client, broker.address).pull(TOPIC, queue_id=queue_id)
        for queue_id in range(8)
    ]
    return [record.body for records in queues for record in records]
