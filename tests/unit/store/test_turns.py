"""Appends continue while the queues of many topics are being written."""

import threading
from pathlib import Path

import pytest

from goddard.environment.files import Data, SystemFiles
from tests.support.clock import ManualClock
from tests.support.store import SmallStore, prepared

_QUEUES = 50
_TURN_MS = 2


class ScriptedTime(ManualClock):
    """Time for the upkeep: a write takes a turn, and another thread appends in each pause.

    It has to be another thread, because the store's lock is re-entrant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.small: SmallStore | None = None
        self.pauses = 0

    def pause(self, _: float) -> None:
        assert self.small is not None
        self.pauses += 1
        appending = threading.Thread(target=self.small.store.put, args=(prepared("other"),))
        appending.start()
        appending.join(60)
        assert not appending.is_alive(), "the lock is held during a pause"


class SlowFiles(SystemFiles):
    """A disk on which a write takes a whole turn."""

    __slots__ = ("_time",)

    def __init__(self, scripted: ScriptedTime) -> None:
        self._time = scripted

    def pwrite(self, fd: int, data: Data, position: int) -> None:
        self._time.advance(_TURN_MS)
        super().pwrite(fd, data, position)


def small_store(root: Path, scripted: ScriptedTime, monkeypatch: pytest.MonkeyPatch) -> SmallStore:
    files = SlowFiles(scripted)
    small = SmallStore(root, files=files, clock=scripted, segment_bytes=1 << 20)
    monkeypatch.setattr(small.upkeep_worker, "pause", scripted.pause)
    scripted.small = small
    return small


def test_an_append_gets_the_lock_between_two_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = ScriptedTime()
    with small_store(tmp_path, scripted, monkeypatch) as store:
        store.put_many([prepared(f"topic{number}") for number in range(_QUEUES)])
        store.tick()
        assert scripted.pauses == _QUEUES - 1
        assert store.max_offset("other", 0) == scripted.pauses
        assert {queue.topic for queue in store.queues.waiting} <= {"other"}


def test_a_closing_store_does_not_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedTime()
    with small_store(tmp_path, scripted, monkeypatch) as store:
        store.put_many([prepared(f"topic{number}") for number in range(_QUEUES)])
    assert scripted.pauses == 0
    with SmallStore(tmp_path, segment_bytes=1 << 20) as store:
        assert store.max_offset(f"topic{_QUEUES - 1}", 0) == 1
