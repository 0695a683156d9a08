"""Messages that are stored already, and on their way into the store once more.

Retries, transactions and the administrator's commands take a record out of the log and write it
again, changed. What they read may come from another broker's hands, so nothing in it is trusted.
"""

import logging
from typing import Final

from goddard.broker.sending.message_rules import Incoming
from goddard.errors import ProtocolError
from goddard.protocol.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    decode_properties,
)
from goddard.protocol.record import Record, decode_record
from goddard.store.store import MessageStore

_logger: Final = logging.getLogger(__name__)


def find_stored(store: MessageStore, physical_offset: int) -> Record | None:
    """The record that starts at an offset of the log; None when none does, or it is damaged."""
    view = store.lookup(physical_offset)
    return None if view is None else read_stored(store, view)


def read_stored(store: MessageStore, view: memoryview) -> Record | None:
    """A record that the store gave; None, and a line in the log, when it is damaged."""
    try:
        record, _ = decode_record(view, max_body_bytes=store.config.max_record_bytes)
    except ProtocolError as error:
        _logger.warning("a stored record cannot be read and is passed over: %s", error)
        return None
    return record


def incoming_again(record: Record) -> Incoming:
    """The message of a record, to be changed and stored again."""
    return Incoming(
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
    """Topic and queue that a delayed or half message is meant for; None when it does not say."""
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = number(properties.get(PROPERTY_REAL_QUEUE_ID))
    return None if not topic or queue_id is None or queue_id < 0 else (topic, queue_id)


def number(text: str | None) -> int | None:
    """A number in a property, as Java's parseLong reads it; None when it is none."""
    if text is None:
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None
