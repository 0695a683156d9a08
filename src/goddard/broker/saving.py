"""Saving the tables of a broker (topics, groups, offsets, ...) without holding up its loop.

A table is encoded on the loop, which owns it, and written by the executor. Of one table only one
save runs at a time; changes that come meanwhile are in the next one. A disk that fails is logged,
and the table stays marked as changed, so that the next turn tries again.
"""

import asyncio
import logging
from concurrent.futures import Executor
from typing import Protocol

from goddard.errors import StoreError
from goddard.store.jsonfile import JsonFile

_log = logging.getLogger(__name__)


class Table(Protocol):
    """What every table of the store has."""

    file: JsonFile
    is_changed: bool

    def encode(self) -> bytes: ...


class TableSaver:
    """Writes tables in the background; ``save`` awaits that one is on the disk."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._running: set[asyncio.Task[None]] = set()
        self._locks: dict[int, asyncio.Lock] = {}
        self._waiting: set[int] = set()

    def save_soon(self, table: Table) -> None:
        """Have a table written as soon as the executor is free; many calls may become one save."""
        key = id(table)
        if key not in self._waiting:
            self._waiting.add(key)
            task = asyncio.get_running_loop().create_task(self._save_logged(table))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def save(self, table: Table) -> None:
        """Write a table if it changed; when this returns it is on the disk, or StoreError says why.

        A save under way when this is called may miss the latest change; then another follows.
        """
        async with self._locks.setdefault(id(table), asyncio.Lock()):
            self._waiting.discard(id(table))
            if not table.is_changed:
                return
            data = table.encode()
            table.is_changed = False
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._executor, table.file.replace, data)
            except BaseException:
                table.is_changed = True
                raise

    async def save_all(self, tables: list[Table]) -> None:
        """Write every table that changed; what cannot be written is logged."""
        for table in tables:
            await self._save_logged(table)

    async def stop(self) -> None:
        """Wait for the saves under way."""
        if self._running:
            await asyncio.wait(self._running)

    async def _save_logged(self, table: Table) -> None:
        try:
            await self.save(table)
        except StoreError as error:
            _log.error("%s was not saved: %s", table.file.path, error)
