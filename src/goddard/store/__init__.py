"""The message store: RocketMQ's files, read and written, crash-safe. Synchronous throughout.

``MessageStore`` is what other packages use: ``StoreConfig`` sets it up, records go in as
``PreparedRecord`` (checked and encoded here) or ``PlainRecord`` (checked by the caller), a
``LogEntry`` says where one went. ``inspect`` and ``verify`` look at a directory without opening it,
and ``repair`` mends one.

From the bottom up: ``files`` (every call to the file system), ``segment`` and ``worker``,
``commitlog`` with ``flush``, ``consumequeue`` and ``queues``, ``index``, ``dispatch``; ``recovery``
decides and ``restore`` acts when a store opens; ``retention`` decides what is deleted, ``upkeep``
does it, writes queues and index and moves the checkpoint; ``reading`` answers pulls and queries.
``tables`` keeps the metadata. Threads and locks: ``docs/ARCHITECTURE.md``.
"""

from goddard.extras import missing_extra

try:
    from goddard.store.config import FlushMode, StoreConfig
    from goddard.store.consumequeue import Boundary
    from goddard.store.errors import (
        MessageIllegalError,
        StoreCorruptError,
        StoreDiskError,
        StoreFullError,
        StoreLayoutError,
        StoreLockedError,
        StoreUnavailableError,
    )
    from goddard.store.reading import GetResult, GetStatus, QueryResult
    from goddard.store.records import LogEntry, PlainRecord, PreparedRecord
    from goddard.store.recovery import RecoveryReport
    from goddard.store.store import MessageStore
except ImportError as error:
    raise missing_extra(error) or error from None

__all__ = [
    "Boundary",
    "FlushMode",
    "GetResult",
    "GetStatus",
    "LogEntry",
    "MessageIllegalError",
    "MessageStore",
    "PlainRecord",
    "PreparedRecord",
    "QueryResult",
    "RecoveryReport",
    "StoreConfig",
    "StoreCorruptError",
    "StoreDiskError",
    "StoreFullError",
    "StoreLayoutError",
    "StoreLockedError",
    "StoreUnavailableError",
]
