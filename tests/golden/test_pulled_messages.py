"""Records that RocketMQ stored: our consumer returns what its own pull consumer returned."""

import gzip
import hashlib
import io
import json
import tarfile
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from goddard.client.consume.pull import PullResult, PullStatus, decode_messages, read_answer
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.compression import decompress
from goddard.protocol.frame import RemotingCommand, decode_frame
from goddard.protocol.headers.message import PullRequest
from goddard.protocol.record import MAX_BODY_BYTES, iter_records

DATA = Path(__file__).parent / "data"
STORES = ("clean-5.4.0", "clean-4.9.4", "kill9-5.4.0")
WIRE = sorted((DATA / "wire").glob("c*/*consumer*.jsonl*"))
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def commit_log(store: str) -> bytes:
    """The files of the log, concatenated: a physical offset is an index."""
    with tarfile.open(DATA / "store" / f"{store}.tar.gz") as tar:
        names = sorted(n for n in tar.getnames() if n.startswith("store/commitlog/0"))
        files = [tar.extractfile(name) or io.BytesIO() for name in names]
        return b"".join(file.read() for file in files)


def shown(message: ReceivedMessage, *, clears_flag: bool) -> dict[str, Any]:
    """A message with the names of the manifest."""
    made: dict[str, Any] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.store_size_bytes,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "keys": " ".join(message.keys) or None,
        "tags": message.tags,
        "bodySha1": hashlib.sha1(message.body, usedforsecurity=False).hexdigest(),
        "bodyLength": len(message.body),
        "storeTimestamp": message.store_timestamp_ms,
        "bornTimestamp": message.born_timestamp_ms,
        "flag": message.flag,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
    }
    if clears_flag:
        made["sysFlag"] = message.sys_flag
    return made


@pytest.mark.parametrize("store", STORES)
def test_stored_records_are_returned_as_by_rocketmq(store: str) -> None:
    with gzip.open(DATA / "store" / f"{store}.manifest.json.gz", "rt") as file:
        manifest = json.load(file)
    log = commit_log(store)

    def queue_of(entry: dict[str, Any]) -> MessageQueue:
        return MessageQueue(entry["topic"], "broker-golden", entry["queueId"])

    compressed = 0
    listed = sorted(manifest["messages"], key=queue_of)
    for queue, entries in groupby(listed, queue_of):
        expected = sorted(entries, key=lambda entry: int(entry["queueOffset"]))
        body = b"".join(
            log[entry["physicalOffset"] : entry["physicalOffset"] + entry["size"]]
            for entry in expected
        )
        messages = decode_messages(body, queue)
        for message, entry in zip(messages, expected, strict=True):
            made = shown(message, clears_flag=manifest["server"] == "5.4.0")
            assert made == {name: entry.get(name) for name in made}
            assert message.queue == queue
            compressed += message.stored_body_bytes != len(message.body)
    assert len(listed) > 100
    assert compressed or store != "clean-5.4.0"


def recorded_answers(path: Path) -> list[tuple[RemotingCommand, RemotingCommand]]:
    """Pull requests of a recording, each with its answer."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    asked: dict[tuple[int, int], RemotingCommand] = {}
    pairs = []
    for line in content.splitlines():
        seen = json.loads(line)
        if seen["peer"] != "broker":
            continue
        command = decode_frame(memoryview(bytes.fromhex(seen["hex"]))[4:])
        key = (seen["conn"], command.opaque)
        if command.is_response and seen["dir"] == "s2c":
            request = asked.pop(key, None)
            if request is not None:
                pairs.append((request, command))
        elif seen["dir"] == "c2s" and command.code in PULLS:
            asked[key] = command
    return pairs


def read(request: RemotingCommand, answer: RemotingCommand) -> PullResult:
    asked = PullRequest.decode(request.fields)
    queue = MessageQueue(asked.topic, asked.bname or "", asked.queue_id)
    return read_answer(answer, queue)


def test_recorded_answers_are_decoded() -> None:
    found = 0
    statuses = set()
    for path in WIRE:
        for request, answer in recorded_answers(path):
            if answer.code not in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ):
                continue
            result = read(request, answer)
            statuses.add(result.status)
            fields = answer.fields
            assert result.next_offset == int(fields["nextBeginOffset"])
            assert result.min_offset == int(fields["minOffset"])
            assert result.max_offset == int(fields["maxOffset"])
            assert result.suggested_broker_id == int(fields["suggestWhichBrokerId"])
            records = list(iter_records(answer.body)) if answer.code == 0 else []
            for message, record in zip(result.messages, records, strict=True):
                assert message.body == decompress(record.body, record.sys_flag, MAX_BODY_BYTES)
                assert message.queue_offset == record.queue_offset
                assert message.get("MAX_OFFSET") == fields["maxOffset"]
            found += len(records)
    assert statuses == set(PullStatus)
    assert found > 50
