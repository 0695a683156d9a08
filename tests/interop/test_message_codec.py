"""Messages that we encode, decoded by RocketMQ's own decoder."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.hashing import java_hash
from goddard.protocol.ids import UniqueIds, offset_message_id
from goddard.protocol.message import (
    BatchEntry,
    decode_properties,
    encode_batch,
    encode_properties,
)
from goddard.protocol.record import Host, Record, encode_record
from tests.support.peers import POM_DIR, RELEASES

pytestmark = pytest.mark.java

SOURCE = POM_DIR / "java" / "MessageReader.java"
HOSTS = [Host.parse("10.1.2.3:10911"), Host.parse("[2001:db8::7]:65535")]
PROPERTIES = {"KEYS": "k1 k2", "TAGS": "TagA", "\u4e2d\u6587": "\N{GRINNING FACE}", "x": "a=b\x01c"}
BODIES = [b"x", "\u4e2d\u6587 ".encode() * 3000, bytes(300_000)]

Ask = Callable[[list[tuple[str, bytes]]], list[str]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Sends questions to MessageReader.java; one JVM answers them all."""
    lib = RELEASES["5.4.0"].lib
    classes: Path = tmp_path_factory.mktemp("classes")
    class_path = f"{lib / '*'}:{classes}"
    compile_it = ["javac", "-encoding", "UTF-8", "-d", str(classes), "-cp", class_path, str(SOURCE)]
    subprocess.run(compile_it, check=True, timeout=100)
    java = shutil.which("java") or "java"

    def answers(questions: list[tuple[str, bytes]]) -> list[str]:
        asked = "".join(f"{kind} {data.hex()}\n" for kind, data in questions)
        command = [java, "-Xmx256m", f"-Duser.home={classes}", "-cp", class_path, "MessageReader"]
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return answers


def as_hex(data: bytes) -> str:
    return data.hex() or "-"


def pairs(properties: dict[str, str]) -> str:
    """Properties as Java's TreeMap prints them."""
    ordered = sorted(properties.items(), key=lambda pair: pair[0].encode("utf-16-be"))
    return as_hex(("{" + ", ".join(f"{k}={v}" for k, v in ordered) + "}").encode())


def host(address: Host) -> str:
    return f"{address.ip.hex()}:{address.port}"


def record_answer(record: Record, body: bytes) -> str:
    parts = (
        as_hex(record.topic.encode()),
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp_ms,
        host(record.store_host),
        record.born_timestamp_ms,
        host(record.born_host),
        as_hex(body),
        pairs(decode_properties(record.properties)),
        record.flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
        offset_message_id(record.store_host, record.physical_offset),
    )
    return " ".join(map(str, parts))


def test_records_of_every_version_host_and_compression(ask: Ask) -> None:
    questions: list[tuple[str, bytes]] = []
    expected: list[str] = []
    kinds: list[CompressionKind | None] = [None, *CompressionKind]
    cases = [
        (topic, born, store, kind, body)
        for topic in ("TopicA", "%RETRY%" + "g" * 200)
        for born in HOSTS
        for store in HOSTS
        for kind in kinds
        for body in BODIES
    ]
    for number, (topic, born, store, kind, body) in enumerate(cases):
        record = Record(
            topic=topic,
            queue_id=number,
            queue_offset=2**40 + number,
            physical_offset=2**41 + number,
            store_timestamp_ms=1700000000002,
            store_host=store,
            born_timestamp_ms=1700000000001,
            born_host=born,
            body=body if kind is None else compress(body, kind),
            properties=encode_properties(PROPERTIES),
            flag=-number,
            sys_flag=0 if kind is None else with_compression(0, kind),
            reconsume_times=3,
            prepared_transaction_offset=99,
        )
        questions.append(("record", encode_record(record)))
        expected.append(record_answer(record, body))
    assert ask(questions) == expected


def test_batches(ask: Ask) -> None:
    raw = encode_properties(PROPERTIES)
    entries = [BatchEntry(b"one", raw, 7), BatchEntry(b"", b"", -1), BatchEntry(b"three", raw[:-1])]
    (answer,) = ask([("batch", encode_batch(entries))])
    parts = [(e.flag, as_hex(e.body), pairs(decode_properties(e.properties))) for e in entries]
    assert answer == " ".join(f"{flag} {body} {read}" for flag, body, read in parts)


def test_hashes(ask: Ask) -> None:
    texts = ["a", "TagA", "polygenelubricants", "d\N{GRINNING FACE}", "\u4e2d" * 100, "z" * 5000]
    answers = ask([("hash", text.encode()) for text in texts])
    assert [int(answer) for answer in answers] == [java_hash(text) for text in texts]


def test_ids(ask: Ask) -> None:
    texts = [offset_message_id(address, 2**50 + 1) for address in HOSTS]
    answers = ask([("id", text.encode()) for text in texts])
    assert answers == [f"{host(address)} {2**50 + 1}" for address in HOSTS]


def test_unique_ids_are_dated_as_java_dates_them(ask: Ask) -> None:
    now_ms = time.time_ns() // 1_000_000
    texts = [UniqueIds(address.ip, 70001, 5).next(now_ms) for address in HOSTS]
    answers = ask([("unique", text.encode()) for text in texts])
    assert answers == [f"{as_hex(a.ip)} {70001 & 0xFFFF} {now_ms}" for a in HOSTS]
