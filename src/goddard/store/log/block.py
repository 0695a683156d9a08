"""Blocks: records that were encoded elsewhere, complete but for their places.

A plain record (``records``) is a Python object from its request to the key index. The messages of
a block are bytes and columns instead: the commit log gives it places, then queues and index take
what they need of all its records at once.
"""

from typing import Protocol, TypeAlias

from goddard.store.log.records import LogEntry

QueueKey: TypeAlias = tuple[str, int]


class RecordBlock(Protocol):
    """``goddard.core.staged_sends.StagedSends`` is one. Its records all go to queues.

    First ``set_queue_offsets``, then ``place`` until ``is_placed``; the rest is valid after that.
    """

    @property
    def message_count(self) -> int: ...

    @property
    def size(self) -> int:
        """Of all records, in bytes."""
        ...

    @property
    def queue_keys(self) -> list[QueueKey]: ...

    @property
    def queue_messages(self) -> list[int]:
        """How many records go to each of ``queue_keys``."""
        ...

    def set_queue_offsets(self, queue_offsets: list[int]) -> None:
        """Say at which queue offset the records of each of ``queue_keys`` begin."""
        ...

    def place(self, physical_offset: int, room: int, now_ms: int) -> bytes:
        """The next records, as many as fit into ``room`` bytes, with their places filled in."""
        ...

    @property
    def is_placed(self) -> bool: ...

    @property
    def physical_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def store_timestamp_ms(self) -> int: ...

    def queue_entries(self) -> list[tuple[QueueKey, int, bytes, int]]:
        """For each queue its key, first queue offset, entries, and where its last record ends."""
        ...

    def key_columns(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Properties back to back, where each ends (i64), the hash of ``topic#`` (u32), system
        flags (i64), physical offsets (i64); in the byte order of the machine, all text ASCII."""
        ...

    def entries(self) -> list[tuple[str, int, int, int, int, int, int, int, bytes]]:
        """The records one by one, with the values of a LogEntry."""
        ...


# What one append put into the log.
Placed: TypeAlias = list[LogEntry] | RecordBlock


def count_messages(placed: Placed) -> int:
    return len(placed) if isinstance(placed, list) else placed.message_count


def each_entry(placed: Placed) -> list[LogEntry]:
    if isinstance(placed, list):
        return placed
    return [LogEntry(*values) for values in placed.entries()]


def first_offset(placed: Placed) -> int:
    """Where in the log the first record is."""
    return placed[0].physical_offset if isinstance(placed, list) else placed.physical_offset


def end_offset(placed: Placed) -> int:
    """Where in the log the last record ends."""
    return placed[-1].end_offset if isinstance(placed, list) else placed.end_offset
