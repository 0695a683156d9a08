"""The name server's key-value configuration: namespaces of keys, stored in one JSON file.

File layout, shared with RocketMQ: ``{"configTable":{namespace:{key:value}}}``.

Owned by the loop. A write is acknowledged, and visible to readers, after it is on the disk. Writes
are applied in order; all that arrive during a write of the file are combined into the next one. If
writing the file fails, these writes fail and the table is unchanged.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

import msgspec

from goddard.environment.files import Files, SystemFiles, read_file
from goddard.errors import ConfigError, GoddardError
from goddard.files import replace_file

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

# Every change writes the whole table, so its size is limited.
MAX_TABLE_BYTES: Final = 16 * 1024 * 1024

_log = logging.getLogger(__name__)

Table = dict[str, dict[str, str]]


class KvWriteError(GoddardError):
    """A key could not be stored; the text says why. The table is unchanged."""


class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


_read_file = msgspec.json.Decoder(_File, strict=False).decode


def encode_table(table: Table) -> bytes:
    return msgspec.json.encode(_File(table))


def load_table(files: Files, path: Path) -> Table:
    """Read the table; a missing file means an empty table. Blocks: only for the start."""
    backup = path.with_name(path.name + ".bak")
    for candidate in (path, backup):
        try:
            # A crash of a Java name server can leave a backup without its file.
            data = read_file(files, candidate)
            if data is None:
                continue
            table = _read_file(data).config_table
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            if candidate == path and files.facts(backup) is not None:
                _log.error("%s cannot be read (%s); trying its backup", path, error)
                continue
            raise ConfigError(
                f"the KV configuration {candidate} cannot be read: {error}; "
                "repair the file, or move it away to start with an empty table"
            ) from error
        _log.info("load KV config table OK, %s", candidate)
        return table
    return {}


class KvTable:
    """Durable key-value pairs, read without waiting; ``put`` and ``delete`` wait for the disk."""

    def __init__(
        self,
        path: Path,
        executor: Executor,
        *,
        on_change: Callable[[], None] = lambda: None,
        files: Files | None = None,
        max_bytes: int = MAX_TABLE_BYTES,
    ) -> None:
        self._path = path
        self._executor = executor
        self._files = files or SystemFiles()
        self._on_change = on_change
        self._max_bytes = max_bytes
        self._table: Table = {}
        self._table_bytes = 0
        self._waiting: list[tuple[_Change, asyncio.Future[None]]] = []
        self._waiting_bytes = 0
        self._writer: asyncio.Task[None] | None = None

    def load(self) -> None:
        self._table = load_table(self._files, self._path)
        self._table_bytes = len(encode_table(self._table))

    def get(self, namespace: str, key: str) -> str | None:
        values = self._table.get(namespace)
        return None if values is None else values.get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        await self._write(_Change(namespace, key, value))

    async def delete(self, namespace: str, key: str) -> None:
        await self._write(_Change(namespace, key, None))

    async def drain(self) -> None:
        """Wait until all writes have ended."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write(self, change: "_Change") -> None:
        size_bytes = change.size_bytes
        if self._waiting_bytes + size_bytes > self._max_bytes:
            raise KvWriteError("too many writes to the KV configuration are waiting")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        self._waiting_bytes += size_bytes
        if self._writer is None:
            # The task continues if the caller is cancelled: its write was accepted.
            self._writer = asyncio.create_task(self._write_waiting(), name="kv-writer")
        await done

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
                candidate, accepted = self._applied(waiting)
                try:
                    self._table_bytes = await loop.run_in_executor(
                        self._executor, _store_table, self._files, self._path, candidate
                    )
                except (OSError, RuntimeError) as error:  # RuntimeError: the executor has ended
                    _log.error("the KV configuration %s was not written: %s", self._path, error)
                    for done in accepted:
                        _fail(done, f"the KV configuration was not stored: {error}")
                    continue
                self._table = candidate
                self._on_change()
                for done in accepted:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._writer = None

    def _applied(
        self, changes: "list[tuple[_Change, asyncio.Future[None]]]"
    ) -> tuple[Table, list[asyncio.Future[None]]]:
        """The table with the changes that fit, and their futures; the other changes fail.

        As in Java, deleting the last key leaves an empty namespace, and a deletion does not create
        a namespace.
        """
        candidate = dict(self._table)
        size_bytes = self._table_bytes
        accepted = []
        copied: set[str] = set()
        for change, done in changes:
            namespace = change.namespace
            if change.value is not None:
                size_bytes += change.size_bytes
                if size_bytes > self._max_bytes:
                    size_bytes -= change.size_bytes
                    _fail(done, f"the KV configuration is full ({self._max_bytes} bytes)")
                    continue
            accepted.append(done)
            if change.value is None and namespace not in candidate:
                continue
            if namespace not in copied:
                # Readers may hold the old dict.
                candidate[namespace] = dict(candidate.get(namespace, ()))
                copied.add(namespace)
            if change.value is None:
                candidate[namespace].pop(change.key, None)
            else:
                candidate[namespace][change.key] = change.value
        return candidate, accepted


class _Change(msgspec.Struct, frozen=True):
    namespace: str
    key: str
    value: str | None

    @property
    def size_bytes(self) -> int:
        return len(msgspec.json.encode(self))


def _fail(done: asyncio.Future[None], reason: str) -> None:
    if not done.done():
        done.set_exception(KvWriteError(reason))


def _store_table(files: Files, path: Path, table: Table) -> int:
    """Runs in the executor: write the table; returns its size in bytes."""
    data = encode_table(table)
    replace_file(files, path, data)
    return len(data)
