"""Orderly consuming, with each kind of broker: each queue in its order, by one member at a time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from goddard.client.listeners.listener import ConsumeResult, OrderlyContext, Returned
from goddard.client.message import ReceivedMessage
from goddard.protocol.names import dlq_topic
from goddard.testing.site import Site
from goddard.transport.client import Client
from tests.support.broker_client import BrokerClient
from tests.support.polling import until
from tests.support.push_consumers import Inbox, fill, listener_threads, push, texts

QUEUES = 4


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[BrokerClient]:
    client = Client()
    yield BrokerClient(client, site.broker.address)
    await client.close()


@pytest.fixture(autouse=True)
def no_listener_thread_is_left() -> Iterator[None]:
    yield
    assert listener_threads() == []


def by_queue(messages: list[ReceivedMessage]) -> dict[int, list[int]]:
    """The offsets of messages in the order in which they came, by queue."""
    found: dict[int, list[int]] = {}
    for message in list(messages):
        found.setdefault(message.queue_id, []).append(message.queue_offset)
    return found


class Busy:
    """A listener that notices if two calls for one queue overlap."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.overlaps = 0
        self._busy: set[int] = set()
        self._lock = threading.Lock()

    def __call__(self, messages: list[ReceivedMessage], context: OrderlyContext) -> None:
        queue_id = context.queue.queue_id
        with self._lock:
            self.overlaps += queue_id in self._busy
            self._busy.add(queue_id)
        self.inbox(messages, context)
        with self._lock:
            self._busy.discard(queue_id)

    async def later(self, messages: list[ReceivedMessage], context: OrderlyContext) -> None:
        queue_id = context.queue.queue_id
        self.overlaps += queue_id in self._busy
        self._busy.add(queue_id)
        await asyncio.sleep(0.001)
        self.inbox(messages, context)
        self._busy.discard(queue_id)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
async def test_each_queue_in_its_order(site: Site, sender: BrokerClient, is_async: bool) -> None:
    topic = site.create_topic("Order", queues=QUEUES)
    await fill(sender, topic, texts(200), queues=QUEUES)
    busy = Busy()
    listener = busy.later if is_async else busy
    consumer = push(site.namesrv, site.new_group("order"), listener, orderly=True)
    consumer.subscribe(topic)
    async with consumer:
        await busy.inbox.until(200)
    assert by_queue(busy.inbox.messages) == {queue: list(range(50)) for queue in range(QUEUES)}
    assert busy.overlaps == 0


async def test_a_failure_suspends_only_its_queue(site: Site, sender: BrokerClient) -> None:
    topic = site.create_topic("OrderFail", queues=2)
    await fill(sender, topic, texts(20), queues=2)
    tries: list[tuple[int, int, int]] = []

    def listener(messages: list[ReceivedMessage], context: OrderlyContext) -> Returned:
        (message,) = messages
        tries.append((message.queue_id, message.queue_offset, message.reconsume_times))
        if message.queue_id == 0 and message.queue_offset == 3 and message.reconsume_times < 3:
            context.suspend_ms = 50
            if message.reconsume_times == 0:
                raise ValueError("not yet")
            return ConsumeResult.RECONSUME_LATER
        return None

    consumer = push(site.namesrv, site.new_group("orderfail"), listener, orderly=True)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(tries) >= 23, lambda: str(tries))
    first = [(offset, times) for queue, offset, times in tries if queue == 0]
    assert first == [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 3),
        *((offset, 0) for offset in range(4, 10)),
    ]
    assert [offset for queue, offset, _ in tries if queue == 1] == list(range(10))


async def test_a_message_that_fails_too_often_is_dead_lettered(
    site: Site, sender: BrokerClient
) -> None:
    topic, group = site.create_topic("OrderDead", queues=1), site.new_group("orderdead")
    await fill(sender, topic, texts(3), queues=1)
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage], context: OrderlyContext) -> Returned:
        inbox(messages, context)
        return messages[0].body != b"m1"

    consumer = push(
        site.namesrv, group, listener, orderly=True, max_reconsume_times=2, suspend_queue_ms=20
    )
    consumer.subscribe(topic)
    async with consumer:
        assert await inbox.until(5) == ["m0", "m1", "m1", "m1", "m2"]
        (dead,) = await sender.receive(dlq_topic(group), 1)
    assert dead.body == b"m1"


async def test_a_listener_commits_and_rolls_back(site: Site, sender: BrokerClient) -> None:
    topic, group = site.create_topic("OrderCommit", queues=1), site.new_group("ordercommit")
    await fill(sender, topic, texts(6), queues=1)
    results = {
        "m0": [ConsumeResult.SUCCESS],
        "m1": [ConsumeResult.COMMIT],
        "m2": [ConsumeResult.SUCCESS, ConsumeResult.SUCCESS],
        "m3": [ConsumeResult.ROLLBACK, ConsumeResult.COMMIT],
        "m4": [ConsumeResult.SUCCESS],
        "m5": [ConsumeResult.SUCCESS],
    }
    inbox = Inbox()

    def listener(messages: list[ReceivedMessage], context: OrderlyContext) -> Returned:
        context.auto_commit = False
        context.suspend_ms = 20
        inbox(messages, context)
        return results[messages[0].body.decode()].pop(0)

    consumer = push(site.namesrv, group, listener, orderly=True)
    consumer.subscribe(topic)
    async with consumer:
        assert await inbox.until(8) == ["m0", "m1", "m2", "m3", "m2", "m3", "m4", "m5"]
    # The last two were never committed.
    again = Inbox()
    successor = push(site.namesrv, group, again, orderly=True)
    successor.subscribe(topic)
    async with successor:
        assert await again.until(2) == ["m4", "m5"]


async def test_order_is_kept_when_a_queue_changes_members(site: Site, sender: BrokerClient) -> None:
    topic, group = site.create_topic("OrderShare", queues=QUEUES), site.new_group("ordershare")
    everything = Busy()
    consumers = [push(site.namesrv, group, everything, orderly=True) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe(topic)

    def own(number: int) -> set[int]:
        return {q.queue_id for q in consumers[number].assigned_queues() if q.topic == topic}

    async def keep_sending() -> None:
        for number in range(0, 300, 10):
            await fill(sender, topic, texts(10, number), queues=QUEUES)
            await asyncio.sleep(0.05)

    sending = asyncio.create_task(keep_sending())
    await consumers[0].start()
    await everything.inbox.until(20)
    await consumers[1].start()
    await until(lambda: len(own(1)) == 2 and len(own(0)) == 2, "shared")
    await until(lambda: len(everything.inbox.messages) > 200, "more")
    await consumers[0].stop()
    await sending
    await until(lambda: len(set(everything.inbox.bodies)) == 300, "all came")
    await consumers[1].stop()
    assert everything.overlaps == 0
    for offsets in by_queue(everything.inbox.messages).values():
        # Each for the first time in order; a queue that changes hands may repeat some.
        assert list(dict.fromkeys(offsets)) == list(range(len(set(offsets))))
