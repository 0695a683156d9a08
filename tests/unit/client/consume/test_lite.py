"""What a lite consumer refuses before it talks to anybody."""

import os
from typing import Any

import pytest

from goddard.client.consume.lite import LitePullConsumer
from goddard.client.errors import ClientError, ForkedError
from goddard.client.values import MessageModel, MessageQueue, ServiceState
from goddard.errors import ConfigError


def lite(group: str = "G", **options: Any) -> LitePullConsumer:
    return LitePullConsumer(group, name_servers="127.0.0.1:1", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pull_batch_size": 0}, "pull_batch_size is 0; it must be 1 to 1024"),
        ({"pull_threshold_for_all": 0}, "pull_threshold_for_all is 0"),
        ({"pull_threshold_for_queue": 65_536}, "it must be 1 to 65535"),
        ({"pull_threshold_mib_for_queue": 1025}, "it must be 1 to 1024"),
        ({"max_span": 0}, "max_span is 0"),
        ({"poll_timeout_ms": -1}, "poll_timeout_ms is -1"),
        ({"auto_commit_interval_ms": 0}, "auto_commit_interval_ms is 0"),
        ({"queue_check_interval_ms": 1.5}, "it must be a whole number"),
        ({"consume_timestamp_ms": -1}, "consume_timestamp_ms is -1"),
        ({"pull_timeout_ms": 100}, "it must be at least broker_suspend_ms, 20000"),
        ({"group": "DEFAULT_CONSUMER"}, "consumerGroup can not equal DEFAULT_CONSUMER"),
        ({"group": "a b"}, "contains illegal characters"),
        ({"group": ""}, "is blank"),
        ({"heartbeat_interval_ms": 0}, "heartbeat_interval_ms is 0"),
        ({"message_model": "BROADCASTING"}, "; it must be MessageModel"),
        ({"consume_from": "first"}, "; it must be ConsumeFrom"),
    ],
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        lite(**options)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'pull_treshold'"):
        lite(pull_treshold=1)


def test_modes_exclude_each_other() -> None:
    queue = MessageQueue("T", "b", 0)
    subscriber = lite()
    subscriber.subscribe("T", "A || B")
    with pytest.raises(ClientError, match="Subscribe and assign are mutually exclusive"):
        subscriber.assign([queue])
    with pytest.raises(ClientError, match="mutually exclusive"):
        subscriber.filter_assigned("T", "A")
    assigned = lite()
    with pytest.raises(ConfigError, match="can not be null or empty"):
        assigned.assign([])
    assigned.assign([queue])
    with pytest.raises(ClientError, match="mutually exclusive"):
        assigned.subscribe("T")


QUEUE = MessageQueue("T", "b", 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            QUEUE,
            r"queues must be a list of MessageQueue, not one MessageQueue: write \[",
        ),
        ("T", "queues must be a list of MessageQueue, not 'T'"),
        (["T"], "queues must be a list of MessageQueue; it contains 'T'"),
        ([QUEUE, ("T", "b", 0)], r"it contains \('T', 'b', 0\)"),
        (None, "queues must be a list of MessageQueue, not None"),
        (5, "not 5"),
    ],
)
def test_queues_are_given_as_a_list(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        lite().assign(given)


@pytest.mark.parametrize(("topic", "expression"), [("", "*"), ("a b", "*"), ("T", "||")])
def test_subscriptions_are_checked(topic: str, expression: str) -> None:
    consumer = lite()
    with pytest.raises(ConfigError):
        consumer.subscribe(topic, expression)
    # What was refused has chosen no mode.
    consumer.assign([MessageQueue("T", "b", 0)])


@pytest.mark.parametrize("wrong", [1.5, "0", None, True])
async def test_offsets_and_times_are_whole_numbers(wrong: Any) -> None:
    consumer = lite()
    with pytest.raises(ConfigError, match=r"offset is .*; it must be a whole number"):
        await consumer.seek(QUEUE, wrong)
    with pytest.raises(ConfigError, match=r"timestamp_ms is .*; it must be a whole number"):
        await consumer.offset_for_timestamp(QUEUE, wrong)


def test_client_ids() -> None:
    assert lite(client_ip="10.0.0.1").client_id.startswith(f"10.0.0.1@{os.getpid()}#")
    assert lite(client_ip="10.0.0.1").client_id != lite(client_ip="10.0.0.1").client_id
    broadcast = lite(client_ip="10.0.0.1", message_model=MessageModel.BROADCASTING)
    assert broadcast.client_id == "10.0.0.1@DEFAULT"


async def test_stopping_what_never_started() -> None:
    consumer = lite()
    await consumer.stop()
    assert consumer.state is ServiceState.CREATED


async def test_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = lite()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ForkedError, match="create clients after the fork"):
        await consumer.start()
    with pytest.raises(ForkedError):
        await consumer.poll()
