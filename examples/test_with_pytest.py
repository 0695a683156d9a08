"""Test against a real broker that pytest starts, without configuration and clean-up.

    pytest -c /dev/null --rootdir=examples examples/test_with_pytest.py

``-c /dev/null`` ignores the configuration of Goddard's own tests, which needs more plug-ins.
The fixtures come with Goddard; see docs/guide/testing.md.
"""

from goddard import Message, Producer
from goddard.testing.plugin import NewTopic, ReadTopic


class Shop:
    """The code under test."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    def order(self, item: str) -> None:
        self._producer.send(Message(self._topic, item.encode(), tags="order", keys=item))


def test_an_order_is_announced(
    goddard_producer: Producer, goddard_topic: NewTopic, goddard_read: ReadTopic
) -> None:
    topic = goddard_topic("orders")
    Shop(goddard_producer, topic).order("coffee")

    (message,) = goddard_read(topic, 1)
    assert message.body == b"coffee"
    assert (message.tags, message.keys) == ("order", ["coffee"])
