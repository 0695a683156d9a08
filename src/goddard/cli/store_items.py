"""The items of a store for ``goddard store dump``: records, queue entries and index entries.

Read-only and lazy, because a store is larger than memory. A damaged item is listed with its error.
"""

from collections.abc import Iterator
from typing import Any

from goddard.errors import ProtocolError
from goddard.protocol.compression import decompress
from goddard.protocol.hashing import body_crc
from goddard.protocol.ids import offset_message_id
from goddard.protocol.message import decode_properties
from goddard.protocol.record import Record, decode_record
from goddard.store.check.inspect import IndexView, QueueView, StoreView, is_entry
from goddard.store.recovery.scan import record_positions


def records(
    view: StoreView, topic: str | None, queue: int | None, first: int, end: int, body: str
) -> Iterator[dict[str, Any]]:
    for file in view.log_files():
        if file.end <= first or file.start >= end or not file.size_bytes:
            continue
        data = file.map()
        raw = memoryview(data)
        for position in record_positions(data):
            if file.start + position < first:
                continue
            if file.start + position >= end:
                return
            try:
                record, _ = decode_record(
                    raw, position, check_crc=False, max_body_bytes=file.size_bytes
                )
            except ProtocolError as error:
                yield {"physicalOffset": file.start + position, "error": str(error)}
                continue
            if topic in (None, record.topic) and queue in (None, record.queue_id):
                yield _record_json(record, file.start + position, body)


def _record_json(record: Record, physical_offset: int, body: str) -> dict[str, Any]:
    item: dict[str, Any] = {
        "physicalOffset": physical_offset,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "storeMs": record.store_timestamp_ms,
        "bornMs": record.born_timestamp_ms,
        "storeHost": str(record.store_host),
        "bornHost": str(record.born_host),
        "messageId": offset_message_id(record.store_host, physical_offset),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyLength": len(record.body),
        "bodyCrc": record.body_crc,
        "properties": decode_properties(record.properties),
    }
    if record.body and body_crc(record.body) != record.body_crc:
        item["error"] = "the CRC of the body differs"
    if body != "none":
        item["body"] = _body_text(record, body)
    return item


def _body_text(record: Record, form: str) -> str:
    try:
        content = decompress(record.body, record.sys_flag, max_bytes=64 * 1024 * 1024)
    except ProtocolError:
        content = record.body
    return content.hex() if form == "hex" else content.decode("utf-8", "replace")


def queue_entries(
    view: StoreView, topic: str | None, queue: int | None, first: int, end: int
) -> Iterator[dict[str, Any]]:
    for each in view.queues():
        if topic in (None, each.topic) and queue in (None, each.queue_id):
            yield from _entries_of(each, first, end)


def _entries_of(queue: QueueView, first: int, end: int) -> Iterator[dict[str, Any]]:
    for number, entries in queue.chunks(first):
        used = is_entry(entries)
        for place, entry in enumerate(entries[: max(end - number, 0)]):
            if used[place]:
                yield {
                    "topic": queue.topic,
                    "queueId": queue.queue_id,
                    "queueOffset": number + place,
                    "physicalOffset": int(entry["physical_offset"]),
                    "size": int(entry["size"]),
                    "tagCode": int(entry["tag_code"]),
                }
            elif int(entry["size"]) == 0:
                return


def index_entries(view: StoreView, first: int, end: int) -> Iterator[dict[str, Any]]:
    for file in view.index_files():
        index = IndexView(file)
        if index.slot_count is None:
            yield {"file": file.path.name, "error": "its slot count cannot be determined"}
            continue
        entries = index.entries(index.slot_count)
        for number in range(max(first, 1), min(end, len(entries))):
            entry = entries[number]
            yield {
                "file": file.path.name,
                "number": number,
                "keyHash": int(entry["key_hash"]),
                "slot": abs(int(entry["key_hash"])) % index.slot_count,
                "physicalOffset": int(entry["physical_offset"]),
                "seconds": int(entry["seconds"]),
                "previous": int(entry["previous"]),
            }


def has_topic(view: StoreView, topic: str) -> bool:
    """Whether the topic has queues or, after its deletion, records."""
    if any(queue.topic == topic for queue in view.queues()):
        return True
    return next(records(view, topic, None, 0, 1 << 63, "none"), None) is not None
