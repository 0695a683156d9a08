"""Which reasons to log: a peer that cannot go on fails again every few seconds."""

import re
from typing import Final

from goddard.clock import Clock

_REPEAT_MS: Final = 60_000
_MAX_REASONS: Final = 256
_NUMBERS: Final = re.compile(r"-?[0-9]+")


class Reasons:
    """Belongs to the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged: dict[tuple[str, str], int] = {}

    def is_new(self, peer: str, reason: str) -> bool:
        """Whether this reason, whatever its numbers, was not logged of the peer for a minute."""
        kind = _NUMBERS.sub("", reason)
        now_ms = self._clock.monotonic_ms()
        last_ms = self._logged.get((peer, kind))
        if last_ms is not None and now_ms - last_ms < _REPEAT_MS:
            return False
        if len(self._logged) >= _MAX_REASONS:
            self._logged.clear()
        self._logged[peer, kind] = now_ms
        return True

    def forget(self) -> None:
        """All is well again: the next reason is new."""
        self._logged.clear()
