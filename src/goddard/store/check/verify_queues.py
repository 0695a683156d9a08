"""Consume queues against the log, both ways, in one pass over the records.

Each queue has a cursor: the number of the entry that its next record should have. As long as the
records of a batch continue there, a whole stretch is compared at once; anything else is looked at
one by one. Entries that no record asked for are checked at the end by reading what they refer to.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from goddard.errors import ProtocolError
from goddard.protocol.message import (
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    TRANSACTION_MASK,
    TransactionType,
    find_property,
)
from goddard.protocol.record import RecordSummary, read_summary
from goddard.store.check.damage import Damage, Kind, Report
from goddard.store.check.inspect import (
    ENTRY_BYTES,
    ENTRY_TYPE,
    FILLER_SIZE,
    Entries,
    QueueView,
    StoreFile,
    StoreView,
    is_entry,
)
from goddard.store.jsonfile import DocumentError
from goddard.store.log.records import is_topic_name
from goddard.store.recovery.scan import RecordBatch
from goddard.store.tables import TopicTable

_SCHEDULE_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
_LIGHT_PREFIX: Final = "%LMQ%"
_DELAY: Final = PROPERTY_DELAY.encode()
_MULTI_DISPATCH: Final = PROPERTY_INNER_MULTI_DISPATCH.encode()
# Below this a tag code is the address of an extension of the entry (consumequeue_ext).
_MIN_TAG_CODE: Final = -(2**31)
# Longer than any delay level that makes sense.
_MAX_DELAY_MS: Final = 366 * 24 * 3600 * 1000
_OPEN_FILES: Final = 512

# Stands for "the time of delivery" among expected tag codes, of which none is this long.
_DELIVERY: Final = 2**62

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Missing:
    """A run of records without queue entries."""

    first_number: int
    first_physical_offset: int
    end_number: int
    count: int


class _Queue:
    """A queue and how far the records have confirmed it."""

    def __init__(self, view: QueueView, log_min_offset: int) -> None:
        self.view = view
        self.missing: _Missing | None = None
        self.predating = 0
        # Where the queue begins: after the filler. If that entry is empty, it has been lost.
        self.first_number = view.first_number
        self.first_physical_offset = 0
        for number, entries in view.chunks():
            begun = np.flatnonzero(entries["size"] != FILLER_SIZE)
            if begun.size:
                self.first_number = number + int(begun[0])
                self.first_physical_offset = int(entries["physical_offset"][begun[0]])
                break
        self.next_number = self.first_number
        for number, entries in view.chunks():
            is_live = is_entry(entries) & (entries["physical_offset"] >= log_min_offset)
            live = np.flatnonzero(is_live)
            if live.size:
                self.next_number = number + int(live[0])
                break


class QueueCheck:
    """Give it every batch of the log in order, then ``finish``."""

    def __init__(self, view: StoreView, log_files: list[StoreFile], report: Report) -> None:
        self._view = view
        self._log_files = log_files
        self._report = report
        self._log_min = report.min_physical_offset
        self._batch_topics = {topic.encode() for topic in view.batch_topics()}
        self._is_extended = (view.directory / "consumequeue_ext").is_dir()
        self._log_maps: dict[StoreFile, memoryview] = {}
        self._files: OrderedDict[StoreFile, Entries] = OrderedDict()
        self._queues = {
            (queue.topic.encode(), queue.queue_id): _Queue(queue, self._log_min)
            for queue in view.queues()
        }
        self._without_queue: dict[tuple[bytes, int], _Missing] = {}
        report.queues = len(self._queues)
        for queue in self._queues.values():
            self._check_files(queue.view)

    def take(self, batch: RecordBatch, start: int) -> None:
        """Compare the records of a batch, of a file that starts at ``start``, with their queues."""
        kinds = batch.sys_flags & TRANSACTION_MASK
        queued = (kinds != TransactionType.PREPARED) & (kinds != TransactionType.ROLLBACK)
        names = list(dict.fromkeys(batch.topics))
        ids = dict(zip(names, range(len(names)), strict=True))
        topic_ids = np.array([ids[topic] for topic in batch.topics], dtype=np.int64)
        keys = topic_ids << 32 | batch.queue_ids
        rows = np.flatnonzero(queued)
        rows = rows[np.argsort(keys[rows], kind="stable")]
        codes = _tag_codes(batch)
        for part in np.split(rows, np.flatnonzero(np.diff(keys[rows])) + 1):
            if not len(part):
                continue
            topic = batch.topics[part[0]]
            if topic not in self._batch_topics:
                key = topic, int(batch.queue_ids[part[0]])
                self._take_queue(key, batch, start, part, codes)

    def finish(self, log_end: int) -> None:
        """Look at the entries that no record asked for, and say what was missing."""
        for queue in self._queues.values():
            self._check_rest(queue, log_end)
            self._report_missing(queue)
            if queue.predating:
                self._notice_deleted(queue.view.directory.parent.name, queue.predating)
        if self._without_queue:
            self._report_without_queue()

    # --- Records to entries -----------------------------------------------------------------------

    def _take_queue(
        self,
        key: tuple[bytes, int],
        batch: RecordBatch,
        start: int,
        rows: Numbers,
        all_codes: Numbers,
    ) -> None:
        queue = self._queues.get(key)
        physical_offsets = batch.positions[rows] + start
        numbers = batch.queue_offsets[rows]
        if queue is None:
            missing = self._without_queue.get(key)
            if missing is None:
                self._without_queue[key] = _Missing(
                    int(numbers[0]), int(physical_offsets[0]), int(numbers[-1]) + 1, len(rows)
                )
            else:
                missing.count += len(rows)
            return
        codes = all_codes[rows]
        self._report.queue_entries += len(rows)
        first, count = queue.next_number, len(rows)
        if queue.missing is None and np.array_equal(numbers, np.arange(first, first + count)):
            entries = self._read(queue.view, first, count)
            if len(entries) == count:
                wrong = (
                    (entries["physical_offset"] != physical_offsets)
                    | (entries["size"] != batch.sizes[rows])
                    | ~self._match(entries, codes, batch.store_ms[rows])
                )
                if not wrong.any():
                    queue.next_number = first + count
                    return
        for number, row in enumerate(rows.tolist()):
            self._take_one(
                queue,
                int(numbers[number]),
                int(physical_offsets[number]),
                int(batch.sizes[row]),
                int(codes[number]),
                int(batch.store_ms[row]),
            )

    def _take_one(
        self,
        queue: _Queue,
        number: int,
        physical_offset: int,
        size: int,
        code: int,
        store_ms: int,
    ) -> None:
        view = queue.view
        if physical_offset < queue.first_physical_offset or number < queue.first_number:
            queue.predating += 1
            return
        entries = self._read(view, number, 1)
        if not len(entries) or int(entries["size"][0]) == 0:
            self._miss(queue, number, physical_offset)
            return
        entry = entries[0]
        found = int(entry["physical_offset"]), int(entry["size"]), int(entry["tag_code"])
        times = np.array([store_ms], dtype=np.int64)
        is_code_good = self._match(entries, np.array([code]), times).all()
        if found[:2] != (physical_offset, size) or not is_code_good:
            path, position = view.locate(number)
            detail = (
                f"entry {number} of {view} has offset {found[0]}, size {found[1]}, tag code "
                f"{found[2]}; its record has {physical_offset}, {size}, "
                f"{'a delivery time' if code == _DELIVERY else code}"
            )
            self._report.add(
                Damage(Kind.BAD_ENTRY, path, position, ENTRY_BYTES, detail, physical_offset)
            )
            if found[0] != physical_offset:
                # The record's own queue offset may be what is wrong: let its entry be checked too.
                if number == queue.next_number:
                    queue.next_number = number + 1
                return
        self._check_between(queue, number)
        queue.next_number = max(queue.next_number, number + 1)

    def _match(self, entries: Entries, codes: Numbers, store_ms: Numbers) -> npt.NDArray[np.bool_]:
        return _match_codes(entries["tag_code"], codes, store_ms, is_extended=self._is_extended)

    def _miss(self, queue: _Queue, number: int, physical_offset: int) -> None:
        missing = queue.missing
        if missing is not None and missing.end_number == number:
            missing.end_number += 1
            missing.count += 1
            return
        self._report_missing(queue)
        queue.missing = _Missing(number, physical_offset, number + 1, 1)

    def _report_missing(self, queue: _Queue) -> None:
        missing, queue.missing = queue.missing, None
        if missing is None:
            return
        view, report = queue.view, self._report
        if report.is_running:
            view = QueueView(view.topic, view.queue_id, view.directory)  # it may have grown
        # In this order: entries are written in theirs, so the one before is there if this one is.
        following = self._read(view, missing.end_number, 1)
        is_last = not len(following) or int(following["size"][0]) == 0
        if report.is_running:
            last = self._read(view, missing.end_number - 1, 1)
            if len(last) and int(last["size"][0]) > 0:
                return  # dispatched meanwhile
        path, position = view.locate(missing.first_number)
        is_behind = report.may_be_behind and is_last
        report.add(
            Damage(
                Kind.BEHIND if is_behind else Kind.NO_ENTRY,
                path,
                position,
                missing.count * ENTRY_BYTES,
                f"{missing.count} records of {view}, from queue offset {missing.first_number}, "
                "have no queue entry",
                missing.first_physical_offset,
                is_notice=is_behind,
            )
        )

    def _report_without_queue(self) -> None:
        report = self._report
        known = _topic_names(self._view)
        for (raw_topic, queue_id), missing in sorted(self._without_queue.items()):
            topic = raw_topic.decode("utf-8", "replace")
            if not is_topic_name(topic):
                continue  # the scan of the log has said so
            if known is not None and topic not in known:
                self._notice_deleted(topic, missing.count)
                continue
            report.add(
                Damage(
                    Kind.BEHIND if report.may_be_behind else Kind.NO_QUEUE,
                    self._view.queue_directory / topic / str(queue_id),
                    0,
                    0,
                    f"{missing.count} records of {topic}/{queue_id} have no queue",
                    missing.first_physical_offset,
                    is_notice=report.may_be_behind,
                )
            )

    def _notice_deleted(self, topic: str, count: int) -> None:
        self._report.add(
            Damage(
                Kind.DELETED_TOPIC,
                self._view.queue_directory / topic,
                0,
                0,
                f"{count} records of {topic} are older than its queue: the topic was deleted",
                is_notice=True,
            )
        )

    # --- Entries to records -----------------------------------------------------------------------

    def _check_between(self, queue: _Queue, end: int) -> None:
        """Entries that were skipped: nothing in the log asked for them."""
        if end > queue.next_number:
            self._check_unclaimed(queue.view, self._entries(queue.view, queue.next_number, end))

    def _check_rest(self, queue: _Queue, log_end: int) -> None:
        """Entries after the last record's: the log should not have ended before them."""
        view, report = queue.view, self._report
        past_from, past_count = 0, 0

        def within_log() -> Iterator[tuple[int, np.void]]:
            nonlocal past_from, past_count
            for number, entry in self._entries(view, queue.next_number, view.end_number):
                if int(entry["size"]) and int(entry["physical_offset"]) >= log_end:
                    past_from = past_from if past_count else number
                    past_count += 1
                else:
                    yield number, entry

        self._check_unclaimed(view, within_log())
        if past_count and not report.is_running:
            path, position = view.locate(past_from)
            first = int(self._read(view, past_from, 1)["physical_offset"][0])
            detail = (
                f"{past_count} entries of {view}, from {past_from} on, refer to offsets from "
                f"{first} on, but the log ends at {log_end}"
            )
            report.add(
                Damage(Kind.PAST_END, path, position, past_count * ENTRY_BYTES, detail, first)
            )

    def _check_unclaimed(self, view: QueueView, entries: Iterator[tuple[int, np.void]]) -> None:
        """Read what each entry refers to; neighbours with problems make one report."""
        first, count, problem = 0, 0, ""
        for number, entry in entries:
            found = self._entry_problem(view, number, entry)
            if found and count and number == first + count:
                count += 1
                continue
            self._report_dangling(view, first, count, problem)
            first, count, problem = number, 1 if found else 0, found
        self._report_dangling(view, first, count, problem)

    def _report_dangling(self, view: QueueView, first: int, count: int, problem: str) -> None:
        if not count:
            return
        path, position = view.locate(first)
        more = f", and {count - 1} after it" if count > 1 else ""
        self._report.add(
            Damage(
                Kind.DANGLING_ENTRY,
                path,
                position,
                count * ENTRY_BYTES,
                f"entry {first} of {view}: {problem}{more}",
            )
        )

    def _entry_problem(self, view: QueueView, number: int, entry: np.void) -> str:
        physical_offset, size = int(entry["physical_offset"]), int(entry["size"])
        if size == 0:
            return "it is empty, and entries follow"
        if physical_offset < self._log_min:
            return ""  # expired
        record = self._record_at(physical_offset)
        if record is None or record.physical_offset != physical_offset:
            return f"there is no record at {physical_offset}"
        if view.topic.startswith(_LIGHT_PREFIX):
            names = find_property(record.properties, _MULTI_DISPATCH) or b""
            is_named = view.topic in names.decode("utf-8", "replace").split(",")
            return "" if is_named else f"the record at {physical_offset} is not of this queue"
        kind = record.sys_flag & TRANSACTION_MASK
        if kind in (TransactionType.PREPARED, TransactionType.ROLLBACK):
            return f"the record at {physical_offset} is of a kind that goes to no queue"
        if (record.topic, record.queue_id) != (view.topic, view.queue_id):
            other = f"{record.topic}/{record.queue_id}"
            return f"the record at {physical_offset} is of {other}"
        if record.queue_offset != number:
            return f"the record at {physical_offset} has queue offset {record.queue_offset}"
        if record.size != size:
            return f"the record at {physical_offset} has {record.size} bytes, the entry says {size}"
        return ""

    def _record_at(self, physical_offset: int) -> RecordSummary | None:
        for file in self._log_files:
            if file.start <= physical_offset < file.end:
                position = physical_offset - file.start
                try:
                    data = self._log_maps.get(file)
                    if data is None:
                        data = self._log_maps[file] = memoryview(file.map())
                    return read_summary(data, position, max_body_bytes=file.size_bytes)
                except (ProtocolError, FileNotFoundError):
                    return None
        return None

    # --- Reading ----------------------------------------------------------------------------------

    def _check_files(self, view: QueueView) -> None:
        report, files = self._report, view.files
        usual = max((file.size_bytes for file in files), default=0)
        for file in files:
            if file.size_bytes != usual or usual % ENTRY_BYTES:
                detail = f"{file.size_bytes} bytes, the other files of {view} have {usual}"
                is_notice = file.size_bytes == 0 and file == files[-1]
                report.add(Damage(Kind.FILE_SIZE, file.path, 0, 0, detail, is_notice=is_notice))
        for before, after in pairwise(files):
            if before.end != after.start and before.size_bytes == usual:
                detail = f"no file for entries {before.end // 20} to {after.start // 20} of {view}"
                path = after.path.with_name(f"{before.end:020d}")
                report.add(Damage(Kind.MISSING_FILE, path, 0, after.start - before.end, detail))

    def _read(self, view: QueueView, first: int, count: int) -> Entries:
        """Entries [first, first + count), fewer where the files end."""
        parts = []
        for file in view.files:
            if file.end <= first * ENTRY_BYTES:
                continue
            skip = first - file.start // ENTRY_BYTES
            if skip < 0:
                break
            part = self._mapped(file)[skip : skip + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
            if not count:
                break
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, ENTRY_TYPE)

    def _mapped(self, file: StoreFile) -> Entries:
        entries = self._files.get(file)
        if entries is None:
            count = file.size_bytes // ENTRY_BYTES
            try:
                entries = np.frombuffer(file.map(), dtype=ENTRY_TYPE, count=count)
            except (FileNotFoundError, ValueError):
                entries = np.empty(0, ENTRY_TYPE)
            self._files[file] = entries
            if len(self._files) > _OPEN_FILES:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(file)
        return entries

    def _entries(self, view: QueueView, first: int, end: int) -> Iterator[tuple[int, np.void]]:
        """Entries up to the last used one before ``end``, empty ones in between included."""
        used_end = first
        for number, entries in view.chunks(first):
            used = np.flatnonzero(is_entry(entries[: max(end - number, 0)]))
            if used.size:
                used_end = number + int(used[-1]) + 1
        for number, entries in view.chunks(first):
            for offset, entry in enumerate(entries[: max(used_end - number, 0)]):
                yield number + offset, entry


