"""Appends continue while the queues of many topics are being written."""

import threading
import time
from pathlib import Path

import pytest

from goddard.store.files import Data, SystemFiles
from goddard.store.log import maintenance as upkeep
from tests.support.store import SmallStore, prepared

_QUEUES = 50
_TURN_SECONDS = 0.002


class ScriptedTime:
    """Time for the upkeep: a write takes a turn, and another thread appends in each pause.

    It has to be another thread, because the store's lock is re-entrant.
    """

    localtime = staticmethod(time.localtime)

    def __init__(self) -> None:
        self.small: SmallStore | None = None
        self.seconds = 0.0
        self.pauses = 0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, _: float) -> None:
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
        self._time.seconds += _TURN_SECONDS
        super().pwrite(fd, data, position)


def test_an_append_gets_the_lock_between_two_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = ScriptedTime()
    monkeypatch.setattr(upkeep, "time", scripted)
    scripted.small = SmallStore(tmp_path, files=SlowFiles(scripted), segment_bytes=1 << 20)
    with scripted.small as store:
        store.put_many([prepared(f"topic{number}") for number in range(_QUEUES)])
        store.tick()
        assert scripted.pauses == _QUEUES - 1
        assert store.max_offset("other", 0) == scripted.pauses
        assert {queue.topic for queue in store.queues.waiting} <= {"other"}


def test_a_closing_store_does_not_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = ScriptedTime()
    monkeypatch.setattr(upkeep, "time", scripted)
    scripted.small = SmallStore(tmp_path, files=SlowFiles(scripted), segment_bytes=1 << 20)
    with scripted.small as store:
        store.put_many([prepared(f"topic{number}") for number in range(_QUEUES)])
    assert scripted.pauses == 0
    with SmallStore(tmp_path, segment_bytes=1 << 20) as store:
        assert store.max_offset(f"topic{_QUEUES - 1}", 0) == 1
