"""Opening a store's data: find the end of the log, cut what is torn, rebuild what is derived.

``goddard.store.recovery.decide`` has the rules; this module reads the files and acts on the result.
Runs in the opening thread before anything else uses the store.
"""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from goddard.environment.files import Files, make_durable_directories
from goddard.errors import ProtocolError
from goddard.protocol.record import MAGIC_V1, MAGIC_V2
from goddard.store.errors import StoreCorruptError, disk_errors
from goddard.store.index.index import IndexDamage, KeyIndex
from goddard.store.log.commitlog import CommitLog
from goddard.store.log.dispatch import Dispatcher
from goddard.store.log.records import (
    LogEntry,
    ScanStop,
    read_entry,
)
from goddard.store.log.segment import Segment, segment_name
from goddard.store.queues.table import QueueDamage, QueueTable
from goddard.store.recovery.checkpoint import (
    Checkpoint,
    mark_remaking,
    save_checkpoint,
    was_remaking,
)
from goddard.store.recovery.decide import (
    Finding,
    RecoveryReport,
    SegmentStart,
    Tail,
    Verdict,
    choose_start,
    is_torn,
    judge_tail,
)
from goddard.store.recovery.scan import FileScan, read_entries

_log = logging.getLogger("goddard.store")

_CHUNK_BYTES: Final = 1 << 20
_DISPATCH_RECORDS: Final = 1024
_MAGICS: Final = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: of opening 100,000 queues it takes a quarter, and finds none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Remaking:
    """Sees to it that what is made again from the log is made again, if this is not its end.

    Half of a queue looks like a queue. So before the first entry is written, or a file that has to
    be made again is touched, the marks that the next opening goes by say from where on to do it:
    that there was no clean stop, and, where the checkpoint vouches for more, that it does not. The
    log itself is checked as strictly as before.
    """

    def __init__(
        self, files: Files, root: Path, checkpoint: Checkpoint, after_crash: int, is_clean: bool
    ) -> None:
        self._files = files
        self._root = root
        self._checkpoint = checkpoint
        self._repeated_from = after_crash  # where the next opening would begin by itself
        self._is_marked = not is_clean

    def begin(self, physical_offset: int) -> None:
        """Call it before anything changes that is made again from an offset of the log on."""
        if physical_offset < self._repeated_from:
            unknown = replace(self._checkpoint, queue_time_ms=0, index_time_ms=0)
            save_checkpoint(self._files, self._root / "checkpoint", unknown)
            self._repeated_from = 0
        if not self._is_marked:
            mark_remaking(self._files, self._root / "abort")
            self._is_marked = True


