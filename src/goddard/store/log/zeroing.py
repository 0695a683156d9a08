"""Zeros ahead of the log, in the segment that is being appended to.

A sync of bytes that fall into a hole has to put the file's new layout on disk as well, and takes
about twice as long as one of blocks that were written before. So a worker writes zeros ahead
of the appends, in small steps with pauses: a file system may have a sync of the log wait for
whatever was written before it.

No zero may ever come over what was appended. The appender reserves before it writes; the worker
writes only behind what is reserved, one step at a time, under the lock. The appender comes for
the lock early, and waits for it only if it could not have it all that while.
"""

import threading
from typing import Final

from goddard.environment.files import Files
from goddard.environment.threads import Worker
from goddard.store.errors import StoreDiskError
from goddard.store.log.segment import Segment

_STEP_BYTES: Final = 1 << 20
_SYNC_STEPS: Final = 8
_PAUSE_SECONDS: Final = 0.008
_RESERVED_BYTES: Final = 1 << 20
_AHEAD_BYTES: Final = 32 << 20


class ZeroAhead:
    """``reserve`` belongs to the appender, the rest of it to the worker."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        *,
        step_bytes: int = _STEP_BYTES,
        reserved_bytes: int = _RESERVED_BYTES,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> None:
        self._files = files
        self._worker = worker
        self._blank = bytes(step_bytes)
        self._reserved_bytes = reserved_bytes
        self._ahead_bytes = ahead_bytes
        self._lock = threading.Lock()
        self._segment: Segment | None = None
        self._reserved_to = 0  # no zeros below this
        self._ask_from = 0  # where the appender tries to reserve more
        self._written_to = 0  # no holes from what was reserved up to here
        self._is_working = False
        self._is_stopped = False

    def stop(self) -> None:
        """Let the worker finish soon."""
        self._is_stopped = True

    def reserve(self, segment: Segment, end: int) -> None:
        """Call it before writing to a segment up to a position; no zeros come there any more."""
        if end > self._ask_from or segment is not self._segment:
            self._reserve(segment, end)

    def _reserve(self, segment: Segment, end: int) -> None:
        is_new = segment is not self._segment
        if not self._lock.acquire(blocking=is_new or end > self._reserved_to):
            return  # a step is on its way, behind what is reserved
        try:
            if is_new:
                self._segment = segment
                self._reserved_to = self._written_to = 0
            reserved_to = max(self._reserved_to, end) + self._reserved_bytes
            self._reserved_to = reserved_to = min(reserved_to, segment.size)
            self._ask_from = max(end, reserved_to - self._reserved_bytes // 2)
            is_wanted = (
                not self._is_working
                and not self._is_stopped
                and self._written_to < min(reserved_to + self._ahead_bytes // 2, segment.size)
            )
            if is_wanted:
                self._is_working = True
        finally:
            self._lock.release()
        if is_wanted:
            self._worker.submit(lambda: self._work(segment))

    def _work(self, segment: Segment) -> None:
        try:
            # A descriptor of its own: the segment may be closed at any time.
            fd = self._files.open(segment.path)
            try:
                self._write_ahead(segment, fd)
            finally:
                self._files.close(fd)
        except (OSError, StoreDiskError):
            pass  # an append that needs the space will say so
        finally:
            with self._lock:
                self._is_working = False

    def _write_ahead(self, segment: Segment, fd: int) -> None:
        steps = 0
        while self._write_step(segment, fd):
            steps += 1
            if steps % _SYNC_STEPS == 0:
                self._files.sync(fd)
            self._worker.pause(_PAUSE_SECONDS)
        if steps:
            self._files.sync(fd)

    def _write_step(self, segment: Segment, fd: int) -> bool:
        """Write the next zeros; False when there are enough."""
        with self._lock:
            start = max(self._written_to, self._reserved_to)
            stop = min(self._reserved_to + self._ahead_bytes, segment.size)
            if self._is_stopped or segment is not self._segment:
                return False
            blank = self._blank
            # Other zeros were written before the segment was taken, or when it was open before.
            while start < stop and self._files.data_start(fd, start, stop) == start:
                start += len(blank)
            if start < stop:
                self._files.pwrite(fd, blank[: stop - start], start)
            self._written_to = min(start + len(blank), stop)
            return start < stop
