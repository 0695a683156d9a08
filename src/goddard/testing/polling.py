"""Waiting on the event loop for what nothing announces; ``process.wait_until`` is for threads."""

import asyncio
from collections.abc import Callable

_POLL_SECONDS = 0.005


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Poll until the condition is true; TimeoutError at the end. It is looked at once at least."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(_POLL_SECONDS)
