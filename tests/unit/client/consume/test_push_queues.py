"""Queues of a push consumer: locks, and when the next pull may be sent ahead."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.options import PushOptions
from goddard.client.consume.pull import PullAnswer
from goddard.client.consume.push_queues import PushQueues
from goddard.client.consume.queue_buffer import LOCK_VALID_MS, ProcessQueue
from goddard.client.consume.status import ConsumeRates
from goddard.client.errors import BrokerError
from goddard.client.listeners.locks import QueueLocks
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.errors import ConnectionLostError, GoddardError
from goddard.protocol.codes import ResponseCode
from goddard.protocol.frame import RemotingCommand
from tests.support.clock import ManualClock

QUEUE = MessageQueue("T", "a", 0)
WAIT_SECONDS = 30


class World:
    """A session without brokers, and the queues of an orderly consumer."""

    client_id = "c"

    def __init__(self, *, needs_locks: bool = True) -> None:
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
            locks=QueueLocks(session, "G") if needs_locks else None,
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


@pytest.mark.parametrize(
    ("needs_locks", "lock_age_ms", "expected"),
    [
        (True, 0, True),
        (True, LOCK_VALID_MS, True),
        (True, LOCK_VALID_MS + 1, False),
        (True, None, False),
        (False, None, True),
    ],
)
def test_next_pull_is_sent_ahead_only_with_a_lock(
    needs_locks: bool, lock_age_ms: int | None, expected: bool
) -> None:
    world = World(needs_locks=needs_locks)
    if lock_age_ms is not None:
        world.buffer.locked_at_ms = world.clock.monotonic_ms() - lock_age_ms
    assert world.queues.may_prefetch(world.buffer, answer(1), 0) is expected


@pytest.mark.parametrize(
    ("error", "keeps_lock"),
    [
        (ConnectionLostError("the connection closed", "a:1"), False),
        (BrokerError(ResponseCode.SYSTEM_BUSY, "", "a:1"), True),
    ],
)
def test_connection_failure_drops_the_lock(error: GoddardError, keeps_lock: bool) -> None:
    """A broker that was restarted knows no locks."""
    world = World()
    world.buffer.locked_at_ms = world.clock.monotonic_ms()
    world.queues.failed(world.buffer, error)
    assert (world.buffer.locked_at_ms is not None) is keeps_lock


def answer(next_offset: int) -> PullAnswer:
    """A pull that ended at ``next_offset``."""
    fields = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "9"}
    fields["suggestWhichBrokerId"] = "0"
    return PullAnswer(RemotingCommand(ResponseCode.PULL_NOT_FOUND, fields), QUEUE)
