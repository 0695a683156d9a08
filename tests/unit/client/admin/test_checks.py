"""What administration refuses before it asks anybody."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest

from goddard.client.admin import checks as admin_checks
from goddard.client.admin.admin import Admin
from goddard.client.values import MessageQueue
from goddard.clock import Clock, SystemClock
from goddard.errors import ConfigError
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import Permission

QUEUE = MessageQueue("T", "a", 0)


class Unasked:
    """An AdminLink that must not be used."""

    timeout_ms = 1_000

    @property
    def clock(self) -> Clock:
        return SystemClock()

    @property
    def session(self) -> NoReturn:
        raise AssertionError("somebody was asked")


NAME: tuple[object, ...] = ("", "  ", None, 5, b"bytes", ["T"])
TEXT: tuple[object, ...] = (None, 5, b"bytes")
NUMBER: tuple[object, ...] = ("1", 1.5, True, 2**63)
SEVERAL: tuple[object, ...] = ("a:1", b"a:1", 5, [5], ["a:1", None], QUEUE)
BAD: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("topic", "trace_topic", "group", "source_group", "target_group", "compare_group"),
            *("broker", "broker_name", "cluster", "address", "namespace", "stats_name"),
            *("controller_address", "container_address", "config_path"),
            *("client_id", "message_id", "offset_message_id", "unique_key"),
            *("username", "subject", "access_key"),
        ),
        NAME,
    ),
    **dict.fromkeys(
        (
            *("containing", "subject_containing", "resource_containing", "filter_groups"),
            *("tags", "value", "queue_counts", "password", "client_address"),
        ),
        TEXT,
    ),
    **dict.fromkeys(
        (
            *("offset", "queue_offset", "index", "physical_offset"),
            *("begin_ms", "end_ms", "since_ms", "broker_id", "broker_id_when_slow"),
        ),
        (*NUMBER, -1),
    ),
    "timestamp_ms": NUMBER,
    **dict.fromkeys(("count", "max_count", "consume_timeout_minutes"), (*NUMBER, 0, -1)),
    **dict.fromkeys(("max_retries", "pop_share_queues"), (*NUMBER, -2)),
    "queues": (*NUMBER, 0, -1, 65_536),
    **dict.fromkeys(("read_queues", "write_queues", "retry_queues"), (*NUMBER, -1, 65_536)),
    "permission": (-1, 8, 15, "rw", None, True),
    "queue": (None, "T", ("T", "a", 0), [QUEUE]),
    "offsets": (QUEUE, [QUEUE], {"T": 1}, {QUEUE: "1"}, {QUEUE: True}),
    "properties": ("a=b", {"a": 1}, {1: "b"}, [("a", "b")]),
    "attributes": ("+a=b", {"a": 1}, {1: "b"}),
    "thresholds": ("g=1", {"g": "1"}, {1: 1}),
    **dict.fromkeys(
        ("chosen", "addresses", "controller_addresses", "broker_names", "kinds"), SEVERAL
    ),
    "broker_ids": ("1", 1, ["1"]),
}


def admin_methods() -> dict[str, Callable[..., Any]]:
    return {
        name: method
        for name, method in inspect.getmembers(Admin, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in ("start", "stop")
    }


def parameters_of(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(method).parameters.items())[1:])


GOOD: Mapping[str, object] = {
    "queue": QUEUE,
    "offsets": {QUEUE: 1},
    "permission": Permission.READ,
    "properties": {"a": "b"},
    "thresholds": {"g": 1},
    **dict.fromkeys(("offset", "queue_offset", "index", "physical_offset", "broker_id"), 1),
    **dict.fromkeys(("queues", "timestamp_ms"), 1),
    **dict.fromkeys(("addresses", "controller_addresses", "broker_names", "kinds"), ("a",)),
}


@pytest.mark.parametrize("name", sorted(admin_methods()))
async def test_every_method_checks_its_arguments_before_it_asks(name: str) -> None:
    method = admin_methods()[name]
    parameters = parameters_of(method)
    required = {
        own: GOOD.get(own, "text")
        for own, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    for own in parameters.keys() & BAD.keys():
        for value in BAD[own]:
            if value is parameters[own].default:
                continue
            with pytest.raises((ConfigError, TypeError)) as failed:
                await method(Unasked(), **required | {own: value})
            assert own in str(failed.value).replace("topicPermission", own)


def test_every_check_is_of_an_argument_that_is_there() -> None:
    known = {own for method in admin_methods().values() for own in parameters_of(method)}
    assert admin_checks.CHECKS.keys() - known == set()
    assert admin_checks.CHECKS.keys() == BAD.keys()


async def test_python_itself_tells_of_arguments_that_are_missing() -> None:
    create: Any = Admin.create_topic
    with pytest.raises(TypeError, match=r"create_topic\(\) missing 1 required positional argument"):
        await create(Unasked())
    with pytest.raises(TypeError, match="unexpected keyword argument 'queus'"):
        await create(Unasked(), "T", queus=8)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "my topic"}, r"The specified topic: my topic, contains illegal characters"),
        ({"topic": "T" * 128}, r"longer than topic max length: 127"),
        ({"topic": "T", "queues": 0}, r"queues is 0; it must be 1 to 65535"),
        ({"topic": "T", "permission": 8}, r"topicPermission value: 8 is invalid\."),
        ({"topic": "T", "attributes": {"a,b": "c"}}, "empty or has a comma"),
    ],
)
async def test_topics_that_cannot_be_made(options: dict[str, Any], text: str) -> None:
    create: Any = Admin.create_topic
    with pytest.raises(ConfigError, match=text):
        await create(Unasked(), cluster="c", **options)


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(topic_name="my topic"),
        TopicConfig(topic_name="T", read_queue_nums=-1),
        TopicConfig(topic_name="T", write_queue_nums=65_536),
        TopicConfig(topic_name="T", perm=8),
    ],
)
async def test_configurations_of_topics_that_cannot_be(config: TopicConfig) -> None:
    several: Any = Admin.create_topics
    static: Any = Admin.create_static_topic
    with pytest.raises(ConfigError):
        await several(Unasked(), [TopicConfig(topic_name="fine"), config], cluster="c")
    with pytest.raises(ConfigError):
        await static(Unasked(), "a", config, None)
    with pytest.raises(TypeError, match="one TopicConfig was given, a list is wanted"):
        await several(Unasked(), config, cluster="c")


async def test_groups_that_cannot_be_made() -> None:
    one: Any = Admin.create_group
    several: Any = Admin.create_groups
    bad = SubscriptionGroupConfig(group_name="my group")
    with pytest.raises(ConfigError, match="The specified group: my group, contains illegal"):
        await one(Unasked(), "my group", cluster="c")
    with pytest.raises(ConfigError, match="The specified group: my group, contains illegal"):
        await several(Unasked(), [bad], cluster="c")
    without_queues = SubscriptionGroupConfig(group_name="g", retry_queue_nums=-1)
    with pytest.raises(ConfigError, match="retry_queue_nums is -1"):
        await several(Unasked(), [without_queues], cluster="c")
    with pytest.raises(TypeError, match="a list of SubscriptionGroupConfig is wanted"):
        await several(Unasked(), ["g"], cluster="c")


@pytest.mark.parametrize("permission", ["8", "-1", "rw", ""])
async def test_brokers_have_permissions_that_exist(permission: str) -> None:
    update: Any = Admin.update_broker_config
    with pytest.raises(ConfigError, match=f"brokerPermission value: {permission} is invalid"):
        await update(Unasked(), {"brokerPermission": permission}, cluster="c")


async def test_offsets_are_not_negative() -> None:
    reset: Any = Admin.reset_offsets
    with pytest.raises(ConfigError, match="offset is -1"):
        await reset(Unasked(), "g", {QUEUE: -1})
