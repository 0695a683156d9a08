"""Runs: the messages of one batch, as one thing from the request to the key index.

They lie one behind another in one segment of the log and in one queue, so most of what there is to
say of each is said once, and the rest in columns: a message of a run costs half of what one of its
own does. A ``RecordRun`` is to be appended, a ``LogRun`` says where it went.

Whoever looks at single records asks for ``entries``; ``count_messages`` counts what a row of both
kinds holds.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from goddard.protocol.hashing import crc32
from goddard.protocol.record import MAGIC_V1
from goddard.store.log.records import (
    AppendableRecord,
    Chunk,
    LogEntry,
    encode_joint,
    encode_store_part,
    plain_size,
)

# The head of a plain record (see ``records``) as runs see it: from the system flag to the
# transaction's offset, before the length of the body, everything is the same for all of them.
_HEAD: Final = Struct(">iIiiiqq48si")
_SHARED: Final = Struct(">iq8s28s")
_START: Final = Struct(">iI")
_I32: Final = Struct(">i")
_PIECES: Final = 4  # head, body, joint, properties
_LENGTHS_BYTES: Final = 3  # of a joint, besides the topic


class LogRun(NamedTuple):
    """Where the records of a run are: from ``queue_offset`` and ``physical_offset`` on."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int  # of all of them
    store_timestamp_ms: int
    sys_flag: int
    physical_offsets: Sequence[int]
    sizes: Sequence[int]
    tags_codes: Sequence[int]
    properties: Sequence[bytes]

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.size

    @property
    def messages(self) -> int:
        return len(self.sizes)

    @property
    def entries(self) -> list[LogEntry]:
        """The records, one by one."""
        return [
            LogEntry(
                self.topic,
                self.queue_id,
                queue_offset,
                physical_offset,
                size,
                tags_code,
                self.store_timestamp_ms,
                self.sys_flag,
                properties,
            )
            for queue_offset, (physical_offset, size, tags_code, properties) in enumerate(
                zip(
                    self.physical_offsets,
                    self.sizes,
                    self.tags_codes,
                    self.properties,
                    strict=True,
                ),
                self.queue_offset,
            )
        ]


class RecordRun:
    """Records without their places, for callers that check for themselves as for a PlainRecord.

    ``topic`` is the name of ``queue_key``, encoded; of each of the sequences, one belongs to each
    message. ``is_even`` says that all bodies are of one length, all properties as well, and all
    flags are the same. The callers also vouch that the whole fits into a segment.
    """

    __slots__ = (
        "_bodies",
        "_flags",
        "_is_even",
        "_origin",
        "_properties",
        "_store_host",
        "_tags_codes",
        "_topic",
        "queue_key",
        "size",
        "sizes",
    )

    def __init__(
        self,
        queue_key: tuple[str, int],
        topic: bytes,
        *,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        tags_codes: Sequence[int],
        flags: Sequence[int],
        is_even: bool,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        store_host: bytes,
    ) -> None:
        joint_length = len(topic) + _LENGTHS_BYTES
        if is_even:
            size = plain_size(len(bodies[0]), joint_length, len(properties[0]))
            self.sizes = [size] * len(bodies)
        else:
            self.sizes = [
                plain_size(len(body), joint_length, len(rest))
                for body, rest in zip(bodies, properties, strict=True)
            ]
        self.queue_key = queue_key
        self.size = sum(self.sizes)
        self._is_even = is_even
        self._topic = topic
        self._bodies = bodies
        self._properties = properties
        self._tags_codes = tags_codes
        self._flags = flags
        self._origin = sys_flag, born_timestamp_ms, born_host
        self._store_host = store_host

    @property
    def messages(self) -> int:
        return len(self.sizes)

    def place(
        self, chunk: Chunk, queue_offset: int, physical_offset: int, store_timestamp_ms: int
    ) -> LogRun:
        """Add the records, with their places filled in, to the bytes of a write."""
        topic, queue_id = self.queue_key
        shared = _SHARED.pack(
            *self._origin, encode_store_part(store_timestamp_ms, self._store_host)
        )
        offsets: Sequence[int]
        if self._is_even:
            size = self.sizes[0]
            offsets = range(physical_offset, physical_offset + self.size, size)
            self._add_even(chunk, queue_offset, offsets, shared)
        else:
            offsets = list(accumulate(self.sizes, initial=physical_offset))
            offsets.pop()  # where the last ends
            self._add_uneven(chunk, queue_offset, offsets, shared)
        return LogRun(
            topic,
            queue_id,
            queue_offset,
            physical_offset,
            self.size,
            store_timestamp_ms,
            self._origin[0],
            offsets,
            self.sizes,
            self._tags_codes,
            self._properties,
        )

    def _add_even(
        self, chunk: Chunk, queue_offset: int, offsets: Sequence[int], shared: bytes
    ) -> None:
        bodies, properties = self._bodies, self._properties
        length = len(properties[0])
        joint = encode_joint(self._topic, length)
        chunk += map(
            _even_layout(len(bodies[0]), len(joint), length).pack,
            repeat(_START.pack(self.sizes[0], MAGIC_V1)),
            [crc32(body) & 0x7FFFFFFF for body in bodies],
            repeat(_START.pack(self.queue_key[1], self._flags[0] & 0xFFFFFFFF)),
            range(queue_offset, queue_offset + len(bodies)),
            offsets,
            repeat(shared + _I32.pack(len(bodies[0]))),
            bodies,
            repeat(joint),
            properties,
        )

    def _add_uneven(
        self, chunk: Chunk, queue_offset: int, offsets: Sequence[int], shared: bytes
    ) -> None:
        bodies, properties = self._bodies, self._properties
        lengths = list(map(len, properties))
        joint_of = {length: encode_joint(self._topic, length) for length in set(lengths)}
        pieces: list[bytes | memoryview] = [b""] * (_PIECES * len(bodies))
        pieces[0::_PIECES] = map(
            _HEAD.pack,
            self.sizes,
            repeat(MAGIC_V1),
            [crc32(body) & 0x7FFFFFFF for body in bodies],
            repeat(self.queue_key[1]),
            self._flags,
            range(queue_offset, queue_offset + len(bodies)),
            offsets,
            repeat(shared),
            map(len, bodies),
        )
        pieces[1::_PIECES] = bodies
        pieces[2::_PIECES] = map(joint_of.__getitem__, lengths)
        pieces[3::_PIECES] = properties
        chunk += pieces


@lru_cache(maxsize=1024)
def _even_layout(body_length: int, joint_length: int, properties_length: int) -> Struct:
    """A whole record with parts of these many bytes."""
    return Struct(f">8sI8sqq52s{body_length}s{joint_length}s{properties_length}s")


# What can be appended, and where it went.
Appendable: TypeAlias = AppendableRecord | RecordRun
Placed: TypeAlias = LogEntry | LogRun


def count_messages(items: Sequence[Appendable] | Sequence[Placed]) -> int:
    """How many messages records, or places of records, are."""
    if not has_runs(items):
        return len(items)
    return len(items) + sum(
        [item.messages - 1 for item in items if isinstance(item, (RecordRun, LogRun))]
    )


def has_runs(items: Sequence[Appendable] | Sequence[Placed]) -> bool:
    """Whether any is a run: so cheap that it pays to ask before going about one by one."""
    kinds = set(map(type, items))
    return LogRun in kinds or RecordRun in kinds


def each_entry(placed: Iterable[Placed]) -> list[LogEntry]:
    """The records, one by one."""
    entries: list[LogEntry] = []
    for item in placed:
        if isinstance(item, LogRun):
            entries += item.entries
        else:
            entries.append(item)
    return entries
