"""Logging of a daemon: one rotating file in its logs folder, written by a separate thread.

Threads that log only put records into a bounded queue, so a slow disk never blocks the loop. When
the queue is full, records are dropped and counted, and the count is logged later; very long texts
are truncated. So memory is bounded, too.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import Full, Queue
from typing import Any, Final

from goddard.errors import ConfigError

# As in RocketMQ's logback files: 100 MB per file, five old files.
_FILE_BYTES: Final = 100 * 1024 * 1024
_OLD_FILES: Final = 5
_QUEUE_RECORDS: Final = 20_000
_MAX_TEXT_CHARS: Final = 16_384
_LINE: Final = "%(asctime)s %(levelname)s %(threadName)s - %(message)s"

_ROOT_LEVEL: Final = re.compile(r"<root\b[^>]*\blevel\s*=\s*[\"'](\w+)[\"']", re.IGNORECASE)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_LEVELS: Final = {
    "ALL": logging.DEBUG,
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}
_MAX_LOGBACK_BYTES: Final = 1024 * 1024


class _DroppingHandler(QueueHandler):
    """Puts records into the queue, or drops them if it is full; never blocks."""

    def __init__(self, records: Queue[logging.LogRecord]) -> None:
        super().__init__(records)
        self._records = records
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> Any:
        prepared = super().prepare(record)
        text = prepared.msg
        if len(text) > _MAX_TEXT_CHARS:
            cut = f"{text[:_MAX_TEXT_CHARS]}... ({len(text)} characters)"
            prepared.msg = prepared.message = cut
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped:
                self._records.put_nowait(self._dropped_record())
                self.dropped = 0
            self._records.put_nowait(record)
        except Full:
            self.dropped += 1

    def _dropped_record(self) -> logging.LogRecord:
        return logging.LogRecord(
            "goddard.logs",
            logging.WARNING,
            __file__,
            0,
            "%d log records were dropped because the disk is too slow",
            (self.dropped,),
            None,
        )


def logback_level(path: Path) -> int:
    """The level of the root logger in a logback file; INFO if the file or the level is missing.

    Nothing else in the file has an effect. An invalid file never prevents a start.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_LOGBACK_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return logging.INFO
    found = _ROOT_LEVEL.search(_COMMENT.sub("", text))
    return _LEVELS.get(found[1].upper(), logging.INFO) if found else logging.INFO


@contextlib.contextmanager
def logging_to(file: Path, level: int = logging.INFO) -> Iterator[None]:
    """Write Goddard's log to this file until the block ends; then all records are written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        writer = RotatingFileHandler(
            file, maxBytes=_FILE_BYTES, backupCount=_OLD_FILES, encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError(
            f"the log file {file} cannot be written: {error.strerror}; "
            "make the folder writable or choose another"
        ) from error
    writer.setFormatter(logging.Formatter(_LINE))
    records: Queue[logging.LogRecord] = Queue(_QUEUE_RECORDS)
    handler = _DroppingHandler(records)
    listener = QueueListener(records, writer)
    logger = logging.getLogger("goddard")
    previous = (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    listener.start()
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = previous
        listener.stop()
        writer.close()
