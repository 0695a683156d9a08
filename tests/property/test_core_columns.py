"""The compiled columns of stored records are those that ``RecordColumns`` decodes in Python.

Records are generated, taken from a golden store of RocketMQ, truncated and mutated.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.client.values import MessageQueue
from goddard.core import IS_COMPILED
from goddard.errors import ProtocolError
from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.message import SysFlag
from goddard.protocol.record import MAGIC_V2, Host, Record, encode_record
from goddard.spark import compiled
from goddard.spark.columns import COLUMNS, RecordColumns, record_starts
from goddard.spark.inner_batches import unwrap
from goddard.spark.reading import pull
from tests.property.test_core_records import golden_records

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

if IS_COMPILED:
    from goddard.core import columns as core_columns

ALL = list(COLUMNS)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Those of Spark's range, and some outside.
TIMES = st.one_of(
    st.integers(-62_135_596_800_000, 253_402_300_799_999),
    st.sampled_from([-62_135_596_800_001, 253_402_300_800_000, 2**63 - 1]),
)
HOSTS = st.one_of(
    st.just(Host(b"\x7f\0\0\1", 10911)),
    st.builds(Host, st.binary(min_size=4, max_size=4), st.integers(0, 65_535)),
    st.builds(Host, st.binary(min_size=16, max_size=16), st.integers(0, 65_535)),
)
PROPERTIES = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from([
            b"TAGS\x01a", b"TAGS\x01b", b"TAGS\x01", b"TAGS", b"KEYS\x01k", b"KEYSX\x01k", b"",
            b"TAGS\x01\xc3\xa9", b"TAGS\x01\xff", b"\xff\x01a", b"x\x01a\x01b", b"\x01v",
            b"UNIQ_KEY\x017F0000010000", b"UNIQ_KEY\x01", b"a\x01b",
        ]),
        max_size=70,
    ).map(b"\x02".join),
)  # fmt: skip
RECORDS = st.builds(
    Record,
    topic=st.sampled_from(["T", "TopicTest", "é" * 20, "t" * 127, "t" * 200]),
    queue_id=st.integers(-(2**31), 2**31 - 1),
    queue_offset=INT64,
    physical_offset=INT64,
    store_timestamp_ms=TIMES,
    store_host=HOSTS,
    born_timestamp_ms=TIMES,
    born_host=HOSTS,
    body=st.binary(max_size=40),
    properties=PROPERTIES,
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 4, 8, 12, int(SysFlag.INNER_BATCH), int(SysFlag.NEED_UNWRAP)]),
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
    prepared_transaction_offset=INT64,
)
NAMES = st.lists(st.sampled_from(ALL), unique=True, min_size=1)


def in_python(data: bytes, names: Sequence[str], topic: str | None) -> pa.RecordBatch:
    columns = RecordColumns(*unwrap(data, record_starts(data)), broker_name="b", topic=topic)
    return columns.batch(names)


def check(data: bytes, names: Sequence[str] = ALL, topic: str | None = None) -> bool:
    """Compare; whether compiled code decoded the records."""
    found = compiled.decode_batch([data], names, broker_name="b", topic=topic)
    if found is not None:
        found.validate(full=True)
        expected = in_python(data, names, topic)
        assert found.schema.equals(expected.schema)
        assert found.to_pylist() == expected.to_pylist()
    return found is not None


@settings(max_examples=300)
@given(st.lists(RECORDS, max_size=6), NAMES, st.sampled_from([None, "é"]))
def test_generated_records(records: list[Record], names: list[str], topic: str | None) -> None:
    check(b"".join(map(encode_record, records)), names, topic)


@settings(max_examples=300)
@given(
    st.lists(RECORDS, min_size=1, max_size=3).map(
        lambda found: b"".join(map(encode_record, found))
    ),
    st.data(),
)
def test_damaged_records(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    at = draw.draw(st.integers(0, len(data) - 1))
    damaged[at] = draw.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, damaged[at] ^ 0x10]))
    is_python_able = True
    try:
        in_python(bytes(damaged), ALL, None)
    except ProtocolError:
        is_python_able = False
    assert not check(bytes(damaged)) or is_python_able


def test_every_truncation_is_left_to_python() -> None:
    first = plain(properties=b"TAGS\x01a\x02")
    for length in range(1, 2 * len(first)):
        assert check((first + first)[:length]) == (length == len(first))


def test_golden_records() -> None:
    records = [record for record in golden_records() if not record[39] & SysFlag.COMPRESSED]
    assert len(records) > 100
    assert all(map(check, records))
    assert not any(map(check, set(golden_records()) - set(records)))
    assert check(b"".join(records))
    assert check(b"".join(records), topic="T")


def plain(**changes: Any) -> bytes:
    host = Host.parse("127.0.0.1:10911")
    values: dict[str, Any] = {
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 0,
        "store_timestamp_ms": 0,
        "store_host": host,
        "born_timestamp_ms": 0,
        "born_host": host,
        "body": b"body",
    }
    return encode_record(Record(**values | changes))


def test_kinds_of_records_that_are_compiled() -> None:
    v6 = Host(bytes(15) + b"\1", 10911)
    assert check(plain())
    assert check(plain(born_host=v6, store_host=v6))
    long_topic = plain(topic="t" * 200)
    assert int.from_bytes(long_topic[4:8], "big") == MAGIC_V2
    assert check(long_topic)
    assert check(plain(properties=b"\x02".join(b"p%d\x01v" % number for number in range(64))))
    assert check(plain(properties=b"TAGS\x01\xff"))


def test_kinds_of_records_that_are_left_to_python() -> None:
    assert not check(plain(sys_flag=int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP), body=b""))
    assert not check(plain(born_timestamp_ms=2**62))
    assert not check(plain(properties=b"\x02".join(b"p%d\x01v" % number for number in range(65))))
    body = compress(b"x" * 100, CompressionKind.ZLIB, 5)
    flag = with_compression(0, CompressionKind.ZLIB)
    assert not check(plain(body=body, sys_flag=flag))
    # Other columns do not need the body.
    assert check(plain(body=body, sys_flag=flag), ["keys", "sysFlag"])


def selected(
    data: bytes,
    starts: Sequence[int],
    topics: Sequence[str] = ("T",),
    times: tuple[int | None, int | None] = (None, None),
) -> pa.RecordBatch | None:
    return compiled.decode_selected(
        data,
        starts,
        ALL,
        broker_name=None,
        is_selected=lambda topic: topic in topics,
        start_ms=times[0],
        end_ms=times[1],
    )


@given(
    st.lists(RECORDS, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.lists(st.sampled_from(["T", "TopicTest", "é" * 20, "t" * 200]), unique=True),
    st.tuples(st.none() | TIMES, st.none() | TIMES),
)
def test_selected_records(
    records: list[Record],
    is_chosen: list[bool],
    topics: list[str],
    times: tuple[int | None, int | None],
) -> None:
    data = b"".join(map(encode_record, records))
    starts = list(itertools.compress(record_starts(data), is_chosen))
    found = selected(data, starts, topics, times)
    if found is not None:
        found.validate(full=True)
        columns = RecordColumns(data, starts)
        mask = columns.topic_mask(lambda topic: topic in topics)
        if times[0] is not None:
            mask &= columns.store_times_ms >= times[0]
        if times[1] is not None:
            mask &= columns.store_times_ms < times[1]
        assert found.to_pylist() == columns.filter(mask).batch(ALL).to_pylist()


def test_topics_that_alternate() -> None:
    data = b"".join(plain(topic=topic) for topic in ("T", "U", "T", "TT", "U"))
    found = selected(data, record_starts(data), ["T", "TT"])
    assert found is not None
    assert found.column("topic").to_pylist() == ["T", "T", "TT"]


def test_without_an_end_every_store_time_is_selected() -> None:
    # Selected, and left to Python, because Spark has no such time.
    assert selected(plain(store_timestamp_ms=2**63 - 1), [0]) is None


@pytest.mark.parametrize("starts", [[-1], [0, 0], [1], [94], [95], [2**62], [-(2**63)]])
def test_wrong_positions_are_refused(starts: list[int]) -> None:
    assert selected(plain(body=b""), starts) is None


@given(
    st.lists(st.integers(0, 6), max_size=6),
    st.integers(0, 4),
    st.integers(0, 5),
    st.booleans(),
)
def test_counts_of_records(offsets: list[int], begin: int, size: int, is_filtered: bool) -> None:
    end = begin + size
    data = b"".join(plain(queue_offset=offset) for offset in offsets)
    is_each_once = offsets == list(range(begin, end))
    is_within = all(begin <= offset < end for offset in offsets)
    is_ascending = offsets == sorted(set(offsets))
    count = core_columns.count_records(data, begin, end, is_filtered)
    if is_filtered:
        assert count == (len(offsets) if is_within and is_ascending else -1)
    else:
        assert count == (len(offsets) if is_each_once else -1)


@given(st.binary(max_size=200), st.booleans())
def test_counts_of_other_bytes(data: bytes, is_filtered: bool) -> None:
    assert core_columns.count_records(data, 0, 1, is_filtered) in ((0, -1) if not data else (-1,))


def test_numbers_outside_of_the_fixed_part_are_refused() -> None:
    rows = core_columns.Rows()
    for at in (-1, 45, 2**31 - 1):
        with pytest.raises(ValueError, match="no number"):
            rows.int32_at(at)
    with pytest.raises(ValueError, match="no number"):
        rows.int64_at(41)
    assert rows.add(plain())
    with pytest.raises(ValueError, match="text of a host"):
        rows.hosts(False, lambda _: b"x" * 55)


def test_pulled_records_fall_back_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MessageQueue("T", "b", 0)
    pulled = pull.PulledRecords([plain(queue_offset=1), plain(properties=b"TAGS\x01a")], 2, 0)

    def rows(tags: Sequence[str]) -> list[list[dict[str, object]]]:
        return [batch.to_pylist() for batch in pulled.batches(queue, ["queueOffset", "body"], tags)]

    outcomes = [rows(()), rows(["a"]), rows(["b"])]
    monkeypatch.setattr(compiled, "IS_COMPILED", False)
    assert outcomes == [rows(()), rows(["a"]), rows(["b"])]
    assert len(outcomes[0][0]) == 2
    assert len(outcomes[1][0]) == 1
