"""How long slow and failing brokers are avoided, and which queue is chosen instead.

The latency of each send gives the time for which its broker is avoided, by a table. Pure: the
current time is an argument.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from goddard.client.routes import PublishRoute
from goddard.client.values import MessageQueue


@dataclass(frozen=True, slots=True)
class FaultTimes:
    """From each latency on, avoid a broker for the time at the same position.

    A failure counts as a latency of ``isolation_ms``.
    """

    latency_ms: tuple[int, ...]
    unavailable_ms: tuple[int, ...]
    isolation_ms: int

    def unavailable_for(self, latency_ms: int) -> int:
        position = bisect_right(self.latency_ms, latency_ms)
        return self.unavailable_ms[position - 1] if position else 0


TIMES_5: Final = FaultTimes(
    (50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10000, 30000), 10_000
)
"""The table of RocketMQ 5: up to half a minute."""

TIMES_4: Final = FaultTimes(
    (50, 100, 550, 1000, 2000, 3000, 15000),
    (0, 0, 30000, 60000, 120000, 180000, 600000),
    30_000,
)
"""The table of RocketMQ 4: up to ten minutes."""


class _Fault(NamedTuple):
    available_from_ms: int
    is_reachable: bool
    check_from_ms: int


class BrokerHealth:
    """Latencies and failures of brokers, by broker name."""

    __slots__ = ("_faults", "_times")

    def __init__(self, times: FaultTimes) -> None:
        self._times = times
        self._faults: dict[str, _Fault] = {}

    def record(
        self,
        broker_name: str,
        latency_ms: int,
        now_ms: int,
        *,
        isolate: bool = False,
        reachable: bool = True,
        check_interval_ms: int = 2_000,
    ) -> None:
        """Record the latency of a send; ``isolate``: it failed."""
        counted_ms = self._times.isolation_ms if isolate else latency_ms
        avoid_ms = self._times.unavailable_for(counted_ms)
        if not avoid_ms and reachable:
            # Only brokers with a fault are kept.
            self._faults.pop(broker_name, None)
        else:
            self._faults[broker_name] = _Fault(
                now_ms + avoid_ms, reachable, now_ms + check_interval_ms
            )

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or fault.is_reachable

    def to_check(self, now_ms: int) -> list[str]:
        """Unreachable brokers that are due to be probed."""
        return [
            name
            for name, fault in self._faults.items()
            if not fault.is_reachable and now_ms >= fault.check_from_ms
        ]

    def checked(self, broker_name: str, now_ms: int, *, reachable: bool, interval_ms: int) -> None:
        """Record the outcome of a probe."""
        fault = self._faults.get(broker_name)
        if fault is not None:
            self._faults[broker_name] = _Fault(
                fault.available_from_ms, reachable, now_ms + interval_ms
            )

    def forget(self, broker_name: str) -> None:
        self._faults.pop(broker_name, None)

    def choose(
        self, route: PublishRoute, position: int, last_broker: str | None, now_ms: int
    ) -> MessageQueue:
        """The next queue of a broker that is available and not the last one; else of a reachable
        one that is not the last one; else the next in turn."""
        return (
            choose_queue(
                route,
                position,
                lambda name: name != last_broker and self.is_available(name, now_ms),
            )
            or choose_queue(
                route, position, lambda name: name != last_broker and self.is_reachable(name)
            )
            or next_queue(route, position, last_broker)
        )


def choose_queue(
    route: PublishRoute, position: int, accept: Callable[[str], bool]
) -> MessageQueue | None:
    """The first queue from ``position`` on whose broker is accepted."""
    accepted = {name for name in route.brokers if accept(name)}
    if not accepted:
        return None
    queues = route.queues
    count = len(queues)
    for step in range(count):
        queue = queues[(position + step) % count]
        if queue.broker_name in accepted:
            return queue
    return None


def next_queue(route: PublishRoute, position: int, last_broker: str | None) -> MessageQueue:
    """Round robin, without the queues of the last broker if there are others."""
    queues = route.queues
    if last_broker is not None and len(route.by_broker) > 1:
        other = choose_queue(route, position, lambda name: name != last_broker)
        if other is not None:
            return other
    return queues[position % len(queues)]
