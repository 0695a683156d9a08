"""Who waits for which replicas, and when that is over."""

import pytest

from goddard.errors import StoreError
from goddard.replication.acknowledgements import (
    Acknowledgements,
    NoSlaveError,
    NotEnoughReplicasError,
    ReplicaPolicy,
    SlaveTimeoutError,
)
from tests.support.polling import until


class Master:
    """Its log, its slaves, and what those who wait were told."""

    def __init__(self, policy: ReplicaPolicy | None = None) -> None:
        self.policy = (policy or ReplicaPolicy())._replace(is_synchronous=True)
        self.end_offset = 0
        self.reports: list[int] = []
        self.told: dict[str, StoreError | None] = {}
        self.acknowledgements = Acknowledgements(
            lambda: self.policy, lambda: self.reports, lambda: self.end_offset
        )

    def append(self, name: str, size: int = 10) -> None:
        self.end_offset += size
        self.acknowledgements.wait(self.end_offset, lambda error: self.told.update({name: error}))

    def report(self, *offsets: int) -> None:
        self.reports = list(offsets)
        self.acknowledgements.reported()


async def test_a_report_ends_all_waits_up_to_its_offset_in_their_order() -> None:
    master = Master()
    master.reports = [0]
    for name in "abc":
        master.append(name)
    assert master.told == {}
    master.report(15)
    assert master.told == {"a": None}
    master.report(30)
    assert list(master.told) == ["a", "b", "c"]
    assert set(master.told.values()) == {None}


async def test_so_many_slaves_are_needed_as_replicas_without_the_master() -> None:
    master = Master(ReplicaPolicy(in_sync_replicas=3))
    master.reports = [0, 0, 0]
    master.append("a")
    master.report(10, 5, 0)
    assert master.told == {}
    master.report(10, 5, 10)
    assert master.told == {"a": None}


async def test_what_a_slave_that_is_gone_acknowledged_counts() -> None:
    master = Master()
    master.reports = [0]
    master.append("a")
    master.report(10)
    master.report()
    done: list[StoreError | None] = []
    master.policy = master.policy._replace(in_sync_replicas=2)
    master.acknowledgements.wait(10, done.append)
    assert done == [None]


async def test_a_wait_ends_with_its_timeout() -> None:
    master = Master(ReplicaPolicy(in_sync_replicas=2, timeout_ms=1))
    master.append("a")
    await until(lambda: bool(master.told))
    assert isinstance(master.told["a"], SlaveTimeoutError)
    master.report(10)  # too late
    assert isinstance(master.told["a"], SlaveTimeoutError)


async def test_by_the_rule_of_4_9_a_slave_must_be_connected_and_near() -> None:
    master = Master(ReplicaPolicy(max_gap_bytes=100))
    master.append("without a slave")
    assert isinstance(master.told["without a slave"], NoSlaveError)
    master.end_offset = 200
    master.reports = [100]
    master.append("far")
    assert isinstance(master.told["far"], NoSlaveError)
    master.reports = [150]
    master.append("near")
    assert "near" not in master.told


@pytest.mark.parametrize(("reports", "is_refused"), [([], True), ([0], False)])
async def test_too_few_replicas_refuse_a_message(reports: list[int], is_refused: bool) -> None:
    master = Master(ReplicaPolicy(in_sync_replicas=2, min_in_sync_replicas=2))
    master.reports = reports
    refusal = master.acknowledgements.refusal()
    assert isinstance(refusal, NotEnoughReplicasError) is is_refused


async def test_the_number_adapts_but_not_below_the_minimum() -> None:
    master = Master(ReplicaPolicy(in_sync_replicas=3, min_in_sync_replicas=2, is_auto=True))
    master.reports = [0]
    master.append("two")
    master.report(10)
    assert master.told == {"two": None}
    master.reports = []
    master.append("none")
    assert "none" not in master.told


async def test_waits_for_different_numbers_do_not_hold_up_each_other() -> None:
    master = Master(ReplicaPolicy(in_sync_replicas=3))
    master.reports = [0, 0]
    master.append("three")
    master.policy = master.policy._replace(in_sync_replicas=2)
    master.append("two")
    master.report(20, 0)
    assert master.told == {"two": None}


async def test_a_broker_that_is_no_master_any_more_ends_all_waits() -> None:
    master = Master()
    master.reports = [0]
    master.append("a")
    master.acknowledgements.restart()
    assert isinstance(master.told["a"], SlaveTimeoutError)
