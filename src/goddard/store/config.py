"""Settings of the store, with the names that ``broker.conf`` has for them.

``StoreConfig.from_properties`` takes the strings of a properties file; unknown names are left to
the other parts of the broker.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from goddard.errors import ConfigError

QUEUE_ENTRY_BYTES = 20
# A hundred years.
_MOST_RESERVED_HOURS: Final = 876_000


class FlushMode(Enum):
    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


def _wire(name: str, value: Any) -> Any:
    return field(default=value, metadata={"wire": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the store lives and how it behaves. Sizes must stay what the directory was made with.

    Hours, days and ratios are as in RocketMQ; ``deleteWhen`` is a list of hours of local time.
    """

    root: Path
    # The folder of the commit log where it is not in the root (a disk of its own).
    log_path: Path | None = None
    segment_bytes: int = _wire("mappedFileSizeCommitLog", 1 << 30)
    queue_file_bytes: int = _wire("mappedFileSizeConsumeQueue", 300_000 * QUEUE_ENTRY_BYTES)
    index_slots: int = _wire("maxHashSlotNum", 5_000_000)
    index_entries: int = _wire("maxIndexNum", 20_000_000)
    max_message_bytes: int = _wire("maxMessageSize", 4 << 20)
    flush_mode: FlushMode = field(default=FlushMode.ASYNC, metadata={"wire": "flushDiskType"})
    flush_interval_ms: int = _wire("flushIntervalCommitLog", 500)
    flush_least_pages: int = _wire("flushCommitLogLeastPages", 4)
    flush_thorough_ms: int = _wire("flushCommitLogThoroughInterval", 10_000)
    flush_queue_interval_ms: int = _wire("flushIntervalConsumeQueue", 1_000)
    # Queues and index are synced, and the checkpoint moved, this often: less work is repeated after
    # a crash, and Java, whose own interval differs, takes any.
    checkpoint_interval_ms: int = 10_000
    retention_interval_ms: int = _wire("cleanResourceInterval", 10_000)
    reserved_hours: int = _wire("fileReservedTime", 72)
    delete_when: str = _wire("deleteWhen", "04")
    delete_batch_files: int = _wire("deleteFileBatchMax", 10)
    disk_high_ratio: float = _wire("diskMaxUsedSpaceRatio", 0.75)
    disk_force_ratio: float = _wire("diskSpaceCleanForciblyRatio", 0.85)
    disk_full_ratio: float = _wire("diskSpaceWarningLevelRatio", 0.90)
    is_forced_cleaning_enabled: bool = _wire("cleanFileForciblyEnable", True)
    is_crc_checked: bool = _wire("checkCRCOnRecover", True)
    delay_levels: str = _wire(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    # 5.4 also indexes ``topic#T#tag``; older brokers do not, and none minds the extra entries.
    is_tag_indexed: bool = True
    # A record further behind the end of the log counts as no longer in memory: percent of the
    # machine's memory, unless bytes are given.
    memory_percent: int = _wire("accessMessageInMemoryMaxRatio", 40)
    memory_bytes: int | None = None
    max_get_memory_bytes: int = _wire("maxTransferBytesOnMessageInMemory", 256 << 10)
    max_get_memory_count: int = _wire("maxTransferCountOnMessageInMemory", 32)
    max_get_disk_bytes: int = _wire("maxTransferBytesOnMessageInDisk", 64 << 10)
    max_get_disk_count: int = _wire("maxTransferCountOnMessageInDisk", 8)
    # Of a pull that asks for more bytes than RocketMQ's clients do; 0: it has the limits above.
    max_bulk_read_bytes: int = _wire("maxTransferBytesOnBulkRead", 1 << 20)
    is_prezeroed: bool | None = None  # None: when flushing is SYNC, where it halves the wait
    open_queue_files: int = 512

    def __post_init__(self) -> None:
        if self.segment_bytes < 1024 or self.segment_bytes > 0x7FFFFFFF:
            raise ConfigError(f"mappedFileSizeCommitLog {self.segment_bytes} is not 1 KiB to 2 GiB")
        if self.queue_file_bytes < QUEUE_ENTRY_BYTES or self.queue_file_bytes % QUEUE_ENTRY_BYTES:
            raise ConfigError(
                f"mappedFileSizeConsumeQueue {self.queue_file_bytes} is not a multiple of"
                f" {QUEUE_ENTRY_BYTES}"
            )
        if self.index_slots < 1 or self.index_entries < 2:
            raise ConfigError("an index file needs at least 1 slot and 2 entries")
        if not 0 < self.disk_high_ratio <= self.disk_force_ratio <= self.disk_full_ratio <= 1:
            raise ConfigError("the disk ratios must rise: high, forced cleaning, full")
        if self.max_message_bytes < 1:
            raise ConfigError("maxMessageSize must be positive")
        # With an age of zero or less, every file except the last would be expired.
        if not 1 <= self.reserved_hours <= _MOST_RESERVED_HOURS:
            raise ConfigError(
                f"fileReservedTime={self.reserved_hours}: a number from 1 to"
                f" {_MOST_RESERVED_HOURS} is needed"
            )
        self.delay_times_ms()
        self.delete_hours()

    @classmethod
    def from_properties(cls, root: Path, properties: Mapping[str, str]) -> Self:
        """Take the settings that are the store's from the lines of a ``broker.conf``."""
        values: dict[str, Any] = {}
        for item in fields(cls):
            wire = item.metadata.get("wire")
            text = properties.get(wire) if wire else None
            if text is not None:
                values[item.name] = _convert(str(wire), text.strip(), item.default)
        for name in ("disk_high_ratio", "disk_force_ratio", "disk_full_ratio"):
            if values.get(name, 0) > 1:  # Java's files have percents
                values[name] /= 100
        high = values.get("disk_high_ratio", 0.75)
        values.setdefault("disk_force_ratio", max(high, 0.85))
        values.setdefault("disk_full_ratio", max(values["disk_force_ratio"], 0.90))
        size = values.get("queue_file_bytes")
        if size is not None:  # Java rounds up to whole entries
            values["queue_file_bytes"] = -(-size // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES
        return cls(root=root, **values)

    @property
    def log_directory(self) -> Path:
        return self.log_path or self.root / "commitlog"

    @property
    def prezero(self) -> bool:
        return self.flush_mode is FlushMode.SYNC if self.is_prezeroed is None else self.is_prezeroed

    @property
    def in_memory_bytes(self) -> int:
        if self.memory_bytes is not None:
            return self.memory_bytes
        return _physical_memory_bytes() * self.memory_percent // 100

    @property
    def max_record_bytes(self) -> int:
        return min(self.max_message_bytes + 64 * 1024, self.segment_bytes - 8)

    def delay_times_ms(self) -> tuple[int, ...]:
        """The delay of each level; level 1 is the first."""
        units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        times = []
        for text in self.delay_levels.split():
            if text[-1] not in units or not text[:-1].isdecimal():
                raise ConfigError(f"messageDelayLevel has {text!r}; 10s, 5m, 2h or 1d is meant")
            times.append(int(text[:-1]) * units[text[-1]])
        return tuple(times)

    def delete_hours(self) -> frozenset[int]:
        """The hours of the day at which expired files are deleted."""
        texts = [text.strip() for text in self.delete_when.split(";") if text.strip()]
        if not all(re.fullmatch("[01]?[0-9]|2[0-3]", text) for text in texts):
            raise ConfigError(f"deleteWhen={self.delete_when[:80]}: hours 00 to 23 are needed")
        return frozenset(map(int, texts))


@cache
def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _convert(name: str, text: str, example: Any) -> Any:
    try:
        if isinstance(example, bool):
            return text.lower() == "true"
        if isinstance(example, FlushMode):
            if text not in {mode.value for mode in FlushMode}:
                modes = " or ".join(sorted((mode.value for mode in FlushMode), reverse=True))
                raise ConfigError(f"{name} cannot be {text[:80]!r}; {modes}")
            return FlushMode(text)
        return type(example)(text)
    except ValueError as error:
        raise ConfigError(f"{name} cannot be {text!r}") from error
