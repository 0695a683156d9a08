"""Time as a collaborator: production code gets a Clock, tests give a ManualClock.

``now_ms`` is wall time (store timestamps, expiry on disk); ``monotonic_ms`` measures durations and
never jumps.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
