"""Queues that selectors choose, and checks of chosen queues."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from goddard.client.errors import ClientError
from goddard.client.message import Message
from goddard.client.produce.selectors import (
    by_hash,
    by_sharding_key,
    check_choice,
    check_target,
    select_queue,
)
from goddard.client.produce.targets import by_random
from goddard.client.routes import PublishRoute
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError

QUEUE = MessageQueue("T", "a", 0)
ROUTE = PublishRoute(
    "T", tuple(MessageQueue("T", name, each) for name in ("a", "b", "c") for each in range(2))
)


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        # Known hashes of Java; SelectMessageQueueByHash takes the magnitude of the remainder.
        ("hello", 99162322 % 6),
        ("polygenelubricants", 2147483648 % 6),  # the least int
        (7, 1),
        (-7, 1),
        (2**31, 2),  # Long.hashCode folds to -2**31
        (2**32 + 5, 4),
        (True, 1231 % 6),
        ("", 0),
    ],
)
def test_hashes_choose_as_in_java(key: object, chosen: int) -> None:
    assert by_hash(ROUTE.queues, Message("T", b"x"), key) == ROUTE.queues[chosen]


def test_other_selectors() -> None:
    message = Message("T", b"x", sharding_key="order-1")
    same = by_hash(ROUTE.queues, message, "order-1")
    assert by_sharding_key(ROUTE.queues, message, None) == same
    assert by_sharding_key(ROUTE.queues, message, 1) == ROUTE.queues[1]
    assert {by_random(ROUTE.queues, message, None) for _ in range(500)} == set(ROUTE.queues)


def test_selector_sees_topics_without_namespace() -> None:
    route = PublishRoute("ns%T", (MessageQueue("ns%T", "a", 0), MessageQueue("ns%T", "a", 1)))
    seen: list[MessageQueue] = []

    def last(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
        seen.extend(queues)
        return queues[-1]

    chosen = select_queue(route, Message("T", b"x"), last, None)
    assert {queue.topic for queue in seen} == {"T"}
    assert chosen == MessageQueue("ns%T", "a", 1)


def test_invalid_targets_are_refused() -> None:
    queue = MessageQueue("T", "a", 0)
    assert check_target(queue, "T", "ns%T") == MessageQueue("ns%T", "a", 0)
    assert check_target(MessageQueue("ns%T", "a", 0), "T", "ns%T").topic == "ns%T"
    with pytest.raises(ClientError, match="topic not equal mq's topic"):
        check_target(MessageQueue("U", "a", 0), "T", "ns%T")
    with pytest.raises(ClientError, match="Not a MessageQueue: 7"):
        check_target(7, "T", "T")


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ({"queue": QUEUE, "key": "k"}, "queue and key are given; only one of them"),
        ({"queue": QUEUE, "selector": by_random}, "queue and selector are given"),
        ({"queue": ("T", "a", 0)}, "a queue must be MessageQueue"),
        ({"queue": QUEUE._replace(queue_id=-1)}, "queue_id is -1; it must be 0 to"),
        (
            {"queue": QUEUE._replace(queue_id=cast("Any", "0"))},
            "queue_id is '0'; it must be a whole",
        ),
        ({"queue": QUEUE._replace(broker_name=cast("Any", None))}, "names None; names must be str"),
        ({"selector": "by_hash"}, "selector is 'by_hash'; it must be a function"),
    ],
)
def test_what_cannot_choose_a_queue_is_refused(chosen: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_choice(chosen.get("queue"), chosen.get("selector"), chosen.get("key"), "T", "space%T")


def test_a_chosen_queue_gets_the_brokers_name_of_its_topic() -> None:
    assert check_choice(QUEUE, None, None, "T", "space%T") == QUEUE._replace(topic="space%T")
    assert check_choice(None, by_hash, "k", "T", "T") is None
