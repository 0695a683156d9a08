"""Handing pulled messages to the user of a lite consumer, batch by batch or one by one.

What was handed out counts as done when the user asks for more (``ask_on``). One task at a time may
ask; others wait for it. Belongs to the event loop, but for ``Portion``: what another thread takes
one by one without a word to the loop, which looks how far it got (``catch_up``).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from goddard.client.consume.prefetch_queue import AssignedQueue, Batch
from goddard.client.message import ReceivedMessage
from goddard.clock import Clock

# A thread that takes its time asks the loop again after so long, as offsets are noted when it does.
_PORTION_MS: Final = 200


class Portion:
    """Messages of one batch, for one thread after the other to take; the loop may close it."""

    __slots__ = ("_clock", "_guard", "_is_closed", "_until_ms", "batch", "messages", "taken")

    def __init__(self, batch: Batch, messages: list[ReceivedMessage], clock: Clock) -> None:
        self.batch = batch
        self.messages = messages
        # The loop reads it.
        self.taken = 0
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + _PORTION_MS
        self._is_closed = False
        self._guard = threading.Lock()

    def next(self) -> ReceivedMessage | None:
        """The next message; None if the loop is to be asked."""
        with self._guard:
            at = self.taken
            if (
                self._is_closed
                or at == len(self.messages)
                or self.batch.is_stale
                or self._clock.monotonic_ms() >= self._until_ms
            ):
                return None
            self.taken = at + 1
            return self.messages[at]

    def close(self) -> None:
        """Have nothing more taken."""
        with self._guard:
            self._is_closed = True


class Pulls(Protocol):
    """Where batches come from."""

    def take(self) -> Batch | None:
        """The batch that waits longest, if any does."""

    async def wait(self) -> bool:
        """Wait until one may have come; False when none will any more."""


class Handout:
    """``prepare`` readies the messages of a batch for the user."""

    def __init__(
        self,
        pulls: Pulls,
        prepare: Callable[[list[ReceivedMessage]], None],
        clock: Clock,
    ) -> None:
        self._pulls = pulls
        self._prepare = prepare
        self._clock = clock
        self._asking = asyncio.Lock()
        # A batch that is handed out one by one, and what is left of it.
        self._in_hand: Batch | None = None
        self._rest: deque[ReceivedMessage] = deque()
        # The same, while another thread takes it, and how far that was when last looked at.
        self._portion: Portion | None = None
        self._seen = 0
        # The queues that something was given of since the user asked last.
        self._given: set[AssignedQueue] = set()

    def ask_on(self) -> None:
        """The user is through with what it got."""
        self.catch_up()
        for assigned in self._given:
            assigned.done()
        self._given.clear()

    def left(self, assigned: AssignedQueue) -> None:
        """A queue moves or was given up: what was given of it will not be done any more."""
        if self._portion is not None and self._portion.batch.assigned is assigned:
            self.put_back()
        self._given.discard(assigned)

    def catch_up(self) -> None:
        """Note what the thread that has a portion took of it; it is through with all but the last.

        Called before anything is made of the offsets.
        """
        portion = self._portion
        if portion is None:
            return
        taken = portion.taken
        for count in range(max(self._seen + 1, taken - 1), taken + 1):
            for assigned in self._given:
                assigned.done()
            self._given.clear()
            self._give(portion.batch, _offset_after(portion, count))
        self._seen = taken

    def put_back(self) -> None:
        """End the portion that a thread has, if one has; what it did not take is in hand again."""
        portion = self._portion
        if portion is None:
            return
        portion.close()
        self.catch_up()
        self._portion = None
        self._seen = 0
        self._rest = deque(portion.messages[portion.taken :])
        self._in_hand = portion.batch if self._rest else None

    async def next_batch(self, timeout_ms: int) -> list[ReceivedMessage]:
        """The batch that waits longest, or what is left of the one in hand; empty if none came."""
        async with self._asking:
            self.put_back()
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
            batch = await self._next_in_hand()
            if batch is None:
                return None
            message = self._rest.popleft()
            if self._rest:
                self._give(batch, message.queue_offset + 1)
            else:
                self._in_hand = None
                self._give(batch, batch.next_offset)
            return message

    async def next_portion(self) -> Portion | None:
        """The next messages, whenever they come, for a thread to take; None when no more will."""
        async with self._asking:
            batch = await self._next_in_hand()
            if batch is None:
                return None
            self._portion = Portion(batch, list(self._rest), self._clock)
            self._in_hand, self._rest = None, deque()
            batch.assigned.is_in_hand = True
            return self._portion

    async def _next_in_hand(self) -> Batch | None:
        """The batch that the next messages are of, what is left of it being in ``_rest``."""
        self.put_back()
        self.ask_on()
        batch = self._in_hand
        if batch is None or batch.is_stale:
            batch = self._in_hand = await self._take()
            if batch is not None:
                self._rest = deque(batch.messages)
        return batch

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


def _offset_after(portion: Portion, count: int) -> int:
    """Behind the first so many messages of a portion."""
    if count == len(portion.messages):
        return portion.batch.next_offset
    return portion.messages[count - 1].queue_offset + 1
