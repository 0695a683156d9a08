"""How long a peer may say nothing, take nothing, or leave a frame unfinished. Pure.

A connection is judged now and then by what happened since the last time; when it happened is not
known, so that a verdict comes up to one interval late and never early.
"""

import sys
from enum import Enum, auto

from goddard.transport.options import ConnectionOptions


class Verdict(Enum):
    ALIVE = auto()
    # Over the mark of unsent bytes, and it takes none of them.
    STALLED = auto()
    # It began a frame and has ended none since.
    UNFINISHED = auto()
    # Neither read nor written.
    IDLE = auto()


class Patience:
    """What one peer is still allowed."""

    __slots__ = (
        "_idle_since_ms",
        "_least_unsent_bytes",
        "_options",
        "_partial_since_ms",
        "_stalled_since_ms",
    )

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._stalled_since_ms = 0
        self._partial_since_ms = 0
        self._idle_since_ms = 0
        self._least_unsent_bytes = 0

    def begin_stall(self) -> None:
        """The peer fell behind just now: what is unsent then is what it has to take some of."""
        self._least_unsent_bytes = sys.maxsize

    def judge(
        self,
        now_ms: int,
        *,
        unsent_bytes: int,
        is_behind: bool,
        is_inside_frame: bool,
        is_heard: bool,
    ) -> Verdict:
        """``is_heard``: read or written since the last time, as it has to be before the first.

        ``is_inside_frame``: part of a frame waits for the rest, and none has ended since.
        """
        options = self._options
        is_taking = unsent_bytes < self._least_unsent_bytes
        if is_taking or not is_behind:
            self._least_unsent_bytes = unsent_bytes
            self._stalled_since_ms = now_ms
        elif now_ms - self._stalled_since_ms >= options.write_stall_seconds * 1000:
            return Verdict.STALLED
        if not is_inside_frame:
            self._partial_since_ms = now_ms
        elif now_ms - self._partial_since_ms >= options.partial_frame_seconds * 1000:
            return Verdict.UNFINISHED
        # A peer that takes some of what waits for it is alive, however slow.
        if is_heard or is_taking:
            self._idle_since_ms = now_ms
        elif now_ms - self._idle_since_ms >= options.idle_seconds * 1000:
            return Verdict.IDLE
        return Verdict.ALIVE
