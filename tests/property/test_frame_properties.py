"""Frames: any chunking, any command, any bytes."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from goddard.errors import ProtocolError
from goddard.protocol.codes import LanguageCode, SerializeType
from goddard.protocol.frame import FrameDecoder, RemotingCommand, decode_frame, encode_frame

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(max_size=30)
languages = st.sampled_from(list(LanguageCode))
json_commands = st.builds(
    RemotingCommand,
    code=int32,
    ext_fields=st.none() | st.dictionaries(text, text, max_size=5),
    body=st.binary(max_size=60),
    opaque=int32,
    flag=int32,
    remark=st.none() | text,
    language=languages,
    version=int32,
)
# The binary header does not distinguish empty from absent.
binary_commands = st.builds(
    RemotingCommand,
    code=int16,
    ext_fields=st.none() | st.dictionaries(text, text, min_size=1, max_size=5),
    body=st.binary(max_size=60),
    opaque=int32,
    flag=int32,
    remark=st.none() | st.text(min_size=1, max_size=30),
    language=languages,
    version=int16,
    serialize_type=st.just(SerializeType.ROCKETMQ),
)
commands = json_commands | binary_commands


@given(commands)
def test_commands_round_trip(command: RemotingCommand) -> None:
    assert decode_frame(memoryview(encode_frame(command))[4:]) == command


@given(st.lists(commands, max_size=5), st.data())
def test_any_chunking_gives_the_same_frames(
    sent: list[RemotingCommand], data: st.DataObject
) -> None:
    stream = b"".join(map(encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    received: list[RemotingCommand] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += map(decode_frame, decoder.feed(stream[start:end]))
    assert received == sent
    assert decoder.failure is None
    assert decoder.buffered_bytes == 0


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(4, 64))
def test_the_buffer_for_a_garbage_stream_is_bounded(chunks: list[bytes], limit: int) -> None:
    decoder = FrameDecoder(max_frame_bytes=limit)
    for chunk in chunks:
        for frame in decoder.feed(chunk):
            assert 4 <= len(frame) <= limit
            try:
                decode_frame(frame)
            except ProtocolError:
                continue
        assert decoder.buffered_bytes < limit + 4


@given(st.sampled_from([0, 1]), st.binary(max_size=120), st.binary(max_size=10))
def test_a_garbage_header_raises_only_protocol_error(kind: int, header: bytes, body: bytes) -> None:
    frame = struct.pack(">I", kind << 24 | len(header)) + header + body
    try:
        decode_frame(memoryview(frame))
    except ProtocolError:
        return


@given(commands, st.data())
def test_a_damaged_frame_raises_only_protocol_error(
    command: RemotingCommand, data: st.DataObject
) -> None:
    frame = bytearray(encode_frame(command)[4:])
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for damaged in (frame, frame[:cut]):
        try:
            decode_frame(memoryview(bytes(damaged)))
        except ProtocolError:
            continue
