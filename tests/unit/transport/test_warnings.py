"""Warnings that peers cause are limited, and those left out are counted."""

import logging

import pytest
from tests.support.clock import ManualClock

from goddard.transport.warnings import LimitedWarnings


def test_ten_a_second_are_written_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    warnings = LimitedWarnings(logging.getLogger("goddard.transport"), clock)
    for number in range(25):
        warnings.warn("peer %d", number)
    assert caplog.messages == [f"peer {number}" for number in range(10)]
    caplog.clear()
    clock.advance(1000)
    warnings.settle()
    warnings.settle()
    warnings.warn("peer %d", 25)
    assert caplog.messages == ["15 more warnings of connections were left out", "peer 25"]
