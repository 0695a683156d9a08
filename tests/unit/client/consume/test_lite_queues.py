"""Queues of a lite pull consumer: limits for all queues, releases, positions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from goddard.client.consume.lite_queues import LiteQueues
from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.options import LiteOptions
from goddard.client.consume.pull import PullAnswer
from goddard.client.consume.pull_loop import PullLoop
from goddard.client.consume.queue_buffer import PrefetchQueue
from goddard.client.consume.subscriptions import subscription
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from tests.support.clock import ManualClock
from tests.support.polling import until
from tests.support.received import received

FIRST = MessageQueue("first", "a", 0)
SECOND = MessageQueue("second", "a", 0)
WAIT_SECONDS = 30


class World:
    """A session whose broker holds all pulls, and the queues of a lite pull consumer."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pulled: list[str] = []
        self.writing = asyncio.Event()
        self.can_write = asyncio.Event()
        self.can_write.set()
        session = cast("Session", self)
        offsets = BrokerOffsets(cast("Any", self), "G")
        self.queues = LiteQueues(
            session,
            "G",
            # Every member reads all queues, so members are not asked for.
            LiteOptions(
                pull_threshold_for_all=5,
                pull_batch_size=1,
                max_span=100,
                message_model=MessageModel.BROADCASTING,
            ),
            offsets=offsets,
            subscription_of=lambda topic: subscription(topic, "*", 1),
            prepare=lambda _: None,
            changed=lambda _, __, ___: None,
        )
        self.queues.pulls = PullLoop(
            session,
            "G",
            self.queues,
            offsets,
            how={"max_messages": 1},
            consume_from=ConsumeFrom.FIRST_OFFSET,
            timestamp_ms=0,
            error_delay_ms=1,
        )

    def find_broker(self, *_: object, **__: object) -> None:
        """No connection: nothing is pulled ahead."""

    def has_consumer(self, group: str) -> bool:
        return True

    async def locate(self, *_: object, **__: object) -> tuple[str, bool]:
        return "a:1", False

    async def request(self, _: str, command: RemotingCommand, __: int) -> RemotingCommand:
        if command.code == RequestCode.PULL_MESSAGE:
            self.pulled.append(command.fields["topic"])
            await asyncio.Event().wait()
        return command.reply(ext_fields={"offset": "7"})

    call = request

    async def oneway(self, _: str, command: RemotingCommand) -> None:
        self.writing.set()
        await self.can_write.wait()

    async def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, "a", 0)]

    def own(self, queue: MessageQueue, count: int = 0) -> PrefetchQueue:
        """Own a queue that holds so many messages."""
        buffer = self.queues.owned[queue] = PrefetchQueue(queue)
        buffer.start(0)
        self.queues.poll_buffer.add(buffer, [received(FIRST, at) for at in range(count)], count)
        return buffer


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    async with asyncio.timeout(WAIT_SECONDS):
        await made.queues.close()


@pytest.mark.parametrize("how", ["release", "move"])
async def test_queues_are_pulled_after_another_one_dropped_its_messages(
    world: World, how: str
) -> None:
    world.own(FIRST, 10)
    world.queues.pulls.start(world.own(SECOND))
    await asyncio.sleep(0)
    if how == "release":
        world.queues.release_topic(FIRST.topic)
    else:
        world.queues.move(FIRST, 100)
    await until(lambda: SECOND.topic in world.pulled, "the second queue is not pulled")


@pytest.mark.parametrize(("next_offset", "expected"), [(100, True), (101, False)])
async def test_next_pull_is_sent_ahead_within_max_span(
    world: World, next_offset: int, expected: bool
) -> None:
    fields = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "999"}
    fields["suggestWhichBrokerId"] = "0"
    answer = PullAnswer(RemotingCommand(ResponseCode.PULL_NOT_FOUND, fields), FIRST)
    assert world.queues.may_prefetch(world.own(FIRST), answer, 0) is expected


async def test_a_queue_that_comes_back_starts_at_the_stored_offset(world: World) -> None:
    """Another member may have committed since this one released it."""
    world.can_write.clear()
    world.queues.release(world.own(FIRST))
    async with asyncio.timeout(WAIT_SECONDS):
        # The offset is still being written when the queue comes back.
        await world.writing.wait()
        await world.queues.rebalance([FIRST.topic])
        world.can_write.set()
        await world.queues.pulls.wait_for_start_offsets(WAIT_SECONDS * 1000)
    assert world.queues.owned[FIRST].next_offset == 7
