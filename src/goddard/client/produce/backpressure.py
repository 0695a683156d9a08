"""A limit on what is being sent: so many messages and so many bytes without a result.

Who finds no room waits for it, in the order of coming, for as long as the send may take. Belongs to
a loop.
"""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Final

from goddard.client.errors import TooManyRequestsError
from goddard.client.options import check_range

_MIN_MESSAGES: Final = 10
_MIN_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BackPressureOptions:
    """RocketMQ's defaults and least values."""

    max_messages: int = 1024
    max_bytes: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        check_range("max_messages of the back-pressure", self.max_messages, _MIN_MESSAGES)
        check_range("max_bytes of the back-pressure", self.max_bytes, _MIN_BYTES)


class SendPermits:
    """Who may send now, and who waits. ``release`` must follow every success of the others."""

    __slots__ = ("_bytes_left", "_max_bytes", "_messages_left", "_waiting")

    def __init__(self, options: BackPressureOptions) -> None:
        self._messages_left = options.max_messages
        self._bytes_left = self._max_bytes = options.max_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_acquire(self, size_bytes: int) -> bool:
        """Take a place if there is one and nobody waits for it already."""
        size = min(size_bytes, self._max_bytes)
        if self._waiting or self._messages_left < 1 or self._bytes_left < size:
            return False
        self._messages_left -= 1
        self._bytes_left -= size
        return True

    async def acquire(self, size_bytes: int, timeout_ms: int) -> None:
        """Wait for a place; TooManyRequestsError if none is free in time."""
        if self.try_acquire(size_bytes):
            return
        # One message may be larger than all together may be; then it goes when nothing else does.
        size = min(size_bytes, self._max_bytes)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, place)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self.release(size_bytes)
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
                self._admit()
            if isinstance(error, TimeoutError):
                lacks = "Num" if self._messages_left < 1 else "Size"
                raise TooManyRequestsError(
                    f"send message tryAcquire semaphoreAsync{lacks} timeout",
                    advice="the brokers are slower than the sends; send fewer at a time",
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
            size, place = waiting.popleft()
            if not place.done():  # else it gave up
                self._messages_left -= 1
                self._bytes_left -= size
                place.set_result(None)
