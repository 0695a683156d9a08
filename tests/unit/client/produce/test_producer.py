"""Arguments that the administrative methods of a producer refuse before they send a request."""

from typing import Any, NoReturn

import pytest

from goddard.client.produce.producer import Producer
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError

QUEUE = MessageQueue("T", "a", 0)


class Unasked(Producer):
    """A producer that must not send a request."""

    def _check_running(self) -> NoReturn:
        raise AssertionError("a request was sent")


NUMBERS: tuple[object, ...] = ("1", 1.5, True, 2**63)
NAMES: tuple[object, ...] = ("", "  ", 5, b"bytes", None)
BAD: dict[str, tuple[dict[str, object], dict[str, tuple[object, ...]]]] = {
    "create_topic": (
        {"topic": "T"},
        {
            "topic": ("my topic", *NAMES),
            "queues": (*NUMBERS, 0, 65_536),
            "like": ("", "  ", 5, b"bytes"),
            "attributes": ("a=b", {"a": 1}, {1: "b"}),
        },
    ),
    "max_offset": ({}, {"queue": (7, ("T", "a", 0))}),
    "min_offset": ({}, {"queue": (7, ("T", "a", 0))}),
    "earliest_store_time_ms": ({}, {"queue": (7, ("T", "a", 0))}),
    "search_offset": (
        {"queue": QUEUE, "timestamp_ms": 1},
        {"queue": (7,), "timestamp_ms": NUMBERS, "boundary": ("lower", 1)},
    ),
    "message": ({"topic": "T", "message_id": "id"}, {"topic": NAMES, "message_id": NAMES}),
    "messages_by_key": (
        {"topic": "T", "key": "k"},
        {
            "topic": NAMES,
            "key": NAMES,
            "max_count": (*NUMBERS, 0, 2**31),
            "begin_ms": (*NUMBERS, -1),
            "end_ms": (*NUMBERS, -1),
        },
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_arguments_are_checked_before_a_request_is_sent(name: str) -> None:
    good, bad = BAD[name]
    method: Any = getattr(Unasked("senders", name_servers="127.0.0.1:9876"), name)
    for argument, values in bad.items():
        for value in values:
            with pytest.raises((ConfigError, TypeError)) as failed:
                await method(**good | {argument: value})
            assert argument.removesuffix("s") in str(failed.value)
