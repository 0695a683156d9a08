"""Timeouts of a peer that is idle, does not read, or does not complete a frame. Pure.

A periodic check knows what happened since the previous check, but not when: a timeout is detected
up to one interval late and never early.
"""

import sys
from enum import Enum, auto

from goddard.transport.options import ConnectionOptions


class PeerState(Enum):
    ALIVE = auto()
    # Over the high mark of unsent bytes, and it reads none of them.
    STALLED = auto()
    # It started a frame and has completed none since.
    PARTIAL_FRAME = auto()
    # Nothing was sent or received.
    IDLE = auto()


class PeerTimeouts:
    """The timeouts of one peer."""

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
        """The unsent bytes have just exceeded the high mark: start the stall timeout."""
        self._least_unsent_bytes = sys.maxsize

    def check(
        self,
        now_ms: int,
        *,
        unsent_bytes: int,
        is_over_high_mark: bool,
        is_inside_frame: bool,
        had_traffic: bool,
    ) -> PeerState:
        """``had_traffic``: bytes were sent or received since the last check (true at the first).

        ``is_inside_frame``: a frame is incomplete, and none was completed since the last check.
        """
        options = self._options
        is_reading = unsent_bytes < self._least_unsent_bytes
        if is_reading or not is_over_high_mark:
            self._least_unsent_bytes = unsent_bytes
            self._stalled_since_ms = now_ms
        elif now_ms - self._stalled_since_ms >= options.write_stall_seconds * 1000:
            return PeerState.STALLED
        if not is_inside_frame:
            self._partial_since_ms = now_ms
        elif now_ms - self._partial_since_ms >= options.partial_frame_seconds * 1000:
            return PeerState.PARTIAL_FRAME
        # A peer that reads some of the unsent bytes is alive, however slow it is.
        if had_traffic or is_reading:
            self._idle_since_ms = now_ms
        elif now_ms - self._idle_since_ms >= options.idle_seconds * 1000:
            return PeerState.IDLE
        return PeerState.ALIVE
