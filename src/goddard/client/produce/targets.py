"""Where a message is sent: the route of its topic, one of its queues, and the queue's broker.

Belongs to the event loop of its session.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from goddard.client.errors import BrokerNotFoundError, ClientError, TooManyRequestsError
from goddard.client.message import Message
from goddard.client.produce.broker_health import BrokerHealth, next_queue
from goddard.client.produce.encoding import SendSettings
from goddard.client.produce.retry import PendingSend
from goddard.client.produce.selectors import select_queue
from goddard.client.routes import PublishRoute
from goddard.client.session import Session
from goddard.client.values import MessageQueue
from goddard.environment import Environment
from goddard.errors import RemotingError

_random: Final = Environment().random


def by_random(queues: Sequence[MessageQueue], message: Message, key: Any) -> MessageQueue:
    """A selector: any queue."""
    return _random.choice(queues)


class Targets:
    """Chooses the queues of one producer's messages.

    ``detects``: a detector probes brokers that cannot be reached.
    """

    def __init__(
        self,
        session: Session,
        settings: SendSettings,
        health: BrokerHealth | None,
        *,
        detects: bool,
    ) -> None:
        self._session = session
        self._settings = settings
        self._clock = session.clock
        self.health = health
        self._detects = detects
        # Round robin, by topic; starts at random, so that producers do not all start at one queue.
        self._positions: dict[str, int] = {}

    async def route(self, topic: str, timeout_ms: int | None = None) -> PublishRoute:
        """Where a topic can be written to; TooManyRequestsError if that takes too long."""
        known = self._session.known_publish_route(topic)
        if known is not None:
            return known
        settings = self._settings
        try:
            async with _within(timeout_ms):
                return await self._session.publish_route(
                    topic,
                    default_topic=settings.default_topic,
                    default_queues=settings.default_queues,
                )
        except TimeoutError as error:
            raise TooManyRequestsError(
                f"sendDefaultImpl call timeout, no route of {topic} within {timeout_ms} ms",
                advice="check that the name servers answer, or allow the send more time",
            ) from error

    def choose(self, route: PublishRoute, pending: PendingSend) -> MessageQueue:
        """The queue that a selector or key chooses, else the next in turn; after an attempt, one of
        another broker if there is one."""
        if pending.is_queue_chosen:
            return select_queue(route, pending.messages[0], pending.selector, pending.key)
        topic = route.topic
        position = self._positions.get(topic)
        if position is None:
            position = self._session.random.randrange(1 << 16)
        self._positions[topic] = position + 1
        last_broker = None if pending.queue is None else pending.queue.broker_name
        if self.health is not None:
            now_ms = self._clock.monotonic_ms()
            return self.health.choose(route, position, last_broker, now_ms)
        if last_broker is None:
            queues = route.queues
            return queues[position % len(queues)]
        return next_queue(route, position, last_broker)

    async def locate(self, queue: MessageQueue, timeout_ms: int | None) -> str:
        """The address to send to for a queue; without one, the route is refreshed in time."""
        address = self._session.broker_address(queue.broker_name)
        if address is not None:
            return address
        try:
            async with _within(timeout_ms):
                address, _ = await self._session.locate(queue, only_this=True)
        except BrokerNotFoundError:
            raise
        except (ClientError, RemotingError, TimeoutError) as error:
            raise BrokerNotFoundError(queue.broker_name) from error
        return self._session.vip(address)

    def record_success(self, queue: MessageQueue, started_ms: int) -> None:
        if self.health is not None:
            now_ms = self._clock.monotonic_ms()
            self.health.record(queue.broker_name, now_ms - started_ms, now_ms)

    def record_failure(self, queue: MessageQueue, error: Exception, started_ms: int) -> None:
        # An error of the client itself says nothing about the broker.
        if self.health is None or isinstance(error, BrokerNotFoundError):
            return
        now_ms = self._clock.monotonic_ms()
        # As in RocketMQ: without a detector nothing would find out that a link works again.
        reachable = isinstance(error, RemotingError) and not self._detects
        self.health.record(
            queue.broker_name, now_ms - started_ms, now_ms, isolate=True, reachable=reachable
        )


def _within(timeout_ms: int | None) -> asyncio.Timeout:
    return asyncio.timeout(None if timeout_ms is None else max(1, timeout_ms) / 1000)
