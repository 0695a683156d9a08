"""The current configuration: read by all handlers, changed over the network, stored in its file.

Owned by the loop. An update is checked completely, written to the file that was set at the start,
and takes effect when it is on the disk. Updates are applied one at a time.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path

from goddard.config import NameServerConfig, format_properties
from goddard.environment.files import Files, SystemFiles
from goddard.files import replace_file

_log = logging.getLogger(__name__)


class Settings:
    """``current`` is the current configuration; ``on_change`` is called with each new one."""

    def __init__(
        self,
        config: NameServerConfig,
        executor: Executor,
        on_change: Callable[[NameServerConfig], None],
        files: Files | None = None,
    ) -> None:
        self.current = config
        self._executor = executor
        self._files = files or SystemFiles()
        self._on_change = on_change
        self._path = Path(config.config_store_path)
        self._port = 0
        self._update_lock = asyncio.Lock()
        self._updating: set[asyncio.Task[None]] = set()

    async def update(self, properties: Mapping[str, str], peer: str) -> None:
        """Apply properties from a peer; ConfigError if one of them is not allowed or invalid."""
        # A separate task: a started update completes even if the peer disconnects.
        updating = asyncio.create_task(self._update(properties, peer), name="update-settings")
        self._updating.add(updating)
        updating.add_done_callback(self._updating.discard)
        await asyncio.shield(updating)

    async def drain(self) -> None:
        """Wait until all updates have ended."""
        while self._updating:
            await asyncio.wait(self._updating)

    async def _update(self, properties: Mapping[str, str], peer: str) -> None:
        async with self._update_lock:
            changed = self.current.updated_by_peer(properties)
            if changed == self.current:
                return
            data = format_properties(changed.properties()).encode()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, replace_file, self._files, self._path, data)
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

    def set_listen_port(self, port: int) -> None:
        """Set the actual port, which differs from the configured one if that is 0."""
        self._port = port

    def as_text(self) -> str:
        """All properties, as a peer receives them."""
        port = self._port or self.current.listen_port
        return format_properties(dataclasses.replace(self.current, listen_port=port).properties())
