"""Crashes: acknowledged messages exist afterwards exactly once, and nothing else does.

Processes killed at random moments (GODDARD_CRASH_CYCLES, per flush mode), power cuts at every sync
of a scripted workload, with unsynced pages lost and with some of them kept.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.errors import StoreError
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.record import decode_record
from goddard.store.check.inspect import StoreView
from goddard.store.check.verify import verify
from goddard.store.config import FlushMode
from goddard.store.jsonfile import Origin
from goddard.store.log.reading import GetStatus
from goddard.store.log.records import LogEntry
from goddard.store.store import MessageStore
from goddard.store.tables import TopicTable
from tests.support.faulty_files import FaultyFiles
from tests.support.store import SmallStore, prepared
from tests.support.store_writer import Notes, Order, running_writer

CYCLES = int(os.environ.get("GODDARD_CRASH_CYCLES", "40"))
CYCLES_PER_STORE = 10
LONGEST_LIFE_SECONDS = 0.12
SIZES = {
    "segment_bytes": 64 * 1024,
    "queue_file_bytes": 20 * 100,
    "index_slots": 64,
    "index_entries": 500,
}


def read_all(store: MessageStore) -> dict[int, tuple[int, int, int]]:
    """Every message by its number: queue id, queue offset, physical offset; no duplicates."""
    found: dict[int, tuple[int, int, int]] = {}
    for queue in list(store.queues):
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.get(queue.topic, queue.queue_id, offset, 32)
            assert result.status is GetStatus.FOUND
            for raw, queue_offset in zip(result.records, result.queue_offsets, strict=True):
                record, _ = decode_record(raw)
                number = int(record.body.split(b":")[0])
                assert number not in found, f"message {number} is stored twice"
                found[number] = (queue.queue_id, queue_offset, record.physical_offset)
                assert record.queue_offset == queue_offset
            offset = result.next_offset
    return found


def real_damages(root: Path) -> list[str]:
    report = verify(StoreView(root))
    return [f"{each.kind.value}: {each.detail}" for each in report.damages if not each.is_notice]


@pytest.mark.parametrize("mode", list(FlushMode), ids=lambda mode: mode.name)
@pytest.mark.timeout(60 + 2 * CYCLES)
def test_a_kill_loses_no_acknowledged_message(mode: FlushMode, tmp_path: Path) -> None:
    moves = random.Random(f"{mode.name} {CYCLES}")
    figures: Counter[str] = Counter()
    known: dict[int, tuple[int, int, int]] = {}
    with running_writer(tmp_path / "writer.log") as writer:
        for cycle in range(CYCLES):
            root = tmp_path / f"store-{cycle // CYCLES_PER_STORE}"
            if cycle % CYCLES_PER_STORE == 0:
                known = {}
                shutil.rmtree(tmp_path / f"store-{cycle // CYCLES_PER_STORE - 1}", True)
            order = Order(
                root=str(root),
                notes=str(tmp_path / f"notes-{cycle}"),
                flush=mode.value,
                first=cycle * 1_000_000,
                seed=moves.getrandbits(32),
                # Sometimes before the store is open, so recovery is killed, too.
                life_seconds=moves.uniform(0, LONGEST_LIFE_SECONDS),
                sizes=SIZES,
            )
            writer.run(order)
            notes = Notes.read(Path(order.notes))
            known |= notes.acknowledged
            figures["acknowledged"] += len(notes.acknowledged)
            figures["killed while opening"] += not notes.is_ready
            if moves.random() < 0.3 and cycle % CYCLES_PER_STORE != CYCLES_PER_STORE - 1:
                continue  # the next writer recovers
            figures["recoveries checked"] += 1
            with MessageStore(order.config()) as store:
                found = read_all(store)
                figures["bytes cut"] += store.report.cut_bytes
            lost = known.items() - found.items()
            assert not lost, f"cycle {cycle}: acknowledged but lost or moved: {sorted(lost)[:5]}"
            figures["there though unacknowledged"] += len(found.keys() - known.keys())
            known |= found
            assert real_damages(root) == []
    assert figures["acknowledged"] > CYCLES
    print(f"\n{mode.name}: {CYCLES} kills, " + ", ".join(f"{v} {k}" for k, v in figures.items()))


# --- Power cuts -----------------------------------------------------------------------------------


class CutFiles(FaultyFiles):
    """Cuts the power at a sync: just before it takes effect, or just after."""

    __slots__ = ("_cut_at", "_is_after", "_keep", "syncs")

    def __init__(self, root: Path, cut_at: int, *, is_after: bool, keep: random.Random | None):
        super().__init__(root)
        self.syncs = 0
        self._cut_at = cut_at
        self._is_after = is_after
        self._keep = keep

    def sync(self, fd: int) -> None:
        with self._point():
            super().sync(fd)

    def sync_path(self, path: Path) -> None:
        with self._point():
            super().sync_path(path)

    def sync_directory(self, path: Path) -> None:
        with self._point():
            super().sync_directory(path)

    def _point(self) -> "_Point":
        return _Point(self)

    def reach(self, *, is_after: bool) -> None:
        if not is_after:
            self.syncs += 1
        if self.syncs == self._cut_at and is_after is self._is_after and not self.is_crashed:
            keep = self._keep
            self.crash(None if keep is None else lambda _path, _page: keep.random() < 0.5)
            raise OSError(5, "the power went off")


class _Point:
    def __init__(self, files: CutFiles) -> None:
        self._files = files

    def __enter__(self) -> None:
        self._files.reach(is_after=False)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._files.reach(is_after=True)


class Workload:
    """A script of appends, rolls, checkpoints, reopenings and saved tables."""

    def __init__(self, root: Path, files: CutFiles, mode: FlushMode) -> None:
        self._root = root
        self._files = files
        self._mode = mode
        self._number = 0
        self.acknowledged: dict[int, tuple[int, int, int]] = {}
        self.saved_topics = 0

    def run(self) -> None:
        """Run to the end or to the power cut."""
        small: SmallStore | None = None
        try:
            for _ in range(2):
                small = SmallStore(
                    self._root, files=self._files, segment_bytes=4096, flush_mode=self._mode
                )
                small.store.open()
                for step in range(6):
                    self._append(small.store, 1 + step % 4)
                    small.clock.advance(700)
                    small.store.tick()
                    if step % 3 == 2:
                        self._save_topics()
                small.clock.advance(20_000)
                small.store.tick()
                small.store.close()
        except (StoreError, OSError):
            assert self._files.is_crashed
        finally:
            if small is not None and self._files.is_crashed:
                small.store.abandon()

    def _append(self, store: MessageStore, count: int) -> None:
        first = self._number
        records = [
            prepared(
                "CrashTopic",
                number % 2,
                f"{number}:".encode() + b"y" * (37 * number % 400),
                keys=f"key{number}",
                unique_key=f"{number:032X}",
            )
            for number in range(first, first + count)
        ]
        self._number += count
        entries = store.put_many(records)

        def acknowledge(error: StoreError | None) -> None:
            if error is None:
                self._note(first, entries)

        if self._mode is FlushMode.SYNC:
            store.wait_durable(entries[-1].end_offset, acknowledge)
        else:
            # With asynchronous flushing, nothing is guaranteed before a flush.
            if first % 3 == 0:
                store.flush()
                self._note(first, entries)

    def _note(self, first: int, entries: list[LogEntry]) -> None:
        for number, entry in enumerate(entries, first):
            place = entry.queue_id, entry.queue_offset, entry.physical_offset
            self.acknowledged[number] = place

    def _save_topics(self) -> None:
        table = TopicTable(self._root / "config", files=self._files)
        table.load()
        name = f"Topic{len(table)}"
        table.put(name, TopicConfig(topic_name=name))
        table.save()
        self.saved_topics = len(table)


def cut_points(root: Path, mode: FlushMode) -> int:
    """How often the workload syncs without a power cut."""
    files = CutFiles(root, 0, is_after=False, keep=None)
    Workload(root, files, mode).run()
    assert not files.is_crashed
    return files.syncs


def variants(count: int) -> Iterator[tuple[int, bool, random.Random | None]]:
    for point in range(1, count + 1):
        yield point, False, None
        yield point, True, None
        yield point, False, random.Random(point)


@pytest.mark.parametrize("mode", list(FlushMode), ids=lambda mode: mode.name)
def test_a_power_cut_at_any_sync_loses_no_acknowledged_message(
    mode: FlushMode, tmp_path: Path
) -> None:
    points = cut_points(tmp_path / "rehearsal", mode)
    assert points > 20
    figures: Counter[str] = Counter()
    for point, is_after, keep in variants(points):
        root = tmp_path / f"cut-{point}-{is_after}-{keep is not None}"
        files = CutFiles(root, point, is_after=is_after, keep=keep)
        workload = Workload(root, files, mode)
        workload.run()
        assert files.is_crashed
        with SmallStore(root, segment_bytes=4096, flush_mode=mode) as store:
            found = read_all(store)
            figures["bytes cut"] += store.report.cut_bytes
        lost = workload.acknowledged.items() - found.items()
        assert not lost, f"sync {point} (after: {is_after}): {sorted(lost)[:5]}"
        assert real_damages(root) == []
        topics = TopicTable(root / "config")
        origin = topics.load()
        assert len(topics) in (workload.saved_topics, workload.saved_topics + 1)
        figures["power cuts"] += 1
        figures["acknowledged"] += len(workload.acknowledged)
        figures["tables read from .bak"] += origin is Origin.BACKUP
        shutil.rmtree(root)
    print(f"\n{mode.name}: {points} syncs, " + ", ".join(f"{v} {k}" for k, v in figures.items()))
