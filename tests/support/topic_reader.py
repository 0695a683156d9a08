"""Read all messages of a topic, without a consumer group.

    async with TopicReader(namesrv, topic) as reader:
        messages = await reader.until(10)       # all messages, when there are at least ten

Messages of one queue are in order; every call returns all messages again.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Self

from goddard.client.consume.pull import Puller
from goddard.client.message import ReceivedMessage
from goddard.client.options import session_options
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.environment import Environment
from goddard.errors import GoddardError
from goddard.protocol.bodies_client import SubscriptionData

_POLL_SECONDS = 0.05
_NAME = "topic-reader"


class TopicReader:
    """All messages of a topic so far. Create it inside a running loop."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._topic = topic
        options = session_options(namesrv, {"instance_name": f"{_NAME}-{topic}"})
        self._session = Session(options, environment=Environment())
        self._puller = Puller(self._session, _NAME)
        self._subscription = SubscriptionData(topic=topic, sub_string="*")
        self._next_offsets: dict[MessageQueue, int] = {}
        self._seen: list[ReceivedMessage] = []

    async def __aenter__(self) -> Self:
        await self._session.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.stop()

    async def until(self, count: int, timeout_seconds: float = 30.0) -> list[ReceivedMessage]:
        """All messages, when there are at least ``count``, or after the timeout."""
        return await self.until_true(lambda messages: len(messages) >= count, timeout_seconds)

    async def until_true(
        self, is_enough: Callable[[list[ReceivedMessage]], bool], timeout_seconds: float = 30.0
    ) -> list[ReceivedMessage]:
        deadline = time.monotonic() + timeout_seconds
        while True:
            await self._read()
            if is_enough(self._seen) or time.monotonic() >= deadline:
                return list(self._seen)
            await asyncio.sleep(_POLL_SECONDS)

    async def _read(self) -> None:
        try:
            queues = await self._session.subscribe_queues(self._topic, refresh=True)
            for queue in queues:
                await self._read_queue(queue)
        except GoddardError:
            # The broker may be restarting; the caller's deadline ends the wait.
            return

    async def _read_queue(self, queue: MessageQueue) -> None:
        while True:
            at = self._next_offsets.get(queue, 0)
            result = await self._puller.pull(
                queue,
                at,
                self._subscription,
                max_messages=32,
                suspend_ms=0,
                timeout_ms=5_000,
                carries_subscription=True,
            )
            self._next_offsets[queue] = result.next_offset
            self._seen += result.messages
            if not result.messages:
                return
