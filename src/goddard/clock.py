"""Clocks as objects: components receive a Clock, so that tests can pass a ManualClock.

``now_ms`` is wall time (store timestamps, expiry on disk); ``monotonic_ms`` measures durations and
never goes back.
"""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...

    def monotonic_ms(self) -> int: ...


def local_time(now_ms: int) -> time.struct_time:
    """A wall time in the time zone of this process."""
    return time.localtime(now_ms // 1000)


def format_local_time(pattern: str, now_ms: int) -> str:
    """As ``time.strftime``, in the time zone of this process."""
    return time.strftime(pattern, local_time(now_ms))


class SystemClock:
    """The system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
