"""The compiled decoder of pulled records gives what the decoder in Python gives: messages or error.

Records are generated, taken from a golden store of RocketMQ, truncated and mutated.
"""

import os
from functools import cache

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from goddard.client.consume import pull
from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol.message import BatchEntry, SysFlag, encode_batch
from goddard.protocol.record import Host, Record, encode_record
from tests.golden.test_pulled_messages import STORES, commit_log

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

if IS_COMPILED:
    from goddard.core import records as core_records

INT64 = st.integers(-(2**63), 2**63 - 1)
QUEUE = MessageQueue("TopicA", "broker-a", 3)
ALL: frozenset[str] = frozenset()
MORE = b"MIN_OFFSET\x010\x02MAX_OFFSET\x019\x02"
MAGIC = b"\xda\xa3\x20\xa7"
WRAPPED = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
HOSTS = st.builds(Host, st.sampled_from([bytes(4), b"\x7f\0\0\1", bytes(16)]), st.just(10911))


PROPERTIES = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from([
            b"TAGS\x01a", b"TAGS\x01b", b"TAGS\x01", b"TAGS", b"ATAGS\x01a", b"TAGS\x01a\x01b", b"",
            b"TAGS\x01\xc3\xa9", b"TAGS\x01\xff", b"KEYS\x01a", b"x\x01TAGS\x01a",
        ]),
        max_size=4,
    ).map(b"\x02".join),
)  # fmt: skip


@st.composite
def encoded_records(draw: st.DrawFn) -> bytes:
    is_wrapped = draw(st.booleans()) and draw(st.booleans())
    record = Record(
        topic=draw(
            st.sampled_from(["TopicA", "TopicA", "TopicB", "T\u00e9", "x" * 127, "x" * 128])
        ),
        queue_id=draw(st.sampled_from([3, 3, 3, 4])),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        store_timestamp_ms=draw(INT64),
        store_host=draw(HOSTS),
        born_timestamp_ms=draw(INT64),
        born_host=draw(HOSTS),
        body=draw(st.binary(max_size=60)),
        properties=draw(PROPERTIES),
        sys_flag=WRAPPED if is_wrapped else 0,
    )
    if is_wrapped:
        record.body = encode_batch([BatchEntry(b"one", b"a\x01b"), BatchEntry(b"two")])
    return encode_record(record)


BODIES = st.lists(encoded_records(), max_size=6).map(b"".join)


@cache
def golden_records() -> list[bytes]:
    log = commit_log(STORES[0])
    records = []
    found = log.find(MAGIC)
    while found >= 0:
        size = int.from_bytes(log[found - 4 : found], "big")
        records.append(log[found - 4 : found - 4 + size])
        found = log.find(MAGIC, found + 4)
    return records


def outcome(
    records: bytes, queue: MessageQueue, offset_delta: int, tags: frozenset[str]
) -> list[object] | str:
    try:
        messages = pull.decode_messages(records, queue, MORE, offset_delta=offset_delta, tags=tags)
    except ProtocolError as error:
        return str(error)
    # The fields after the first six are decoded on first use.
    return [
        (*msgspec.structs.astuple(each)[:6], each.raw_properties(), each.physical_offset, each.flag)
        for each in messages
    ]


def check(
    records: bytes,
    queue: MessageQueue = QUEUE,
    offset_delta: int = 0,
    tags: frozenset[str] = ALL,
) -> None:
    compiled = outcome(records, queue, offset_delta, tags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pull, "IS_COMPILED", False)
        assert compiled == outcome(records, queue, offset_delta, tags)


@settings(max_examples=300)
@given(
    BODIES,
    st.sampled_from([0, 0, 0, 5]),
    st.frozensets(st.sampled_from(["a", "b", "\u00e9", "\ufffd", "a\x01b", ""])),
)
@example(b"", 0, ALL)
def test_generated_records(records: bytes, offset_delta: int, tags: frozenset[str]) -> None:
    check(records, offset_delta=offset_delta, tags=tags)


@given(BODIES.filter(bool), st.data())
def test_truncated_records(records: bytes, data: st.DataObject) -> None:
    check(records[: data.draw(st.integers(0, len(records) - 1))])


@settings(max_examples=400)
@given(BODIES.filter(bool), st.data())
def test_mutated_records(records: bytes, data: st.DataObject) -> None:
    mutated = bytearray(records)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        mutated[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    check(bytes(mutated))


@given(st.binary(max_size=400))
def test_random_bytes(records: bytes) -> None:
    check(records)
    check(b"\0\0\0\x60" + MAGIC + records)


def test_each_byte_of_a_record_changed() -> None:
    record = golden_records()[0]
    topic_at = 88 + int.from_bytes(record[84:88], "big")
    topic = record[topic_at + 1 : topic_at + 1 + record[topic_at]].decode()
    queue = MessageQueue(topic, "broker-a", int.from_bytes(record[12:16], "big"))
    for position in range(len(record)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, record[position] ^ 1):
            check(record[:position] + bytes((value,)) + record[position + 1 :] + record, queue)
        check(record + record[:position], queue)


@pytest.mark.parametrize("length", [32767, 32768, 65535])
def test_properties_of_any_length(length: int) -> None:
    record = encode_record(
        Record("TopicA", 3, 0, 0, 0, Host(bytes(4), 1), 0, Host(bytes(4), 1), b"")
    )
    longer = (len(record) + length).to_bytes(4, "big") + record[4:-2]
    check(longer + length.to_bytes(2, "big") + bytes(length))


def test_golden_records() -> None:
    records = golden_records()
    assert len(records) > 100
    whole = b"".join(records)
    for queue_id in range(4):
        check(whole, MessageQueue("TopicTest", "broker-a", queue_id))
        check(whole, MessageQueue("TopicTest", "broker-a", queue_id), tags=frozenset({"TagA"}))
        check(whole, MessageQueue("x" * 200, "broker-a", queue_id))


@pytest.mark.parametrize("start", [-1, -(2**40)])
def test_a_negative_start_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match="cannot start"):
        core_records.add_messages([], b"x" * 200, start, tuple, QUEUE, 3, "T", b"\x01T", b"", ALL)


def test_a_start_after_the_end_adds_nothing() -> None:
    messages: list[object] = []
    added = core_records.add_messages(
        messages, b"", 2**40, tuple, QUEUE, 3, "T", b"\x01T", b"", ALL
    )
    assert (added, messages) == (2**40, [])
