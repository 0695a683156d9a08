"""How long the store takes for messages, as RocketMQ tells it: figures of the last whole minute.

Until the first minute is over there is no distribution, and percentiles are zero. Belongs to the
loop.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import accumulate
from typing import Final

_RANGES: Final = {
    "[<=0ms]": 1,
    "[0~10ms]": 10,
    "[10~50ms]": 50,
    "[50~100ms]": 100,
    "[100~200ms]": 200,
    "[200~500ms]": 500,
    "[500ms~1s]": 1_000,
    "[1~2s]": 2_000,
    "[2~3s]": 3_000,
    "[3~4s]": 4_000,
    "[4~5s]": 5_000,
    "[5~10s]": 10_000,
    "[10s~]": 2**63,
}
_ENDS: Final = tuple(_RANGES.values())[:-1]
# Percentiles are found within steps that grow: width, and how many.
_STEPS: Final = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1_000, 9))
_CEILINGS: Final = tuple(accumulate(width for width, times in _STEPS for _ in range(times)))


class PutTimes:
    """``add`` at every append, ``roll`` every minute."""

    def __init__(self) -> None:
        self.max_ms = 0
        self._current: Counter[int] = Counter()
        self._last: Counter[int] | None = None

    def add(self, count: int, took_ms: int) -> None:
        """So many messages were stored together in this time."""
        self._current[took_ms] += count
        if took_ms > self.max_ms:
            self.max_ms = took_ms

    def roll(self) -> None:
        """A minute is over."""
        self._last, self._current = self._current, Counter()

    def distribution(self) -> str:
        if self._last is None:
            return "null"
        counts = [0] * len(_RANGES)
        for took_ms, count in self._last.items():
            counts[bisect_right(_ENDS, took_ms)] += count
        pairs = zip(_RANGES, counts, strict=True)
        return "".join(f"{name}:{count} " for name, count in pairs)

    def percentile(self, share: float) -> str:
        """The milliseconds within which this share of the messages was stored."""
        counts = [0] * (len(_CEILINGS) + 1)
        for took_ms, count in (self._last or {}).items():
            counts[bisect_left(_CEILINGS, took_ms)] += count
        wanted = int(sum(counts) * share)
        floor_ms = 0
        for ceiling_ms, count in zip(_CEILINGS, counts, strict=False):
            if wanted <= count:
                part = wanted / count if count else 0.0
                return f"{floor_ms + (ceiling_ms - floor_ms) * part:.2f}"
            wanted -= count
            floor_ms = ceiling_ms
        return f"{floor_ms:.2f}"
