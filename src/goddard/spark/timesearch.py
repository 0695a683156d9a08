"""The first message of a queue that was stored at a time or later, near where a broker says it is.

Brokers before 5.0 answer with the nearest message, before or after the time, and with any of those
of one millisecond; so what is around their answer is looked at. Pure but for the asking.
"""

from collections.abc import Awaitable, Callable
from typing import Final

_LOOK_AT: Final = 32

# Store times of some messages from an offset on, at most as many as asked for; none at the end.
TimesFrom = Callable[[int, int], Awaitable[list[int]]]


async def first_at(times_from: TimesFrom, time_ms: int, near: int, earliest: int) -> int:
    """The offset of the first message that is not older; the end of the queue if all are."""
    offset = max(near, earliest)
    step = 1
    while offset > earliest:
        here = await times_from(offset, 1)
        if here and here[0] < time_ms:
            break
        offset = max(earliest, offset - step)
        step *= 2
    # Nothing before this is wanted.
    while times := await times_from(offset, _LOOK_AT):
        for stored_ms in times:
            if stored_ms >= time_ms:
                return offset
            offset += 1
    return offset
