"""Java's String.hashCode of many strings at once, with NumPy; see ``goddard.protocol.hashing``."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def _utf16(text: str) -> npt.NDArray[np.uint16]:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2")


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
    # A unit is multiplied by 31 to the power of the number of units after it in its text.
    exponents = np.repeat(ends, lengths) - np.arange(1, units.size + 1)
    units *= _powers(int(lengths.max()))[exponents]
    # reduceat sums from each start to the next one, so empty texts must be left out.
    filled = lengths > 0
    hashes[filled] = np.add.reduceat(units, (ends - lengths)[filled], dtype=np.uint32)
    return hashes.view(np.int32)


def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31**0, 31**1, ... modulo 2**32."""
    steps = np.full(count, 31, dtype=np.uint32)
    steps[:1] = 1
    return np.cumprod(steps, dtype=np.uint32)
