"""Handing messages out: to tasks one by one or in batches, to threads in portions."""

import asyncio
import threading

from tests.support.clock import ManualClock

from goddard.client.consume.poll_buffer import Handout, Portion
from goddard.client.consume.prefetch_queue import AssignedQueue, Batch, Limits, Prefetch
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.record import Host, Record

QUEUE = MessageQueue("TopicA", "broker-a", 0)
_HOST = Host(bytes(4), 1)


class Pulled:
    """Batches of one queue that were pulled before."""

    def __init__(self) -> None:
        self.prefetch = Prefetch(Limits())
        self.assigned: AssignedQueue = self.prefetch.assign(QUEUE)
        self.assigned.start(0)

    def add(self, first: int, count: int, next_offset: int) -> None:
        messages = [
            ReceivedMessage.from_record(
                Record("TopicA", 0, offset, 0, 0, _HOST, 0, _HOST, b"x"), "broker-a"
            )
            for offset in range(first, first + count)
        ]
        self.prefetch.add(self.assigned, messages, next_offset)

    def take(self) -> Batch | None:
        return self.prefetch.take()

    async def wait(self) -> bool:
        return False


def handout(pulled: Pulled, clock: ManualClock | None = None) -> Handout:
    return Handout(pulled, lambda messages: None, clock or ManualClock())


def taken(portion: Portion | None, count: int) -> list[int]:
    assert portion is not None
    found = []
    for _ in range(count):
        message = portion.next()
        assert message is not None
        found.append(message.queue_offset)
    return found


async def test_a_portion_is_given_as_it_is_taken_and_done_but_for_the_last() -> None:
    pulled = Pulled()
    pulled.add(0, 5, 8)
    out = handout(pulled)
    portion = await out.next_portion()
    assert pulled.assigned.given_offset == 0
    assert taken(portion, 1) == [0]
    out.catch_up()
    assert (pulled.assigned.given_offset, pulled.assigned.done_offset) == (1, 0)
    assert taken(portion, 3) == [1, 2, 3]
    out.catch_up()
    assert (pulled.assigned.given_offset, pulled.assigned.done_offset) == (4, 3)
    pulled.assigned.skip_to(9)
    assert taken(portion, 1) == [4]
    out.catch_up()
    # What was filtered out behind them goes with the last, and no earlier.
    assert (pulled.assigned.given_offset, pulled.assigned.done_offset) == (8, 4)
    assert portion is not None
    assert portion.next() is None
    assert await out.next_portion() is None
    assert pulled.assigned.done_offset == 8


async def test_what_a_thread_left_of_a_portion_is_handed_out_otherwise() -> None:
    pulled = Pulled()
    pulled.add(0, 4, 4)
    pulled.add(4, 2, 6)
    out = handout(pulled)
    portion = await out.next_portion()
    assert taken(portion, 2) == [0, 1]
    assert [message.queue_offset for message in await out.next_batch(1_000)] == [2, 3]
    assert portion is not None
    assert portion.next() is None
    portion = await out.next_portion()
    assert taken(portion, 1) == [4]
    message = await out.next_message()
    assert message is not None
    assert message.queue_offset == 5
    assert pulled.assigned.done_offset == 5


async def test_a_queue_that_moves_ends_its_portion() -> None:
    pulled = Pulled()
    pulled.add(0, 4, 4)
    out = handout(pulled)
    portion = await out.next_portion()
    assert taken(portion, 3) == [0, 1, 2]
    out.left(pulled.assigned)
    assert portion is not None
    assert portion.next() is None
    assert (pulled.assigned.given_offset, pulled.assigned.done_offset) == (3, 2)
    pulled.assigned.clear()
    pulled.assigned.start(0)
    pulled.add(0, 1, 1)
    assert taken(await out.next_portion(), 1) == [0]


async def test_a_slow_thread_asks_the_loop_now_and_then() -> None:
    pulled, clock = Pulled(), ManualClock()
    pulled.add(0, 3, 3)
    out = handout(pulled, clock)
    portion = await out.next_portion()
    assert taken(portion, 1) == [0]
    clock.advance(1_000)
    assert portion is not None
    assert portion.next() is None
    assert taken(await out.next_portion(), 2) == [1, 2]
    assert pulled.assigned.done_offset == 1


async def test_threads_take_each_message_once() -> None:
    pulled = Pulled()
    pulled.add(0, 10_000, 10_000)
    portion = await handout(pulled).next_portion()
    assert portion is not None
    found: list[int] = []

    def take() -> None:
        while (message := portion.next()) is not None:
            found.append(message.queue_offset)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
    assert sorted(found) == list(range(10_000))
