"""The message store: RocketMQ's files, read and written, crash-safe. Synchronous throughout.

``MessageStore`` is what other packages use: ``StoreConfig`` configures it, records are given as
``PreparedRecord`` (checked and encoded by ``prepare_record``), and a ``LogEntry`` says where a
record was stored.

``files`` makes every call to the file system and ``threads`` runs jobs. ``log`` is the commit log:
segments, flushing, dispatch, reading, retention. ``queues`` has the consume queues, ``index`` the
key index, ``recovery`` opens a store after a clean or an unclean stop. ``check`` inspects, verifies
and repairs a directory that is not open. ``tables`` keeps the metadata. Threads and locks are in
``docs/ARCHITECTURE.md``.
"""

from goddard.extras import missing_extra

try:
    from goddard.store.config import FlushMode, StoreConfig
    from goddard.store.errors import (
        MessageIllegalError,
        StoreCorruptError,
        StoreDiskError,
        StoreFullError,
        StoreLayoutError,
        StoreLockedError,
        StoreUnavailableError,
    )
    from goddard.store.log.reading import GetResult, GetStatus, QueryResult
    from goddard.store.log.records import LogEntry, PreparedRecord, prepare_record
    from goddard.store.queues.queue import Boundary
    from goddard.store.recovery.decide import RecoveryReport
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
    "prepare_record",
]
