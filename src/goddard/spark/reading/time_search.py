"""Find the first message of a queue that was stored at a given time or later.

Brokers before 5.0 answer with the nearest message, before or after the time, and with any of the
messages of one millisecond. So the search starts at the broker's answer and compares store times
around it. Pure: the caller supplies the function that reads store times.
"""

from collections.abc import Awaitable, Callable
from typing import Final

_MESSAGES_PER_READ: Final = 32

# (offset, count) to the store times of at most ``count`` messages; empty at the end of the queue.
StoreTimes = Callable[[int, int], Awaitable[list[int]]]


async def first_offset_at(
    store_times: StoreTimes, time_ms: int, approximate: int, earliest: int
) -> int:
    """The first offset stored at ``time_ms`` or later; the end of the queue if there is none."""
    offset = max(approximate, earliest)
    step = 1
    while offset > earliest:
        times = await store_times(offset, 1)
        if times and times[0] < time_ms:
            break
        offset = max(earliest, offset - step)
        step *= 2
    # Every message before this offset is older.
    while times := await store_times(offset, _MESSAGES_PER_READ):
        for stored_ms in times:
            if stored_ms >= time_ms:
                return offset
            offset += 1
    return offset
