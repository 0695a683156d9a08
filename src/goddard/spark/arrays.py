"""NumPy and Arrow building blocks: numbers, texts and binaries cut out of one buffer at once.

Nothing here makes a Python object for each row; the exceptions say so.
"""

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
# The years 1 to 9999, which Spark and Python can show.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


def bytes_at(raw: Raw, at: Positions, width: int) -> Raw:
    """Rows of ``width`` bytes at the positions given."""
    # One element for each byte, each of them as long as a row: they overlap, and are copied whole.
    places = max(0, len(raw) - width + 1)
    overlapping: npt.NDArray[np.void] = np.ndarray((places,), f"V{width}", raw, strides=(1,))
    return overlapping[at].view(np.uint8).reshape(len(at), width)


def int16_at(raw: Raw, at: Positions) -> Positions:
    return bytes_at(raw, at, 2).view(">i2").ravel().astype(np.int64)


def int32_at(raw: Raw, at: Positions) -> Positions:
    return bytes_at(raw, at, 4).view(">i4").ravel().astype(np.int64)


def int64_at(raw: Raw, at: Positions) -> Positions:
    return bytes_at(raw, at, 8).view(">i8").ravel().astype(np.int64)


def cut(buffer: pa.Buffer, starts: Positions, ends: Positions) -> pa.Array:
    """The pieces of a buffer as a column of binaries; pieces are in order and do not overlap.

    The buffer as a whole is read as gap, piece, gap, piece, ...; Arrow then copies the pieces.
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
    pieces = whole.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int64)))
    return pieces.cast(pa.binary())


def texts(values: pa.Array) -> pa.Array:
    """Binaries read as UTF-8; what is not UTF-8 is shown with replacement characters."""
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


def spread(values: pa.Array, rows: Positions, count: int) -> pa.Array:
    """``count`` rows, null but for ``rows`` (ascending), which have the values in order."""
    if len(rows) == count:
        return values
    places = np.zeros(count, dtype=np.int64)
    is_null = np.ones(count, dtype=np.bool_)
    places[rows] = np.arange(len(rows))
    is_null[rows] = False
    return values.take(pa.array(places, mask=is_null))


def hex_texts(rows: Raw) -> pa.Array:
    """Rows of bytes, all of one width, in upper-case hexadecimal digits."""
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


def repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def timestamps(milliseconds: Positions) -> pa.Array:
    """Spark's TimestampType: microseconds in UTC; null for what no calendar has."""
    is_absurd = (milliseconds < _FIRST_MS) | (milliseconds > _LAST_MS)
    microseconds = np.where(is_absurd, 0, milliseconds) * 1000
    return pa.array(microseconds, mask=is_absurd).cast(pa.timestamp("us", tz="UTC"))
