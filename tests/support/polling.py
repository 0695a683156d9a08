"""Waiting on the event loop for what nothing announces; ``process.wait_until`` is for threads."""

import asyncio
from collections.abc import Callable

_POLL_SECONDS = 0.005


async def until(
    condition: Callable[[], bool],
    what: str | Callable[[], str] = "what was waited for did not happen",
    seconds: float = 60.0,
) -> None:
    """Poll until the condition is true; an assertion fails with ``what`` at the end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, what if isinstance(what, str) else what()
        await asyncio.sleep(_POLL_SECONDS)
