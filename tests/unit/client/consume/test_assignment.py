"""Taking and releasing queues: which ones, in which order, and when not."""

import random
from collections.abc import Iterable
from typing import Any, cast

import pytest

from goddard.client.consume.allocation import Averagely
from goddard.client.consume.assignment import compute_share, to_release
from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.options import PushOptions
from goddard.client.consume.pull_loop import PullLoop
from goddard.client.consume.push_queues import PushQueues, limits_of, may_unlock
from goddard.client.consume.queue_buffer import ProcessQueue, PullLimits
from goddard.client.consume.status import ConsumeRates
from goddard.client.errors import NoRouteError
from goddard.client.listeners.locks import QueueLocks
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerData, TopicRoute, encode_body
from goddard.protocol.bodies_client import ConsumerList
from goddard.protocol.frame import RemotingCommand
from tests.support.clock import ManualClock

QUEUES = [MessageQueue("T", "a", number) for number in range(2)]
ROUTE = TopicRoute(broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "a:1"})])
LEASE_MS = 60_000
MIB = 1024 * 1024


class Broken:
    name = "BROKEN"

    def allocate(self, *_: object) -> list[MessageQueue]:
        raise ZeroDivisionError


# --- Decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "share"),
    [
        (["me"], {0, 1}),
        (["me", "other"], {0}),
        (["a", "me"], {1}),
        (["a", "b", "me"], set()),
        # The broker was restarted and does not know us yet.
        (["other"], None),
        ([], None),
        # No broker answered.
        (None, None),
    ],
)
def test_the_share_of_a_member(members: list[str] | None, share: set[int] | None) -> None:
    found = compute_share(Averagely(), "G", "me", QUEUES, members)
    assert (None if found is None else {queue.queue_id for queue in found}) == share


def test_a_strategy_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert compute_share(Broken(), "G", "me", QUEUES, ["me"]) is None
    assert "the allocation strategy BROKEN failed" in caplog.text


@pytest.mark.parametrize(
    ("share", "dropped", "pulling", "released"),
    [
        ({0, 1}, set(), {0, 1}, []),
        ({0}, set(), {0, 1}, [1]),
        (set(), set(), {0, 1}, [0, 1]),
        # Dropped before and not released yet, though it is ours again.
        ({0, 1}, {1}, {0, 1}, [1]),
        # Its task has ended.
        ({0, 1}, set(), {0}, [1]),
    ],
)
def test_what_to_release(
    share: set[int], dropped: set[int], pulling: set[int], released: list[int]
) -> None:
    owned = {queue: ProcessQueue(queue, 0) for queue in QUEUES}
    for queue, buffer in owned.items():
        buffer.is_dropped = queue.queue_id in dropped
    found = to_release(
        owned,
        {QUEUES[number] for number in share},
        lambda buffer: buffer.queue.queue_id in pulling,
    )
    assert [buffer.queue.queue_id for buffer in found] == released


@pytest.mark.parametrize(
    ("is_settled", "locked_at_ms", "now_ms", "may"),
    [
        (True, 0, 0, True),
        (False, None, 0, True),
        (False, 0, LEASE_MS - 1, False),
        (False, 0, LEASE_MS, True),
    ],
)
def test_when_to_unlock(is_settled: bool, locked_at_ms: int | None, now_ms: int, may: bool) -> None:
    assert may_unlock(is_settled, locked_at_ms, now_ms) is may


@pytest.mark.parametrize(
    ("options", "queues", "limits"),
    [
        ({}, 4, PullLimits(1_000, 100 * MIB, 2_000)),
        ({"orderly": True}, 4, PullLimits(1_000, 100 * MIB, None)),
        ({"pull_threshold_for_topic": 10}, 4, PullLimits(2, 100 * MIB, 2_000)),
        ({"pull_threshold_for_topic": 10}, 0, PullLimits(10, 100 * MIB, 2_000)),
        ({"pull_threshold_for_topic": 3}, 4, PullLimits(1, 100 * MIB, 2_000)),
        ({"pull_threshold_mib_for_topic": 9}, 2, PullLimits(1_000, 4 * MIB, 2_000)),
    ],
)
def test_limits_of_a_topic_are_divided_among_its_queues(
    options: dict[str, Any], queues: int, limits: PullLimits
) -> None:
    assert limits_of(PushOptions(**options), queues) == limits


# --- Doing it -------------------------------------------------------------------------------------


