"""One run: a seed decides everything. ``simulate`` runs it, ``shorten`` drops needless faults."""

import asyncio
import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from goddard.client.admin.admin import Admin
from goddard.client.options import SessionKeywords
from goddard.environment import Environment
from goddard.store.store import MessageStore
from tests.support.history import check
from tests.support.history.record import Comparison, Damage, Loss, Mode, Progress, Term
from tests.support.history.story import tell
from tests.support.simulation.cluster import BROKER_NAME, BROKER_PORT, Cluster
from tests.support.simulation.faults import SAFETY_SECONDS, Fault, apply, make_schedule
from tests.support.workload import Workload

# The first master and its slave.
_PAIR: Final = ("b1", "b2")
_LIVENESS_SECONDS: Final = 100.0
_READ_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    seed: str
    setup: str
    schedule: tuple[Fault, ...]
    violations: tuple[str, ...]
    digest: str
    virtual_seconds: float
    faults: int
    sent: int
    acknowledged: int
    delivered: int
    notes: tuple[str, ...]
    history: tuple[str, ...]

    def report(self) -> str:
        """For people: seed, faults and what happened to the messages concerned."""
        lines = [f"seed {self.seed}: {self.setup}; trace {self.digest}"]
        lines += [f"  violation: {violation}" for violation in self.violations[:10]]
        if len(self.violations) > 10:
            lines.append(f"  and {len(self.violations) - 10} more violations")
        lines += ["faults:", *(f"  {fault}" for fault in self.schedule)]
        lines += ["what happened:", *(f"  {note}" for note in self.notes)]
        lines += ["history:", *(f"  {line}" for line in self.history)]
        return "\n".join(lines)


def simulate(seed: str, schedule: Sequence[Fault] | None = None) -> Result:
    """The run of a seed, or the same with another schedule of faults."""
    was_enabled, level = gc.isenabled(), logging.root.manager.disable
    # A collection would close suspended coroutines, at a time that no seed decides.
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        return _Run(seed, schedule).run()
    finally:
        gc.collect()
        logging.disable(level)
        if was_enabled:
            gc.enable()


