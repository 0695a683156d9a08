"""Small stores for tests: small segments, a manual clock, jobs that the test controls."""

from collections import deque
from pathlib import Path
from typing import Any

from goddard.environment import Environment
from goddard.environment.files import Files, SystemFiles
from goddard.environment.threads import Job
from goddard.protocol.record import Host, Record, encode_record
from goddard.store.config import StoreConfig
from goddard.store.log.records import PreparedRecord, prepare_record
from goddard.store.store import MessageStore
from tests.support.clock import ManualClock

HOST = Host.parse("127.0.0.1:10911")
# Of a record with IPv4 hosts, before its body.
HEAD_BYTES = 88


class InlineWorker:
    """Runs each job at once in the caller; while ``is_held``, only when ``run`` is called."""

    def __init__(self) -> None:
        self.is_held = False
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        if not self.is_held:
            self.run()

    def every(self, interval_ms: int, job: Job) -> None:
        """Does nothing: the test calls periodic jobs."""

    def pause(self, seconds: float) -> None:
        """Does not wait."""

    def run(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def stop(self) -> None:
        self.run()


def prepared(
    topic: str = "TopicA",
    queue_id: int = 0,
    body: bytes = b"hello",
    *,
    tags: str = "",
    keys: str = "",
    unique_key: str = "",
    properties: bytes = b"",
    **fields: Any,
) -> PreparedRecord:
    """A record to append, with the properties that queues and the index use."""
    for name, value in (("TAGS", tags), ("KEYS", keys), ("UNIQ_KEY", unique_key)):
        if value:
            properties += f"{name}\x01{value}\x02".encode()
    values: dict[str, Any] = {
        "born_timestamp_ms": 1_700_000_000_000,
        "born_host": HOST,
        "store_host": HOST,
    }
    values.update(fields)
    return prepare_record(
        topic=topic, queue_id=queue_id, body=body, properties=properties, **values
    )


class SmallStore:
    """A MessageStore whose clock, files and workers the test controls."""

    def __init__(
        self,
        root: Path,
        *,
        files: Files | None = None,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        settings = {
            "segment_bytes": 8192,
            "queue_file_bytes": 400,
            "index_slots": 16,
            "index_entries": 40,
            "memory_bytes": 1 << 30,
        } | settings
        self.clock = clock or ManualClock()
        self.flush_worker = InlineWorker()
        self.file_worker = InlineWorker()
        self.upkeep_worker = InlineWorker()
        self.store = MessageStore(
            StoreConfig(root=root, **settings),
            environment=Environment(
                clock=self.clock,
                files=files or SystemFiles(),
                new_worker={
                    "store-flush": self.flush_worker,
                    "store-files": self.file_worker,
                    "store-upkeep": self.upkeep_worker,
                }.__getitem__,
            ),
        )

    def __enter__(self) -> MessageStore:
        self.store.open()
        return self.store

    def __exit__(self, *_: object) -> None:
        self.store.close()


def put_forged(store: MessageStore, topic: str, properties: bytes, queue_offset: int = 0) -> int:
    """Store a message whose body is a complete record; returns the log offset of that record."""
    physical_offset = store.log_max_offset + HEAD_BYTES
    inner = encode_record(
        Record(
            topic=topic,
            queue_id=0,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            store_timestamp_ms=1,
            store_host=HOST,
            born_timestamp_ms=1,
            born_host=HOST,
            body=b"forged",
            properties=properties,
        )
    )
    entry = store.put(prepared("Attack", 0, body=inner))
    assert entry.physical_offset + HEAD_BYTES == physical_offset
    return physical_offset
