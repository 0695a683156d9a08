"""Queues in the bodies of requests and responses."""

from goddard.client.values import MessageQueue
from goddard.protocol import bodies
from goddard.protocol.bodies import encode_body


def test_queue_to_body_uses_wire_names() -> None:
    body = encode_body(MessageQueue("T", "broker-a", 3).to_body())
    assert body == b'{"brokerName":"broker-a","queueId":3,"topic":"T"}'


def test_queue_from_body() -> None:
    body = bodies.MessageQueue(broker_name="broker-a", queue_id=3, topic="T")
    assert MessageQueue.from_body(body) == MessageQueue("T", "broker-a", 3)
