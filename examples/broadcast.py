"""Deliver every message to every consumer of a broadcasting group.

NAMESRV_ADDR=127.0.0.1:9876 python examples/broadcast.py
"""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from goddard import (
    ConsumeContext,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    ReceivedMessage,
)

MESSAGES = 10
received: Counter[str] = Counter()
finished = Event()


def start_consumer(name: str, offsets_folder: Path) -> PushConsumer:
    def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
        received[name] += len(messages)
        print(f"{name} has {received[name]}")
        if len(received) == 2 and min(received.values()) == MESSAGES:
            finished.set()

    consumer = PushConsumer(
        "broadcast_consumer",
        listener=receive,
        message_model=MessageModel.BROADCASTING,
        # Each consumer keeps its own offsets, in a file named after the instance.
        instance_name=name,
        offsets_folder=offsets_folder,
    )
    consumer.subscribe("TopicBroadcast")
    consumer.start()
    return consumer


with Producer("broadcast_producer") as producer, TemporaryDirectory() as folder:
    # The topic has to exist before its queues can be assigned to the consumers.
    producer.send(Message("TopicBroadcast", b"old news"))
    consumers = [start_consumer(name, Path(folder)) for name in ("left", "right")]
    for number in range(MESSAGES):
        producer.send(Message("TopicBroadcast", f"news {number}".encode()))
    finished.wait(60)
    for consumer in consumers:
        consumer.stop()

assert received == {"left": MESSAGES, "right": MESSAGES}, received
