import pytest

from goddard.errors import ProtocolError
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import decode_properties
from goddard.protocol.record import (
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    Host,
    Record,
    decode_record,
    encode_blank,
    encode_record,
    iter_records,
    read_summary,
    record_size,
)

# Decoded by Java.
GOLDEN = bytes.fromhex(
    "00000088daa320a73610a6860000000300000005000000000000004d000000000001e240000000000000018bcfe568"
    "010a01020300009c400000018bcfe568020a01020300002a9f0000000200000000000000630000000568656c6c6f06"
    "546f706963410022544147530154616741024b455953016b31206b3202554e49515f4b45590141424302"
)
V4 = Host.parse("10.1.2.3:10911")
V6 = Host.parse("[2001:db8::1]:10911")


def make_record(
    topic: str = "TopicA", body: bytes = b"hello", born: Host = V4, store: Host = V4
) -> Record:
    return Record(
        topic=topic,
        queue_id=3,
        queue_offset=77,
        physical_offset=123456,
        store_timestamp_ms=1700000000002,
        store_host=store,
        born_timestamp_ms=1700000000001,
        born_host=born,
        body=body,
        properties=b"TAGS\x01TagA\x02",
        flag=5,
        reconsume_times=2,
        prepared_transaction_offset=99,
    )


def changed(raw: bytes, position: int, value: bytes) -> bytes:
    return raw[:position] + value + raw[position + len(value) :]


def test_the_golden_record() -> None:
    record, end = decode_record(GOLDEN)
    assert end == len(GOLDEN) == 136
    assert (record.topic, record.body, record.flag) == ("TopicA", b"hello", 5)
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (3, 77, 123456)
    assert (record.born_timestamp_ms, str(record.born_host)) == (1700000000001, "10.1.2.3:40000")
    assert (record.store_timestamp_ms, str(record.store_host)) == (1700000000002, "10.1.2.3:10911")
    assert (record.reconsume_times, record.prepared_transaction_offset) == (2, 99)
    assert decode_properties(record.properties) == {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "ABC",
    }
    assert encode_record(record) == GOLDEN
    assert offset_message_id(record.store_host, record.physical_offset) == (
        "0A01020300002A9F000000000001E240"
    )


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
@pytest.mark.parametrize("topic", ["T", "t" * 127, "t" * 128, "t" * 255])
def test_hosts_and_versions(born: Host, store: Host, topic: str) -> None:
    record = make_record(topic, born=born, store=store)
    raw = encode_record(record)
    assert len(raw) == record_size(
        5, len(topic), len(record.properties), is_born_v6=born.is_v6, is_store_v6=store.is_v6
    )
    magic = MAGIC_V1 if len(topic) <= 127 else MAGIC_V2
    assert raw[4:8] == magic.to_bytes(4, "big")
    decoded, end = decode_record(raw)
    assert end == len(raw)
    assert (decoded.born_host, decoded.store_host, decoded.topic) == (born, store, topic)
    assert bool(decoded.sys_flag & BORN_HOST_V6) == born.is_v6
    assert bool(decoded.sys_flag & STORE_HOST_V6) == store.is_v6
    summary = read_summary(b"before" + raw, 6)
    assert summary.topic == topic
    assert summary.body_position == 6 + raw.index(b"hello")


def test_host_bits_are_set_from_the_hosts() -> None:
    record = make_record()
    record.sys_flag = BORN_HOST_V6 | STORE_HOST_V6 | 0x4
    decoded, _ = decode_record(encode_record(record))
    assert decoded.sys_flag == 0x4


def test_fixed_part_has_91_bytes() -> None:
    assert record_size(0, 0, 0) == 91


