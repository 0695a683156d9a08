"""The key index against the log, and each index file against itself.

A file must be a forest of chains: the slot of a hash holds the newest entry with it, each entry
the number of the one before. Entries stand in the order of the log, so a batch of records and the
stretch of entries that refers to it are compared as two arrays; where they differ, record by
record. Keys of a record are, in this order: its unique id, its keys, and (5.4 on) its tag.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goddard.protocol.hashing import index_hash, java_hash
from goddard.protocol.message import (
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_ID,
    TRANSACTION_MASK,
    TransactionType,
    find_property,
)
from goddard.store.check.damage import Damage, Kind, Report
from goddard.store.check.inspect import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    Entries,
    IndexView,
    StoreView,
)
from goddard.store.index.bulk_hashing import java_hashes
from goddard.store.index.columns import Hashes, PropertyColumns, Spans, prefixed_hashes
from goddard.store.recovery.scan import RecordBatch

_UNIQUE: Final = PROPERTY_UNIQUE_ID.encode()
_KEYS: Final = PROPERTY_KEYS.encode()
_TAGS: Final = PROPERTY_TAGS.encode()
_TOPIC_CACHE_SIZE: Final = 100_000
_MAX_SECONDS: Final = 0x7FFFFFFF
_MAX_OFFSET: Final = 2**63 - 1
_CHUNK_ENTRIES: Final = 65_536

Numbers = npt.NDArray[np.int64]


class _File:
    """An index file whose entries can be read. They stay in the mapped file: there may be many."""

    def __init__(self, view: IndexView, slot_count: int, base_ms: int | None) -> None:
        self.view = view
        self.slot_count = slot_count
        # The first entry's time counts from the end of the file before, an oddity of Java's.
        self.first_base_ms = base_ms
        self.entries = view.entries(slot_count)[1:]  # entry 0 is never used
        self.descents = self._find_descents()
        # Where the order of the log is broken, numbers in that order; else they are the order.
        self._order: Numbers | None = None
        if self.descents:
            self._order = np.argsort(self.entries["physical_offset"], kind="stable")
            self.entries = self.entries[self._order]

    def chunks(self) -> Iterator[tuple[int, Entries]]:
        """The entries, some thousand at a time, with the number of the first."""
        for first in range(0, len(self.entries), _CHUNK_ENTRIES):
            yield first + 1, self.entries[first : first + _CHUNK_ENTRIES]

    def _find_descents(self) -> list[int]:
        """Numbers of the entries whose offset is lower than that of the entry before."""
        found: list[int] = []
        last = -1
        for number, entries in self.chunks():
            offsets = np.append(last, entries["physical_offset"].astype(np.int64))
            found += (np.flatnonzero(offsets[1:] < offsets[:-1]) + number).tolist()
            last = int(offsets[-1])
        return found

    def window(self, low: int, high: int) -> "_Window | None":
        """The entries that refer to offsets from ``low`` to ``high``."""
        places, offset_at = range(len(self.entries)), self._offset_at
        first = bisect_left(places, low, key=offset_at)
        end = bisect_right(places, high, key=offset_at)
        if first >= end:
            return None
        entries = self.entries[first:end]
        return _Window(
            self,
            np.arange(first, end) + 1 if self._order is None else self._order[first:end] + 1,
            entries["physical_offset"].astype(np.int64),
            entries["key_hash"].astype(np.int64),
            entries["seconds"].astype(np.int64),
        )

    def _offset_at(self, place: int) -> int:
        return int(self.entries["physical_offset"][place])

    def position(self, number: int) -> int:
        return self.view.entry_position(self.slot_count, number)


class _Window(NamedTuple):
    """Some entries of a file, in columns."""

    file: _File
    numbers: Numbers
    physical_offsets: Numbers
    hashes: Numbers
    seconds: Numbers


class _Prefix(NamedTuple):
    """Unsigned hashes of what precedes a key, and of what precedes a tag, of one topic."""

    key_hash: int
    tag_hash: int


class IndexCheck:
    """Give it every batch of the log in order, then ``finish``."""

    def __init__(self, view: StoreView, report: Report) -> None:
        self._report = report
        self._directory = view.index_directory
        self._files: list[_File] = []
        self._last: IndexView | None = None
        # First offset and number of records in a row that the index does not have.
        self._missing_from = 0
        self._missing_count = 0
        self._has_tags = True
        self._prefixes: dict[bytes, _Prefix] = {}
        self._load(view)

    # --- Each file by itself ----------------------------------------------------------------------

    def _load(self, view: StoreView) -> None:
        report = self._report
        views: list[IndexView] = []
        for file in view.index_files():
            if file.size_bytes == 0 and report.is_running:
                continue  # being made at this moment
            if file.size_bytes < INDEX_HEADER.size:
                detail = f"{file.size_bytes} bytes are no index file"
                report.add(Damage(Kind.FILE_SIZE, file.path, 0, 0, detail))
                continue
            try:
                views.append(IndexView(file))
            except FileNotFoundError:
                continue  # expired since the directory was listed
        self._last = views[-1] if views else None
        known = {each.file.size_bytes: each.slot_count for each in views if each.slot_count}
        # The first file there ever was begins with its own first entry; of one that follows an
        # expired file nobody knows any more.
        base_ms = views[0].header.begin_ms if views and not report.min_physical_offset else None
        for each in views:
            slot_count = each.slot_count or known.get(each.file.size_bytes)
            report.index_files += 1
            if slot_count is None:
                if each.header.next_number != 1:
                    self._add(each, 0, INDEX_HEADER.size, "its header fits no table of slots")
                continue
            checked = _File(each, slot_count, base_ms)
            base_ms = each.header.end_ms
            report.index_entries += each.entry_count
            self._files.append(checked)
            if not (report.is_running and each is self._last):
                self._check_header(checked)
                self._check_chains(checked)

    def _check_header(self, file: _File) -> None:
        view, header = file.view, file.view.header
        if not 1 <= header.next_number <= view.capacity(file.slot_count):
            self._add(view, 36, 4, f"{header.next_number} as the next entry's number")
        entries = view.entries(file.slot_count)
        if len(entries) < 2:
            return
        first, last = int(entries["physical_offset"][1]), int(entries["physical_offset"][-1])
        if header.begin_physical_offset != first:
            self._add(view, 16, 8, f"first offset {header.begin_physical_offset}, not {first}")
        if header.end_physical_offset != last:
            self._add(view, 24, 8, f"last offset {header.end_physical_offset}, not {last}")
        used = int(np.count_nonzero(view.slots(file.slot_count)))
        if header.used_slots != used:
            self._add(view, 32, 4, f"{header.used_slots} slots in use, there are {used}")
        if not 0 < header.begin_ms <= header.end_ms:
            self._add(view, 0, 16, f"times from {header.begin_ms} to {header.end_ms}")

    def _check_chains(self, file: _File) -> None:
        """Follow the entries in their order, with the slots as they were at each."""
        heads = np.zeros(file.slot_count, dtype=np.int64)
        entries = file.view.entries(file.slot_count)[1:]
        for first in range(0, len(entries), _CHUNK_ENTRIES):
            chunk = entries[first : first + _CHUNK_ENTRIES]
            hashes = chunk["key_hash"].astype(np.int64)
            for place in np.flatnonzero(hashes < 0).tolist():
                self._add_entry(file, first + place + 1, f"a hash of {hashes[place]}")
            slots = np.abs(hashes) % file.slot_count
            order = np.argsort(slots, kind="stable")
            is_same = slots[order[1:]] == slots[order[:-1]]
            expected = heads[slots]
            expected[order[1:][is_same]] = order[:-1][is_same] + first + 1
            for place in np.flatnonzero(chunk["previous"] != expected).tolist():
                found = int(chunk["previous"][place])
                detail = f"its chain goes on at {found}, not {expected[place]}"
                self._add_entry(file, first + place + 1, detail)
            is_newest = np.ones(len(order), dtype=np.bool_)
            is_newest[:-1] = ~is_same
            heads[slots[order[is_newest]]] = order[is_newest] + first + 1
        table = file.view.slots(file.slot_count)
        for slot in np.flatnonzero(table != heads).tolist():
            position = INDEX_HEADER.size + 4 * slot
            detail = f"slot {slot} holds {table[slot]}, not {heads[slot]}"
            self._add(file.view, position, 4, detail)

    # --- Against the log --------------------------------------------------------------------------

    def take(self, batch: RecordBatch, start: int) -> None:
        """Compare the records of a batch, of a file that starts at ``start``, with the index."""
        if not self._files or not len(batch):
            return
        physical_offsets = batch.positions + start
        low, high = int(physical_offsets[0]), int(physical_offsets[-1])
        windows = [file.window(low, high) for file in self._files]
        found = [window for window in windows if window is not None]
        if not self._is_equal(batch, physical_offsets, found):
            # Before 5.4 tags are not indexed; a store has seen one kind of broker or both.
            self._has_tags = not self._has_tags
            if not self._is_equal(batch, physical_offsets, found):
                self._has_tags = True
                self._compare(batch, physical_offsets, found)
        for window in found:
            self._check_times(window, physical_offsets, batch.store_ms)

    def finish(self, log_end: int) -> None:
        """What refers to nothing in the log, and what was missing."""
        report = self._report
        self._report_missing(is_end=True)
        for file in self._files:
            for number in file.descents:
                self._add_entry(file, number, "its offset is lower than that of the entry before")
            past = None if report.is_running else file.window(log_end, _MAX_OFFSET)
            if past is not None:
                detail = f"it refers to {past.physical_offsets[0]}, the log ends at {log_end}"
                self._add_entry(file, int(past.numbers[0]), detail, count=len(past.numbers))
        # A running broker writes the header of its last file after the entries.
        settled = self._files[:-1] if report.is_running else self._files
        for before, after in pairwise(settled):
            if before.view.header.end_physical_offset > after.view.header.begin_physical_offset:
                self._add(after.view, 16, 8, "it begins before the file before it ends")
        if not self._files and report.records:
            detail = "there is no key index; queries by key or message id find nothing"
            report.add(Damage(Kind.NO_INDEX, self._directory, 0, 0, detail, is_notice=True))

    def _is_equal(
        self, batch: RecordBatch, physical_offsets: Numbers, found: list[_Window]
    ) -> bool:
        """Whether the index has exactly what the batch should have there, in its order."""
        rows, hashes = self._expected(batch)
        if sum(len(window.numbers) for window in found) != len(rows):
            return False
        position = 0
        for window in found:
            part = slice(position, position + len(window.numbers))
            position = part.stop
            if not np.array_equal(window.hashes, hashes[part]):
                return False
            if not np.array_equal(window.physical_offsets, physical_offsets[rows[part]]):
                return False
        self._report_missing(is_end=False)
        return True

    def _expected(self, batch: RecordBatch) -> tuple[Numbers, Numbers]:
        """Rows and hashes of the entries that the batch should have, in their order."""
        columns = batch.columns
        known = {topic: self._prefix(topic) for topic in set(batch.topics)}
        prefixes = _column({topic: prefix.key_hash for topic, prefix in known.items()}, batch)
        unique = columns.find(_UNIQUE)
        parts = [
            _joined_hashes(columns, unique, columns.hashes(unique), prefixes),
            _key_hashes(batch),
        ]
        if self._has_tags:
            tag_prefixes = _column({name: each.tag_hash for name, each in known.items()}, batch)
            parts.append(_joined_hashes(columns, *batch.tags, tag_prefixes))
        rows = np.concatenate([part[0] for part in parts])
        hashes = np.concatenate([part[1] for part in parts])
        order = np.argsort(rows, kind="stable")
        kinds = batch.sys_flags[rows[order]] & TRANSACTION_MASK
        order = order[kinds != TransactionType.ROLLBACK]
        return rows[order], hashes[order]

    def _prefix(self, topic: bytes) -> _Prefix:
        prefix = self._prefixes.get(topic)
        if prefix is None:
            name = topic.decode("utf-8", "replace")
            keys, tags = java_hash(f"{name}#"), java_hash(f"{name}#T#")
            prefix = _Prefix(keys & 0xFFFFFFFF, tags & 0xFFFFFFFF)
            if len(self._prefixes) < _TOPIC_CACHE_SIZE:
                self._prefixes[topic] = prefix
        return prefix

    def _compare(self, batch: RecordBatch, physical_offsets: Numbers, found: list[_Window]) -> None:
        """Record by record: every key must have an entry, and every entry be of a key."""
        rows, hashes = self._expected(batch)
        wanted: dict[int, set[int]] = {}
        for offset, value in zip(physical_offsets[rows].tolist(), hashes.tolist(), strict=True):
            wanted.setdefault(offset, set()).add(value)
        records = set(physical_offsets.tolist())
        present: dict[int, set[int]] = {}
        for window in found:
            columns = (window.numbers, window.physical_offsets, window.hashes)
            for number, offset, value in zip(*map(np.ndarray.tolist, columns), strict=True):
                present.setdefault(offset, set()).add(value)
                if value not in wanted.get(offset, ()):
                    what = "no key of the record" if offset in records else "no record starts"
                    detail = f"hash {value}, offset {offset}: {what} there"
                    self._add_entry(window.file, number, detail)
        for row, offset in enumerate(physical_offsets.tolist()):
            missing = wanted.get(offset, set()) - present.get(offset, set())
            tag = find_property(batch.properties[row], _TAGS)
            if tag:
                missing.discard(_tag_hash(batch.topics[row], tag))
            if not missing:
                if offset in wanted:
                    self._report_missing(is_end=False)
                continue
            if not self._missing_count:
                self._missing_from = offset
            self._missing_count += 1

    def _check_times(self, window: _Window, physical_offsets: Numbers, store_ms: Numbers) -> None:
        """An entry's seconds are those from the file's begin to the record's store time."""
        file, numbers = window.file, window.numbers
        rows = np.searchsorted(physical_offsets, window.physical_offsets)
        rows = np.minimum(rows, len(physical_offsets) - 1)
        is_record = physical_offsets[rows] == window.physical_offsets
        times = store_ms[rows]
        self._check_ends(file, numbers[is_record], times[is_record])
        begins = np.full(len(rows), file.view.header.begin_ms)
        is_first = numbers == 1
        if file.first_base_ms is None:
            is_record &= ~is_first
        else:
            begins[is_first] = file.first_base_ms
        expected = np.clip((times - begins) // 1000, 0, _MAX_SECONDS)
        for each in np.flatnonzero(is_record & (expected != window.seconds)).tolist():
            detail = f"{window.seconds[each]} seconds after the first, not {expected[each]}"
            self._add_entry(file, int(numbers[each]), detail)

    def _check_ends(self, file: _File, numbers: Numbers, times: Numbers) -> None:
        """The header's times are those of the first and the last entry's records."""
        header = file.view.header
        ends = ((1, 0, header.begin_ms), (file.view.entry_count, 8, header.end_ms))
        for number, position, time_ms in ends:
            for stored_ms in times[numbers == number].tolist():
                if stored_ms != time_ms:
                    detail = f"time {time_ms}, entry {number}'s record is of {stored_ms}"
                    self._add(file.view, position, 8, detail)

    # --- Reporting --------------------------------------------------------------------------------

    def _report_missing(self, *, is_end: bool) -> None:
        count, self._missing_count = self._missing_count, 0
        if not count:
            return
        is_behind = is_end and self._report.may_be_behind
        self._report.add(
            Damage(
                Kind.BEHIND if is_behind else Kind.NO_INDEX,
                self._directory,
                0,
                0,
                f"{count} records from offset {self._missing_from} on are not in the key index",
                self._missing_from,
                is_notice=is_behind,
            )
        )

    def _add_entry(self, file: _File, number: int, problem: str, count: int = 1) -> None:
        more = f", and {count - 1} more" if count > 1 else ""
        self._add(
            file.view, file.position(number), INDEX_ENTRY_BYTES, f"entry {number}: {problem}{more}"
        )

    def _add(self, view: IndexView, position: int, length: int, detail: str) -> None:
        # The last file is written in several steps: entries, slots, header. A broker that runs,
        # or was killed, may be between them, and the next start puts them right.
        is_behind = self._report.may_be_behind and view is self._last
        kind = Kind.BEHIND if is_behind else Kind.BAD_INDEX
        path = view.file.path
        self._report.add(Damage(kind, path, position, length, detail, is_notice=is_behind))


def _column(hashes: dict[bytes, int], batch: RecordBatch) -> Hashes:
    """A number of each record's topic."""
    if len(hashes) == 1:
        return np.full(len(batch), next(iter(hashes.values())), dtype=np.uint32)
    return np.array([hashes[topic] for topic in batch.topics], dtype=np.uint32)


def _tag_hash(topic: bytes, tag: bytes) -> int:
    return index_hash(f"{topic.decode('utf-8', 'replace')}#T#{tag.decode('utf-8', 'replace')}")


def _joined_hashes(
    columns: PropertyColumns, spans: Spans, hashes: Hashes, prefixes: Hashes
) -> tuple[Numbers, Numbers]:
    """Rows and hashes of prefix + value, for the records that have the property."""
    lengths = columns.utf16_lengths(spans)
    return spans.rows, prefixed_hashes(prefixes[spans.rows], hashes, lengths)


def _key_hashes(batch: RecordBatch) -> tuple[Numbers, Numbers]:
    """Rows and hashes of the users' keys, of which a record may have several."""
    rows: list[int] = []
    texts: list[str] = []
    for row, start, end in zip(*map(np.ndarray.tolist, batch.columns.find(_KEYS)), strict=True):
        topic = batch.topics[row].decode("utf-8", "replace")
        for key in batch.columns.text(start, end).split(KEY_SEPARATOR):
            if key:
                rows.append(row)
                texts.append(f"{topic}#{key}")
    values = np.abs(java_hashes(texts).astype(np.int64))
    return np.array(rows, dtype=np.int64), np.where(values > 0x7FFFFFFF, 0, values)
