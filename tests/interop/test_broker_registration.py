"""Our broker with RocketMQ's name servers: registration, new topics, stop, restart."""

from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.message import SendRequestV2
from goddard.testing.cluster import Cluster
from goddard.testing.process import wait_until
from goddard.testing.wire import ask, query_brokers, query_route
from tests.support.java import JavaPeers

pytestmark = pytest.mark.java


def send(address: str, topic: str) -> None:
    header = SendRequestV2(
        producer_group="producers",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
    )
    answer = ask(address, RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode(), b"x"))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


# The compressed form of 5.x has attributes of topics, which a name server of 4.9 refuses;
# RocketMQ's own brokers write the same.
@pytest.mark.parametrize(
    ("version", "compressed"),
    [("java540", "false"), ("java540", "true"), ("java494", "false")],
)
def test_a_java_name_server_lists_our_broker_while_it_runs(
    version: str, compressed: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    java: JavaPeers = request.getfixturevalue(version)
    name = f"namesrv-{version}-{compressed}"
    with java.start_name_server(name) as name_server, Cluster(tmp_path) as cluster:
        broker = cluster.start_broker(
            properties={"namesrvAddr": name_server.address, "compressedRegister": compressed}
        )
        assert query_brokers(name_server.address) == {"broker-0": {0: broker.address}}
        system = query_route(name_server.address, "BenchmarkTest")
        assert system is not None
        assert system["queueDatas"][0]["writeQueueNums"] == 1024

        send(broker.address, "orders")
        route = wait_until(lambda: query_route(name_server.address, "orders"), 60, "the route")
        assert route["brokerDatas"][0]["brokerName"] == "broker-0"
        assert route["queueDatas"][0]["writeQueueNums"] == 4

        name_server.kill()
        name_server.start()
        # Within seconds, not with the next periodic registration, 30 s later.
        wait_until(lambda: query_brokers(name_server.address), 60, "our broker again")
        wait_until(lambda: query_route(name_server.address, "orders"), 60, "the route again")

        assert broker.stop() == 0
        wait_until(lambda: query_brokers(name_server.address) == {}, 60, "that it is gone")
