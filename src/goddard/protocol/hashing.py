"""Hashes that RocketMQ writes to disk: Java's String.hashCode, and CRC-32.

``java_hash`` is ``h = 31 * h + unit`` over the UTF-16 units of a text, wrapped to a signed 32-bit
number. Consume queues hold it for tags, the key index for ``topic#key``. This module does not need
NumPy, so clients can use it; ``store.index.bulk_hashing`` hashes many texts at once, several times
faster per text.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import unpack
from typing import Final

try:
    from isal.isal_zlib import crc32
except ImportError:  # isal is not available for this processor
    from zlib import crc32

__all__ = ("body_crc", "crc32", "index_hash", "java_hash", "tag_code")

# Without wrapping, the number grows by five bits per unit; wrap it after this many units.
_UNWRAPPED_UNITS: Final = 64


def _signed(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _units(text: str) -> Sequence[int]:
    if text.isascii():
        return text.encode()
    encoded = text.encode("utf-16-le", "surrogatepass")
    return unpack(f"<{len(encoded) // 2}H", encoded)


def java_hash(text: str) -> int:
    """Java's ``text.hashCode()``."""
    units = _units(text)
    value = 0
    if len(units) <= _UNWRAPPED_UNITS:
        for unit in units:
            value = 31 * value + unit
        return _signed(value)
    for start in range(0, len(units), _UNWRAPPED_UNITS):
        for unit in units[start : start + _UNWRAPPED_UNITS]:
            value = 31 * value + unit
        value &= 0xFFFFFFFF
    return _signed(value)


@lru_cache(maxsize=4096)
def tag_code(tag: str) -> int:
    """The code of a tag in a consume-queue entry; 0 for no tag. Cached: few tags are in use."""
    return java_hash(tag)


def index_hash(key: str) -> int:
    """The hash of ``topic#key`` in the key index: never negative; 0 for -2**31."""
    value = abs(java_hash(key))
    return value if value <= 0x7FFFFFFF else 0


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """The CRC-32 in a record: without the sign bit."""
    return crc32(body) & 0x7FFFFFFF
