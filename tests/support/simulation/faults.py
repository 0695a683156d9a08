"""Faults as data: a schedule is made from the seed, and can be shortened by leaving faults out."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.support.simulation.cluster import Cluster
    from tests.support.simulation.node import Node

SAFETY_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Fault:
    """At a time something happens to a node, or to the link to another, for some seconds."""

    at: float
    kind: str
    node: str = ""
    other: str = ""
    seconds: float = 0.0
    amount: int = 0

    def __str__(self) -> str:
        parts = [f"{self.at:7.3f} {self.kind}", self.node]
        if self.other:
            parts.append(f"> {self.other}")
        if self.amount:
            parts.append(str(self.amount))
        if self.seconds:
            parts.append(f"for {self.seconds:.3f} s")
        return " ".join(part for part in parts if part)


def make_schedule(
    seed: str,
    *,
    brokers: list[str],
    name_servers: list[str],
    clients: list[str],
    is_durable: bool,
    has_failover: bool,
) -> list[Fault]:
    """``is_durable``: the brokers sync before they acknowledge, so their power may be cut.

    The master of a pair does not lose its power and come back: its slave may have what the master
    had not synced, and then waits for an operator (docs/RELIABILITY.md).
    ``has_failover``: in the end the first broker is lost with its disk, and the second takes over.
    """
    random = Random(f"{seed} faults")
    everyone = [*brokers, *name_servers, *clients]
    kinds = ["kill", "kill", "stop", "cut", "cut one way", "slow", "reset", "reset", "kill client"]
    kinds += ["kill name server", "clock"]
    if is_durable:
        kinds += ["power", "power", "failing sync", "full disk"]
    chosen = random.sample(kinds, random.randrange(1, len(kinds) + 1))
    faults = []
    for _ in range(random.randrange(0, 9)):
        at = 4.0 + random.random() * (SAFETY_SECONDS - 6.0)
        kind = random.choice(chosen)
        seconds = random.choice((0.05, 0.5, 2.0, 5.0)) * (0.5 + random.random())
        broker = random.choice(brokers)
        if kind in ("cut", "cut one way", "slow"):
            node, other = random.sample(everyone, 2)
            if random.random() < 0.7:
                node = broker
                other = random.choice([each for each in everyone if each != node])
            if kind == "cut one way" and random.random() < 0.5:
                node, other = other, node
            faults.append(Fault(at, kind, node, other, seconds))
        elif kind == "reset":
            faults.append(Fault(at, kind))
        elif kind == "kill client":
            faults.append(Fault(at, kind, random.choice(clients), seconds=seconds))
        elif kind == "kill name server":
            faults.append(Fault(at, "kill", random.choice(name_servers), seconds=seconds))
        elif kind == "failing sync":
            faults.append(Fault(at, kind, brokers[-1], amount=random.choice((1, 3))))
            if random.random() < 0.7:  # what such a sync left undone shows after a power cut
                cut_at = at + random.random()
                faults.append(Fault(cut_at, "power", brokers[-1], seconds=seconds))
        elif kind == "power":
            faults.append(Fault(at, kind, brokers[-1], seconds=seconds))
        elif kind == "clock":
            # Forward: stored times may not fall, and a step back only makes delays longer.
            faults.append(Fault(at, kind, random.choice(everyone), amount=random.randrange(1, 400)))
        else:
            faults.append(Fault(at, kind, broker, seconds=seconds))
    if has_failover:
        faults += _loss(random, *brokers)
    return sorted(faults, key=lambda fault: fault.at)


def _loss(random: Random, master: str, slave: str) -> list[Fault]:
    """The end of a master, often of one that could not reach its slave before."""
    lost_at = SAFETY_SECONDS * (0.5 + 0.3 * random.random())
    faults = [Fault(lost_at, "lose", master)]
    if random.random() < 0.6:  # the slave lacks what the master stored at the end
        seconds = 0.2 + 2.0 * random.random()
        faults.append(Fault(lost_at - seconds, "cut", master, slave, seconds))
    return faults


async def apply(cluster: "Cluster", fault: Fault) -> bool:
    """Make it happen; False if it cannot. What it takes away comes back after its seconds."""
    network, nodes, loop = cluster.network, cluster.nodes, cluster.loop
    node = nodes.get(fault.node)
    if fault.kind == "reset":
        cluster.trace.note("a connection breaks")
        network.reset_some()
        return True
    assert node is not None, fault
    if fault.kind in ("kill", "power", "stop", "kill client"):
        if not node.is_running or node.is_lost:
            return False
        if fault.kind == "power":
            node.lose_power()
        elif fault.kind == "stop":
            await cluster.stop(node.name)
        else:
            node.kill()
        life = node.life

        def start() -> None:
            if node.life is life and not node.is_running and not node.is_lost:
                cluster.start(node.name)

        network.later(loop.time() + fault.seconds, start)
        return True
    cluster.trace.note(str(fault))
    if fault.kind == "lose":
        node.is_lost = True
        if node.is_running:
            node.lose_power()
        return True
    _disturb(cluster, fault, node)
    return True


def _disturb(cluster: "Cluster", fault: Fault, node: "Node") -> None:
    """Faults that leave the process running."""
    network, nodes, loop = cluster.network, cluster.nodes, cluster.loop
    if fault.kind in ("cut", "cut one way"):
        links = [(node, nodes[fault.other])]
        if fault.kind == "cut":
            links.append((nodes[fault.other], node))
        for source, target in links:
            network.cut(source.address, target.address)
        network.later(loop.time() + fault.seconds, network.heal)
    elif fault.kind == "slow":
        network.slow(node.address, nodes[fault.other].address, 0.2)
        network.later(loop.time() + fault.seconds, network.heal)
    elif fault.kind == "failing sync":
        node.disk.failing_syncs = fault.amount
    elif fault.kind == "full disk":
        node.disk.is_full = True
        network.later(loop.time() + fault.seconds, node.disk.free)
    elif fault.kind == "clock":
        node.clock.skew_ms += fault.amount
