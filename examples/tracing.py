"""Record when a message was sent and consumed, and read the records.

NAMESRV_ADDR=127.0.0.1:9876 python examples/tracing.py
"""

import time
from threading import Event

from goddard import (
    Admin,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TraceOptions,
)

received = Event()


def pay(messages: list[ReceivedMessage], context: object) -> None:
    received.set()


consumer = PushConsumer(
    "traced_group", listener=pay, trace=TraceOptions(), consume_from=ConsumeFrom.FIRST_OFFSET
)
consumer.subscribe("TopicTraced")
with Producer("traced_producer", trace=TraceOptions()) as producer:
    sent = producer.send(Message("TopicTraced", b"two tickets", keys="order-1"))
with consumer:
    received.wait(30)
# Clients send their last records when they stop; the broker finds them a moment later.

with Admin() as admin:
    kinds: list[str] = []
    deadline = time.monotonic() + 30
    while "ConsumeEnd" not in kinds and time.monotonic() < deadline:
        time.sleep(0.1)
        kinds = [type(record).__name__ for record in admin.message_trace(sent.message_id)]
    print(" ".join(sorted(kinds)))
