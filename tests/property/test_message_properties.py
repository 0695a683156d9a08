"""Properties, batches, ids, hashes and compression, for any input."""

from hypothesis import given
from hypothesis import strategies as st

from goddard.errors import ProtocolError
from goddard.protocol import acl
from goddard.protocol.compression import (
    CompressionKind,
    compress,
    decompress,
    with_compression,
)
from goddard.protocol.frame import RemotingCommand, decode_frame, encode_frame
from goddard.protocol.hashing import java_hash
from goddard.protocol.ids import (
    UniqueId,
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
)
from goddard.protocol.message import (
    BatchEntry,
    decode_batch,
    decode_properties,
    encode_batch,
    encode_properties,
    find_property,
    join_properties,
)
from goddard.protocol.record import Host
from goddard.store.index.bulk_hashing import java_hashes

UTF8 = st.characters(codec="utf-8", exclude_characters="\x01\x02")
properties = st.dictionaries(st.text(UTF8, max_size=20), st.text(UTF8, max_size=40), max_size=8)
# Few letters, many separators: most of these lists of pairs are malformed.
odd_properties = st.text(st.sampled_from("ab\x01\x02"), max_size=40)
ips = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
entries = st.builds(
    BatchEntry,
    st.binary(max_size=100),
    st.binary(max_size=100),
    st.integers(-(2**31), 2**31 - 1),
)


@given(properties)
def test_properties_round_trip(pairs: dict[str, str]) -> None:
    raw = encode_properties(pairs)
    expected = {name: value for name, value in pairs.items() if name and value}
    assert decode_properties(raw) == expected
    assert decode_properties(raw[:-1]) == expected
    for name, value in expected.items():
        assert find_property(raw, name.encode()) == value.encode()


@given(odd_properties, st.text(st.sampled_from("ab"), min_size=1, max_size=3))
def test_finding_one_property_agrees_with_decoding_all(text: str, name: str) -> None:
    found = find_property(text.encode(), name.encode())
    expected = decode_properties(text).get(name)
    assert found == (None if expected is None else expected.encode())


@given(odd_properties, odd_properties)
def test_joined_properties_contain_both(first: str, second: str) -> None:
    joined = decode_properties(join_properties(first.encode(), second.encode()))
    assert joined == {**decode_properties(first), **decode_properties(second)}


@given(st.binary(max_size=200))
def test_any_bytes_decode_as_properties(raw: bytes) -> None:
    decoded = decode_properties(raw)
    assert decode_properties(encode_properties(decoded)) == decoded


@given(st.lists(entries, max_size=6))
def test_batches_round_trip(many: list[BatchEntry]) -> None:
    assert decode_batch(encode_batch(many)) == many


@given(st.lists(entries, min_size=1, max_size=3), st.data())
def test_a_damaged_batch_is_refused_or_decodes_to_another(
    many: list[BatchEntry], data: st.DataObject
) -> None:
    raw = bytearray(encode_batch(many))
    position = data.draw(st.integers(0, len(raw) - 1))
    damaged = raw[:position]
    if data.draw(st.booleans(), label="keep the rest"):
        raw[position] ^= data.draw(st.integers(1, 255))
        damaged = raw
    try:
        decoded = decode_batch(damaged)
    except ProtocolError:
        return
    assert len(encode_batch(decoded)) == len(damaged)


@given(ips, st.integers(0, 0xFFFF), st.integers(0, 2**63 - 1))
def test_offset_ids_round_trip(ip: bytes, port: int, physical_offset: int) -> None:
    host = Host(ip, port)
    assert parse_offset_message_id(offset_message_id(host, physical_offset)) == (
        host,
        physical_offset,
    )


@given(
    st.builds(
        UniqueId,
        ips,
        st.integers(0, 0xFFFF),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 0xFFFF),
    )
)
def test_unique_ids_round_trip(unique: UniqueId) -> None:
    assert parse_unique_id(str(unique)) == unique


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    for parse in (parse_offset_message_id, parse_unique_id, Host.parse):
        try:
            parse(text)
        except ProtocolError:
            continue


@given(st.lists(st.text(max_size=100), max_size=10))
def test_bulk_hashes_are_those_of_single_strings(texts: list[str]) -> None:
    assert java_hashes(texts).tolist() == [java_hash(text) for text in texts]


@given(st.text(max_size=40), st.text(max_size=90))
def test_hash_of_a_concatenation(first: str, second: str) -> None:
    units = len(second.encode("utf-16-le", "surrogatepass")) // 2
    expected = java_hash(first) * 31**units + java_hash(second)
    assert (java_hash(first + second) - expected) % 2**32 == 0


@given(st.binary(max_size=3000), st.sampled_from(CompressionKind), st.data())
def test_compression_round_trips(body: bytes, kind: CompressionKind, data: st.DataObject) -> None:
    flag = with_compression(0, kind)
    made = bytearray(compress(body, kind))
    assert decompress(bytes(made), flag, len(body)) == body
    made[data.draw(st.integers(0, len(made) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(bytes(made), flag, 4000)) <= 4000
    except ProtocolError:
        return


@given(st.dictionaries(st.text(UTF8, max_size=8), st.text(UTF8, max_size=8)), st.binary())
def test_signatures_stay_valid_on_the_wire(fields: dict[str, str], body: bytes) -> None:
    command = RemotingCommand(10, fields, body)
    acl.sign(command, "key", "secret")
    received = decode_frame(memoryview(encode_frame(command))[4:])
    assert acl.verify(received, "secret")
    assert not acl.verify(received, "other")
