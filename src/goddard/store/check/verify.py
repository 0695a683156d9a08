"""Checks a whole store directory, ours or Java's, without changing or locking anything.

Every record: magic, sizes, CRC, physical offset. Every queue entry against its record and every
record against its queue entry, every index entry against its record and its chain, the checkpoint
and the metadata files. One pass over the log; memory grows with queues and files, not records.

On a running broker's directory the end of everything moves: what looks wrong there is looked at
again, and what is merely not there yet is not damage. After an unclean stop, queues and index may
be behind the log, which the next start mends: that is a notice, not damage.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

from goddard.clock import SystemClock
from goddard.environment.threads import pause
from goddard.errors import ProtocolError
from goddard.protocol.record import decode_record
from goddard.store.check.damage import Damage, Kind, Report
from goddard.store.check.inspect import StoreFile, StoreView
from goddard.store.check.verify_index import IndexCheck
from goddard.store.check.verify_queues import QueueCheck
from goddard.store.jsonfile import decode_document
from goddard.store.recovery.scan import Fault, FileEnd, FileScan, Flaw

_METADATA_FILES: Final = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
)
_CHECKPOINT_NAMES: Final = ("physical", "logical", "index")
_SETTLE_MS: Final = 2_000
_SETTLE_STEP_SECONDS: Final = 0.05

_KINDS: Final = {
    Fault.UNREADABLE: Kind.UNREADABLE,
    Fault.BAD_RECORD: Kind.BAD_RECORD,
    Fault.BAD_TOPIC: Kind.BAD_RECORD,
    Fault.BAD_CRC: Kind.BAD_CRC,
    Fault.BAD_PROPERTY_CRC: Kind.BAD_CRC,
    Fault.MISPLACED: Kind.MISPLACED,
    Fault.CUT_PROPERTIES: Kind.BAD_RECORD,
    Fault.BAD_FILLER: Kind.BAD_FILLER,
    Fault.TORN_TAIL: Kind.TORN_TAIL,
}

Progress = Callable[[int, int], None]


def verify(
    view: StoreView,
    *,
    check_crc: bool = True,
    on_damage: Callable[[Damage], None] | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Check everything; ``on_damage`` hears of each damage when it is found."""
    return _Verification(view, check_crc, on_damage, on_progress).run()


