"""What a listener is, and what its results mean."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from goddard.client.listeners.listener import (
    ConsumeContext,
    ConsumeResult,
    OrderlyContext,
    check_listener,
    failure_text,
    is_async,
    is_consumed,
    is_own_cancellation,
    result_of,
)
from goddard.client.values import MessageQueue
from goddard.errors import ConfigError


@pytest.mark.parametrize(
    ("returned", "result"),
    [
        (None, ConsumeResult.SUCCESS),
        (True, ConsumeResult.SUCCESS),
        (False, ConsumeResult.RECONSUME_LATER),
        (ConsumeResult.RECONSUME_LATER, ConsumeResult.RECONSUME_LATER),
        (ConsumeResult.COMMIT, ConsumeResult.COMMIT),
    ],
)
def test_results(returned: object, result: ConsumeResult) -> None:
    assert result_of(returned) is result


@pytest.mark.parametrize(
    ("context", "name"),
    [
        (ConsumeContext, "ack_index"),
        (ConsumeContext, "delay_level"),
        (OrderlyContext, "suspend_ms"),
    ],
)
def test_a_wrong_value_of_the_context_fails_the_listener_that_sets_it(
    context: type[ConsumeContext | OrderlyContext], name: str
) -> None:
    given = context(MessageQueue("orders", "broker-a", 0))
    before = getattr(given, name)
    for wrong in (1.5, "x", True):
        with pytest.raises(ConfigError, match=f"{name} is .*; it must be a whole number"):
            setattr(given, name, wrong)
    assert getattr(given, name) == before
    for right in (2, -1, before):
        setattr(given, name, right)
        assert getattr(given, name) == right


@pytest.mark.parametrize("returned", [1, 0, "ok", []])
def test_other_values_are_failures(returned: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert result_of(returned) is ConsumeResult.RECONSUME_LATER
    assert "Return None, True, False or a ConsumeResult" in caplog.text


def test_a_returned_coroutine_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def handle() -> None:
        await asyncio.sleep(0)

    # Closed as well: otherwise Python warns of it, which fails this test.
    assert result_of(handle()) is ConsumeResult.RECONSUME_LATER
    assert "Make the listener itself an async function" in caplog.text


def test_generator_functions_are_refused() -> None:
    def generate(messages: object, context: object) -> Iterator[None]:
        yield None

    class Generating:
        def __call__(self, messages: object, context: object) -> Iterator[None]:
            yield None

    for listener in (generate, Generating()):
        with pytest.raises(ConfigError, match="is a generator"):
            check_listener(listener)


def test_coroutine_functions_are_recognised_in_wrappers() -> None:
    async def coroutine(*_: object) -> None:
        await asyncio.sleep(0)

    def plain(*_: object) -> None: ...

    class Plain:
        def __call__(self, *_: object) -> None: ...

        async def method(self, *_: object) -> None:
            await asyncio.sleep(0)

    class Coroutine:
        async def __call__(self, *_: object) -> None:
            await asyncio.sleep(0)

    assert is_async(coroutine)
    assert is_async(partial(partial(coroutine, 1), 2))
    assert is_async(Coroutine())
    assert is_async(Plain().method)
    assert not is_async(plain)
    assert not is_async(partial(plain, 1))
    assert not is_async(Plain())


@pytest.mark.parametrize(
    "listener",
    [lambda messages, context: None, lambda *_: None, lambda a, b, c=1: None, dict[str, str].get],
)
def test_listeners_take_messages_and_a_context(listener: Callable[..., Any]) -> None:
    check_listener(listener)


@pytest.mark.parametrize("listener", [lambda: None, lambda messages: None, lambda a, b, c: None])
def test_other_listeners_are_refused(listener: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be called with \(messages, context\): "):
        check_listener(listener)


# --- What follows from a result -------------------------------------------------------------------

QUEUE = MessageQueue("T", "a", 0)


@pytest.mark.parametrize(
    ("result", "concurrent", "auto_commit", "manual_commit"),
    [
        (ConsumeResult.SUCCESS, True, True, True),
        (ConsumeResult.COMMIT, False, True, True),
        (ConsumeResult.ROLLBACK, False, True, False),
        (ConsumeResult.RECONSUME_LATER, False, False, False),
    ],
)
def test_whether_messages_are_consumed(
    result: ConsumeResult, concurrent: bool, auto_commit: bool, manual_commit: bool
) -> None:
    assert is_consumed(result, ConsumeContext(QUEUE)) is concurrent
    assert is_consumed(result, OrderlyContext(QUEUE)) is auto_commit
    assert is_consumed(result, OrderlyContext(QUEUE, auto_commit=False)) is manual_commit


async def test_only_the_cancellation_of_the_calling_task_is_no_failure() -> None:
    raised = asyncio.CancelledError()
    assert not is_own_cancellation(raised)
    assert not is_own_cancellation(ValueError())
    # In a thread there is no task.
    assert not await asyncio.to_thread(is_own_cancellation, raised)

    async def call() -> bool:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            return is_own_cancellation(error)
        return False

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    assert await task


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such customer"), "ValueError: no such customer"),
        (ValueError("two\nlines \x01\x02"), "ValueError: two lines ??"),
        (KeyError(), "KeyError"),
        (UnprintableError(), f"{__name__}.UnprintableError: <exception str() failed>"),
        (ValueError("x" * 1_000), f"ValueError: {'x' * 485}..."),
    ],
)
def test_the_text_of_a_failure_is_one_bounded_line(error: Exception, text: str) -> None:
    assert failure_text(error) == text
