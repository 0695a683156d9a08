"""Listeners: what an application gives a push consumer to call, and what the calls come to.

A listener is a function of ``(messages, context)``. It may be a coroutine function. If it returns
None, True or ``ConsumeResult.SUCCESS`` the messages are done with; if it returns False or
``ConsumeResult.RECONSUME_LATER``, or raises, they are consumed again later. (Java takes a missing
result for a failure; in Python it is what a function without ``return`` gives.)
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError

_logger: Final = logging.getLogger("goddard.client")


class ConsumeResult(Enum):
    """What a listener made of its messages."""

    SUCCESS = "SUCCESS"
    # Again later; of an orderly consumer: the same messages, after the queue was suspended a while.
    RECONSUME_LATER = "RECONSUME_LATER"
    # Orderly, with ``context.auto_commit`` off: everything since the last commit is done with.
    COMMIT = "COMMIT"
    # Orderly, with ``context.auto_commit`` off: everything since the last commit once more.
    ROLLBACK = "ROLLBACK"


class ConsumeContext(msgspec.Struct, gc=False, eq=False):
    """Of one call of a concurrent listener, which may set what becomes of failures.

    ``delay_level`` says when failed messages come again: 0 leaves it to the broker, by the number
    of tries; -1 sends them to the dead-letter topic at once. ``ack_index`` is the place of the last
    message that succeeded, when some of a batch did and the listener returns success.
    """

    queue: MessageQueue
    delay_level: int = 0
    ack_index: int | None = None


class OrderlyContext(msgspec.Struct, gc=False, eq=False):
    """Of one call of an orderly listener.

    ``suspend_ms`` is how long the queue rests if the messages are to be consumed again; None is
    the consumer's ``suspend_queue_ms``. With ``auto_commit`` off, only COMMIT moves the offset.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_ms: int | None = None


Returned: TypeAlias = ConsumeResult | bool | None
ConcurrentListener: TypeAlias = Callable[
    [list[ReceivedMessage], ConsumeContext], Returned | Awaitable[Returned]
]
OrderlyListener: TypeAlias = Callable[
    [list[ReceivedMessage], OrderlyContext], Returned | Awaitable[Returned]
]
Listener: TypeAlias = ConcurrentListener | OrderlyListener


def check_listener(listener: object) -> None:
    """ConfigError unless it can be called with messages and a context."""
    if not callable(listener):
        raise ConfigError(f"the listener is {listener!r}; a function is wanted")
    if any(map(inspect.isgeneratorfunction, (listener, type(listener).__call__))):
        raise ConfigError(f"the listener {listener!r} is a generator: nobody would go through it")
    try:
        signature = inspect.signature(listener)
    except (TypeError, ValueError):
        # Some that are written in C do not say.
        return
    try:
        signature.bind([], None)
    except TypeError as error:
        raise ConfigError(
            f"the listener {listener!r} cannot be called with (messages, context): {error}"
        ) from None


def is_async(listener: Callable[..., Any]) -> bool:
    """Whether a listener is to be awaited on the loop instead of called in a thread."""
    while isinstance(listener, partial):
        listener = listener.func
    # Of an object that can be called, its class says how.
    return any(map(inspect.iscoroutinefunction, (listener, type(listener).__call__)))


def result_of(returned: object) -> ConsumeResult:
    """What a listener's return value means."""
    if returned is None or returned is True:
        return ConsumeResult.SUCCESS
    if isinstance(returned, ConsumeResult):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()
        _logger.error(
            "a listener returned a coroutine that nobody awaits; the messages are consumed again. "
            "Make the listener itself an async function."
        )
    elif returned is not False:
        _logger.error(
            "a listener returned %.200r; the messages are consumed again. "
            "Return None, True, False or a ConsumeResult.",
            returned,
        )
    return ConsumeResult.RECONSUME_LATER
