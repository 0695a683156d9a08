"""Taking and giving up queues: in which order, and when not."""

from collections.abc import Iterable
from typing import Any, cast

from tests.support.clock import ManualClock

from goddard.client.consume.allocation import Averagely
from goddard.client.consume.assignment import Assignment
from goddard.client.consume.locks import QueueLocks
from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.process_queue import ProcessQueue
from goddard.client.consume.pull_loop import Feeder
from goddard.client.message import ReceivedMessage
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.protocol.bodies import BrokerData, TopicRoute, encode_body
from goddard.protocol.bodies_client import ConsumerList
from goddard.protocol.frame import RemotingCommand

QUEUES = [MessageQueue("T", "a", number) for number in range(2)]
ROUTE = TopicRoute(broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "a:1"})])
LEASE_MS = 60_000


class World:
    """All that an Assignment works with, and what it does with it in turn."""

    client_id = "me"

    def __init__(self, *, orderly: bool) -> None:
        self.clock = ManualClock()
        self.options = type("Options", (), {"api_timeout_ms": 1_000})
        self.members = ["me"]
        self.done: list[str] = []
        self.is_settled = True
        self.fed: list[ProcessQueue] = []
        self.offsets = Offsets(self)
        world = cast("Any", self)
        self.assignment = Assignment(
            cast("Session", world),
            "G",
            Averagely(),
            is_broadcast=False,
            offsets=self.offsets,
            feeder=cast("Feeder", Feeding(self)),
            locks=cast("QueueLocks", Locks(self)) if orderly else None,
            consumption=self,
            changed=self.changed,
        )

    # The session

    def route(self, topic: str) -> TopicRoute:
        return ROUTE

    async def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return list(QUEUES)

    async def call(self, address: str, command: RemotingCommand, _: int) -> RemotingCommand:
        return command.reply(body=encode_body(ConsumerList(consumer_id_list=self.members)))

    # The consumption

    worker_count = 1

    def accept(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Nothing comes."""

    async def settle(self, held: ProcessQueue, timeout_ms: int) -> bool:
        assert held.is_dropped
        self.done.append(f"settle {held.queue.queue_id}")
        return self.is_settled

    async def changed(self, *_: object) -> None:
        """Told."""

    @property
    def owned(self) -> list[int]:
        return sorted(queue.queue_id for queue in self.assignment.owned)


class Feeding:
    def __init__(self, world: World) -> None:
        self._world = world

    def start(self, held: ProcessQueue, consumer: object, delay_ms: int) -> None:
        self._world.fed.append(held)

    async def stop(self, held: ProcessQueue) -> None:
        self._world.done.append(f"stop {held.queue.queue_id}")
        if held in self._world.fed:
            self._world.fed.remove(held)

    def is_feeding(self, held: ProcessQueue) -> bool:
        return held in self._world.fed


class Locks:
    def __init__(self, world: World) -> None:
        self._world = world

    async def lock(self, wanted: Iterable[ProcessQueue]) -> set[ProcessQueue]:
        for held in wanted:
            held.locked_at_ms = self._world.clock.monotonic_ms()
        return set()

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        self._world.done += [f"unlock {queue.queue_id}" for queue in queues]


class Offsets(BrokerOffsets):
    def __init__(self, world: World) -> None:
        super().__init__(cast("Any", world), "G")
        self._world = world

    async def persist(self, queue: MessageQueue) -> None:
        self._world.done.append(f"persist {queue.queue_id} at {self.cached(queue)}")


async def test_a_queue_is_let_go_of_when_its_calls_have_ended_and_its_offset_is_written() -> None:
    world = World(orderly=True)
    assert await world.assignment.rebalance(["T"])
    assert world.owned == [0, 1]
    world.offsets.update(QUEUES[1], 7)
    world.members = ["me", "other"]
    assert await world.assignment.rebalance(["T"])
    assert world.owned == [0]
    assert world.done == ["stop 1", "settle 1", "persist 1 at 7", "unlock 1"]
    assert world.offsets.cached(QUEUES[1]) is None


async def test_an_orderly_queue_is_kept_from_others_while_a_call_runs() -> None:
    world = World(orderly=True)
    await world.assignment.rebalance(["T"])
    world.members = ["me", "other"]
    world.is_settled = False
    assert not await world.assignment.rebalance(["T"])
    assert world.owned == [0, 1]
    assert world.done == ["stop 1", "settle 1"]
    # Its lock is not renewed; when it has run out, the queue is somebody else's in any case.
    assert [held.queue.queue_id for held in world.assignment.locked_queues()] == [0]
    world.clock.advance(LEASE_MS)
    world.done.clear()
    assert await world.assignment.rebalance(["T"])
    assert world.owned == [0]
    assert world.done[-2:] == ["persist 1 at None", "unlock 1"]


async def test_other_queues_are_not_kept_for_a_call_that_hangs() -> None:
    world = World(orderly=False)
    await world.assignment.rebalance(["T"])
    world.members = ["me", "other"]
    world.is_settled = False
    assert await world.assignment.rebalance(["T"])
    assert world.owned == [0]


async def test_a_broker_that_does_not_know_us_yet_takes_nothing_away() -> None:
    world = World(orderly=False)
    await world.assignment.rebalance(["T"])
    # As one that was started anew, before our next heartbeat.
    world.members = ["other"]
    assert not await world.assignment.rebalance(["T"])
    assert world.owned == [0, 1]
    assert world.done == []
