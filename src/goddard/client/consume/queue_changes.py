"""Tells listeners when the queues of a topic come or go. Belongs to the event loop."""

import logging
from collections.abc import Callable
from typing import Final

from goddard.client.errors import NoRouteError
from goddard.client.session import Session
from goddard.client.values import MessageQueue

_logger: Final = logging.getLogger("goddard.client")

QueuesListener = Callable[[str, set[MessageQueue]], None]
"""Called on the event loop with a topic and all its queues."""

AssignmentListener = Callable[[str, set[MessageQueue], set[MessageQueue]], None]
"""Called on the event loop with a topic, its queues, and those of them that are this consumer's."""


class QueueWatch:
    """Topics and queues are as brokers know them: with a namespace if there is one."""

    def __init__(self) -> None:
        self._listeners: dict[str, QueuesListener] = {}
        self._seen: dict[str, set[MessageQueue]] = {}

    def listen(self, topic: str, listener: QueuesListener) -> None:
        """One listener for each topic; another one takes its place."""
        self._listeners[topic] = listener

    async def check(self, session: Session) -> None:
        """Compare with the last time; the first time there is nothing to tell."""
        for topic, listener in list(self._listeners.items()):
            try:
                now = set(await session.subscribe_queues(topic, refresh=True))
            except NoRouteError as error:
                _logger.warning("the queues of %s are not known: %s", topic, error)
                continue
            before = self._seen.get(topic)
            self._seen[topic] = now
            if before is None or now == before:
                continue
            try:
                listener(topic, now)
            except Exception:
                _logger.exception("a listener for the queues of %s failed", topic)
