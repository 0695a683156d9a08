"""The order in which a Java HashMap lists its keys. Pure.

RocketMQ's answers list brokers and clusters in it, whatever the order they registered in. Ours do
the same, and so official tools print the same with either name server.

A key's place is the low bits of ``h ^ (h >>> 16)``, where h is its hashCode; there are sixteen
places, doubled while the keys are more than three quarters of them.
"""

from collections.abc import Iterable
from typing import Final

_LEAST_CAPACITY: Final = 16


def in_map_order(names: Iterable[str]) -> list[str]:
    """The names as Java would list them, had they been put into a HashMap in the order given."""
    keys = list(names)
    if len(keys) < 2:
        return keys
    capacity = _LEAST_CAPACITY
    while capacity * 3 < len(keys) * 4:
        capacity *= 2
    # Sorting is stable: names of one place stay in the order of their arrival, as in Java.
    return sorted(keys, key=lambda name: _spread_hash(name) & (capacity - 1))


def _spread_hash(text: str) -> int:
    # protocol.hashing has hashCode too, but brings numpy along; see the package's text.
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8) + units[position + 1]) & 0xFFFFFFFF
    return value ^ (value >> 16)
