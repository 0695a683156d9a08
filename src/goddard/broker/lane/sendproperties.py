"""The properties of sends: whether any of them is special, and what the unique id and tags are.

What peers repeat is remembered: tags, and the names of a message's properties in their order (its
*shape*). A shape that comes often gets a pattern, which reads such properties at a stroke. Each
memory is bounded. Pure; belongs to one thread.
"""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from goddard.protocol import message
from goddard.protocol.hashing import tag_code

_MAX_MEMORIES: Final = 4096
_MAX_MEMORY_BYTES: Final = 512
_USES_BEFORE_PATTERN: Final = 8

_PAIR_END: Final = 2
_SEPARATORS: Final = b"\x01\x02"
_NOT_SEPARATORS: Final = bytes(byte for byte in range(256) if byte not in _SEPARATORS)
_MAX_PAIRS: Final = 32
_PAIRS: Final = frozenset(_SEPARATORS * count for count in range(_MAX_PAIRS + 1))

# Properties that change where a message goes, or that a broker sets itself.
_SPECIAL_NAMES: Final = frozenset(
    name.encode()
    for name in (
        message.PROPERTY_DELAY,
        message.PROPERTY_TRANSACTION_PREPARED,
        message.PROPERTY_POP_CK,
        message.PROPERTY_INNER_NUM,
        message.PROPERTY_REGION,
        message.PROPERTY_TRACE,
        message.PROPERTY_CLUSTER,
    )
)
_SPECIAL_PREFIX: Final = b"TIMER_"
UNIQUE_ID: Final = message.PROPERTY_UNIQUE_ID.encode()
TAGS: Final = message.PROPERTY_TAGS.encode()
WAIT: Final = message.PROPERTY_WAIT.encode()


class Shape:
    """Properties of certain names in a certain order, none of them special.

    ``unique_id``, ``tags`` and ``wait`` say where these values stand in ``name value name value``
    (0: nowhere), and among the groups of the pattern.
    """

    __slots__ = ("_names", "_uses", "groups", "match", "tags", "unique_id", "wait")

    def __init__(self, names_: tuple[bytes, ...]) -> None:
        def value_of(name: bytes) -> int:
            return 2 * names_.index(name) + 1 if name in names_ else 0

        self.unique_id = value_of(UNIQUE_ID)
        self.tags = value_of(TAGS)
        self.wait = value_of(WAIT)
        # Places of the same three among the groups of the pattern, -1 for nowhere.
        self.groups = (-1, -1, -1)
        self.match: Callable[[bytes], re.Match[bytes] | None] | None = None
        self._names = names_
        self._uses = 0

    def count(self) -> None:
        """Another use; the pattern, dear to make, comes with the eighth."""
        self._uses += 1
        if self._uses != _USES_BEFORE_PATTERN:
            return
        wanted = [name for name in self._names if name in (UNIQUE_ID, TAGS, WAIT)]
        self.match = re.compile(
            b"".join(
                re.escape(name)
                + (b"\x01([^\x01\x02]+)\x02" if name in wanted else b"\x01[^\x01\x02]+\x02")
                for name in self._names
            )
        ).fullmatch
        unique_id, tags, wait = (
            wanted.index(name) if name in wanted else -1 for name in (UNIQUE_ID, TAGS, WAIT)
        )
        self.groups = (unique_id, tags, wait)


# Properties as they are stored, unique id, tags, shape.
Found: TypeAlias = tuple[bytes, bytes | None, bytes | None, Shape]


class PropertyReader:
    """Reads the properties of sends. ``tag_codes`` has the hashes of tags that were met."""

    def __init__(self, *, waits: bool) -> None:
        """``waits``: senders are answered when the disk has their messages."""
        self._is_sync = waits
        self._shapes: dict[tuple[bytes, ...], Shape] = {}
        self.tag_codes: dict[bytes, int] = {}

    @property
    def remembered(self) -> int:
        """How many shapes and tags are remembered."""
        return len(self._shapes) + len(self.tag_codes)

    def read(self, text: str, shape: Shape | None) -> Found | None:
        """``shape`` is the one to be expected; None when a property is special."""
        raw = text.encode()
        if raw and raw[-1] != _PAIR_END:
            raw += b"\x02"  # clients 4.9.1 to 5.1.4 leave the last one out
        if shape is not None and shape.match is not None:
            matched = shape.match(raw)
            if matched is not None:
                values = matched.groups()
                unique_id, tags, wait = shape.groups
                if wait >= 0 and self._is_sync and values[wait] != b"true":
                    return None  # this one does not wait for the disk
                return (
                    raw,
                    values[unique_id] if unique_id >= 0 else None,
                    values[tags] if tags >= 0 else None,
                    shape,
                )
        return self._read_other(raw)

    def _read_other(self, raw: bytes) -> Found | None:
        """The same for properties that are not of the expected shape."""
        if raw.translate(None, _NOT_SEPARATORS) not in _PAIRS:
            return None
        parts = raw.replace(b"\x02", b"\x01").split(b"\x01")
        if b"" in parts[:-1]:
            return None  # an empty name or value
        names = tuple(parts[:-1:2])
        shape = self._shapes.get(names)
        if shape is None:
            if _is_special(names):
                return None
            if len(self._shapes) >= _MAX_MEMORIES:
                self._shapes.clear()
            shape = self._shapes[names] = Shape(names)
        shape.count()
        if shape.wait and self._is_sync and parts[shape.wait] != b"true":
            return None
        return (
            raw,
            parts[shape.unique_id] if shape.unique_id else None,
            parts[shape.tags] if shape.tags else None,
            shape,
        )

    def learn_tag(self, tags: bytes) -> int:
        """The hash of tags that ``tag_codes`` does not have."""
        code = tag_code(tags.decode("utf-8", "replace"))
        if len(tags) <= _MAX_MEMORY_BYTES:
            if len(self.tag_codes) >= _MAX_MEMORIES:
                self.tag_codes.clear()
            self.tag_codes[tags] = code
        return code


def _is_special(names_: tuple[bytes, ...]) -> bool:
    """Whether properties of these names need the long way (or more memory than they are worth)."""
    return (
        len(set(names_)) != len(names_)
        or not _SPECIAL_NAMES.isdisjoint(names_)
        or any(name.startswith(_SPECIAL_PREFIX) for name in names_)
        or sum(map(len, names_)) > _MAX_MEMORY_BYTES
    )
