"""How fast a consumer pulls and consumes, by topic, over the last minute. Pure.

Counts go into slices of some seconds; a rate is what the whole slices of the last minute hold.
"""

from collections import deque
from typing import Final

from goddard.protocol.bodies_client import ConsumeStatus

_SLICE_MS: Final = 5_000
_SLICES: Final = 12


class _Slice:
    __slots__ = ("consume_ms", "consumed", "failed", "pull_ms", "pulled", "pulls", "start_ms")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.pulls = 0
        self.pulled = 0
        self.pull_ms = 0
        self.consumed = 0
        self.failed = 0
        self.consume_ms = 0


class ConsumeRates:
    """Counters of one consumer. ``now_ms`` is a clock that never jumps."""

    def __init__(self) -> None:
        self._topics: dict[str, deque[_Slice]] = {}
        self._failed: dict[str, int] = {}

    def pulled(self, topic: str, count: int, spent_ms: int, now_ms: int) -> None:
        part = self._slice(topic, now_ms)
        part.pulls += 1
        part.pulled += count
        part.pull_ms += spent_ms

    def consumed(self, topic: str, count: int, failed: int, spent_ms: int, now_ms: int) -> None:
        """Of ``count`` messages ``failed`` failed; their calls took ``spent_ms`` altogether."""
        part = self._slice(topic, now_ms)
        part.consumed += count - failed
        part.failed += failed
        part.consume_ms += spent_ms
        if failed:
            self._failed[topic] = self._failed.get(topic, 0) + failed

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        parts = self._topics.get(topic)
        if parts is None:
            return ConsumeStatus()
        recent = [part for part in parts if now_ms - part.start_ms <= _SLICE_MS * _SLICES]
        if not recent:
            return ConsumeStatus(consume_failed_msgs=self._failed.get(topic, 0))
        seconds = max(1.0, (now_ms - recent[0].start_ms) / 1000)
        pulls = sum(part.pulls for part in recent)
        consumed = sum(part.consumed for part in recent)
        failed = sum(part.failed for part in recent)
        return ConsumeStatus(
            pull_rt=sum(part.pull_ms for part in recent) / max(1, pulls),
            pull_tps=sum(part.pulled for part in recent) / seconds,
            consume_rt=sum(part.consume_ms for part in recent) / max(1, consumed + failed),
            consume_ok_tps=consumed / seconds,
            consume_failed_tps=failed / seconds,
            consume_failed_msgs=self._failed.get(topic, 0),
        )

    def _slice(self, topic: str, now_ms: int) -> _Slice:
        parts = self._topics.get(topic)
        if parts is None:
            parts = self._topics[topic] = deque(maxlen=_SLICES)
        if not parts or now_ms - parts[-1].start_ms >= _SLICE_MS:
            parts.append(_Slice(now_ms))
        return parts[-1]