def _tag_codes(batch: RecordBatch) -> Numbers:
    """The tag code that each record's entry should have; _DELIVERY where it is a time."""
    codes = np.zeros(len(batch), dtype=np.int64)
    columns = batch.columns
    tags, hashes = batch.tags
    codes[tags.rows] = hashes.view(np.int32)
    if _SCHEDULE_TOPIC in batch.topics:
        for row in columns.find(_DELAY).rows.tolist():
            if batch.topics[row] == _SCHEDULE_TOPIC:
                codes[row] = _DELIVERY
    return codes


def _match_codes(
    found: npt.NDArray[np.int64], expected: Numbers, store_ms: Numbers, *, is_extended: bool
) -> npt.NDArray[np.bool_]:
    """Tag codes as expected; times of delivery whole seconds after the record was stored."""
    match = found == expected
    if is_extended:
        match |= found < _MIN_TAG_CODE
    times = expected == _DELIVERY
    if times.any():
        delay_ms = found - store_ms
        match |= times & (delay_ms > 0) & (delay_ms <= _MAX_DELAY_MS) & (delay_ms % 1000 == 0)
    return np.asarray(match, dtype=np.bool_)


def _topic_names(view: StoreView) -> set[str] | None:
    """The topics that the broker knows; None when it has no such file, or none to be read."""
    table = TopicTable(view.directory / "config")
    try:
        table.load()
    except DocumentError:
        return None
    return set(table) if len(table) else None
