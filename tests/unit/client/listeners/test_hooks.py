"""Hooks around a listener: what they see, and that they change nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from goddard.client.listeners.hooks import ConsumeHookContext, with_hooks
from goddard.client.listeners.listener import (
    ConsumeContext,
    ConsumeResult,
    OrderlyContext,
    is_async,
    result_of,
)
from goddard.client.message import ReceivedMessage
from goddard.client.trace.records import ConsumeOutcome
from goddard.client.values import MessageQueue
from tests.support.clock import ManualClock

TIMEOUT_MS = 1000


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, ConsumeOutcome, BaseException | None, int]] = []

    def before_consume(self, context: ConsumeHookContext) -> None:
        self._note("before", context)

    def after_consume(self, context: ConsumeHookContext) -> None:
        self._note("after", context)

    def _note(self, when: str, context: ConsumeHookContext) -> None:
        took_ms = max(0, context.ended_ms - context.started_ms)
        self.calls.append((when, context.outcome, context.error, took_ms))


class Broken:
    def before_consume(self, context: ConsumeHookContext) -> None:
        raise RuntimeError("before")

    def after_consume(self, context: ConsumeHookContext) -> None:
        raise RuntimeError("after")


def hooked(
    listener: Callable[..., Any], *hooks: Recorder | Broken, clock: ManualClock | None = None
) -> Callable[..., Any]:
    return with_hooks(
        listener, hooks, group="group", timeout_ms=TIMEOUT_MS, clock=clock or ManualClock()
    )


def test_without_hooks_the_listener_is_itself() -> None:
    def listener(messages: list[ReceivedMessage], context: object) -> None: ...

    assert hooked(listener) is listener


QUEUE = MessageQueue("T", "a", 0)
CONCURRENT, ORDERLY = ConsumeContext(QUEUE), OrderlyContext(QUEUE)
MANUAL = OrderlyContext(QUEUE, auto_commit=False)


@pytest.mark.parametrize(
    ("returned", "context", "outcome"),
    [
        (None, CONCURRENT, ConsumeOutcome.SUCCESS),
        (True, CONCURRENT, ConsumeOutcome.SUCCESS),
        (ConsumeResult.SUCCESS, CONCURRENT, ConsumeOutcome.SUCCESS),
        (ConsumeResult.SUCCESS, ORDERLY, ConsumeOutcome.SUCCESS),
        (ConsumeResult.COMMIT, ORDERLY, ConsumeOutcome.SUCCESS),
        # A concurrent consumer has nothing to commit: these messages are delivered again.
        (ConsumeResult.COMMIT, CONCURRENT, ConsumeOutcome.FAILED),
        # Equal to True, but not a result: these messages are delivered again.
        (1, CONCURRENT, ConsumeOutcome.FAILED),
        (1, ORDERLY, ConsumeOutcome.FAILED),
        (False, CONCURRENT, ConsumeOutcome.FAILED),
        (ConsumeResult.RECONSUME_LATER, CONCURRENT, ConsumeOutcome.FAILED),
        # With auto commit there is nothing to roll back: these messages are committed.
        (ConsumeResult.ROLLBACK, ORDERLY, ConsumeOutcome.SUCCESS),
        (ConsumeResult.ROLLBACK, MANUAL, ConsumeOutcome.FAILED),
        (ConsumeResult.COMMIT, MANUAL, ConsumeOutcome.SUCCESS),
    ],
)
async def test_hooks_see_what_becomes_of_the_messages(
    returned: object, context: ConsumeContext | OrderlyContext, outcome: ConsumeOutcome
) -> None:
    recorder = Recorder()
    result = hooked(lambda messages, context: returned, recorder)([], context)
    assert result is result_of(returned)

    async def listener(messages: list[ReceivedMessage], context: object) -> object:
        return returned

    wrapped = hooked(listener, recorder)
    assert is_async(wrapped)
    assert await wrapped([], context) is result
    expected = [("before", ConsumeOutcome.FAILED, None, 0), ("after", outcome, None, 0)]
    assert recorder.calls == expected * 2


async def test_what_a_listener_raised() -> None:
    recorder = Recorder()
    error = ValueError("no")

    def listener(messages: list[ReceivedMessage], context: object) -> None:
        raise error

    async def async_listener(messages: list[ReceivedMessage], context: object) -> None:
        raise error

    with pytest.raises(ValueError, match="no"):
        hooked(listener, recorder)([], None)
    with pytest.raises(ValueError, match="no"):
        await hooked(async_listener, recorder)([], None)
    assert recorder.calls[1::2] == [("after", ConsumeOutcome.EXCEPTION, error, 0)] * 2


def test_a_slow_listener() -> None:
    recorder, clock = Recorder(), ManualClock()
    slow = hooked(lambda messages, context: clock.advance(TIMEOUT_MS), recorder, clock=clock)
    slow([], None)
    assert recorder.calls[-1] == ("after", ConsumeOutcome.TIMED_OUT, None, TIMEOUT_MS)


def test_a_hook_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    result = hooked(lambda messages, context: True, Broken(), recorder)([], CONCURRENT)
    assert result is ConsumeResult.SUCCESS
    assert [when for when, *_ in recorder.calls] == ["before", "after"]
    assert "executeHookBefore failed" in caplog.text
    assert "executeHookAfter failed" in caplog.text
