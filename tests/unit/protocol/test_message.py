import pytest

from goddard.errors import ProtocolError
from goddard.protocol.message import (
    PROPERTY_TAGS,
    RESERVED_PROPERTIES,
    BatchEntry,
    Message,
    SysFlag,
    TransactionType,
    decode_batch,
    decode_properties,
    encode_batch,
    encode_properties,
    find_property,
    format_properties,
    join_properties,
    transaction_type,
    with_transaction_type,
)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("a\x01b\x02a\x01\x02", {"a": "b"}),
        ("\x01b\x02a\x01\x02ab\x02\x02\x02", {}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("\u4e2d\x01\N{GRINNING FACE}\x02", {"\u4e2d": "\N{GRINNING FACE}"}),
    ],
)
def test_reading_properties(raw: str, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected
    assert decode_properties(raw.encode()) == expected
    assert decode_properties(memoryview(raw.encode())) == expected
    for name in ("a", "c", "ab", "b", "\u4e2d"):
        found = find_property(raw.encode(), name.encode())
        assert (found.decode() if found is not None else None) == expected.get(name)


def test_malformed_utf8_is_replaced() -> None:
    assert decode_properties(b"a\x01\xff\x02") == {"a": "\ufffd"}


def test_writing_properties() -> None:
    assert encode_properties({"a": "b", "": "x", "y": "", "c": "d"}) == b"a\x01b\x02c\x01d\x02"
    assert format_properties({"\u4e2d": "x"}) == "\u4e2d\x01x\x02"
    assert encode_properties({"a": "\ud800"}) == b"a\x01?\x02"
    assert encode_properties({}) == b""


@pytest.mark.parametrize(("name", "value"), [("a\x01", "b"), ("a\x02", "b"), ("a", "b\x02")])
def test_separators_in_properties_are_rejected(name: str, value: str) -> None:
    with pytest.raises(ProtocolError, match="separator"):
        encode_properties({name: value})


def test_length_of_properties_is_bounded() -> None:
    assert len(encode_properties({"n": "v" * 32764})) == 32767
    with pytest.raises(ProtocolError, match="32767"):
        encode_properties({"n": "v" * 32765})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"TAGS\x01a\x02", b"a"),
        (b"XTAGS\x01a\x02", None),
        (b"X\x01TAGS\x01a\x02", None),
        (b"TAGS\x01a\x02XTAGS\x01b\x02", b"a"),
        (b"TAGS\x01a\x02TAGS\x01b", b"b"),
        (b"TAGS\x01a\x02TAGS\x01\x02", b"a"),
        (b"TAGS\x01", None),
        (b"TAGS", None),
        (b"", None),
    ],
)
def test_finding_one_property(raw: bytes, expected: bytes | None) -> None:
    assert find_property(raw, b"TAGS") == expected
    assert find_property(memoryview(raw), b"TAGS") == expected


def test_joining_properties() -> None:
    assert join_properties(b"a\x01b", b"c\x01d\x02") == b"a\x01b\x02c\x01d\x02"
    assert join_properties(b"a\x01b\x02", b"c\x01d\x02") == b"a\x01b\x02c\x01d\x02"
    assert join_properties(b"", b"c\x01d") == b"c\x01d"
    assert join_properties(b"a\x01b", b"") == b"a\x01b"


def test_reserved_names() -> None:
    assert len(RESERVED_PROPERTIES) == 51
    assert {"KEYS", "TAGS", "UNIQ_KEY", "__CRC32#"} <= RESERVED_PROPERTIES
    assert not {"__SHARDINGKEY", "color", " "} & RESERVED_PROPERTIES


def test_message() -> None:
    message = Message("T", b"x", {"KEYS": "a  b", PROPERTY_TAGS: "t", "UNIQ_KEY": "id"})
    assert (message.keys, message.tags, message.unique_id) == (["a", "b"], "t", "id")
    bare = Message("T", b"x")
    assert (bare.keys, bare.tags, bare.unique_id) == ([], None, None)


def test_transaction_bits() -> None:
    flag = int(SysFlag.COMPRESSED | SysFlag.INNER_BATCH)
    assert transaction_type(flag) is TransactionType.NONE
    for kind in TransactionType:
        changed = with_transaction_type(flag | TransactionType.ROLLBACK, kind)
        assert transaction_type(changed) is kind
        assert changed & ~0xC == flag


ONE = bytes.fromhex("0000001c 00000000 00000000 00000007 00000002 6869 0004 61016202")


def test_batch_layout() -> None:
    entry = BatchEntry(b"hi", b"a\x01b\x02", 7)
    assert encode_batch([entry]) == ONE
    assert decode_batch(ONE) == [entry]
    assert decode_batch(memoryview(ONE * 3)) == [entry] * 3
    assert decode_batch(b"") == []
    assert decode_batch(encode_batch([BatchEntry(b"")])) == [BatchEntry(b"")]


@pytest.mark.parametrize(
    "raw",
    [
        ONE[:-1],
        ONE + b"\x00",
        ONE[:10],
        b"\x00\x00\x00\x1b" + ONE[4:],
        b"\x00\x00\x00\x00" + ONE[4:],
        b"\xff\xff\xff\xff" + ONE[4:],
        b"\x7f\xff\xff\xff" + ONE[4:],
        ONE[:16] + b"\xff\xff\xff\xff" + ONE[20:],
        ONE[:16] + b"\x00\x00\x00\x07" + ONE[20:],
        ONE[:22] + b"\xff\xff" + ONE[24:],
        ONE[:22] + b"\x00\x03" + ONE[24:],
    ],
)
def test_malformed_batches(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_batch(raw)


def test_batches_that_cannot_be_encoded() -> None:
    with pytest.raises(ProtocolError, match="32767"):
        encode_batch([BatchEntry(b"", b"x" * 32768)])
    with pytest.raises(ProtocolError, match="number"):
        encode_batch([BatchEntry(b"", b"", 2**31)])
