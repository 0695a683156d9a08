"""What is said to users who give one thing where several are meant, or something else. Pure.

A queue is a tuple and a text is a sequence of texts, so that Python itself would take either apart
without a word. Wrong kinds of arguments are a TypeError, as in any Python function; kinds that are
right and values that cannot be are a ConfigError.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from goddard.client.values import MessageQueue
from goddard.errors import ConfigError
from goddard.protocol.names import group_problem, topic_problem

# Of a topic on one broker.
MAX_QUEUES: Final = 65_535
DEFAULT_CONSUMER: Final = "DEFAULT_CONSUMER"

T = TypeVar("T")


def several(what: str, given: Any, kind: type[T]) -> list[T]:
    """What was given, as a list; TypeError if it is no collection of such things."""
    if isinstance(given, kind):
        raise TypeError(
            f"{what}: one {kind.__name__} was given, a list is wanted: [{given!r:.200}]"
        )
    if isinstance(given, str | bytes | MessageQueue) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: a list of {kind.__name__} is wanted, not {given!r:.200}")
    found = list(given)
    for each in found:
        if not isinstance(each, kind):
            raise TypeError(
                f"{what}: a list of {kind.__name__} is wanted; {each!r:.200} in it is none"
            )
    return found


def check_hooks(what: str, given: Any) -> tuple[Any, ...]:
    """Hooks that were given, which may be of any class; TypeError if it is no collection."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: a list of hooks is wanted, not {given!r:.200}")
    return tuple(given)


def check_queue(queue: object) -> MessageQueue:
    """The queue; TypeError if it is none."""
    if not isinstance(queue, MessageQueue):
        raise TypeError(
            f"a MessageQueue(topic, broker_name, queue_id) is wanted, not {queue!r:.200}"
        )
    return queue


def table(what: str, given: Any, key: type[T], value: type[object]) -> Mapping[T, Any]:
    """What was given; TypeError if it is no mapping of such keys to such values or None."""
    wanted = f"{what}: a dict of {key.__name__} to {value.__name__} is wanted"
    if not isinstance(given, Mapping):
        raise TypeError(f"{wanted}, not {given!r:.200}")
    for own, its in given.items():
        # Python's truth values are whole numbers; nobody means them.
        is_right = isinstance(its, value) and not isinstance(its, bool)
        if not isinstance(own, key) or not (is_right or its is None):
            raise TypeError(f"{wanted}; {own!r:.200}: {its!r:.200} in it is none")
    return given


def check_new_topic(topic: object) -> None:
    """ConfigError unless a topic may have this name."""
    if (problem := topic_problem(topic)) is not None:
        raise ConfigError(problem)


def check_new_group(group: object) -> None:
    """ConfigError unless a group may have this name."""
    if (problem := group_problem(group)) is not None:
        raise ConfigError(problem)


def check_consumer_group(group: object) -> None:
    """ConfigError unless consumers may be in a group of this name."""
    problem = group_problem(group)
    if problem is None and group == DEFAULT_CONSUMER:
        problem = f"consumerGroup can not equal {DEFAULT_CONSUMER}, please specify another one."
    if problem is not None:
        raise ConfigError(f"the group {str(group)[:200]!r} cannot be used: {problem}")
