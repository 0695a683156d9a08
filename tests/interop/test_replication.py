"""Slaves of RocketMQ follow our master: their logs become byte-equal, also after a crash."""

from pathlib import Path

import pytest

from goddard import Message, Producer
from goddard.protocol.bodies import decode_body
from goddard.protocol.bodies_admin import HaStatus
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.cluster import Cluster
from goddard.testing.process import Process, wait_until
from goddard.testing.wire import ask, query_brokers
from tests.support.java import JavaPeers

pytestmark = pytest.mark.java

GROUP = "broker-0"
COUNT = 1_000
BODY = bytes(range(256)) * 8
SEGMENT_BYTES = 1 << 20


def send(namesrv: str, count: int) -> None:
    with Producer("senders", name_servers=namesrv) as producer:
        for start in range(0, count, 50):
            producer.send_batch(
                [Message("orders", BODY + b"%d" % number) for number in range(start, start + 50)]
            )


def replication(master: Process) -> HaStatus:
    answer = ask(master.address, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_body(answer.body, HaStatus)


def is_level(master: Process) -> bool:
    status = replication(master)
    return [slave.diff for slave in status.ha_connection_info] == [0]


def log_of(store: Path, end_offset: int) -> bytes:
    files = sorted((store / "commitlog").iterdir())
    assert [path.name for path in files[:2]] == [f"{n * SEGMENT_BYTES:020d}" for n in range(2)]
    return b"".join(path.read_bytes() for path in files)[:end_offset]


@pytest.mark.parametrize("version", ["java540", "java494"])
def test_a_java_slave_copies_our_log(
    version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    java: JavaPeers = request.getfixturevalue(version)
    sizes = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
    with Cluster(tmp_path) as cluster:
        names = cluster.start_name_server()
        master = cluster.start_broker(properties=sizes)
        slave = java.start_broker(
            f"slave-{version}",
            namesrv=names.address,
            properties={**sizes, "brokerName": GROUP, "brokerRole": "SLAVE", "brokerId": "1"},
        )
        wait_until(lambda: len(query_brokers(names.address)[GROUP]) == 2, 60, "both registered")
        wait_until(lambda: is_level(master), 60, "the slave is connected")

        send(cluster.namesrv, COUNT)
        wait_until(lambda: is_level(master), 60, "the slave has the first messages")
        slave.kill()
        wait_until(lambda: not replication(master).ha_connection_info, 60, "the slave is gone")
        send(cluster.namesrv, COUNT)
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
