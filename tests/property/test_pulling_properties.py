"""The fast decoder of pulled records reads what the protocol's own decoder reads, or refuses."""

from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.client.consume.pull import decode_messages
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.errors import ProtocolError
from goddard.protocol.message import (
    BatchEntry,
    SysFlag,
    decode_properties,
    encode_batch,
    join_properties,
)
from goddard.protocol.record import Host, Record, encode_record, iter_records

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
QUEUE = MessageQueue("TopicA", "broker-a", 3)
COMPRESSED = int(SysFlag.COMPRESSED)
WRAPPED = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)

hosts = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(0, 0xFFFF),
)
topics = st.one_of(
    st.just(QUEUE.topic), st.text(st.characters(codec="utf-8"), min_size=1, max_size=300)
)
records = st.builds(
    Record,
    topic=topics,
    queue_id=st.just(QUEUE.queue_id),
    queue_offset=INT64,
    physical_offset=INT64,
    store_timestamp_ms=INT64,
    store_host=hosts,
    born_timestamp_ms=INT64,
    born_host=hosts,
    body=st.binary(max_size=200),
    properties=st.binary(max_size=200),
    flag=INT32,
    # Other tests cover compressed bodies and wrapped batches.
    sys_flag=INT32.map(lambda flag: flag & ~COMPRESSED & ~WRAPPED),
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
)


def as_record(message: ReceivedMessage) -> Record:
    return Record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        store_timestamp_ms=message.store_timestamp_ms,
        store_host=Host.parse(message.store_host),
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=Host.parse(message.born_host),
        body=message.body,
        properties=message.raw_properties(),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body_crc=message.body_crc,
    )


@given(st.lists(records, max_size=5))
def test_messages_equal_the_records(written: list[Record]) -> None:
    body = b"".join(encode_record(record) for record in written)
    messages = decode_messages(body, QUEUE)
    assert [as_record(message) for message in messages] == list(iter_records(body))
    assert all(message.queue == QUEUE for message in messages)


@given(records, st.dictionaries(st.sampled_from(["MIN_OFFSET", "MAX_OFFSET"]), st.just("12")))
def test_added_properties_replace_those_of_the_record(record: Record, more: dict[str, str]) -> None:
    added = b"".join(f"{name}\x01{value}\x02".encode() for name, value in more.items())
    (message,) = decode_messages(encode_record(record), QUEUE, added)
    expected = decode_properties(join_properties(record.properties, added))
    assert message.properties == expected
    assert message.properties == decode_properties(record.properties) | more


def refused(body: bytes) -> bool:
    try:
        decode_messages(body, QUEUE)
    except ProtocolError:
        return True
    return False


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_truncated_records_are_refused(written: list[Record], data: st.DataObject) -> None:
    parts = [encode_record(record) for record in written]
    body = b"".join(parts)
    cut = data.draw(st.integers(1, len(body) - 1))
    ends = {sum(map(len, parts[:count])) for count in range(len(parts))}
    assert refused(body[:cut]) == (cut not in ends)


@settings(max_examples=300)
@given(records, st.data())
def test_damaged_records_are_refused_or_read_as_by_the_protocol(
    record: Record, data: st.DataObject
) -> None:
    """Whichever byte changes, the fast decoder and the general one agree."""
    body = bytearray(encode_record(record))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    raw = bytes(body)
    try:
        expected = list(iter_records(raw, check_crc=False))
    except ProtocolError:
        assert refused(raw)
        return
    if any(each.sys_flag & (COMPRESSED | WRAPPED) for each in expected):
        return
    for each in expected:
        # The record of a static topic's queue has the broker's own queue id.
        each.queue_id = QUEUE.queue_id
    assert [as_record(message) for message in decode_messages(raw, QUEUE)] == expected


@given(st.binary(max_size=400))
def test_garbage_is_refused(body: bytes) -> None:
    assert refused(body) == bool(body)


@given(
    records, st.lists(st.builds(BatchEntry, st.binary(max_size=50), st.binary(max_size=50), INT32))
)
def test_a_wrapped_batch_becomes_its_messages(record: Record, entries: list[BatchEntry]) -> None:
    record.sys_flag |= WRAPPED
    record.body = encode_batch(entries)
    messages = decode_messages(encode_record(record), QUEUE, offset_delta=5)
    made = [BatchEntry(m.body, m.raw_properties(), m.flag) for m in messages]
    assert made == entries
    first = record.queue_offset + 5
    assert [m.queue_offset for m in messages] == list(range(first, first + len(entries)))
