"""Hashes of rows: stable, and different for different content."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from goddard.spark.writing.content_hash import content_hashes

_ROWS = st.lists(st.binary(min_size=8, max_size=80), min_size=1, max_size=8)


def hashes(*rows: bytes) -> list[int]:
    bounds = np.cumsum([0, *(len(row) for row in rows)])
    found: list[int] = content_hashes(np.frombuffer(b"".join(rows), np.uint8), bounds).tolist()
    return found


def test_hashes_never_change() -> None:
    # Keys are stored in topics, so later versions must create the same.
    rows = (bytes(8), b"12345678", b"123456789", bytes(range(256)) * 3)
    assert hashes(*rows) == [
        0x1A8DA1622BC80A8C,
        0x06D120444F92A28A,
        0x4739487C9F5E0DC6,
        0xF24749D8E7A21210,
    ]


@given(_ROWS)
def test_hash_depends_only_on_the_row(rows: list[bytes]) -> None:
    assert hashes(*rows) == [hashes(row)[0] for row in rows]


@given(st.binary(min_size=8, max_size=80), st.data())
def test_every_bit_changes_the_hash(row: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(row) - 1))
    changed = bytearray(row)
    changed[bit // 8] ^= 1 << bit % 8
    assert hashes(row) != hashes(bytes(changed))


def test_order_and_length_of_content_change_the_hash() -> None:
    rows = (bytes(8), bytes(9), bytes(16), b"a" * 8 + b"b" * 8, b"b" * 8 + b"a" * 8)
    assert len(set(hashes(*rows))) == len(rows)


def test_rows_larger_than_a_range() -> None:
    large = bytes(3_000_000)
    assert hashes(large, b"12345678", large) == [
        hashes(large)[0],
        hashes(b"12345678")[0],
        hashes(large)[0],
    ]


def test_no_rows() -> None:
    assert hashes() == []
