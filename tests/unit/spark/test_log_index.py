"""Consume queues as an index: which commit-log files have messages of a topic."""

import struct
from pathlib import Path

import pytest

from goddard.spark.log_index import complete_until_ms, files_of_topics

_BOUNDS = [0, 1000, 2000, 3000]
_NO_MESSAGE = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


def _queue(root: Path, topic: str, offsets: list[int], *, before: int = 0, after: int = 0) -> None:
    folder = root / "consumequeue" / topic / "0"
    folder.mkdir(parents=True)
    entries = b"".join(struct.pack(">qiq", offset, 100, 7) for offset in offsets)
    (folder / f"{0:020}").write_bytes(_NO_MESSAGE * before + entries + bytes(20 * after))


@pytest.mark.parametrize("after", [0, 1, 50])
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    ("offsets", "files"),
    [
        ([0], {0}),
        ([999], {0}),
        ([1000], {1000}),
        ([5, 10, 2100, 2999], {0, 2000}),
        ([1500, 3000, 9000], {1000, 3000}),
        ([], set()),
    ],
)
def test_files_of_queue_entries(
    tmp_path: Path, offsets: list[int], files: set[int], before: int, after: int
) -> None:
    _queue(tmp_path, "A", offsets, before=before, after=after)
    assert files_of_topics(tmp_path, ["A"], _BOUNDS) == files


def test_topic_without_queues_gives_none(tmp_path: Path) -> None:
    _queue(tmp_path, "A", [5])
    assert files_of_topics(tmp_path, ["A", "B"], _BOUNDS) is None
    assert files_of_topics(tmp_path / "elsewhere", ["A"], _BOUNDS) is None


def test_several_topics_and_files_of_a_queue(tmp_path: Path) -> None:
    _queue(tmp_path, "A", [5])
    _queue(tmp_path, "B", [1200])
    entry = struct.pack(">qiq", 3100, 100, 7)
    (tmp_path / "consumequeue" / "B" / "0" / f"{20:020}").write_bytes(entry)
    (tmp_path / "consumequeue" / "B" / "0" / f"{40:020}").write_bytes(b"")
    assert files_of_topics(tmp_path, ["A", "B"], _BOUNDS) == {0, 1000, 3000}


@pytest.mark.parametrize(
    ("content", "until_ms"),
    [
        (struct.pack(">qqq", 9_000, 8_000, 0) + bytes(4072), 5_000),
        (struct.pack(">qqq", 7_000, 8_000, 0), 4_000),
        (struct.pack(">qqq", 0, 0, 0), None),
        (b"short", None),
        (None, None),
    ],
)
def test_time_up_to_which_queues_are_complete(
    tmp_path: Path, content: bytes | None, until_ms: int | None
) -> None:
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    assert complete_until_ms(tmp_path) == until_ms
