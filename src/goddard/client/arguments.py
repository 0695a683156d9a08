"""Arguments of administrative methods, checked before any request is sent.

The annotation of a parameter is its check. A ``str`` is a name and must not be blank, a queue must
be a MessageQueue, a list must be a list. Numbers need a range, and text that may be empty has to be
marked as such, both with the types below. ``checked`` raises TypeError for a method with any other
parameter, so that no parameter stays unchecked.
"""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Final, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

from goddard.client.checks import (
    MAX_INT,
    MAX_QUEUES,
    check_list,
    check_mapping,
    check_queue,
    check_range,
)
from goddard.client.values import MessageQueue
from goddard.errors import ArgumentTypeError, ConfigError
from goddard.protocol.codes import Permission

MAX_LONG: Final = 2**63 - 1

P = ParamSpec("P")
R = TypeVar("R")

# Gets the name of a parameter and its argument; returns the argument to use instead.
Check: TypeAlias = Callable[[str, Any], object]


@dataclass(frozen=True)
class Range:
    """Whole numbers from ``low`` to ``high``."""

    low: int
    high: int

    def __call__(self, what: str, given: object) -> object:
        return check_range(what, given, self.low, self.high)


@dataclass(frozen=True)
class AnyText:
    """Text that may be empty or blank."""

    def __call__(self, what: str, given: object) -> object:
        if not isinstance(given, str):
            raise ArgumentTypeError(f"{what} is {given!r:.200}; it must be text")
        return given


Text = Annotated[str, AnyText()]
Offset = Annotated[int, Range(0, MAX_LONG)]
TimeMs = Annotated[int, Range(0, MAX_LONG)]
# A negative time stands for the end of a queue.
TimeOrEndMs = Annotated[int, Range(-MAX_LONG, MAX_LONG)]
BrokerId = Annotated[int, Range(0, MAX_LONG)]
Count = Annotated[int, Range(1, MAX_INT)]
CountOrNoLimit = Annotated[int, Range(-1, MAX_INT)]
QueueCount = Annotated[int, Range(1, MAX_QUEUES)]
# A topic that is only read has no queues to write to, and the other way round.
QueueCountOrNone = Annotated[int, Range(0, MAX_QUEUES)]
# The broker decides which modes it has.
ReadAheadMode = Annotated[int, Range(0, MAX_INT)]


def checked(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The method, with its arguments checked by their annotations."""
    signature = inspect.signature(method)
    checks = {
        item.name: _check_of(item.annotation, f"{method.__name__}({item.name})")
        for item in list(signature.parameters.values())[1:]
    }
    if not checks:
        return method

    @wraps(method)
    async def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # The call itself raises the better text about missing or unknown arguments.
            return await method(*args, **kwargs)
        given = bound.arguments
        for name in given.keys() & checks.keys():
            given[name] = checks[name](name, given[name])
        return await method(*bound.args, **bound.kwargs)

    return check_and_call


def _check_of(annotation: Any, where: str) -> Check:
    origin, of = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        check: Check = of[1]
        return check
    if origin in (Union, UnionType) and len(of) == 2 and of[1] is NoneType:
        return _or_none(_check_of(of[0], where))
    if origin is Iterable:
        return lambda what, given: check_list(what, given, of[0])
    if origin is Mapping:
        key, value = of[0], (get_args(of[1]) or of[1:])[0]
        return lambda what, given: check_mapping(what, given, key, value)
    if annotation in _BY_TYPE:
        return _BY_TYPE[annotation]
    if annotation in (int, float) or not isinstance(annotation, type):
        raise TypeError(
            f"{where} is {annotation!r}, which has no check; see goddard.client.arguments"
        )
    return _instance(annotation)


def _or_none(check: Check) -> Check:
    return lambda what, given: None if given is None else check(what, given)


def _instance(kind: type) -> Check:
    def check(what: str, given: object) -> object:
        if not isinstance(given, kind):
            raise ArgumentTypeError(f"{what} is {given!r:.200}; it must be of type {kind.__name__}")
        return given

    return check


def _name(what: str, given: object) -> object:
    if not isinstance(given, str):
        raise ArgumentTypeError(f"{what} is {given!r:.200}; it must be text")
    if not given.strip():
        raise ConfigError(f"{what} is blank")
    return given


def check_permission(what: str, given: object) -> object:
    """ConfigError unless the value is valid for RocketMQ's PermName, of a topic or a broker."""
    if (
        not isinstance(given, int)
        or isinstance(given, bool)
        or not 0 <= given < Permission.PRIORITY
    ):
        raise ConfigError(f"{what} value: {given} is invalid.")
    return given


_BY_TYPE: Final[Mapping[type, Check]] = {
    str: _name,
    MessageQueue: lambda _, given: check_queue(given),
    Permission: lambda _, given: check_permission("topicPermission", given),
}
