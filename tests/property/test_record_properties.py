"""Records: round trips; a damaged record is refused or is another valid record."""

from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.errors import ProtocolError
from goddard.protocol.record import (
    Host,
    Record,
    decode_record,
    encode_record,
    iter_records,
    read_summary,
    record_size,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
UTF8 = st.text(st.characters(codec="utf-8"), max_size=300)

hosts = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(0, 0xFFFF),
)
records = st.builds(
    Record,
    topic=UTF8,
    queue_id=INT32,
    queue_offset=INT64,
    physical_offset=INT64,
    store_timestamp_ms=INT64,
    store_host=hosts,
    born_timestamp_ms=INT64,
    born_host=hosts,
    body=st.binary(max_size=200),
    properties=st.binary(max_size=200),
    flag=INT32,
    sys_flag=INT32,
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
)


@given(records)
def test_records_round_trip(record: Record) -> None:
    raw = encode_record(record)
    assert len(raw) == record_size(
        len(record.body),
        len(record.topic.encode()),
        len(record.properties),
        is_born_v6=record.born_host.is_v6,
        is_store_v6=record.store_host.is_v6,
    )
    decoded, end = decode_record(raw)
    assert end == len(raw)
    assert encode_record(decoded) == raw
    record.sys_flag = decoded.sys_flag
    record.body_crc = decoded.body_crc
    assert decoded == record


@given(records, st.binary(max_size=50), st.binary(max_size=50))
def test_the_summary_equals_the_record(record: Record, before: bytes, after: bytes) -> None:
    raw = encode_record(record)
    buffer = memoryview(before + raw + after)
    decoded, end = decode_record(buffer, len(before))
    summary = read_summary(buffer, len(before))
    assert end == len(before) + summary.size == len(before) + len(raw)
    assert summary.topic == decoded.topic
    assert summary.properties == decoded.properties
    assert summary.queue_id == decoded.queue_id
    assert summary.queue_offset == decoded.queue_offset
    assert summary.physical_offset == decoded.physical_offset
    assert summary.sys_flag == decoded.sys_flag
    assert summary.born_timestamp_ms == decoded.born_timestamp_ms
    assert summary.store_timestamp_ms == decoded.store_timestamp_ms
    assert summary.reconsume_times == decoded.reconsume_times
    assert summary.prepared_transaction_offset == decoded.prepared_transaction_offset
    assert summary.body_crc == decoded.body_crc
    body = buffer[summary.body_position : summary.body_position + summary.body_length]
    assert body == decoded.body


@given(st.lists(records, max_size=5))
def test_consecutive_records(many: list[Record]) -> None:
    raws = [encode_record(record) for record in many]
    assert [encode_record(record) for record in iter_records(b"".join(raws))] == raws


@given(records, st.data())
def test_truncated_records_are_refused(record: Record, data: st.DataObject) -> None:
    raw = encode_record(record)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    for read in (decode_record, read_summary):
        try:
            read(cut)
        except ProtocolError:
            continue
        raise AssertionError("a cut record was read")


@settings(max_examples=300)
@given(records, st.data())
def test_a_changed_byte_gives_an_error_or_another_record(
    record: Record, data: st.DataObject
) -> None:
    raw = bytearray(encode_record(record))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    try:
        decoded, end = decode_record(raw, check_crc=False)
    except ProtocolError:
        return
    assert end == len(raw)
    decoded.body_crc = int.from_bytes(raw[8:12], "big", signed=True)
    # Only the V2 magic of a topic that fits V1 is not kept.
    if len(decoded.topic.encode()) > 127 or raw[7] == 0xA7:
        assert encode_record(decoded) == raw


@settings(max_examples=300)
@given(st.binary(max_size=300), st.booleans())
def test_garbage_is_refused(garbage: bytes, has_magic: bool) -> None:
    if has_magic:
        garbage = len(garbage).to_bytes(4, "big") + bytes.fromhex("daa320a7") + garbage
    try:
        decoded, end = decode_record(garbage, check_crc=False)
    except ProtocolError:
        return
    assert has_magic
    assert encode_record(decoded) == garbage[:end]
