"""One thing where several are meant: refused with what to write instead, nowhere taken apart."""

from typing import Any

import pytest

from goddard.client.consume.allocation import ByConfig, ByMachineRoom
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.consume.push import PushConsumer
from goddard.client.consume.subscriptions import Sql, Tags
from goddard.client.produce.producer import Producer
from goddard.client.produce.transactions import TransactionProducer
from goddard.client.values import MessageQueue, TransactionState

SERVER = "127.0.0.1:9876"
QUEUE = MessageQueue("T", "b", 0)


class Hook:
    """Any object may be one."""


@pytest.mark.parametrize(
    ("option", "given", "text"),
    [
        ("topics", "TopicTest", r"topics: one str was given, a list is wanted: \['TopicTest'\]"),
        ("topics", ["TopicTest", 5], "topics: a list of str is wanted; 5 in it is none"),
        ("topics", b"TopicTest", "a list of str is wanted, not b'TopicTest'"),
        ("retry_codes", 1, r"retry_codes: one int was given, a list is wanted: \[1\]"),
        ("retry_codes", ["1"], "'1' in it is none"),
        ("send_hooks", Hook(), "send_hooks: a list of hooks is wanted, not <"),
        ("forbidden_hooks", Hook(), "forbidden_hooks: a list of hooks is wanted, not <"),
    ],
)
def test_lists_of_producers(option: str, given: object, text: str) -> None:
    options: dict[str, Any] = {option: given}
    with pytest.raises(TypeError, match=text):
        Producer("group", name_servers=SERVER, **options)


def test_what_was_given_to_a_producer_is_kept_as_it_was() -> None:
    topics, codes = ["A"], {1}
    options: dict[str, Any] = {"topics": topics, "retry_codes": codes}
    producer = Producer("group", name_servers=SERVER, **options)
    topics.append("B")
    codes.add(2)
    assert producer.options.topics == ("A",)
    assert producer.options.retry_codes == frozenset({1})


def test_hooks_of_consumers() -> None:
    hook: Any = Hook()
    for consumer in (PushConsumer, LitePullConsumer):
        with pytest.raises(TypeError, match="consume_hooks: a list of hooks is wanted"):
            consumer("group", name_servers=SERVER, consume_hooks=hook)


class Undecided:
    """A listener of transactions."""

    def execute(self, message: object, argument: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: object) -> TransactionState:
        return TransactionState.UNKNOWN


def test_hooks_of_transactions() -> None:
    hook: Any = Hook()
    with pytest.raises(TypeError, match="end_hooks: a list of hooks is wanted"):
        TransactionProducer("group", Undecided(), name_servers=SERVER, end_hooks=hook)


def test_strategies() -> None:
    one: Any = QUEUE
    with pytest.raises(TypeError, match="one MessageQueue was given, a list is wanted"):
        ByConfig(one)
    with pytest.raises(TypeError, match=r"one str was given, a list is wanted: \['room'\]"):
        ByMachineRoom("room")
    assert ByMachineRoom({"room"}).rooms == {"room"}


def test_subscriptions() -> None:
    names: Any = ["A", "B"]
    with pytest.raises(
        TypeError, match=r'a tag is a str, as in Tags\("A", "B"\), not \[\'A\', \'B\'\]'
    ):
        Tags(names)
    number: Any = 5
    with pytest.raises(TypeError, match="an SQL92 condition is a str, not 5"):
        Sql(number)
