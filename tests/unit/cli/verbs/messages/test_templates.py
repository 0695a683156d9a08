"""Templates and JSON of messages."""

import json

import pytest

from goddard.cli.verbs.messages.templates import (
    compile_template,
    json_fields,
    message_from_json,
    terminal_text,
)
from goddard.client.message import Message, ReceivedMessage
from goddard.errors import ConfigError
from goddard.protocol.message import encode_properties
from goddard.protocol.record import Host, Record


def received(body: bytes = b"text") -> ReceivedMessage:
    sent = Message("orders", body, tags="A", keys=["k1", "k2"], properties={"color": "red"})
    properties = {**sent.properties, "UNIQ_KEY": "ID1", "MIN_OFFSET": "0"}
    record = Record(
        topic="orders",
        queue_id=3,
        body=body,
        properties=encode_properties(properties),
        queue_offset=7,
        physical_offset=99,
        born_timestamp_ms=1_700_000_000_000,
        born_host=Host(b"\x7f\0\0\1", 5000),
        store_timestamp_ms=1_700_000_000_500,
        store_host=Host(b"\x7f\0\0\1", 10911),
    )
    return ReceivedMessage.from_record(record, "broker-a")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"%t[%p] %o %k\n", b"orders[3] 7 k1 k2\n"),
        ("%b %g %s %S %r", b"broker-a A text 4 0"),
        ("%i %T %D", b"ID1 1700000000500 2023-11-14 22:13:20.500Z"),
        ("%h 100%%", b"color=red 100%"),
        (r"\x41\t\\\r", b"A\t\\\r"),
        ("✓", "✓".encode()),
        ("", b""),
    ],
)
def test_templates(template: str, expected: bytes) -> None:
    assert compile_template(template)(received()) == expected


def test_a_body_is_printed_unchanged() -> None:
    assert compile_template("%s")(received(b"\xff\0")) == b"\xff\0"


@pytest.mark.parametrize("template", ["%q", "%", "a\\", "\\q"])
def test_wrong_templates_are_named(template: str) -> None:
    with pytest.raises(ConfigError, match="the template"):
        compile_template(template)


@pytest.mark.parametrize("body", [b"text", "✓".encode(), b"\xff\0"])
def test_a_consumed_message_can_be_produced_again(body: bytes) -> None:
    fields = json.loads(json.dumps(json_fields(received(body))))
    again = message_from_json("copies", fields)
    assert (again.topic, again.body, again.tags) == ("copies", body, "A")
    assert again.keys == ["k1", "k2"]
    assert again.get("color") == "red"
    assert again.message_id is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ([], "must be a JSON object"),
        ({}, "exactly one of body and bodyBase64"),
        ({"body": "a", "bodyBase64": "YQ=="}, "exactly one of body and bodyBase64"),
        ({"body": 1}, "body must be a text"),
        ({"body": "a", "tag": "A"}, "unknown field 'tag'; did you mean tags?"),
        ({"bodyBase64": "*"}, "bodyBase64 is not Base64"),
        ({"body": "a", "properties": {"a": 1}}, "must be str"),
        ({"body": "a", "delayLevel": "x"}, "must be a whole number"),
    ],
)
def test_wrong_json_is_explained(fields: object, text: str) -> None:
    with pytest.raises(ConfigError, match="".join(f"[{c}]" if c in "?*" else c for c in text)):
        message_from_json("orders", fields)


def test_a_terminal_gets_no_control_characters_but_line_breaks() -> None:
    assert terminal_text(b"a\n\t\x1b[2J\xff") == "a\n\t\\x1b[2J\\xff"
