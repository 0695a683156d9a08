"""Times and ranges of messages, as users write them. Pure.

A time is ``now``, ``-1h30m`` (before now; d, h, m, s), ``2026-11-18``, ``2026-11-18T10:30``,
``2026-11-18T10:30:00.5+08:00`` (UTC unless it has a zone) or milliseconds since 1970.

A range is where to begin and where to end in each queue::

    start  end            the oldest message; after the newest
    120  120:  :130  120:130     offsets; the end is not included
    -10                   the last 10 messages
    @-1h  @-1h:now  @2026-11-18T10:00:2026-11-18T11:00     times
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from goddard.errors import ConfigError

_AGO: Final = re.compile(r"-(?=\d)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_UNIT_MS: Final = (86_400_000, 3_600_000, 60_000, 1_000)
# Fewer digits are more likely a year or an offset than a time.
_EPOCH_MS: Final = re.compile(r"\d{12,14}")
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d.*")


class Bound(Enum):
    START = "start"
    END = "end"
    OFFSET = "offset"
    # So many messages before the end.
    BEFORE_END = "before end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """One end of a range; ``value`` is an offset, a count or milliseconds."""

    bound: Bound
    value: int = 0


START: Final = Position(Bound.START)
END: Final = Position(Bound.END)


@dataclass(frozen=True, slots=True)
class Range:
    """``end`` is None if the range is open: up to the end, or following new messages."""

    begin: Position = START
    end: Position | None = None


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970; ConfigError says what may be written."""
    found = _time(text.strip(), now_ms)
    if found is None:
        raise ConfigError(
            f"{text!r} is not a time; write now, -1h30m, 2026-11-18T10:30, or milliseconds since "
            "1970"
        )
    return found


def _time(text: str, now_ms: int) -> int | None:
    if text == "now":
        return now_ms
    if ago := _AGO.fullmatch(text):
        parts = zip(ago.groups(), _UNIT_MS, strict=True)
        return max(0, now_ms - sum(int(count or 0) * unit for count, unit in parts))
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    if _ISO.fullmatch(text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)
    return None


def parse_range(text: str, now_ms: int) -> Range:
    """ConfigError says what may be written."""
    text = text.strip()
    found = _time_range(text[1:], now_ms) if text.startswith("@") else _offset_range(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is not a range; write start, end, 120, 120:130, -10 for the last 10, "
            "@-1h:now or @2026-11-18T10:00"
        )
    return found


def _time_range(text: str, now_ms: int) -> Range | None:
    whole = _time(text, now_ms)
    if whole is not None:
        return Range(Position(Bound.TIME, whole))
    # Times contain colons too: the one that separates two times is meant.
    for colon in re.finditer(":", text):
        begin = _time(text[: colon.start()], now_ms)
        end = _time(text[colon.end() :].removeprefix("@"), now_ms)
        if begin is not None and end is not None:
            return Range(Position(Bound.TIME, begin), Position(Bound.TIME, end))
    return None


def _offset_range(text: str) -> Range | None:
    first, colon, last = text.partition(":")
    begin = _position(first) if first else START
    end = _position(last) if last else None
    if begin is None or (last and end is None) or not (first or colon):
        return None
    return Range(begin, end)


def _position(text: str) -> Position | None:
    if text in ("start", "end"):
        return START if text == "start" else END
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        return None
    number = int(text)
    return Position(Bound.OFFSET, number) if text[0] != "-" else Position(Bound.BEFORE_END, -number)
