"""``rocketmq-log`` on stores of RocketMQ 4.9.4 and 5.4.0 gives the messages that Java read."""

import gzip
import hashlib
import json
import tarfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.message import SysFlag
from goddard.spark.columns import COLUMNS
from goddard.spark.log import LogOptions, parse_log, plan, read_split

DATA = Path(__file__).parent / "data" / "store"
NAMES = ("clean-5.4.0", "clean-4.9.4", "kill9-5.4.0")
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HOST = "127.0.0.1:20911"


@dataclass
class Golden:
    name: str
    root: Path
    manifest: dict[str, Any]

    def options(self, **more: str) -> LogOptions:
        return parse_log({"path": str(self.root), **more})


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    name = str(request.param)
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    manifest = json.loads(gzip.decompress((DATA / f"{name}.manifest.json.gz").read_bytes()))
    return Golden(name, tmp_path / "store", manifest)


def rows(options: LogOptions, names: tuple[str, ...] = tuple(COLUMNS)) -> list[dict[str, Any]]:
    return [
        row
        for split in plan(options)
        for batch in read_split(split, options, names)
        for row in batch.to_pylist()
    ]


def as_manifest(row: dict[str, Any], server: str) -> dict[str, Any]:
    """A row in the form of the manifest."""
    sys_flag = row["sysFlag"]
    if server.startswith("5."):
        sys_flag &= ~int(SysFlag.COMPRESSED)  # that client clears it after decompressing
    return {
        **{name: row[name] for name in ("topic", "queueId", "queueOffset", "msgId", "offsetMsgId")},
        **{name: row[name] for name in ("keys", "tags", "flag", "reconsumeTimes")},
        "physicalOffset": row["commitLogOffset"],
        "bodySha1": hashlib.sha1(row["body"]).hexdigest(),
        "bodyLength": len(row["body"]),
        "storeTimestamp": milliseconds(row["storeTimestamp"]),
        "bornTimestamp": milliseconds(row["bornTimestamp"]),
        "sysFlag": sys_flag,
        "preparedTransactionOffset": row["preparedTransactionOffset"],
        "properties": dict(row["properties"]),
    }


def milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def test_rows_equal_messages_read_by_java(golden: Golden) -> None:
    found = rows(golden.options(includeSystemTopics="true"))
    assert {row["storeHost"] for row in found} == {HOST}
    if golden.name == "clean-4.9.4":
        # Broker 4.9.4 does not answer pulls of its op topic, so Java's list lacks those records.
        assert sum(row["topic"] == OP_TOPIC for row in found) == 22
        found = [row for row in found if row["topic"] != OP_TOPIC]
    messages = [
        {name: value for name, value in message.items() if name not in ("size", "bodyCRC")}
        for message in golden.manifest["messages"]
    ]
    assert len(messages) > 1_500
    assert [as_manifest(row, golden.manifest["server"]) for row in found] == messages


def test_consume_queues_reduce_the_files_to_read(golden: Golden) -> None:
    names = ("topic", "commitLogOffset", "storeTimestamp")
    topics = {message["topic"] for message in golden.manifest["messages"]}
    skipped_files = 0
    for topic in sorted(topics):
        with_index = golden.options(subscribe=topic)
        without = golden.options(subscribe=topic, useIndex="false")
        assert rows(with_index, names) == rows(without, names)
        skipped_files += len(plan(without)) - len(plan(with_index))
    assert skipped_files > 0


def test_time_range_selects_messages(golden: Golden) -> None:
    names = ("commitLogOffset",)
    messages = golden.manifest["messages"]
    times = sorted(message["storeTimestamp"] for message in messages)
    start, end = times[len(times) // 3], times[2 * len(times) // 3]
    assert start < end
    some = golden.options(
        includeSystemTopics="true", startingTimestamp=str(start), endingTimestamp=str(end)
    )
    expected = {
        message["physicalOffset"]
        for message in messages
        if start <= message["storeTimestamp"] < end
    }
    found = {row["commitLogOffset"] for row in rows(some, names)}
    assert expected <= found
    assert len(found - expected) <= (22 if golden.name == "clean-4.9.4" else 0)
