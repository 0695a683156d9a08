"""Commit-log files as rows: splits, torn tails, damage."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.core import IS_COMPILED
from goddard.errors import ConfigError
from goddard.protocol.record import Host, Record, encode_blank, encode_record
from goddard.spark import log
from goddard.spark.columns import COLUMNS
from goddard.spark.log import LogOptions, parse_log, plan, read_split
from goddard.spark.reading.offsets import DataLossError

_FILE_BYTES = 4096
_HOST = Host.parse("127.0.0.1:10911")
_V6 = Host.parse("[::1]:10911")


@pytest.fixture(params=sorted({IS_COMPILED, False}), scope="module", autouse=True)
def is_compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """All tests run with the compiled and with the other scan for records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "IS_COMPILED", request.param)
        yield


class Log:
    """Writes commit-log files like a broker: preallocated, with a blank at the end of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = bytearray()
        self.starts: list[int] = []

    def add(self, body: bytes, **changes: Any) -> None:
        values: dict[str, Any] = {
            "topic": "TopicTest",
            "queue_id": 0,
            "queue_offset": len(self.starts),
            "store_timestamp_ms": 1_000 + len(self.starts),
            "store_host": _HOST,
            "born_timestamp_ms": 5,
            "born_host": _HOST,
            "body": body,
            "properties": b"TAGS\x01a\x02",
        }
        values |= changes
        size = len(encode_record(Record(physical_offset=0, **values)))
        free_bytes = _FILE_BYTES - len(self.data) % _FILE_BYTES
        if size + 8 > free_bytes:
            self.data += encode_blank(free_bytes)[:free_bytes].ljust(free_bytes, b"\x00")
        self.starts.append(len(self.data))
        self.data += encode_record(Record(physical_offset=len(self.data), **values))

    def write(self) -> Path:
        folder = self.folder / "commitlog"
        folder.mkdir(parents=True, exist_ok=True)
        for begin in range(0, max(1, len(self.data)), _FILE_BYTES):
            part = bytes(self.data[begin : begin + _FILE_BYTES]).ljust(_FILE_BYTES, b"\x00")
            (folder / f"{begin:020}").write_bytes(part)
        return self.folder


def _options(folder: Path, **changes: Any) -> LogOptions:
    return LogOptions(folder=folder / "commitlog", **changes)


def _rows(options: LogOptions, names: tuple[str, ...] = ("body",)) -> list[Any]:
    rows = [
        row
        for split in plan(options)
        for batch in read_split(split, options, list(names))
        for row in batch.to_pylist()
    ]
    return [row[names[0]] for row in rows] if len(names) == 1 else rows


def _filled(folder: Path, count: int = 60) -> tuple[Log, list[bytes]]:
    written = Log(folder)
    bodies = [bytes([65 + number % 26]) * (number * 7 % 150) for number in range(count)]
    for number, body in enumerate(bodies):
        host = _V6 if number % 5 == 0 else _HOST
        topic = "t" * 200 if number % 7 == 0 else "TopicTest"
        written.add(body, topic=topic, born_host=host, store_host=host)
    written.write()
    return written, bodies


@pytest.mark.parametrize("partition_bytes", [100, 333, 1000, 4096, 10_000])
@pytest.mark.parametrize("rows_per_batch", [1, 7, 20_000])
def test_splits_of_any_size_give_every_record_once(
    tmp_path: Path, partition_bytes: int, rows_per_batch: int
) -> None:
    written, bodies = _filled(tmp_path)
    assert len(written.data) > 2 * _FILE_BYTES
    options = _options(tmp_path, partition_bytes=partition_bytes, rows_per_batch=rows_per_batch)
    assert _rows(options) == bodies
    assert _rows(options, ("commitLogOffset",)) == written.starts


def test_records_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, bodies = _filled(tmp_path)
    monkeypatch.setattr(log, "_CHUNK_BYTES", 200)
    assert _rows(_options(tmp_path, partition_bytes=1500)) == bodies


@given(data=st.data())
def test_reading_stops_at_a_torn_tail(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("torn")
    written, bodies = _filled(folder, 12)
    cut = data.draw(st.integers(written.starts[9] + 1, len(written.data) - 1))
    written.data = bytearray(written.data[:cut])
    written.write()
    whole = [start for start in [*written.starts[1:], len(written.data) + 1] if start <= cut]
    assert _rows(_options(folder)) == bodies[: len(whole)]


def test_damage_in_the_middle_is_data_loss_or_skipped(tmp_path: Path) -> None:
    written, bodies = _filled(tmp_path)
    position = written.starts[3]
    written.data[position + 4 : position + 8] = b"oops"
    written.write()
    with pytest.raises(DataLossError, match=rf"0{{20}} is damaged at byte {position}"):
        _rows(_options(tmp_path))
    remaining = bodies[:3] + bodies[4:]
    assert _rows(_options(tmp_path, fails_on_data_loss=False)) == remaining


def test_record_with_inconsistent_lengths_is_damage(tmp_path: Path) -> None:
    written, bodies = _filled(tmp_path)
    position = written.starts[4]
    written.data[position + 84 : position + 88] = b"\x00\x00\x01\x00"  # its body's length
    written.write()
    with pytest.raises(DataLossError, match=f"damaged at byte {position}"):
        _rows(_options(tmp_path))
    remaining = bodies[:4] + bodies[5:]
    assert _rows(_options(tmp_path, fails_on_data_loss=False)) == remaining


def test_record_with_wrong_physical_offset_is_damage(tmp_path: Path) -> None:
    written, _ = _filled(tmp_path)
    position = written.starts[5]
    written.data[position + 28 : position + 36] = (1).to_bytes(8, "big")
    written.write()
    with pytest.raises(DataLossError, match=f"byte {position}"):
        _rows(_options(tmp_path))


def test_bodies_that_look_like_records_are_not_read_as_records(tmp_path: Path) -> None:
    written = Log(tmp_path)
    inner = encode_record(
        Record("T", 0, 0, 7, 1, _HOST, 1, _HOST, b"inner")  # its physical offset is a different one
    )
    for _ in range(30):
        written.add(inner)
    written.write()
    assert _rows(_options(tmp_path, partition_bytes=150)) == [inner] * 30


def test_topics_and_times_select_rows(tmp_path: Path) -> None:
    written = Log(tmp_path)
    for number in range(100):
        topic = ["A", "B", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"][number % 4]
        written.add(b"%d" % number, topic=topic)
    written.write()
    assert _rows(_options(tmp_path, topics=("B",))) == [b"%d" % n for n in range(1, 100, 4)]
    plain = [b"%d" % n for n in range(100) if n % 4 < 2]
    assert _rows(_options(tmp_path)) == plain
    everything = _rows(_options(tmp_path, includes_system_topics=True))
    assert everything == [b"%d" % n for n in range(100)]
    some = _options(tmp_path, includes_system_topics=True, start_ms=1_030, end_ms=1_070)
    assert _rows(some) == [b"%d" % n for n in range(30, 70)]
    assert len(plan(some)) < len(plan(_options(tmp_path)))


def test_unknown_topic_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _filled(tmp_path)
    (tmp_path / "consumequeue" / "T").mkdir(parents=True)
    plan(_options(tmp_path, topics=("T", "orderz")))
    (message,) = caplog.messages
    assert "has no queue of topic orderz; check the name" in message


def test_every_column_can_be_read(tmp_path: Path) -> None:
    _filled(tmp_path)
    rows = _rows(_options(tmp_path, broker_name="archive"), tuple(COLUMNS))
    assert {row["brokerName"] for row in rows} == {"archive"}


@pytest.mark.parametrize(
    ("given_options", "words"),
    [
        ({}, "the path is missing"),
        ({"path": "nowhere"}, "is not a directory"),
        ({"path": ".", "subscribe": "no topic"}, "subscribe names the topic"),
        ({"path": ".", "startingTimestamp": "5", "endingTimestamp": "5"}, "is not after"),
        ({"path": ".", "topics": "A"}, "unknown option topics"),
    ],
)
def test_wrong_options_are_refused(given_options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_log(given_options)


def test_folder_without_log_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no commit-log files"):
        plan(parse_log({"path": str(tmp_path)}))


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    Log(tmp_path).write()
    assert _rows(_options(tmp_path)) == []


def test_torn_tail_before_a_preallocated_file(tmp_path: Path) -> None:
    written, bodies = _filled(tmp_path)
    last = written.starts[-1]
    written.data = written.data[: last + 60]
    folder = written.write() / "commitlog"
    ahead = max(int(path.name) for path in folder.iterdir()) + _FILE_BYTES
    (folder / f"{ahead:020}").write_bytes(bytes(_FILE_BYTES))
    assert _rows(_options(tmp_path)) == bodies[:-1]


def test_reading_stops_at_a_hole_in_the_newest_file(tmp_path: Path) -> None:
    written = Log(tmp_path)
    for number in range(12):
        written.add(bytes([65 + number]) * 200)
    position = written.starts[10] + 150
    written.data[position : position + 40] = bytes(40)
    written.write()
    assert len(_rows(_options(tmp_path))) == 10


def test_files_without_messages_of_the_topics_are_not_read(tmp_path: Path) -> None:
    written = Log(tmp_path)
    for number in range(60):
        written.add(b"%d" % number * 40, topic="Rare" if number == 2 else "Common")
    written.write()
    (tmp_path / "checkpoint").write_bytes(struct.pack(">qqq", 100_000, 100_000, 0))
    queue = tmp_path / "consumequeue" / "Rare" / "0"
    queue.mkdir(parents=True)
    (queue / f"{0:020}").write_bytes(struct.pack(">qiq", written.starts[2], 100, 0))
    rare = _options(tmp_path, topics=("Rare",))
    assert _rows(rare) == [b"2" * 40]
    # The first file, and the newest, for which the queues may be incomplete.
    assert [split.file_offset for split in plan(rare)] == [
        0,
        max(p.file_offset for p in plan(rare)),
    ]
    assert len(plan(_options(tmp_path, topics=("Rare",), uses_index=False))) > 2


def test_deleted_file_is_data_loss(tmp_path: Path) -> None:
    _, bodies = _filled(tmp_path)
    options = _options(tmp_path)
    first = plan(options)[0]
    Path(first.path).unlink()
    with pytest.raises(DataLossError, match="was deleted before it was read"):
        list(read_split(first, options, ["body"]))
    lenient = _options(tmp_path, fails_on_data_loss=False)
    assert list(read_split(first, lenient, ["body"])) == []
    assert len(_rows(options)) < len(bodies)
