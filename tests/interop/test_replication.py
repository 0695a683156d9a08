"""Slaves of RocketMQ follow our master, and ours follow RocketMQ's: their logs become byte-equal.

Each pair replicates 100,000 messages: half of them while the slave is away after a kill.
"""

import re
import shutil
from pathlib import Path

import pytest

from goddard import Message, Producer
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import UpdateConsumerOffsetRequest
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask, query_brokers, query_route
from tests.support.java import JavaPeers
from tests.support.replicas import log_end, replication, table

pytestmark = pytest.mark.java

GROUP = "broker-0"
COUNT = 50_000
BATCH = 500
BODY = bytes(range(100))
SEGMENT_BYTES = 4 << 20
SIZES = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
SLAVE = {**SIZES, "brokerName": GROUP, "brokerRole": "SLAVE", "brokerId": "1"}


def send(namesrv: str, count: int = COUNT) -> None:
    with Producer("senders", name_servers=namesrv) as producer:
        for start in range(0, count, BATCH):
            producer.send_batch(
                [Message("orders", BODY + b"%d" % number) for number in range(start, start + BATCH)]
            )


def is_level(master: Process) -> bool:
    status = replication(master)
    return [slave.diff for slave in status.ha_connection_info] == [0]


def follows(slave: Process) -> bool:
    return bool(replication(slave).ha_client_runtime_info.activated)


def log_of(store: Path, end_offset: int) -> bytes:
    files = sorted((store / "commitlog").iterdir())
    assert [path.name for path in files[:2]] == [f"{n * SEGMENT_BYTES:020d}" for n in range(2)]
    return b"".join(path.read_bytes() for path in files)[:end_offset]


@pytest.mark.parametrize("version", ["java540", "java494"])
def test_a_java_slave_copies_our_log(
    version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    java: JavaPeers = request.getfixturevalue(version)
    with Cluster(tmp_path) as cluster:
        names = cluster.start_name_server()
        master = cluster.start_broker(properties=SIZES)
        slave = java.start_broker(
            f"slave-{version}",
            namesrv=names.address,
            properties=SLAVE,
        )
        wait_until(lambda: len(query_brokers(names.address)[GROUP]) == 2, 60, "both registered")
        wait_until(lambda: is_level(master), 60, "the slave is connected")

        send(cluster.namesrv)
        wait_until(lambda: is_level(master), 60, "the slave has the first messages")
        slave.kill()
        wait_until(lambda: not replication(master).ha_connection_info, 60, "the slave is gone")
        send(cluster.namesrv)
        slave.start()
        wait_until(lambda: is_level(master), 60, "the slave has all messages")

        status = replication(master)
        end_offset = status.master_commit_log_max_offset
        assert end_offset > 2 * COUNT * len(BODY)
        (connection,) = status.ha_connection_info
        assert connection.in_sync
        assert connection.slave_ack_offset == connection.transfer_from_where == end_offset
        assert status.in_sync_slave_nums == 1
        assert master.stop() == 0
        slave.stop()
        assert log_of(slave.store_dir, end_offset) == log_of(master.home / "store", end_offset)


def check_state(master: Process, slave: Process) -> None:
    """The slave has the topics, groups and offsets of its master, also after a deletion."""
    ask(
        master.address,
        RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=encode_body(SubscriptionGroupConfig(group_name="readers")),
        ),
    )
    commit = UpdateConsumerOffsetRequest(
        consumer_group="readers", topic="orders", queue_id=0, commit_offset=5
    )
    request = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, commit.encode())
    assert ask(master.address, request).code == ResponseCode.SUCCESS

    def has_offset() -> bool:
        offsets = table(slave, RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]
        return {str(key): value for key, value in offsets.get("orders@readers", {}).items()} == {
            "0": 5
        }

    wait_until(has_offset, 30, "the offset on the slave")
    for code, name in (
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"),
    ):
        ours, java = table(slave, code), table(master, code)
        assert ours["dataVersion"]["counter"] == java["dataVersion"]["counter"]
        # A slave keeps the system topics that its own release has.
        assert set(java[name]) <= set(ours[name])
    assert (
        "readers"
        in table(slave, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
    )
    delete = RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
    assert ask(master.address, delete).code == ResponseCode.SUCCESS
    wait_until(
        lambda: (
            "readers"
            not in table(slave, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)[
                "subscriptionGroupTable"
            ]
        ),
        30,
        "the deletion on the slave",
    )


def check_tools(java: JavaPeers, names: str, master: Process, slave: Process) -> None:
    """RocketMQ's mqadmin shows the slave as it shows one of RocketMQ."""
    end_offset = log_end(master)
    listed = java.mqadmin("clusterList", "-n", names)
    rows = {tuple(line.split()[1:4]) for line in listed.splitlines() if GROUP in line}
    assert {(GROUP, "0", master.address), (GROUP, "1", slave.address)} <= rows
    status = java.mqadmin("haStatus", "-n", names, "-b", slave.address)
    assert str(end_offset) in status
    figures = java.mqadmin("brokerStatus", "-n", names, "-b", slave.address)
    assert re.search(rf"commitLogMaxOffset +: {end_offset}\b", figures)


@pytest.mark.parametrize("version", ["java540", "java494"])
def test_our_slave_copies_the_log_of_a_java_master(
    version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    java: JavaPeers = request.getfixturevalue(version)
    with Cluster(tmp_path) as cluster:
        names = cluster.start_name_server()
        master = java.start_broker(
            f"master-{version}", namesrv=names.address, properties={**SIZES, "brokerName": GROUP}
        )
        wait_until(lambda: query_route(names.address, "TBW102"), 60, "the master is registered")
        slave = cluster.start_broker(properties=SLAVE)
        # Also of a master with an empty log, which does not tell its figures.
        wait_until(lambda: follows(slave), 60, "the slave follows")
        slave.kill()
        shutil.rmtree(slave.home / "store")
        send(cluster.namesrv)
        slave.start()
        wait_until(lambda: log_end(slave) == log_end(master), 60, "an empty slave has the log")
        slave.kill()
        send(cluster.namesrv)
        slave.start()
        wait_until(lambda: log_end(slave) == log_end(master), 60, "the slave has all messages")
        send(cluster.namesrv, BATCH)
        wait_until(lambda: log_end(slave) == log_end(master), 60, "the slave follows")

        end_offset = log_end(master)
        assert end_offset > 2 * COUNT * len(BODY)
        assert len(query_brokers(names.address)[GROUP]) == 2
        check_state(master, slave)
        if version == "java540":  # 4.9.4 has no haStatus
            check_tools(java, names.address, master, slave)
        master.kill()
        assert slave.stop() == 0
        assert log_of(slave.home / "store", end_offset) == log_of(master.store_dir, end_offset)
