"""Hashes of the content of rows, for idempotence keys. Pure; no Python object per row.

A hash of 64 bits: the sum, over the words of eight bytes of a row, of the mixed sum of the word and
a number for its place. Keys are kept in topics, so every later version must give the same hashes.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from goddard.spark.arrays import Positions, Raw, bytes_at
from goddard.spark.writing.batching import split_ranges

# Rows that are hashed at once: their arrays of words stay in the processor's cache.
_RANGE_BYTES: Final = 512 * 1024
_RANGE_ROWS: Final = 16_384
_WORD_BYTES: Final = 8

Hashes = npt.NDArray[np.uint64]

# The constants of splitmix64.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR: Final = np.uint64(0x94D049BB133111EB)


def content_hashes(data: Raw, bounds: Positions) -> Hashes:
    """One hash for each row; ``bounds`` are the byte positions between rows.

    Every row has at least eight bytes.
    """
    hashes = [
        _hash_range(data, bounds[start : stop + 1])
        for start, stop in split_ranges(bounds, _RANGE_BYTES, _RANGE_ROWS)
    ]
    return np.concatenate(hashes) if hashes else np.empty(0, np.uint64)


def _hash_range(data: Raw, bounds: Positions) -> Hashes:
    lengths = np.diff(bounds)
    words = -(-lengths // _WORD_BYTES)
    firsts = np.cumsum(words) - words
    places = np.arange(int(words.sum())) - np.repeat(firsts, words)
    # The last word of a row ends with the row, so it may overlap the word before it.
    last_words = np.repeat(bounds[1:] - _WORD_BYTES, words)
    at = np.minimum(np.repeat(bounds[:-1], words) + _WORD_BYTES * places, last_words)
    values = bytes_at(data, at, _WORD_BYTES).view("<u8").ravel().astype(np.uint64, copy=False)
    of_place = _mix(np.arange(1, int(words.max()) + 1, dtype=np.uint64) * _GOLDEN)
    sums: Hashes = np.add.reduceat(_mix(values + of_place[places]), firsts)
    return _mix(sums + lengths.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """The finalizer of splitmix64: every bit of a value affects every bit of the result."""
    mixed = (values ^ (values >> np.uint64(30))) * _FIRST_FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND_FACTOR
    return mixed ^ (mixed >> np.uint64(31))
