"""Comparing the logs of two stores."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from goddard.cli.store import store as store_command
from goddard.store.check.compare import compare
from goddard.store.check.inspect import StoreView
from goddard.store.config import StoreConfig
from goddard.store.store import MessageStore
from tests.support.store import prepared

SEGMENT_BYTES = 8192


def config(root: Path) -> StoreConfig:
    return StoreConfig(root=root, segment_bytes=SEGMENT_BYTES, index_slots=100, index_entries=400)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """A store of several segments, and its copy."""
    first, second = tmp_path / "first", tmp_path / "second"
    with MessageStore(config(first)) as store:
        store.put_many([prepared(body=b"x" * 300) for _ in range(60)])
    shutil.copytree(first, second)
    return first, second


def put(root: Path, count: int) -> None:
    with MessageStore(config(root)) as store:
        store.put_many([prepared(body=b"y" * 300) for _ in range(count)])


def test_equal_logs(stores: tuple[Path, Path]) -> None:
    found = compare(*map(StoreView, stores))
    assert found.is_equal
    assert found.difference is None
    assert found.compared == found.first == found.second
    assert found.compared.end_offset > 2 * SEGMENT_BYTES
    result = CliRunner().invoke(store_command, ["compare", *map(str, stores)])
    assert result.exit_code == 0
    assert f"the logs are equal from 0 to {found.compared.end_offset}" in result.output


def test_a_longer_log(stores: tuple[Path, Path]) -> None:
    end_offset = compare(*map(StoreView, stores)).compared.end_offset
    put(stores[1], 30)
    found = compare(*map(StoreView, stores))
    assert not found.is_equal
    assert found.difference is None
    assert found.compared.end_offset == end_offset
    result = CliRunner().invoke(store_command, ["compare", *map(str, stores)])
    assert result.exit_code == 1
    assert f"{stores[1]} has " in result.output


def test_the_first_difference_and_its_record(stores: tuple[Path, Path]) -> None:
    first, second = map(StoreView, stores)
    file = second.log_files()[1]
    with file.path.open("r+b") as opened:
        opened.seek(500)
        (before,) = opened.read(1)
        opened.seek(500)
        opened.write(bytes([before ^ 1]))
    found = compare(first, second)
    assert found.difference is not None
    assert found.difference.physical_offset == SEGMENT_BYTES + 500
    record_offset = found.difference.record_offset
    assert SEGMENT_BYTES <= record_offset <= SEGMENT_BYTES + 500
    with MessageStore(config(stores[0])) as store:
        assert store.lookup(record_offset) is not None
    result = CliRunner().invoke(store_command, ["compare", "--json", *map(str, stores)])
    assert result.exit_code == 1
    assert f'"physical_offset": {SEGMENT_BYTES + 500}' in result.output


def test_a_log_whose_first_files_expired(stores: tuple[Path, Path]) -> None:
    first, second = map(StoreView, stores)
    second.log_files()[0].path.unlink()
    found = compare(first, second)
    assert found.is_equal
    assert found.compared.min_offset == SEGMENT_BYTES


def test_two_logs_that_have_parted(stores: tuple[Path, Path]) -> None:
    end_offset = compare(*map(StoreView, stores)).compared.end_offset
    put(stores[0], 1)
    put(stores[1], 2)
    found = compare(*map(StoreView, stores))
    assert found.difference is not None
    # After the end there may be an equal filler.
    assert found.difference.record_offset >= end_offset
