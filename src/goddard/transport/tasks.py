"""Background tasks with an owner, which starts, cancels and awaits them.

A ``Tasks`` belongs to one daemon or component. ``stop`` ends its tasks in the reverse order of
their start: a task may use those started before it until its own end. ``finish`` stops a component
that has several parts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_logger: Final = logging.getLogger("goddard.transport")


class Tasks:
    """The background tasks of one owner."""

    __slots__ = ("_level", "_logger", "_running")

    def __init__(self, logger: logging.Logger = _logger, level: int = logging.INFO) -> None:
        self._logger = logger
        self._level = level
        # A dict keeps the order in which tasks were started.
        self._running: dict[asyncio.Task[Any], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coroutine: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Start a task; if it fails, its traceback is logged."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def periodic(
        self,
        name: str,
        interval_seconds: float,
        action: Callable[[], Awaitable[None] | None],
        *,
        first_seconds: float | None = None,
    ) -> asyncio.Task[None]:
        """Run ``action`` with this interval between the end of a run and the start of the next.

        If the action raises, the error is logged and the action runs again after the interval.
        """
        first = interval_seconds if first_seconds is None else first_seconds
        return self.spawn(self._repeat(name, interval_seconds, first, action), name)

    async def stop(self) -> None:
        """Cancel and await all tasks, the last started first. Safe to call more than once."""
        current = asyncio.current_task()
        try:
            while owned := [task for task in self._running if task is not current]:
                task = owned[-1]
                task.cancel()
                await asyncio.wait((task,))
                self._running.pop(task, None)
        finally:  # cancelled while stopping: cancel the rest too
            for task in self._running:
                if task is not current:
                    task.cancel()

    async def _repeat(
        self,
        name: str,
        interval_seconds: float,
        first_seconds: float,
        action: Callable[[], Awaitable[None] | None],
    ) -> None:
        self._logger.log(self._level, "%s service started", name)
        try:
            await asyncio.sleep(first_seconds)
            while True:
                try:
                    pending = action()
                    if pending is not None:
                        await pending
                except Exception:
                    self._logger.exception(
                        "%s service failed, it runs again after its interval", name
                    )
                await asyncio.sleep(interval_seconds)
        finally:
            self._logger.log(self._level, "%s service end", name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("the task %s failed", task.get_name(), exc_info=error)


async def finish(*steps: Callable[[], Awaitable[object]]) -> None:
    """Run all steps of a shutdown in order, each of them even if an earlier one fails.

    The error of a step is raised after the last step. A cancellation ends only the current step;
    the others still run, so nothing stays open.
    """
    async with AsyncExitStack() as stack:
        for step in reversed(steps):
            stack.push_async_callback(step)