def shorten(result: Result, most_runs: int = 40) -> Result:
    """A run of the same seed that fails with fewer faults."""
    runs = 0
    size = max(1, len(result.schedule) // 2)
    while size and runs < most_runs:
        place, is_shorter = 0, False
        while place < len(result.schedule) and runs < most_runs:
            left = result.schedule[:place] + result.schedule[place + size :]
            runs += 1
            tried = simulate(result.seed, left)
            if tried.violations:
                result, is_shorter = tried, True
            else:
                place += size
        if not is_shorter:
            size //= 2
    return result


class _Run:
    def __init__(self, seed: str, schedule: Sequence[Fault] | None) -> None:
        self._seed = seed
        random = Random(f"{seed} setup")
        self._is_sync = random.random() < 0.7
        self._name_servers = [f"ns{number + 1}" for number in range(random.choice((1, 1, 2)))]
        self._cluster = cluster = Cluster(seed)
        for name in self._name_servers:
            cluster.add_name_server(name)
        # A pair acknowledges what both have on the disk.
        self._is_pair = self._is_sync and random.random() < 0.4
        self._has_failover = self._is_pair and random.random() < 0.5
        self._has_acting = self._is_pair and random.random() < 0.5
        properties = {"flushDiskType": "SYNC_FLUSH" if self._is_sync else "ASYNC_FLUSH"}
        self._brokers = [_PAIR[0]]
        if self._is_pair:
            properties |= {"inSyncReplicas": "2", "minInSyncReplicas": "2"}
            if self._has_acting:
                properties |= {"enableSlaveActingMaster": "true", "totalReplicas": "2"}
            cluster.add_broker("b1", **properties, brokerRole="SYNC_MASTER")
            cluster.add_broker("b2", **properties, brokerRole="SLAVE", brokerId="1")
            self._brokers.append("b2")
        else:
            cluster.add_broker("b1", **properties)
        self._workload = Workload(
            seed,
            name_servers=lambda: cluster.name_servers,
            options=self._client_options,
            now=cluster.loop.time,
            note=cluster.trace.add,
        )
        for name, main in self._workload.clients.items():
            cluster.add_client(name, main)
        if schedule is None:
            schedule = make_schedule(
                seed,
                brokers=self._brokers,
                name_servers=self._name_servers,
                clients=list(self._workload.clients),
                is_durable=self._is_sync,
                has_failover=self._has_failover,
            )
        self._schedule = tuple(schedule)
        self._setup = f"{properties['flushDiskType']}, {len(self._name_servers)} name servers"
        if self._is_pair:
            self._setup += ", master and slave" + (", failover" if self._has_failover else "")
            self._setup += ", acting master" if self._has_acting else ""
        mode = Mode(is_sync_flush=self._is_sync, is_sync_master=self._is_pair)
        self._workload.history.terms.append(
            Term(BROKER_NAME, 1, self._address("b1"), 0.0, mode=mode)
        )
        self._faults = 0
        self._problems: list[str] = []

    def _client_options(self, name: str) -> SessionKeywords:
        return {"client_ip": self._cluster.nodes[name].address}

    def _address(self, name: str) -> str:
        return f"{self._cluster.nodes[name].address}:{BROKER_PORT}"

    def run(self) -> Result:
        cluster, history = self._cluster, self._workload.history
        try:
            cluster.loop.run(self._main())
        finally:
            cluster.close()
        violations = [*self._problems, *check(history)]
        violations += [
            f"error in a callback: {context.get('exception')!r}" for context in cluster.loop.errors
        ]
        return Result(
            seed=self._seed,
            setup=self._setup,
            schedule=self._schedule,
            violations=tuple(violations),
            digest=cluster.trace.digest,
            virtual_seconds=cluster.loop.time(),
            faults=self._faults,
            sent=len(history.sends),
            acknowledged=sum(send.outcome.value == "acknowledged" for send in history.sends),
            delivered=len(history.deliveries),
            notes=tuple(cluster.trace.notes),
            history=tuple(tell(history, violations)),
        )

    async def _main(self) -> None:
        cluster, workload = self._cluster, self._workload
        for name in (*self._name_servers, *self._brokers, *workload.clients):
            cluster.start(name)
        for fault in self._schedule:
            await asyncio.sleep(max(0.0, fault.at - cluster.loop.time()))
            if await apply(cluster, fault):
                self._faults += 1
                self._observe()
                if fault.kind == "clock":
                    workload.history.clock_jumps_seconds += fault.amount / 1000
                if fault.kind in ("power", "lose"):
                    damage = Damage.POWER_CUT if fault.kind == "power" else Damage.DISK_LOST
                    loss = Loss(BROKER_NAME, fault.node, cluster.loop.time(), damage)
                    workload.history.losses.append(loss)
                if fault.kind == "lose":
                    await self._promote()
        await asyncio.sleep(max(0.0, SAFETY_SECONDS - cluster.loop.time()))
        await self._heal()
        await self._read()
        if self._is_pair and not self._has_failover:
            await self._compare_logs()

    async def _promote(self) -> None:
        """An operator makes the slave the master as soon as that is possible, at last by force.

        What was acknowledged is on the slave's disk, so that loses none of it.
        """
        cluster = self._cluster
        node = cluster.add_node("operator")
        address = self._address("b2")

        async def promote(environment: Environment, *, force: bool) -> None:
            name_servers = cluster.name_servers
            async with Admin(
                name_servers, client_ip=node.address, environment=environment
            ) as admin:
                await admin.promote_broker(address, role="ASYNC_MASTER", force=force)

        error: BaseException | None = None
        for attempt in range(_READ_ATTEMPTS):
            task = node.run(partial(promote, node.new_life(), force=attempt > 2))
            await asyncio.wait((task,), timeout=30)
            error = task.exception() if task.done() else TimeoutError("no answer")
            cluster.trace.note(f"b2 is promoted: {error or 'done'}")
            if error is None:
                cluster.configure("b2", brokerRole="ASYNC_MASTER", brokerId="0")
                clocks = [cluster.nodes[name].clock for name in ("b1", "b2")]
                ahead_ms = clocks[1].skew_ms - clocks[0].skew_ms
                # What b1 took is due by the clock of b2 now.
                self._workload.history.clock_jumps_seconds += max(0, ahead_ms) / 1000
                master = self._address("b2")
                self._workload.history.terms.append(
                    Term(BROKER_NAME, 2, master, cluster.loop.time(), frozenset({master}))
                )
                return
            await asyncio.sleep(2.0)
            if not cluster.nodes["b2"].is_running:
                cluster.start("b2")
        self._problems.append(f"the slave cannot be promoted: {error!r}")

    def _observe(self) -> None:
        """10 and 12: what master and slave have at this moment."""
        cluster = self._cluster
        if len(cluster.brokers) < 2 or not all(cluster.nodes[name].is_running for name in _PAIR):
            return
        master, slave = (cluster.brokers[name] for name in _PAIR)
        self._workload.history.progress.append(
            Progress(
                BROKER_NAME,
                cluster.loop.time(),
                self._address("b1"),
                self._address("b2"),
                max((each.acknowledged_offset for each in master.roles.slaves), default=0),
                slave.store.log_max_offset,
                master.store.log_max_offset,
            )
        )

    async def _compare_logs(self) -> None:
        """9 and 15: the slave has the same bytes as its master, and all of them."""
        master, slave = (self._cluster.brokers[name].store for name in _PAIR)
        for _ in range(60):
            if slave.log_max_offset == master.log_max_offset:
                break
            await asyncio.sleep(1.0)
        self._workload.history.comparisons.append(
            Comparison(
                BROKER_NAME,
                self._address("b1"),
                self._address("b2"),
                master.log_max_offset,
                slave.log_max_offset,
                _first_difference(master, slave),
            )
        )

    async def _heal(self) -> None:
        """From here on everything works; wait until everything is consumed."""
        cluster, workload = self._cluster, self._workload
        cluster.trace.note("everything is healed")
        cluster.network.heal()
        for node in cluster.nodes.values():
            node.disk.free()
            node.disk.failing_syncs = 0
            if not node.is_running and not node.is_lost:
                cluster.start(node.name)
        workload.is_safety_over = True
        until = cluster.loop.time() + _LIVENESS_SECONDS
        while cluster.loop.time() < until:
            await asyncio.sleep(5.0)
            if workload.is_consumed():
                break
        await asyncio.sleep(10.0)  # deliveries of what was sent without an answer

    async def _read(self) -> None:
        cluster = self._cluster
        node = cluster.add_node("reader")
        error: BaseException | None = None
        for _ in range(_READ_ATTEMPTS):
            task = node.run(partial(self._workload.read_everything, node.new_life()))
            await asyncio.wait((task,), timeout=30)
            error = task.exception() if task.done() else TimeoutError("reading does not end")
            if error is None:
                return
            await asyncio.sleep(2.0)
        self._problems.append(f"the healed cluster cannot be read: {error!r}")


def _first_difference(master: MessageStore, slave: MessageStore) -> int | None:
    """The beginning of the first block of two logs that is not equal."""
    offset = max(master.log_min_offset, slave.log_min_offset)
    end = min(master.log_max_offset, slave.log_max_offset)
    while offset < end:
        size = min(4096, end - offset)
        one, other = (store.read_log(offset, size) for store in (master, slave))
        common = min(len(one or b""), len(other or b""))
        if one is None or other is None or not common or one[:common] != other[:common]:
            return offset
        offset += common
    return None
