"""Which brokers are avoided, for how long, and what is chosen instead; selectors."""

import pytest

from goddard.client.message import Message
from goddard.client.produce.broker_health import (
    TIMES_4,
    TIMES_5,
    BrokerHealth,
    FaultTimes,
    next_queue,
)
from goddard.client.produce.selectors import by_hash, by_random, by_sharding_key
from goddard.client.routes import PublishRoute
from goddard.client.values import MessageQueue

ROUTE = PublishRoute(
    "T", tuple(MessageQueue("T", name, each) for name in ("a", "b", "c") for each in range(2))
)
ALONE = PublishRoute("T", ROUTE.queues[:2])


@pytest.mark.parametrize(
    ("times", "latency_ms", "avoided_ms"),
    [
        (TIMES_4, 0, 0),
        (TIMES_4, 49, 0),
        (TIMES_4, 549, 0),
        (TIMES_4, 550, 30_000),
        (TIMES_4, 600, 30_000),
        (TIMES_4, 1_200, 60_000),
        (TIMES_4, 2_000, 120_000),
        (TIMES_4, 3_000, 180_000),
        (TIMES_4, 15_000, 600_000),
        (TIMES_5, 549, 0),
        (TIMES_5, 550, 2_000),
        (TIMES_5, 1_800, 5_000),
        (TIMES_5, 3_000, 6_000),
        (TIMES_5, 5_000, 10_000),
        (TIMES_5, 14_999, 10_000),
        (TIMES_5, 15_000, 30_000),
    ],
)
def test_how_long_a_slow_broker_is_avoided(
    times: FaultTimes, latency_ms: int, avoided_ms: int
) -> None:
    faults = BrokerHealth(times)
    faults.record("a", latency_ms, 1_000)
    assert faults.is_available("a", 1_000 + avoided_ms)
    assert faults.is_available("a", 1_000 + avoided_ms - 1) is (avoided_ms == 0)
    assert faults.is_reachable("a")


@pytest.mark.parametrize(("times", "avoided_ms"), [(TIMES_4, 600_000), (TIMES_5, 10_000)])
def test_how_long_a_failing_broker_is_avoided(times: FaultTimes, avoided_ms: int) -> None:
    faults = BrokerHealth(times)
    faults.record("a", 1, 0, isolate=True)
    assert not faults.is_available("a", avoided_ms - 1)
    assert faults.is_available("a", avoided_ms)
    # A success in between forgives everything.
    faults.record("a", 1, 5)
    assert faults.is_available("a", 6)


def test_which_queue_is_chosen() -> None:
    faults = BrokerHealth(TIMES_5)
    assert [faults.choose(ROUTE, at, None, 0) for at in range(7)] == [
        *ROUTE.queues,
        ROUTE.queues[0],
    ]
    faults.record("a", 0, 0, isolate=True)
    assert {faults.choose(ROUTE, at, None, 0).broker_name for at in range(6)} == {"b", "c"}
    assert {faults.choose(ROUTE, at, "b", 0).broker_name for at in range(6)} == {"c"}
    # None available: one that can be reached.
    faults.record("b", 0, 0, isolate=True)
    faults.record("c", 0, 0, isolate=True, reachable=False)
    assert {faults.choose(ROUTE, at, None, 0).broker_name for at in range(6)} == {"a", "b"}
    # None of these either: the next but the last, and the last if there is no other.
    for name in "abc":
        faults.record(name, 0, 0, isolate=True, reachable=False)
    assert {faults.choose(ROUTE, at, "a", 0).broker_name for at in range(6)} == {"b", "c"}
    assert faults.choose(ALONE, 1, "a", 0) == ALONE.queues[1]


def test_unreachable_brokers_are_probed_periodically() -> None:
    faults = BrokerHealth(TIMES_5)
    faults.record("a", 0, 0, isolate=True, reachable=False, check_interval_ms=100)
    faults.record("b", 0, 0, isolate=True)
    assert faults.to_check(99) == []
    assert faults.to_check(100) == ["a"]
    faults.checked("a", 100, reachable=False, interval_ms=100)
    assert faults.to_check(199) == []
    assert faults.to_check(200) == ["a"]
    faults.checked("a", 200, reachable=True, interval_ms=100)
    assert faults.to_check(1_000) == []
    assert faults.is_reachable("a")
    faults.checked("unknown", 0, reachable=False, interval_ms=1)
    faults.record("c", 0, 0, isolate=True, reachable=False)
    faults.forget("c")
    assert faults.is_reachable("c")


def test_round_robin() -> None:
    assert [next_queue(ROUTE, at, None) for at in range(6)] == list(ROUTE.queues)
    assert {next_queue(ROUTE, at, "a").broker_name for at in range(6)} == {"b", "c"}
    assert [next_queue(ALONE, at, "a") for at in range(3)] == [*ALONE.queues, ALONE.queues[0]]


@pytest.mark.parametrize(
    ("key", "chosen"),
    [
        # Java's hashes of these are well known; SelectMessageQueueByHash takes the remainder's
        # magnitude.
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
