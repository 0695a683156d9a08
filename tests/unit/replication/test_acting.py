"""Who acts for a master that is away, and what a broker does before it goes online."""

import pytest

from goddard.protocol.bodies import DataVersion
from goddard.replication.acting import (
    Blocked,
    FollowFirst,
    GoOnline,
    Standing,
    TakeState,
    is_as_new,
    merge_members,
    next_step,
)

LEASE_MS = 10_000
ALL = {0: "a:1", 1: "b:1", 2: "c:1"}
WITHOUT_MASTER = {1: "b:1", 2: "c:1"}


@pytest.mark.parametrize(
    ("own_id", "members", "acts"),
    [
        (1, WITHOUT_MASTER, True),
        (2, WITHOUT_MASTER, False),
        (2, {2: "c:1"}, True),
        (1, ALL, False),
        (0, {0: "a:1"}, False),
        (1, {2: "c:1"}, False),  # it is not registered itself
        (1, {}, False),
    ],
)
def test_the_smallest_slave_acts_while_there_is_no_master(
    own_id: int, members: dict[int, str], acts: bool
) -> None:
    standing = Standing()
    standing.heard(members, 100 + LEASE_MS)
    assert standing.acts(own_id, 100) is acts


def test_a_slave_that_hears_nothing_stops_when_its_lease_ends() -> None:
    standing = Standing()
    assert not standing.acts(1, 0)
    standing.heard(WITHOUT_MASTER, 100 + LEASE_MS)
    assert standing.acts(1, 100 + LEASE_MS - 1)
    assert not standing.acts(1, 100 + LEASE_MS)
    standing.heard(WITHOUT_MASTER, 100 + 2 * LEASE_MS)
    assert standing.acts(1, 100 + LEASE_MS)


def test_a_notification_ends_the_lease_until_the_name_servers_are_asked() -> None:
    standing = Standing()
    standing.heard(WITHOUT_MASTER, 100 + LEASE_MS)
    standing.notified()
    assert not standing.acts(1, 101)
    standing.heard(WITHOUT_MASTER, 102 + LEASE_MS)
    assert standing.acts(1, 102)


def test_a_slave_does_not_act_while_a_master_goes_online() -> None:
    standing = Standing()
    standing.heard(WITHOUT_MASTER, 100 + LEASE_MS)
    standing.suspend(5_100)
    assert not standing.acts(1, 5_099)
    assert standing.acts(1, 5_100)


def test_a_master_that_one_name_server_knows_is_not_away() -> None:
    assert merge_members([{1: "b:1"}, {0: "a:1"}, {}]) == {0: "a:1", 1: "b:1"}


@pytest.mark.parametrize(
    ("own_id", "address", "members", "done", "step"),
    [
        (0, "a:1", {}, (), GoOnline()),
        (0, "a:1", {0: "a:1"}, (), GoOnline()),  # of its last run
        (0, "a:1", WITHOUT_MASTER, (), TakeState("b:1")),
        (0, "a:1", WITHOUT_MASTER, ("b:1",), TakeState("c:1")),
        (0, "a:1", WITHOUT_MASTER, ("b:1", "c:1"), GoOnline()),
        (0, "x:1", ALL, (), Blocked("a:1 is registered as the master of this group")),
        (1, "b:1", ALL, (), FollowFirst("a:1")),
        (1, "b:1", ALL, ("a:1",), GoOnline()),
        (1, "b:1", {2: "c:1"}, (), GoOnline()),
    ],
)
def test_what_a_broker_does_before_it_goes_online(
    own_id: int, address: str, members: dict[int, str], done: tuple[str, ...], step: object
) -> None:
    found = next_step(own_id, address, members, done)
    assert (type(found), found) == (type(step), step)


@pytest.mark.parametrize(
    ("version", "own", "is_new"),
    [
        (DataVersion(counter=2), DataVersion(counter=2), True),
        (DataVersion(counter=2), DataVersion(counter=3), False),
        (DataVersion(counter=3), DataVersion(counter=2, timestamp=9), True),
        (DataVersion(counter=2, timestamp=8), DataVersion(counter=2, timestamp=9), False),
        (DataVersion(state_version=1), DataVersion(counter=2), True),
    ],
)
def test_versions_are_compared_as_by_rocketmq(
    version: DataVersion, own: DataVersion, is_new: bool
) -> None:
    assert is_as_new(version, own) is is_new
