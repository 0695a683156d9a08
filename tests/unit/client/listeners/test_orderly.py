"""Orderly consuming and the broker's lock: no call without it, whenever it is lost."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.options import PushOptions
from goddard.client.consume.queue_buffer import LOCK_VALID_MS, ProcessQueue
from goddard.client.consume.status import ConsumeRates
from goddard.client.listeners import orderly
from goddard.client.listeners.listener import ConsumeResult, OrderlyContext
from goddard.client.listeners.locks import QueueLocks
from goddard.client.listeners.orderly import ListenerCall, OrderlyConsumption, last_committed
from goddard.client.listeners.redelivery import Redelivery
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.environment import Environment
from tests.support.clock import ManualClock
from tests.support.polling import until
from tests.support.received import received

QUEUE = MessageQueue("T", "a", 0)
COUNT = 10
WAIT_SECONDS = 30


class Locks:
    """Gives locks when told to."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.grants = False
        self.asked = asyncio.Event()

    async def lock(self, wanted: Iterable[ProcessQueue]) -> set[ProcessQueue]:
        refused = set()
        for held in wanted:
            held.locked_at_ms = self._clock.monotonic_ms() if self.grants else None
            if not self.grants:
                refused.add(held)
        self.asked.set()
        return refused


class World:
    """A queue of ten messages, and a listener that may lose its lock over one of them."""

    def __init__(self, kind: str) -> None:
        self.clock = ManualClock()
        self.locks = Locks(self.clock)
        self.held = ProcessQueue(QUEUE, 0)
        self.held.locked_at_ms = 0
        self.seen: list[int] = []
        self.meanwhile: Callable[[int], object] = int
        self.offsets = BrokerOffsets(cast("Any", None), "G")
        self.consumption = OrderlyConsumption(
            self.listen if kind == "thread" else self.listen_async,
            "G",
            PushOptions(
                orderly=True, consume_threads=2, max_reconsume_times=-1, suspend_queue_ms=10
            ),
            offsets=self.offsets,
            redelivery=cast("Redelivery", None),
            locks=cast("QueueLocks", self.locks),
            owned=lambda: [self.held],
            rates=ConsumeRates(),
            environment=Environment(clock=self.clock),
            released=lambda _: None,
        )

    def listen(self, messages: list[ReceivedMessage], context: object) -> None:
        for each in messages:
            self.seen.append(each.queue_offset)
            self.meanwhile(each.queue_offset)

    async def listen_async(self, messages: list[ReceivedMessage], context: object) -> None:
        self.listen(messages, context)

    def accept(self) -> None:
        messages = [received(QUEUE, number) for number in range(COUNT)]
        self.held.add(messages)
        self.consumption.accept(self.held, messages)

    async def until_seen(self) -> None:
        await until(lambda: self.offsets.cached(QUEUE) == COUNT, "some are not consumed")


@pytest.fixture(params=["thread", "coroutine"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(orderly, "_LOCK_RETRY_SECONDS", 0.01)
    return str(request.param)


@pytest.mark.parametrize("how", ["taken away", "too old"])
async def test_a_lock_lost_halfway_ends_the_turn(kind: str, how: str) -> None:
    world = World(kind)

    def lose(offset: int) -> None:
        if offset == 2:
            if how == "too old":
                world.clock.advance(LOCK_VALID_MS + 1)
            else:
                world.held.locked_at_ms = None

    world.meanwhile = lose
    world.accept()
    async with asyncio.timeout(WAIT_SECONDS):
        await world.locks.asked.wait()
    # It has been asked for again in vain: what was consumed counts, and no more is.
    assert world.seen == [0, 1, 2]
    assert world.offsets.cached(QUEUE) == 3
    world.locks.grants = True
    await world.until_seen()
    assert world.seen == list(range(COUNT))
    await world.consumption.close(WAIT_SECONDS * 1000)


async def test_locks_are_renewed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orderly, "FIRST_RENEW_SECONDS", 0)
    world = World(kind)
    world.locks.grants = True
    world.clock.advance(LOCK_VALID_MS + 1)
    world.consumption.start()
    async with asyncio.timeout(WAIT_SECONDS):
        await world.locks.asked.wait()
    assert world.held.is_locked(world.clock.monotonic_ms())
    await world.consumption.close(WAIT_SECONDS * 1000)


async def test_no_call_is_made_before_there_is_a_lock(kind: str) -> None:
    world = World(kind)
    world.held.locked_at_ms = None
    world.accept()
    async with asyncio.timeout(WAIT_SECONDS):
        await world.locks.asked.wait()
    assert world.seen == []
    world.locks.grants = True
    await world.until_seen()
    assert world.seen == list(range(COUNT))
    await world.consumption.close(WAIT_SECONDS * 1000)


async def test_a_cancellation_that_a_listener_raises_is_a_failure_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("coroutine")

    def cancel(offset: int) -> None:
        if world.seen == [0]:
            raise asyncio.CancelledError

    world.meanwhile = cancel
    world.accept()
    await world.until_seen()
    assert world.seen == [0, *range(COUNT)]
    assert "the listener of the group G failed" in caplog.text
    await world.consumption.close(WAIT_SECONDS * 1000)


async def test_a_queue_released_halfway_ends_the_turn(kind: str) -> None:
    world = World(kind)

    def drop(offset: int) -> None:
        if offset == 4:
            world.held.drop()

    world.meanwhile = drop
    world.accept()
    await until(lambda: world.held.is_dropped, "it is not released")
    assert await world.consumption.settle(world.held, WAIT_SECONDS * 1000)
    assert world.seen == [0, 1, 2, 3, 4]
    assert world.offsets.cached(QUEUE) == 5
    await world.consumption.close(WAIT_SECONDS * 1000)


@pytest.mark.parametrize(
    ("calls", "committed"),
    [
        ([], None),
        ([("SUCCESS", True)], 0),
        ([("SUCCESS", True), ("SUCCESS", True)], 1),
        ([("SUCCESS", True), ("RECONSUME_LATER", True)], 0),
        ([("ROLLBACK", True)], 0),
        # Without auto commit, only COMMIT commits: all that was consumed before it.
        ([("SUCCESS", False), ("SUCCESS", False)], None),
        ([("SUCCESS", False), ("COMMIT", False), ("SUCCESS", False)], 1),
        ([("COMMIT", False), ("ROLLBACK", False)], 0),
    ],
)
def test_how_far_a_turn_commits(calls: list[tuple[str, bool]], committed: int | None) -> None:
    ended = [
        ListenerCall(
            [received(QUEUE, number)],
            ConsumeResult[result],
            OrderlyContext(QUEUE, auto_commit=auto_commit),
        )
        for number, (result, auto_commit) in enumerate(calls)
    ]
    last = last_committed(ended)
    assert (None if last is None else last.queue_offset) == committed
