"""Arguments of administration, checked before anything is asked of anybody.

The methods of ``Admin`` call the same things by the same names; ``checks_arguments`` therefore
checks them by name, for all methods. Names of topics and groups that exist already may be anything
(brokers call topics of their own after themselves), so only those that are made anew have to be as
RocketMQ wants them: ``check_topic_config`` and ``check_group_config``.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from goddard.client.checks import check_new_group, check_new_topic, check_queue, several, table
from goddard.client.options import check_range
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig
from goddard.protocol.codes import Permission

MAX_QUEUES: Final = 65_535
_MAX_LONG: Final = 2**63 - 1
_MAX_INT: Final = 2**31 - 1

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type[object])


def _name(what: str, given: object) -> object:
    if not isinstance(given, str):
        raise ConfigError(f"{what} is {given!r:.200}; text is wanted")
    if not given.strip():
        raise ConfigError(f"{what} is blank")
    return given


def _text(what: str, given: object) -> object:
    if not isinstance(given, str):
        raise ConfigError(f"{what} is {given!r:.200}; text is wanted")
    return given


def _from(low: int, high: int) -> Callable[[str, object], object]:
    return lambda what, given: check_range(what, given, low, high)


def _several(kind: type[object]) -> Callable[[str, object], object]:
    return lambda what, given: several(what, given, kind)


def _table(key: type[object], value: type[object]) -> Callable[[str, object], object]:
    return lambda what, given: table(what, given, key, value)


def check_permission(what: str, given: object) -> object:
    """A topic's or broker's: what RocketMQ's PermName says is valid."""
    if (
        not isinstance(given, int)
        or isinstance(given, bool)
        or not 0 <= given < Permission.PRIORITY
    ):
        raise ConfigError(f"{what} value: {given} is invalid.")
    return given


CHECKS: Final[Mapping[str, Callable[[str, Any], object]]] = {
    **dict.fromkeys(
        (
            *("topic", "trace_topic", "group", "source_group", "target_group", "compare_group"),
            *("broker", "broker_name", "cluster", "address", "namespace", "stats_name"),
            *("controller_address", "container_address", "config_path"),
            *("client_id", "message_id", "offset_message_id", "unique_key"),
            *("username", "subject", "access_key"),
        ),
        _name,
    ),
    **dict.fromkeys(
        (
            *("containing", "subject_containing", "resource_containing", "filter_groups"),
            *("tags", "value", "queue_counts", "password", "client_address"),
        ),
        _text,
    ),
    **dict.fromkeys(("offset", "queue_offset", "index", "physical_offset"), _from(0, _MAX_LONG)),
    # Below 0 is the end of a queue.
    "timestamp_ms": _from(-_MAX_LONG, _MAX_LONG),
    **dict.fromkeys(("begin_ms", "end_ms", "since_ms"), _from(0, _MAX_LONG)),
    **dict.fromkeys(("count", "max_count"), _from(1, _MAX_INT)),
    **dict.fromkeys(("broker_id", "broker_id_when_slow"), _from(0, _MAX_LONG)),
    "queues": _from(1, MAX_QUEUES),
    # None to be written while the rest is read, or the other way round.
    **dict.fromkeys(("read_queues", "write_queues", "retry_queues"), _from(0, MAX_QUEUES)),
    "max_retries": _from(-1, _MAX_INT),
    "consume_timeout_minutes": _from(1, _MAX_INT),
    "pop_share_queues": _from(-1, _MAX_INT),
    "permission": lambda _, given: check_permission("topicPermission", given),
    "queue": lambda _, given: check_queue(given),
    "offsets": _table(MessageQueue, int),
    "properties": _table(str, str),
    "attributes": _table(str, str),
    "thresholds": _table(str, int),
    **dict.fromkeys(
        ("chosen", "addresses", "controller_addresses", "broker_names", "kinds"), _several(str)
    ),
    "broker_ids": _several(int),
}


def checks_arguments(methods: C) -> C:
    """A class whose public coroutines check their arguments by the names of these."""
    for name, method in list(vars(methods).items()):
        if not name.startswith("_") and inspect.iscoroutinefunction(method):
            setattr(methods, name, _checked(method))
    return methods


def _checked(method: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    signature = inspect.signature(method)
    checked = [item for item in signature.parameters.values() if item.name in CHECKS]
    if not checked:
        return method

    @wraps(method)
    async def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # Python says better what is missing or too much.
            return await method(*args, **kwargs)
        given = bound.arguments
        for item in checked:
            if item.name in given and given[item.name] is not item.default:
                given[item.name] = CHECKS[item.name](item.name, given[item.name])
        return await method(*bound.args, **bound.kwargs)

    return check_and_call


def check_topic_config(config: TopicConfig) -> None:
    """What a topic is to be like; ConfigError if a broker would not, or should not, take it."""
    check_new_topic(config.topic_name)
    check_permission("topicPermission", config.perm)
    check_range("read_queue_nums", config.read_queue_nums, 0, MAX_QUEUES)
    check_range("write_queue_nums", config.write_queue_nums, 0, MAX_QUEUES)


def check_group_config(config: SubscriptionGroupConfig) -> None:
    """What a group is to be like; ConfigError if a broker would not, or should not, take it."""
    check_new_group(config.group_name)
    check_range("retry_queue_nums", config.retry_queue_nums, 0, MAX_QUEUES)
    check_range("retry_max_times", config.retry_max_times, -1, _MAX_INT)
