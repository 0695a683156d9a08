"""What a push consumer refuses before it talks to anybody."""

from typing import Any

import pytest

from goddard.client.consume.push import PushConsumer
from goddard.errors import ConfigError

SERVER = "127.0.0.1:9876"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("consume_threads", 0),
        ("consume_threads", 1001),
        ("consume_batch_size", 0),
        ("consume_batch_size", 1025),
        ("pull_batch_size", 1025),
        ("pull_interval_ms", 65_536),
        ("pull_threshold_for_queue", 0),
        ("pull_threshold_for_queue", 65_536),
        ("pull_threshold_mib_for_queue", 1025),
        ("pull_threshold_for_topic", 0),
        ("pull_threshold_mib_for_topic", -2),
        ("max_span", 0),
        ("max_reconsume_times", -2),
        ("suspend_queue_ms", 9),
        ("consume_timeout_ms", 0),
        ("await_termination_ms", -1),
        ("consume_threads", "many"),
    ],
)
def test_an_option_out_of_range_is_named(option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match=f"{option} is {value!r}"):
        PushConsumer("group", name_servers=SERVER, **options)


@pytest.mark.parametrize("group", ["", "DEFAULT_CONSUMER", "no spaces", "x" * 300])
def test_a_group_that_cannot_be_is_refused(group: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        PushConsumer(group, name_servers=SERVER)


@pytest.mark.parametrize("topic", ["", "no spaces", "x" * 300])
def test_a_topic_that_cannot_be_is_refused(topic: str) -> None:
    consumer = PushConsumer("group", name_servers=SERVER)
    with pytest.raises(ConfigError, match="cannot be subscribed to"):
        consumer.subscribe(topic)


async def test_a_consumer_needs_a_listener() -> None:
    consumer = PushConsumer("group", name_servers=SERVER)
    with pytest.raises(ConfigError, match="no listener"):
        await consumer.start()


def test_a_listener_can_be_called() -> None:
    options: dict[str, Any] = {"listener": "print"}
    with pytest.raises(ConfigError, match="it must be a function"):
        PushConsumer("group", name_servers=SERVER, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("message_model", "BROADCASTING"), ("consume_from", 1), ("trace", True), ("orderly", 1)],
)
def test_options_of_a_kind(option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match=f"{option} is {value!r}; it must be [A-Za-z]+"):
        PushConsumer("group", name_servers=SERVER, **options)


@pytest.mark.parametrize("topic", [None, 3])
def test_topics_are_text(topic: Any) -> None:
    with pytest.raises(ConfigError, match="it has to be text"):
        PushConsumer("group", name_servers=SERVER).subscribe(topic)


def test_listen_is_a_decorator() -> None:
    consumer = PushConsumer("group", name_servers=SERVER)

    @consumer.listen
    def listener(messages: object, context: object) -> None: ...

    assert callable(listener)
