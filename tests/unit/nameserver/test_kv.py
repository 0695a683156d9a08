"""The KV table: acknowledged writes are on disk, failed writes change nothing."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from goddard.environment.files import SystemFiles
from goddard.errors import ConfigError
from goddard.files import replace_file
from goddard.nameserver.kv import KvTable, KvWriteError, encode_table, load_table


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def content(path: Path) -> object:
    return json.loads(path.read_bytes())


async def test_an_acknowledged_write_is_in_the_file(
    path: Path, executor: ThreadPoolExecutor
) -> None:
    kv = KvTable(path, executor)
    kv.load()
    await kv.put("ORDER_TOPIC_CONFIG", "T", "b1:4;b2:4")
    assert content(path) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "b1:4;b2:4"}}}
    assert kv.get("ORDER_TOPIC_CONFIG", "T") == "b1:4;b2:4"
    await kv.delete("ORDER_TOPIC_CONFIG", "T")
    assert content(path) == {"configTable": {"ORDER_TOPIC_CONFIG": {}}}
    assert kv.namespace("ORDER_TOPIC_CONFIG") == {}
    assert load_table(SystemFiles(), path.with_name("kvConfig.json.bak")) == {
        "ORDER_TOPIC_CONFIG": {"T": "b1:4;b2:4"}
    }


async def test_waiting_writes_are_combined_in_order(
    path: Path, executor: ThreadPoolExecutor
) -> None:
    kv = KvTable(path, executor)
    writes = [kv.put("n", "same", str(number)) for number in range(200)]
    writes += [kv.put("n", f"k{number}", "v") for number in range(50)]
    async with asyncio.timeout(30):
        await asyncio.gather(*writes)
    assert kv.get("n", "same") == "199"
    assert load_table(SystemFiles(), path)["n"] == {
        "same": "199",
        **{f"k{n}": "v" for n in range(50)},
    }


async def test_a_write_completes_after_its_caller_is_cancelled(
    path: Path, executor: ThreadPoolExecutor
) -> None:
    kv = KvTable(path, executor)
    task = asyncio.ensure_future(kv.put("n", "k", "v"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    await kv.drain()
    assert load_table(SystemFiles(), path) == {"n": {"k": "v"}}


async def test_a_disk_error_fails_the_write_and_changes_nothing(
    tmp_path: Path, executor: ThreadPoolExecutor
) -> None:
    folder = tmp_path / "namesrv"
    kv = KvTable(folder / "kvConfig.json", executor)
    await kv.put("n", "k", "old")
    # A folder instead of the temporary file can neither be opened nor replaced.
    (folder / "kvConfig.json.tmp").mkdir()
    with pytest.raises(KvWriteError, match="was not stored"):
        await kv.put("n", "k", "new")
    assert kv.get("n", "k") == "old"
    assert load_table(SystemFiles(), folder / "kvConfig.json") == {"n": {"k": "old"}}
    (folder / "kvConfig.json.tmp").rmdir()
    await kv.put("n", "k", "newer")
    assert load_table(SystemFiles(), folder / "kvConfig.json") == {"n": {"k": "newer"}}


async def test_the_table_is_bounded(path: Path, executor: ThreadPoolExecutor) -> None:
    kv = KvTable(path, executor, max_bytes=1000)
    results = await asyncio.gather(
        kv.put("n", "small", "v"), kv.put("n", "large", "v" * 2000), return_exceptions=True
    )
    assert results[0] is None
    assert isinstance(results[1], KvWriteError)
    assert kv.namespace("n") == {"small": "v"}


async def test_the_table_is_bounded_for_combined_writes(
    path: Path, executor: ThreadPoolExecutor
) -> None:
    kv = KvTable(path, executor, max_bytes=1000)
    await kv.put("n", "large", "v" * 500)
    writes = [kv.put("n", f"k{number}", "v" * 100) for number in range(6)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    refused = [result for result in results if result is not None]
    assert all(isinstance(result, KvWriteError) for result in refused)
    stored = kv.namespace("n")
    assert stored is not None
    assert len(stored) == 7 - len(refused)
    assert 700 < len(encode_table({"n": dict(stored)})) <= 1000


async def test_writes_that_wait_are_bounded(path: Path, executor: ThreadPoolExecutor) -> None:
    kv = KvTable(path, executor, max_bytes=1000)
    disk = threading.Event()
    executor.submit(disk.wait, 10)
    first = asyncio.ensure_future(kv.put("n", "k", "v"))
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(kv.delete("n", "x" * 100)) for _ in range(30)]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert {type(task.exception()) for task in done} == {KvWriteError}
        assert 5 <= len(pending) <= 10
        disk.set()
        await asyncio.gather(first, *pending)
    assert kv.namespace("n") == {"k": "v"}


async def test_deleting_a_missing_key_succeeds(path: Path, executor: ThreadPoolExecutor) -> None:
    kv = KvTable(path, executor)
    await kv.delete("never", "k")
    assert kv.namespace("never") is None


async def test_on_change_is_called_after_each_change(
    path: Path, executor: ThreadPoolExecutor
) -> None:
    seen: list[str | None] = []
    kv = KvTable(path, executor, on_change=lambda: seen.append(kv.get("n", "k")))
    await kv.put("n", "k", "v")
    assert seen == ["v"]


def test_javas_file_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"configTable":{"NSX":{"k1":"v1"},"EMPTY":{}}}')
    assert load_table(SystemFiles(), path) == {"NSX": {"k1": "v1"}, "EMPTY": {}}


def test_a_missing_file_is_an_empty_table(path: Path) -> None:
    assert load_table(SystemFiles(), path) == {}


def test_the_backup_replaces_a_damaged_file(path: Path) -> None:
    replace_file(SystemFiles(), path, b'{"configTable":{"n":{"k":"old"}}}')
    replace_file(SystemFiles(), path, b'{"configTable":{"n":{"k":"new"}}}')
    path.write_bytes(b'{"configTable":{"n":{"k":')
    assert load_table(SystemFiles(), path) == {"n": {"k": "old"}}
    path.unlink()
    assert load_table(SystemFiles(), path) == {"n": {"k": "old"}}


def test_a_damaged_file_without_backup_prevents_the_start(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\x00\xff garbage")
    with pytest.raises(ConfigError, match=r"kvConfig\.json cannot be read"):
        load_table(SystemFiles(), path)


def test_a_damaged_file_never_replaces_a_good_backup(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(SystemFiles(), path, b'{"configTable":{"n":{"k":"old"}}}')
    replace_file(SystemFiles(), path, b'{"configTable":{"n":{"k":"new"}}}')
    path.write_bytes(b"broken")
    real, left = Path.replace, [0]

    def crash(source: Path, target: Path) -> Path:
        if not left[0]:
            raise OSError("power cut")
        left[0] -= 1
        return real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
        # A crash before the first rename: the backup is still good.
        with pytest.raises(OSError, match="power cut"):
            replace_file(SystemFiles(), path, b'{"configTable":{"n":{"k":"newer"}}}')
        assert load_table(SystemFiles(), path) == {"n": {"k": "old"}}
        # A crash after it: the file is good.
        left[0] = 1
        replace_file(SystemFiles(), path, b'{"configTable":{"n":{"k":"newer"}}}')
        assert load_table(SystemFiles(), path) == {"n": {"k": "newer"}}


def test_replacing_a_file_leaves_no_temporary(path: Path) -> None:
    replace_file(SystemFiles(), path, b"one")
    replace_file(SystemFiles(), path, b"two")
    assert path.read_bytes() == b"two"
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "kvConfig.json",
        "kvConfig.json.bak",
    ]
