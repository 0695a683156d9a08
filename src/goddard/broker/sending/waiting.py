"""Waits of the broker's own services, on the loop."""

import asyncio
import contextlib

from goddard.errors import StoreError
from goddard.store.store import MessageStore


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, but not longer than so many seconds; whether it happened."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def wait_durable(store: MessageStore, end_offset: int) -> None:
    """Until the log is on disk up to an offset; raises the StoreError after which it is unknown."""
    loop = asyncio.get_running_loop()
    synced: asyncio.Future[StoreError | None] = loop.create_future()

    def resolve(error: StoreError | None) -> None:
        if not synced.done():
            synced.set_result(error)

    def bridge(error: StoreError | None) -> None:
        # At shutdown the flushing thread may outlive the loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, error)

    store.wait_durable(end_offset, bridge)
    error = await synced
    if error is not None:
        raise error
