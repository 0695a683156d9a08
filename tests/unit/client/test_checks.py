"""Lists, hooks and queues of the wrong type are a TypeError that says what to write instead."""

from typing import Any

import pytest

from goddard.client.consume.allocation import ByConfig, ByMachineRoom
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.push import PushConsumer
from goddard.client.consume.subscriptions import Sql, Tags
from goddard.client.produce.producer import EncodedProducer, Producer
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.values import MessageQueue, TransactionState

SERVER = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "b", 0)


class Hook:
    """A hook may be of any class."""


@pytest.mark.parametrize(
    ("option", "given", "text"),
    [
        (
            "topics",
            "TopicTest",
            r"a list of str, not one str: write \['TopicTest'\]",
        ),
        ("topics", ["TopicTest", 5], "topics must be a list of str; it contains 5"),
        ("topics", b"TopicTest", "topics must be a list of str, not b'TopicTest'"),
        ("retry_codes", 1, r"retry_codes must be a list of int, not one int: write \[1\]"),
        ("retry_codes", ["1"], "retry_codes must be a list of int; it contains '1'"),
        ("send_hooks", Hook(), "send_hooks must be a list of hooks, not <"),
        ("forbidden_hooks", Hook(), "forbidden_hooks must be a list of hooks, not <"),
    ],
)
def test_producer_lists_of_wrong_type(option: str, given: object, text: str) -> None:
    options: dict[str, Any] = {option: given}
    with pytest.raises(TypeError, match=text):
        Producer("group", name_servers=SERVER, **options)


def test_producer_copies_lists_it_was_given() -> None:
    topics, codes = ["A"], {1}
    options: dict[str, Any] = {"topics": topics, "retry_codes": codes}
    producer = EncodedProducer("group", name_servers=SERVER, **options)
    topics.append("B")
    codes.add(2)
    assert producer.options.topics == ("A",)
    assert producer.options.retry_codes == frozenset({1})


def test_consumer_hooks_of_wrong_type() -> None:
    hook: Any = Hook()
    for consumer in (PushConsumer, LitePullConsumer):
        with pytest.raises(TypeError, match="consume_hooks must be a list of hooks"):
            consumer("group", name_servers=SERVER, consume_hooks=hook)


class UnknownState:
    """A transaction listener that never knows the state."""

    def execute(self, message: object, argument: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: object) -> TransactionState:
        return TransactionState.UNKNOWN


def test_transaction_hooks_of_wrong_type() -> None:
    hook: Any = Hook()
    with pytest.raises(TypeError, match="end_hooks must be a list of hooks"):
        TransactionProducer("group", UnknownState(), name_servers=SERVER, end_hooks=hook)


def test_allocation_strategies_check_their_lists() -> None:
    one: Any = QUEUE
    with pytest.raises(TypeError, match="a list of MessageQueue, not one MessageQueue: write"):
        ByConfig(one)
    with pytest.raises(TypeError, match=r"a list of str, not one str: write \['room'\]"):
        ByMachineRoom("room")
    assert ByMachineRoom({"room"}).rooms == {"room"}


def test_subscription_expressions_of_wrong_type() -> None:
    names: Any = ["A", "B"]
    with pytest.raises(
        TypeError, match=r'a tag is a str, as in Tags\("A", "B"\), not \[\'A\', \'B\'\]'
    ):
        Tags(names)
    number: Any = 5
    with pytest.raises(TypeError, match="an SQL92 condition is a str, not 5"):
        Sql(number)
