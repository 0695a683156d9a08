"""Saving the tables of a broker (topics, groups, offsets, ...) without holding up its loop.

A snapshot of a table is taken on the loop, which owns it, and encoded and written by the executor.
Of one table only one save runs at a time; changes that come meanwhile are in the next one. A disk
that fails is logged, and the table stays marked as changed, so that the next turn tries again.

A snapshot of a large table takes a while on the loop. When many changes follow each other, a table
rests so long between background saves that they take a small share of the loop's time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final, Protocol

from goddard.clock import Clock, SystemClock
from goddard.errors import StoreError
from goddard.store.jsonfile import JsonFile

_log = logging.getLogger(__name__)

_PAUSE_FACTOR: Final = 20


class Table(Protocol):
    """What every table of the store has."""

    file: JsonFile
    is_changed: bool

    def snapshot(self) -> Callable[[], bytes]: ...


class TableSaver:
    """Writes tables in the background; ``save`` awaits that one is on the disk."""

    def __init__(self, executor: Executor, *, clock: Clock | None = None) -> None:
        self._executor = executor
        self._clock: Clock = clock or SystemClock()
        self._running: set[asyncio.Task[None]] = set()
        self._locks: dict[int, asyncio.Lock] = {}
        self._wanted: set[int] = set()
        # When each table may be saved again without being asked for by ``save``.
        self._next_save_ms: dict[int, int] = {}
        self._closing = asyncio.Event()

    def save_soon(self, table: Table) -> None:
        """Have a table written in the background; many calls may become one save."""
        key = id(table)
        if key not in self._wanted:
            self._wanted.add(key)
            task = asyncio.get_running_loop().create_task(self._save_when_due(table))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def save(self, table: Table) -> None:
        """Write a table if it changed; when this returns it is on the disk, or StoreError says why.

        Callers that come while a save is under way share the next one.
        """
        async with self._locks.setdefault(id(table), asyncio.Lock()):
            self._wanted.discard(id(table))
            if not table.is_changed:
                return
            began_ms = self._clock.monotonic_ms()
            encode = table.snapshot()
            now_ms = self._clock.monotonic_ms()
            self._next_save_ms[id(table)] = now_ms + _PAUSE_FACTOR * (now_ms - began_ms)
            table.is_changed = False
            loop = asyncio.get_running_loop()
            written = loop.run_in_executor(self._executor, _write, table.file, encode)
            try:
                await asyncio.shield(written)
            except asyncio.CancelledError:
                # The file is being written all the same; until then nobody else may begin to.
                await asyncio.wait([written])
                table.is_changed = table.is_changed or written.exception() is not None
                raise
            except Exception:
                table.is_changed = True
                raise

    async def save_all(self, tables: Iterable[Table]) -> None:
        """Write every table that changed; what cannot be written is logged."""
        for table in tables:
            await self._save_logged(table)

    async def close(self, tables: Iterable[Table]) -> None:
        """Finish the saves under way, and write what changed since."""
        self._closing.set()
        if self._running:
            await asyncio.wait(self._running)
        await self.save_all(tables)

    async def _save_when_due(self, table: Table) -> None:
        rest_ms = self._next_save_ms.get(id(table), 0) - self._clock.monotonic_ms()
        if rest_ms > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_ms / 1000):
                    await self._closing.wait()
        await self._save_logged(table)

    async def _save_logged(self, table: Table) -> None:
        try:
            await self.save(table)
        except StoreError as error:
            _log.error("%s was not saved: %s", table.file.path, error)


def _write(file: JsonFile, encode: Callable[[], bytes]) -> None:
    file.replace(encode())