class Restorer:
    """One opening of one store."""

    def __init__(
        self,
        files: Files,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        dispatcher: Dispatcher,
        *,
        root: Path,
        check_crc: bool,
    ) -> None:
        self._files = files
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._cut_directory = root / "commitlog.cut"
        self._root = root
        self._check_crc = check_crc

    def restore(
        self, checkpoint: Checkpoint, *, is_clean: bool, cut_corrupt: bool
    ) -> RecoveryReport:
        with _uncollected():
            return self._restore(checkpoint, is_clean=is_clean, cut_corrupt=cut_corrupt)

    def _restore(
        self, checkpoint: Checkpoint, *, is_clean: bool, cut_corrupt: bool
    ) -> RecoveryReport:
        report = RecoveryReport(is_clean)
        self._dispatcher.misplaced = []
        is_log_clean = is_clean or was_remaking(self._files, self._root / "abort")
        log = self._log
        log.load()
        after_crash = self._choose_start(checkpoint, is_clean=False)
        self._remaking = _Remaking(self._files, self._root, checkpoint, after_crash, is_clean)
        # After a crash what is dispatched again is created again, so that the log alone decides.
        keep_below = None if is_clean else after_crash
        damaged_queues = self._queues.load(log.has_record, log.min_offset, keep_below)
        self._index.load()
        damaged_index = self._index.discard_damaged(log.end_offset, is_clean=is_clean)
        if not log.segments:
            self._queues.destroy(list(self._queues))
            self._index.destroy()
            self._index.delete_discarded()
            return report
        damages = [damage.physical_offset for damage in damaged_queues]
        if damaged_index is not None:
            damages.append(damaged_index.physical_offset)
        start, dispatch_from = self._plan(checkpoint, damages, is_clean=is_clean)
        report.started_at = start
        end, reason, last = self._scan(start, dispatch_from, report)
        tail = self._find_tail(end)
        if last is not None:
            if (
                not is_log_clean
                and tail is None
                and last.end_offset == end
                and is_torn(last.properties)
            ):
                end, reason = last.physical_offset, "its properties end in zeros"
                tail = Tail(end, last.end_offset, None, None)
                report.records -= 1
            else:
                log.last_store_timestamp_ms = last.store_timestamp_ms
                if last.physical_offset >= dispatch_from:
                    self._dispatch([last], report)
        verdict = judge_tail(tail, is_clean=is_log_clean, safe_time_ms=checkpoint.safe_log_time_ms)
        if tail is not None:
            self._handle_tail(tail, verdict, reason, report, cut_corrupt=cut_corrupt)
        if is_clean:  # a crash alone explains any of them
            report.findings += _derived_findings(damaged_queues, damaged_index)
        if is_clean and self._queues.max_physical_offset > end:
            report.findings.append(
                Finding(log.directory, end, "queue entries point past the end of the commit log")
            )
        if damages:
            self._remaking.begin(dispatch_from)
        log.truncate(end)
        self._index.delete_discarded()
        if not is_clean:
            # What a killed process wrote may exist in memory alone; from here on it counts as safe.
            for segment, _ in self._segments_from(start):
                segment.sync()
        self._queues.truncate(end)
        self._queues.correct_min(log.min_offset)  # while first entries may be in memory still
        self._dispatcher.write_pending()
        self._dispatcher.dispatched_offset = end
        self._queues.clear_stale()
        for damage in damaged_queues:
            damage.queue.clear_rest()
        for entry in self._dispatcher.misplaced or ():
            text = f"queue offset {entry.queue_offset} does not follow in queue {entry.queue_id}"
            report.findings.append(
                Finding(self._path_at(entry.physical_offset), entry.physical_offset, text)
            )
        self._dispatcher.misplaced = None
        report.end_offset = end
        return report

    def _choose_start(
        self, checkpoint: Checkpoint, *, is_clean: bool, indexed_offset: int = 0
    ) -> int:
        log = self._log
        starts = [
            SegmentStart(segment.base_offset, log.first_store_time_ms(segment))
            for segment in log.segments
        ]
        number = choose_start(
            starts,
            is_clean=is_clean,
            indexed_offset=indexed_offset,
            safe_time_ms=checkpoint.safe_time_ms,
        )
        return starts[number].base_offset if starts else 0

    def _plan(
        self, checkpoint: Checkpoint, damages: list[int], *, is_clean: bool
    ) -> tuple[int, int]:
        """Where to start reading, and from where on to dispatch."""
        log = self._log
        indexed_offset = self._queues.max_physical_offset
        start = self._choose_start(checkpoint, is_clean=is_clean, indexed_offset=indexed_offset)
        if is_clean:
            dispatch_from = max(indexed_offset, log.min_offset)
            missing_from = None if self._index.files else 0
        else:
            dispatch_from = start
            missing_from = self._index.repair(start, checkpoint.index_time_ms, self._remaking.begin)
        if missing_from is not None:
            damages = [*damages, missing_from]
        if not self._queues:
            damages = [*damages, 0]
        for offset in damages:
            dispatch_from = min(dispatch_from, max(offset, log.min_offset))
        if not is_clean:
            self._queues.truncate(dispatch_from)
        return min(start, dispatch_from // log.segment_bytes * log.segment_bytes), dispatch_from

    def _scan(
        self, start: int, dispatch_from: int, report: RecoveryReport
    ) -> tuple[int, str, LogEntry | None]:
        """Read records from ``start`` and dispatch all but the last.

        Returns the end of the last good record, why reading ended there, and that record.
        """
        log = self._log
        end, reason = start, ""
        group: list[LogEntry] = []
        last: LogEntry | None = None
        segment = log.segment_at(start)
        while segment is not None:
            # Thousands at a time while all is well, then one by one to the exact end.
            batches = FileScan(segment.map, segment.base_offset, check_crc=self._check_crc)
            position = 0
            for batch in batches.until_flaw():
                entries = read_entries(
                    batch, segment.base_offset, dispatch_from, log.delay_times_ms
                )
                if entries is None:
                    break
                report.records += len(batch)
                last = self._collect(entries, last, group, dispatch_from, report)
                position = int(batch.positions[-1] + batch.sizes[-1])
            scan = log.scan_segment(segment, position, check_crc=self._check_crc)
            for entry in scan:
                report.records += 1
                last = self._collect([entry], last, group, dispatch_from, report)
            if scan.stop is ScanStop.INVALID:
                end, reason = segment.base_offset + scan.position, scan.reason
                break
            end = segment.end_offset
            segment = log.segment_at(end)
        self._dispatch(group, report)
        return end, reason, last

    def _collect(
        self,
        entries: list[LogEntry],
        last: LogEntry | None,
        group: list[LogEntry],
        dispatch_from: int,
        report: RecoveryReport,
    ) -> LogEntry:
        """Queue records for dispatch but for the newest, which is returned: it may be torn."""
        if last is not None and last.physical_offset >= dispatch_from:
            group.append(last)
        group += entries[:-1]
        if len(group) >= _DISPATCH_RECORDS:
            self._dispatch(group, report)
        return entries[-1]

    def _dispatch(self, group: list[LogEntry], report: RecoveryReport) -> None:
        if group:
            self._remaking.begin(group[0].physical_offset)
        report.dispatched += len(group)
        self._dispatcher.apply(group)
        if self._index.is_behind:
            self._dispatcher.write_pending()
        if self._dispatcher.trouble is not None:
            raise self._dispatcher.trouble
        group.clear()

    def _segments_from(self, offset: int) -> Iterator[tuple[Segment, int]]:
        """Each segment from an offset on, with the position in it to begin at."""
        for segment in self._log.segments:
            if segment.end_offset > offset:
                yield segment, max(offset - segment.base_offset, 0)

    def _find_tail(self, end: int) -> Tail | None:
        """What is not zero after the end of the last good record."""
        last = end
        found: LogEntry | None = None
        for segment, start in self._segments_from(end):
            position = start
            while position < segment.size:
                position = segment.data_start(position, segment.size)
                stop = min(position + _CHUNK_BYTES, segment.size)
                chunk = bytes(segment.view[position:stop]).rstrip(b"\0")
                if chunk:
                    last = segment.base_offset + position + len(chunk)
                    found = found or _find_record(segment, max(position - 8, start), stop)
                position = max(stop, position + 1)
        if last == end:
            return None
        return Tail(
            end,
            last,
            None if found is None else found.physical_offset,
            None if found is None else found.store_timestamp_ms,
        )

    def _handle_tail(
        self,
        tail: Tail,
        verdict: Verdict,
        reason: str,
        report: RecoveryReport,
        *,
        cut_corrupt: bool,
    ) -> None:
        path = self._path_at(tail.start_offset)
        if verdict is Verdict.CORRUPT and not cut_corrupt:
            raise StoreCorruptError(
                f"{path} is damaged at offset {tail.start_offset} ({reason}), and good records"
                f" follow at {tail.next_record_offset}; nothing was changed. Restore the file, or"
                f" run `goddard store repair {self._log.directory.parent} --cut-corrupt --copy-to"
                " COPY --yes`, which cuts the log there and sets the rest aside",
                path,
                tail.start_offset,
            )
        text = f"{verdict.value} ({reason}); it was cut, {tail.end_offset} was its end"
        report.findings.append(Finding(path, tail.start_offset, text))
        report.cut_bytes = tail.end_offset - tail.start_offset
        for segment, start in self._segments_from(tail.start_offset):
            stop = min(tail.end_offset - segment.base_offset, segment.size)
            if start < stop:
                report.cut_files.append(self._save(segment, start, stop))

    def _save(self, segment: Segment, start: int, stop: int) -> Path:
        """Copy a range of a segment to a side file named by its first offset."""
        name = segment_name(segment.base_offset + start)
        with disk_errors("create", self._cut_directory):
            make_durable_directories(self._files, self._cut_directory)
            taken = self._files.names(self._cut_directory)
        number = sum(1 for other in taken if other.startswith(name))
        path = self._cut_directory / (f"{name}.{number}" if number else name)
        with disk_errors("write", path):
            fd = self._files.open(path, create=True)
            try:
                for position in range(start, stop, _CHUNK_BYTES):
                    chunk = bytes(segment.view[position : min(position + _CHUNK_BYTES, stop)])
                    self._files.pwrite(fd, chunk, position - start)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._files.sync_directory(self._cut_directory)
        return path

    def _path_at(self, offset: int) -> Path:
        segment = self._log.segment_at(offset)
        return self._log.directory if segment is None else segment.path


def log_report(report: RecoveryReport, root: Path, elapsed_ms: int) -> None:
    for finding in report.findings:
        _log.warning("%s at log offset %d: %s", finding.path, finding.physical_offset, finding.text)
    _log.info(
        "store %s opened after %s stop: %d records read, %d dispatched, %d bytes cut, %.1f s",
        root,
        "a clean" if report.is_clean else "an unclean",
        report.records,
        report.dispatched,
        report.cut_bytes,
        elapsed_ms / 1000,
    )


def _derived_findings(queues: list[QueueDamage], index: IndexDamage | None) -> Iterator[Finding]:
    for queue, physical_offset, queue_offset in queues:
        text = (
            f"entries of {queue.topic}/{queue.queue_id} from queue offset {queue_offset} on were"
            f" damaged; made again from the commit log, the queue now ends at {queue.max_offset}"
        )
        yield Finding(queue.directory, physical_offset, text)
    if index is not None:
        text = f"{index.text}; this file and later ones were made again from the commit log"
        yield Finding(index.path, index.physical_offset, text)


def _find_record(segment: Segment, start: int, stop: int) -> LogEntry | None:
    """The first whole, good record that begins in a range of a segment."""
    # A record's magic follows its four bytes of size.
    data = bytes(segment.view[start : min(stop + 8, segment.size)])
    positions = []
    for magic in _MAGICS:
        at = data.find(magic)
        while at >= 0:
            positions.append(start + at - 4)
            at = data.find(magic, at + 1)
    for position in sorted(positions):
        if position < 0:
            continue
        try:
            return read_entry(segment.view, position, segment.base_offset + position)
        except ProtocolError:
            continue
    return None
