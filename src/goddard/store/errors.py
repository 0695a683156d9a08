"""What can go wrong in the store, one type per thing the caller can do about it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from goddard.errors import StoreError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class MessageIllegalError(StoreError):
    """The message breaks a limit of the store; nothing was written, sending it again is useless."""


class StoreUnavailableError(StoreError):
    """The store takes no messages now (closed, read-only, disk full or failed); reads may go on."""


class StoreDiskError(StoreError):
    """The disk refused a read, write or sync. Nothing of the failed call is visible."""

    def __init__(self, message: str, path: Path | None = None) -> None:
        super().__init__(message)
        self.path = path


class StoreFullError(StoreDiskError):
    """No space left; the store works again once there is."""


class QueryCancelledError(StoreError):
    """The caller of a query no longer wants its result."""


class StoreLockedError(StoreError):
    """Another process (ours or Java's) holds the store directory."""


class StoreLayoutError(StoreError):
    """The directory is not a store that this configuration can open; the text says which file."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


class StoreCorruptError(StoreError):
    """Bytes that were safely on disk no longer read as records, and good records follow them.

    Opening stops here: cutting the log would lose the records after the damage.
    """

    def __init__(self, message: str, path: Path, physical_offset: int) -> None:
        super().__init__(message)
        self.path = path
        self.physical_offset = physical_offset


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block into the store's error for it."""
    try:
        yield
    except OSError as error:
        raise disk_error(action, path, error) from error


def disk_error(action: str, path: Path, error: OSError) -> StoreDiskError:
    kind = StoreFullError if error.errno in _FULL else StoreDiskError
    return kind(f"cannot {action} {path}: {error.strerror or error}", path)
