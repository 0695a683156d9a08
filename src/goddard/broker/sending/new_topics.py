"""Sends that create their topic wait until it is on the disk, and are then stored in order.

A message that was acknowledged would be lost if a crash lost its topic. All sends to a topic that
is being saved wait, of all connections; when it is saved, they are submitted in the order in which
they came, in one step of the loop. So no later send overtakes them. Belongs to the loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from goddard.broker.tables.topics import Topics
from goddard.errors import StoreError
from goddard.protocol.frame import RemotingCommand

_logger = logging.getLogger(__name__)

SaveTopics: TypeAlias = Callable[[], Awaitable[None]]
Answer: TypeAlias = RemotingCommand | None
Send: TypeAlias = Callable[[], Answer]


class NewTopics:
    """``save_topics`` returns when the topics that exist at the call are on the disk."""

    def __init__(self, topics: Topics, save_topics: SaveTopics) -> None:
        self._topics = topics
        self._save_topics = save_topics
        self._waiting: dict[str, list[tuple[asyncio.Future[Answer], Send]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, topic: str) -> bool:
        """Whether a send to this topic has to wait."""
        return topic in self._topics.unsaved

    def send_when_saved(self, topic: str, send: Send) -> asyncio.Future[Answer]:
        """Call ``send`` when the topic is saved; the result is what it returns.

        The StoreError of a save that failed is the result of all sends that wait for it. A send
        whose future was cancelled is not called.
        """
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(topic)
        if waiting is None:
            waiting = self._waiting[topic] = []
            task = loop.create_task(self._save(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        future: asyncio.Future[Answer] = loop.create_future()
        waiting.append((future, send))
        return future

    async def _save(self, topic: str) -> None:
        error: Exception | None = None
        try:
            await self._save_topics()
        except StoreError as problem:
            error = problem
        except Exception as problem:
            _logger.exception("saving the topics failed")
            error = problem
        else:
            self._topics.unsaved.discard(topic)
        for future, send in self._waiting.pop(topic):
            if future.cancelled():
                continue
            if error is not None:
                future.set_exception(error)
                continue
            try:
                future.set_result(send())
            except Exception as problem:
                _logger.exception("a send to the new topic %s failed", topic)
                future.set_exception(problem)
