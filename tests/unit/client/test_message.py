"""Messages to send: attributes, properties, invalid values."""

from itertools import permutations
from typing import Any, cast

import pytest

from goddard.client.errors import InvalidMessageError
from goddard.client.message import Message
from goddard.protocol.codes import ResponseCode
from goddard.protocol.message import RESERVED_PROPERTIES


def test_message_arguments_become_properties() -> None:
    message = Message(
        "T",
        b"body",
        tags="TagA",
        keys=["k1", "k2"],
        flag=3,
        delay_level=2,
        wait_store_ok=False,
        sharding_key="s",
        properties={"own": "value"},
    )
    assert message.properties == {
        "KEYS": "k1 k2",
        "WAIT": "false",
        "TAGS": "TagA",
        "DELAY": "2",
        "__SHARDINGKEY": "s",
        "own": "value",
    }
    assert (message.topic, message.body, message.flag) == ("T", b"body", 3)
    assert (message.tags, message.keys, message.delay_level) == ("TagA", ["k1", "k2"], 2)
    assert message.wait_store_ok is False
    assert message.sharding_key == "s"
    assert message.message_id is None
    assert message.get("own") == "value"
    assert message.get("other", "x") == "x"


DELAYS: dict[str, tuple[int, str]] = {
    "delay_level": (2, "DELAY"),
    "delay_seconds": (5, "TIMER_DELAY_SEC"),
    "delay_ms": (600, "TIMER_DELAY_MS"),
    "deliver_at_ms": (1_700_000_000_000, "TIMER_DELIVER_MS"),
}


@pytest.mark.parametrize("name", DELAYS)
def test_delays_become_properties(name: str) -> None:
    value, key = DELAYS[name]
    message = Message("T", b"body", **cast("Any", {name: value}))
    assert message.properties == {"WAIT": "true", key: str(value)}
    assert getattr(message, name) == value
    # The same kind of delay may be changed.
    setattr(message, name, value + 1)
    assert message.properties[key] == str(value + 1)


@pytest.mark.parametrize(("first", "second"), [*permutations(DELAYS, 2)])
def test_a_message_has_one_delay(first: str, second: str) -> None:
    both = {name: DELAYS[name][0] for name in (first, second)}
    with pytest.raises(InvalidMessageError, match="a message has one delay"):
        Message("T", b"body", **cast("Any", both))
    message = Message("T", b"body")
    setattr(message, first, both[first])
    with pytest.raises(InvalidMessageError, match=f"the message has {first} {both[first]} already"):
        setattr(message, second, both[second])
    assert DELAYS[second][1] not in message.properties


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"body": 5}, "the message body is of type int; give bytes"),
        ({"body": None}, "the message body is of type NoneType; give bytes"),
        ({"body": "text"}, r"the message body is a str; give bytes: body.encode\(\)"),
        ({"body": bytearray(b"x")}, "the message body is of type bytearray; give bytes"),
        ({"topic": 5}, "the topic of a message must be a str, not 5"),
        ({"flag": "1"}, "the flag of a message must be a whole number, not '1'"),
        ({"flag": 1.5}, "the flag of a message must be a whole number, not 1.5"),
        ({"flag": True}, "the flag of a message must be a whole number, not True"),
        ({"sharding_key": 5}, "the sharding key must be a str, not 5"),
        ({"delay_level": True}, "must be a whole number, not True"),
        ({"delay_seconds": 1.5}, "must be a whole number, not 1.5"),
    ],
)
def test_arguments_of_wrong_types_are_refused(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Message(**cast("Any", {"topic": "T", "body": b"body", **arguments}))


@pytest.mark.parametrize("flag", [2**31, -(2**31) - 1, 2**40])
def test_a_flag_has_32_bits(flag: int) -> None:
    with pytest.raises(InvalidMessageError, match=f"the flag of a message is {flag}; it must be"):
        Message("T", b"body", flag=flag)
    assert Message("T", b"body", flag=-(2**31)).flag == -(2**31)


def test_message_defaults() -> None:
    message = Message("T", b"body")
    assert message.properties == {"WAIT": "true"}
    assert (message.tags, message.keys, message.delay_level) == (None, [], 0)
    assert message.delay_seconds is message.delay_ms is message.deliver_at_ms is None
    assert message.wait_store_ok is True


def test_message_attributes_can_be_set_and_removed() -> None:
    message = Message("T", b"body", tags="A", keys="k", delay_level=1, sharding_key="s")
    message.tags = "B"
    message.keys = ("x", "y")
    message.delay_level = 0
    message.deliver_at_ms = 7
    message.wait_store_ok = False
    assert message.properties["TAGS"] == "B"
    assert message.properties["KEYS"] == "x y"
    message.tags = None
    message.keys = []
    message.deliver_at_ms = None
    message.sharding_key = None
    message.wait_store_ok = True
    assert message.properties == {"WAIT": "true"}


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_property_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidMessageError) as error:
        Message("T", b"body", properties={name: "x"})
    assert error.value.message == (f"The Property<{name}> is used by system, input another please")
    assert error.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("name", "value"), [("", "x"), (" ", "x"), ("a", ""), ("a", " \t")])
def test_blank_properties_are_rejected(name: str, value: str) -> None:
    with pytest.raises(
        InvalidMessageError, match="name or value of property can not be null or blank string!"
    ):
        Message("T", b"body").put(name, value)


@pytest.mark.parametrize(("name", "value"), [(1, "x"), ("a", 1), ("a", None), ("a", b"x")])
def test_properties_must_be_text(name: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="must be str, not"):
        Message("T", b"body").put(cast("str", name), cast("str", value))


def test_negative_times_are_rejected() -> None:
    for name in ("delay_level", "delay_seconds", "delay_ms", "deliver_at_ms"):
        with pytest.raises(InvalidMessageError, match="-1"):
            setattr(Message("T", b"body"), name, -1)


@pytest.mark.parametrize("value", [1.5, "3"])
def test_times_must_be_whole_numbers(value: Any) -> None:
    for name in ("delay_level", "delay_seconds", "delay_ms", "deliver_at_ms"):
        with pytest.raises(TypeError, match="whole number, not"):
            setattr(Message("T", b"body"), name, value)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"tags": ["a", "b"]}, "tags must be one str, not"),
        ({"tags": 3}, "tags must be one str, not 3"),
        ({"keys": 3}, "keys must be one str or a list of str, not 3"),
        ({"keys": [3]}, "keys must be one str or a list of str"),
        ({"properties": [("a", "1")]}, "properties must be a dict"),
    ],
)
def test_arguments_of_wrong_type_are_rejected(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Message("T", b"body", **wrong)


def test_message_repr() -> None:
    text = repr(Message("T", b"four", tags="A"))
    assert "'T'" in text
    assert "'TAGS': 'A'" in text
    assert "4 bytes" in text


def test_wait_store_ok_must_be_a_bool() -> None:
    given: Any = "no"
    with pytest.raises(TypeError, match="wait_store_ok must be True or False, not 'no'"):
        Message("T", b"x", wait_store_ok=given)
    message = Message("T", b"x")
    with pytest.raises(TypeError, match="wait_store_ok must be True or False, not 'no'"):
        message.wait_store_ok = given
    assert message.wait_store_ok
