"""MessageStore: the one class that brokers, tools and tests see of the store.

One thread puts messages; it, or others, may read at the same time. ``put_many`` is the hot path: a
group of prepared records goes to the log with one write and to its queues in the same pass. With
SYNC_FLUSH entries become visible once they are on disk, with ASYNC_FLUSH at once.

Three workers belong to the store: one syncs the log (group commit), one makes segments ahead of
need, one does everything that may take its time (``log.maintenance``: queues, index, checkpoint,
cleaning).
The lock guards queues and positions; no sync, and no making or deleting of segments, happens under
it. ``docs/ARCHITECTURE.md`` has the order of the locks.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from goddard.environment import Environment
from goddard.environment.files import make_durable_directories
from goddard.environment.syncs import Syncs
from goddard.store.config import FlushMode, StoreConfig
from goddard.store.errors import (
    StoreCorruptError,
    StoreDiskError,
    StoreUnavailableError,
    disk_errors,
)
from goddard.store.index.index import KeyIndex
from goddard.store.log.block import Placed, QueueKey, RecordBlock
from goddard.store.log.cold import ColdRead, find_cold_read
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.dispatch import (
    ArrivalListener,
    Dispatcher,
    EntriesByQueue,
    group_by_queue,
)
from goddard.store.log.flush import FlushCallback, LogFlusher
from goddard.store.log.maintenance import StoreParts, Upkeep
from goddard.store.log.raw import (
    complete_end,
    continues_queues,
    read_new_records,
    split_at_restarts,
)
from goddard.store.log.reading import (
    FoundMessages,
    GetResult,
    MessageFilter,
    QueryResult,
    ReadLimits,
    TagFilter,
    gather_cached,
    gather_messages,
    get_messages,
    read_matches,
)
from goddard.store.log.records import LogEntry, PreparedRecord
from goddard.store.log.visibility import RunLater, Visibility
from goddard.store.queues.entry import QueueEntry
from goddard.store.queues.queue import Boundary, ConsumeQueue
from goddard.store.queues.table import QueueTable
from goddard.store.recovery.checkpoint import (
    Checkpoint,
    DirectoryLock,
    load_checkpoint,
    mark_running,
    mark_stopped,
)
from goddard.store.recovery.decide import RecoveryReport
from goddard.store.recovery.restore import Restorer, log_report

if TYPE_CHECKING:
    from goddard.core.pulls import Gathered

_PAGE_BYTES: Final = 4096
_INDEX_RECORDS: Final = 4096  # so many gathered are worth a job of the worker


class MessageStore:
    """A store directory, open. Use as a context manager, or call ``close``."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        environment: Environment | None = None,
    ) -> None:
        environment = environment or Environment()
        self._clock = environment.clock
        self._files = environment.files
        self._process_id = environment.process_id
        self._flush_worker = environment.new_worker("store-flush")
        self._file_worker = environment.new_worker("store-files")
        self._upkeep_worker = environment.new_worker("store-upkeep")
        self._lock = threading.RLock()
        root = config.root
        self._directory_lock = DirectoryLock(root / "lock", self._files)
        self._abort_path = root / "abort"
        self._log = CommitLog(
            self._files,
            config.log_directory,
            segment_bytes=config.segment_bytes,
            max_record_bytes=config.max_record_bytes,
            delay_times_ms=config.delay_times_ms(),
            prezero=config.prezero,
            worker=self._file_worker,
        )
        self._queues = QueueTable(
            self._files,
            root / "consumequeue",
            file_bytes=config.queue_file_bytes,
            open_capacity=config.open_queue_files,
            new_executor=environment.new_executor,
        )
        self._index = KeyIndex(
            self._files,
            root / "index",
            self._clock,
            slots=config.index_slots,
            entries=config.index_entries,
            is_tag_indexed=config.is_tag_indexed,
        )
        self._dispatcher = Dispatcher(self._queues, self._index)
        self._visibility = Visibility(
            self._lock,
            self._dispatcher,
            lambda: self._flusher.flushed_offset,
            self._request_index_when_due,
        )
        self._flusher = LogFlusher(self._log, self._visibility.publish_flushed)
        self._upkeep = Upkeep(
            StoreParts(
                self._files,
                self._lock,
                self._log,
                self._queues,
                self._index,
                self._dispatcher,
                self._flusher,
            ),
            root / "checkpoint",
            self._clock,
            self._upkeep_worker,
        )
        self._log.set_on_prepared(self._resume_append)
        # Not the store's lock: with that an append may wait for the worker that calls this.
        self._resuming = threading.Lock()
        self._resume: Callable[[], None] | None = None
        self._next_offsets: dict[QueueKey, int] = {}
        self._opened_at = 0  # the end of the log when it was opened
        self._is_open = False
        # Whether ``append_raw`` left records to ``dispatch_raw``.
        self.is_dispatch_behind = False
        self._is_sync = config.flush_mode is FlushMode.SYNC
        self._is_flush_requested = False
        self._is_loop_syncing = False
        self._is_index_requested = False
        self._last_flush_ms = 0
        self._last_checkpoint_ms = 0
        self.config = config
        self.report = RecoveryReport(is_clean=True)

    # Opening and closing

    def open(self, *, cut_corrupt: bool = False) -> RecoveryReport:
        """Lock the directory, recover its data and start the workers.

        ``cut_corrupt`` cuts the log at damage that would otherwise be a StoreCorruptError; a copy
        of what is cut stays in ``commitlog.cut``.
        """
        root = self.config.root
        with disk_errors("create", root):
            make_durable_directories(self._files, root)
        self._directory_lock.acquire()
        began_ms = self._clock.monotonic_ms()
        try:
            with disk_errors("look at", self._abort_path):
                is_clean = self._files.facts(self._abort_path) is None
            self._upkeep.checkpoint = load_checkpoint(self._files, root / "checkpoint")
            self.report = Restorer(
                self._files,
                self._log,
                self._queues,
                self._index,
                self._dispatcher,
                root=root,
                check_crc=self.config.is_crc_checked,
            ).restore(self._upkeep.checkpoint, is_clean=is_clean, cut_corrupt=cut_corrupt)
            self._next_offsets = self._queues.next_offsets()
            self._flusher.flushed_offset = self._opened_at = self._log.end_offset
            self._flusher.flushed_time_ms = self._log.last_store_timestamp_ms
            mark_running(self._files, self._abort_path, self._process_id())
        except BaseException:
            try:
                self._log.close(clean=False)
                self._queues.close()
                self._index.close()
            finally:
                self._directory_lock.release()
            raise
        log_report(self.report, root, self._clock.monotonic_ms() - began_ms)
        self._is_open = True
        self._last_flush_ms = self._last_checkpoint_ms = self._clock.monotonic_ms()
        self._log.prepare_next()
        with suppress(StoreDiskError):
            self._upkeep.disk_ratio()
        self._flush_worker.every(self.config.flush_interval_ms, self._flush_when_due)
        self._upkeep_worker.every(self.config.flush_queue_interval_ms, self._write_when_due)
        self._upkeep_worker.every(self.config.retention_interval_ms, self._clean)
        return self.report

    def close(self) -> None:
        """Flush everything and leave the directory as a clean stop does.

        The abort marker stays when that was not possible, so that the next opening recovers.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._resume_append()
        self._visibility.stop_running_later()
        self._stop_workers()
        is_clean = False
        try:
            self._flusher.flush()
            self._log.clear_debris()
            self._upkeep.save_checkpoint()
            trouble = self._flusher.failure or self._upkeep.failure
            is_clean = trouble is None and self.dispatch_behind_bytes == 0
        except StoreDiskError:
            is_clean = False
        finally:
            self._release(clean=is_clean)

    def abandon(self) -> None:
        """Let go of the directory at once, flushing nothing: what a crash would leave."""
        if self._is_open:
            self._is_open = False
            self._visibility.stop_running_later()
            self._stop_workers()
            self._visibility.waiting.clear()  # their publication may be due in a loop
            self._release(clean=False)

    def _stop_workers(self) -> None:
        self._upkeep.is_closing = True
        self._log.stop_preparing()
        for worker in (self._file_worker, self._upkeep_worker, self._flush_worker):
            worker.stop()

    def _release(self, *, clean: bool) -> None:
        self._flusher.fail_waiters(StoreUnavailableError("the store was closed"))
        try:
            self._log.close(clean=clean)
            self._queues.close()
            self._index.close()
            if clean:
                mark_stopped(self._files, self._abort_path)
        finally:
            self._directory_lock.release()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Putting

    def put(self, record: PreparedRecord) -> LogEntry:
        """Append one message; see ``put_many``."""
        return self.put_many((record,))[0]

    def put_many(self, records: Sequence[PreparedRecord]) -> list[LogEntry]:
        """Append messages of any topics in one go: all of them, or on an error none.

        Raises MessageIllegalError (a limit), StoreUnavailableError (closed, full or failed) or
        StoreDiskError. With SYNC_FLUSH a message is safe once ``wait_durable`` has called back for
        its ``end_offset``.
        """
        entries = self.append(records)
        self._enter_if_behind()
        return entries

    def put_batch(self, records: Sequence[PreparedRecord]) -> list[LogEntry]:
        """As ``put_many``, for the messages of one client batch: they never cross a segment."""
        entries = self.append(records, whole=True)
        self._enter_if_behind()
        return entries

    def _enter_if_behind(self) -> None:
        if self._index.is_behind:
            self._upkeep.write_index()

    def append(self, records: Sequence[PreparedRecord], *, whole: bool = False) -> list[LogEntry]:
        """As ``put_many`` (``whole``: ``put_batch``).

        For a loop: call it when ``when_ready`` says that it will not wait.
        """
        if not records:
            return []
        self._check_writable()
        with self._lock:
            entries = self._log.append(
                records, self._next_offsets, self._clock.now_ms(), whole=whole
            )
            if self._is_sync:
                self._visibility.waiting.append(entries)
            else:
                self._dispatcher.apply(entries)
        self._publish(entries)
        return entries

    def append_block(self, block: RecordBlock) -> None:
        """As ``append``, for records that were encoded elsewhere."""
        self._check_writable()
        with self._lock:
            self._log.append_block(block, self._next_offsets, self._clock.now_ms())
            if self._is_sync:
                self._visibility.waiting.append(block)
            else:
                self._dispatcher.apply(block)
        self._publish(block)

    def _publish(self, placed: Placed) -> None:
        if self._is_sync:
            if not self._is_loop_syncing:
                self._request_flush()
        else:
            self._visibility.tell(placed)

    def when_ready(self, resume: Callable[[], None]) -> bool:
        """Whether ``append`` can be called now without waiting for a new segment or the index.

        If not, ``resume`` is called once, in a thread of the store, when this may have changed. A
        store that takes no messages is ready: ``append`` raises the reason.
        """
        if self._is_ready():
            return True
        with self._resuming:
            self._resume = resume
        return self._is_ready()  # it may have become so meanwhile; ``resume`` is called as well

    def _is_ready(self) -> bool:
        return (
            self._log.is_room_prepared and not self._index.is_behind
        ) or self.unwritable_reason is not None

    def _resume_append(self) -> None:
        with self._resuming:
            resume, self._resume = self._resume, None
        if resume is not None:
            resume()

    # Copying another broker's log

    def begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin at the start of a segment other than the first."""
        with self._lock:
            self._log.start_at(physical_offset)
            self._dispatcher.dispatched_offset = physical_offset
        self._flusher.restart_at(physical_offset)
        self._log.prepare_next()

    def append_raw(self, data: bytes | memoryview, *, dispatch_later: bool = False) -> None:
        """Append bytes of another log as they are, and dispatch the records that they complete.

        They lie in one segment, and may end inside a record. Raises StoreCorruptError, with nothing
        appended after the last complete record, if they are not part of a log of records. For one
        caller at a time. With ``dispatch_later``, and as long as ``is_dispatch_behind``, readers
        see nothing new until the caller calls ``dispatch_raw``.
        """
        self._check_writable()
        with self._lock:
            self._log.append_raw(data)
        if dispatch_later or self.is_dispatch_behind:
            self.is_dispatch_behind = True
        else:
            self.dispatch_raw()

    def dispatch_raw(self, max_bytes: int | None = None) -> bool:
        """Dispatch records that ``append_raw`` completed; returns whether some are left.

        Stops after about ``max_bytes``. Raises as ``append_raw``.
        """
        with self._lock:
            # A record may come in pieces, so this is not always where the new bytes begin.
            start = max(self._dispatcher.dispatched_offset, self._log.min_offset)
        try:
            for entries in read_new_records(self._log, start, max_bytes):
                self._dispatch_raw(entries)
                if max_bytes is not None and entries[-1].end_offset - start >= max_bytes:
                    return self.is_dispatch_behind
        except StoreCorruptError:
            self.is_dispatch_behind = False
            self._cut_incomplete()
            raise
        self.is_dispatch_behind = False
        return False

    def drop_incomplete(self) -> None:
        """Dispatch the rest, and cut the beginning of a record that has not come completely."""
        if self.is_dispatch_behind:
            self.dispatch_raw()
        self._cut_incomplete()

    def _cut_incomplete(self) -> None:
        with self._lock:
            end_offset = complete_end(self._log, self._dispatcher.dispatched_offset)
            if end_offset == self._log.end_offset:
                return
            self._log.truncate(end_offset)
        self._flusher.cut_at(end_offset)
        self._log.prepare_next()

    def _dispatch_raw(self, entries: list[LogEntry]) -> None:
        by_queue = group_by_queue(entries)
        if continues_queues(by_queue, self._next_offsets):
            self._apply_raw(entries, by_queue)
            return
        for restarted, run in split_at_restarts(entries, self._next_offsets):
            queue = None if restarted is None else self._queues.get(*restarted)
            if queue is not None:
                # Its topic was deleted there, and created again.
                self._upkeep.delete_queues([queue], lambda _: None)
            self._apply_raw(run, group_by_queue(run))

    def _apply_raw(self, entries: list[LogEntry], by_queue: EntriesByQueue) -> None:
        with self._lock:
            self._dispatcher.apply_grouped(entries, by_queue)
            for key, its_entries in by_queue.items():
                self._next_offsets[key] = its_entries[-1][2] + 1
            self._log.last_store_timestamp_ms = entries[-1].store_timestamp_ms
        self._visibility.tell(entries)

    def _check_writable(self) -> None:
        if (
            not self._is_open
            or self._upkeep.is_disk_full
            or self._flusher.failure is not None
            or self._dispatcher.trouble is not None
        ):
            raise StoreUnavailableError(f"the store takes no messages: {self.unwritable_reason}")

    @property
    def unwritable_reason(self) -> str | None:
        """Why no message is taken now; None when they are."""
        if not self._is_open:
            return "it is closed"
        if self._upkeep.is_disk_full:
            return f"the disk is more than {self.config.disk_full_ratio:.0%} full"
        trouble = self._flusher.failure or self._dispatcher.trouble
        return None if trouble is None else str(trouble)

    @property
    def is_writable(self) -> bool:
        return self.unwritable_reason is None

    # Durability

    def wait_durable(self, end_offset: int, callback: FlushCallback) -> None:
        """Have ``callback`` called once the log is on disk up to ``end_offset``.

        It gets None, or the StoreError after which that is unknown. It is called in the flushing
        thread (at once, in this one, if the offset is on disk already). One sync answers everyone
        who waits.
        """
        self._flusher.wait(end_offset, callback)
        if self._flusher.has_waiters:
            self._request_flush()

    def flush(self) -> None:
        """Put everything appended so far on disk; raises StoreDiskError if that fails."""
        self._flusher.flush()
        if self._flusher.failure is not None:
            raise self._flusher.failure

    def _request_flush(self) -> None:
        if self._is_loop_syncing and self._flusher.start():
            return
        with self._lock:
            if self._is_flush_requested:
                return
            self._is_flush_requested = True
        self._flush_worker.submit(self._flush_log)

    def _flush_log(self) -> None:
        with self._lock:
            self._is_flush_requested = False
        self._flusher.flush()

    def publish_on(self, run: RunLater) -> None:
        """Publish the messages that waited for a sync in this thread, through ``run``: its loop's
        ``call_soon_threadsafe``.

        Otherwise the flush thread publishes them, and competes with the loop for the interpreter.
        Calls that wait for the disk follow ``run``, so in a loop they see what they waited for.
        """
        self._visibility.publish_on(run)

    def open_syncs(self) -> Syncs | None:
        """With SYNC_FLUSH, what ``sync_with`` needs, where the kernel offers it."""
        return self._files.open_syncs() if self._is_sync else None

    def sync_with(self, syncs: Syncs | None) -> None:
        """Have the kernel run the syncs that ``wait_durable`` asks for, or (None) threads again.

        The caller is the loop that appends. It waits for the last record of each turn, and calls
        ``end_sync`` when ``syncs`` becomes readable. It closes ``syncs``, after a call with None.
        """
        self._is_loop_syncing = syncs is not None
        self._flusher.use(syncs)
        if self._flusher.has_waiters:
            self._request_flush()

    def end_sync(self, prepare: Callable[[], None]) -> None:
        """Tell who waited for the kernel's sync, if it has ended; ``prepare`` is called before.

        What ``prepare`` appends is synced while they are told.
        """
        tell = self._flusher.end()
        if tell is None:
            return
        prepare()
        if self._flusher.has_waiters:
            self._request_flush()
        tell()

    def tick(self) -> None:
        """The periodic duties of all workers but cleaning; harmless to call more often."""
        self._flush_when_due()
        self._write_when_due()

    def _flush_when_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._flusher.failure is not None:
            self._flusher.rewrite_and_sync()
        is_thorough = now_ms - self._last_flush_ms >= self.config.flush_thorough_ms
        least_bytes = self.config.flush_least_pages * _PAGE_BYTES
        if is_thorough or self._flusher.unflushed_bytes >= least_bytes:
            self._flusher.flush()
            self._last_flush_ms = now_ms

    def _write_when_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        with suppress(StoreDiskError):  # the dispatcher remembers, and the next time it is retried
            if now_ms - self._last_checkpoint_ms >= self.config.checkpoint_interval_ms:
                self._upkeep.save_checkpoint()
                self._last_checkpoint_ms = now_ms
            else:
                self._upkeep.write_pending()
        self._resume_append()

    def _request_index_when_due(self) -> None:
        if self._index.waiting_count >= _INDEX_RECORDS and not self._is_index_requested:
            self._is_index_requested = True
            self._upkeep_worker.submit(self._write_index)

    def _write_index(self) -> None:
        self._is_index_requested = False
        self._upkeep.write_index()
        self._resume_append()

    # Reading

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """Messages of a queue from an offset on, as slices of the log, with Java's statuses."""
        with self._lock:
            return get_messages(
                self._log,
                self._queues.get(topic, queue_id),
                self.config,
                queue_offset,
                max_count,
                max_bytes=max_bytes,
                message_filter=message_filter,
            )

    def gather(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        message_filter: TagFilter | None = None,
    ) -> FoundMessages:
        """As ``get``, by compiled code: only where ``goddard.core`` is compiled."""
        with self._lock:
            return gather_messages(
                self._log,
                self._queues.get(topic, queue_id),
                self.config,
                queue_offset,
                max_count,
                max_bytes=max_bytes,
                message_filter=message_filter,
            )

    def gather_cached(
        self,
        key: QueueKey,
        queue_offset: int,
        limits: ReadLimits,
        message_filter: TagFilter | None,
    ) -> "Gathered | None":
        """As ``gather``, if there are messages that can be read without waiting for the disk; else
        None. What a caller does in that case, ``gather`` and ``cold_read`` tell.
        """
        with self._lock:
            queue = self._queues.by_key.get(key)
            if queue is None:
                return None
            return gather_cached(
                self._log,
                queue,
                queue_offset,
                limits,
                message_filter,
                is_in_memory=self._is_in_memory(queue, queue_offset),
            )

    def _is_in_memory(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether messages from an offset on are new enough to be in the page cache for sure."""
        return (
            queue_offset >= queue.loaded_offset
            and self._log.end_offset - self._opened_at <= self.config.in_memory_bytes // 2
        )

    def cold_read(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> ColdRead | None:
        """None if a ``get`` of these messages will not wait for the disk; else what to warm first.

        A loop calls ``warm`` of the result in a thread, then ``get``.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return None
        if self._is_in_memory(queue, queue_offset):
            return None
        with self._lock:
            return find_cold_read(self._files, self._log, queue, queue_offset, max_count)

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = 1 << 62,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> QueryResult:
        """Messages that carry a key (or unique key) and were stored within a time window.

        Different keys may share a hash; compare the key of what comes back. This may take seconds
        (see ``KeyIndex.find``), so a loop calls it in a thread. The lock is not held meanwhile.
        """
        match = self._index.find(topic, key, max_count, begin_ms, end_ms, is_cancelled)
        return read_matches(self._log, self._lock, match)

    def lookup(self, physical_offset: int) -> memoryview | None:
        """The record that starts at an offset of the log; None when none does.

        Bytes in the body of a record can look like a record: only a queue entry proves that one
        starts there.
        """
        with self._lock:
            entry = self._log.entry_at(physical_offset)
            if entry is None:
                return None
            queue = self._queues.get(entry.topic, entry.queue_id)
            if queue is None or not queue.min_offset <= entry.queue_offset < queue.max_offset:
                return None
            in_queue = queue.entry(entry.queue_offset)
            if in_queue is None or in_queue[:2] != (physical_offset, entry.size):
                return None
            return self._log.read(physical_offset, entry.size)

    def read_log(self, physical_offset: int, max_bytes: int) -> memoryview | None:
        """Raw bytes of the log within one segment (replication)."""
        with self._lock:
            return self._log.tail(physical_offset, max_bytes)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of a queue's first message; 0 when there is no such queue."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that a queue's next visible message gets; 0 when there is no such queue."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            return 0 if queue is None else queue.max_offset

    def queue_entries(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> list[QueueEntry] | None:
        """What a queue holds from an offset on; None when there is no such queue."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            if queue is None:
                return None
            if not queue.min_offset <= queue_offset < queue.max_offset:
                return []
            return list(queue.entries(queue_offset, max_count))

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: Boundary = Boundary.LOWER,
    ) -> int:
        """LOWER: the first message stored at or after a time. UPPER: the last at or before."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            if queue is None:
                return 0
            return queue.find_time(
                timestamp_ms, boundary, self._log.min_offset, self._log.store_time_ms
            )

    def message_store_time(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """When the message at a queue offset was stored; None when it is not there."""
        with self._lock:
            queue = self._queues.get(topic, queue_id)
            entry = None if queue is None else queue.entry(queue_offset)
            if entry is None:
                return None
            return self._log.store_time_ms(entry.physical_offset, entry.size)

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int | None:
        """When the oldest message of a queue, or of the whole log, was stored."""
        if topic is None:
            with self._lock:
                entry = self._log.entry_at(self._log.min_offset)
            return None if entry is None else entry.store_timestamp_ms
        return self.message_store_time(topic, queue_id, self.min_offset(topic, queue_id))

    @property
    def queues(self) -> QueueTable:
        """The queues; hold no reference over calls that change the store."""
        return self._queues

    @property
    def index(self) -> KeyIndex:
        return self._index

    @property
    def log(self) -> CommitLog:
        return self._log

    @property
    def checkpoint(self) -> Checkpoint:
        return self._upkeep.checkpoint

    # Facts for the runtime statistics

    @property
    def log_min_offset(self) -> int:
        return self._log.min_offset

    @property
    def log_max_offset(self) -> int:
        return self._log.end_offset

    @property
    def flushed_offset(self) -> int:
        return self._flusher.flushed_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """How much of the log consumers cannot see yet."""
        with self._lock:
            start = self._visibility.first_waiting_offset
            if self.is_dispatch_behind:
                start = self._dispatcher.dispatched_offset
            return 0 if start is None else self._log.end_offset - start

    @property
    def last_disk_ratio(self) -> float:
        """The used share of the disk, as last measured: at the start and at each cleaning."""
        return self._upkeep.last_disk_ratio

    def disk_ratio(self) -> float:
        """The used share of the disk that holds the commit log."""
        return self._upkeep.disk_ratio()

    # Listening

    def add_listener(self, listener: ArrivalListener) -> Callable[[], None]:
        """Tell ``listener`` of every group that became visible; returns how to stop that.

        It is called without the lock, in the putting thread (ASYNC) or the flushing one (SYNC,
        unless ``publish_on`` says otherwise).
        """
        return self._visibility.add_listener(listener)

    # Cleaning

    def delete_topic(self, topic: str) -> int:
        """Delete a topic's queues; its records stay in the log. Returns how many queues went.

        Deleting the files takes long; the lock is not held meanwhile.
        """
        queues = [queue for queue in self._queues if queue.topic == topic]
        self._upkeep.delete_queues(queues, self._forget_offset)
        return len(queues)

    def delete_stale_queues(self, is_kept: Callable[[str], bool]) -> int:
        """Delete queues whose every record has left the log, but for topics to be kept."""
        min_offset = self._log.min_offset
        stale = [
            queue
            for queue in self._queues
            if queue.max_offset > 0
            and queue.max_physical_offset <= min_offset
            and not is_kept(queue.topic)
        ]
        self._upkeep.delete_queues(stale, self._forget_offset)
        return len(stale)

    def _forget_offset(self, queue: ConsumeQueue) -> None:
        # Messages that wait for the disk bring their queue back, at the offsets they were given:
        # it must go on after them, or later ones would fall on the same offsets.
        key = queue.topic, queue.queue_id
        is_complete = self._next_offsets.get(key) == queue.max_offset
        if is_complete or key not in self._visibility.waiting_keys():
            self._next_offsets.pop(key, None)

    def clean(self, *, is_manual: bool = False) -> int:
        """Delete what retention allows now; returns how many segments of the log went."""
        return self._upkeep.clean(self.config, is_manual=is_manual)

    def clean_soon(self) -> None:
        """Have expired files deleted without waiting for the hour; the cleaning worker does it."""

        def clean_now() -> None:
            with suppress(StoreDiskError):
                self.clean(is_manual=True)

        self._upkeep_worker.submit(clean_now)

    def _clean(self) -> None:
        with suppress(StoreDiskError):  # tried again at the next interval
            self.clean()
