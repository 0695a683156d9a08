"""The traffic chart: what it shows, for any traffic."""

import datetime as dt
from xml.etree import ElementTree as ET

import pytest

from goddard.pipelines.builtin.chart import (
    GroupLag,
    Slot,
    busiest,
    chart,
    merged,
    size_text,
    stacked,
)

START = dt.datetime(2026, 1, 31, 23, 57, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


def slots(topics: int, minutes: tuple[int, ...] = (0, 1, 3)) -> list[Slot]:
    return [
        Slot(START + minute * MINUTE, MINUTE, f"topic-{topic}", 10 + topic, 1_000, 1, 2, 3 + minute)
        for minute in minutes
        for topic in range(topics)
    ]


def words(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    return [each.text for each in root.iter() if each.tag.endswith("text") and each.text]


def test_only_the_busiest_topics_have_their_own_color() -> None:
    assert busiest(slots(3)) == ["topic-2", "topic-1", "topic-0"]
    assert busiest(slots(8)) == [f"topic-{number}" for number in range(7, -1, -1)]
    assert busiest(slots(20)) == [f"topic-{number}" for number in range(19, 12, -1)]
    # One large message counts as much as many small ones.
    large = Slot(START, MINUTE, "large", 1, 10_000_000, 1, 2, 3)
    assert busiest([*slots(20), large])[0] == "large"


def test_the_series_add_up_to_all_traffic() -> None:
    given = slots(20)
    for field in ("messages", "bytes"):
        series = stacked(given, busiest(given), field)
        assert list(series)[-1] == "13 other topics"
        total = sum(sum(values.values()) for values in series.values())
        assert total == sum(getattr(each, field) for each in given)
    assert list(stacked(slots(2), ["topic-0"], "bytes")) == ["topic-0", "1 other topic"]


def test_a_topic_named_like_the_rest_is_counted() -> None:
    given = [*slots(20), Slot(START, MINUTE, "14 other topics", 7, 7, 1, 2, 3)]
    series = stacked(given, busiest(given), "messages")
    assert sum(sum(values.values()) for values in series.values()) == 7 + sum(
        each.messages for each in slots(20)
    )


def test_a_day_is_shown_in_visible_steps() -> None:
    day = slots(2, tuple(range(1440)))
    fewer = merged(day)
    assert len(fewer) == 2 * 240
    assert {each.length for each in fewer} == {6 * MINUTE}
    assert sum(each.messages for each in fewer) == sum(each.messages for each in day)
    assert sum(each.bytes for each in fewer) == sum(each.bytes for each in day)
    assert max(each.p99_ms for each in fewer) == max(each.p99_ms for each in day)
    assert merged(slots(2)) == slots(2)
    drawn = chart(day, [])
    assert "Messages per 6 minutes" in words(drawn)
    assert len(drawn) < 1_000_000


def test_texts_of_the_chart() -> None:
    lags = [GroupLag("billing", "orders", 12_873), GroupLag("mail", "orders", 0)]
    found = words(chart(slots(20), lags))
    assert "1,170 messages, 60 kB, 20 topics: 2026-01-31 23:57 to 2026-02-01 00:01 UTC" in found
    assert {"Messages per minute", "Bytes per minute", "p99, slowest topic"} <= set(found)
    assert {"topic-19", "13 other topics", "12,873"} <= set(found)
    # Groups without lag are not shown.
    assert "billing" in found
    assert "mail" not in found


@pytest.mark.parametrize(
    ("lags", "said"),
    [
        ([], "no consumer groups"),
        ([GroupLag("a", "t", 0)], "none: 1 group up to date"),
        ([GroupLag("a", "t", 0), GroupLag("b", "t", 0)], "none: 2 groups up to date"),
    ],
)
def test_no_group_lags(lags: list[GroupLag], said: str) -> None:
    found = words(chart(slots(1, (0,)), lags))
    assert said in found
    assert "10 messages, 1 kB, 1 topic: 2026-01-31 23:57 to 23:58 UTC" in found


def test_long_and_unusual_names_are_drawn() -> None:
    odd = [Slot(START, MINUTE, name, 5, 5, 1, 2, 3) for name in ("x" * 127, "_a$b$", "%DLQ%g")]
    found = words(chart(odd, [GroupLag("g" * 200, "<&>", 1)]))
    assert "x" * 31 + "…" in found
    assert " _a$b$" in found


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2e6, "2 MB"), (8e9, "8 GB")]
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text
