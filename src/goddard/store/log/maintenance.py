"""What a worker of the store does beside the appends: write queues and index, checkpoint, clean.

The store's lock is held for short turns only, and never while something is synced or a file is
created or deleted. The checkpoint may lag, never lead: one saver at a time, and once a
queue or index file could not be synced it stays where it is, since after a failed sync a second one
that succeeds proves nothing. The next opening then reads the log again from there.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goddard.clock import Clock, local_time
from goddard.environment.files import Files
from goddard.environment.threads import Worker
from goddard.store.config import StoreConfig
from goddard.store.errors import StoreDiskError, disk_errors
from goddard.store.index.index import KeyIndex
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.dispatch import Dispatcher
from goddard.store.log.flush import LogFlusher
from goddard.store.log.retention import RetentionRules, SegmentAge, plan_retention
from goddard.store.log.syncing import sync_path
from goddard.store.queues.queue import ConsumeQueue
from goddard.store.queues.table import QueueTable
from goddard.store.recovery.checkpoint import Checkpoint, save_checkpoint

_HOUR_MS: Final = 3_600_000
# Work on many queues holds the lock for so long, then leaves it to others.
_TURN_MS: Final = 2
_PAUSE_SECONDS: Final = 0.001

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one store, and the lock that guards queues and positions."""

    files: Files
    lock: threading.RLock
    log: CommitLog
    queues: QueueTable
    index: KeyIndex
    dispatcher: Dispatcher
    flusher: LogFlusher


