"""Counts and latencies of a measurement, and the charts of them. Pure, and of bounded size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

# Eight buckets for each factor of two: the error of a percentile is at most 9 %.
_PER_DOUBLING: Final = 8
_SMALLEST_US: Final = 1.0
_BUCKETS: Final = 32 * _PER_DOUBLING
_BARS: Final = " ▁▂▃▄▅▆▇█"
_MAX_BAR: Final = 40
_MAX_LINES: Final = 12


class Latencies:
    """A histogram with buckets that grow exponentially."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.max_ms = 0.0
        self.min_ms = math.inf

    def add(self, milliseconds: float) -> None:
        self.count += 1
        self.max_ms = max(self.max_ms, milliseconds)
        self.min_ms = min(self.min_ms, milliseconds)
        self._counts[_bucket(milliseconds)] += 1

    def percentile(self, share: float) -> float | None:
        """The latency that this share of all calls did not exceed; None without any call."""
        if not self.count:
            return None
        wanted = max(1, math.ceil(share * self.count))
        # The last bucket has no upper bound.
        for bucket, seen in enumerate(accumulate(self._counts[:-1])):
            if seen >= wanted:
                return min(self.max_ms, max(self.min_ms, _upper_ms(bucket)))
        return self.max_ms

    def bars(self) -> list[str]:
        """A bar for each range of latencies, at most so many that they fit on a screen."""
        used = [bucket for bucket, count in enumerate(self._counts) if count]
        if not used:
            return []
        first, last = used[0], used[-1]
        step = max(1, math.ceil((last - first + 1) / _MAX_LINES))
        groups = [
            (sum(self._counts[start : start + step]), _upper_ms(start + step - 1))
            for start in range(first, last + 1, step)
        ]
        largest = max(count for count, _ in groups)
        return [
            f"{_milliseconds(upper):>9} {'█' * math.ceil(_MAX_BAR * count / largest):{_MAX_BAR}} "
            f"{100 * count / self.count:5.1f} %"
            for count, upper in groups
        ]


def _bucket(milliseconds: float) -> int:
    microseconds = max(_SMALLEST_US, milliseconds * 1000)
    return min(_BUCKETS - 1, int(math.log2(microseconds / _SMALLEST_US) * _PER_DOUBLING))


def _upper_ms(bucket: int) -> float:
    return float(_SMALLEST_US * 2 ** ((bucket + 1) / _PER_DOUBLING) / 1000)


def _milliseconds(value: float) -> str:
    digits = 3 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{digits}f} ms"


def sparkline(values: Sequence[float]) -> str:
    """One character for each value, relative to the largest."""
    largest = max(values, default=0)
    if not largest:
        return ""
    return "".join(_BARS[math.ceil(value / largest * (len(_BARS) - 1))] for value in values)


@dataclass(frozen=True, slots=True)
class Second:
    """What was done in one second."""

    messages: int
    bytes: int


class Figures:
    """Messages and bytes so far, and in each second."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self.last_failure: str | None = None
        self.latencies = Latencies()
        self.seconds: list[Second] = []
        self._messages_before = 0
        self._bytes_before = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size

    def fail(self, messages: int, reason: str) -> None:
        self.failed += messages
        self.last_failure = reason

    def end_second(self) -> Second:
        """The figures since the last call."""
        second = Second(self.messages - self._messages_before, self.bytes - self._bytes_before)
        self._messages_before, self._bytes_before = self.messages, self.bytes
        self.seconds.append(second)
        return second
