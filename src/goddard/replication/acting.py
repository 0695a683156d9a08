"""Acting master: who stands in for a master that is away, and how a broker goes online.

Every broker of a group asks the name servers who is registered. While the master is not, the slave
with the smallest id acts for it. It goes by what it heard within a lease, which is as long as the
name servers keep a broker that is silent: a slave that cannot hear of the master's return stops by
itself. A controller, which counts epochs, can give the same lease with its answer.

A broker that starts is isolated: not registered, and refuses messages. A master first has each
living slave follow it, and takes over the offsets that consumers and schedules reached there. A
slave first follows its master.

All times are of one monotonic clock.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from goddard.protocol.bodies import DataVersion

MASTER_ID: Final = 0


class Standing:
    """What one broker knows of its group, and whether it acts for the master."""

    __slots__ = ("_lease_end_ms", "_members", "_suspended_ms")

    def __init__(self) -> None:
        self._members: Mapping[int, str] = {}
        self._lease_end_ms = self._suspended_ms = 0

    def heard(self, members: Mapping[int, str], lease_end_ms: int) -> None:
        """The name servers were asked and have these members, which counts until then."""
        self._members = members
        self._lease_end_ms = lease_end_ms

    def notified(self) -> None:
        """A name server says that the smallest id changed: nothing is known until it is asked."""
        self._lease_end_ms = 0

    def suspend(self, until_ms: int) -> None:
        """A master is about to go online: do not act until it has, or this time is over."""
        self._suspended_ms = until_ms

    def acts(self, own_id: int, now_ms: int) -> bool:
        """Whether this broker acts for the master now."""
        if own_id == MASTER_ID or not self._suspended_ms <= now_ms < self._lease_end_ms:
            return False
        return own_id in self._members and min(self._members) == own_id


def merge_members(answers: Iterable[Mapping[int, str]]) -> dict[int, str]:
    """What several name servers know together: a master that one of them knows is not away."""
    members: dict[int, str] = {}
    for answer in answers:
        members |= answer
    return dict(sorted(members.items()))


class GoOnline(NamedTuple):
    """Register, and do what the role asks for."""


class TakeState(NamedTuple):
    """A master has this slave follow, and takes over its offsets."""

    slave_address: str


class FollowFirst(NamedTuple):
    """A slave follows this master."""

    master_address: str


class Blocked(NamedTuple):
    """The broker cannot go online as long as this is so."""

    reason: str


Step: TypeAlias = GoOnline | TakeState | FollowFirst | Blocked


def next_step(
    own_id: int, own_address: str, members: Mapping[int, str], done: Collection[str]
) -> Step:
    """What an isolated broker does next; ``done``: the addresses of which it has done its part."""
    others = {
        broker_id: address for broker_id, address in members.items() if address != own_address
    }
    master = others.pop(MASTER_ID, None)
    if own_id != MASTER_ID:
        return GoOnline() if master is None or master in done else FollowFirst(master)
    if master is not None:
        return Blocked(f"{master} is registered as the master of this group")
    for broker_id in sorted(others):
        if others[broker_id] not in done:
            return TakeState(others[broker_id])
    return GoOnline()


def is_as_new(version: DataVersion, own: DataVersion) -> bool:
    """Whether a table of another broker is as new as the own one, or newer."""
    return _order(version) >= _order(own)


def _order(version: DataVersion) -> tuple[int, int, int]:
    return version.state_version, version.counter, version.timestamp
