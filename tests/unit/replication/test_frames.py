"""The bytes of the HA protocol: whole, in pieces and damaged."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goddard.errors import ProtocolError
from goddard.replication.frames import (
    MAX_DATA_BYTES,
    Frame,
    FrameDecoder,
    ReportDecoder,
    encode_header,
    encode_report,
)

OFFSETS = st.integers(min_value=0, max_value=2**62)


def wire(*frames: Frame) -> bytes:
    return b"".join(
        encode_header(frame.physical_offset, len(frame.data)) + frame.data for frame in frames
    )


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def test_bytes_are_those_of_rocketmq() -> None:
    assert encode_report(0x0102) == bytes.fromhex("0000000000000102")
    assert encode_header(16 << 20, 3) == bytes.fromhex("0000000001000000 00000003")


def test_a_frame_is_complete_with_its_last_byte() -> None:
    data = wire(Frame(7, b"abc"), Frame(10, b""), Frame(10, b"d"))
    decoder = FrameDecoder()
    found = [
        (end, frame) for end in range(len(data)) for frame in decoder.feed(data[end : end + 1])
    ]
    assert found == [(14, Frame(7, b"abc")), (26, Frame(10, b"")), (39, Frame(10, b"d"))]
    assert found[0][1].end_offset == 10


@given(
    st.lists(st.builds(Frame, OFFSETS, st.binary(max_size=60)), max_size=6),
    st.lists(st.integers(min_value=0), max_size=12),
)
def test_frames_arrive_in_any_pieces(frames: list[Frame], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    found = [frame for piece in pieces(wire(*frames), cuts) for frame in decoder.feed(piece)]
    assert found == frames


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6),
    st.lists(st.integers(min_value=0), max_size=12),
    st.binary(max_size=7),
)
def test_the_last_complete_report_counts(offsets: list[int], cuts: list[int], rest: bytes) -> None:
    data = b"".join(encode_report(offset) for offset in offsets) + rest
    decoder = ReportDecoder()
    found = [decoder.feed(piece) for piece in pieces(data, cuts)]
    assert [offset for offset in found if offset is not None][-1] == offsets[-1]
    assert ReportDecoder().feed(rest) is None


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 0), (-(2**63), 5), (0, -1), (0, -(2**31)), (0, MAX_DATA_BYTES + 1), (0, 2**31 - 1)],
)
def test_an_impossible_frame_is_refused_by_its_header(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match=f"{size} bytes at offset {offset}"):
        FrameDecoder().feed(encode_header(offset, size))


def test_the_largest_frame_is_accepted() -> None:
    data = bytes(MAX_DATA_BYTES)
    assert FrameDecoder().feed(encode_header(0, len(data)) + data) == [Frame(0, data)]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_give_frames_or_a_protocol_error(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    try:
        found = [frame for chunk in chunks for frame in decoder.feed(chunk)]
    except ProtocolError:
        return
    assert b"".join(chunks).startswith(wire(*found))
