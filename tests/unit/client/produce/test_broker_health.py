"""Which brokers are avoided, for how long, and which queues are chosen instead."""

import pytest

from goddard.client.produce.broker_health import (
    TIMES_4,
    TIMES_5,
    BrokerHealth,
    FaultTimes,
    next_queue,
)
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
    health = BrokerHealth(times)
    health.record("a", latency_ms, 1_000)
    assert health.is_available("a", 1_000 + avoided_ms)
    assert health.is_available("a", 1_000 + avoided_ms - 1) is (avoided_ms == 0)
    assert health.is_reachable("a")


@pytest.mark.parametrize(("times", "avoided_ms"), [(TIMES_4, 600_000), (TIMES_5, 10_000)])
def test_how_long_a_failing_broker_is_avoided(times: FaultTimes, avoided_ms: int) -> None:
    health = BrokerHealth(times)
    health.record("a", 1, 0, isolate=True)
    assert not health.is_available("a", avoided_ms - 1)
    assert health.is_available("a", avoided_ms)
    # A success in between clears the fault.
    health.record("a", 1, 5)
    assert health.is_available("a", 6)


def test_which_queue_is_chosen() -> None:
    health = BrokerHealth(TIMES_5)
    assert [health.choose(ROUTE, at, None, 0) for at in range(7)] == [
        *ROUTE.queues,
        ROUTE.queues[0],
    ]
    health.record("a", 0, 0, isolate=True)
    assert {health.choose(ROUTE, at, None, 0).broker_name for at in range(6)} == {"b", "c"}
    assert {health.choose(ROUTE, at, "b", 0).broker_name for at in range(6)} == {"c"}
    # No broker is available: a reachable one is chosen.
    health.record("b", 0, 0, isolate=True)
    health.record("c", 0, 0, isolate=True, reachable=False)
    assert {health.choose(ROUTE, at, None, 0).broker_name for at in range(6)} == {"a", "b"}
    # No broker is reachable: another one than the last, or the last if it is the only one.
    for name in "abc":
        health.record(name, 0, 0, isolate=True, reachable=False)
    assert {health.choose(ROUTE, at, "a", 0).broker_name for at in range(6)} == {"b", "c"}
    assert health.choose(ALONE, 1, "a", 0) == ALONE.queues[1]


def test_unreachable_brokers_are_probed_periodically() -> None:
    health = BrokerHealth(TIMES_5)
    health.record("a", 0, 0, isolate=True, reachable=False, check_interval_ms=100)
    health.record("b", 0, 0, isolate=True)
    assert health.to_check(99) == []
    assert health.to_check(100) == ["a"]
    health.checked("a", 100, reachable=False, interval_ms=100)
    assert health.to_check(199) == []
    assert health.to_check(200) == ["a"]
    health.checked("a", 200, reachable=True, interval_ms=100)
    assert health.to_check(1_000) == []
    assert health.is_reachable("a")
    health.checked("unknown", 0, reachable=False, interval_ms=1)
    health.record("c", 0, 0, isolate=True, reachable=False)
    health.forget("c")
    assert health.is_reachable("c")


def test_round_robin() -> None:
    assert [next_queue(ROUTE, at, None) for at in range(6)] == list(ROUTE.queues)
    assert {next_queue(ROUTE, at, "a").broker_name for at in range(6)} == {"b", "c"}
    assert [next_queue(ALONE, at, "a") for at in range(3)] == [*ALONE.queues, ALONE.queues[0]]
