"""Calls of a listener with single messages, whose results tools wait for.

Belongs to the event loop.
"""

import asyncio
from typing import Any, TypeVar

from goddard.client.members import no_consumer

_T = TypeVar("_T")


class DirectCalls:
    """The direct calls of one consumer that have no result yet."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._open: set[asyncio.Future[Any]] = set()
        self._is_closed = False

    async def wait(self, result: asyncio.Future[_T]) -> _T:
        """Wait for the result of a call. ResponseError if the consumer stops first."""
        if self._is_closed:
            raise no_consumer(self._group)
        self._open.add(result)
        try:
            return await result
        finally:
            self._open.discard(result)

    def close(self) -> None:
        """Fail the calls that have no result: the workers make no more calls."""
        self._is_closed = True
        for result in self._open:
            if not result.done():
                result.set_exception(no_consumer(self._group))
