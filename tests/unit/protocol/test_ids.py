import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from goddard.errors import ProtocolError
from goddard.protocol.ids import (
    UniqueId,
    UniqueIds,
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
)
from goddard.protocol.record import Host


def ms(
    year: int,
    month: int,
    day: int,
    hour: int = 0,
    minute: int = 0,
    second: int = 0,
    zone: tzinfo = UTC,
) -> int:
    moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    return int(moment.timestamp()) * 1000


def test_offset_ids() -> None:
    text = "AC1415A200002A9F000000000000017A"
    host = Host.parse("172.20.21.162:10911")
    assert parse_offset_message_id(text) == (host, 378)
    assert parse_offset_message_id(text.lower()) == (host, 378)
    assert offset_message_id(host, 378) == text


def test_offset_ids_with_v6() -> None:
    host = Host.parse("[2001:db8::1]:10911")
    text = offset_message_id(host, 2**62)
    assert len(text) == 56
    assert parse_offset_message_id(text) == (host, 2**62)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AC1415A200002A9F000000000000017",
        "AC1415A200002A9F000000000000017AA",
        "AC1415A200002A9F000000000000017G",
        "AC1415A200002A9F00000000000001 7",
        "\u0661" * 32,
        "7F0000014E275FFD2B274A03C2E30000",  # a unique id: its port would be out of range
        "AC1415A200002A9F8000000000000000",
    ],
)
def test_invalid_offset_ids_are_rejected(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_offset_message_id(text)


def test_unique_ids_both_ways() -> None:
    text = "7F0000014E275FFD2B274A03C2E30001"
    parsed = parse_unique_id(text)
    assert parsed == UniqueId(bytes([127, 0, 0, 1]), 0x4E27, 0x5FFD2B27, 0x4A03C2E3, 1)
    assert str(parsed) == text
    with pytest.raises(ProtocolError):
        parse_unique_id(text[1:])


@pytest.mark.parametrize("ip", [bytes([10, 0, 0, 7]), bytes(range(16))])
def test_generated_ids(ip: bytes) -> None:
    ids = UniqueIds(ip, 70000, -2, zone=UTC)
    now = ms(2024, 2, 10, 11, 12, 13)
    first, second = (parse_unique_id(ids.next(now)) for _ in range(2))
    assert first.ip == ip
    assert first.pid == 70000 & 0xFFFF
    assert first.process_hash == -2
    assert first.month_ms == now - ms(2024, 2, 1)
    assert (first.counter, second.counter) == (0, 1)
    assert first.created_ms(now + 1, UTC) == now


def test_the_counter_wraps() -> None:
    ids = UniqueIds(bytes(4), 1, 1, zone=UTC)
    generated = [ids.next(0) for _ in range(65537)]
    assert len(set(generated)) == 65536
    assert parse_unique_id(generated[-2]).counter == 65535
    assert generated[-1] == generated[0]


def test_reserved_ids_equal_ids_generated_one_by_one() -> None:
    ids, one_by_one = (UniqueIds(bytes(4), 1, 1, zone=UTC) for _ in range(2))
    generated = []
    for now_ms, count in ((5, 1), (5, 65_000), (6, 65_536), (6, 3)):
        prefix, first = ids.reserve(now_ms, count)
        generated += [f"{prefix}{(first + each) % 65_536:04X}" for each in range(count)]
        assert generated[-count:] == [one_by_one.next(now_ms) for _ in range(count)]
    assert ids.next(6) == one_by_one.next(6)
    for count in (0, 65_537):
        with pytest.raises(ValueError, match="65536 ids"):
            ids.reserve(6, count)


def test_a_new_month_starts_at_zero() -> None:
    ids = UniqueIds(bytes(4), 1, 1, zone=UTC)
    last = parse_unique_id(ids.next(ms(2024, 12, 31, 23, 59, 59) + 999))
    first = parse_unique_id(ids.next(ms(2025, 1, 1)))
    assert last.month_ms == 31 * 86_400_000 - 1
    assert first.month_ms == 0


def test_a_clock_set_back() -> None:
    ids = UniqueIds(bytes(4), 1, 1, zone=UTC)
    start = ms(2025, 3, 1)
    ids.next(start + 5)
    assert parse_unique_id(ids.next(start - 1000)).month_ms == 0
    # Too far back for a clock correction: the value wraps, as in Java.
    assert parse_unique_id(ids.next(start - 2_000_000)).month_ms == 2**32 - 2_000_000


@pytest.mark.parametrize(
    "zone",
    [timezone(timedelta(hours=8)), ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")],
)
@pytest.mark.parametrize("month", range(1, 13))
def test_months_of_a_time_zone(zone: tzinfo, month: int) -> None:
    start = ms(2024, month, 1, zone=zone)
    ids = UniqueIds(bytes(4), 1, 1, zone=zone)
    assert parse_unique_id(ids.next(start + 20 * 86_400_000)).month_ms == 20 * 86_400_000
    before = parse_unique_id(UniqueIds(bytes(4), 1, 1, zone=zone).next(start - 1))
    assert before.month_ms >= 27 * 86_400_000
    assert before.created_ms(start + 1000, zone) == start - 1


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneInfo]:
    """The process in a time zone with summer time."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield ZoneInfo("America/New_York")
    time.tzset()


@pytest.mark.parametrize("month", range(1, 13))
def test_the_local_zone_is_the_default(local_zone: ZoneInfo, month: int) -> None:
    now = ms(2024, month, 20, 1)
    generated = parse_unique_id(UniqueIds(bytes(4), 1, 1).next(now))
    assert generated.month_ms == now - ms(2024, month, 1, zone=local_zone)
    assert generated.created_ms(now + 1) == now


def test_an_address_has_4_or_16_bytes() -> None:
    with pytest.raises(ValueError, match="4 or 16"):
        UniqueIds(b"123", 1, 1)
