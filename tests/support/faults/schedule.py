"""What a round consists of, made from its seed alone: the modes of the brokers, and the faults."""

from dataclasses import dataclass
from random import Random
from typing import Final

from tests.support.history.record import Mode

NAME_SERVERS: Final = ("ns1", "ns2")
# Broker name: the nodes of the first master and of its slave.
PAIRS: Final = {"a": ("a0", "a1"), "b": ("b0", "b1")}
BROKERS: Final = tuple(node for pair in PAIRS.values() for node in pair)
CLIENTS: Final = "clients"

# Kind: whether it concerns the links between nodes.
LINK_KINDS: Final = ("cut", "cut one way", "slow")
NODE_KINDS: Final = (
    "kill",
    "pause",
    "pause and kill",
    "stop",
    "full disk",
    "failing syncs",
    "clock",
)
NAME_SERVER_KINDS: Final = ("kill", "pause")
# At most once in a round, one after the other: each changes several nodes, and waits for them.
LONG_KINDS: Final = ("rolling restart", "lose", "change places", "replace")
JAVA_VERSIONS: Final = ("4.9.4", "5.4.0")
_LATER_MODES: Final = (
    Mode(is_sync_flush=False, is_sync_master=False),
    Mode(is_sync_flush=True, is_sync_master=False),
    Mode(is_sync_flush=False, is_sync_master=True),
)
_SECONDS_PER_FAULT: Final = 4.0
_MOST_SECONDS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Fault:
    """At a time something happens to a node, or to its link to another, for some seconds."""

    at: float
    kind: str
    node: str
    other: str = ""
    seconds: float = 0.0
    amount: int = 0

    def __str__(self) -> str:
        parts = [f"{self.at:6.1f} {self.kind}", self.node]
        if self.other:
            parts.append(f"> {self.other}")
        if self.amount:
            parts.append(str(self.amount))
        if self.seconds:
            parts.append(f"for {self.seconds:.1f} s")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Setup:
    """The modes by broker name, and the faults in the order of time."""

    seed: str
    safety_seconds: float
    modes: dict[str, Mode]
    # Whether masters that wait for slaves refuse messages without one.
    needs_slave: bool
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        modes = ", ".join(f"{name}: {mode}" for name, mode in self.modes.items())
        return f"seed {self.seed}: {modes}" + (", minInSyncReplicas=2" if self.needs_slave else "")


def make_setup(seed: str, *, safety_seconds: float, has_java: bool) -> Setup:
    """The setup of a seed; without Java no broker is replaced by RocketMQ's."""
    random = Random(f"{seed} setup")
    modes = {"a": Mode(is_sync_flush=True, is_sync_master=True), "b": random.choice(_LATER_MODES)}
    needs_slave = random.random() < 0.3
    faults = _short(Random(f"{seed} short faults"), safety_seconds)
    faults.append(_long(Random(f"{seed} long faults"), safety_seconds, has_java=has_java))
    faults.sort(key=lambda fault: fault.at)
    return Setup(seed, safety_seconds, modes, needs_slave, tuple(faults))


def _short(random: Random, safety_seconds: float) -> list[Fault]:
    """Every kind comes once before any comes again."""
    faults: list[Fault] = []
    kinds: list[tuple[str, str]] = []
    for _ in range(int(safety_seconds / _SECONDS_PER_FAULT)):
        if not kinds:
            kinds = [("link", kind) for kind in LINK_KINDS]
            kinds += [("node", kind) for kind in NODE_KINDS]
            kinds += [("name server", kind) for kind in NAME_SERVER_KINDS]
            random.shuffle(kinds)
        group, kind = kinds.pop()
        seconds = min(_MOST_SECONDS, random.choice((0.5, 2.0, 5.0)) * (0.5 + random.random()))
        at = 1.0 + random.random() * max(0.0, safety_seconds - seconds - 1.0)
        if group == "link":
            faults.append(_link(random, at, kind, seconds))
        elif group == "name server":
            faults.append(Fault(at, kind, random.choice(NAME_SERVERS), seconds=seconds))
        elif kind == "clock":
            # Delays may be shorter or longer by the sum of all jumps, so those are few seconds.
            amount = random.choice((-1, 1)) * random.randrange(100, 5_000)
            faults.append(Fault(at, kind, random.choice(BROKERS), amount=amount))
        else:
            faults.append(Fault(at, kind, random.choice(BROKERS), seconds=seconds))
    return faults


def _link(random: Random, at: float, kind: str, seconds: float) -> Fault:
    node = random.choice(BROKERS)
    if kind == "slow":
        return Fault(at, kind, node, seconds=seconds)
    if random.random() < 0.5:  # the link that replication needs
        (other,) = (
            each for pair in PAIRS.values() if node in pair for each in pair if each != node
        )
    else:
        other = random.choice((*NAME_SERVERS, CLIENTS))
    if random.random() < 0.5:
        node, other = other, node
    return Fault(at, kind, node, other, seconds)


def _long(random: Random, safety_seconds: float, *, has_java: bool) -> Fault:
    """Only one in a round, because each takes long; ``node`` is the name of the pair.

    ``other`` is the version of RocketMQ that replaces Goddard.
    """
    kind, pair = random.choice(LONG_KINDS), random.choice(tuple(PAIRS))
    at = safety_seconds * (0.2 + 0.3 * random.random())
    if kind == "lose":
        # Often the slave lacks what the master stored at the end, which must not be acknowledged.
        return Fault(at, kind, pair, seconds=random.choice((0.0, 0.5, 2.0)))
    if kind != "replace":
        return Fault(at, kind, pair)
    if not has_java:
        return Fault(at, "rolling restart", pair)
    return Fault(at, kind, pair, random.choice(JAVA_VERSIONS))
