"""Appends go on while the queues of many topics are being written."""

import threading
import time
from pathlib import Path

from goddard.store.files import SystemFiles
from goddard.testing.store import SmallStore, prepared

_QUEUES = 200
_CREATE_SECONDS = 0.002


class SlowFiles(SystemFiles):
    """A disk on which a new queue file takes a while, waiting for which holds no GIL."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if create and "consumequeue" in path.parts:
            time.sleep(_CREATE_SECONDS)
        return super().open(path, create=create, writable=writable)


def test_an_append_has_its_turn_between_the_queues(tmp_path: Path) -> None:
    small = SmallStore(tmp_path, files=SlowFiles(), segment_bytes=1 << 20)
    with small as store:
        store.put_many([prepared(f"topic{number}") for number in range(_QUEUES)])
        writing = threading.Thread(target=store.tick)
        writing.start()
        appended = 0
        while writing.is_alive():
            store.put(prepared("other"))
            appended += 1
            time.sleep(0.001)  # as a loop does between its ticks
        writing.join()
        # About one for each queue; without pauses between the queues half of that, or none at all.
        assert appended >= _QUEUES * 0.6
        assert {queue.topic for queue in store.queues.waiting} <= {"other"}
        assert store.max_offset("other", 0) == appended
