"""From the commit log to what is derived from it: consume queues, key index, listeners.

Dispatch takes entries in the order of the log, a group at a time. It never fails for a full or
broken disk: queue and index entries wait in memory, ``trouble`` says why, and the store takes no
more messages until ``write_pending`` has succeeded. Everything here can be made again from the log.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from goddard.store.errors import StoreDiskError
from goddard.store.index.index import KeyIndex
from goddard.store.log.block import Placed, QueueKey, RecordBlock, each_entry
from goddard.store.log.records import PREPARED, LogEntry
from goddard.store.queues.queue import ConsumeQueue
from goddard.store.queues.table import QueueTable

logger = logging.getLogger(__name__)

ArrivalListener: TypeAlias = Callable[[Placed], None]
EntriesByQueue: TypeAlias = Mapping[QueueKey, list[LogEntry]]


def group_by_queue(entries: Sequence[LogEntry]) -> EntriesByQueue:
    """The entries that have a place in a queue, in their order."""
    by_queue: defaultdict[QueueKey, list[LogEntry]] = defaultdict(list)
    for entry in entries:
        if not entry[7] & PREPARED:
            by_queue[entry[:2]].append(entry)
    return by_queue


class Dispatcher:
    """Applies log entries; those below ``dispatched_offset`` have been."""

    def __init__(self, queues: QueueTable, index: KeyIndex) -> None:
        self._queues = queues
        self._index = index
        self.dispatched_offset = 0
        self.dispatched_time_ms = 0
        self.trouble: StoreDiskError | None = None
        # Records whose queue offset does not fit their queue; collected during recovery only.
        self.misplaced: list[LogEntry] | None = None

    def apply(self, placed: Placed) -> None:
        if isinstance(placed, list):
            self._apply_entries(placed)
        else:
            self._apply_block(placed)

    def _apply_entries(self, entries: list[LogEntry]) -> None:
        if entries:
            self.apply_grouped(entries, group_by_queue(entries))

    def apply_grouped(self, entries: list[LogEntry], by_queue: EntriesByQueue) -> None:
        """Apply entries that are grouped already."""
        for key, its_entries in by_queue.items():
            self._put_following(key, its_entries)
        try:
            self._index.add(entries)
        except StoreDiskError as error:
            self.trouble = error
        last = entries[-1]
        self.dispatched_offset = last.end_offset
        self.dispatched_time_ms = last.store_timestamp_ms

    def _apply_block(self, block: RecordBlock) -> None:
        for key, queue_offset, data, end_offset in block.queue_entries():
            queue = self._queues.by_key.get(key) or self._queues.get_or_create(*key)
            try:
                if not queue.put_block(queue_offset, data, end_offset):
                    its_entries = [entry for entry in each_entry(block) if entry[:2] == key]
                    self._put_each(queue, its_entries)
            except StoreDiskError as error:
                self.trouble = error
        try:
            self._index.add_block(block)
        except StoreDiskError as error:
            self.trouble = error
        self.dispatched_offset = block.end_offset
        self.dispatched_time_ms = block.store_timestamp_ms

    def _put_following(self, key: tuple[str, int], entries: Sequence[LogEntry]) -> None:
        queue = self._queues.by_key.get(key) or self._queues.get_or_create(*key)
        try:
            if not queue.put_following(entries):
                self._put_each(queue, entries)
        except StoreDiskError as error:
            self.trouble = error

    def _put_each(self, queue: ConsumeQueue, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            _, _, queue_offset, physical_offset, size, tags_code, _, _, _ = entry
            try:
                if not queue.put(queue_offset, physical_offset, size, tags_code):
                    self._note_misplaced(entry)
            except StoreDiskError as error:
                self.trouble = error

    def _note_misplaced(self, entry: LogEntry) -> None:
        if self.misplaced is not None:
            self.misplaced.append(entry)
            return
        logger.warning(
            "the record at %d does not follow in queue %d of %s: its queue offset is %d",
            entry.physical_offset,
            entry.queue_id,
            entry.topic,
            entry.queue_offset,
        )

    def write_pending(self) -> None:
        """Put what waits in memory into the files; raises StoreDiskError and may be repeated.

        For recovery, where there is only one thread; later ``Upkeep.write_pending`` does it.
        """
        for queue in self._queues.waiting:
            queue.write_pending()
        self._index.write_pending()
