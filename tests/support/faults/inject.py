"""Making the faults of a schedule happen, and what they take away come back."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from goddard.client.admin.admin import Admin
from goddard.errors import GoddardError
from goddard.testing.process import ProcessError
from tests.support.faults.cluster import Cluster, Node
from tests.support.faults.schedule import NAME_SERVERS, Fault
from tests.support.history.record import Damage, History, Loss, Term
from tests.support.replicas import replication

_LEVEL_BYTES: Final = 20_000
_LEVEL_SECONDS: Final = 40.0
_PROMOTE_SECONDS: Final = 45.0
_MIXED_SECONDS: Final = 3.0
_STOP_SECONDS: Final = 45.0
_JAVA_TERMINATED: Final = 143  # of a JVM that ended in order after SIGTERM
_FORCED_FROM: Final = 3  # attempts; an operator who knows that the old master is gone


class Injector:
    """``done`` counts the faults by kind; ``problems`` are what a fault must not cause."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        *,
        now: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self._cluster = cluster
        self._history = history
        self._now = now
        self._note = note

    def master(self, broker: str) -> Node:
        """The node that is the master of a broker name now."""
        address = next(
            term.master for term in reversed(self._history.terms) if term.broker == broker
        )
        return next(node for node in self._cluster.brokers if node.address == address)

    def slave(self, broker: str) -> Node:
        master = self.master(broker)
        return next(
            node for node in self._cluster.brokers if node.broker == broker and node is not master
        )

    async def inject(self, fault: Fault) -> None:
        """Returns when what the fault took away is back."""
        if fault.kind in ("cut", "cut one way", "slow"):
            await self._disturb_link(fault)
        elif fault.kind == "rolling restart":
            await self._restart_all(fault)
        elif fault.kind == "lose":
            await self._lose(fault)
        elif fault.kind == "change places":
            await self._change_places(fault)
        elif fault.kind == "replace":
            await self._replace(fault)
        else:
            await self._trouble(fault, self._cluster.nodes[fault.node])

    def _happened(self, fault: Fault) -> None:
        self.done[fault.kind] += 1
        self._note(str(fault))

    async def _disturb_link(self, fault: Fault) -> None:
        network = self._cluster.network
        self._happened(fault)
        if fault.kind == "slow":
            network.slow(fault.node)
            await asyncio.sleep(fault.seconds)
            network.hurry(fault.node)
            return
        links = [(fault.node, fault.other)]
        if fault.kind == "cut":
            links.append((fault.other, fault.node))
        for source, target in links:
            network.cut(source, target)
        await asyncio.sleep(fault.seconds)
        for source, target in links:
            network.join(source, target)

    async def _trouble(self, fault: Fault, node: Node) -> None:
        """Faults of one node."""
        async with node.busy:
            self._happened(fault)
            if fault.kind == "kill":
                await asyncio.to_thread(node.process.kill)
                await asyncio.sleep(fault.seconds)
                await self.start(node)
            elif fault.kind in ("pause", "pause and kill"):
                node.process.pause()
                await asyncio.sleep(fault.seconds)
                if fault.kind == "pause":
                    node.process.resume()
                else:
                    await asyncio.to_thread(node.process.kill)
                    await self.start(node)
            elif fault.kind == "stop":
                await self._stop(node)
                await asyncio.sleep(fault.seconds)
                await self.start(node)
            elif fault.kind == "full disk":
                self._cluster.fill_disk(node)
                await asyncio.sleep(fault.seconds)
                self._cluster.free_disk(node)
            elif fault.kind == "failing syncs":
                assert node.control is not None
                node.control.has_failing_syncs = True
                await asyncio.sleep(fault.seconds)
                node.control.has_failing_syncs = False
            elif fault.kind == "clock":
                assert node.control is not None
                node.control.skew_ms += fault.amount
                self._history.clock_jumps_seconds += abs(fault.amount) / 1000
            else:
                raise AssertionError(fault)

    async def start(self, node: Node) -> None:
        """Start a process that has ended."""
        try:
            await asyncio.to_thread(node.process.start)
        except ProcessError as error:
            self.problems.append(f"{node.name} does not start: {error}")

    async def _stop(self, node: Node) -> None:
        """Stop a process as an operator does."""
        try:
            code = await asyncio.to_thread(node.process.stop, _STOP_SECONDS)
        except ProcessError as error:
            self.problems.append(f"{node.name} does not stop: {error}")
            return
        if code not in (0, _JAVA_TERMINATED):
            self.problems.append(f"{node.name} ended with {code}: {node.process.diagnosis()}")

    async def _restart_all(self, fault: Fault) -> None:
        """One node after the other, slaves before their masters."""
        self._happened(fault)
        brokers = sorted({node.broker for node in self._cluster.brokers})
        nodes = [self._cluster.nodes[name] for name in NAME_SERVERS]
        nodes += [self.slave(broker) for broker in brokers]
        nodes += [self.master(broker) for broker in brokers]
        for node in nodes:
            async with node.busy:
                await self._stop(node)
                await self.start(node)

    async def _lose(self, fault: Fault) -> None:
        """The master's machine is gone; its slave becomes the master, and gets an empty slave."""
        broker = fault.node
        mode = self._cluster.setup.modes[broker]
        lost, slave = self.master(broker), self.slave(broker)
        async with lost.busy, slave.busy:
            # A second loss before the slave has what the first left is too much for two nodes.
            if not await self._is_level(lost):
                return
            self._happened(fault)
            links = ((lost.name, slave.name), (slave.name, lost.name)) if fault.seconds else ()
            for source, target in links:
                self._cluster.network.cut(source, target)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(lost.process.kill)
            for source, target in links:
                self._cluster.network.join(source, target)
            loss = Loss(broker, lost.address, self._now(), Damage.DISK_LOST)
            self._history.losses.append(loss)
            self._cluster.lose_disk(lost)
            await self._promote(slave, is_safe=mode.is_sync_master)
            await self.start(lost)

    async def _change_places(self, fault: Fault) -> None:
        """A planned change, which loses nothing in any mode: demote, then promote."""
        master, slave = self.master(fault.node), self.slave(fault.node)
        async with master.busy, slave.busy:
            if not await self._is_level(master):
                return
            broker_id = self._cluster.new_id()
            if await self._demote(master, broker_id):
                self._happened(fault)
                master.broker_id = broker_id
                await self._promote(slave, is_safe=True)

    async def _demote(self, master: Node, broker_id: int) -> bool:
        """``goddard broker demote``; False if the master stays the master."""
        try:
            async with Admin(self._cluster.name_servers) as admin:
                await admin.demote_broker(master.address, broker_id=broker_id)
        except GoddardError as problem:
            self._note(f"{master.name} is not demoted: {problem}")
        else:
            return True
        until = self._now() + _PROMOTE_SECONDS
        while self._now() < until:  # the answer may be late
            try:
                return not (await asyncio.to_thread(replication, master)).master
            except (GoddardError, OSError):
                await asyncio.sleep(0.5)
        return False

    async def _replace(self, fault: Fault) -> None:
        """RocketMQ's brokers instead of ours, one after the other, and ours again, on their data.

        So each of them is the slave of the other for some seconds, as master and as slave.
        """
        master, slave = self.master(fault.node), self.slave(fault.node)
        async with slave.busy, master.busy:
            self._happened(fault)
            ours = {node.name: node.process for node in (slave, master)}
            for node in (slave, master):
                await self._stop(node)
                try:
                    await asyncio.to_thread(self._cluster.start_java, node, fault.other)
                except ProcessError as error:
                    self.problems.append(f"{node.name} does not start as Java: {error}")
                self._note(f"{node.name} is RocketMQ {fault.other}")
                await asyncio.sleep(_MIXED_SECONDS)
            for node in (slave, master):
                await self._stop(node)
                node.process = ours[node.name]
                await self.start(node)
                self._note(f"{node.name} is Goddard again")
                await asyncio.sleep(_MIXED_SECONDS)

    async def _is_level(self, master: Node) -> bool:
        until = self._now() + _LEVEL_SECONDS
        while self._now() < until:
            try:
                status = await asyncio.to_thread(replication, master)
            except (GoddardError, OSError):
                status = None
            if status and any(each.diff < _LEVEL_BYTES for each in status.ha_connection_info):
                return True
            await asyncio.sleep(0.5)
        return False

    async def _promote(self, slave: Node, *, is_safe: bool) -> None:
        """``goddard broker promote``, until it works; by force if there is no other way."""
        until = self._now() + _PROMOTE_SECONDS
        error: Exception | None = None
        terms = [term for term in self._history.terms if term.broker == slave.broker]
        attempt = 0
        while self._now() < until:
            attempt += 1
            began = self._now()
            try:
                async with Admin(self._cluster.name_servers) as admin:
                    await admin.promote_broker(
                        slave.address, force=not is_safe or attempt >= _FORCED_FROM
                    )
            except GoddardError as problem:
                error = problem
                self._note(f"{slave.name} is not promoted: {problem}")
                await asyncio.sleep(1.0)
                continue
            mode = self._cluster.setup.modes[slave.broker]
            eligible = frozenset({slave.address})
            number = terms[-1].number + 1
            self._history.terms.append(
                Term(slave.broker, number, slave.address, began, eligible, mode)
            )
            slave.broker_id = 0
            self._note(f"{slave.name} is the master of {slave.broker}")
            return
        self.problems.append(f"{slave.name} cannot be promoted: {error}")
