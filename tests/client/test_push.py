"""The push consumer at both makes of broker: what listeners get, and what becomes of it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from goddard.client.listening import ConsumeContext, ConsumeResult
from goddard.client.message import ReceivedMessage
from goddard.client.offsets import read_offsets
from goddard.client.push import PushConsumer
from goddard.client.subscriptions import Expression, Sql, Tags
from goddard.client.values import ConsumeFrom, MessageModel, MessageQueue, ServiceState
from goddard.protocol.names import dlq_topic
from goddard.testing.dialogue import Dialogue
from goddard.testing.site import Site
from goddard.transport.client import Client

TIMEOUT_SECONDS = 40
QUICK: dict[str, Any] = {
    "rebalance_interval_ms": 300,
    "poll_name_server_interval_ms": 300,
    "heartbeat_interval_ms": 1_000,
    "persist_offsets_interval_ms": 100,
    "pull_error_delay_ms": 100,
    "await_termination_ms": 5_000,
    "consume_from": ConsumeFrom.FIRST_OFFSET,
}


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[Dialogue]:
    client = Client()
    yield Dialogue(client, site.broker.address)
    await client.close()


@pytest.fixture(autouse=True)
def no_listener_thread_is_left() -> Iterable[None]:
    yield
    left = [each.name for each in threading.enumerate() if each.name.startswith("consume-")]
    assert left == []


def push(site: Site, group: str, listener: Callable[..., Any], **options: Any) -> PushConsumer:
    return PushConsumer(group, name_servers=site.namesrv, listener=listener, **QUICK | options)


class Inbox:
    """A listener that keeps what it gets. Plain; ``later`` is the same for coroutines."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self.batches: list[int] = []

    def __call__(self, messages: list[ReceivedMessage], context: object) -> None:
        self.batches.append(len(messages))
        self.messages += messages

    async def later(self, messages: list[ReceivedMessage], context: object) -> None:
        await asyncio.sleep(0)
        self(messages, context)

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in list(self.messages)]

    async def until(self, count: int) -> list[str]:
        await until(lambda: len(self.messages) >= count, f"{count} messages of {len(self.bodies)}")
        return self.bodies


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def fill(
    sender: Dialogue, topic: str, bodies: Iterable[str], *, queues: int = 4, **properties: str
) -> None:
    for number, body in enumerate(bodies):
        await sender.send(topic, body.encode(), properties, queue_id=number % queues)


def texts(count: int, start: int = 0) -> list[str]:
    return [f"m{number}" for number in range(start, start + count)]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
async def test_a_group_gets_every_message_once(
    site: Site, sender: Dialogue, is_async: bool
) -> None:
    topic, group = site.create_topic("Push"), site.new_group("push")
    await fill(sender, topic, texts(50))
    inbox = Inbox()
    consumer = push(site, group, inbox.later if is_async else inbox)
    consumer.subscribe(topic)
    assert consumer.state is ServiceState.CREATED
    async with consumer:
        assert consumer.state is ServiceState.RUNNING
        await inbox.until(50)
        await fill(sender, topic, texts(50, 50))
        assert sorted(await inbox.until(100)) == sorted(texts(100))
    assert consumer.state is ServiceState.STOPPED
    assert set(inbox.batches) == {1}
    assert {message.topic for message in inbox.messages} == {topic}
    # Offsets were written: another member of the group has nothing left to do.
    again = Inbox()
    successor = push(site, group, again)
    successor.subscribe(topic)
    async with successor:
        await fill(sender, topic, ["last"])
        assert await again.until(1) == ["last"]


async def test_batches(site: Site, sender: Dialogue) -> None:
    topic = site.create_topic("PushBatch", queues=1)
    await fill(sender, topic, texts(40), queues=1)
    inbox = Inbox()
    consumer = push(site, site.new_group("batch"), inbox, consume_batch_size=10, consume_threads=1)
    consumer.subscribe(topic)
    async with consumer:
        assert await inbox.until(40) == texts(40)
    assert max(inbox.batches) == 10
