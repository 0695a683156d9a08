"""NumPy and Arrow building blocks that extract numbers, strings and binaries from one buffer.

These functions create no Python object per row, except where a comment says so.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]

_HEX: Final = np.frombuffer(
    "".join(f"{value:02X}" for value in range(256)).encode("ascii"), dtype=np.uint16
)
# The years 1 to 9999, the range that Spark and Python can represent.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


def positions(values: Sequence[int] | Positions) -> Positions:
    return np.ascontiguousarray(values, dtype=np.int64)


def bytes_at(raw: Raw, at: Positions, width: int) -> Raw:
    """Rows of ``width`` bytes, one for each position."""
    # A view with one element of ``width`` bytes per byte of the buffer; elements overlap, and
    # indexing copies them.
    count = max(0, len(raw) - width + 1)
    overlapping: npt.NDArray[np.void] = np.ndarray((count,), f"V{width}", raw, strides=(1,))
    return overlapping[at].view(np.uint8).reshape(len(at), width)


def int16_at(raw: Raw, at: Positions) -> Positions:
    return bytes_at(raw, at, 2).view(">i2").ravel().astype(np.int64)


def int32_at(raw: Raw, at: Positions) -> Positions:
    return bytes_at(raw, at, 4).view(">i4").ravel().astype(np.int64)


def int64_at(raw: Raw, at: Positions) -> Positions:
    return bytes_at(raw, at, 8).view(">i8").ravel().astype(np.int64)


def slices_of(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array:
    """Slices of a buffer as a column of binaries; slices are in order and do not overlap.

    The buffer is viewed as gap, slice, gap, slice, ...; Arrow then copies every second element.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count + 1, dtype=np.int64)
    bounds[0] = 0
    bounds[1::2] = starts
    bounds[2::2] = ends
    whole = pa.Array.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(bounds), buffer]
    )
    slices = whole.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int64)))
    return slices.cast(pa.binary())


def strings(values: pa.Array) -> pa.Array:
    """Binaries decoded as UTF-8; invalid bytes become replacement characters."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        # Rare: one Python object per row.
        return pa.array(
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in values.to_pylist()
            ],
            pa.string(),
        )


def scatter(values: pa.Array, rows: Positions, count: int) -> pa.Array:
    """``count`` rows: ``rows`` (ascending) have the values in order, all others are null."""
    if len(rows) == count:
        return values
    indices = np.zeros(count, dtype=np.int64)
    is_null = np.ones(count, dtype=np.bool_)
    indices[rows] = np.arange(len(rows))
    is_null[rows] = False
    return values.take(pa.array(indices, mask=is_null))


def hex_strings(rows: Raw) -> pa.Array:
    """Rows of bytes, all of one width, as upper-case hexadecimal digits."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(2 * width)
    digits = _HEX[rows]
    return pa.Array.from_buffers(
        pa.string(),
        count,
        [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))],
    )


def choose(is_first: npt.NDArray[np.bool_], first: pa.Array, other: pa.Array) -> pa.Array:
    return pc.if_else(pa.array(is_first), first, other)


def repeat_string(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def timestamps(milliseconds: Positions) -> pa.Array:
    """Spark's TimestampType: microseconds in UTC; null if outside the years 1 to 9999."""
    is_invalid = (milliseconds < _FIRST_MS) | (milliseconds > _LAST_MS)
    microseconds = np.where(is_invalid, 0, milliseconds) * 1000
    return pa.array(microseconds, mask=is_invalid).cast(pa.timestamp("us", tz="UTC"))
