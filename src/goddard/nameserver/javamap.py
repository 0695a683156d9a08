"""The iteration order of a Java HashMap. Pure.

RocketMQ's responses list brokers and clusters in this order, whatever order they registered in.
Ours do the same, so that official tools print the same with both name servers.

The bucket of a key is the low bits of ``h ^ (h >>> 16)``, where h is its hashCode. There are 16
buckets, or more if the map was created so, doubled while there are more keys than three quarters of
the buckets.
"""

from collections.abc import Iterable
from typing import Final

_LEAST_CAPACITY: Final = 16


def in_map_order(names: Iterable[str], capacity: int = _LEAST_CAPACITY) -> list[str]:
    """The names in the iteration order of a HashMap into which they are put in this order.

    ``capacity`` is the number of buckets that the map was created with.
    """
    keys = list(names)
    if len(keys) < 2:
        return keys
    while capacity * 3 < len(keys) * 4:
        capacity *= 2
    # Sorting is stable: names in one bucket stay in insertion order, as in Java.
    return sorted(keys, key=lambda name: _spread_hash(name) & (capacity - 1))


def _spread_hash(text: str) -> int:
    # Cheaper here than importing protocol.hashing; see the docstring of the package.
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8) + units[position + 1]) & 0xFFFFFFFF
    return value ^ (value >> 16)
