"""Slaves of RocketMQ follow our master, and ours follow RocketMQ's: their logs become byte-equal.

A slave starts empty when the master has messages already, is killed and returns when the master has
more. Then the master is lost: a consumer reads everything from the slave, which becomes the master
of the last one. GODDARD_REPLICATED_MESSAGES is the number of messages of each pair.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from goddard import ConsumeFrom, LitePullConsumer, Message, Producer
from goddard.cli.store import store as store_command
from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import ChangeRoleRequest
from goddard.protocol.headers.message import UpdateConsumerOffsetRequest
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask, query_brokers, query_route
from tests.support.java import JavaPeers
from tests.support.replicas import log_end, replication, table

pytestmark = pytest.mark.java

GROUP = "broker-0"
COUNT = int(os.environ.get("GODDARD_REPLICATED_MESSAGES", "20000"))
BATCH = 500
# Before the slave starts: of RocketMQ's master or slave, an empty one gets the last segment only.
FIRST = 2_000
BODY = bytes(range(100))
SEGMENT_BYTES = 4 << 20
SIZES = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
SLAVE = {
    **SIZES,
    "brokerName": GROUP,
    "brokerRole": "SLAVE",
    "brokerId": "1",
    "slaveReadEnable": "true",
}
TIMEOUT = 60 + COUNT // 500


def send(namesrv: str, start: int, end: int) -> None:
    with Producer("senders", name_servers=namesrv) as producer:
        for first in range(start, end, BATCH):
            numbers = range(first, min(first + BATCH, end))
            producer.send_batch([Message("orders", BODY + b"%d" % number) for number in numbers])


def is_level(master: Process) -> bool:
    status = replication(master)
    return [slave.diff for slave in status.ha_connection_info] == [0]


def compare(*stores: Path) -> None:
    result = CliRunner().invoke(store_command, ["compare", *map(str, stores)])
    assert result.exit_code == 0, result.output


def consume_all(namesrv: str, count: int) -> None:
    """A new group reads every message once."""
    numbers: set[bytes] = set()
    with LitePullConsumer(
        "readers-of-all", name_servers=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        consumer.subscribe("orders")
        while len(numbers) < count:
            messages = consumer.poll(TIMEOUT * 1000)
            assert messages, f"{len(numbers)} of {count} were read"
            numbers.update(message.body[len(BODY) :] for message in messages)
    assert numbers == {b"%d" % number for number in range(count)}


def change_role(broker: Daemon, role: str, broker_id: int) -> None:
    """Of a broker that does not run."""
    file = broker.home / "broker.conf"
    text = file.read_text()
    kept = [line for line in text.splitlines() if not line.startswith(("brokerRole", "brokerId"))]
    file.write_text("\n".join([*kept, f"brokerRole={role}", f"brokerId={broker_id}", ""]))


def promote(broker: Daemon) -> None:
    """By force: the lost master acknowledged messages before its slave had them."""
    header = ChangeRoleRequest(
        master_address=broker.address, broker_role="ASYNC_MASTER", force=True
    )
    command = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.encode())
    answer = ask(broker.address, command, timeout=20)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def follows(slave: Process) -> bool:
    return bool(replication(slave).ha_client_runtime_info.activated)


@pytest.mark.parametrize("version", ["java540", "java494"])
@pytest.mark.timeout(4 * TIMEOUT + 240)
def test_a_java_slave_copies_our_log(
    version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    java: JavaPeers = request.getfixturevalue(version)
    with Cluster(tmp_path) as cluster:
        names = cluster.start_name_server()
        master = cluster.start_broker(properties=SIZES)
        send(cluster.namesrv, 0, FIRST)
        slave = java.start_broker(f"slave-{version}", namesrv=names.address, properties=SLAVE)
        wait_until(lambda: is_level(master), 60, "an empty slave has the log")
        send(cluster.namesrv, FIRST, COUNT // 2)
        wait_until(lambda: is_level(master), TIMEOUT, "the slave follows")
        slave.kill()
        wait_until(lambda: not replication(master).ha_connection_info, 60, "the slave is gone")
        send(cluster.namesrv, COUNT // 2, COUNT)
        # RocketMQ 5 copies the topics only once in a minute.
        ours, theirs = master.home / "store/config", slave.store_dir / "config"
        shutil.copy(ours / "topics.json", theirs / "topics.json")
        slave.start()
        wait_until(lambda: is_level(master), TIMEOUT, "the slave has all messages")

        status = replication(master)
        end_offset = status.master_commit_log_max_offset
        assert end_offset > max(COUNT * len(BODY), SEGMENT_BYTES)
        (connection,) = status.ha_connection_info
        assert connection.in_sync
        assert connection.slave_ack_offset == connection.transfer_from_where == end_offset
        assert status.in_sync_slave_nums == 1
        assert master.stop() == 0
        consume_all(cluster.namesrv, COUNT)
        slave.stop()
        compare(master.home / "store", slave.store_dir)

        # RocketMQ's slave becomes the master, and ours its slave.
        promoted = java.start_broker(
            f"promoted-{version}",
            namesrv=names.address,
            store_dir=slave.store_dir,
            properties={**SIZES, "brokerName": GROUP},
        )
        wait_until(lambda: query_route(names.address, "orders"), 60, "the new master is registered")
        change_role(master, "SLAVE", 1)
        master.start()
        send(cluster.namesrv, 0, BATCH)
        wait_until(lambda: log_end(master) == log_end(promoted), 60, "our slave follows")
        assert log_end(promoted) > end_offset
        promoted.kill()
        assert master.stop() == 0
        compare(master.home / "store", slave.store_dir)


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
@pytest.mark.timeout(4 * TIMEOUT + 240)
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
        send(cluster.namesrv, 0, COUNT // 2)
        slave.start()
        wait_until(lambda: log_end(slave) == log_end(master), TIMEOUT, "an empty slave is level")
        slave.kill()
        send(cluster.namesrv, COUNT // 2, COUNT - BATCH)
        slave.start()
        wait_until(lambda: log_end(slave) == log_end(master), TIMEOUT, "the slave has all messages")
        send(cluster.namesrv, COUNT - BATCH, COUNT)
        wait_until(lambda: log_end(slave) == log_end(master), 60, "the slave follows")

        end_offset = log_end(master)
        assert end_offset > max(COUNT * len(BODY), SEGMENT_BYTES)
        assert len(query_brokers(names.address)[GROUP]) == 2
        check_state(master, slave)
        if version == "java540":  # 4.9.4 has no haStatus
            check_tools(java, names.address, master, slave)
        master.kill()
        wait_until(lambda: set(query_brokers(names.address)[GROUP]) == {1}, 60, "no master")
        consume_all(cluster.namesrv, COUNT)
        compare(slave.home / "store", master.store_dir)

        # Our slave becomes the master, and RocketMQ's its slave.
        promote(slave)
        former = java.start_broker(
            f"former-{version}",
            namesrv=names.address,
            store_dir=master.store_dir,
            properties={**SLAVE, "brokerId": "2"},
        )
        send(cluster.namesrv, 0, BATCH)
        wait_until(lambda: is_level(slave), 60, "RocketMQ's slave follows")
        assert log_end(slave) == log_end(former) > end_offset
        former.kill()
        assert slave.stop() == 0
        compare(slave.home / "store", master.store_dir)
