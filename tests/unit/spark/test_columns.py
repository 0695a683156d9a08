"""RecordColumns gives the same values as the record decoder."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.errors import ProtocolError
from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import decode_properties
from goddard.protocol.record import Host, Record, decode_record, encode_record
from goddard.spark.columns import COLUMNS, RecordColumns, record_starts

_HOSTS = st.one_of(
    st.builds(Host, st.binary(min_size=4, max_size=4), st.integers(0, 65_535)),
    st.builds(Host, st.binary(min_size=16, max_size=16), st.integers(0, 65_535)),
)
_TIMES = st.integers(0, 2_000_000_000_000)
_NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "TAGSX", "é"])
_VALUES = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=6)
# Also what our encoder never writes: equal names, empty names or values, no final separator.
_PROPERTIES = st.lists(st.tuples(_NAMES, _VALUES), max_size=5).flatmap(
    lambda pairs: st.sampled_from(
        [
            "\x02".join(f"{name}\x01{value}" for name, value in pairs),
            "".join(f"{name}\x01{value}\x02" for name, value in pairs),
            "\x02" + "".join(f"{name}\x01{value}\x02" for name, value in pairs) + "\x01\x02x",
        ]
    )
)
_RECORDS = st.builds(
    Record,
    topic=st.sampled_from(["T", "TopicTest", "é" * 20, "t" * 200]),
    queue_id=st.integers(0, 1000),
    queue_offset=st.integers(0, 2**62),
    physical_offset=st.integers(0, 2**62),
    store_timestamp_ms=_TIMES,
    store_host=_HOSTS,
    born_timestamp_ms=_TIMES,
    born_host=_HOSTS,
    body=st.binary(max_size=40),
    properties=_PROPERTIES.map(str.encode),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 4, 8, 12]),
    reconsume_times=st.integers(0, 2**31 - 1),
    prepared_transaction_offset=st.integers(-1, 2**62),
)


def _rows(data: bytes, broker_name: str | None = "b") -> list[dict[str, Any]]:
    return (
        RecordColumns(data, record_starts(data), broker_name=broker_name)
        .batch(list(COLUMNS))
        .to_pylist()
    )


def _expected(record: Record) -> dict[str, Any]:
    properties = decode_properties(record.properties)
    by_offset = offset_message_id(record.store_host, record.physical_offset)
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "brokerName": "b",
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "msgId": properties.get("UNIQ_KEY", by_offset),
        "offsetMsgId": by_offset,
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": record.body,
        "properties": properties,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp_ms,
        "storeTimestamp": record.store_timestamp_ms,
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "transaction": ["none", "prepared", "commit", "rollback"][record.sys_flag >> 2 & 3],
    }


@given(st.lists(_RECORDS, max_size=8))
def test_columns_equal_decoded_records(records: list[Record]) -> None:
    data = b"".join(encode_record(record) for record in records)
    rows = _rows(data)
    position = 0
    for row in rows:
        record, position = decode_record(data, position)
        for name in ("bornTimestamp", "storeTimestamp"):
            row[name] = round(row[name].timestamp() * 1000)
        row["properties"] = dict(row["properties"])
        assert row == _expected(record)
    assert position == len(data)
    assert len(rows) == len(records)


def _record(**changes: Any) -> bytes:
    host = Host.parse("127.0.0.1:10911")
    values: dict[str, Any] = {
        "topic": "TopicTest",
        "queue_id": 1,
        "queue_offset": 2,
        "physical_offset": 3,
        "store_timestamp_ms": 4,
        "store_host": host,
        "born_timestamp_ms": 5,
        "born_host": host,
        "body": b"body",
    }
    return encode_record(Record(**values | changes))


@pytest.mark.parametrize("kind", list(CompressionKind))
def test_compressed_and_plain_bodies_in_one_batch(kind: CompressionKind) -> None:
    text = b"many words " * 1000
    flag = with_compression(0, kind)
    data = _record() + _record(body=compress(text, kind), sys_flag=flag) + _record(body=b"last")
    assert [row["body"] for row in _rows(data)] == [b"body", text, b"last"]


def test_invalid_compressed_body_raises_protocol_error() -> None:
    data = _record(body=b"no zlib stream", sys_flag=with_compression(0, CompressionKind.ZLIB))
    with pytest.raises(ProtocolError):
        _rows(data)


def test_invalid_utf8_becomes_replacement_characters() -> None:
    (row,) = _rows(_record(properties=b"TAGS\x01a\xff\x02KEYS\x01k\x02"))
    assert (row["tags"], row["keys"]) == ("a\ufffd", "k")


def test_timestamps_outside_the_calendar_are_null() -> None:
    times = [row["bornTimestamp"] for row in _rows(_record(born_timestamp_ms=2**62) + _record())]
    assert times[0] is None
    assert times[1] is not None


def test_broker_name_is_null_if_unknown() -> None:
    assert _rows(_record(), broker_name=None)[0]["brokerName"] is None


def test_batch_has_only_the_requested_columns() -> None:
    data = _record()
    batch = RecordColumns(data, record_starts(data), broker_name="b").batch(["tags", "body"])
    assert batch.schema.names == ["tags", "body"]


def test_filter_keeps_rows_of_the_mask() -> None:
    data = _record(queue_offset=7) + _record(queue_offset=8) + _record(queue_offset=9)
    columns = RecordColumns(data, record_starts(data), broker_name="b")
    kept = columns.filter(columns.queue_offsets != 8)
    assert kept.batch(["queueOffset"]).column(0).to_pylist() == [7, 9]


@given(st.data())
def test_damaged_records_raise_only_protocol_error(data: st.DataObject) -> None:
    raw = bytearray(_record(properties=b"TAGS\x01a\x02") + _record())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(ProtocolError):
        _rows(cut)


@pytest.mark.parametrize("max_body_bytes", [1, 2_000, 2_500, 10**9])
def test_batches_are_split_by_decompressed_size(max_body_bytes: int) -> None:
    flag = with_compression(0, CompressionKind.ZLIB)
    bodies = [bytes([65 + number]) * 1_000 for number in range(9)]
    data = b"".join(
        _record(
            body=compress(body, CompressionKind.ZLIB) if number % 3 else body,
            sys_flag=flag if number % 3 else 0,
            queue_offset=number,
        )
        for number, body in enumerate(bodies)
    )
    columns = RecordColumns(data, record_starts(data))
    batches = list(columns.batches(["queueOffset", "body"], max_body_bytes=max_body_bytes))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == bodies
    assert [row["queueOffset"] for row in rows] == list(range(9))
    assert len(batches) == {1: 6, 2_000: 3, 2_500: 3, 10**9: 1}[max_body_bytes]
    # Without bodies there is nothing to decompress.
    assert len(list(columns.batches(["queueOffset"], max_body_bytes=1))) == 1


def test_decompression_error_names_the_queue_offset() -> None:
    flag = with_compression(0, CompressionKind.LZ4)
    data = _record() + _record(body=b"no lz4", sys_flag=flag, queue_offset=4711)
    with pytest.raises(
        ProtocolError, match="message with the queue offset 4711: a compressed body"
    ):
        list(RecordColumns(data, record_starts(data)).batches(["body"]))
