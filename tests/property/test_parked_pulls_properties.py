"""Held pulls under any sequence of events: each runs once and in time, and is then forgotten."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from goddard.broker.consuming.filters import TagCodes
from goddard.broker.consuming.longpoll import MAX_PARKED_MS, ParkedPull, ParkedPulls
from goddard.broker.settings import BrokerConfig, Settings
from goddard.store.log.records import LogEntry
from goddard.transport.connection import Connection
from goddard.transport.handlers import Handlers
from goddard.transport.options import ConnectionOptions
from tests.support.clock import ManualClock

QUEUES = 3
CONNECTIONS = 3
TICK_MS = 50

queues = st.integers(0, QUEUES - 1)
codes = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("park"),
            queues,
            st.integers(0, CONNECTIONS - 1),
            st.none() | st.sets(codes, min_size=1),
            st.integers(-10, 2 * MAX_PARKED_MS),
        ),
        st.tuples(st.just("arrive"), st.lists(st.tuples(queues, codes), min_size=1, max_size=4)),
        st.tuples(st.just("pass"), st.integers(0, 20_000)),
        st.tuples(st.just("close"), st.integers(0, CONNECTIONS - 1)),
    ),
    max_size=40,
)


@dataclass(eq=False)
class ModelPull:
    """What the model knows of a pull."""

    queue_id: int
    connection: int
    codes: set[int] | None
    offset: int
    deadline_ms: int
    runs: list[int] = field(default_factory=list)
    dropped: bool = False

    @property
    def is_waiting(self) -> bool:
        return not self.runs and not self.dropped


class Model:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ends = [0] * QUEUES
        self.parked: list[ModelPull] = []
        self.parked_pulls = ParkedPulls(
            settings=Settings(BrokerConfig()),
            max_offset=lambda topic, queue_id: self.ends[queue_id],
            clock=self.clock,
        )
        self.connections = [Connection(ConnectionOptions(), Handlers()) for _ in range(CONNECTIONS)]

    def park(
        self, queue_id: int, connection: int, wanted: set[int] | None, timeout_ms: int
    ) -> None:
        held_ms = max(0, min(timeout_ms, MAX_PARKED_MS))
        deadline_ms = self.clock.monotonic_ms() + held_ms
        expected = ModelPull(queue_id, connection, wanted, self.ends[queue_id], deadline_ms)
        pull = ParkedPull(
            ("T", queue_id),
            self.ends[queue_id],
            self.connections[connection],
            None if wanted is None else TagCodes(wanted),
            lambda: expected.runs.append(self.clock.monotonic_ms()),
        )
        assert self.parked_pulls.park(pull, timeout_ms)
        self.parked.append(expected)

    def arrive(self, messages: list[tuple[int, int]]) -> None:
        entries = []
        for queue_id, code in messages:
            entries.append(LogEntry("T", queue_id, self.ends[queue_id], 0, 100, code, 0, 0, b""))
            self.ends[queue_id] += 1
        waiting = [parked for parked in self.parked if parked.is_waiting]
        self.parked_pulls.on_arrival(entries)
        for parked in waiting:
            is_wanted = any(
                queue_id == parked.queue_id and (parked.codes is None or code in parked.codes)
                for queue_id, code in messages
            )
            assert bool(parked.runs) is is_wanted

    def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.parked_pulls.expire()
        now_ms = self.clock.monotonic_ms()
        for parked in self.parked:
            if parked.is_waiting:
                assert now_ms < parked.deadline_ms + TICK_MS
            elif parked.runs and parked.runs[0] < parked.deadline_ms:
                # Before its time, only a message can have woken it.
                assert self.ends[parked.queue_id] > parked.offset

    def close(self, connection: int) -> None:
        self.parked_pulls.connection_closed(self.connections[connection])
        for parked in self.parked:
            if parked.connection == connection and parked.is_waiting:
                parked.dropped = True

    def check(self) -> None:
        assert len(self.parked_pulls) == sum(parked.is_waiting for parked in self.parked)
        assert all(len(parked.runs) <= 1 for parked in self.parked)
        assert not any(parked.runs and parked.dropped for parked in self.parked)


@given(steps)
def test_each_pull_runs_once_and_in_time(taken: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        model = Model()
        actions: dict[str, Callable[..., None]] = {
            "park": model.park,
            "arrive": model.arrive,
            "pass": model.pass_time,
            "close": model.close,
        }
        for name, *arguments in taken:
            actions[name](*arguments)
            model.check()
        model.parked_pulls.stop()
        assert model.parked_pulls.is_idle
        assert not any(parked.is_waiting for parked in model.parked)

    asyncio.run(run())
