"""The key hashes of many records are those of each record, in Java's order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from goddard.protocol.hashing import index_hash
from goddard.protocol.message import find_property
from goddard.store.index.keys import hash_keys
from goddard.store.log.records import ROLLBACK

TOPICS = st.sampled_from(["TopicTest", "Other", "%RETRY%g"])
VALUES = st.text("ab 0\x01\x02é", min_size=0, max_size=4)
SHAPES = st.lists(
    st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"", b"UNIQ_KEY"]), max_size=4
)


@st.composite
def records(draw: st.DrawFn) -> tuple[str, bytes, int]:
    """Records with few different layouts, so that some have the same."""
    names = draw(st.sampled_from(draw(st.shared(st.lists(SHAPES, min_size=1, max_size=2)))))
    pairs = [name + b"\x01" + draw(VALUES).encode() for name in names]
    ending = draw(st.sampled_from([b"\x02", b"\x02", b""]))
    properties = b"\x02".join(pairs) + ending
    return draw(TOPICS), properties, draw(st.sampled_from([0, 0, 0, 1, ROLLBACK]))


def one_by_one(topic: str, properties: bytes, sys_flag: int, *, is_tag_indexed: bool) -> list[int]:
    if sys_flag & 0xC == ROLLBACK:
        return []

    def value(name: bytes) -> str:
        return (find_property(properties, name) or b"").decode("utf-8", "replace")

    keys = [value(b"UNIQ_KEY"), *value(b"KEYS").split(" ")]
    if is_tag_indexed and value(b"TAGS"):
        keys.append(f"T#{value(b'TAGS')}")
    return [index_hash(f"{topic}#{key}") for key in keys if key]


@settings(max_examples=150)
@given(st.lists(records(), min_size=1, max_size=5), st.integers(1, 40), st.booleans())
def test_hashes_are_those_of_single_records(
    drawn: list[tuple[str, bytes, int]], times: int, is_tag_indexed: bool
) -> None:
    many = drawn * times
    topics, properties, sys_flags = map(list, zip(*many, strict=True))
    rows, hashes = hash_keys(
        [str(topic) for topic in topics],
        [bytes(each) for each in properties if isinstance(each, bytes)],
        [flag for flag in sys_flags if isinstance(flag, int)],
        is_tag_indexed=is_tag_indexed,
    )
    expected = [
        (row, key_hash)
        for row, (topic, each, flag) in enumerate(many)
        for key_hash in one_by_one(topic, each, flag, is_tag_indexed=is_tag_indexed)
    ]
    assert list(zip(rows.tolist(), hashes.tolist(), strict=True)) == expected
