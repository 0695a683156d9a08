"""Warnings that peers cause are limited, and the suppressed ones are counted."""

import logging

import pytest

from goddard.transport.server import LimitedWarnings
from tests.support.clock import ManualClock


def test_ten_warnings_per_second_are_logged_and_the_rest_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    warnings = LimitedWarnings(logging.getLogger("goddard.transport"), clock)
    for number in range(25):
        warnings.warn("peer %d", number)
    assert caplog.messages == [f"peer {number}" for number in range(10)]
    caplog.clear()
    clock.advance(1000)
    warnings.report_suppressed()
    warnings.report_suppressed()
    warnings.warn("peer %d", 25)
    assert caplog.messages == ["15 more warnings about connections were suppressed", "peer 25"]
