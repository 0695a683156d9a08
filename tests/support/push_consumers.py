"""Helpers for tests of push consumers: a recording listener, and functions that fill topics."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

from goddard.client.consume.push import PushConsumer
from goddard.client.message import ReceivedMessage
from goddard.client.values import ConsumeFrom
from tests.support.broker_client import BrokerClient
from tests.support.polling import until

TIMEOUT_SECONDS = 40
SHORT_INTERVALS: dict[str, Any] = {
    "rebalance_interval_ms": 300,
    "poll_name_server_interval_ms": 300,
    "heartbeat_interval_ms": 1_000,
    "persist_offsets_interval_ms": 100,
    "pull_error_delay_ms": 100,
    "await_termination_ms": 5_000,
    "consume_from": ConsumeFrom.FIRST_OFFSET,
}


def push(namesrv: str, group: str, listener: Callable[..., Any], **options: Any) -> PushConsumer:
    """A push consumer with short intervals."""
    return PushConsumer(group, name_servers=namesrv, listener=listener, **SHORT_INTERVALS | options)


class Inbox:
    """A listener that records its messages; ``later`` is the coroutine version."""

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
        """Wait for ``count`` messages and return all bodies."""
        await until(lambda: len(self.messages) >= count, lambda: f"{count}; got {self.bodies}")
        return self.bodies


async def fill(
    sender: BrokerClient, topic: str, bodies: Iterable[str], *, queues: int = 4, **properties: str
) -> None:
    """Send texts to the queues in turn."""
    for number, body in enumerate(bodies):
        await sender.send(topic, body.encode(), properties, queue_id=number % queues)


def texts(count: int, start: int = 0) -> list[str]:
    return [f"m{number}" for number in range(start, start + count)]


def listener_threads() -> list[str]:
    """The names of this process's listener threads."""
    return [each.name for each in threading.enumerate() if each.name.startswith("consume-")]
