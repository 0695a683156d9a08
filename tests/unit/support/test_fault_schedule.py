"""The schedules of the fault suite: made from the seed alone, and with every kind of fault."""

import pytest

from tests.support.faults.schedule import (
    BROKERS,
    CLIENTS,
    JAVA_VERSIONS,
    LINK_KINDS,
    LONG_KINDS,
    NAME_SERVERS,
    NODE_KINDS,
    PAIRS,
    make_setup,
)


def test_a_seed_makes_one_schedule() -> None:
    first = make_setup("7.1", safety_seconds=60, has_java=True)
    assert make_setup("7.1", safety_seconds=60, has_java=True) == first
    assert make_setup("7.2", safety_seconds=60, has_java=True).faults != first.faults


@pytest.mark.parametrize("number", range(20))
def test_faults_are_of_this_cluster_and_end_in_time(number: int) -> None:
    setup = make_setup(f"1.{number}", safety_seconds=40, has_java=True)
    everyone = {*BROKERS, *NAME_SERVERS, CLIENTS, *PAIRS, *JAVA_VERSIONS}
    for fault in setup.faults:
        assert fault.node in everyone
        assert not fault.other or fault.other in everyone - {fault.node}
        assert 0 < fault.at < fault.at + fault.seconds <= 41 or fault.seconds == 0
    assert [fault.at for fault in setup.faults] == sorted(fault.at for fault in setup.faults)
    assert sum(fault.kind in LONG_KINDS for fault in setup.faults) == 1


def test_a_few_seeds_have_every_kind_and_mode() -> None:
    setups = [make_setup(f"1.{number}", safety_seconds=40, has_java=True) for number in range(12)]
    kinds = {fault.kind for setup in setups for fault in setup.faults}
    assert kinds == {*LINK_KINDS, *NODE_KINDS, *LONG_KINDS}
    assert len({setup.modes["b"] for setup in setups}) == 3
    assert {setup.needs_slave for setup in setups} == {False, True}


def test_without_java_nothing_is_replaced() -> None:
    for number in range(30):
        setup = make_setup(f"1.{number}", safety_seconds=40, has_java=False)
        assert all(fault.kind != "replace" for fault in setup.faults)
