"""Consume the messages of each key in the order in which they were sent.

Messages with the same key go to the same queue, and an orderly consumer processes each queue one
message at a time.

    NAMESRV_ADDR=127.0.0.1:9876 python examples/ordered.py
"""

from collections import defaultdict
from threading import Event

from goddard import ConsumeFrom, Message, OrderlyContext, Producer, PushConsumer, ReceivedMessage

STEPS = ["created", "paid", "packed", "shipped"]
ORDERS = ["order-1", "order-2", "order-3", "order-4", "order-5"]

with Producer("ordered_producer") as producer:
    for step in STEPS:
        for order in ORDERS:
            # The same key selects the same queue, also in RocketMQ's Java client.
            producer.send(Message("TopicOrdered", step.encode(), keys=order), key=order)

seen: dict[str, list[str]] = defaultdict(list)
finished = Event()


def receive(messages: list[ReceivedMessage], context: OrderlyContext) -> None:
    for message in messages:
        (order,) = message.keys
        seen[order].append(message.body.decode())
        print(f"{order}: {message.body.decode()} (queue {message.queue_id})")
    if all(len(seen[order]) == len(STEPS) for order in ORDERS):
        finished.set()


consumer = PushConsumer(
    "ordered_consumer", listener=receive, orderly=True, consume_from=ConsumeFrom.FIRST_OFFSET
)
consumer.subscribe("TopicOrdered")
with consumer:
    finished.wait(60)

assert all(seen[order] == STEPS for order in ORDERS), dict(seen)
print(f"{len(ORDERS)} orders received, each in order")
