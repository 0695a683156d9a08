"""Hashes that RocketMQ writes to disk: Java's String.hashCode, and CRC-32.

``java_hash`` is ``h = 31 * h + unit`` over the UTF-16 units of a text, wrapped to a signed 32-bit
number. Consume queues hold it for tags, the key index for ``topic#key``. ``java_hashes`` does many
texts at once and is several times cheaper each.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

try:
    from isal.isal_zlib import crc32
except ImportError:  # no isal for this processor
    from zlib import crc32

__all__ = ("body_crc", "crc32", "index_hash", "java_hash", "java_hashes", "tag_code")

# A loop over small numbers is faster than NumPy up to about here, and without wrapping inside it
# the number stays short enough.
_LOOP_UNITS: Final = 64


def _signed(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _utf16(text: str) -> npt.NDArray[np.uint16]:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2")


def java_hash(text: str) -> int:
    """Java's ``text.hashCode()``."""
    value = 0
    if len(text) <= _LOOP_UNITS:
        units = text.encode() if text.isascii() else _utf16(text).tolist()
        for unit in units:
            value = 31 * value + unit
        return _signed(value)
    return int(java_hashes((text,))[0])


def java_hashes(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """Java's ``hashCode`` of each text."""
    joined = "".join(texts)
    if joined.isascii():
        units = np.frombuffer(joined.encode(), dtype=np.uint8).astype(np.uint32)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    else:
        arrays = [_utf16(text) for text in texts]
        units = np.concatenate(arrays).astype(np.uint32)
        lengths = np.fromiter(map(len, arrays), np.int64, len(texts))
    hashes = np.zeros(len(texts), dtype=np.uint32)
    if not units.size:
        return hashes.view(np.int32)
    ends = np.cumsum(lengths)
    # Each unit counts with 31 to the number of units after it in its own text.
    exponents = np.repeat(ends, lengths) - np.arange(1, units.size + 1)
    units *= _powers(int(lengths.max()))[exponents]
    # reduceat sums from each start to the next one; an empty text has no start of its own.
    filled = lengths > 0
    hashes[filled] = np.add.reduceat(units, (ends - lengths)[filled], dtype=np.uint32)
    return hashes.view(np.int32)


def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31**0, 31**1, ... modulo 2**32."""
    steps = np.full(count, 31, dtype=np.uint32)
    steps[:1] = 1
    return np.cumprod(steps, dtype=np.uint32)


@lru_cache(maxsize=4096)
def tag_code(tag: str) -> int:
    """What a consume-queue entry holds for a tag; 0 when there is none. Few tags come often."""
    return java_hash(tag)


def index_hash(key: str) -> int:
    """What the key index holds for ``topic#key``: never negative; 0 for -2**31."""
    value = abs(java_hash(key))
    return value if value <= 0x7FFFFFFF else 0


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """The CRC-32 that a record holds: without the sign bit."""
    return crc32(body) & 0x7FFFFFFF
