"""Configuration updates: written to disk first, then in effect, one at a time."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goddard.config import NameServerConfig, read_properties
from goddard.errors import ConfigError
from goddard.nameserver.settings import Settings


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def disk(executor: ThreadPoolExecutor) -> Iterator[threading.Event]:
    """Writes to the disk are blocked until this is set."""
    ready = threading.Event()
    executor.submit(ready.wait, 10)
    yield ready
    ready.set()


@pytest.fixture
def applied() -> list[NameServerConfig]:
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "namesrv.properties"


@pytest.fixture
async def settings(
    path: Path, executor: ThreadPoolExecutor, applied: list[NameServerConfig]
) -> Settings:
    return Settings(NameServerConfig(config_store_path=str(path)), executor, applied.append)


async def test_a_change_takes_effect_when_it_is_on_disk(
    settings: Settings, path: Path, disk: threading.Event, applied: list[NameServerConfig]
) -> None:
    update = asyncio.ensure_future(settings.update({"orderMessageEnable": "true"}, "peer"))
    done, _ = await asyncio.wait((update,), timeout=0.05)
    assert not done
    assert settings.current.properties()["orderMessageEnable"] == "false"
    disk.set()
    await update
    assert settings.current.properties()["orderMessageEnable"] == "true"
    assert applied == [settings.current]
    assert read_properties(path)["orderMessageEnable"] == "true"


async def test_an_update_completes_after_its_peer_disconnects(
    settings: Settings, path: Path, disk: threading.Event, applied: list[NameServerConfig]
) -> None:
    update = asyncio.ensure_future(settings.update({"orderMessageEnable": "true"}, "peer"))
    await asyncio.wait((update,), timeout=0.05)
    update.cancel()
    await asyncio.wait((update,))
    disk.set()
    async with asyncio.timeout(60):
        await settings.drain()
    assert applied == [settings.current]
    assert read_properties(path)["orderMessageEnable"] == "true"


async def test_updates_build_on_each_other(settings: Settings, path: Path) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(
            settings.update({"orderMessageEnable": "true"}, "one"),
            settings.update({"scanNotActiveBrokerInterval": "700"}, "two"),
        )
    assert settings.current.order_message_enable
    assert settings.current.scan_interval_ms == 700
    assert read_properties(path)["scanNotActiveBrokerInterval"] == "700"


async def test_invalid_and_unchanged_updates_write_nothing(
    settings: Settings, path: Path, applied: list[NameServerConfig]
) -> None:
    await settings.update({"orderMessageEnable": "false", "unknown": "x"}, "peer")
    with pytest.raises(ConfigError):
        await settings.update({"orderMessageEnable": "maybe"}, "peer")
    assert not applied
    assert not await asyncio.to_thread(path.exists)
