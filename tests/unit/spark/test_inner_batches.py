"""Expansion of inner batches into their messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.client.consume.pull import decode_messages
from goddard.client.values import MessageQueue
from goddard.errors import ProtocolError
from goddard.protocol.compression import CompressionKind, compress, with_compression
from goddard.protocol.message import BatchEntry, SysFlag, encode_batch
from goddard.protocol.record import Host, Record, encode_record
from goddard.spark.columns import RecordColumns, record_starts
from goddard.spark.inner_batches import unwrap

_INNER_BATCH = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
_QUEUE = MessageQueue("T", "b", 3)
_NAMES = ["queueId", "queueOffset", "msgId", "tags", "body", "flag", "sysFlag", "storeHost"]
_ENTRIES = st.lists(
    st.builds(BatchEntry, st.binary(max_size=9), st.just(b"TAGS\x01a\x02"), st.integers(0, 9)),
    min_size=1,
    max_size=4,
)


def _record(body: bytes, queue_offset: int, sys_flag: int = 0) -> bytes:
    host = Host.parse("127.0.0.1:10911")
    return encode_record(
        Record("T", 3, queue_offset, 77, 5, host, 4, host, body, b"TAGS\x01a\x02", 1, sys_flag)
    )


@given(st.lists(st.one_of(_ENTRIES, st.binary(max_size=9)), max_size=4), st.booleans())
def test_rows_equal_decoded_messages(
    stored: list[list[BatchEntry] | bytes], is_compressed: bool
) -> None:
    data, offset = b"", 5
    for each in stored:
        if isinstance(each, bytes):
            data += _record(each, offset)
            offset += 1
            continue
        body, flag = encode_batch(each), _INNER_BATCH
        if is_compressed:
            flag = with_compression(flag, CompressionKind.ZLIB)
            body = compress(body, CompressionKind.ZLIB)
        data += _record(body, offset, flag)
        offset += len(each)
    columns = RecordColumns(*unwrap(data, record_starts(data)), broker_name="b")
    rows = columns.batch(_NAMES).to_pylist() if len(columns) else []
    assert rows == [
        {
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "msgId": message.message_id,
            "tags": message.tags,
            "body": message.body,
            "flag": message.flag,
            "sysFlag": message.sys_flag,
            "storeHost": message.store_host,
        }
        for message in decode_messages(data, _QUEUE)
    ]
    assert [row["queueOffset"] for row in rows] == list(range(5, offset))


def test_malformed_batch_is_refused() -> None:
    data = _record(b"no batch", 0, _INNER_BATCH)
    with pytest.raises(ProtocolError):
        unwrap(data, record_starts(data))