class Upkeep:
    """The duties; whose turn it is when is the store's to say."""

    def __init__(
        self, parts: StoreParts, checkpoint_path: Path, clock: Clock, worker: Worker
    ) -> None:
        self._parts = parts
        self._worker = worker
        self._clock = clock
        self._checkpoint_path = checkpoint_path
        self._saving = threading.Lock()
        # Held while files of queues are created, moved or deleted.
        self._queue_files = threading.Lock()
        self.checkpoint = Checkpoint()
        self.is_disk_full = False
        self.last_disk_ratio = 0.0
        # From then on nobody waits for the lock, and the stop is what has to be quick.
        self.is_closing = False
        # Why queues or index may not be on disk although they were written.
        self.failure: StoreDiskError | None = None

    # Writing

    def write_pending(self) -> None:
        """Put what waits in memory into the files of queues and index; raises StoreDiskError."""
        parts = self._parts
        try:
            with self._queue_files:
                with parts.lock:
                    waiting = parts.queues.waiting
                self._create_queue_files(waiting)
                self._in_turns(waiting, ConsumeQueue.write_to_files)
            parts.index.write_pending()
        except StoreDiskError as error:
            parts.dispatcher.trouble = error
            raise
        parts.dispatcher.trouble = None

    def _create_queue_files(self, queues: Sequence[ConsumeQueue]) -> None:
        """Create the files that queues need. Only adding them to their queues takes the lock."""
        parts = self._parts
        missing: list[tuple[ConsumeQueue, int]] = []
        self._in_turns(
            queues, lambda queue: missing.extend((queue, base) for base in queue.missing_bases())
        )
        for queue, base in missing:
            fd = queue.create_file(base)
            with parts.lock:
                queue.add_file(base, fd)
            if parts.index.is_behind:  # appends wait for it
                parts.index.write_pending()

    def write_index(self) -> None:
        """Write the pending entries of the index; an error is kept for later, not raised."""
        try:
            self._parts.index.write_pending()
        except StoreDiskError as error:
            self._parts.dispatcher.trouble = error

    def _in_turns(
        self, queues: Sequence[ConsumeQueue], action: Callable[[ConsumeQueue], object]
    ) -> None:
        """Do something to many queues under the lock, but let an append wait for one turn at most.

        Python's locks are not fair: without a pause this thread would have the lock again before a
        waiting one wakes up.
        """
        place = 0
        while place < len(queues):
            if place and not self.is_closing:
                self._worker.pause(_PAUSE_SECONDS)
            with self._parts.lock:
                end_ms = self._clock.monotonic_ms() + _TURN_MS
                while place < len(queues) and self._clock.monotonic_ms() < end_ms:
                    action(queues[place])
                    place += 1

    # Checkpoint

    def save_checkpoint(self) -> None:
        """Sync queues and index, then write down how far everything is on disk."""
        parts = self._parts
        with self._saving:
            with parts.lock:
                time_ms = parts.dispatcher.dispatched_time_ms
            self.write_pending()
            if self.failure is not None:
                return
            with parts.lock:
                unsynced = parts.queues.take_unsynced()
            try:
                parts.queues.sync(unsynced)
                for path in parts.index.take_unsynced():
                    sync_path(parts.files, path)
            except StoreDiskError as error:
                self.failure = error
                logger.warning("the checkpoint stays where it is until the next start: %s", error)
                raise
            self.checkpoint.log_time_ms = parts.flusher.flushed_time_ms
            if time_ms:
                self.checkpoint.queue_time_ms = self.checkpoint.index_time_ms = time_ms
            save_checkpoint(parts.files, self._checkpoint_path, self.checkpoint)

    # Cleaning

    def clean(self, config: StoreConfig, *, is_manual: bool) -> int:
        """Delete what retention allows now; returns how many segments of the log went."""
        parts = self._parts
        rules = RetentionRules(
            reserved_ms=config.reserved_hours * _HOUR_MS,
            delete_hours=config.delete_hours(),
            high_ratio=config.disk_high_ratio,
            force_ratio=config.disk_force_ratio,
            full_ratio=config.disk_full_ratio,
            is_forced_enabled=config.is_forced_cleaning_enabled,
            batch_files=config.delete_batch_files,
        )
        now_ms = self._clock.now_ms()
        # Only what is on disk and known to the queues may go, and never the last segment.
        limit = min(parts.flusher.flushed_offset, parts.dispatcher.dispatched_offset)
        ages = []
        for segment in parts.log.segments[:-1]:
            if segment.end_offset <= limit:
                with disk_errors("look at", segment.path):
                    facts = parts.files.facts(segment.path)
                ages.append(SegmentAge(segment.base_offset, facts.modified_ms if facts else 0))
        plan = plan_retention(
            rules,
            ages,
            now_ms=now_ms,
            local_hour=local_time(now_ms).tm_hour,
            disk_ratio=self.disk_ratio(),
            is_manual=is_manual,
        )
        self.is_disk_full = plan.is_disk_full
        if plan.delete_count:
            # Entries of records that go must be in their queue files first, or offsets would leap
            # after a crash. A disk too full for that needs the deletion all the more.
            with suppress(StoreDiskError):
                self.save_checkpoint()
            self._delete_segments(plan.delete_count)
        return plan.delete_count

    def _delete_segments(self, count: int) -> None:
        """Delete the oldest segments, then the files of queues and index that follow them."""
        parts = self._parts
        with parts.lock:
            gone = parts.log.forget_first(count)
            min_offset = parts.log.min_offset
            queues = list(parts.queues)
        for segment in gone:
            segment.delete()
        with disk_errors("sync", parts.log.directory):
            # Else a power cut could bring back a segment whose queue entries are gone.
            parts.files.sync_directory(parts.log.directory)
        with self._queue_files:
            paths: list[Path] = []
            self._in_turns(queues, lambda queue: paths.extend(queue.forget_before(min_offset)))
            parts.queues.delete_files(paths)
        parts.index.delete_before(min_offset)

    def delete_queues(
        self, queues: Iterable[ConsumeQueue], on_forget: Callable[[ConsumeQueue], None]
    ) -> None:
        """Delete queues with their files; ``on_forget`` is called for each with the lock."""
        parts = self._parts
        folders: list[Path | None] = []
        for queue in queues:
            with self._queue_files:
                with parts.lock:
                    if parts.queues.get(queue.topic, queue.queue_id) is not queue:
                        continue
                    on_forget(queue)
                    parts.queues.forget(queue)
                folders.append(parts.queues.move_away(queue))
        for folder in filter(None, folders):
            parts.queues.delete_folder(folder)
        with self._queue_files:  # another thread may move a queue there
            parts.queues.remove_deleted()

    def disk_ratio(self) -> float:
        """The used share of the disk that holds the commit log."""
        directory = self._parts.log.directory
        with disk_errors("measure", directory):
            self.last_disk_ratio = self._parts.files.usage(directory).ratio
        return self.last_disk_ratio
