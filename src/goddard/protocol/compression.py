"""Compressed bodies: a zlib stream, an LZ4 frame or a zstd frame, as the system flag says.

Decompression is bounded: it stops at the given limit, whatever size a body declares.
"""

import importlib
import zlib
from enum import IntEnum
from typing import Any, Final

import zstandard

from goddard.errors import ProtocolError
from goddard.protocol.message import SysFlag

# The package has no type information.
_lz4: Final[Any] = importlib.import_module("lz4.frame")

# RocketMQ's client compresses bodies of 4 KiB and more, with level 5 for every kind.
COMPRESS_FROM_BYTES: Final = 4096
COMPRESSION_LEVEL: Final = 5

_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_KIND_SHIFT: Final = 8
_KIND_MASK: Final = 0x7 << _KIND_SHIFT


class CompressionKind(IntEnum):
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compression_kind(sys_flag: int) -> CompressionKind:
    """The compression that a system flag names; clients before 5.0 name none and use zlib."""
    value = (sys_flag & _KIND_MASK) >> _KIND_SHIFT
    try:
        return CompressionKind(value or CompressionKind.ZLIB)
    except ValueError as error:
        raise ProtocolError(f"unknown compression {value}") from error


def with_compression(sys_flag: int, kind: CompressionKind) -> int:
    """The system flag of a body compressed with ``kind``."""
    return sys_flag & ~_KIND_MASK | kind << _KIND_SHIFT | _COMPRESSED


def without_compression(sys_flag: int) -> int:
    """The system flag after decompression; as in RocketMQ's client, the kind stays set."""
    return sys_flag & ~_COMPRESSED


def compress(
    body: bytes | memoryview,
    kind: CompressionKind = CompressionKind.ZLIB,
    level: int = COMPRESSION_LEVEL,
) -> bytes:
    if kind is CompressionKind.ZLIB:
        return zlib.compress(body, level)
    if kind is CompressionKind.LZ4:
        # RocketMQ's LZ4 reader accepts only frames of independent blocks.
        compressed: bytes = _lz4.compress(body, compression_level=level, block_linked=False)
        return compressed
    return zstandard.ZstdCompressor(level=level).compress(body)


def decompress(body: bytes | memoryview, sys_flag: int, max_bytes: int) -> bytes:
    """Decompress a body; return it unchanged if the flag says that it is not compressed.

    Raises ProtocolError if it is damaged, truncated, or decompresses to more than ``max_bytes``.
    """
    if not sys_flag & _COMPRESSED:
        return bytes(body)
    kind = compression_kind(sys_flag)
    try:
        if kind is CompressionKind.ZLIB:
            return _inflate(zlib.decompressobj(), body, max_bytes)
        if kind is CompressionKind.LZ4:
            return _inflate(_lz4.LZ4FrameDecompressor(), body, max_bytes)
        return _read_zstd(body, max_bytes)
    except (zlib.error, zstandard.ZstdError, RuntimeError, EOFError) as error:
        # lz4 raises bare RuntimeErrors.
        raise ProtocolError(f"a {kind.name} body cannot be decompressed: {error}") from error


def _inflate(decompressor: Any, body: bytes | memoryview, max_bytes: int) -> bytes:
    """Decompress with an object that has the interface of zlib's ``decompressobj``."""
    output: bytes = decompressor.decompress(body, max_bytes + 1)
    if len(output) > max_bytes:
        raise _too_long(max_bytes)
    if not decompressor.eof:
        raise ProtocolError("a compressed body is truncated")
    return output


def _read_zstd(body: bytes | memoryview, max_bytes: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor()
    announced = zstandard.frame_content_size(body)
    if announced > max_bytes:
        raise _too_long(max_bytes)
    if announced >= 0:
        return decompressor.decompress(body)
    # Java writes a frame without its size. stream_reader can be bounded but does not report a
    # truncated frame; decompressobj reports it but cannot be bounded: check the size with the
    # first.
    if len(decompressor.stream_reader(body).read(max_bytes + 1)) > max_bytes:
        raise _too_long(max_bytes)
    stream = decompressor.decompressobj()
    output = stream.decompress(body)
    if not stream.eof:
        raise ProtocolError("a compressed body is truncated")
    return output


def _too_long(max_bytes: int) -> ProtocolError:
    return ProtocolError(f"a body is longer than {max_bytes} bytes when decompressed")
