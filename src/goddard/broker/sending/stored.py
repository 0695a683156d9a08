"""Reading stored messages in order to store them again, and waiting for the disk.

Retries, delays, transactions and administrative commands read a record from the log, change it and
store it again. The log may have been written by another broker, so nothing in a record is trusted.
"""

import asyncio
import contextlib
import logging
from typing import Final

from goddard.broker.sending.message_rules import NewMessage
from goddard.errors import ProtocolError, StoreError
from goddard.protocol.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    decode_properties,
)
from goddard.protocol.record import Record, decode_record
from goddard.store.store import MessageStore

_logger: Final = logging.getLogger(__name__)


def find_stored(store: MessageStore, physical_offset: int) -> Record | None:
    """The record at an offset of the log; None if no record starts there or it is damaged."""
    view = store.lookup(physical_offset)
    return None if view is None else read_stored(store, view)


def read_stored(store: MessageStore, view: memoryview) -> Record | None:
    """Decode a record of the store; if it is damaged, log that and return None."""
    try:
        record, _ = decode_record(view, max_body_bytes=store.config.max_record_bytes)
    except ProtocolError as error:
        _logger.warning("a stored record cannot be read and is passed over: %s", error)
        return None
    return record


def message_of(record: Record) -> NewMessage:
    """The message of a record, for a caller that changes and stores it."""
    return NewMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        body=record.body,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        properties=decode_properties(record.properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
    )


def real_place(properties: dict[str, str]) -> tuple[str, int] | None:
    """Topic and queue of a delayed or half message before it was moved; None if not given."""
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = number(properties.get(PROPERTY_REAL_QUEUE_ID))
    return None if not topic or queue_id is None or queue_id < 0 else (topic, queue_id)


def number(text: str | None) -> int | None:
    """Parse a number in a property as Java's parseLong does; None if it is not a number."""
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most ``seconds``; returns whether it happened."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def wait_durable(store: MessageStore, end_offset: int) -> None:
    """Wait until the log is on disk up to an offset; StoreError if that stays unknown."""
    loop = asyncio.get_running_loop()
    synced: asyncio.Future[StoreError | None] = loop.create_future()

    def resolve(error: StoreError | None) -> None:
        if not synced.done():
            synced.set_result(error)

    def bridge(error: StoreError | None) -> None:
        # At shutdown the flushing thread may run longer than the loop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, error)

    store.wait_durable(end_offset, bridge)
    error = await synced
    if error is not None:
        raise error
