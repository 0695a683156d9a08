"""Parts of a broker around a small store, for tests of one part without a complete broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from goddard.broker.sending.appender import Appender
from goddard.broker.sending.message_rules import MessageWriter
from goddard.broker.settings import BrokerConfig, Settings
from goddard.broker.tables.topics import Groups, Topics
from goddard.protocol.message import decode_properties
from goddard.protocol.record import Record, decode_record
from goddard.store.log.records import LogEntry, PreparedRecord
from goddard.store.tables import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicTable,
)
from tests.support.clock import ManualClock
from tests.support.store import SmallStore


class BrokerParts:
    """Store, tables and writer; the test advances the clock, and the store's workers run inline.

    A second instance on the same directory is the broker after a restart: it loads the saved
    tables.
    """

    def __init__(
        self, root: Path, clock: ManualClock | None, config: dict[str, Any], store: dict[str, Any]
    ) -> None:
        self.clock = clock or ManualClock()
        self.small = SmallStore(root, clock=self.clock, **{"segment_bytes": 1 << 16} | store)
        self.store = self.small.store
        self.settings = Settings(BrokerConfig(store_path=str(root), **config))
        directory = root / "config"
        self.delay_table = DelayOffsetTable(directory, self.clock)
        self.offset_table = ConsumerOffsetTable(directory, self.clock)
        topic_table = TopicTable(directory, self.clock)
        group_table = SubscriptionGroupTable(directory, self.clock)
        self.tables = (self.delay_table, self.offset_table, topic_table, group_table)
        for table in self.tables:
            table.load()
        self.topics = Topics(topic_table, self.settings, clock=self.clock)
        self.topics.add_system_topics()
        self.groups = Groups(group_table, self.settings)
        self.appender = Appender(self.store, asyncio.get_running_loop(), clock=self.clock)
        self.writer = MessageWriter(self.appender, self.settings)

    def put(self, record: PreparedRecord) -> LogEntry:
        return self.store.put(record)

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All messages that are visible to consumers of a queue."""
        found: list[Record] = []
        queue_offset = self.store.min_offset(topic, queue_id)
        while (result := self.store.get(topic, queue_id, queue_offset, 32)).records:
            found += [decode_record(view)[0] for view in result.records]
            queue_offset = result.next_offset
        return found

    def save_tables(self) -> None:
        for table in self.tables:
            table.save()


@asynccontextmanager
async def broker_parts(
    root: Path,
    *,
    clock: ManualClock | None = None,
    crash: bool = False,
    store: dict[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[BrokerParts]:
    """Parts around an open store, with settings for the store and for the broker.

    ``crash``: at the end the store is abandoned and the tables are not saved.
    """
    parts = BrokerParts(root, clock, config, store or {})
    parts.store.open()
    try:
        yield parts
        await parts.appender.drain()
        if not crash:
            parts.save_tables()
    finally:
        if crash:
            parts.store.abandon()
        else:
            parts.store.close()


def properties_of(record: Record) -> dict[str, str]:
    return decode_properties(record.properties)
