"""Deliver messages after a delay, which is one of the broker's delay levels.

NAMESRV_ADDR=127.0.0.1:9876 python examples/delayed.py
"""

import time
from threading import Event

from goddard import ConsumeContext, ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage

DELAY_SECONDS = {1: 1, 2: 5}  # the first of 18 levels, up to 2 hours
arrived: dict[int, float] = {}
finished = Event()

with Producer("delayed_producer") as producer:
    for level in DELAY_SECONDS:
        producer.send(Message("TopicDelayed", b"wake up", delay_level=level))


def receive(messages: list[ReceivedMessage], context: ConsumeContext) -> None:
    for message in messages:
        waited = time.time() - message.born_timestamp_ms / 1000
        arrived[message.delay_level] = waited
        print(f"level {message.delay_level}: {message.body.decode()} after {waited:.1f} s")
    if arrived.keys() == DELAY_SECONDS.keys():
        finished.set()


consumer = PushConsumer("delayed_consumer", listener=receive, consume_from=ConsumeFrom.FIRST_OFFSET)
consumer.subscribe("TopicDelayed")
with consumer:
    finished.wait(60)

assert all(arrived[level] >= seconds - 0.1 for level, seconds in DELAY_SECONDS.items()), arrived
