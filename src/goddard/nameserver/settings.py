"""The configuration in force: read by every handler, changed over the wire, kept in its file.

Owned by the loop. A change is checked whole, written to the file that was fixed at the start, and
takes effect when it is on the disk; one after the other.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path

from goddard.config import NameServerConfig, format_properties
from goddard.files import replace_file

_log = logging.getLogger(__name__)


class Settings:
    """``current`` is the configuration in force; ``on_change`` is called with each new one."""

    def __init__(
        self,
        config: NameServerConfig,
        executor: Executor,
        on_change: Callable[[NameServerConfig], None],
    ) -> None:
        self.current = config
        self._executor = executor
        self._on_change = on_change
        self._path = Path(config.config_store_path)
        self._port = 0
        self._one_at_a_time = asyncio.Lock()
        self._updating: set[asyncio.Task[None]] = set()

    async def update(self, properties: Mapping[str, str], peer: str) -> None:
        """Take properties from a peer; ConfigError when one of them may not be or is wrong."""
        # A task of its own: what is being written also takes effect when the peer has gone away.
        updating = asyncio.create_task(self._update(properties, peer), name="update-settings")
        self._updating.add(updating)
        updating.add_done_callback(self._updating.discard)
        await asyncio.shield(updating)

    async def drain(self) -> None:
        """Wait until no update is under way."""
        while self._updating:
            await asyncio.wait(self._updating)

    async def _update(self, properties: Mapping[str, str], peer: str) -> None:
        async with self._one_at_a_time:
            changed = self.current.updated_by_peer(properties)
            if changed == self.current:
                return
            data = format_properties(changed.properties()).encode()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, replace_file, self._path, data)
            before = self.current.properties()
            for name, value in changed.properties().items():
                if before.get(name) != value:
                    _log.info(
                        "Replace, key: %s, value: %s -> %s, by %s",
                        name,
                        before.get(name),
                        value,
                        peer,
                    )
            self.current = changed
            self._on_change(changed)

    def listening_on(self, port: int) -> None:
        """Tell the port that we really listen on, where any free one was asked for."""
        self._port = port

    def shown(self) -> str:
        """Every property, as a peer that asks sees it."""
        port = self._port or self.current.listen_port
        return format_properties(dataclasses.replace(self.current, listen_port=port).properties())
