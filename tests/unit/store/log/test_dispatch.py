"""Dispatch: what happens to records whose queue offset does not follow the end of their queue."""

from pathlib import Path

import pytest

from goddard.store.log.dispatch import Dispatcher
from goddard.store.log.records import LogEntry
from tests.support.store import SmallStore


def entry(queue_offset: int, physical_offset: int) -> LogEntry:
    return LogEntry("T", 0, queue_offset, physical_offset, 100, 0, 0, 0, b"")


def test_misplaced_records_are_collected_during_recovery_and_logged_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SmallStore(tmp_path) as store:
        dispatcher = Dispatcher(store.queues, store.index)
        dispatcher.misplaced = []
        dispatcher.apply([entry(0, 0), entry(7, 100)])
        assert dispatcher.misplaced == [entry(7, 100)]
        assert caplog.text == ""
        dispatcher.misplaced = None
        dispatcher.apply([entry(99, 200)])
        assert dispatcher.misplaced is None
        assert "the record at 200 does not follow in queue 0 of T: its queue offset is 99" in (
            caplog.text
        )
