"""Whether a slave can become the master without losing what its last master acknowledged.

Acknowledged messages are on the master and on at least so many slaves as it waited for. So nothing
is lost if the new master has the longest log of all brokers that can be asked, and those that
cannot be asked are too few to hold a message that no other has.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Replica(NamedTuple):
    """Another broker of the group. ``end_offset`` is None if it cannot be asked."""

    address: str
    is_slave: bool
    end_offset: int | None


class LastMaster(NamedTuple):
    """The master that a slave followed last, as it was then."""

    address: str
    # How many brokers, itself included, had a message before it was acknowledged.
    replicas_per_message: int
    # How many slaves were connected to it at most.
    slave_count: int


def replicas_per_message(properties: Mapping[str, str]) -> int:
    """How many brokers have a message when a master of this configuration acknowledges it.

    One, the master alone, if that cannot be relied on.
    """
    if properties.get("brokerRole") != "SYNC_MASTER":
        return 1
    if "inSyncReplicas" not in properties:
        return 2  # RocketMQ 4.9 waits for one slave
    is_auto = properties.get("enableAutoInSyncReplicas", "").lower() == "true"
    name = "minInSyncReplicas" if is_auto else "inSyncReplicas"
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def promotion_problem(
    own_end_offset: int, others: Sequence[Replica], last: LastMaster | None
) -> str | None:
    """Why messages could be lost, and what to do; None if none can."""
    for other in others:
        if other.end_offset is not None and other.end_offset > own_end_offset:
            return (
                f"the log of {other.address} ends at {other.end_offset}, and the log here at "
                f"{own_end_offset}: promote {other.address}"
            )
    if last is None:
        return "this slave has not followed a master since it started, so what it lacks is unknown"
    reachable = [other for other in others if other.end_offset is not None]
    if any(other.address == last.address for other in reachable):
        return None  # it is a slave now, and has nothing more
    if last.replicas_per_message < 2:
        return (
            f"the last master, {last.address}, cannot be asked, and it acknowledged messages "
            "before a slave had them"
        )
    asked = 1 + len(reachable)
    needed = max(last.slave_count, 1) - (last.replicas_per_message - 1) + 1
    if asked < needed:
        return (
            f"only {asked} of {last.slave_count} slaves can be asked, and messages may be on the "
            f"others alone: start them, until {needed} can be asked"
        )
    return None
