"""The compiled key index gives what NumPy gives, and refuses buffers that do not fit."""

import mmap
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.core import IS_COMPILED
from goddard.store.index import keys, links

# With CI=true a core that is not compiled is a failure.
pytestmark = pytest.mark.skipif(
    not IS_COMPILED and os.environ.get("CI") != "true", reason="goddard.core is not compiled"
)

if IS_COMPILED:
    from goddard.core import index


def test_the_core_is_compiled() -> None:
    assert IS_COMPILED


NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "KEY", "UNIQ_KEYS", "", "x"])
VALUES = st.text(
    st.one_of(st.sampled_from("ab \x01"), st.characters(exclude_categories=["Cs"])), max_size=12
).filter(lambda text: "\x02" not in text)
PROPERTIES = st.one_of(
    st.lists(st.tuples(NAMES, VALUES), max_size=6).map(
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    ),
    st.binary(max_size=40),
)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["T", "other", "\u00e9"]), PROPERTIES, st.sampled_from([0, 4, 8, 12])
    ),
    min_size=1,
    max_size=60,
)


@given(RECORDS, st.booleans())
def test_hashes_are_those_of_numpy(
    records: list[tuple[str, bytes, int]], is_tag_indexed: bool
) -> None:
    topics, properties, sys_flags = map(list, zip(*records, strict=True))
    rows, hashes = keys.hash_keys(topics, properties, sys_flags, is_tag_indexed=is_tag_indexed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "IS_COMPILED", False)
        expected = keys.hash_keys(topics, properties, sys_flags, is_tag_indexed=is_tag_indexed)
    assert rows.tolist() == expected[0].tolist()
    assert hashes.tolist() == expected[1].tolist()


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=100),
    st.integers(1, 40),
    st.integers(1, 2**31 - 200),
    st.data(),
)
def test_links_are_those_of_numpy(
    hashes: list[int], slots: int, first_number: int, data: st.DataObject
) -> None:
    heads = st.integers(-5, first_number + 5)
    table = np.array(data.draw(st.lists(heads, min_size=slots, max_size=slots)), dtype=">i4")
    entries = np.zeros(len(hashes), dtype=links.ENTRY_DTYPE)
    entries["hash"] = hashes
    expected, expected_table = entries.copy(), table.copy()
    new_slots = links.link_entries(entries, table, first_number)
    links.fill_slots(entries, table, first_number)
    assert new_slots == links.link_with_numpy(expected, expected_table, first_number)
    links.fill_with_numpy(expected, expected_table, first_number)
    assert entries.tolist() == expected.tolist()
    assert table.tolist() == expected_table.tolist()


INT32 = st.integers(-(2**31), 2**31 - 1)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), INT32, INT32, INT32), min_size=1, max_size=60),
    st.integers(0, 70),
    st.integers(0, 4),
    st.integers(-1000, 1000),
    st.integers(-(2**63), 2**63 - 1),
    st.data(),
)
def test_walks_are_those_of_python(
    rows: list[tuple[int, int, int, int]],
    limit: int,
    padding: int,
    begin_ms: int,
    end_ms: int,
    data: st.DataObject,
) -> None:
    entries = b"".join(
        links.ENTRY.pack(key_hash, offset << 31, seconds, min(previous, number + 1))
        for number, (key_hash, offset, seconds, previous) in enumerate(rows)
    )
    number = data.draw(st.integers(0, len(rows) - 1))
    with mmap.mmap(-1, padding + len(entries)) as mapped:
        mapped[padding:] = entries
        arguments = (mapped, padding, number, 1, 5, begin_ms, end_ms, limit)
        assert links.find_in_slot(*arguments) == links.find_in_python(*arguments)


@pytest.mark.parametrize("number", [-1, 2, 2**40])
def test_an_entry_outside_the_file_is_refused(number: int) -> None:
    found = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match=f"no entry {number}"):
        index.find_in_slot(bytes(59), 10, number, 1, 0, 0, 0, 5, found)


def hash_keys(data: bytes, ends: list[int], *, records: int, room: int, hashes: int = 0) -> int:
    """Call the compiled function with columns of these lengths."""
    return index.hash_keys(
        data,
        np.array(ends, dtype=np.int64),
        np.zeros(records, dtype=np.uint32),
        np.zeros(records, dtype=np.int64),
        True,
        np.zeros(room, dtype=np.int64),
        np.zeros(hashes or room, dtype=np.int64),
        bytearray(len(ends)),
    )


@pytest.mark.parametrize(
    ("ends", "problem"),
    [
        ([1, 0], "end before they begin"),
        ([-1, 4], "end before they begin"),
        ([4, 5], "the properties end at 5"),
        ([1, 2**62], "the properties end at"),
    ],
)
def test_properties_outside_the_data_are_refused(ends: list[int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        hash_keys(b"abcd", ends, records=2, room=8)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        hash_keys(b"abcd", [1, 2], records=3, room=8)
    with pytest.raises(ValueError, match="different lengths"):
        hash_keys(b"abcd", [1, 2], records=2, room=8, hashes=1)


def test_more_keys_than_room_are_refused() -> None:
    data = b"KEYS\x01a b c"
    assert hash_keys(data, [len(data)], records=1, room=3) == 3
    with pytest.raises(ValueError, match="more than 2 keys"):
        hash_keys(data, [len(data)], records=1, room=2)


@pytest.mark.parametrize(
    ("count", "slots", "places", "problem"),
    [
        (3, 4, 16, "fewer than 3 entries"),
        (-1, 4, 16, "fewer than -1 entries"),
        (2, 5, 16, "fewer than 5 slots"),
        (2, 0, 16, "fewer than 0 slots"),
        (2, 4, 6, "no room for 2 entries"),
        (2, 4, 4, "no room for 2 entries"),
    ],
)
def test_entries_and_slots_outside_their_buffers_are_refused(
    count: int, slots: int, places: int, problem: str
) -> None:
    entries, table = bytearray(40), bytearray(16)
    scratch = np.zeros(places, dtype=np.int64)
    with pytest.raises(ValueError, match=problem):
        index.link_entries(entries, count, table, slots, 1, scratch)
    if "room" not in problem:
        with pytest.raises(ValueError, match=problem):
            index.fill_slots(entries, count, table, slots, 1)


def test_a_negative_hash_is_refused() -> None:
    entries, table = bytearray(b"\xff" * 20), bytearray(16)
    with pytest.raises(ValueError, match="negative"):
        index.link_entries(entries, 1, table, 4, 1, np.zeros(8, dtype=np.int64))
    with pytest.raises(ValueError, match="negative"):
        index.fill_slots(entries, 1, table, 4, 1)
