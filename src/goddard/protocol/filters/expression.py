"""Message filters: tag expressions, SQL92 expressions, and the Bloom positions of a subscription.

A consume-queue entry holds 64 bits for the tag; the low 32 are Java's hash of it. The broker
compares hashes only; two tags may have the same hash, so the client also compares the text.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from goddard.protocol.filters.sql92 import (
    MAX_EXPRESSION_CHARS,
    MAX_EXPRESSION_DEPTH,
    FilterEvaluationError,
    FilterSyntaxError,
    SqlFilter,
    compile_sql,
)
from goddard.protocol.hashing import tag_code

__all__ = (
    "ALL_TAGS",
    "BLOOM_BITS",
    "MAX_EXPRESSION_CHARS",
    "MAX_EXPRESSION_DEPTH",
    "FilterEvaluationError",
    "FilterSyntaxError",
    "SqlFilter",
    "TagFilter",
    "bloom_positions",
    "compile_sql",
    "is_tag_type",
    "parse_tags",
)

ALL_TAGS: Final = "*"

_JAVA_TRIMMED: Final = "".join(map(chr, range(0x21)))


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription of this type is a tag expression; clients may omit the type."""
    return expression_type in (None, "", "TAG")


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A tag subscription: ``subString``, ``tagsSet`` and ``codeSet`` of the wire.

    Only the expression ``*`` selects all tags; ``A || *`` selects a tag named ``*``.
    """

    expression: str
    tags: tuple[str, ...]
    codes: frozenset[int]

    @classmethod
    def of_subscription(
        cls, expression: str, tags: Collection[str], codes: Collection[int]
    ) -> "TagFilter":
        """The filter that a consumer sent; a broker uses the codes alone."""
        return cls(expression, tuple(tags), frozenset(codes))

    @property
    def matches_all(self) -> bool:
        return self.expression == ALL_TAGS

    def matches_code(self, tags_code: int | None) -> bool:
        """The broker's check. An entry with an unknown code (None) passes."""
        if tags_code is None or self.matches_all:
            return True
        return ((tags_code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000 in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """The client's check: compares the text, because tags may have equal hashes."""
        return not self.tags or tag in self.tags


def parse_tags(expression: str | None) -> TagFilter:
    """Parse ``A || B``; ``*``, empty text and None select all tags, ``||`` alone is an error."""
    if not expression or expression == ALL_TAGS:
        return TagFilter(ALL_TAGS, (), frozenset())
    if len(expression) > MAX_EXPRESSION_CHARS:
        reason = f"{len(expression)} characters; at most {MAX_EXPRESSION_CHARS} are allowed"
        raise FilterSyntaxError(reason, MAX_EXPRESSION_CHARS)
    parts = expression.split("||")
    if not any(parts):
        raise FilterSyntaxError("no tag beside ||; write * for all tags", 0)
    # Java also trims control characters. Blank parts are dropped, even if no part remains.
    trimmed = (part.strip(_JAVA_TRIMMED) for part in parts)
    tags = tuple(dict.fromkeys(tag for tag in trimmed if tag))
    return TagFilter(expression, tags, frozenset(map(tag_code, tags)))


# The broker's Bloom filter is sized for 32 subscriptions at an error rate of 20 %.
BLOOM_BITS: Final = 112
_BLOOM_HASHES: Final = 3


def bloom_positions(group: str, topic: str) -> tuple[int, ...]:
    """The bits of an SQL92 subscription in consumerFilter.json and in bit maps."""
    value = _murmur3_64(f"{group}#{topic}".encode("utf-8", "replace"))
    low, high = value & 0xFFFFFFFF, value >> 32
    positions = []
    for index in range(1, _BLOOM_HASHES + 1):
        combined = (low + index * high) & 0xFFFFFFFF
        # A negative 32-bit number has all its bits flipped.
        positions.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % BLOOM_BITS)
    return tuple(positions)


_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F


def _murmur3_64(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with seed 0 (Austin Appleby, public domain)."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for start in range(0, whole, 16):
        k1 = int.from_bytes(data[start : start + 8], "little")
        k2 = int.from_bytes(data[start + 8 : start + 16], "little")
        h1 = _rotate(h1 ^ _mix_first(k1), 27) + h2
        h1 = (h1 * 5 + 0x52DC_E729) & _MASK
        h2 = _rotate(h2 ^ _mix_second(k2), 31) + h1
        h2 = (h2 * 5 + 0x3849_5AB5) & _MASK
    tail = data[whole:]
    h1 ^= _mix_first(int.from_bytes(tail[:8], "little")) ^ len(data)
    h2 ^= _mix_second(int.from_bytes(tail[8:], "little")) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finish(h1) + _finish(h2)) & _MASK


def _mix_first(block: int) -> int:
    return _rotate(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second(block: int) -> int:
    return _rotate(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return value ^ value >> 33