class _Verification:
    def __init__(
        self,
        view: StoreView,
        check_crc: bool,
        on_damage: Callable[[Damage], None] | None,
        on_progress: Progress | None,
    ) -> None:
        self._view = view
        self._check_crc = check_crc
        self._progress = on_progress or (lambda _done, _total: None)
        self._report = Report(
            is_running=view.is_running, is_unclean=view.has_abort, on_damage=on_damage
        )
        self._last_store_ms = 0
        self._done_bytes = 0

    def run(self) -> Report:
        clock = SystemClock()
        began_ms = clock.monotonic_ms()
        report = self._report
        files = self._log_files()
        queues = QueueCheck(self._view, files, report)
        index = IndexCheck(self._view, report)
        suspects = self._scan_log(files, queues, index)
        for file, flaw in suspects:
            if not (report.is_running and _has_settled(file, flaw)):
                self._add_flaw(file, flaw)
        queues.finish(report.max_physical_offset)
        index.finish(report.max_physical_offset)
        self._check_checkpoint()
        self._check_metadata()
        for path in self._view.foreign_files():
            report.add(Damage(Kind.FOREIGN_FILE, path, 0, 0, f"{path.name} is not a store's file"))
        report.seconds = (clock.monotonic_ms() - began_ms) / 1000
        return report

    def _log_files(self) -> list[StoreFile]:
        """The files of the log that can be read as such, after saying what is wrong with others."""
        report, files = self._report, self._view.log_files()
        if not files:
            return []
        usual = self._view.segment_bytes()
        # The records of a lone file of a strange size are all there is to look at.
        good = [file for file in files if file.size_bytes and usual in (None, file.size_bytes)]
        for file in files:
            if file.size_bytes != usual:
                detail = f"{file.size_bytes} bytes, " + (
                    "which is no size of a log file: it was cut short"
                    if usual is None
                    else f"the other files have {usual}"
                )
                # Made but not yet extended when the process died: every broker removes it.
                is_notice = file.size_bytes == 0 and file == files[-1]
                report.add(Damage(Kind.FILE_SIZE, file.path, 0, 0, detail, is_notice=is_notice))
        for before, after in pairwise(good):
            if before.end != after.start:
                detail = f"no file for offsets {before.end} to {after.start}"
                path = after.path.with_name(f"{before.end:020d}")
                report.add(Damage(Kind.MISSING_FILE, path, 0, after.start - before.end, detail))
        report.log_files = len(good)
        report.log_bytes = sum(file.size_bytes for file in good)
        report.min_physical_offset = good[0].start if good else 0
        report.max_physical_offset = report.min_physical_offset
        return good

    def _scan_log(
        self, files: list[StoreFile], queues: QueueCheck, index: IndexCheck
    ) -> list[tuple[StoreFile, Flaw]]:
        """One pass over all records; flaws of a running broker's log are suspicions as yet."""
        report = self._report
        suspects: list[tuple[StoreFile, Flaw]] = []
        opened: tuple[StoreFile, int] | None = None
        for number, file in enumerate(files):
            following = files[number + 1] if number + 1 < len(files) else None
            try:
                end, end_position, flaws, seen = self._scan_file(file, following, queues, index)
            except FileNotFoundError:
                continue  # expired since the directory was listed
            self._done_bytes += file.size_bytes
            self._progress(self._done_bytes, report.log_bytes)
            if opened is not None and (seen or flaws):
                self._report_hole(*opened)
                opened = None
            if report.is_running:
                suspects += [(file, flaw) for flaw in flaws]
            else:
                for flaw in flaws:
                    self._add_flaw(file, flaw)
            if end is FileEnd.FILLED:
                report.max_physical_offset = file.end
            elif opened is None:
                opened = (file, end_position)
                report.max_physical_offset = file.start + end_position
                if report.is_running and not _is_begun(following):
                    break  # what comes later came after us
        return suspects

    def _scan_file(
        self,
        file: StoreFile,
        following: StoreFile | None,
        queues: QueueCheck,
        index: IndexCheck,
    ) -> tuple[FileEnd, int, list[Flaw], int]:
        """Check the records of a file: how and where it ended, its flaws, its number of records."""
        flaws: list[Flaw] = []
        position = total = 0
        while True:
            # A running broker may fill this file and go on from when its end is looked up here: had
            # it before?
            was_begun = self._report.is_running and _is_begun(following)
            scan = FileScan(
                file.map(),
                file.start,
                first_position=position,
                check_crc=self._check_crc,
                data_end=file.data_end(),
            )
            count = 0
            for batch in scan:
                count += len(batch)
                queues.take(batch, file.start)
                index.take(batch, file.start)
                self._last_store_ms = max(self._last_store_ms, int(batch.store_ms.max()))
                last = int(batch.positions[-1] + batch.sizes[-1])
                self._progress(self._done_bytes + last, self._report.log_bytes)
            position, total = scan.end_position, total + count
            flaws += scan.flaws
            self._report.records += count
            is_surprised = self._report.is_running and not was_begun and _is_begun(following)
            if scan.end is FileEnd.FILLED or not is_surprised:
                return scan.end, position, flaws, total

    def _report_hole(self, file: StoreFile, position: int) -> None:
        """The log ended in this file, and yet the next one has records."""
        length = file.size_bytes - position
        detail = f"{length} bytes to the end of the file hold no record, and the next file does"
        self._add_flaw(file, Flaw(Fault.UNREADABLE, position, length, detail))

    def _add_flaw(self, file: StoreFile, flaw: Flaw) -> None:
        self._report.add(
            Damage(
                _KINDS[flaw.fault],
                file.path,
                flaw.position,
                flaw.length,
                f"{flaw.fault.value}: {flaw.detail}",
                physical_offset=file.start + flaw.position,
            )
        )

    def _check_checkpoint(self) -> None:
        report, path = self._report, self._view.directory / "checkpoint"
        if report.is_running:
            return
        checkpoint = self._view.checkpoint()
        if checkpoint is None:
            if path.exists():
                detail = f"{path.stat().st_size} bytes are too few"
                report.add(Damage(Kind.CHECKPOINT, path, 0, 0, detail))
            return
        times = (checkpoint.physical_ms, checkpoint.logical_ms, checkpoint.index_ms)
        for number, (name, time_ms) in enumerate(zip(_CHECKPOINT_NAMES, times, strict=True)):
            if not 0 <= time_ms <= self._last_store_ms:
                detail = (
                    f"the {name} time {time_ms} is not between 0 and that of the last record, "
                    f"{self._last_store_ms}: recovery would trust too much"
                )
                report.add(Damage(Kind.CHECKPOINT, path, 8 * number, 8, detail))

    def _check_metadata(self) -> None:
        for name in _METADATA_FILES:
            path = self._view.directory / "config" / name
            for each in (path, path.with_name(name + ".bak")):
                problem = _metadata_problem(each)
                if problem:
                    self._report.add(Damage(Kind.METADATA, each, 0, 0, problem))


def _is_begun(file: StoreFile | None) -> bool:
    return file is not None and any(file.map()[:8])


def _has_settled(file: StoreFile, flaw: Flaw) -> bool:
    """Whether what a running broker was about to write has become a record by now."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + _SETTLE_MS
    while True:
        try:
            data = memoryview(file.map())
        except FileNotFoundError:
            return True  # expired meanwhile
        try:
            record, _ = decode_record(data, flaw.position, max_body_bytes=file.size_bytes)
        except ProtocolError:
            pass
        else:
            if record.physical_offset == file.start + flaw.position:
                return True
        if flaw.fault is Fault.TORN_TAIL and not any(data[flaw.position : flaw.position + 8]):
            return True
        if clock.monotonic_ms() > deadline_ms:
            return False
        pause(_SETTLE_STEP_SECONDS)


def _metadata_problem(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)
    if not data.strip():
        return "" if path.suffix == ".bak" else "the file is empty"
    try:
        decode_document(data)
    except ProtocolError as error:
        return str(error)
    return ""
