"""Each invariant finds a violation that is planted in a history without one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.history import check
from tests.support.history.record import (
    Comparison,
    Damage,
    Decision,
    Delivery,
    History,
    Loss,
    Mode,
    Outcome,
    Progress,
    Queue,
    Route,
    Send,
    Stored,
    Term,
)

Q = Queue("T", "a", 0)
OTHER = Queue("T", "a", 1)
SYNC = Mode(is_sync_flush=True, is_sync_master=True)
Plant = Callable[[History], None]


def sound() -> History:
    """Four messages, of which one is delayed and one was rolled back; one failover at 10 s."""
    sends = [
        Send("m1", "p1", "T", 1.0, 1, Outcome.ACKNOWLEDGED, 1.1, Q, 0, "a0"),
        Send("m2", "p1", "T", 2.0, 1, Outcome.ACKNOWLEDGED, 2.1, Q, 1, "a0"),
        Send("m3", "p2", "T", 3.0, 1, Outcome.ACKNOWLEDGED, 3.1, OTHER, 0, "a0", 1.0),
        Send("m4", "p3", "T", 4.0, decision=Decision.ROLLED_BACK, is_transactional=True),
        Send("m5", "p2", "T", 12.0, 1, Outcome.ACKNOWLEDGED, 12.1, OTHER, 1, "a1"),
        Send("m6", "p2", "T", 13.0, 1, Outcome.REFUSED, 13.1),
    ]
    stored = [
        Stored(Q, 0, "m1"),
        Stored(Q, 1, "m2"),
        Stored(OTHER, 0, "m3"),
        Stored(OTHER, 1, "m5"),
    ]
    deliveries = [
        Delivery(group, f"{group}-1", each.queue, each.offset, each.value, at, at + 0.1, True)
        for group in ("clustering", "orderly")
        for at, each in zip((5.0, 6.0, 7.0, 13.0), stored, strict=True)
    ]
    return History(
        sends=sends,
        deliveries=deliveries,
        stored=stored,
        max_offsets={Q: 2, OTHER: 2},
        committed_offsets={("clustering", Q): 2},
        groups={"clustering": {"T"}, "orderly": {"T"}},
        orderly_groups={"orderly"},
        terms=[
            Term("a", 1, "a0", 0.0, mode=SYNC),
            Term("a", 2, "a1", 10.0, frozenset({"a1"}), SYNC),
        ],
        progress=[
            Progress("a", 5.0, "a0", "a1", 100, 110, 120),
            Progress("a", 11.0, "a1", "a0", 0, 0, 110),
            Progress("a", 14.0, "a1", "a0", 130, 140, 140),
        ],
        comparisons=[Comparison("a", "a1", "a0", 140, 140, None)],
        routes=[Route("ns1", "a", "a1", frozenset({"a0"}))],
        members={"a": frozenset({"a0", "a1"})},
    )


def _lost(history: History) -> None:
    del history.stored[-1]
    history.max_offsets[OTHER] = 1


def _two_values(history: History) -> None:
    history.sends[1].offset = 0


def _never_sent(history: History) -> None:
    del history.sends[0]


def _refused(history: History) -> None:
    history.sends[0].outcome = Outcome.REFUSED


def _rolled_back(history: History) -> None:
    history.deliveries.append(Delivery("clustering", "c", OTHER, 2, "m4", 9.0, 9.1, True))


def _gap(history: History) -> None:
    history.stored[1] = Stored(Q, 2, "m2")
    history.sends[1].offset = 2
    history.max_offsets[Q] = 3


def _short_queue(history: History) -> None:
    history.max_offsets[Q] = 3


def _order(history: History) -> None:
    history.sends[0].producer = history.sends[1].producer = "p9"
    history.sends[0], history.sends[1] = history.sends[1], history.sends[0]


def _copies(history: History) -> None:
    history.stored.insert(2, Stored(Q, 2, "m1"))
    history.max_offsets[Q] = 3


def _late_acknowledgement(history: History) -> None:
    late = Send("m7", "p1", "T", 14.0, 1, Outcome.ACKNOWLEDGED, 14.1, Q, 2, "a0")
    history.sends.append(late)


def _acknowledged_by_slave(history: History) -> None:
    history.sends[0].stored_by = "a2"


def _same_term(history: History) -> None:
    history.terms[1] = history.terms[1]._replace(number=1)


def _unequal_logs(history: History) -> None:
    history.comparisons[0] = history.comparisons[0]._replace(difference=77)


def _short_slave(history: History) -> None:
    history.comparisons[0] = history.comparisons[0]._replace(second_end=130)


def _confirmed_is_gone(history: History) -> None:
    history.progress[1] = history.progress[1]._replace(master_end=90)


def _slave_truncates(history: History) -> None:
    history.progress.append(Progress("a", 15.0, "a1", "a0", 0, 20, 150))


def _behind_master(history: History) -> None:
    history.terms[1] = history.terms[1]._replace(eligible=frozenset())


def _reports_too_much(history: History) -> None:
    history.progress[2] = history.progress[2]._replace(reported=141, master_end=200)


def _slave_ahead(history: History) -> None:
    history.progress[0] = history.progress[0]._replace(slave_end=121)


def _ahead(history: History) -> None:
    history.committed_offsets["clustering", Q] = 3


def _not_consumed(history: History) -> None:
    del history.deliveries[0]


def _early(history: History) -> None:
    history.deliveries[2] = history.deliveries[2]._replace(began=3.5)


def _two_owners(history: History) -> None:
    history.deliveries.append(Delivery("orderly", "orderly-2", Q, 1, "m2", 6.05, 6.2, True))


def _not_healed(history: History) -> None:
    history.not_healed.append("sends fail")


def _wrong_master(history: History) -> None:
    history.routes[0] = history.routes[0]._replace(master="a0")


def _missing_slave(history: History) -> None:
    history.routes[0] = history.routes[0]._replace(slaves=frozenset())


def test_a_sound_history_has_no_violations() -> None:
    assert check(sound()) == []


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        pytest.param(_lost, "lost: m5", id="1 lost"),
        pytest.param(_two_values, "two values at T/a/0 0", id="2 two values"),
        pytest.param(_never_sent, "never sent: 'm1'", id="3 never sent"),
        pytest.param(_refused, "refused, but stored: m1", id="3 refused"),
        pytest.param(_rolled_back, "rolled back, but visible: m4", id="3 rolled back"),
        pytest.param(_gap, "gaps or repetitions in T/a/0", id="4 gap"),
        pytest.param(_short_queue, "T/a/0 ends at 3", id="4 end"),
        pytest.param(_order, "order: m1 at T/a/0 0 is before m2", id="5 order"),
        pytest.param(_copies, "2 copies of m1", id="6 copies"),
        pytest.param(_late_acknowledgement, "a0 acknowledged m7 after a1", id="7 late"),
        pytest.param(_acknowledged_by_slave, "a2, never the master", id="7 slave"),
        pytest.param(_same_term, "term 1 follows term 1", id="8 terms"),
        pytest.param(_unequal_logs, "differ from 77 on", id="9 unequal"),
        pytest.param(_short_slave, "that of a0 at 130", id="9 short"),
        pytest.param(_confirmed_is_gone, "100 of a were confirmed", id="10 confirmed"),
        pytest.param(_slave_truncates, "had reported 130", id="10 truncated"),
        pytest.param(_behind_master, "a1 of term 2 was not in sync", id="11 new master"),
        pytest.param(_reports_too_much, "a0 reported 141", id="12 report"),
        pytest.param(_slave_ahead, "a1 had 121 bytes", id="12 ahead"),
        pytest.param(_ahead, "clustering committed 3", id="13 offset"),
        pytest.param(_not_consumed, "clustering never consumed m1", id="13 consumed"),
        pytest.param(_early, "early by", id="14 early"),
        pytest.param(_two_owners, "two owners of T/a/0", id="14 owners"),
        pytest.param(_not_healed, "not healed in time: sends fail", id="15 healed"),
        pytest.param(_wrong_master, "ns1 has a0 as the master of a", id="15 master"),
        pytest.param(_missing_slave, "ns1 has the slaves []", id="15 slaves"),
    ],
)
def test_a_planted_violation_is_found(plant: Plant, words: str) -> None:
    history = sound()
    plant(history)
    violations = check(history)
    assert any(words in violation for violation in violations), violations


# The table of docs/RELIABILITY.md: mode, damage, whether acknowledged messages survive.
@pytest.mark.parametrize(
    ("is_sync_master", "is_sync_flush", "damage", "is_promised"),
    [
        (False, False, Damage.POWER_CUT, False),
        (False, True, Damage.POWER_CUT, True),
        (True, False, Damage.POWER_CUT, False),
        (True, True, Damage.POWER_CUT, True),
        (False, False, Damage.DISK_LOST, False),
        (False, True, Damage.DISK_LOST, False),
        (True, False, Damage.DISK_LOST, True),
        (True, True, Damage.DISK_LOST, True),
    ],
)
def test_what_must_survive_depends_on_the_mode(
    is_sync_master: bool, is_sync_flush: bool, damage: Damage, is_promised: bool
) -> None:
    history = sound()
    mode = Mode(is_sync_flush=is_sync_flush, is_sync_master=is_sync_master)
    history.terms = [term._replace(mode=mode) for term in history.terms]
    history.losses.append(Loss("a", "a0", 9.0, damage))
    before, after = history.sends[0], history.sends[4]
    assert history.is_promised(before) is is_promised
    assert history.is_promised(after)
    del history.stored[:2]
    history.max_offsets.pop(Q)
    history.committed_offsets.clear()
    lost = [violation for violation in check(history) if violation.startswith("lost:")]
    assert len(lost) == (2 if is_promised else 0)


def test_without_a_loss_every_acknowledged_message_must_be_there() -> None:
    history = sound()
    history.terms = [term._replace(mode=Mode()) for term in history.terms]
    assert history.is_promised(history.sends[0])
    assert not history.is_promised(replace(history.sends[0], outcome=Outcome.UNKNOWN))


@pytest.mark.parametrize(
    ("new_master_at", "is_violation"),
    [
        pytest.param(6.0, False, id="a new master has no locks"),
        pytest.param(6.1, True, id="later"),
        pytest.param(-30.0, True, id="the last locks of the old master have ended"),
    ],
)
def test_two_owners_after_a_change_of_the_master(new_master_at: float, is_violation: bool) -> None:
    history = sound()
    _two_owners(history)
    history.terms[1] = history.terms[1]._replace(began=new_master_at)
    found = [violation for violation in check(history) if violation.startswith("two owners")]
    assert bool(found) is is_violation
