"""Syncs that the kernel runs."""

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from goddard.environment.syncs import Syncs, open_kernel_syncs


@pytest.fixture
def syncs() -> Iterator[Syncs]:
    opened = open_kernel_syncs()
    if opened is None:
        pytest.skip("this kernel, or its sandbox, has no asynchronous syncs")
    yield opened
    opened.close()


def wait_readable(syncs: Syncs) -> None:
    assert select.select([syncs], [], [], 30)[0], "the end of the sync was not announced"


def test_the_end_of_a_sync_makes_the_descriptor_readable(tmp_path: Path, syncs: Syncs) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        for _ in range(3):
            file.write(b"x" * 4096)
            assert syncs.result(wait=False) is None, "nothing was started"
            assert syncs.start(file.fileno())
            wait_readable(syncs)
            syncs.clear()
            assert select.select([syncs], [], [], 0)[0] == []
            assert syncs.result(wait=True) == 0


def test_a_thread_can_wait_for_the_end(tmp_path: Path, syncs: Syncs) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"x" * 4096)
        assert syncs.start(file.fileno())
        assert syncs.result(wait=True) == 0


def test_a_file_that_is_closed_meanwhile_is_synced(tmp_path: Path, syncs: Syncs) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"x" * 4096)
        assert syncs.start(file.fileno())
    assert syncs.result(wait=True) == 0


def test_what_cannot_be_synced_is_refused(syncs: Syncs) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    assert not syncs.start(reader), "a pipe"
    os.close(reader)
    assert not syncs.start(reader), "no file"
    assert syncs.result(wait=False) is None
