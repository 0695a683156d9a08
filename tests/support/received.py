"""Received messages, made without a broker."""

from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.record import Host, Record

_HOST = Host(bytes(4), 1)


def received(queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
    """A message at an offset of a queue."""
    record = Record(
        topic=queue.topic,
        body=b"x",
        queue_id=queue.queue_id,
        queue_offset=queue_offset,
        physical_offset=0,
        store_timestamp_ms=0,
        born_timestamp_ms=0,
        born_host=_HOST,
        store_host=_HOST,
    )
    return ReceivedMessage.from_record(record, queue.broker_name)
