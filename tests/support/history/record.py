"""The recorded events of one run. Times are seconds of one clock, the recorder's."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Queue(NamedTuple):
    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


class Outcome(Enum):
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # nothing was stored
    UNKNOWN = "unknown"


class Decision(Enum):
    """What a transaction came to; a plain message is COMMITTED."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass(slots=True)
class Send:
    """One message; ``value`` is unique."""

    value: str
    producer: str
    topic: str
    began: float
    attempts: int = 1
    outcome: Outcome = Outcome.UNKNOWN
    ended: float | None = None
    queue: Queue | None = None
    offset: int = -1
    # The address of the broker that stored it; "" if unknown.
    stored_by: str = ""
    delay_seconds: float = 0.0
    decision: Decision = Decision.COMMITTED
    is_transactional: bool = False


class Delivery(NamedTuple):
    """One call of a listener with one message."""

    group: str
    member: str
    queue: Queue
    offset: int
    value: str
    began: float
    ended: float
    is_success: bool


class Stored(NamedTuple):
    """A message in a queue, read after everything healed."""

    queue: Queue
    offset: int
    value: str


class Mode(NamedTuple):
    """What a master waits for before it acknowledges a message, besides its own log."""

    is_sync_flush: bool = False  # for its disk, and its slave for its own
    is_sync_master: bool = False  # for a slave

    def __str__(self) -> str:
        role = "SYNC_MASTER" if self.is_sync_master else "ASYNC_MASTER"
        return f"{role}/{'SYNC_FLUSH' if self.is_sync_flush else 'ASYNC_FLUSH'}"


class Damage(Enum):
    """What can take acknowledged messages away; kill -9 alone cannot."""

    POWER_CUT = "power cut"  # the master comes back with what was on its disk
    DISK_LOST = "disk lost"  # and a slave becomes the master


class Loss(NamedTuple):
    """The master of a broker name was damaged."""

    broker: str
    node: str
    at: float
    damage: Damage


def survives(mode: Mode, damage: Damage) -> bool:
    """Whether what was acknowledged in a mode survives: the table of docs/RELIABILITY.md."""
    if damage is Damage.POWER_CUT:
        return mode.is_sync_flush
    return mode.is_sync_master


class Term(NamedTuple):
    """The time during which one node is the master of a broker name."""

    broker: str
    number: int
    master: str
    began: float
    # Which nodes had everything that was acknowledged in the term before; empty for the first.
    eligible: frozenset[str] = frozenset()
    mode: Mode = Mode()


class Progress(NamedTuple):
    """Of a master and a slave, asked in this order: report, end of the slave, end of the master."""

    broker: str
    at: float
    master: str
    slave: str
    reported: int
    slave_end: int
    master_end: int


class Comparison(NamedTuple):
    """The logs of two nodes after everything healed; ``difference`` is the first unequal byte."""

    broker: str
    first: str
    second: str
    first_end: int
    second_end: int
    difference: int | None


class Route(NamedTuple):
    """What a name server tells of a broker name after everything healed."""

    name_server: str
    broker: str
    master: str | None
    slaves: frozenset[str]


@dataclass(slots=True)
class History:
    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    max_offsets: dict[Queue, int] = field(default_factory=dict)
    committed_offsets: dict[tuple[str, Queue], int] = field(default_factory=dict)
    # Which groups consume which topics; the orderly ones among them.
    groups: dict[str, set[str]] = field(default_factory=dict)
    orderly_groups: set[str] = field(default_factory=set)
    # Whether all nodes worked long enough at the end for everything to be consumed.
    is_healed: bool = True
    # How far clocks jumped forward, or a new master is ahead; a delay may be shorter by that.
    clock_jumps_seconds: float = 0.0
    losses: list[Loss] = field(default_factory=list)
    # In the order of time, for each broker name.
    terms: list[Term] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    # The nodes of each broker name that run at the end.
    members: dict[str, frozenset[str]] = field(default_factory=dict)
    # What did not work in time after all faults had ended.
    not_healed: list[str] = field(default_factory=list)

    def mode(self, broker: str, at: float) -> Mode:
        """The mode of a broker name at a time."""
        modes = [term.mode for term in self.terms if term.broker == broker and term.began <= at]
        return modes[-1] if modes else Mode(is_sync_flush=True, is_sync_master=True)

    def has_new_master(self, broker: str, at: float, seconds: float) -> bool:
        """Whether the master of a broker name changed in the last ``seconds``."""
        return any(
            term.broker == broker and term.number > 1 and 0 <= at - term.began <= seconds
            for term in self.terms
        )

    def lost_disk(self, broker: str) -> bool:
        """Whether a slave took over: consumers may have seen what it did not have."""
        return any(
            loss.broker == broker and loss.damage is Damage.DISK_LOST for loss in self.losses
        )

    def is_promised(self, send: Send) -> bool:
        """Whether an acknowledged message must have survived all that happened to its broker."""
        if send.outcome is not Outcome.ACKNOWLEDGED or send.queue is None or send.ended is None:
            return False
        mode = self.mode(send.queue.broker, send.ended)
        return all(
            survives(mode, loss.damage)
            for loss in self.losses
            if loss.broker == send.queue.broker and loss.at >= send.began
        )
