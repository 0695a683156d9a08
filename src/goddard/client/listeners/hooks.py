"""Consume hooks: the user's functions that are called before and after each call of a listener.

Hooks run where the listener runs: in its thread or, for a coroutine function, on the loop, where
they must not block. What a hook raises is logged and ignored. The listener is wrapped once, so that
a consumer without hooks has no cost.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from goddard.client.listeners.listener import (
    ConsumeResult,
    is_async,
    is_consumed,
    result_of,
)
from goddard.client.message import ReceivedMessage
from goddard.client.trace.records import ConsumeOutcome
from goddard.clock import Clock

_logger: Final = logging.getLogger("goddard.client")


@dataclass(slots=True)
class ConsumeHookContext:
    """One call of a listener. The fields after ``started_ms`` are set when it has ended."""

    group: str
    messages: list[ReceivedMessage]
    started_ms: int
    ended_ms: int = 0
    outcome: ConsumeOutcome = ConsumeOutcome.FAILED
    error: BaseException | None = None
    # For hooks to pass values from the first call to the second.
    attachments: dict[str, Any] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        return self.outcome is ConsumeOutcome.SUCCESS


class ConsumeHook(Protocol):
    """Is called before and after each call of a listener."""

    def before_consume(self, context: ConsumeHookContext) -> None: ...

    def after_consume(self, context: ConsumeHookContext) -> None: ...


def with_hooks(
    listener: Callable[..., Any],
    hooks: Sequence[ConsumeHook],
    *,
    group: str,
    timeout_ms: int,
    clock: Clock,
) -> Callable[..., Any]:
    """A listener that calls ``listener``, and hooks before and after it."""
    if not hooks:
        return listener
    calls = _HookCalls(hooks, group, timeout_ms, clock)
    if is_async(listener):

        async def hooked_async(messages: list[ReceivedMessage], context: object) -> ConsumeResult:
            with calls.around(messages) as seen:
                result = result_of(await listener(messages, context))
                seen.outcome = _outcome(result, context)
                return result

        return hooked_async

    def hooked(messages: list[ReceivedMessage], context: object) -> ConsumeResult:
        with calls.around(messages) as seen:
            result = result_of(listener(messages, context))
            seen.outcome = _outcome(result, context)
            return result

    return hooked


class _HookCalls:
    """Calls hooks. What they raise is logged."""

    def __init__(
        self, hooks: Sequence[ConsumeHook], group: str, timeout_ms: int, clock: Clock
    ) -> None:
        self._hooks = hooks
        self._group = group
        self._timeout_ms = timeout_ms
        self._clock = clock

    @contextmanager
    def around(self, messages: list[ReceivedMessage]) -> Iterator[ConsumeHookContext]:
        """Call the hooks before and after a call of the listener, which may raise."""
        seen = ConsumeHookContext(self._group, messages, self._clock.now_ms())
        for hook in self._hooks:
            try:
                hook.before_consume(seen)
            except Exception:
                _logger.warning(
                    "consumeMessageHook %r executeHookBefore failed", hook, exc_info=True
                )
        try:
            yield seen
        except BaseException as error:
            seen.outcome, seen.error = ConsumeOutcome.EXCEPTION, error
            raise
        finally:
            self._after(seen)

    def _after(self, seen: ConsumeHookContext) -> None:
        seen.ended_ms = self._clock.now_ms()
        if seen.error is None and seen.ended_ms - seen.started_ms >= self._timeout_ms:
            seen.outcome = ConsumeOutcome.TIMED_OUT
        for hook in self._hooks:
            try:
                hook.after_consume(seen)
            except Exception:
                _logger.warning(
                    "consumeMessageHook %r executeHookAfter failed", hook, exc_info=True
                )


def _outcome(result: ConsumeResult, context: object) -> ConsumeOutcome:
    return ConsumeOutcome.SUCCESS if is_consumed(result, context) else ConsumeOutcome.FAILED
