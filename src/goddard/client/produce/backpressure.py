"""Limits how many messages, and how many bytes, are sent and have no result yet.

Callers wait in FIFO order for a permit, at most as long as their send may take. Belongs to an event
loop.
"""

import asyncio
import contextlib
from collections import deque

from goddard.client.errors import TooManyRequestsError
from goddard.client.produce.options import BackPressureOptions


class SendPermits:
    """The permits of one producer. ``release`` must follow every permit that was acquired."""

    __slots__ = ("_bytes_left", "_max_bytes", "_messages_left", "_waiting")

    def __init__(self, options: BackPressureOptions) -> None:
        self._messages_left = options.max_messages
        self._bytes_left = self._max_bytes = options.max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_acquire(self, size_bytes: int) -> bool:
        """Take a permit if one is free and no other caller waits."""
        size = min(size_bytes, self._max_bytes)
        if self._waiting or self._messages_left < 1 or self._bytes_left < size:
            return False
        self._messages_left -= 1
        self._bytes_left -= size
        return True

    async def acquire(self, size_bytes: int, timeout_ms: int) -> None:
        """Wait for a permit; TooManyRequestsError if none is free in time."""
        if self.try_acquire(size_bytes):
            return
        # A message larger than the limit for all together is sent when no other is.
        size = min(size_bytes, self._max_bytes)
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, permit)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await permit
        except BaseException as error:
            if permit.done() and not permit.cancelled():
                self.release(size_bytes)
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
                self._admit()
            if isinstance(error, TimeoutError):
                lacks = "Num" if self._messages_left < 1 else "Size"
                raise TooManyRequestsError(
                    f"send message tryAcquire semaphoreAsync{lacks} timeout",
                    advice="the brokers are slower than the sends: send fewer at a time",
                ) from None
            raise

    def release(self, size_bytes: int) -> None:
        """A send has its result."""
        self._messages_left += 1
        self._bytes_left += min(size_bytes, self._max_bytes)
        self._admit()

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and self._messages_left > 0 and self._bytes_left >= waiting[0][0]:
            size, permit = waiting.popleft()
            if not permit.done():  # else its caller gave up
                self._messages_left -= 1
                self._bytes_left -= size
                permit.set_result(None)
