"""Reads of a command at many servers: what fails is noted, and the rest is shown.

A bounded number of requests is in progress. A command prints what was read and then fails, so that
scripts notice that its output is incomplete.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

from goddard.cli.terminal.mistakes import FailedError
from goddard.cli.terminal.output import Output, Table
from goddard.client.errors import PartialFailureError
from goddard.errors import GoddardError

_CONCURRENT: Final = 64
_MAX_NAMED: Final = 3

T = TypeVar("T")
K = TypeVar("K")


class Reads:
    """``unread`` has what could not be read, and why."""

    def __init__(self) -> None:
        self.unread: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_CONCURRENT)

    async def answer(self, what: str, request: Awaitable[T]) -> T | None:
        """The answer of a request; None if it fails, which is noted."""
        async with self._slots:
            try:
                return await request
            except GoddardError as error:
                self.unread[what] = str(error)
                return None

    async def each(
        self,
        keys: Iterable[K],
        request: Callable[[K], Awaitable[T]],
        title: Callable[[K], str],
    ) -> dict[K, T]:
        """The answers of one request for each key, in their order, without those that fail."""
        asked = list(keys)
        answers = await asyncio.gather(*(self.answer(title(key), request(key)) for key in asked))
        return {
            key: answer for key, answer in zip(asked, answers, strict=True) if answer is not None
        }

    async def merged(self, request: Awaitable[T], merge: Callable[[Iterable[Any]], T]) -> T:
        """The answer of a request to several servers.

        If some fail, which is noted, the answers of the others are merged. If all fail, this does.
        """
        try:
            return await request
        except PartialFailureError as error:
            if not error.results:
                raise
            self.unread |= {server: str(problem) for server, problem in error.failures.items()}
            return merge(error.results.values())

    def print_table(self, output: Output, table: Table) -> None:
        """Print what was read; FailedError if something is missing."""
        output.table(replace(table, empty="nothing was read") if self.unread else table)
        check_complete(self.unread)


def merge_names(answers: Iterable[Iterable[str]]) -> list[str]:
    """The names that several servers listed, sorted."""
    return sorted({name for names in answers for name in names})


def check_complete(unread: Iterable[str]) -> None:
    """FailedError, which names some, if there is something that could not be read."""
    names = sorted(unread)
    if names:
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        raise FailedError(f"incomplete, not read: {', '.join(names[:_MAX_NAMED])}{more}")
