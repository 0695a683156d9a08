"""Queues of a push consumer: locks, and when the next pull may be sent ahead."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from goddard.client.consume.locks import QueueLocks
from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.options import PushOptions
from goddard.client.consume.push_queues import PushQueues
from goddard.client.consume.queue_buffer import LOCK_VALID_MS, ProcessQueue
from goddard.client.consume.status import ConsumeRates
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from tests.support.clock import ManualClock

QUEUE = MessageQueue("T", "a", 0)
WAIT_SECONDS = 30


class World:
    """A session without brokers, and the queues of an orderly consumer."""

    client_id = "c"

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.attempts = 0
        self.on_attempt: Callable[[], None] = lambda: None
        session = cast("Session", self)
        self.buffer = ProcessQueue(QUEUE, self.clock.monotonic_ms())
        self.queues = PushQueues(
            session,
            "G",
            PushOptions(orderly=True, pull_error_delay_ms=700),
            offsets=BrokerOffsets(cast("Any", self), "G"),
            rates=ConsumeRates(),
            locks=QueueLocks(session, "G"),
            subscription_of=lambda _: None,
            prepare=lambda _, __: None,
            changed=cast("Any", None),
        )

    def find_broker(self, *_: object, **__: object) -> None:
        """No broker is in the route."""
        self.attempts += 1
        self.on_attempt()


async def test_expired_lock_is_requested_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.buffer.locked_at_ms = world.clock.monotonic_ms()
    world.clock.advance(LOCK_VALID_MS + 1)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def renew() -> None:
        if world.attempts == 3:
            world.buffer.locked_at_ms = world.clock.monotonic_ms()

    monkeypatch.setattr(asyncio, "sleep", pause)
    world.on_attempt = renew
    async with asyncio.timeout(WAIT_SECONDS):
        assert await world.queues.lock(world.buffer)
    assert pauses == [0.7, 0.7]