def test_positions_and_trailing_bytes() -> None:
    buffer = b"\x00\x00" + GOLDEN + GOLDEN + b"tail"
    _, end = decode_record(memoryview(buffer), 2)
    record, end = decode_record(buffer, end)
    assert (record.body, end) == (b"hello", 2 + 2 * 136)
    assert [r.body for r in iter_records(GOLDEN * 3)] == [b"hello"] * 3
    assert list(iter_records(b"")) == []
    with pytest.raises(ProtocolError):
        list(iter_records(GOLDEN + b"tail"))
    with pytest.raises(ProtocolError):
        decode_record(buffer, -1)
    with pytest.raises(ProtocolError):
        decode_record(buffer, len(buffer))
    with pytest.raises(ProtocolError):
        decode_record(buffer, len(buffer) + 100)


def test_a_wrong_crc() -> None:
    damaged = changed(GOLDEN, 88, b"j")
    with pytest.raises(ProtocolError, match="CRC"):
        decode_record(damaged)
    record, _ = decode_record(damaged, check_crc=False)
    assert record.body == b"jello"
    assert encode_record(record) == damaged


def test_the_crc_of_an_empty_body_is_ignored() -> None:
    raw = changed(encode_record(make_record(body=b"")), 8, b"\x00\x00\x00\x07")
    record, _ = decode_record(raw)
    assert (record.body, record.body_crc) == (b"", 7)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, "00000087", "cannot end"),
        (0, "00000089", "does not fit"),
        (0, "00000000", "does not fit"),
        (0, "ffffffff", "does not fit"),
        (0, "7fffffff", "does not fit"),
        (4, "cbd43194", "magic"),
        (4, "00000000", "magic"),
        (36, "00000030", "."),
        (52, "00010000", "port"),
        (64 + 4, "ffffffff", "port"),
        (84, "ffffffff", "body"),
        (84, "7fffffff", "body"),
        (84, "0000002f", "does not fit"),
        (93, "ff", "topic"),
        (93, "7f", "topic"),
        (94, "ff", "UTF-8"),
        (100, "ffff", "properties"),
        (100, "7fff", "properties"),
        (100, "0021", "properties"),
    ],
)
def test_damaged_fields(position: int, value: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_record(changed(GOLDEN, position, bytes.fromhex(value)), check_crc=False)


def test_a_body_above_the_limit() -> None:
    decode_record(GOLDEN, max_body_bytes=5)
    with pytest.raises(ProtocolError, match="body"):
        decode_record(GOLDEN, max_body_bytes=4)
    with pytest.raises(ProtocolError, match="body"):
        read_summary(GOLDEN, max_body_bytes=4)


def test_records_that_cannot_be_encoded() -> None:
    with pytest.raises(ProtocolError, match="topic"):
        encode_record(make_record("t" * 32768))
    too_many_properties = make_record()
    too_many_properties.properties = b"x" * 32768
    with pytest.raises(ProtocolError, match="properties"):
        encode_record(too_many_properties)
    wide = make_record()
    wide.queue_id = 2**31
    with pytest.raises(ProtocolError, match="number"):
        encode_record(wide)
    with pytest.raises(ProtocolError, match="address"):
        encode_record(make_record(born=Host(b"\x01", 1)))


def test_blank() -> None:
    blank = encode_blank(100)
    assert blank == bytes.fromhex("00000064cbd43194")
    assert int.from_bytes(blank[4:], "big") == MAGIC_BLANK
    with pytest.raises(ProtocolError, match="magic"):
        decode_record(blank + bytes(100))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("127.0.0.1:10911", "127.0.0.1:10911"),
        ("[::1]:65535", "[::1]:65535"),
        ("::1:80", "[::1]:80"),
        ("0.0.0.0:0", "0.0.0.0:0"),
    ],
)
def test_hosts_as_text(text: str, written: str) -> None:
    assert str(Host.parse(text)) == written
    assert Host.parse(written) == Host.parse(text)


@pytest.mark.parametrize(
    "text", ["", ":", "1.2.3.4", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "1.2.3:1", "host:1"]
)
def test_invalid_hosts_are_rejected(text: str) -> None:
    with pytest.raises(ProtocolError):
        Host.parse(text)
