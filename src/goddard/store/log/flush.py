"""Making the commit log durable, and knowing what is.

One sync covers every append before it; a caller that waits is told once its offset is on
disk (group commit). Flushing runs in the store's worker, or is started by a loop and run by the
kernel (``goddard.environment.syncs``); appends go on meanwhile.

After a failed sync the kernel may have dropped the dirty pages and marked them clean, so a second
sync that succeeds proves nothing. The log then counts as failed: callers that wait get the error,
and appends are refused. ``rewrite_and_sync`` reads the records of the unsynced range, checks their
CRCs, writes the same bytes again, which makes their pages dirty, and syncs. After that the log is
trusted again. If the bytes are no longer valid records, the store must be opened again (recovery).
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from goddard.environment.syncs import Syncs
from goddard.errors import StoreError
from goddard.store.errors import StoreDiskError, StoreUnavailableError, disk_error
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.segment import Segment

FlushCallback: TypeAlias = Callable[[StoreError | None], None]
Tell: TypeAlias = Callable[[], None]

_REWRITE_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class _KernelSync:
    """A sync that the kernel runs, and what is on disk when it succeeds."""

    __slots__ = ("segment", "target_offset", "time_ms")

    def __init__(self, segment: Segment, target_offset: int, time_ms: int) -> None:
        self.segment = segment
        self.target_offset = target_offset
        self.time_ms = time_ms


class LogFlusher:
    """Bytes below ``flushed_offset`` are on disk."""

    def __init__(self, log: CommitLog, on_flushed: Callable[[], None]) -> None:
        self._log = log
        self._on_flushed = on_flushed
        # Held during a sync; what the kernel syncs is in ``_kernel_sync``, which it guards, too.
        self._flushing = threading.Lock()
        self._syncs: Syncs | None = None
        self._kernel_sync: _KernelSync | None = None
        self._guard = threading.Lock()
        self._waiting: list[tuple[int, FlushCallback]] = []
        self.flushed_offset = log.end_offset
        self.flushed_time_ms = 0
        self.failure: StoreDiskError | None = None

    @property
    def unflushed_bytes(self) -> int:
        return self._log.end_offset - self.flushed_offset

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiting)

    def wait(self, offset: int, callback: FlushCallback) -> None:
        """Call back, from the flushing thread, when the log is on disk up to ``offset``.

        The callback gets None, or the error that makes it unknown whether it ever will be.
        """
        failure: StoreError | None = None
        with self._guard:
            if offset > self.flushed_offset:
                failure = self.failure
                if failure is None:
                    self._waiting.append((offset, callback))
                    return
        if failure is None:
            self._on_flushed()  # the flushing thread may be about to
        callback(failure)

    def restart_at(self, offset: int) -> None:
        """The log, which was empty, begins there."""
        with self._flushing, self._guard:
            self.flushed_offset = offset

    def cut_at(self, offset: int) -> None:
        """The log was cut there; call it without the store's lock."""
        with self._flushing, self._guard:
            self.flushed_offset = min(self.flushed_offset, offset)

    def flush(self) -> None:
        """Sync everything appended so far and answer who waited for it. Does not raise."""
        with self._flushing:
            self._finish_kernel_sync()
            if self.failure is None:
                # The time first: records that follow may be younger than what gets synced.
                time_ms = self._log.last_store_timestamp_ms
                target = self._log.end_offset
                try:
                    self._sync(self.flushed_offset, target)
                except StoreDiskError as error:
                    self._fail(error)()
                else:
                    self._advance(target, time_ms)()

    def rewrite_and_sync(self) -> bool:
        """Try to come back after a failed sync; True when the log is trusted again."""
        with self._flushing:
            self._finish_kernel_sync()
            if self.failure is None:
                return True
            time_ms = self._log.last_store_timestamp_ms
            start, target = self.flushed_offset, self._log.end_offset
            try:
                self._rewrite(start, target)
                self._sync(start, target)
            except StoreDiskError as error:
                self.failure = error
                return False
            self.failure = None
            self._advance(target, time_ms)()
            return True

    # Syncs by the kernel: for a loop, which must not wait

    def use(self, syncs: Syncs | None) -> None:
        """Let ``start`` use these; before they are closed, None."""
        with self._flushing:
            self._finish_kernel_sync()
            self._syncs = syncs

    def start(self) -> bool:
        """Have the kernel sync everything appended so far; False if a thread has to ``flush``.

        True also when a kernel's sync runs already: after its end the loop starts the next one.
        """
        if not self._flushing.acquire(blocking=False):
            return False  # a thread syncs; its next flush covers what it does not sync now
        try:
            if self._kernel_sync is not None:
                return True
            syncs = self._syncs
            if syncs is None or self.failure is not None:
                return False
            time_ms = self._log.last_store_timestamp_ms
            target = self._log.end_offset
            segment = self._log.segment_at(self.flushed_offset)
            if segment is None or target > segment.end_offset or not segment.start_sync(syncs):
                return False
            self._kernel_sync = _KernelSync(segment, target, time_ms)
            return True
        finally:
            self._flushing.release()

    def end(self) -> Tell | None:
        """If the kernel's sync has ended: what to call to tell who waited for it."""
        if self._syncs is not None:
            self._syncs.clear()
        if not self._flushing.acquire(blocking=False):
            return None  # a thread has found it, or will
        try:
            return self._collect(wait=False)
        finally:
            self._flushing.release()

    def _finish_kernel_sync(self) -> None:
        tell = self._collect(wait=True)
        if tell is not None:
            tell()

    def _collect(self, *, wait: bool) -> Tell | None:
        started, syncs = self._kernel_sync, self._syncs
        if started is None or syncs is None:
            return None
        code = syncs.result(wait=wait)
        if code is None:
            return None
        self._kernel_sync = None
        if code:
            trouble = OSError(code, os.strerror(code))
            return self._fail(disk_error("sync", started.segment.path, trouble))
        return self._advance(started.target_offset, started.time_ms)

    def fail_waiters(self, error: StoreError) -> None:
        """Tell everyone who waits that there will be no answer (the store closes)."""
        with self._guard:
            waiting, self._waiting = self._waiting, []
        _answer([callback for _, callback in waiting], error)

    def _sync(self, start: int, end: int) -> None:
        while start < end:
            segment = self._log.segment_at(start)
            if segment is None:
                raise StoreDiskError(f"no segment of the commit log holds offset {start}")
            segment.sync()
            start = segment.end_offset

    def _rewrite(self, start: int, end: int) -> None:
        reached = start
        for entry in self._log.scan(start):
            reached = entry.end_offset
        if reached < end and not self._ends_with_filler(reached, end):
            raise StoreDiskError(f"the commit log no longer reads as records from {reached} on")
        while start < end:
            segment = self._log.segment_at(start)
            if segment is None:
                raise StoreDiskError(f"no segment of the commit log holds offset {start}")
            position = start - segment.base_offset
            stop = min(position + _REWRITE_BYTES, segment.size, end - segment.base_offset)
            segment.write(position, bytes(segment.view[position:stop]))
            start = segment.base_offset + stop

    def _ends_with_filler(self, reached: int, end: int) -> bool:
        segment = self._log.segment_at(reached)
        return segment is not None and end == segment.end_offset

    def _advance(self, offset: int, time_ms: int) -> Tell:
        with self._guard:
            self.flushed_offset = offset
            self.flushed_time_ms = time_ms
            ready = [callback for end, callback in self._waiting if end <= offset]
            self._waiting = [item for item in self._waiting if item[0] > offset]

        def tell() -> None:
            try:
                self._on_flushed()
            finally:  # whatever a listener does, who waited is answered
                _answer(ready, None)

        return tell

    def _fail(self, error: StoreDiskError) -> Tell:
        with self._guard:
            self.failure = error
            waiting, self._waiting = self._waiting, []
        logger.error(
            "syncing the commit log failed; no messages are accepted until its data is rewritten "
            "and synced: %s",
            error,
        )
        unknown = StoreUnavailableError(f"the message may not be on disk: {error}")
        return lambda: _answer([callback for _, callback in waiting], unknown)


def _answer(callbacks: Sequence[FlushCallback], error: StoreError | None) -> None:
    for callback in callbacks:
        try:
            callback(error)
        except Exception:  # a defect of one who waited must not keep the others waiting
            logger.exception("answering a wait for the disk failed")
