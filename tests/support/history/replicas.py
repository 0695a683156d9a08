"""What masters and slaves must have been: terms, logs, confirmed offsets, recovery."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.support.history.record import History, Outcome, Term


def check_replicas(history: History) -> list[str]:
    """The invariants 7 to 12 and 15."""
    return [
        *_late_acknowledgements(history),
        *_terms(history),
        *_new_masters(history),
        *_ends(history),
        *_confirmed(history),
        *check_logs(history),
        *check_routes(history),
        *(f"not healed in time: {text}" for text in history.not_healed),
    ]


def _terms_by_broker(history: History) -> dict[str, list[Term]]:
    found: dict[str, list[Term]] = defaultdict(list)
    for term in history.terms:
        found[term.broker].append(term)
    return found


def _late_acknowledgements(history: History) -> Iterator[str]:
    """7: who is no longer the master acknowledges nothing after the next one began to."""
    first: dict[tuple[str, str], float] = {}
    sends = [
        send
        for send in history.sends
        if send.outcome is Outcome.ACKNOWLEDGED
        and send.queue is not None
        and send.stored_by
        and send.ended is not None
    ]
    for send in sends:
        assert send.queue is not None
        assert send.ended is not None
        key = (send.queue.broker, send.stored_by)
        first[key] = min(first.get(key, send.ended), send.ended)
    by_broker = _terms_by_broker(history)
    for send in sends:
        assert send.queue is not None
        terms = by_broker[send.queue.broker]
        own = [number for number, term in enumerate(terms) if term.master == send.stored_by]
        if not own:
            if terms:
                yield f"{send.stored_by}, never the master, acknowledged {send.value}"
            continue
        for term in terms[own[-1] + 1 :]:
            later = first.get((term.broker, term.master))
            if later is not None and send.began > later:
                yield (
                    f"{send.stored_by} acknowledged {send.value} after {term.master} had begun to"
                )


def _terms(history: History) -> Iterator[str]:
    """8: terms only grow, and each has one master."""
    for broker, terms in _terms_by_broker(history).items():
        for one, other in pairwise(terms):
            if other.number <= one.number or other.began < one.began:
                yield f"{broker}: term {other.number} follows term {one.number}"
            if other.number == one.number and other.master != one.master:
                yield f"{broker}: {one.master} and {other.master} in term {one.number}"


def _new_masters(history: History) -> Iterator[str]:
    """11: a new master had all that the term before acknowledged, if its mode promises that."""
    for broker, terms in _terms_by_broker(history).items():
        for one, other in pairwise(terms):
            if one.mode.is_sync_master and other.master not in other.eligible:
                yield f"{broker}: {other.master} of term {other.number} was not in sync before"


def _ends(history: History) -> Iterator[str]:
    """12: a slave never reports what it does not have, nor has what its master does not have."""
    for each in history.progress:
        if each.reported > each.slave_end:
            yield (
                f"{each.slave} reported {each.reported}, and its log ended at {each.slave_end} "
                f"({each.at:.3f} s)"
            )
        if each.slave_end > each.master_end:
            yield (
                f"{each.slave} had {each.slave_end} bytes, and its master {each.master} "
                f"{each.master_end} ({each.at:.3f} s)"
            )


def _confirmed(history: History) -> Iterator[str]:
    """10: no log becomes shorter than what was confirmed; only a lost disk begins again."""
    confirmed: dict[str, int] = defaultdict(int)
    reported: dict[tuple[str, str], tuple[float, int]] = {}
    for each in history.progress:
        if each.master_end < confirmed[each.broker]:
            yield (
                f"{each.master} has {each.master_end} bytes, and {confirmed[each.broker]} of "
                f"{each.broker} were confirmed ({each.at:.3f} s)"
            )
        confirmed[each.broker] = max(confirmed[each.broker], each.reported)
        key = (each.broker, each.slave)
        at, most = reported.get(key, (each.at, 0))
        if any(loss.node == each.slave and at < loss.at <= each.at for loss in history.losses):
            most = 0
        if each.slave_end < most:
            yield (
                f"{each.slave} has {each.slave_end} bytes, and had reported {most} "
                f"({each.at:.3f} s)"
            )
        reported[key] = (each.at, max(most, each.reported))


def check_logs(history: History) -> list[str]:
    """9: after everything healed, the logs of a broker name are equal."""
    problems = []
    for each in history.comparisons:
        if each.difference is not None:
            problems.append(
                f"the logs of {each.first} and {each.second} differ from {each.difference} on"
            )
        elif each.first_end != each.second_end:
            problems.append(
                f"the log of {each.first} ends at {each.first_end}, that of {each.second} at "
                f"{each.second_end}"
            )
    return problems


def check_routes(history: History) -> list[str]:
    """15: after everything healed, all name servers know the one master and its slaves."""
    problems = []
    masters = {term.broker: term.master for term in history.terms}
    for route in history.routes:
        if route.broker not in masters:
            continue
        if route.master != masters[route.broker]:
            problems.append(
                f"{route.name_server} has {route.master} as the master of {route.broker}, which "
                f"is {masters[route.broker]}"
            )
        slaves = history.members.get(route.broker, frozenset()) - {masters[route.broker]}
        if slaves != route.slaves:
            problems.append(
                f"{route.name_server} has the slaves {sorted(route.slaves)} of {route.broker}, "
                f"which are {sorted(slaves)}"
            )
    return problems
