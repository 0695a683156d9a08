"""The pull loop: when it pulls, what it does with answers and failures, and when it ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from goddard.client.consume.offsets import BrokerOffsets
from goddard.client.consume.pull import PullAnswer, PullResult
from goddard.client.consume.pull_loop import PullLoop, is_flow_control
from goddard.client.consume.queue_buffer import PrefetchQueue
from goddard.client.consume.subscriptions import subscription
from goddard.client.errors import BrokerError
from goddard.client.session import Session
from goddard.client.values import ConsumeFrom, MessageQueue
from goddard.errors import ConnectionLostError, GoddardError
from goddard.protocol.bodies_client import SubscriptionData
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from tests.support.clock import ManualClock
from tests.support.polling import until

QUEUE = MessageQueue("T", "a", 0)
WAIT_SECONDS = 30


class World:
    """The session and the handler of a loop: they note what it does, and answer as told."""

    def __init__(self, interval_ms: int = 0) -> None:
        self.clock = ManualClock()
        self.is_member = True
        self.pulled: list[int] = []
        self.answers: list[RemotingCommand | GoddardError] = []
        self.answered = asyncio.Event()
        # Requests that wait for an answer.
        self.held_count = 0
        self.taken: list[int] = []
        self.failures: list[str] = []
        self.lost_count = 0
        self.illegal: list[int] = []
        self.is_open = True
        self.is_ours = True
        self.wanted: SubscriptionData | None = subscription("T", "*", 1)
        self.buffer = PrefetchQueue(QUEUE)
        self.buffer.start(0)
        self.loop = PullLoop(
            cast("Session", self),
            "G",
            self,
            BrokerOffsets(cast("Any", self), "G"),
            how={"max_messages": 1},
            consume_from=ConsumeFrom.FIRST_OFFSET,
            timestamp_ms=0,
            error_delay_ms=1,
            interval_ms=interval_ms,
        )

    # The session

    def find_broker(self, *_: object, **__: object) -> None:
        """No connection: nothing is pulled ahead."""

    def has_consumer(self, group: str) -> bool:
        return self.is_member

    async def locate(self, *_: object, **__: object) -> tuple[str, bool]:
        return "a:1", False

    async def request(self, _: str, command: RemotingCommand, __: int) -> RemotingCommand:
        if command.code != RequestCode.PULL_MESSAGE:
            return command.reply(ext_fields={"offset": "7"})
        self.pulled.append(int(command.fields["queueOffset"]))
        self.held_count += 1
        try:
            while not self.answers:
                # As a broker that holds a pull.
                await self.answered.wait()
                self.answered.clear()
        finally:
            self.held_count -= 1
        answer = self.answers.pop(0)
        if isinstance(answer, GoddardError):
            raise answer
        return answer

    call = request

    def answer(self, *answers: RemotingCommand | GoddardError) -> None:
        self.answers += answers
        self.answered.set()

    # The handler

    def may_pull(self, buffer: PrefetchQueue) -> bool:
        return self.is_open

    async def lock(self, buffer: PrefetchQueue) -> bool:
        return self.is_ours

    def may_prefetch(self, buffer: PrefetchQueue, answer: PullAnswer, offset: int) -> bool:
        return True

    def subscription_of(self, topic: str) -> SubscriptionData | None:
        return self.wanted

    def commit_offset(self, queue: MessageQueue) -> int | None:
        return None

    def take(self, buffer: PrefetchQueue, result: PullResult, spent_ms: int) -> None:
        self.taken.append(result.next_offset)

    def offset_is_illegal(self, buffer: PrefetchQueue, result: PullResult) -> bool:
        self.illegal.append(result.next_offset)
        return result.next_offset < 100

    def failed(self, buffer: PrefetchQueue, error: GoddardError) -> None:
        self.failures.append(type(error).__name__)

    def lost(self, buffer: PrefetchQueue) -> None:
        self.lost_count += 1

    async def ended(self) -> None:
        await until(lambda: not self.loop.is_pulling(self.buffer), "the loop goes on", WAIT_SECONDS)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    async with asyncio.timeout(WAIT_SECONDS):
        await made.loop.close()


def found(next_offset: int, code: int = ResponseCode.PULL_NOT_FOUND) -> RemotingCommand:
    fields = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": "9"}
    return RemotingCommand(code, fields | {"suggestWhichBrokerId": "0"})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BrokerError(ResponseCode.FLOW_CONTROL, "", "a:1"), True),
        (BrokerError(ResponseCode.SYSTEM_BUSY, "", "a:1"), False),
        (ConnectionLostError("gone", "a:1"), False),
    ],
)
def test_which_refusals_are_flow_control(error: GoddardError, expected: bool) -> None:
    assert is_flow_control(error) is expected


async def test_each_pull_begins_where_the_last_one_ended(world: World) -> None:
    world.answer(found(3), found(5))
    world.loop.start(world.buffer)
    await until(lambda: len(world.pulled) == 3, "it does not pull")
    assert world.pulled == [0, 3, 5]
    assert (world.taken, world.buffer.next_offset) == ([3, 5], 5)


async def test_the_start_offset_is_asked_for_first(world: World) -> None:
    buffer = PrefetchQueue(QUEUE)
    world.loop.start(buffer)
    await world.loop.wait_for_start_offsets(WAIT_SECONDS * 1000)
    assert (buffer.next_offset, buffer.consumed_offset) == (7, 7)
    await until(lambda: world.pulled == [7], "it does not pull")


async def test_it_waits_until_it_may_pull(world: World) -> None:
    world.is_open = False
    world.loop.start(world.buffer)
    await asyncio.sleep(0)
    world.loop.wake(world.buffer)
    world.is_open = True
    assert world.pulled == []
    world.loop.wake_all()
    await until(lambda: world.pulled == [0], "it does not pull")


async def test_it_ends_when_another_member_has_the_lock(world: World) -> None:
    world.is_ours = False
    world.loop.start(world.buffer)
    await world.ended()
    assert (world.pulled, world.lost_count) == ([], 1)


async def test_it_ends_without_a_subscription(world: World) -> None:
    world.wanted = None
    world.loop.start(world.buffer)
    await world.ended()
    assert world.pulled == []


async def test_a_pull_of_a_consumer_that_left_the_session_is_dropped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.loop.start(world.buffer)
    await until(lambda: world.pulled == [0], "it does not pull")
    world.is_member = False
    world.answer(found(3))
    await world.ended()
    assert world.pulled == [0]
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("No matched consumer for the PullRequest [consumerGroup=G, messageQ")
    assert line.endswith("nextOffset=3], drop it")


async def test_a_failed_pull_is_tried_again_and_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "goddard.client")
    busy = BrokerError(ResponseCode.FLOW_CONTROL, "", "a:1")
    lost = ConnectionLostError("gone", "a:1")
    world.answer(busy, lost, lost, lost, found(3), lost)
    world.loop.start(world.buffer)
    await until(lambda: len(world.pulled) == 7, "it does not pull again")
    assert world.pulled == [0, 0, 0, 0, 0, 3, 3]
    assert world.failures == ["BrokerError"] + ["ConnectionLostError"] * 4
    assert [(each.levelno, "again" in each.getMessage()) for each in caplog.records] == [
        (logging.WARNING, True),
        (logging.INFO, True),
        (logging.WARNING, True),
    ]


@pytest.mark.parametrize(("next_offset", "goes_on"), [(50, True), (200, False)])
async def test_the_handler_decides_about_an_illegal_offset(
    world: World, next_offset: int, goes_on: bool
) -> None:
    world.answer(found(next_offset, ResponseCode.PULL_OFFSET_MOVED))
    world.loop.start(world.buffer)
    if goes_on:
        await until(lambda: world.pulled == [0, 50], "it does not pull")
    else:
        await world.ended()
    assert world.illegal == [next_offset]


async def test_a_new_subscription_ends_the_outstanding_pull(world: World) -> None:
    world.loop.start(world.buffer)
    await until(lambda: world.pulled == [0], "it does not pull")
    world.loop.restart(["other"])
    world.loop.restart(["T"])
    await until(lambda: world.pulled == [0, 0], "it does not pull again", WAIT_SECONDS)
    await until(lambda: world.held_count == 1, "the first pull goes on", WAIT_SECONDS)
    assert world.loop.is_pulling(world.buffer)
    world.answer(found(3))
    await until(lambda: world.taken == [3], "the answer is lost")


async def test_a_stopped_queue_is_not_pulled_from(world: World) -> None:
    world.loop.start(world.buffer)
    await until(lambda: world.pulled == [0], "it does not pull")
    world.buffer.drop()
    await world.loop.stop(world.buffer)
    assert not world.loop.is_pulling(world.buffer)
    world.answer(found(3))
    assert world.taken == []


@pytest.mark.parametrize(
    ("interval_ms", "expected"), [(0, [0.02, 0.02]), (5, [0.02, 0.02, 0.005]), (1000, [1, 1, 1])]
)
async def test_an_answer_without_progress_is_followed_by_a_pause(
    interval_ms: int, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(interval_ms)
    pauses: list[float] = []
    sleep: Callable[[float], Any] = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    world.answer(found(0), found(0), found(3))
    world.loop.start(world.buffer)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(world.pulled) < 4:
            await sleep(0)
        await world.loop.close()
    assert world.taken == [0, 0, 3]
    assert [seconds for seconds in pauses if seconds] == expected
