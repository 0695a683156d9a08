"""What can go wrong in the store, one type per thing the caller can do about it."""

from pathlib import Path

from goddard.errors import StoreError


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
