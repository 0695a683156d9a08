"""The words of a verification: what can be wrong in a store, where, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

_REPAIR: Final = "`goddard store repair` rebuilds it from the log"
_RESTORE: Final = (
    "restore the file from a replica or a backup; `goddard store repair --cut-corrupt` cuts the "
    "log here and sets what follows aside"
)


class Kind(Enum):
    """What is wrong; the value is the name in reports."""

    FILE_SIZE = "file-size"
    MISSING_FILE = "missing-file"
    FOREIGN_FILE = "foreign-file"
    UNREADABLE = "unreadable"
    BAD_RECORD = "bad-record"
    BAD_CRC = "bad-crc"
    MISPLACED = "misplaced-record"
    TORN_TAIL = "torn-tail"
    BAD_FILLER = "bad-filler"
    NO_QUEUE = "no-queue"
    NO_ENTRY = "no-queue-entry"
    BAD_ENTRY = "bad-queue-entry"
    DANGLING_ENTRY = "dangling-queue-entry"
    PAST_END = "entry-past-end"
    NO_INDEX = "not-indexed"
    BAD_INDEX = "bad-index"
    CHECKPOINT = "checkpoint"
    METADATA = "metadata"
    BEHIND = "behind"
    DELETED_TOPIC = "deleted-topic"


REMEDIES: Final[dict[Kind, str]] = {
    Kind.FILE_SIZE: "restore the file: a broker does not start with it; if it is the last one of "
    "the log, `goddard store repair` makes it whole and keeps its records",
    Kind.MISSING_FILE: "restore the file; messages in it are lost otherwise",
    Kind.FOREIGN_FILE: "move it away: a Java broker does not start with it",
    Kind.UNREADABLE: _RESTORE,
    Kind.BAD_RECORD: _RESTORE,
    Kind.BAD_CRC: _RESTORE,
    Kind.MISPLACED: _RESTORE,
    Kind.TORN_TAIL: "the next start cuts it, or `goddard store repair`; it was never acknowledged "
    "as flushed",
    Kind.BAD_FILLER: _RESTORE,
    Kind.NO_QUEUE: _REPAIR,
    Kind.NO_ENTRY: _REPAIR,
    Kind.BAD_ENTRY: _REPAIR,
    Kind.DANGLING_ENTRY: _REPAIR,
    Kind.PAST_END: "records of the log's end are gone, or were cut by an earlier recovery; the "
    "next start, or `goddard store repair`, drops the entries",
    Kind.NO_INDEX: _REPAIR,
    Kind.BAD_INDEX: _REPAIR,
    Kind.CHECKPOINT: "delete it: the next start then checks everything",
    Kind.METADATA: "restore it from its .bak, or from a replica",
    Kind.BEHIND: "the next start mends it",
    Kind.DELETED_TOPIC: "nothing: the records go when their file expires",
}


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it should be, where it is, and what to do."""

    kind: Kind
    path: Path
    position: int
    length_bytes: int
    detail: str
    physical_offset: int | None = None
    # Not damage, but worth a line: what the next start mends, what a deleted topic left behind.
    is_notice: bool = False

    @property
    def remedy(self) -> str:
        return REMEDIES[self.kind]


@dataclass(slots=True)
class Report:
    """What a verification saw. Damages beyond ``max_kept`` are counted, not kept."""

    max_kept: int = 10_000
    log_files: int = 0
    log_bytes: int = 0
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    min_physical_offset: int = 0
    max_physical_offset: int = 0
    is_running: bool = False
    is_unclean: bool = False
    seconds: float = 0.0
    damage_count: int = 0
    notice_count: int = 0
    damages: list[Damage] = field(default_factory=list)
    on_damage: Callable[[Damage], None] | None = None

    def add(self, damage: Damage) -> None:
        if damage.is_notice:
            self.notice_count += 1
        else:
            self.damage_count += 1
        if len(self.damages) < self.max_kept:
            self.damages.append(damage)
        if self.on_damage is not None:
            self.on_damage(damage)

    @property
    def is_clean(self) -> bool:
        return self.damage_count == 0

    @property
    def may_be_behind(self) -> bool:
        """Whether dispatch may not have reached the end of the log."""
        return self.is_running or self.is_unclean
