"""Handing pulled messages to the user of a lite consumer, batch by batch or one by one.

What was handed out counts as done when the user asks for more (``ask_on``). One task at a time may
ask; others wait for it. Belongs to the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from goddard.client.message import ReceivedMessage
from goddard.client.prefetch import AssignedQueue, Batch
from goddard.client.pullahead import PullAhead


class Handout:
    """``prepare`` readies the messages of a batch for the user."""

    def __init__(self, pulls: PullAhead, prepare: Callable[[list[ReceivedMessage]], None]) -> None:
        self._pulls = pulls
        self._prepare = prepare
        self._asking = asyncio.Lock()
        # A batch that is handed out one by one, and what is left of it.
        self._in_hand: Batch | None = None
        self._rest: deque[ReceivedMessage] = deque()
        # The queues that something was given of since the user asked last.
        self._given: set[AssignedQueue] = set()

    def ask_on(self) -> None:
        """The user is through with what it got."""
        for assigned in self._given:
            assigned.done()
        self._given.clear()

    def left(self, assigned: AssignedQueue) -> None:
        """A queue moved or was given up: what was given of it will not be done any more."""
        self._given.discard(assigned)

    async def next_batch(self, timeout_ms: int) -> list[ReceivedMessage]:
        """The batch that waits longest, or what is left of the one in hand; empty if none came."""
        async with self._asking:
            self.ask_on()
            batch, rest = self._in_hand, self._rest
            self._in_hand, self._rest = None, deque()
            if batch is not None and not batch.is_stale:
                self._give(batch, batch.next_offset)
                return list(rest)
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    taken = await self._take()
            except TimeoutError:
                return []
            if taken is None:
                return []
            self._give(taken, taken.next_offset)
            return taken.messages

    async def next_message(self) -> ReceivedMessage | None:
        """The next message, whenever it comes; None when no more will."""
        async with self._asking:
            self.ask_on()
            batch = self._in_hand
            if batch is None or batch.is_stale:
                batch = self._in_hand = await self._take()
                if batch is None:
                    return None
                self._rest = deque(batch.messages)
            message = self._rest.popleft()
            if self._rest:
                self._give(batch, message.queue_offset + 1)
            else:
                self._in_hand = None
                self._give(batch, batch.next_offset)
            return message

    async def _take(self) -> Batch | None:
        while True:
            batch = self._pulls.take()
            if batch is not None:
                self._prepare(batch.messages)
                return batch
            if not await self._pulls.wait():
                return None

    def _give(self, batch: Batch, offset: int) -> None:
        assigned = batch.assigned
        assigned.is_in_hand = offset != batch.next_offset
        assigned.given_offset = offset
        self._given.add(assigned)
