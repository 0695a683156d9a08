"""The declarative header: types, lenient decoding, and errors."""

from typing import Any

import pytest

from goddard.errors import HeaderError
from goddard.protocol.headers.header import Header, Int32, Int64, camel_case, wire


class Example(Header):
    topic_name: str
    queue_id: Int32
    start_offset: Int64 = -1
    is_force: bool = False
    odd: str | None = wire("_ODD", default=None)
    limit: Int32 | None = None
    wanted: bool | None = None


class Extended(Example):
    extra: str


REQUIRED = {"topicName": "T", "queueId": "3"}


def test_names_on_the_wire() -> None:
    assert camel_case("suggest_which_broker_id") == "suggestWhichBrokerId"
    assert camel_case("topic") == "topic"
    header = Example(topic_name="T", queue_id=3, start_offset=5, is_force=True, odd="o", limit=0)
    assert header.encode() == {
        "topicName": "T",
        "queueId": "3",
        "startOffset": "5",
        "isForce": "true",
        "_ODD": "o",
        "limit": "0",
    }
    assert Example.decode(header.encode()) == header


def test_defaults_and_unknown_fields() -> None:
    header = Example.decode({**REQUIRED, "other": "x"})
    assert header == Example(topic_name="T", queue_id=3)
    assert header.start_offset == -1
    assert header.wanted is None


def test_subclass_inherits_fields() -> None:
    header = Extended.decode({**REQUIRED, "extra": "e", "_ODD": "o"})
    assert header.odd == "o"
    assert header.encode()["extra"] == "e"
    assert "extra" not in Example(topic_name="T", queue_id=1).encode()


def test_constructor_needs_all_fields_by_keyword() -> None:
    values: dict[str, Any] = {"topic_name": "T"}
    with pytest.raises(TypeError, match="Example needs queue_id"):
        Example(**values)
    values |= {"queue_id": 1, "other": "o"}
    with pytest.raises(TypeError, match="Example has no field other"):
        Example(**values)
    with pytest.raises(TypeError, match="Extended has no field other"):
        Extended(**values)
    assert Extended.wire_names()["odd"] == "_ODD"
    assert list(Extended.wire_names())[-1] == "extra"


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_required_field_is_named_when_missing(missing: str) -> None:
    fields = {key: value for key, value in REQUIRED.items() if key != missing}
    with pytest.raises(HeaderError, match=missing):
        Example.decode(fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"limit": "x", "queueId": "y"}, "topicName is missing"),
        ({"limit": "x", "queueId": "y", "topicName": "T"}, "queueId: 'y'"),
        ({"limit": "x", "topicName": "T"}, "queueId is missing"),
        ({"limit": "x", "startOffset": "z", **REQUIRED}, "startOffset: 'z'"),
        ({"limit": "x", "queueId": "", "topicName": "T"}, "queueId is missing"),
    ],
)
def test_the_first_invalid_field_of_the_class_is_named(fields: dict[str, str], named: str) -> None:
    with pytest.raises(HeaderError, match=named):
        Example.decode(fields)


def test_empty_values() -> None:
    assert Example.decode({"topicName": "", "queueId": "1"}).topic_name == ""
    assert Example.decode({**REQUIRED, "startOffset": "", "isForce": ""}).start_offset == -1
    with pytest.raises(HeaderError, match="queueId"):
        Example.decode({"topicName": "T", "queueId": ""})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", False), ("yes", False), ("x", False)]
)
def test_only_the_word_true_is_true(text: str, value: bool) -> None:
    assert Example.decode({**REQUIRED, "isForce": text}).is_force is value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("007", 7),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
    ],
)
def test_numbers(text: str, value: int) -> None:
    assert Example.decode({**REQUIRED, "queueId": text}).queue_id == value


@pytest.mark.parametrize(
    "text",
    [
        "2147483648",
        "-2147483649",
        "1.0",
        "1e3",
        " 1",
        "1_0",
        "0x1",
        "-",
        "+-1",
        "NaN",
        "٣",
        "²",
        "9" * 5000,
    ],
)
def test_invalid_numbers_are_rejected(text: str) -> None:
    with pytest.raises(HeaderError, match="queueId"):
        Example.decode({**REQUIRED, "queueId": text})


def test_long_numbers() -> None:
    for value in (2**63 - 1, -(2**63)):
        assert Example.decode({**REQUIRED, "startOffset": str(value)}).start_offset == value
    with pytest.raises(HeaderError, match="64 bits"):
        Example.decode({**REQUIRED, "startOffset": str(2**63)})


def test_unsupported_annotation_is_rejected() -> None:
    class Wrong(Header):
        score: float

    with pytest.raises(TypeError, match="score"):
        Wrong(score=1.0)
