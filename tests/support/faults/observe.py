"""What brokers and name servers tell about themselves, for the history."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from goddard.errors import GoddardError
from goddard.store.check.compare import compare
from goddard.store.check.inspect import StoreView
from goddard.testing.wire import query_brokers
from tests.support.faults.cluster import Cluster, Node
from tests.support.faults.inject import Injector
from tests.support.faults.schedule import NAME_SERVERS, PAIRS
from tests.support.history.record import Comparison, History, Progress, Route
from tests.support.replicas import log_end, replication

_PERIOD_SECONDS: Final = 1.0


class Observer:
    """Asks during the run, and once at its end."""

    def __init__(
        self,
        cluster: Cluster,
        injector: Injector,
        history: History,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._injector = injector
        self._history = history
        self._now = now

    async def watch(self) -> None:
        """Record the progress of each pair until cancelled."""
        while True:
            for broker in PAIRS:
                await self._sample(broker)
            await asyncio.sleep(_PERIOD_SECONDS)

    async def _sample(self, broker: str) -> None:
        terms = len(self._history.terms)
        master, slave = self._injector.master(broker), self._injector.slave(broker)
        try:
            status = await asyncio.to_thread(replication, master)
            # The one that the master's disk was lost with has another connection.
            reports = [
                each.slave_ack_offset
                for each in status.ha_connection_info
                if each.addr.lstrip("/").rpartition(":")[0] == slave.ip
            ]
            slave_end = await asyncio.to_thread(log_end, slave)
            master_end = await asyncio.to_thread(log_end, master)
        except (GoddardError, OSError, AssertionError):
            return  # somebody is away
        if terms == len(self._history.terms) and master is self._injector.master(broker):
            self._history.progress.append(
                Progress(
                    broker,
                    self._now(),
                    master.address,
                    slave.address,
                    max(reports, default=0),
                    slave_end,
                    master_end,
                )
            )

    async def compare_logs(self) -> list[Comparison]:
        return [await asyncio.to_thread(self._compare, broker) for broker in PAIRS]

    def _compare(self, broker: str) -> Comparison:
        first, second = self._injector.master(broker), self._injector.slave(broker)
        found = compare(StoreView(first.store), StoreView(second.store))
        ends = found.first.end_offset, found.second.end_offset
        offset = None if found.difference is None else found.difference.physical_offset
        return Comparison(broker, first.address, second.address, *ends, offset)

    async def routes(self) -> list[Route]:
        found: list[Route] = []
        for name in NAME_SERVERS:
            node = self._cluster.nodes[name]
            try:
                brokers = await asyncio.to_thread(query_brokers, node.address)
            except (GoddardError, OSError):
                brokers = {}
            for broker in PAIRS:
                nodes = brokers.get(broker, {})
                slaves = frozenset(address for number, address in nodes.items() if number)
                found.append(Route(name, broker, nodes.get(0), slaves))
        return found

    def members(self) -> dict[str, frozenset[str]]:
        return {broker: frozenset(self._addresses(broker)) for broker in PAIRS}

    def _addresses(self, broker: str) -> Iterator[str]:
        return (node.address for node in self._nodes(broker))

    def _nodes(self, broker: str) -> list[Node]:
        return [node for node in self._cluster.brokers if node.broker == broker]
