"""Messages that ``goddard consume --group`` takes from its consumer."""

from typing import cast

from goddard.cli.verbs.messages.consume import polled
from goddard.client.consume.lite import LitePullConsumer
from goddard.client.message import ReceivedMessage
from goddard.client.values import MessageQueue
from goddard.protocol.record import Host, Record

HERE = Host.parse("127.0.0.1:10911")
FIRST, SECOND = (MessageQueue("orders", "broker-a", number) for number in range(2))


def batch(queue: MessageQueue) -> list[ReceivedMessage]:
    """Three messages of a queue."""
    records = (
        Record(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            physical_offset=offset,
            store_timestamp_ms=1,
            store_host=HERE,
            born_timestamp_ms=1,
            born_host=HERE,
            body=b"",
        )
        for offset in range(3)
    )
    return [ReceivedMessage.from_record(record, queue.broker_name) for record in records]


class Consumer:
    """Has the batches of both queues, and then nothing."""

    def __init__(self) -> None:
        self.assigned = {FIRST, SECOND}
        self._batches = [batch(FIRST), batch(SECOND)]

    async def poll(self, timeout_ms: int) -> list[ReceivedMessage]:
        return self._batches.pop(0) if self._batches else []

    def assignment(self) -> set[MessageQueue]:
        return self.assigned


async def test_the_rest_of_a_batch_is_left_out_when_its_queue_moves_to_another_member() -> None:
    consumer = Consumer()
    seen = []
    async for message in polled(cast("LitePullConsumer", consumer), follow=False):
        seen.append((message.queue, message.queue_offset))
        if message.queue == FIRST and message.queue_offset == 1:
            consumer.assigned.remove(FIRST)
    assert seen == [(FIRST, 0), (FIRST, 1), (SECOND, 0), (SECOND, 1), (SECOND, 2)]
