"""Listeners: what a push consumer calls with its messages, and what the result of a call means.

A listener is a function of ``(messages, context)``. It may be a coroutine function. If it returns
None, True or ``ConsumeResult.SUCCESS`` the messages are consumed; if it returns False or
``ConsumeResult.RECONSUME_LATER``, or raises, they are consumed again later. (In Java, null counts
as a failure; in Python, None is what a function without ``return`` returns.)
"""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from goddard.client.checks import MAX_INT, check_range
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ArgumentTypeError, ConfigError
from goddard.protocol.message import bounded_failure

_logger: Final = logging.getLogger("goddard.client")


class ConsumeResult(Enum):
    """The result of a call of a listener."""

    SUCCESS = "SUCCESS"
    # Consume again later; an orderly consumer suspends the queue and consumes it again from here.
    RECONSUME_LATER = "RECONSUME_LATER"
    # Orderly, with ``context.auto_commit`` off: everything since the last commit is consumed.
    COMMIT = "COMMIT"
    # Orderly, with ``context.auto_commit`` off: consume everything since the last commit again.
    ROLLBACK = "ROLLBACK"


class ConsumeContext(msgspec.Struct, gc=False, eq=False):
    """The context of one call of a concurrent listener, which may set what follows a failure.

    ``delay_level`` says when failed messages are delivered again: 0 leaves it to the broker, by the
    number of attempts; -1 sends them to the dead-letter topic at once. ``ack_index`` is the index
    of the last message of the batch that succeeded, when the listener returns success.
    """

    queue: MessageQueue
    delay_level: int = 0
    ack_index: int | None = None

    # Type checkers that see this method accept misspelt attributes.
    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """ArgumentTypeError for a value of the wrong type, in the listener that sets it.

            The constructor does not call this, so a call whose listener sets nothing is not slower.
            """
            if name == "delay_level" or (name == "ack_index" and value is not None):
                check_range(name, value, -MAX_INT)
            msgspec.Struct.__setattr__(self, name, value)


class OrderlyContext(msgspec.Struct, gc=False, eq=False):
    """The context of one call of an orderly listener.

    ``suspend_ms`` is how long the queue is suspended if the messages are to be consumed again; None
    means the consumer's ``suspend_queue_ms``. With ``auto_commit`` off, only COMMIT moves the
    offset.
    """

    queue: MessageQueue
    auto_commit: bool = True
    suspend_ms: int | None = None

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: object) -> None:
            """As in ConsumeContext."""
            if name == "suspend_ms" and value is not None:
                check_range(name, value, -MAX_INT)
            msgspec.Struct.__setattr__(self, name, value)


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
        raise ArgumentTypeError(f"the listener is {listener!r}; it must be a function")
    if any(map(inspect.isgeneratorfunction, (listener, type(listener).__call__))):
        raise ConfigError(
            f"the listener {listener!r} is a generator function, whose body would never run"
        )
    try:
        signature = inspect.signature(listener)
    except (TypeError, ValueError):
        # Some functions written in C have no signature.
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
    # For a callable object, its class decides.
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
            "a listener returned a coroutine, which is not awaited; the messages are consumed "
            "again. Make the listener itself an async function."
        )
    elif returned is not False:
        _logger.error(
            "a listener returned %.200r; the messages are consumed again. "
            "Return None, True, False or a ConsumeResult.",
            returned,
        )
    return ConsumeResult.RECONSUME_LATER


def is_consumed(result: ConsumeResult, context: object) -> bool:
    """Whether messages with this result are consumed, and will not be delivered again."""
    if not isinstance(context, OrderlyContext):
        return result is ConsumeResult.SUCCESS
    if context.auto_commit:
        # COMMIT and ROLLBACK are for listeners that commit by themselves: here they are successes.
        return result is not ConsumeResult.RECONSUME_LATER
    return result in (ConsumeResult.SUCCESS, ConsumeResult.COMMIT)


def is_own_cancellation(error: BaseException) -> bool:
    """Whether a call of a listener ended because the task that made it is cancelled.

    A CancelledError that the listener itself raises is a failure like any other.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # In a thread.
        return False
    return task is not None and task.cancelling() > 0


# Looking up a member of an enumeration takes longer than many listeners do.
_SUCCESS: Final = (ConsumeResult.SUCCESS, None)


def call_listener(
    listener: Callable[..., Any], group: str, messages: list[ReceivedMessage], context: object
) -> tuple[ConsumeResult, str | None]:
    """Call a listener with a copy of the messages: the result, and the text of an exception."""
    try:
        returned = listener(messages.copy(), context)
        return _SUCCESS if returned is None else (result_of(returned), None)
    except BaseException as error:
        # Not even SystemExit may end the worker.
        if is_own_cancellation(error):
            raise
        return _failed(error, group, messages)


async def await_listener(
    listener: Callable[..., Any], group: str, messages: list[ReceivedMessage], context: object
) -> tuple[ConsumeResult, str | None]:
    """As ``call_listener``, for a coroutine function."""
    try:
        returned = await listener(messages.copy(), context)
        return _SUCCESS if returned is None else (result_of(returned), None)
    except (Exception, asyncio.CancelledError) as error:
        if is_own_cancellation(error):
            raise
        return _failed(error, group, messages)


def _failed(
    error: BaseException, group: str, messages: list[ReceivedMessage]
) -> tuple[ConsumeResult, str]:
    """Log what a listener raised; the messages are consumed again."""
    _logger.warning(
        "the listener of the group %s failed with %s", group, describe(messages), exc_info=error
    )
    return ConsumeResult.RECONSUME_LATER, failure_text(error)


def failure_text(error: BaseException) -> str:
    """The type and the text of an exception in one bounded line, for a property of a message."""
    return bounded_failure("".join(traceback.format_exception_only(error)))


def describe(messages: list[ReceivedMessage]) -> str:
    """Messages of one queue, for log lines."""
    first = messages[0]
    return f"{len(messages)} messages of {first.queue} from offset {first.queue_offset} on"
