"""Tables and records as text, JSON, YAML and CSV."""

import json

import pytest

from goddard.cli.terminal.output import (
    Format,
    Output,
    Table,
    TimeMs,
    Wide,
    cell_text,
    printable,
    yaml_lines,
)

TABLE = Table(
    ("topic", "max offset", Wide("last stored"), "tags"),
    [("orders", 12, TimeMs(1_700_000_000_000), ["a", "b"]), ("bills", None, TimeMs(0), [])],
)


def test_text_is_aligned_and_hides_wide_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.TEXT).table(TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC   MAX OFFSET  TAGS",
        "orders          12  a, b",
        "bills            -  -",
    ]


def test_wide_text_has_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.WIDE).table(TABLE)
    assert "2023-11-14 22:13:20.000Z" in capsys.readouterr().out


def test_json_has_types_and_nulls(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSON).table(TABLE)
    assert json.loads(capsys.readouterr().out) == [
        {
            "topic": "orders",
            "maxOffset": 12,
            "lastStored": "2023-11-14T22:13:20.000Z",
            "tags": ["a", "b"],
        },
        {"topic": "bills", "maxOffset": None, "lastStored": None, "tags": []},
    ]


def test_csv_quotes_what_needs_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.CSV).table(Table(("name", "value"), [('a "b", c', 1), ("d", None)]))
    assert capsys.readouterr().out == 'name,value\n"a ""b"", c",1\nd,\n'


def test_yaml_nests_lists_and_quotes_text() -> None:
    value = {"a": [{"b": 1, "c": None}, {"b": [], "c": "x: y"}], "d-e": "2", "f": {}}
    assert yaml_lines(value) == [
        "a:",
        "  - b: 1",
        "    c: null",
        "  - b: []",
        '    c: "x: y"',
        '"d-e": "2"',
        "f: {}",
    ]


def test_a_record_has_its_tables_below(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"topic": "orders", "queues": Table(("queue",), [(3,)])}
    Output(Format.TEXT).record(fields)
    assert capsys.readouterr().out.splitlines() == [
        "topic  orders",
        "",
        "queues",
        "QUEUE",
        "    3",
    ]
    Output(Format.JSON).record(fields)
    assert json.loads(capsys.readouterr().out) == {"topic": "orders", "queues": [{"queue": 3}]}


def test_an_empty_table_is_valid_json_and_says_so_in_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Output(Format.JSON).table(Table(("topic",), []))
    assert json.loads(capsys.readouterr().out) == []
    Output(Format.TEXT).table(Table(("topic",), [], empty="no topics"))
    assert capsys.readouterr() == ("", "no topics\n")


def test_rows_of_a_growing_table_are_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        Output(Format.JSON).next_row(("in flight",), (number,), is_first=not number)
    assert capsys.readouterr().out == '{"inFlight": 0}\n{"inFlight": 1}\n'


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\n✓") == "a\\x1b[31mb\\n✓"
    assert cell_text(["\x07"]) == "\\x07"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (1.25, "1.2"), ("", "-"), ({"a": 1}, "a=1"), (TimeMs(-1), "-")],
)
def test_cells(value: object, text: str) -> None:
    assert cell_text(value) == text
