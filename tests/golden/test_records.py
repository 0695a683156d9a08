"""Records, batches, ids and signatures of RocketMQ, decoded and encoded again."""

import gzip
import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol import acl
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.compression import CompressionKind, decompress, without_compression
from goddard.protocol.frame import RemotingCommand, decode_frame
from goddard.protocol.hashing import body_crc
from goddard.protocol.ids import (
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
)
from goddard.protocol.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_ID,
    SysFlag,
    decode_batch,
    decode_properties,
    encode_batch,
    encode_properties,
    find_property,
)
from goddard.protocol.record import (
    MAGIC_BLANK,
    Record,
    decode_record,
    encode_record,
    iter_records,
    read_summary,
    record_size,
)

DATA = Path(__file__).parent / "data"
WIRE = sorted((DATA / "wire").glob("*/*.jsonl*"))
STORES = ("clean-5.4.0", "clean-4.9.4", "kill9-5.4.0")
MAX_BODY_BYTES = 4 * 1024 * 1024

RECORD_ANSWERS = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.POP_MESSAGE,
}
# Sent by the broker to a client, with the message that it is about.
RECORD_REQUESTS = {RequestCode.CHECK_TRANSACTION_STATE, RequestCode.CONSUME_MESSAGE_DIRECTLY}


def wire_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name.partition('.')[0]}"


def exchanges(path: Path) -> Iterator[tuple[RemotingCommand, RemotingCommand | None]]:
    """Each frame of a recording; an answer with its request."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    asked: dict[tuple[int, str, int], RemotingCommand] = {}
    for line in content.splitlines():
        seen = json.loads(line)
        command = decode_frame(memoryview(bytes.fromhex(seen["hex"]))[4:])
        if command.is_response:
            sent_by = "s2c" if seen["dir"] == "c2s" else "c2s"
            yield command, asked.get((seen["conn"], sent_by, command.opaque))
        else:
            asked[seen["conn"], seen["dir"], command.opaque] = command
            yield command, None


def check_parts(record: Record, written: bytes) -> None:
    """Values that a record contains twice are equal."""
    summary = read_summary(written)
    body = written[summary.body_position : summary.body_position + summary.body_length]
    assert (summary.size, summary.topic, body) == (len(written), record.topic, record.body)
    assert (summary.properties, summary.body_crc) == (record.properties, record.body_crc)
    assert summary.physical_offset == record.physical_offset
    assert summary.queue_offset == record.queue_offset
    assert summary.store_timestamp_ms == record.store_timestamp_ms
    assert summary.prepared_transaction_offset == record.prepared_transaction_offset
    assert len(written) == record_size(
        len(record.body),
        len(record.topic.encode()),
        len(record.properties),
        is_born_v6=record.born_host.is_v6,
        is_store_v6=record.store_host.is_v6,
    )
    properties = decode_properties(record.properties)
    for name in (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_ID, "DELAY", "CLUSTER"):
        found = find_property(record.properties, name.encode())
        assert (None if found is None else found.decode()) == properties.get(name)
    assert decode_properties(encode_properties(properties)) == properties


def test_every_record_on_the_wire_round_trips() -> None:
    seen: Counter[int] = Counter()
    for path in WIRE:
        for command, request in exchanges(path):
            if request is None:
                code = command.code
                has_records = not command.is_response and code in RECORD_REQUESTS
            else:
                code = request.code
                has_records = code in RECORD_ANSWERS and command.code == ResponseCode.SUCCESS
            if not has_records:
                continue
            records = list(iter_records(command.body))
            written = [encode_record(record) for record in records]
            assert b"".join(written) == command.body, wire_name(path)
            for record, one in zip(records, written, strict=True):
                check_parts(record, one)
            seen[code] += len(records)
    assert set(seen) == RECORD_ANSWERS | RECORD_REQUESTS
    assert sum(seen.values()) > 800


def test_every_batch_on_the_wire_round_trips() -> None:
    batches = 0
    for path in WIRE:
        for request, _ in exchanges(path):
            if request.is_response or request.code != RequestCode.SEND_BATCH_MESSAGE:
                continue
            entries = decode_batch(request.body)
            assert len(entries) > 1
            assert encode_batch(entries) == request.body
            for entry in entries:
                assert PROPERTY_UNIQUE_ID in decode_properties(entry.properties)
            batches += 1
    assert batches >= 8


def signed_requests(prefix: str) -> Iterator[tuple[str, RemotingCommand]]:
    for path in WIRE:
        if path.name.startswith(prefix):
            for request, _ in exchanges(path):
                if not request.is_response and acl.SIGNATURE in request.fields:
                    yield wire_name(path), request


def test_every_signature_of_the_client_hook_is_recomputed() -> None:
    signed: Counter[str] = Counter()
    for name, request in signed_requests("acl_"):
        assert request.fields[acl.ACCESS_KEY] == "goldenAK"
        assert acl.verify(request, "goldenSecret1"), f"{name} {request}"
        assert not acl.verify(request, "goldenSecret2")
        signed[name] += 1
    assert len(signed) >= 10
    assert sum(signed.values()) > 300


def test_signatures_of_every_user_of_a_broker_with_acl() -> None:
    secrets = {"goldenAK": ["goldenSecret1"], "golduser": ["goldpass2", "wrongpass"]}
    used: Counter[str] = Counter()
    for name, request in signed_requests("auth"):
        candidates = secrets[request.fields[acl.ACCESS_KEY]]
        (secret,) = [secret for secret in candidates if acl.verify(request, secret)] or [name]
        used[secret] += 1
    assert set(used) == {"goldenSecret1", "goldpass2", "wrongpass"}


def test_signing_again_gives_the_recorded_fields() -> None:
    _, request = next(signed_requests("acl_producer"))
    recorded = dict(request.fields)
    assert request.ext_fields is not None
    del request.ext_fields[acl.ACCESS_KEY], request.ext_fields[acl.SIGNATURE]
    acl.sign(request, "goldenAK", "goldenSecret1")
    assert request.fields == recorded


def commit_log(store: str) -> bytes:
    with tarfile.open(DATA / "store" / f"{store}.tar.gz") as tar:
        names = sorted(n for n in tar.getnames() if n.startswith("store/commitlog/0"))
        files = [tar.extractfile(name) or io.BytesIO() for name in names]
        return b"".join(file.read() for file in files)


def log_records(log: bytes) -> Iterator[tuple[Record, bytes]]:
    """Records with their bytes, up to the unwritten part of the last file."""
    position = 0
    while position < len(log):
        size = int.from_bytes(log[position : position + 4], "big")
        if int.from_bytes(log[position + 4 : position + 8], "big") == MAGIC_BLANK:
            position += size
            continue
        if size == 0:
            return
        record, end = decode_record(log, position)
        yield record, log[position:end]
        position = end


def manifest_entry(record: Record, size: int, *, clears_flag: bool) -> dict[str, Any]:
    """The manifest's entry for a message, made from the record alone."""
    properties = decode_properties(record.properties)
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    body = decompress(record.body, record.sys_flag, MAX_BODY_BYTES)
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": size,
        "msgId": properties.get(PROPERTY_UNIQUE_ID, offset_id),
        "offsetMsgId": offset_id,
        "keys": properties.get(PROPERTY_KEYS),
        "tags": properties.get(PROPERTY_TAGS),
        "bodySha1": hashlib.sha1(body, usedforsecurity=False).hexdigest(),
        "bodyLength": len(body),
        "storeTimestamp": record.store_timestamp_ms,
        "bornTimestamp": record.born_timestamp_ms,
        "sysFlag": without_compression(record.sys_flag) if clears_flag else record.sys_flag,
        "flag": record.flag,
        "bodyCRC": body_crc(record.body),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": properties,
    }