class World:
    """All that PushQueues work with, and what they do with it in turn."""

    client_id = "me"

    def __init__(self, *, orderly: bool) -> None:
        self.clock = ManualClock()
        self.random = random.Random(1)
        self.options = type("Options", (), {"api_timeout_ms": 1_000})
        self.members = ["me"]
        self.has_route = True
        self.done: list[str] = []
        self.is_settled = True
        self.pulling: list[ProcessQueue] = []
        self.delays_ms: list[int] = []
        self.changes: list[list[int]] = []
        self.offsets = Offsets(self)
        world = cast("Any", self)
        self.queues = PushQueues(
            cast("Session", world),
            "G",
            PushOptions(orderly=orderly),
            offsets=self.offsets,
            rates=ConsumeRates(),
            locks=cast("QueueLocks", Locks(self)) if orderly else None,
            subscription_of=lambda topic: None,
            prepare=lambda queue, messages: None,
            changed=self.changed,
        )
        self.queues.pulls = cast("PullLoop[ProcessQueue]", Pulls(self))
        self.queues.consumption = cast("Any", self)

    # The session

    def route(self, topic: str) -> TopicRoute:
        return ROUTE

    async def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        if not self.has_route:
            raise NoRouteError(topic)
        return list(QUEUES)

    async def call(self, address: str, command: RemotingCommand, _: int) -> RemotingCommand:
        return command.reply(body=encode_body(ConsumerList(consumer_id_list=self.members)))

    # The consumption

    def accept(self, buffer: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Nothing comes."""

    async def settle(self, buffer: ProcessQueue, timeout_ms: int) -> bool:
        assert buffer.is_dropped
        self.done.append(f"settle {buffer.queue.queue_id}")
        return self.is_settled

    async def changed(
        self, topic: str, queues: list[MessageQueue], ours: list[MessageQueue]
    ) -> None:
        assert queues == QUEUES
        self.changes.append([queue.queue_id for queue in ours])

    async def rebalance(self) -> bool:
        return await self.queues.rebalance(["T"])

    @property
    def owned(self) -> list[int]:
        return sorted(queue.queue_id for queue in self.queues.owned)


class Pulls:
    def __init__(self, world: World) -> None:
        self._world = world

    def start(self, buffer: ProcessQueue, delay_ms: int) -> None:
        self._world.pulling.append(buffer)
        self._world.delays_ms.append(delay_ms)

    async def stop(self, buffer: ProcessQueue) -> None:
        self._world.done.append(f"stop {buffer.queue.queue_id}")
        if buffer in self._world.pulling:
            self._world.pulling.remove(buffer)

    def is_pulling(self, buffer: ProcessQueue) -> bool:
        return buffer in self._world.pulling


class Locks:
    def __init__(self, world: World) -> None:
        self._world = world

    async def lock(self, wanted: Iterable[ProcessQueue]) -> set[ProcessQueue]:
        for buffer in wanted:
            buffer.locked_at_ms = self._world.clock.monotonic_ms()
        return set()

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        self._world.done += [f"unlock {queue.queue_id}" for queue in queues]


class Offsets(BrokerOffsets):
    def __init__(self, world: World) -> None:
        super().__init__(cast("Any", world), "G")
        self._world = world

    async def persist(self, queue: MessageQueue) -> None:
        self._world.done.append(f"persist {queue.queue_id} at {self.cached(queue)}")


async def test_a_member_that_is_alone_starts_at_once_and_others_wait_for_the_former_owner() -> None:
    world = World(orderly=False)
    await world.rebalance()
    assert (world.delays_ms, world.changes) == ([0, 0], [[0, 1]])
    world.members = ["me", "other"]
    await world.rebalance()
    world.members = ["a", "me"]
    await world.rebalance()
    assert world.delays_ms[2:] == [500]
    assert world.changes == [[0, 1], [0], [1]]


async def test_without_a_route_queues_are_kept_and_nothing_is_left_to_do() -> None:
    world = World(orderly=False)
    await world.rebalance()
    world.has_route = False
    assert await world.rebalance()
    assert world.owned == [0, 1]
    assert world.done == []


async def test_queues_of_topics_that_are_unsubscribed_are_released() -> None:
    world = World(orderly=False)
    await world.rebalance()
    assert await world.queues.rebalance([])
    assert world.owned == []


async def test_a_queue_is_released_when_its_calls_have_ended_and_its_offset_is_written() -> None:
    world = World(orderly=True)
    assert await world.rebalance()
    assert world.owned == [0, 1]
    world.offsets.update(QUEUES[1], 7)
    world.members = ["me", "other"]
    assert await world.rebalance()
    assert world.owned == [0]
    assert world.done == ["stop 1", "settle 1", "persist 1 at 7", "unlock 1"]
    assert world.offsets.cached(QUEUES[1]) is None


async def test_an_orderly_queue_is_not_released_while_a_call_runs() -> None:
    world = World(orderly=True)
    await world.rebalance()
    world.members = ["me", "other"]
    world.is_settled = False
    assert not await world.rebalance()
    assert world.owned == [0, 1]
    assert world.done == ["stop 1", "settle 1"]
    # Its lock is not renewed; after the lease another member may have the queue in any case.
    assert [buffer.queue.queue_id for buffer in world.queues.locked_queues()] == [0]
    world.clock.advance(LEASE_MS)
    world.done.clear()
    assert await world.rebalance()
    assert world.owned == [0]
    assert world.done[-2:] == ["persist 1 at None", "unlock 1"]


async def test_a_concurrent_queue_is_released_while_a_call_hangs() -> None:
    world = World(orderly=False)
    await world.rebalance()
    world.members = ["me", "other"]
    world.is_settled = False
    assert await world.rebalance()
    assert world.owned == [0]


async def test_queues_are_kept_when_a_broker_does_not_know_us_yet() -> None:
    world = World(orderly=False)
    await world.rebalance()
    # It was restarted after our last heartbeat.
    world.members = ["other"]
    assert not await world.rebalance()
    assert world.owned == [0, 1]
    assert world.done == []
