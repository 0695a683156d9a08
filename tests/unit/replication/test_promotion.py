"""When a slave may become the master."""

import pytest

from goddard.replication.promotion import (
    LastMaster,
    Replica,
    promotion_problem,
    replicas_per_message,
)

MASTER = "10.0.0.1:10911"
GONE = Replica(MASTER, is_slave=True, end_offset=None)


def slave(number: int, end_offset: int | None = 100) -> Replica:
    return Replica(f"10.0.0.{number}:10911", is_slave=True, end_offset=end_offset)


def test_the_only_slave_of_a_synchronous_master_has_everything() -> None:
    assert promotion_problem(100, [GONE], LastMaster(MASTER, 2, 1)) is None
    assert promotion_problem(100, [], LastMaster(MASTER, 2, 0)) is None


def test_a_slave_of_an_asynchronous_master_may_lack_messages() -> None:
    problem = promotion_problem(100, [GONE], LastMaster(MASTER, 1, 1))
    assert problem is not None
    assert "acknowledged messages before a slave had them" in problem


def test_a_slave_that_followed_nobody_knows_nothing() -> None:
    assert "not followed" in (promotion_problem(100, [], None) or "")


def test_a_master_that_is_a_slave_now_is_compared() -> None:
    last = LastMaster(MASTER, 1, 1)
    demoted = Replica(MASTER, is_slave=True, end_offset=100)
    assert promotion_problem(100, [demoted], last) is None
    assert f"promote {MASTER}" in (promotion_problem(99, [demoted], last) or "")


@pytest.mark.parametrize(
    ("others", "replicas", "is_safe"),
    [
        ([slave(2)], 2, True),
        ([slave(2, None)], 2, False),
        ([], 2, False),
        ([], 3, True),
        ([slave(2, None)], 3, True),
        ([slave(2, 99)], 2, True),
    ],
)
def test_slaves_that_cannot_be_asked_may_have_more(
    others: list[Replica], replicas: int, is_safe: bool
) -> None:
    """Two slaves: a message that one of them has acknowledged is on at least that one."""
    problem = promotion_problem(100, [GONE, *others], LastMaster(MASTER, replicas, 2))
    assert (problem is None) is is_safe


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": "2"}, 1),
        ({"brokerRole": "SYNC_MASTER"}, 2),  # RocketMQ 4.9
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "1"}, 1),  # RocketMQ 5
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3"}, 3),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "x"}, 1),
        (
            {
                "brokerRole": "SYNC_MASTER",
                "inSyncReplicas": "3",
                "minInSyncReplicas": "2",
                "enableAutoInSyncReplicas": "true",
            },
            2,
        ),
    ],
)
def test_how_many_brokers_have_a_message(properties: dict[str, str], expected: int) -> None:
    assert replicas_per_message(properties) == expected
