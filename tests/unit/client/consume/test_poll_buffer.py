"""Delivery of pulled messages: in batches, one by one, and to threads."""

import asyncio
import threading

from goddard.client.consume.poll_buffer import PollBuffer, ThreadBatch
from goddard.client.consume.queue_buffer import PrefetchQueue
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.record import Host, Record
from tests.support.clock import ManualClock

QUEUE = MessageQueue("TopicA", "broker-a", 0)
OTHER = MessageQueue("TopicA", "broker-a", 1)
_HOST = Host(bytes(4), 1)


class Pulled:
    """A poll buffer, and one queue that is pulled into it."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.poll_buffer = PollBuffer(lambda messages: None, self.note, clock or ManualClock())
        self.taken = 0
        self.queue = started(QUEUE)

    def note(self) -> None:
        self.taken += 1

    def add(
        self, first: int, count: int, next_offset: int, queue: PrefetchQueue | None = None
    ) -> None:
        messages = [
            ReceivedMessage.from_record(
                Record("TopicA", 0, offset, 0, 0, _HOST, 0, _HOST, b"x"), "broker-a"
            )
            for offset in range(first, first + count)
        ]
        self.poll_buffer.add(self.queue if queue is None else queue, messages, next_offset)


def started(queue: MessageQueue, offset: int = 0) -> PrefetchQueue:
    buffer = PrefetchQueue(queue)
    buffer.start(offset)
    return buffer


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def taken(batch: ThreadBatch | None, count: int) -> list[int]:
    assert batch is not None
    found = []
    for _ in range(count):
        message = batch.next()
        assert message is not None
        found.append(message.queue_offset)
    return found


async def test_batches_are_delivered_in_the_order_of_their_pulls() -> None:
    pulled = Pulled()
    other = started(OTHER)
    pulled.add(0, 2, 2)
    pulled.add(7, 1, 8, other)
    pulled.add(2, 1, 3)
    assert pulled.taken == 0
    delivered = [offsets(await pulled.poll_buffer.next_batch(1_000)) for _ in range(3)]
    assert delivered == [[0, 1], [7], [2]]
    assert pulled.taken == 3
    assert (pulled.queue.delivered_offset, pulled.queue.consumed_offset) == (3, 2)
    assert await pulled.poll_buffer.next_batch(1) == []
    assert pulled.queue.consumed_offset == 3


async def test_batches_of_a_dropped_queue_are_skipped() -> None:
    pulled = Pulled()
    other = started(OTHER)
    pulled.add(0, 2, 2)
    pulled.add(7, 1, 8, other)
    pulled.queue.drop()
    assert offsets(await pulled.poll_buffer.next_batch(1_000)) == [7]
    assert pulled.taken == 1


async def test_closing_ends_the_wait_for_messages() -> None:
    pulled = Pulled()
    waiting = asyncio.create_task(pulled.poll_buffer.next_message())
    await asyncio.sleep(0)
    pulled.poll_buffer.close()
    async with asyncio.timeout(30):
        assert await waiting is None


async def test_a_thread_is_done_with_all_messages_that_it_took_but_the_last() -> None:
    pulled = Pulled()
    pulled.add(0, 5, 8)
    out, queue = pulled.poll_buffer, pulled.queue
    batch = await out.next_thread_batch()
    assert queue.delivered_offset == 0
    assert taken(batch, 1) == [0]
    out.catch_up()
    assert (queue.delivered_offset, queue.consumed_offset) == (1, 0)
    assert taken(batch, 3) == [1, 2, 3]
    out.catch_up()
    assert (queue.delivered_offset, queue.consumed_offset) == (4, 3)
    pulled.add(8, 0, 9)
    assert taken(batch, 1) == [4]
    out.catch_up()
    # Offsets without messages after them are delivered with the last message, and not before.
    assert (queue.delivered_offset, queue.consumed_offset) == (8, 4)
    assert batch is not None
    assert batch.next() is None
    out.close()
    assert await out.next_thread_batch() is None
    assert queue.consumed_offset == 8


async def test_what_a_thread_did_not_take_is_delivered_next() -> None:
    pulled = Pulled()
    pulled.add(0, 4, 4)
    pulled.add(4, 2, 6)
    out = pulled.poll_buffer
    batch = await out.next_thread_batch()
    assert taken(batch, 2) == [0, 1]
    assert [message.queue_offset for message in await out.next_batch(1_000)] == [2, 3]
    assert batch is not None
    assert batch.next() is None
    batch = await out.next_thread_batch()
    assert taken(batch, 1) == [4]
    message = await out.next_message()
    assert message is not None
    assert message.queue_offset == 5
    assert pulled.queue.consumed_offset == 5


async def test_a_queue_that_moves_closes_the_batch_of_a_thread() -> None:
    pulled = Pulled()
    pulled.add(0, 4, 4)
    out = pulled.poll_buffer
    batch = await out.next_thread_batch()
    assert taken(batch, 3) == [0, 1, 2]
    moved = pulled.queue
    out.forget(moved)
    assert batch is not None
    assert batch.next() is None
    assert (moved.delivered_offset, moved.consumed_offset) == (3, 2)
    moved.drop()
    pulled.queue = started(QUEUE)
    pulled.add(0, 1, 1)
    assert taken(await out.next_thread_batch(), 1) == [0]


async def test_a_slow_thread_returns_to_the_loop() -> None:
    clock = ManualClock()
    pulled = Pulled(clock)
    pulled.add(0, 3, 3)
    out = pulled.poll_buffer
    batch = await out.next_thread_batch()
    assert taken(batch, 1) == [0]
    clock.advance(1_000)
    assert batch is not None
    assert batch.next() is None
    assert taken(await out.next_thread_batch(), 2) == [1, 2]
    assert pulled.queue.consumed_offset == 1


async def test_threads_take_each_message_once() -> None:
    pulled = Pulled()
    pulled.add(0, 10_000, 10_000)
    batch = await pulled.poll_buffer.next_thread_batch()
    assert batch is not None
    found: list[int] = []

    def take() -> None:
        while (message := batch.next()) is not None:
            found.append(message.queue_offset)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
    assert sorted(found) == list(range(10_000))
