"""Checks of arguments, made before anything is done with them. Pure.

A value that is not allowed is a ConfigError. A value of the wrong type is an ArgumentTypeError, a
subclass of ConfigError and of TypeError.

Lists are checked because a MessageQueue is a tuple and a str is a sequence of str: given instead of
a list, they would be split into their parts without an error.
"""

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from goddard.client.values import MessageQueue
from goddard.errors import ArgumentTypeError, ConfigError
from goddard.protocol.names import group_problem, topic_problem

# Of a topic on one broker.
MAX_QUEUES: Final = 65_535
DEFAULT_CONSUMER: Final = "DEFAULT_CONSUMER"
MAX_INT: Final = 2**31 - 1

T = TypeVar("T")


def check_type(
    option: str, value: object, kind: type[object], *, advice: str = "", is_secret: bool = False
) -> None:
    """ArgumentTypeError unless the value of an option is an instance of ``kind``.

    The text does not contain a value that ``is_secret``, only its type.
    """
    if not isinstance(value, kind):
        shown = f"of type {type(value).__name__}" if is_secret else f"{value!r:.200}"
        ending = f": {advice}" if advice else ""
        raise ArgumentTypeError(f"{option} is {shown}; it must be {kind.__name__}{ending}")


def check_range(option: str, value: Any, low: int, high: int = MAX_INT) -> int:
    """The value; ConfigError unless it is a whole number from ``low`` to ``high``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"{option} is {value!r:.200}; it must be a whole number")
    if not low <= value <= high:
        raise ConfigError(f"{option} is {value}; it must be {low} to {high}")
    return value


def check_list(name: str, given: Any, kind: type[T]) -> list[T]:
    """A copy of a list; ArgumentTypeError if it is not a collection of instances of ``kind``."""
    expected = f"{name} must be a list of {kind.__name__}"
    if isinstance(given, kind):
        raise ArgumentTypeError(f"{expected}, not one {kind.__name__}: write [{given!r:.200}]")
    if isinstance(given, str | bytes | MessageQueue) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"{expected}, not {given!r:.200}")
    items = list(given)
    for item in items:
        if not isinstance(item, kind):
            raise ArgumentTypeError(f"{expected}; it contains {item!r:.200}")
    return items


def check_function(name: str, given: object) -> None:
    """ArgumentTypeError unless it can be called."""
    if not callable(given):
        raise ArgumentTypeError(f"{name} is {given!r:.200}; it must be a function")


def check_hooks(name: str, given: Any, *methods: str) -> tuple[Any, ...]:
    """A copy of a list of hooks, which may be of any class that has these methods.

    ArgumentTypeError if it is not a collection of such objects.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"{name} must be a list of hooks, not {given!r:.200}")
    hooks = tuple(given)
    for hook in hooks:
        if isinstance(hook, type):
            hint = f"give an object: {hook.__name__}()"
            raise ArgumentTypeError(f"{name} contains the class {hook.__name__}; {hint}")
        for method in methods:
            if not callable(getattr(hook, method, None)):
                raise ArgumentTypeError(f"{name} contains {hook!r:.200}, which has no {method}()")
    return hooks


def check_queue(queue: object) -> MessageQueue:
    """The queue; ArgumentTypeError if it is not a MessageQueue, ConfigError if it cannot exist."""
    if not isinstance(queue, MessageQueue):
        raise ArgumentTypeError(
            f"a queue must be MessageQueue(topic, broker_name, queue_id), not {queue!r:.200}"
        )
    for name in (queue.topic, queue.broker_name):
        if not isinstance(name, str):
            raise ArgumentTypeError(f"{queue!r:.200} names {name!r:.200}; names must be str")
    check_range("queue_id", queue.queue_id, 0)
    return queue


def check_timeout(timeout_ms: object, *, low: int = 1) -> int:
    """The argument ``timeout_ms`` of a method; ConfigError unless it is a whole number in range."""
    return check_range("timeout_ms", timeout_ms, low)


def check_mapping(
    name: str, given: Any, key_type: type[T], value_type: type[object]
) -> Mapping[T, Any]:
    """The mapping; ArgumentTypeError if a key or value has another type. A value may be None."""
    expected = f"{name} must be a dict of {key_type.__name__} to {value_type.__name__}"
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"{expected}, not {given!r:.200}")
    for key, value in given.items():
        # In Python bool is a subclass of int; no option takes True for 1.
        is_right = isinstance(value, value_type) and not isinstance(value, bool)
        if not isinstance(key, key_type) or not (is_right or value is None):
            raise ArgumentTypeError(f"{expected}; it contains {key!r:.200}: {value!r:.200}")
    return given


def check_new_topic(topic: object) -> None:
    """ConfigError unless a topic may have this name."""
    if (problem := topic_problem(topic)) is not None:
        raise _name_error(topic, problem)


def check_new_group(group: object) -> None:
    """ConfigError unless a group may have this name."""
    if (problem := group_problem(group)) is not None:
        raise _name_error(group, problem)


def check_consumer_group(group: object) -> None:
    """ConfigError unless consumers may be in a group of this name."""
    problem = group_problem(group)
    if problem is None and group == DEFAULT_CONSUMER:
        problem = f"consumerGroup can not equal {DEFAULT_CONSUMER}, please specify another one."
    if problem is not None:
        raise _name_error(group, f"the group {str(group)[:200]!r} cannot be used: {problem}")


def _name_error(name: object, text: str) -> ConfigError:
    return ConfigError(text) if isinstance(name, str) else ArgumentTypeError(text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'X'?``, or nothing if no known name is similar."""
    # Imported when needed, as it is slow to import.
    similar = importlib.import_module("difflib").get_close_matches(name, list(known), n=1)
    return f"; did you mean {similar[0]!r}?" if similar else ""
