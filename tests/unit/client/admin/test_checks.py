"""Arguments that administration refuses before it sends a request."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, get_args

import pytest

from goddard.client import arguments
from goddard.client.admin.admin import Admin
from goddard.client.admin.requests import AdminBase
from goddard.client.broker_api import Boundary
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.bodies import (
    RequestMode,
    TopicConfig,
    TopicQueueMappingDetail,
    TopicRoute,
)
from goddard.protocol.bodies_admin import (
    AccessKey,
    AclInfo,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from goddard.protocol.codes import Permission
from goddard.protocol.record import Host, Record

QUEUE = MessageQueue("T", "a", 0)
HOST = Host.parse("10.0.0.1:10911")
MESSAGE = ReceivedMessage.from_record(
    Record(
        topic="T",
        queue_id=0,
        queue_offset=1,
        physical_offset=1,
        store_timestamp_ms=1,
        store_host=HOST,
        born_timestamp_ms=1,
        born_host=HOST,
        body=b"body",
        properties=b"",
    ),
    "a",
)


class Unasked(Admin):
    """Administration that must not send a request."""

    @property
    def session(self) -> NoReturn:
        raise AssertionError("a request was sent")


UNASKED = Unasked("127.0.0.1:9876")

NUMBER: tuple[object, ...] = ("1", 1.5, True, 2**63)
SEVERAL: tuple[object, ...] = ("a:1", b"a:1", 5, [object()], ["a:1", None], QUEUE)

# Wrong arguments for each type that a parameter may have.
BAD_BY_TYPE: Mapping[object, tuple[object, ...]] = {
    str: ("", "  ", 5, b"bytes", ["T"]),
    arguments.Text: (5, b"bytes", ["T"]),
    bool: (1, 0, "true"),
    arguments.Offset: (*NUMBER, -1),
    arguments.TimeOrEndMs: NUMBER,
    arguments.Count: (*NUMBER, 0, -1, 2**31),
    arguments.CountOrNoLimit: (*NUMBER, -2, 2**31),
    arguments.QueueCount: (*NUMBER, 0, -1, 65_536),
    arguments.QueueCountOrNone: (*NUMBER, -1, 65_536),
    arguments.ReadAheadMode: (*NUMBER, -1, 2**31),
    Permission: (-1, 8, 15, "rw", True),
    Boundary: ("lower", 1),
    RequestMode: ("PULL", 1),
    MessageQueue: ("T", ("T", "a", 0), [QUEUE]),
    ReceivedMessage: (b"body", QUEUE),
    Iterable[str]: SEVERAL,
    Iterable[int]: ("1", 1, ["1"]),
    Iterable[TopicConfig]: ("T", ["T"], TopicConfig()),
    Iterable[SubscriptionGroupConfig]: ("g", ["g"], SubscriptionGroupConfig()),
    Mapping[MessageQueue, int]: (QUEUE, [QUEUE], {"T": 1}, {QUEUE: "1"}, {QUEUE: True}),
    Mapping[str, int]: ("g=1", {"g": "1"}, {1: 1}),
    Mapping[str, str]: ("a=b", {"a": 1}, {1: "b"}, [("a", "b")]),
    Mapping[str, str | None]: ("+a=b", {"a": 1}, {1: "b"}),
    **dict.fromkeys(
        (AccessKey, AclInfo, GroupRetryPolicy, TopicConfig, TopicQueueMappingDetail, TopicRoute),
        ("text", 5, {"a": "b"}),
    ),
}
# Parameters that take less than their type in Python suggests, by their name.
TYPES_BY_NAME: Mapping[str, object] = {
    **dict.fromkeys(
        (
            *("containing", "subject_containing", "resource_containing", "filter_groups"),
            *("tags", "value", "queue_counts", "password", "client_address"),
        ),
        arguments.Text,
    ),
    **dict.fromkeys(
        (
            *("offset", "queue_offset", "index", "physical_offset"),
            *("begin_ms", "end_ms", "since_ms", "broker_id", "broker_id_when_slow"),
        ),
        arguments.Offset,
    ),
    "timestamp_ms": arguments.TimeOrEndMs,
    **dict.fromkeys(("count", "max_count", "consume_timeout_minutes"), arguments.Count),
    **dict.fromkeys(("max_retries", "pop_share_queues"), arguments.CountOrNoLimit),
    "queues": arguments.QueueCount,
    **dict.fromkeys(("read_queues", "write_queues", "retry_queues"), arguments.QueueCountOrNone),
}


def admin_methods() -> dict[str, Callable[..., Any]]:
    return {
        name: method
        for name, method in inspect.getmembers(Admin, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in ("start", "stop")
    }


def parameters_of(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(method).parameters.items())[1:])


def type_of(parameter: inspect.Parameter) -> object:
    """The type of a parameter, without None."""
    of = [item for item in get_args(parameter.annotation) if item is not type(None)]
    is_optional = len(of) == 1 and type(None) in get_args(parameter.annotation)
    return of[0] if is_optional else parameter.annotation


GOOD: Mapping[object, object] = {
    str: "text",
    arguments.Text: "text",
    **dict.fromkeys((arguments.Offset, arguments.TimeOrEndMs, arguments.QueueCount), 1),
    arguments.ReadAheadMode: 1,
    Permission: Permission.READ,
    MessageQueue: QUEUE,
    RequestMode: RequestMode.POP,
    Iterable[str]: ("a",),
    Iterable[TopicConfig]: (),
    Iterable[SubscriptionGroupConfig]: (),
    Mapping[MessageQueue, int]: {QUEUE: 1},
    Mapping[str, int]: {"g": 1},
    Mapping[str, str]: {"a": "b"},
    TopicConfig: TopicConfig(topic_name="T"),
    TopicQueueMappingDetail: TopicQueueMappingDetail(),
    TopicRoute: TopicRoute(),
    AclInfo: AclInfo(subject="User:ann"),
    AccessKey: AccessKey(access_key="key"),
    ReceivedMessage: MESSAGE,
}


@pytest.mark.parametrize("name", sorted(admin_methods()))
async def test_every_argument_is_checked_before_a_request_is_sent(name: str) -> None:
    parameters = parameters_of(admin_methods()[name])
    method = getattr(UNASKED, name)
    required = {
        own: GOOD[type_of(parameter)]
        for own, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    for own, parameter in parameters.items():
        kind = type_of(parameter)
        assert kind == TYPES_BY_NAME.get(own, kind)
        wrong = BAD_BY_TYPE[kind]
        if kind is parameter.annotation:
            wrong = (None, *wrong)
        for value in wrong:
            with pytest.raises((ConfigError, TypeError)) as failed:
                await method(**required | {own: value})
            text = str(failed.value).replace("topicPermission", own)
            assert own in text or "MessageQueue" in text


@pytest.mark.parametrize("kind", [int, float, list[str], int | str, Iterable[int] | str])
def test_method_with_an_unchecked_parameter_cannot_be_defined(kind: Any) -> None:
    async def rename(self: AdminBase, what: Any) -> None:
        pass

    rename.__annotations__["what"] = kind
    with pytest.raises(TypeError, match=r"rename\(what\) is .*, which has no check"):
        type("NewMethods", (AdminBase,), {"rename": rename})


async def test_missing_and_unknown_arguments_raise_the_error_of_python() -> None:
    create: Any = UNASKED.create_topic
    with pytest.raises(TypeError, match=r"create_topic\(\) missing 1 required positional argument"):
        await create()
    with pytest.raises(TypeError, match="unexpected keyword argument 'queus'"):
        await create("T", queus=8)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "my topic"}, r"The specified topic: my topic, contains illegal characters"),
        ({"topic": "T" * 128}, r"longer than topic max length: 127"),
        ({"topic": "T", "queues": 0}, r"queues is 0; it must be 1 to 65535"),
        ({"topic": "T", "permission": 8}, r"topicPermission value: 8 is invalid\."),
        ({"topic": "T", "attributes": {"a,b": "c"}}, "empty or contains a comma"),
    ],
)
async def test_invalid_new_topics_are_refused(options: dict[str, Any], text: str) -> None:
    create: Any = UNASKED.create_topic
    with pytest.raises(ConfigError, match=text):
        await create(cluster="c", **options)


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(topic_name="my topic"),
        TopicConfig(topic_name="T", read_queue_nums=-1),
        TopicConfig(topic_name="T", write_queue_nums=65_536),
        TopicConfig(topic_name="T", perm=8),
    ],
)
async def test_invalid_topic_configurations_are_refused(config: TopicConfig) -> None:
    several: Any = UNASKED.create_topics
    static: Any = UNASKED.create_static_topic
    with pytest.raises(ConfigError):
        await several([TopicConfig(topic_name="fine"), config], cluster="c")
    with pytest.raises(ConfigError):
        await static("a", config, TopicQueueMappingDetail())
    with pytest.raises(TypeError, match="must be a list of TopicConfig, not one TopicConfig"):
        await several(config, cluster="c")


async def test_invalid_new_groups_are_refused() -> None:
    one: Any = UNASKED.create_group
    several: Any = UNASKED.create_groups
    bad = SubscriptionGroupConfig(group_name="my group")
    with pytest.raises(ConfigError, match="The specified group: my group, contains illegal"):
        await one("my group", cluster="c")
    with pytest.raises(ConfigError, match="The specified group: my group, contains illegal"):
        await several([bad], cluster="c")
    without_queues = SubscriptionGroupConfig(group_name="g", retry_queue_nums=-1)
    with pytest.raises(ConfigError, match="retry_queue_nums is -1"):
        await several([without_queues], cluster="c")
    with pytest.raises(TypeError, match="must be a list of SubscriptionGroupConfig"):
        await several(["g"], cluster="c")


@pytest.mark.parametrize("permission", ["8", "-1", "rw", ""])
async def test_invalid_broker_permissions_are_refused(permission: str) -> None:
    update: Any = UNASKED.update_broker_config
    with pytest.raises(ConfigError, match=f"brokerPermission value: {permission} is invalid"):
        await update({"brokerPermission": permission}, cluster="c")


async def test_negative_offsets_are_refused() -> None:
    reset: Any = UNASKED.reset_offsets
    with pytest.raises(ConfigError, match="offset is -1"):
        await reset("g", {QUEUE: -1})
