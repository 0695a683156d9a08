import io
import zlib

import pytest
import zstandard

from goddard.errors import ProtocolError
from goddard.protocol.compression import (
    CompressionKind,
    compress,
    compression_kind,
    decompress,
    with_compression,
    without_compression,
)

BODY = b"".join(b"line %d of a body\n" % n for n in range(500))
KINDS = list(CompressionKind)


def java_zstd(body: bytes) -> bytes:
    """A zstd frame without its size, as Java writes it."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(level=5).stream_writer(out, closefd=False) as writer:
        writer.write(body)
    return out.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(5_000_000)])
@pytest.mark.parametrize("level", [1, 5, 9])
def test_round_trip(kind: CompressionKind, body: bytes, level: int) -> None:
    flag = with_compression(0, kind)
    compressed = compress(body, kind, level)
    assert decompress(compressed, flag, len(body)) == body
    assert decompress(memoryview(compressed), flag, len(body) + 1) == body


def test_a_body_that_is_not_compressed() -> None:
    assert decompress(BODY, 0x300, 1) == BODY
    assert decompress(memoryview(BODY), 0, 1) == BODY


def test_kind_defaults_to_zlib() -> None:
    assert decompress(zlib.compress(BODY), 1, len(BODY)) == BODY


def test_a_zstd_stream_of_unknown_length() -> None:
    flag = with_compression(0, CompressionKind.ZSTD)
    compressed = java_zstd(BODY)
    assert zstandard.frame_content_size(compressed) == -1
    assert decompress(compressed, flag, len(BODY)) == BODY
    with pytest.raises(ProtocolError, match="longer"):
        decompress(compressed, flag, len(BODY) - 1)
    for end in range(len(compressed)):
        with pytest.raises(ProtocolError):
            decompress(compressed[:end], flag, len(BODY))


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_body(kind: CompressionKind) -> None:
    compressed = compress(BODY, kind)
    flag = with_compression(0, kind)
    # The last four bytes of an LZ4 frame are its end mark; it is required too.
    for end in range(len(compressed)):
        with pytest.raises(ProtocolError):
            decompress(compressed[:end], flag, len(BODY))


@pytest.mark.parametrize("kind", KINDS)
def test_decompression_is_bounded(kind: CompressionKind) -> None:
    compressed = compress(bytes(100_000_000), kind)
    assert len(compressed) < 500_000
    with pytest.raises(ProtocolError, match="longer than 1000 bytes"):
        decompress(compressed, with_compression(0, kind), 1000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("garbage", [b"", b"x", b"not compressed at all", bytes(100)])
def test_garbage(kind: CompressionKind, garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        decompress(garbage, with_compression(0, kind), 1000)


def test_flags() -> None:
    assert [with_compression(0x10, kind) for kind in KINDS] == [0x111, 0x211, 0x311]
    assert with_compression(0x311, CompressionKind.LZ4) == 0x111
    assert without_compression(0x311) == 0x310
    assert compression_kind(0) is CompressionKind.ZLIB
    for kind in KINDS:
        assert compression_kind(with_compression(0, kind)) is kind
    with pytest.raises(ProtocolError, match="unknown compression 4"):
        decompress(b"x", 0x401, 10)


def test_lz4_blocks_are_independent() -> None:
    # Bit 5 of the byte after the magic; RocketMQ's reader rejects frames without it.
    assert compress(BODY, CompressionKind.LZ4)[4] & 0x20
