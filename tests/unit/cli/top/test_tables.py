"""``goddard top``: rates and rows from two readings, and what keys do."""

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from goddard.cli.top.command import parsed_keys
from goddard.cli.top.reading import BrokerReading, Committed, QueueRange, Reading
from goddard.cli.top.screen import View, after_key, drawn, listing, rows_of
from goddard.cli.top.tables import Change, arranged
from goddard.client.admin.values import BrokerPlace
from goddard.client.values import MessageQueue

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
OTHER = MessageQueue("visits", "broker-a", 0)
PLACE = BrokerPlace("DefaultCluster", "broker-a", 0, "127.0.0.1:10911")
RUNTIME = {
    "brokerVersionDesc": "V5_4_0",
    "putTps": "12.5 10.0 9.0",
    "getTransferredTps": "30.0 1 1",
    "msgPutTotalTodayNow": "1000",
    "commitLogDiskRatio": "0.42",
}


def reading(
    seconds: float,
    ends: Mapping[MessageQueue, int],
    committed: Mapping[MessageQueue, int],
    runtime: Mapping[str, str] | None = RUNTIME,
) -> Reading:
    topics: dict[str, dict[MessageQueue, QueueRange]] = {}
    for queue, end in ends.items():
        topics.setdefault(queue.topic, {})[queue] = QueueRange(0, end)
    shipping = {queue: Committed(offset, ends[queue]) for queue, offset in committed.items()}
    return Reading(
        seconds=seconds,
        brokers=[BrokerReading(PLACE, runtime)],
        topics=topics,
        groups={"shipping": shipping} if shipping else {},
        unread=[],
    )


BEFORE = reading(10.0, {A: 100, B: 100, OTHER: 5}, {A: 50, B: 100})
NOW = reading(12.0, {A: 300, B: 100, OTHER: 5}, {A: 150, B: 100})
CHANGE = Change(BEFORE, NOW)


def test_rates_are_differences_between_two_readings() -> None:
    assert CHANGE.topics().rows == [
        ("orders", 100.0, 50.0, 400, 2, 1, 150),
        ("visits", 0.0, None, 5, 1, 0, None),
    ]
    assert CHANGE.groups().rows == [("shipping", 50.0, 150, 50.0, 1, 2)]
    assert CHANGE.topic("orders").rows[0] == ("broker-a:0", 100.0, 0, 300, 300)
    assert CHANGE.group("shipping").rows[0] == ("orders broker-a:0", 50.0, 150, 300, 150)


def test_without_an_earlier_reading_rates_are_unknown() -> None:
    first = Change(None, NOW)
    assert first.topics().rows[0] == ("orders", None, None, 400, 2, 1, 150)
    assert first.groups().rows == [("shipping", None, 150, None, 1, 2)]


def test_a_queue_that_is_new_has_no_rate_yet() -> None:
    change = Change(reading(10.0, {A: 100}, {}), reading(11.0, {A: 110, B: 1_000}, {}))
    assert change.topics().rows[0][1] == 10.0


def test_a_reset_of_offsets_is_no_negative_rate() -> None:
    change = Change(reading(10.0, {A: 100}, {A: 90}), reading(11.0, {A: 100}, {A: 0}))
    assert change.groups().rows == [("shipping", 0.0, 100, 90.0, 1, 1)]


def test_brokers() -> None:
    assert CHANGE.brokers().rows == [
        ("broker-a", 0, "127.0.0.1:10911", "V5_4_0", 12.5, 30.0, 1000, 42.0)
    ]
    away = Change(None, reading(1.0, {}, {}, runtime=None))
    assert away.brokers().rows == [
        ("broker-a", 0, "127.0.0.1:10911", "does not answer", None, None, None, None)
    ]
    assert ("putTps", 0, "12.5 10.0 9.0") in CHANGE.broker("broker-a").rows


def test_rows_are_filtered_and_sorted_with_unknown_values_last() -> None:
    rows = [("a", 1), ("B", None), ("c", 3), ("ab", 2)]
    assert arranged(rows, 1, "", is_descending=True) == [("c", 3), ("ab", 2), ("a", 1), ("B", None)]
    assert arranged(rows, 1, "b", is_descending=False) == [("ab", 2), ("B", None)]


def pressed(*keys: str, view: View | None = None) -> View:
    view = view or View()
    for key in keys:
        view = after_key(view, key, listing(view, CHANGE))
    return view


@pytest.mark.parametrize(
    ("keys", "view"),
    [
        ("g", View(name="groups")),
        ("gb", View(name="brokers")),
        (["down"], View(selected=1)),
        (["down", "down", "down"], View(selected=1)),
        (["up"], View(selected=0)),
        (["enter"], View(opened="orders")),
        (["down", "enter"], View(opened="visits")),
        (["enter", "esc"], View()),
        ("s", View(sort=2)),
        ("S", View(sort=0)),
        ("r", View(is_reversed=True)),
        ("/vi", View(filter="vi", is_typing=True)),
        (["/", "q", "back", "v", "enter"], View(filter="v")),
        (["/", "v", "enter", "esc"], View()),
        (["/", "v", "esc"], View()),
        (["/", "v", "enter", "enter"], View(opened="visits")),
        ("q", View(is_ended=True)),
        ("xyz", View()),
    ],
)
def test_keys(keys: list[str], view: View) -> None:
    assert pressed(*keys) == view


def test_sorting_by_name_is_ascending_and_can_be_reversed() -> None:
    by_name = pressed("S")
    assert [row[0] for row in rows_of(by_name, CHANGE.topics())] == ["orders", "visits"]
    back = pressed("r", view=by_name)
    assert [row[0] for row in rows_of(back, CHANGE.topics())] == ["visits", "orders"]


def text_of(
    view: View, change: Change = CHANGE, *, height: int = 30, unread: list[str] | None = None
) -> str:
    file = io.StringIO()
    Console(file=file, width=100).print(drawn(view, change, unread or [], height))
    return file.getvalue()


def test_the_screen() -> None:
    text = text_of(View())
    assert "topics: 2" in text
    assert "IN/S *" in text
    assert text.index("orders") < text.index("visits")
    assert "quit" in text
    assert "filter: vis_" in text_of(View(filter="vis", is_typing=True))
    assert "not read: broker-b" in text_of(View(), unread=["broker-b"])


def test_a_low_screen_shows_the_rows_around_the_selected_one() -> None:
    ends = {MessageQueue(f"t{number:02}", "b", 0): number for number in range(50)}
    change = Change(None, reading(1.0, ends, {}))
    text = text_of(View(selected=40, sort=0), change, height=12)
    assert "t40" in text
    assert "t00" not in text
    assert "t49" not in text


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("g", ["g"]),
        ("\x1b[A\x1b[Bq", ["up", "down", "q"]),
        ("\x1bOA", ["up"]),
        ("\x1b", ["esc"]),
        ("\x1b[5~x", ["x"]),
        ("\x1b[", []),
        ("\r\x7f", ["enter", "back"]),
    ],
)
def test_what_the_terminal_sends(text: str, keys: list[str]) -> None:
    assert parsed_keys(text) == keys
