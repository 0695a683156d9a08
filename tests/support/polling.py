"""Poll a condition on the event loop; ``process.wait_until`` does the same in a thread."""

import asyncio
from collections.abc import Callable

_POLL_SECONDS = 0.005


async def until(
    condition: Callable[[], bool],
    what: str | Callable[[], str] = "the condition did not become true",
    seconds: float = 60.0,
) -> None:
    """Poll until the condition is true; fail with ``what`` after ``seconds``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, what if isinstance(what, str) else what()
        await asyncio.sleep(_POLL_SECONDS)