@pytest.mark.parametrize("store", STORES)
def test_every_record_of_a_commit_log_equals_the_manifest(store: str) -> None:
    with gzip.open(DATA / "store" / f"{store}.manifest.json.gz", "rt") as file:
        manifest = json.load(file)
    listed = {message["physicalOffset"]: message for message in manifest["messages"]}
    # The half-message log of 4.9.4 could not be pulled, so it is not in its manifest.
    unlisted = 22 if store == "clean-4.9.4" else 0
    kinds: Counter[int] = Counter()
    for record, raw in log_records(commit_log(store)):
        assert encode_record(record) == raw
        check_parts(record, raw)
        if record.sys_flag & SysFlag.COMPRESSED:
            kinds[record.sys_flag >> 8 & 7] += 1
        expected = listed.pop(record.physical_offset, None)
        if expected is None:
            assert record.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
            unlisted -= 1
            continue
        made = manifest_entry(record, len(raw), clears_flag=manifest["server"] == "5.4.0")
        assert made == {name: expected.get(name) for name in made}
        assert parse_offset_message_id(made["offsetMsgId"]) == (
            record.store_host,
            record.physical_offset,
        )
    assert not listed
    assert unlisted == 0
    if store == "clean-5.4.0":
        assert set(kinds) == set(CompressionKind)


@pytest.mark.parametrize(("store", "digits"), [("clean-5.4.0", 32), ("kill9-5.4.0", 56)])
def test_unique_ids_of_java_clients(store: str, digits: int) -> None:
    checked = 0
    for record, _ in log_records(commit_log(store)):
        raw = find_property(record.properties, PROPERTY_UNIQUE_ID.encode())
        if raw is None or record.reconsume_times or record.topic not in ("TopicA", "TopicB"):
            continue
        text = raw.decode()
        parsed = parse_unique_id(text)
        assert len(text) == digits
        assert str(parsed) == text
        # The recording machine's zone was UTC. An id is made just before its message is sent.
        made_ms = parsed.created_ms(record.born_timestamp_ms + 1, UTC)
        assert 0 <= record.born_timestamp_ms - made_ms < 60_000
        checked += 1
    assert checked > 100
