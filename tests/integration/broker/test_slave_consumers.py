"""Consumers of the client library read from a slave while the master is away."""

from pathlib import Path

from goddard import ConsumeFrom, LitePullConsumer, Message, Producer
from goddard.protocol.codes import RequestCode
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.replicas import log_end, table

COUNT = 60
GROUP = "readers"
PAIR = {"brokerName": "pair"}


def topics(broker: Daemon) -> set[str]:
    return set(table(broker, RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"])


def consumed(broker: Daemon) -> int:
    """How many messages the group has consumed, by the offsets of a broker."""
    offsets = table(broker, RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]
    return sum(offsets.get(f"orders@{GROUP}", {}).values())


def test_a_consumer_continues_at_the_slave_and_its_progress_returns(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        names = cluster.start_name_server()
        master = cluster.start_broker(properties=PAIR)
        slave = cluster.start_broker(properties={**PAIR, "brokerRole": "SLAVE", "brokerId": "1"})
        with Producer("senders", name_servers=cluster.namesrv) as producer:
            sent = {b"%d" % number for number in range(COUNT)}
            for body in sent:
                producer.send(Message("orders", body))
        wait_until(lambda: log_end(slave) == log_end(master), 30, "the slave is level")
        wait_until(lambda: "orders" in topics(slave), 30, "the slave knows the topic")
        master.kill()
        wait_until(
            lambda: set(query_brokers(names.address)["pair"]) == {1}, 30, "the master is gone"
        )
        received: set[bytes] = set()
        with LitePullConsumer(
            GROUP, name_servers=cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            consumer.subscribe("orders")
            while received != sent:
                received.add(next(consumer).body)
        # The consumer commits a message with the next one.
        assert consumed(slave) >= COUNT - 1
        master.start()
        wait_until(lambda: consumed(master) == consumed(slave), 30, "the offsets returned")
