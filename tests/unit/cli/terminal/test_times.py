"""Times and ranges as users write them."""

import pytest

from goddard.cli.terminal.times import END, START, Bound, Position, Range, parse_range, parse_time
from goddard.errors import ConfigError

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("now", NOW_MS),
        ("-1h", NOW_MS - HOUR_MS),
        ("-1h30m", NOW_MS - HOUR_MS - 1_800_000),
        ("-2d", NOW_MS - 48 * HOUR_MS),
        ("-90s", NOW_MS - 90_000),
        ("1699999999999", 1_699_999_999_999),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-15T06:13:20+08:00", NOW_MS),
        ("2023-11-14 22:13:20.5", NOW_MS + 500),
        ("-99999d", 0),
    ],
)
def test_times(text: str, expected_ms: int) -> None:
    assert parse_time(text, NOW_MS) == expected_ms


@pytest.mark.parametrize("text", ["", "-", "-1", "-1x", "yesterday", "2023-13-01", "1h", "12"])
def test_wrong_times_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time(text, NOW_MS)


def at(time_ms: int) -> Position:
    return Position(Bound.TIME, time_ms)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Range()),
        ("end", Range(END)),
        ("120", Range(Position(Bound.OFFSET, 120))),
        ("120:", Range(Position(Bound.OFFSET, 120))),
        (":130", Range(START, Position(Bound.OFFSET, 130))),
        ("120:130", Range(Position(Bound.OFFSET, 120), Position(Bound.OFFSET, 130))),
        ("-10", Range(Position(Bound.BEFORE_END, 10))),
        ("-10:-5", Range(Position(Bound.BEFORE_END, 10), Position(Bound.BEFORE_END, 5))),
        ("start:end", Range(START, END)),
        (":", Range()),
        ("@-1h", Range(at(NOW_MS - HOUR_MS))),
        ("@-1h:now", Range(at(NOW_MS - HOUR_MS), at(NOW_MS))),
        ("@-2h:@-1h", Range(at(NOW_MS - 2 * HOUR_MS), at(NOW_MS - HOUR_MS))),
        ("@2023-11-14T21:13:20:now", Range(at(NOW_MS - HOUR_MS), at(NOW_MS))),
        ("@2023-11-14T21:13:20", Range(at(NOW_MS - HOUR_MS))),
    ],
)
def test_ranges(text: str, expected: Range) -> None:
    assert parse_range(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["", "x", "1:x", "@", "@x:now", "1..2", "@-1h:later"])
def test_wrong_ranges_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a range"):
        parse_range(text, NOW_MS)
