"""Reading the properties of many records at once gives the same as one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from goddard.protocol.hashing import index_hash, java_hash
from goddard.protocol.message import find_property
from goddard.store.index.columns import PropertyColumns, prefixed_hashes

NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"T", b"TAGSX")

pieces = st.one_of(
    st.sampled_from([*NAMES, b"\x01", b"\x02", b"", b"value", "✓".encode(), "😀".encode()]),
    st.binary(max_size=6),
)
blobs = st.lists(pieces, max_size=12).map(b"".join)


@given(st.lists(blobs, max_size=8))
def test_values_and_hashes_are_those_of_single_records(properties: list[bytes]) -> None:
    columns = PropertyColumns(properties)
    for name in NAMES:
        spans = columns.find(name)
        assert np.all(np.diff(spans.rows) > 0)
        found = {
            row: columns.blob[start:end]
            for row, start, end in zip(*map(np.ndarray.tolist, spans), strict=True)
        }
        expected = {
            row: value
            for row, each in enumerate(properties)
            if (value := find_property(each, name)) is not None
        }
        assert found == expected
        texts = [value.decode("utf-8", "replace") for value in found.values()]
        hashes = columns.hashes(spans)
        assert hashes.view(np.int32).tolist() == [java_hash(text) for text in texts]
        prefix = np.full(len(texts), java_hash("Topic#") & 0xFFFFFFFF, dtype=np.uint32)
        keys = prefixed_hashes(prefix, hashes, columns.utf16_lengths(spans))
        assert keys.tolist() == [index_hash(f"Topic#{text}") for text in texts]


def test_no_records() -> None:
    columns = PropertyColumns([])
    assert len(columns.find(b"TAGS").rows) == 0
    assert len(columns.hashes(columns.find(b"TAGS"))) == 0
